"""Batches on both backends: identical, complete, and with errors that name file and record."""

import gc
import itertools
import pathlib
import threading
import time

import numpy as np
import pytest
from damage import flipped
from record_files_made import payloads_of, write_records

from albert.errors import DataError
from albert.pretraining_data import dynamic_masking
from albert.pretraining_data.masking import MaskingSettings, SpecialIds
from albert.records import batches, examples, features, packing, record_files, tfrecord
from albert.records.data_order import Share
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles
from albert.tasks.pretraining import PretrainingTask

tf = pytest.importorskip("tensorflow")

from albert.records import tf_dataset  # noqa: E402

LENGTH, SEED, VOCAB = 96, 7, 50
MASKED = PretrainingTask(LENGTH, 6).feature_spec()
MASKS = dynamic_masking.DynamicMasking(
    LENGTH, MaskingSettings(6, 0.15), SpecialIds(2, 3, 4, VOCAB), SEED, 0.5
)
CHOICE = features.classification_spec(LENGTH, False, 3)


def rows_of(name: str, count: int):
    """Yields rows of very different lengths, each numbered by a token."""
    rng = np.random.default_rng(1)
    for number in range(count):
        if name == "pairs":
            a, b = rng.integers(1, LENGTH // 2 - 3, 2)
            ids = np.zeros(LENGTH, np.int64)
            ids[: a + b + 3] = [2, *rng.integers(5, VOCAB, a), 3, *rng.integers(5, VOCAB, b), 3]
            yield {"input_ids": ids, "token_boundary": ids > 4, "segment_lengths": [a, b],
                   "next_sentence_labels": [number % 2]}
        else:
            choices = 3 if name == "choice" else 1
            sizes = rng.integers(3, LENGTH // 2, choices)
            mask = (np.arange(LENGTH) < sizes[:, None]).astype(np.int64)
            ids = mask * rng.integers(5, VOCAB, mask.shape)
            row = {"input_ids": ids.ravel(), "input_mask": mask.ravel(),
                   "segment_ids": mask.ravel() * (number % 2)}
            if name == "choice":
                yield row | {"label_ids": number % 3, "is_real_example": 1}
            else:
                count = min(6, int(sizes[0]))
                yield row | {
                    "masked_lm_positions": np.arange(6) % count,
                    "masked_lm_ids": rng.integers(5, VOCAB, 6),
                    "masked_lm_weights": (np.arange(6) < count).astype(np.float32),
                    "next_sentence_labels": [number % 2],
                }


SPECS = {"masked": MASKED, "pairs": MASKS.feature_spec(), "choice": CHOICE}


def source_of(folder, name, counts=(23, 1, 9, 14, 5, 8)) -> RecordFiles:
    rows, paths = rows_of(name, sum(counts)), []
    for number, count in enumerate(counts):
        paths.append(str(folder / f"{name}-{number}.tfrecord"))
        some = itertools.islice(rows, count)
        write_records(paths[-1], some, FeatureSpec(SPECS[name].features), {})
    return RecordFiles(paths)


def assert_same_batches(ours, theirs, count=None):
    ours, theirs = (list(itertools.islice(some, count)) for some in (ours, theirs))
    assert len(ours) == len(theirs) > 0
    for mine, wanted in zip(ours, theirs, strict=True):
        assert set(mine) == set(wanted)
        for name, value in mine.items():
            expected = wanted[name].numpy()
            assert value.dtype == expected.dtype, name
            np.testing.assert_array_equal(value, expected, err_msg=name)


ROWS = [
    {}, {"is_cut": True}, {"is_cut": True, "packed_rows": 2}, {"packed_rows": 1, "micro_batches": 2},
]


@pytest.mark.parametrize("kind, rows", [
    ("masked", ROWS[0]), ("choice", ROWS[2]), *(("pairs", rows) for rows in ROWS),
], ids=str)
def test_tensorflow_gets_the_same_batches_with_known_shapes(rows, kind, tmp_path):
    source, spec = source_of(tmp_path, kind), SPECS[kind]
    for position, share in ((0, None), (77, Share(4, 2, 2))):
        options = {"batch_size": 8, "vocab_size": VOCAB, "seed": SEED, "position": position,
                   "share": share, **rows}
        found = tf_dataset.dataset(batches.train_batches, source, spec, **options)
        assert_same_batches(batches.train_batches(source, spec, **options), found, 20)
        for name, known in found.element_spec.items():
            assert known.shape.rank == (1 if name in ("label_ids", "is_real_example") else 2)
            if name not in packing.OF_ROWS:
                assert known.shape[0] in (8 // (share or Share()).num_replicas * n for n in (1, 3))
            is_cut_here = rows.get("is_cut") and name in packing.cut_features()
            assert is_cut_here or "packed_rows" in rows or None not in known.shape


@pytest.mark.parametrize("kind, num_batches", [("masked", 9), ("pairs", 0), ("choice", 9)])
def test_tensorflow_gets_the_same_batches_for_evaluation_again_and_again(kind, num_batches, tmp_path):
    source, spec = source_of(tmp_path, kind), SPECS[kind]
    for rows in ({}, {"is_cut": True, "packed_rows": 1, "share": Share(2, 0, 2)}):
        options = {"batch_size": 8, "vocab_size": VOCAB, "num_batches": num_batches, **rows}
        found = tf_dataset.dataset(batches.eval_batches, source, spec, **options)
        for _ in range(2):
            assert_same_batches(batches.eval_batches(source, spec, **options), found)


def numbers_of(source, **options):
    """Returns the numbers of the records in the batches of an evaluation."""
    spec = FeatureSpec({"number": ("int64", None)})
    found = batches.eval_batches(source, spec, vocab_size=9, **options)
    return [
        (batch["number"].tolist(), batch["is_real_example"].tolist()) for batch in found
    ]


def test_an_evaluation_reads_all_records_in_file_order_or_as_many_as_asked_for(tmp_path):
    spec, paths = FeatureSpec({"number": ("int64", None)}), []
    for first, count in ((0, 3), (3, 4)):
        paths.append(str(tmp_path / f"{first}.tfrecord"))
        rows = ({"number": number} for number in range(first, first + count))
        write_records(paths[-1], rows, spec, {})
    source = RecordFiles(paths)
    assert numbers_of(source, batch_size=5) == [
        ([0, 1, 2, 3, 4], [1] * 5), ([5, 6, 0, 0, 0], [1, 1, 0, 0, 0])
    ]
    found = numbers_of(source, batch_size=5, num_batches=3)
    assert [numbers for numbers, _ in found] == [[0, 1, 2, 3, 4], [5, 6, 0, 1, 2], [3, 4, 5, 6, 0]]


def test_every_record_of_an_evaluation_has_masks_of_its_own_position(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "BLOCK", 2)  # records per block, several of which are read at once
    monkeypatch.setattr(batches, "_CHUNK", 7 * LENGTH)  # positions that are masked at once
    source, options = source_of(tmp_path, "pairs"), {"batch_size": 60, "vocab_size": VOCAB}
    [found] = batches.eval_batches(source, SPECS["pairs"], **options)
    [plain] = batches.eval_batches(source, FeatureSpec(SPECS["pairs"].features), **options)
    expected = MASKS(plain, np.arange(60))
    np.testing.assert_array_equal(found["masked_lm_positions"], expected["masked_lm_positions"])


def test_parts_of_a_batch_that_fill_fewer_rows_get_empty_ones_and_micro_batches_stay_apart():
    full, short = (
        {"input_ids": np.full((rows, 4), rows), "packed_mask": np.ones((2, 4))} for rows in (3, 1)
    )
    made = batches.joined([short, full])
    assert made["input_ids"][:, 0].tolist() == [1, 0, 0, 3, 3, 3]
    assert made["packed_mask"].shape == (4, 4)  # of examples, with no padding examples
    assert batches.joined([short], 2)["input_ids"][:, 0].tolist() == [1, 0]
    # Workers agree on the number of sequences; the step divides them evenly by micro-batches.
    ids = np.arange(1, 7)[:, None] * np.ones(4, int)
    part = {"input_ids": ids, "is_real_example": np.ones(8)}  # for two micro-batches
    batch = batches.joined([part], rows=8, micro_batches=2)
    assert batch["input_ids"][:, 0].tolist() == [1, 2, 3, 0, 4, 5, 6, 0]
    assert len(batch["is_real_example"]) == 8


# --- Errors in records ---


def test_records_of_other_writers_are_read_too():
    # In any order, one value at a time, with unrequested features.
    Feature, Int64List = tf.train.Feature, tf.train.Int64List
    message = tf.train.Example(features=tf.train.Features(feature={
        "other": Feature(bytes_list=tf.train.BytesList(value=[b"x"])),
        "b": Feature(float_list=tf.train.FloatList(value=[0.5, -2.0])),
        "a": Feature(int64_list=Int64List(value=[1, -1, 1 << 40])),
    })).SerializeToString()
    apart = b"\x1a\x06\x08\x01\x08\x02\x08\x03"  # an int64_list that is not packed
    entry = b"\x0a\x01a\x12" + bytes([len(apart)]) + apart
    content = b"\x0a" + bytes([len(entry)]) + entry
    spec = FeatureSpec({"a": ("int64", 3)})
    found = examples.decode_examples([message, b"\x0a" + bytes([len(content)]) + content], spec)
    assert found["a"].tolist() == [[1, -1, 1 << 40], [1, 2, 3]]
    both = examples.decode_examples([message], FeatureSpec({"b": ("float32", 2)}))
    assert both["b"].tolist() == [[0.5, -2.0]]


def test_a_record_reads_the_same_whatever_records_lie_beside_it():
    rng = np.random.default_rng(4)
    features = {"a": ("int64", 3), "b": ("float32", 2), "c": ("int64", None)}

    def messages(names):
        batch = {
            "a": rng.integers(0, 1 << rng.integers(1, 40, (20, 1)), (20, 3)),
            "b": rng.normal(size=(20, 2)), "c": rng.integers(0, 300, 20),
        }
        return examples.encode_examples(batch, FeatureSpec({name: features[name] for name in names}))

    def read(some):
        return examples.decode_examples(some, FeatureSpec({name: features[name] for name in "ca"}))

    mixed = [*messages("abc"), *messages("cba")]
    rng.shuffle(mixed)
    together, apart = read(mixed), [read([message]) for message in mixed]
    for name in "ca":
        np.testing.assert_array_equal(together[name], np.concatenate([one[name] for one in apart]))


def test_records_that_fit_in_memory_are_read_once(tmp_path, monkeypatch):
    reads, read = [], record_files.read_block
    monkeypatch.setattr(
        record_files, "read_block", lambda *block: reads.append(block[:2]) or read(*block)
    )
    source = source_of(tmp_path, "masked", (5, 5, 5, 5))
    for size, rounds in ((batches.CACHE_BYTES, 1), (0, 3)):
        monkeypatch.setattr(batches, "CACHE_BYTES", size)
        reads.clear()
        found = batches.train_batches(source, MASKED, batch_size=4, vocab_size=VOCAB, seed=1)
        list(itertools.islice(found, 11))  # of the third epoch
        found.close()
        assert len(reads) >= 4 * rounds and set(reads) == {(path, 0) for path in source.paths}
        assert len(reads) == 4 or rounds > 1


def test_a_record_that_is_not_as_it_should_be_is_refused_by_name():
    messages = []
    for count in (2, 3, 2):
        made = FeatureSpec({"a": ("int64", count)})
        messages += examples.encode_examples({"a": np.ones((1, count), np.int64)}, made)
    for found, spec, message in (
        (messages, {"c": ("int64", 1)}, "record 0: no feature c"),
        (messages, {"a": ("int64", 2)}, "record 1: a has 3 values, expected 2"),
        (messages, {"a": ("float32", 2)}, "record 0: the values of a are not of type float32"),
        ([messages[0], b"\xff"], {"a": ("int64", 2)}, "record 1: not a tf.train.Example"),
    ):
        with pytest.raises(DataError, match=message):
            examples.decode_examples(found, FeatureSpec(spec))


def pipeline(engine, *arguments, **options):
    if engine == "numpy":
        return batches.train_batches(*arguments, **options)
    return tf_dataset.dataset(batches.train_batches, *arguments, **options)


def make_batches(engine, *arguments, **options):
    """Yields the batches and raises the errors of a run."""
    with record_files.original_errors(arguments[0]):
        yield from pipeline(engine, *arguments, **options)


@pytest.mark.parametrize("engine", ["numpy", "tensorflow"])
def test_damage_and_ids_outside_of_the_vocabulary_are_reported_with_file_and_record(
    engine, tmp_path
):
    source = source_of(tmp_path, "masked", (20,))

    def refused(message, vocab_size=VOCAB):
        options = {"batch_size": 4, "vocab_size": vocab_size, "seed": 1}
        with pytest.raises(DataError, match=f"masked-0.tfrecord: {message}"):
            list(itertools.islice(make_batches(engine, source, MASKED, **options), 6))

    refused("record 0: input_ids outside the vocabulary of 9 tokens", vocab_size=9)
    path, (starts, _) = pathlib.Path(source.paths[0]), tfrecord.scan(source.paths[0])
    path.write_bytes(flipped(path.read_bytes(), int(starts[13]) + 9, 1))
    refused("corrupt after record 13")


OUT_OF_RANGE = [
    ("input_ids", -1), ("segment_ids", 7), ("segment_ids", -1), ("input_mask", 3),
    ("next_sentence_labels", 5), ("masked_lm_positions", 1 << 20), ("masked_lm_ids", 1 << 40),
    ("masked_lm_weights", np.nan), ("masked_lm_weights", np.inf), ("masked_lm_weights", -1.0),
]


@pytest.mark.parametrize(("engine", "name", "value"), [
    ("tensorflow", *OUT_OF_RANGE[0]), *(("numpy", *case) for case in OUT_OF_RANGE),
])
def test_no_feature_out_of_its_range_is_trained_on(engine, name, value, tmp_path):
    good = source_of(tmp_path, "masked", (20,))
    rows = examples.decode_examples(payloads_of(good.paths[0]), MASKED)
    rows = {key: values.astype(MASKED.features[key][0]) for key, values in rows.items()}
    rows[name][7].flat[0] = value
    path = tmp_path / "bad.tfrecord"
    path.write_bytes(tfrecord.frame_records(examples.encode_examples(rows, MASKED)))
    source, options = RecordFiles([str(path)]), {"batch_size": 4, "vocab_size": VOCAB, "seed": 1}
    with pytest.raises(DataError, match=f"bad.tfrecord: record 7: {name} outside the"):
        list(itertools.islice(make_batches(engine, source, MASKED, **options), 6))


# --- The prefetching threads ---


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("engine", ["numpy", "tensorflow"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_pipeline_that_is_dropped_leaves_no_thread(engine, count, tmp_path):
    source, before = source_of(tmp_path, "masked"), set(threading.enumerate())
    options = {"batch_size": 4, "vocab_size": VOCAB, "seed": 1}
    iterator = iter(pipeline(engine, source, MASKED, **options))
    for _ in range(count):
        next(iterator)
    del iterator
    gc.collect()
    deadline = time.monotonic() + 30
    while [one for one in set(threading.enumerate()) - before if one.name == "batches"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
