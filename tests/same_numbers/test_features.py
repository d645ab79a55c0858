"""Packing of texts into rows, and the cache of record files."""

import multiprocessing

import numpy as np
import pytest

from albert.records import feature_cache, features, records
from albert.storage import files

SPEC = records.FeatureSpec({"input_ids": ("int64", 2)})
ROWS = [{"input_ids": [1, 2]}, {"input_ids": [3, 4]}]


def pack(a, b, length):
    return features.pack(a, b, length, cls_id=2, sep_id=3)


def test_one_text_is_cls_text_sep_of_segment_0():
    row = pack([10, 11], None, 6)
    assert row.input_ids.tolist() == [2, 10, 11, 3, 0, 0]
    assert row.input_mask.tolist() == [1, 1, 1, 1, 0, 0]
    assert row.segment_ids.tolist() == [0] * 6


def test_the_second_text_and_its_separator_are_of_segment_1():
    row = pack([10, 11], [20], 8)
    assert row.input_ids.tolist() == [2, 10, 11, 3, 20, 3, 0, 0]
    assert row.input_mask.tolist() == [1] * 6 + [0, 0]
    assert row.segment_ids.tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


def test_an_empty_text_is_cls_sep():
    assert pack([], None, 5).input_ids.tolist() == [2, 3, 0, 0, 0]


def test_a_long_text_is_cut_at_its_end_and_keeps_its_separator():
    assert pack([10, 11, 12, 13], None, 5).input_ids.tolist() == [2, 10, 11, 12, 3]


@pytest.mark.parametrize(
    ("length_a", "length_b", "room", "want"),
    [(5, 2, 7, (5, 2)), (5, 2, 5, (3, 2)), (2, 5, 5, (2, 3)), (3, 3, 5, (3, 2)), (4, 4, 1, (1, 0))],
)
def test_truncation_takes_from_the_longer_text_and_from_the_second_on_a_tie(
    length_a, length_b, room, want
):
    a, b = features.truncate_pair(list(range(length_a)), list(range(length_b)), room)
    assert (len(a), len(b)) == want
    assert list(a) == list(range(want[0]))


def write(directory, rows=ROWS, **depends_on):
    return feature_cache.cached_records(str(directory), "mnli_train", rows, SPEC, depends_on)


def never():
    raise AssertionError("the cache was to be used")
    yield


def test_a_current_cache_is_not_made_again(tmp_path):
    path = write(tmp_path, file="abc")
    assert write(tmp_path, never(), file="abc") == path
    assert path.startswith(str(tmp_path / "mnli_train-")) and path.endswith(".tf_record")


def test_what_features_depend_on_makes_another_cache(tmp_path, monkeypatch):
    path = write(tmp_path, file="abc")
    assert write(tmp_path, file="abd") != path
    monkeypatch.setattr(feature_cache, "FEATURES_VERSION", feature_cache.FEATURES_VERSION + 1)
    assert write(tmp_path, file="abc") != path


@pytest.mark.parametrize("damage", ["no manifest", "bad manifest", "cut"])
def test_a_damaged_cache_is_made_again(tmp_path, damage):
    path = write(tmp_path)
    whole = files.sha256(path)
    manifest = path + files.MANIFEST_SUFFIX
    if damage == "no manifest":
        files.os.unlink(manifest)
    elif damage == "bad manifest":
        with open(manifest, "w") as stream:
            stream.write('{"records"')
    else:
        with open(path, "r+b") as stream:
            stream.truncate(20)
    assert write(tmp_path) == path
    assert files.sha256(path) == whole
    assert records.Manifest.read(path).records == 2


def test_nothing_is_left_of_a_cache_whose_input_is_bad(tmp_path):
    def rows():
        yield ROWS[0]
        raise files.DataError("dev.tsv:17: bad")

    with pytest.raises(files.DataError, match="dev.tsv:17"):
        write(tmp_path, rows())
    assert list(tmp_path.iterdir()) == []


def _write_slowly(directory, barrier, made):
    def rows():
        made.value += 1
        yield from ROWS

    barrier.wait()
    write(directory, rows())


def test_of_two_processes_one_makes_the_cache_and_both_succeed(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, made = context.Barrier(2), context.Value("i", 0)
    processes = [
        context.Process(target=_write_slowly, args=(tmp_path, barrier, made)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [p.exitcode for p in processes] == [0, 0]
    assert made.value == 1
    assert records.Manifest.read(write(tmp_path, never())).records == 2


def test_rows_are_int64(tmp_path):
    assert all(v.dtype == np.int64 for v in pack([1], [2], 8).as_dict().values())
