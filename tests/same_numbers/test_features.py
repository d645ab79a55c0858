"""Encoding of texts as sequences, and the cache of record files."""

import multiprocessing
import pathlib

import numpy as np
import pytest

from albert.errors import DataError
from albert.records import feature_cache, features, manifests
from albert.storage import files

SPEC = manifests.FeatureSpec({"input_ids": ("int64", 2)})
ROWS = [{"input_ids": [1, 2]}, {"input_ids": [3, 4]}]


@pytest.mark.parametrize(("a", "b", "length", "ids", "second"), [
    ([10, 11], None, 6, [2, 10, 11, 3], 0),
    ([10, 11], [20], 8, [2, 10, 11, 3, 20, 3], 2),
    ([10, 11], [], 8, [2, 10, 11, 3, 3], 1),
    ([], None, 5, [2, 3], 0),
    ([10, 11, 12, 13], None, 5, [2, 10, 11, 12, 3], 0),
    ([10, 11, 12, 13], [20, 21, 22], 8, [2, 10, 11, 12, 3, 20, 21, 3], 3),
])
def test_texts_are_cut_and_laid_out_with_their_separators(a, b, length, ids, second):
    row = features.join_texts(a, b, length, cls_id=2, sep_id=3)
    padding = [0] * (length - len(ids))
    assert row["input_ids"].tolist() == ids + padding
    assert row["input_mask"].tolist() == [1] * len(ids) + padding
    assert row["segment_ids"].tolist() == [0] * (len(ids) - second) + [1] * second + padding
    assert all(values.dtype == np.int64 for values in row.values())


def test_truncation_takes_from_the_longer_text_and_from_the_second_on_a_tie():
    for length_a, length_b, room, kept in (
        (5, 2, 7, (5, 2)), (5, 2, 5, (3, 2)), (2, 5, 5, (2, 3)), (3, 3, 5, (3, 2)),
        (4, 4, 1, (1, 0)),
    ):
        a, b = features.truncate_pair(range(length_a), range(length_b), room)
        assert ([*a], [*b]) == ([*range(kept[0])], [*range(kept[1])])


def write(directory, rows=ROWS, **depends_on):
    return feature_cache.cached_records(str(directory), "mnli_train", rows, SPEC, depends_on)


def never():
    raise AssertionError("the cache was to be used")
    yield


def test_a_cache_is_made_once_for_what_it_depends_on(tmp_path, monkeypatch):
    path = write(tmp_path, file="abc")
    assert write(tmp_path, never(), file="abc") == path
    assert path.startswith(str(tmp_path / "mnli_train-")) and path.endswith(".tf_record")
    assert write(tmp_path, file="abd") != path
    monkeypatch.setattr(feature_cache, "FEATURES_VERSION", feature_cache.FEATURES_VERSION + 1)
    assert write(tmp_path, file="abc") != path


def test_a_damaged_cache_is_made_again(tmp_path):
    path = write(tmp_path)
    sha256, manifest = files.sha256(path), pathlib.Path(path + files.MANIFEST_SUFFIX)
    for damage in (
        manifest.unlink,
        lambda: manifest.write_text('{"records"'),
        lambda: pathlib.Path(path).write_bytes(b"cut"),
    ):
        damage()
        assert write(tmp_path) == path
        assert files.sha256(path) == sha256
        assert manifests.Manifest.read(path).records == 2


def test_nothing_is_left_of_a_cache_whose_input_is_bad(tmp_path):
    def rows():
        yield ROWS[0]
        raise DataError("dev.tsv:17: bad")

    with pytest.raises(DataError, match="dev.tsv:17"):
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
    assert [p.exitcode for p in processes] == [0, 0] and made.value == 1
    assert manifests.Manifest.read(write(tmp_path, never())).records == 2
