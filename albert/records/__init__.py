"""Record files in, batches out.

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
"""
