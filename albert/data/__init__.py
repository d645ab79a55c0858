"""Files in, batches out: what every command reads and writes, and nothing of the model.

    files           files and folders that appear whole or not at all, JSON, digests, names in flags
    shipped         models that come with this package, by name
    temporaries     what is under way beside them, locked while its process lives
    places          paths of other file systems, and their mirrors on this machine
    mirrors         what is read there is fetched, what is written there is sent
    addresses       what is read at an address, and what a Python call writes there
    leases          the remote directory that one run holds for itself
    remote_files    the calls of fsspec, and what is told when they fail
    remote_blocks   blocks of remote record files, fetched ahead
    text_files      lines of texts and tables, packed or not, and what is wrong with them
    sentences       running text to sentences
    corpus_files    corpora in whatever form: plain text, JSON lines, Parquet; folders and lists
    workers         processes that end with their owner
    progress        how far work is, and how long it will take
    protobuf        messages of protobuf, field by field
    tfrecord        the container of records: lengths, checksums, bytes
    examples        one record: its features, and its bytes from arrays
    records         record files are written, and the manifest beside each
    record_files    files that are read together: their counts, blocks, what they were made with
    features        from texts to arrays of one length
    feature_cache   record files of features, none made twice
    data_order      the order of records that are too many to shuffle at once
    shuffle         the orders of tf.data's shuffle and interleave, without TensorFlow
    packing         shorter rows, and several short examples in one row
    batches         from record files to batches, by NumPy
    input_pipeline  the same batches, by tf.data
    seeds           one seed for each purpose
    schedules       numbers that change at steps of a run
"""
