"""The batches that NumPy makes are those that tf.data makes."""

import itertools

import numpy as np
import pytest

from albert.errors import DataError
from albert.pretraining_data import dynamic_masking
from albert.pretraining_data.masking import MaskingSettings, SpecialIds
from albert.records import batches, data_order, examples, features, records, tfrecord
from albert.records.data_order import Share
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles
from albert.tasks.pretraining import PretrainingTask

tf = pytest.importorskip("tensorflow")

from albert.records import input_pipeline, shuffle  # noqa: E402

LENGTH, SEED, VOCAB = 96, 7, 50
MASKED = PretrainingTask(LENGTH, 6).feature_spec()
MASKS = dynamic_masking.DynamicMasking(
    LENGTH, MaskingSettings(6, 0.15), SpecialIds(2, 3, 4, VOCAB), SEED, 0.5
)
CHOICE = features.classification_spec(LENGTH, False, 3)


def rows_of(name: str, count: int):
    """Yields rows of very different lengths, numbered by a token."""
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


@pytest.fixture(params=SPECS)
def kind(request):
    return request.param


def source_of(folder, name, counts=(23, 1, 9, 14, 5, 8)) -> RecordFiles:
    rows, paths = rows_of(name, sum(counts)), []
    for number, count in enumerate(counts):
        paths.append(str(folder / f"{name}-{number}.tfrecord"))
        some = itertools.islice(rows, count)
        records.write_records(paths[-1], some, FeatureSpec(SPECS[name].features), {})
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


@pytest.mark.parametrize(
    "rows",
    [{}, {"is_cut": True}, {"is_cut": True, "packed_rows": 2},
     {"packed_rows": 1, "micro_batches": 2}],
    ids=str,
)
@pytest.mark.parametrize("is_large", [False, True])
def test_training_batches_are_those_of_tf_data(is_large, rows, kind, tmp_path, monkeypatch):
    if is_large:
        monkeypatch.setattr(data_order, "SHUFFLE_BUFFER", 10)
        monkeypatch.setattr(data_order, "LANES", 4)
        monkeypatch.setattr(records, "BATCH", 4)
    tf.random.set_seed(SEED)
    source, spec = source_of(tmp_path, kind), SPECS[kind]
    for position, share in ((0, None), (77, Share(4, 2, 2))):
        options = {"batch_size": 8, "vocab_size": VOCAB, "seed": SEED, "position": position,
                   "share": share, **rows}
        assert_same_batches(
            batches.train_batches(source, spec, **options),
            input_pipeline.train_batches(source, spec, **options), 20,
        )


def test_parts_of_a_batch_that_fill_fewer_rows_get_empty_ones():
    full, short = (
        {"input_ids": np.full((rows, 4), rows), "packed_mask": np.ones((2, 4))} for rows in (3, 1)
    )
    made = batches.joined([short, full])
    assert made["input_ids"][:, 0].tolist() == [1, 0, 0, 3, 3, 3]
    assert made["packed_mask"].shape == (4, 4)  # of examples, of which none is added
    assert batches.joined([short], 2)["input_ids"][:, 0].tolist() == [1, 0]


@pytest.mark.parametrize("num_batches", [0, 9])
def test_evaluation_batches_are_those_of_tf_data(num_batches, kind, tmp_path):
    source, spec = source_of(tmp_path, kind), SPECS[kind]
    for rows in ({}, {"is_cut": True, "packed_rows": 1, "share": Share(2, 0, 2)}):
        options = {"batch_size": 8, "vocab_size": VOCAB, "num_batches": num_batches, **rows}
        assert_same_batches(
            batches.eval_batches(source, spec, **options),
            input_pipeline.eval_batches(source, spec, **options),
        )


@pytest.mark.parametrize("seed", [0, 1, -5, 2**40 + 17])
def test_the_order_is_that_of_tensorflow(seed):
    for of_run in (7, 2**32):
        tf.random.set_seed(of_run)
        wanted = tf.data.Dataset.range(1001).shuffle(1001, seed, reshuffle_each_iteration=False)
        found = shuffle.permutation(1001, of_run, seed)
        assert found.tolist() == list(wanted.as_numpy_iterator())


@pytest.mark.parametrize("counts", [[3, 1, 4, 0, 2, 5], [2, 2], [0, 0, 3], [1, 1, 1, 1, 1, 9, 2]])
def test_files_are_read_in_turn_as_tensorflow_does(counts):
    sources = tf.data.Dataset.from_tensor_slices(list(enumerate(counts)))

    def elements(pair):
        numbers = tf.data.Dataset.range(tf.cast(pair[1], tf.int64))
        return numbers.map(lambda number: (pair[0], number))

    for lanes in (1, 3, 4):
        wanted = [tuple(map(int, pair)) for pair in sources.interleave(elements, lanes)]
        assert list(shuffle.interleaved(counts, lanes)) == wanted


# --- What is wrong with records ---


def test_records_of_other_writers_are_read_too():
    # In any order, a value at a time, with features that nobody asks for.
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


def test_a_record_reads_the_same_whatever_records_lie_before_it():
    rng = np.random.default_rng(4)
    spec = {"a": ("int64", 3), "b": ("float32", 2), "c": ("int64", None)}

    def messages(features, count):
        batch = {
            "a": rng.integers(0, 1 << rng.integers(1, 40, (count, 1)), (count, 3)),
            "b": rng.normal(size=(count, 2)), "c": rng.integers(0, 300, count),
        }
        flat, sizes = examples.encode_examples(batch, FeatureSpec(features))
        ends = np.cumsum(sizes)
        return [flat[end - size : end].tobytes() for end, size in zip(ends, sizes, strict=True)]

    def read(some):
        try:
            return {k: v.tolist() for k, v in examples.decode_examples(some, wanted).items()}
        except DataError as error:
            return str(error)

    wanted = FeatureSpec({name: spec[name] for name in ("c", "a")})
    other_order = {name: spec[name] for name in ("c", "b", "a")}
    mixed = [*messages(spec, 20), *messages(other_order, 20)]
    rng.shuffle(mixed)
    apart = [read([message]) for message in mixed]
    assert read(mixed) == {name: [one[name][0] for one in apart] for name in ("c", "a")}
    for first, second in zip(mixed, mixed[1:], strict=False):
        damaged = bytearray(second)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        alone, after = read([bytes(damaged)]), read([first, bytes(damaged)])
        if isinstance(after, dict):
            after = {name: values[1:] for name, values in after.items()}
        assert isinstance(alone, str) == isinstance(after, str)
        assert after == alone or isinstance(alone, str)


def test_more_files_than_may_be_open_are_read_with_one_look_at_each(tmp_path, monkeypatch):
    scans, scan = [], tfrecord.scan
    monkeypatch.setattr(tfrecord, "scan", lambda path: scans.append(path) or scan(path))
    monkeypatch.setattr(batches._Readers, "_MOST", 2)
    source = source_of(tmp_path, "masked", (5, 5, 5, 5))
    made = batches.train_batches(source, MASKED, batch_size=4, vocab_size=VOCAB, seed=1)
    list(itertools.islice(made, 10))
    assert sorted(scans) == sorted(source.paths)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"c": ("int64", 1)}, "Key: c"), ({"a": ("int64", 2)}, "Key: a"),
        ({"a": ("float32", 3)}, "Key: a"),
    ],
)
def test_a_record_that_is_not_as_it_should_be_is_refused_by_name(spec, message):
    made = FeatureSpec({"a": ("int64", 3)})
    flat, sizes = examples.encode_examples({"a": np.ones((2, 3), np.int64)}, made)
    content = flat.tobytes()
    with pytest.raises(DataError, match=message):
        examples.decode_examples([content[: sizes[0]], content[sizes[0] :]], FeatureSpec(spec))


@pytest.mark.parametrize("is_large", [False, True])
def test_damage_is_told_with_file_and_record(is_large, tmp_path, monkeypatch):
    if is_large:
        monkeypatch.setattr(data_order, "SHUFFLE_BUFFER", 10)
    source = source_of(tmp_path, "masked", (20,))
    content = bytearray(open(source.paths[0], "rb").read())
    starts, _ = tfrecord.scan(source.paths[0])
    content[starts[13] + 9] ^= 1
    open(source.paths[0], "wb").write(content)
    made = batches.train_batches(source, MASKED, batch_size=4, vocab_size=VOCAB, seed=1)
    with pytest.raises(DataError, match="masked-0.tfrecord: corrupt after record 13"):
        list(itertools.islice(made, 6))


def test_ids_outside_of_the_vocabulary_are_refused(tmp_path):
    source = source_of(tmp_path, "masked", (20,))
    made = batches.eval_batches(source, MASKED, batch_size=4, vocab_size=9)
    with pytest.raises(DataError, match="input_ids outside the vocabulary of 9 pieces"):
        list(made)


def test_what_is_read_ahead_ends_with_its_reader():
    seen = []

    def endless():
        for number in itertools.count():
            seen.append(number)
            yield number

    some = batches.ahead(endless(), 2)
    assert [next(some), next(some)] == [0, 1]
    some.close()
    assert len(seen) <= 6
