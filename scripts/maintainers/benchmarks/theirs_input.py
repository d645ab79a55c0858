"""The original's input pipeline: records are parsed one by one, then batched."""

import record_facts
import serve


def prepare(spec):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(spec["threads"])
    features = record_facts.features(spec["length"], spec["predictions"])
    del features["token_boundary"]

    def parse(record):
        row = tf.io.parse_single_example(record, features)
        return {k: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for k, v in row.items()}

    files = tf.data.Dataset.from_tensor_slices([spec["records"]]).repeat().shuffle(1)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=1, deterministic=False)
    rows = records.shuffle(100).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    batches = iter(rows.batch(spec["batch"], drop_remainder=True))

    def turn():
        return [next(batches) for _ in range(spec["count"] // spec["batch"])]

    # Its shuffle buffer mixes the records of two epochs, so only sums over several are comparable.
    whole = iter(tf.data.TFRecordDataset(spec["records"]).map(parse).batch(spec["batch"]))
    return turn, record_facts.sums(list(whole))


serve.serve(prepare)
