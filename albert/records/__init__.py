"""Record files in, batches out.

    protobuf        fields of protobuf messages
    tfrecord        TFRecord files: lengths, checksums, payloads
    examples        the features of a record, and its bytes
    manifests       writing record files, each with its manifest
    record_files    files that are read together: counts, blocks, manifests
    features        texts to arrays of one length
    windows         the parts of texts that sequences hold
    feature_cache   record files of features, made only once
    data_order      the order of training records
    packing         shorter sequences, and several examples in one sequence
    batches         record files to batches, in NumPy
    tf_dataset      these batches as a `tf.data.Dataset`
"""
