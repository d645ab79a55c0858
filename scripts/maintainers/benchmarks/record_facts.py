"""The content of record files and batches, as arrays to compare. Imports nothing from the project."""

import zlib

import numpy as np


def features(length: int, predictions: int) -> dict:
    """Returns the feature specification of the original's records."""
    import tensorflow as tf

    def fixed(count, dtype=tf.int64):
        return tf.io.FixedLenFeature([count], dtype)

    rows = ("input_ids", "input_mask", "segment_ids", "token_boundary")
    return {name: fixed(length) for name in rows} | {
        "masked_lm_positions": fixed(predictions), "masked_lm_ids": fixed(predictions),
        "masked_lm_weights": fixed(predictions, tf.float32), "next_sentence_labels": fixed(1),
    }


def describe(path: str, length: int, predictions: int, with_records: bool) -> dict:
    """Returns statistics of a file's records and, if `with_records`, a checksum of each in order.

    `chance/NAME` is the standard error of `statistics/NAME`, a mean of independent draws.
    """
    import tensorflow as tf

    records = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
    rows = tf.io.parse_example(records, features(length, predictions))
    rows = {name: value.numpy() for name, value in rows.items()}
    used, weights = rows["input_mask"].sum(axis=1), rows["masked_lm_weights"]
    at_masks = np.take_along_axis(rows["input_ids"], rows["masked_lm_positions"], 1)
    # The commonest id at masked positions is [MASK] in any vocabulary.
    mask = np.bincount(at_masks[weights > 0]).argmax()
    draws = {
        "tokens": used,
        "masks": weights.sum(axis=1),
        "masks_replaced": at_masks[weights > 0] == mask,
        "swapped": rows["next_sentence_labels"],
        "word_starts": rows["token_boundary"].sum(axis=1) / used,
    }
    facts = {"count": len(records)}
    for name, drawn in draws.items():
        facts[f"statistics/{name}"] = np.mean(drawn)
        facts[f"chance/{name}"] = np.std(drawn) / drawn.size**0.5
    if with_records:
        # Of the values and not the bytes, where the entries of a map are in any order; a float32
        # holds 24 bits.
        columns = [np.ascontiguousarray(rows[name]) for name in sorted(rows)]
        facts["records"] = [
            zlib.crc32(b"".join(column[i].tobytes() for column in columns)) & 0xFFFFFF
            for i in range(len(records))
        ]
    return facts


def unmasked_sums(batches: list) -> dict[str, np.ndarray]:
    """Returns the `sums` of the features that do not depend on the masks."""
    import tensorflow as tf

    plain = []
    for batch in batches:
        ids = batch["input_ids"].numpy().copy()
        row, rank = np.nonzero(batch["masked_lm_weights"].numpy())
        places = batch["masked_lm_positions"].numpy()[row, rank]
        ids[row, places] = batch["masked_lm_ids"].numpy()[row, rank]
        kept = {name: batch[name] for name in ("input_mask", "segment_ids", "next_sentence_labels")}
        plain.append(kept | {"input_ids": tf.constant(ids)})
    return sums(plain)


def sums(batches: list) -> dict[str, np.ndarray]:
    """Returns the sum of each row of each feature, sorted, since the order of rows is free."""
    names = sorted(set(batches[0]) - {"is_real_example"})
    return {
        name: np.sort(np.concatenate([batch[name].numpy().sum(1) for batch in batches]))
        for name in names
    }
