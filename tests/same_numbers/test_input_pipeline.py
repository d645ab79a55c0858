"""Batches are truncated to their longest sequence, or packed, without changing any result."""

import numpy as np
import pytest
from record_files_made import write_records

from albert.records import batches as numpy_batches
from albert.records import features, packing, tf_dataset
from albert.records.record_files import RecordFiles
from albert.tasks.classification import ClassificationTask, MultipleChoiceTask

LENGTH, VOCAB = 96, 40
TEXT = ("input_ids", "input_mask", "segment_ids")
TASKS = {
    "one": ClassificationTask("one", LENGTH, ("a", "b", "c"), 0.0),
    "choice": MultipleChoiceTask("choice", LENGTH, ("A", "B", "C"), 0.0),
}


def write(path, name, used):
    """Writes a record per number of tokens; the sequences of a choice after the first are shorter."""
    rng, choices = np.random.default_rng(1), 3 if name == "choice" else 1

    def row(number, count):
        parts = [
            features.join_texts(rng.integers(5, VOCAB, max(n, 1)).tolist(), None, LENGTH, 2, 3)
            for n in range(count - 2, count - 2 - choices, -1)
        ]
        arrays = {k: np.concatenate([part[k] for part in parts]) for k in TEXT}
        return {**arrays, "label_ids": number % 3, "is_real_example": 1}

    rows = (row(number, count) for number, count in enumerate(used))
    write_records(str(path), rows, TASKS[name].feature_spec(), {})
    return RecordFiles([str(path)])


def batches(source, name, is_cut):
    spec = TASKS[name].feature_spec()
    return list(tf_dataset.dataset(
        numpy_batches.eval_batches, source, spec, batch_size=2, vocab_size=VOCAB, is_cut=is_cut
    ))


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_is_as_long_as_its_longest_row_needs_and_loses_no_token(tmp_path, name):
    paths = write(tmp_path / "r", name, [5, 32, 33, 4, 7, 65, 96, 3, 9])
    choices = 3 if name == "choice" else 1
    assert packing.row_lengths(512) == [64, 128, 192, 256, 320, 384, 448, 512]
    assert (packing.row_lengths(100), packing.row_lengths(20)) == ([32, 64, 96, 100], [20])
    whole, cut = batches(paths, name, False), batches(paths, name, True)
    assert [b["input_ids"].shape[1] // choices for b in cut] == [32, 64, 96, 96, 32]
    for before, after in zip(whole, cut, strict=True):
        length = after["input_ids"].shape[1] // choices
        for key in TEXT:
            rows = np.reshape(before[key], [-1, LENGTH])
            np.testing.assert_array_equal(np.reshape(after[key], [-1, length]), rows[:, :length])
            assert not rows[:, length:].any()
        np.testing.assert_array_equal(after["label_ids"], before["label_ids"])
