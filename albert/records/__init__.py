"""Record files in, batches out.

    protobuf        fields of protobuf messages
    tfrecord        TFRecord files: lengths, checksums, payloads
    examples        the features of a record, and its bytes
    manifests       what the manifest of a record file says
    record_files    records that are read together, from files or in memory
    features        texts to arrays of one length
    windows         the parts of texts that sequences hold
    data_order      the order of training records
    packing         shorter sequences, and several examples in one sequence
    batches         record files to batches, in NumPy
    tf_dataset      these batches as a `tf.data.Dataset`
"""
