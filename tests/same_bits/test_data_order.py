"""The order of training records depends only on seed and position, and no reader starts over."""

import itertools
import json
import os
import pathlib

import jobs
import numpy as np
import pytest
from record_files_made import write_records

from albert.errors import DataError
from albert.records import batches as numpy_batches
from albert.records import data_order, manifests, record_files
from albert.records.data_order import Share
from albert.records.record_files import RecordFiles
from albert.storage import files as files_module

SPEC = manifests.FeatureSpec({"number": ("int64", None)})
COUNTS = (640, 100, 333, 1, 4, 460)
TOTAL = sum(COUNTS)
BATCH = 840  # divisible by 1 to 8
EPOCHS = 3


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files of numbered records, in many groups."""
    monkeypatch.setattr(record_files, "BLOCK", 8)
    monkeypatch.setattr(data_order, "LANES", 8)
    monkeypatch.setattr(data_order, "GROUP_RECORDS", 100)
    return write(tmp_path, COUNTS)


@pytest.fixture(params=["in groups", "shuffled as a whole"])
def any_files(request, files, monkeypatch):
    """The same files, in groups or as the only group of an epoch."""
    if request.param == "shuffled as a whole":
        monkeypatch.setattr(data_order, "GROUP_RECORDS", TOTAL)
    return files


def write(folder, counts):
    number, paths = itertools.count(), []
    for index, count in enumerate(counts):
        paths.append(str(folder / f"{index}.tfrecord"))
        rows = ({"number": next(number)} for _ in range(count))
        write_records(paths[-1], rows, SPEC, {})
    return paths


def batches(paths, count, *, position=0, seed=7, batch_size=BATCH, share=None, processes=1):
    """Returns the numbers of the records in the first batches."""
    found = numpy_batches.train_batches(
        RecordFiles(paths), SPEC, batch_size=batch_size, vocab_size=9, seed=seed,
        position=position, share=share, processes=processes,
    )
    return [batch["number"].tolist() for batch in itertools.islice(found, count)]


def shared_batches(paths, count, workers, replicas, position=0):
    """Returns the combined batches of `workers` workers with `replicas` replicas each."""
    parts = [
        batches(paths, count * replicas, position=position,
                share=Share(workers * replicas, worker * replicas, replicas))
        for worker in range(workers)
    ]
    found = []
    for step in range(count):
        own = [sum(part[step * replicas : (step + 1) * replicas], []) for part in parts]
        assert {len(rows) for rows in own} == {BATCH // workers}
        found.append([rows[i] for i in range(len(own[0])) for rows in own])
    return found


def test_each_epoch_has_every_record_once_in_an_order_of_its_own(any_files):
    flat = sum(batches(any_files, 3 * EPOCHS * TOTAL // 6, batch_size=2), [])
    epochs = [flat[i * TOTAL : (i + 1) * TOTAL] for i in range(EPOCHS)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(TOTAL))
    assert epochs[0] != epochs[1] != epochs[2]
    # Far from the order of the files: a group takes blocks from all of them.
    ranks = np.corrcoef(np.arange(TOTAL), epochs[0])[0, 1]
    assert abs(ranks) < 0.2
    assert batches(any_files, 2) == batches(any_files, 2) != batches(any_files, 2, seed=8)


@pytest.mark.parametrize("workers", [3, 4])
def test_the_batches_are_the_same_however_many_workers_read_them(any_files, workers):
    assert shared_batches(any_files, 5, workers, replicas=2) == batches(any_files, 5)


def test_several_processes_make_the_same_batches_and_report_the_same_damage(tmp_path):
    paths = write(tmp_path, (700, 300))
    for share in (None, Share(3, 1, 2)):
        options = {"batch_size": 60, "position": 400, "share": share}
        assert batches(paths, 30, processes=3, **options) == batches(paths, 30, **options)
    os.truncate(paths[1], os.path.getsize(paths[1]) - 9)
    with pytest.raises(DataError, match="1.tfrecord: cut after record 299"):
        batches(paths, 30, processes=2)


def test_processes_that_read_end_with_a_killed_command(tmp_path):
    jobs.assert_children_end_with_a_killed_command(
        tmp_path,
        "import multiprocessing, sys, time\n"
        "from albert.records import batches, manifests, record_files\n"
        "if __name__ == '__main__':\n"
        "    spec = manifests.FeatureSpec({'number': ('int64', None)})\n"
        "    found = batches.train_batches(record_files.RecordFiles(sys.argv[1:]), spec, batch_size=60,\n"
        "                                  vocab_size=9, seed=1, processes=2)\n"
        "    next(found), next(found)\n"
        "    print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"
        "    time.sleep(60)\n",
        *write(tmp_path, (700,)),
    )


def test_any_position_can_be_resumed_from(any_files):
    flat = sum(batches(any_files, 2 * TOTAL // 11, batch_size=11), [])
    for position in (0, 1, 17, TOTAL - 60, TOTAL - 1, TOTAL, TOTAL + 5):
        [rest] = batches(any_files, 1, position=position, batch_size=200)
        assert rest == flat[position : position + 200]


def test_files_without_blocks_in_their_manifest_are_read_in_the_same_order(files):
    whole = batches(files, 4)
    for path in files[:3]:
        os.unlink(manifests.manifest_path(path))
    path = pathlib.Path(manifests.manifest_path(files[3]))
    manifest = json.loads(path.read_text())
    del manifest["blocks"], manifest[files_module._SEAL]
    files_module.write_sealed_json(str(path), manifest)
    assert batches(files, 4) == whole


def test_blocks_are_complete_records(files):
    for path, count in zip(files, COUNTS, strict=True):
        blocks = RecordFiles([path]).blocks
        assert blocks.records.sum() == count and (blocks.records[:-1] == 8).all()
        os.unlink(manifests.manifest_path(path))
        scanned = RecordFiles([path]).blocks
        for column in ("file", "offset", "size", "first", "records"):
            np.testing.assert_array_equal(getattr(scanned, column), getattr(blocks, column))


def test_the_order_is_what_it_was(tmp_path, monkeypatch):
    # A run that is resumed with a later version keeps this order.
    monkeypatch.setattr(record_files, "BLOCK", 2)
    monkeypatch.setattr(data_order, "LANES", 2)
    paths = write(tmp_path, (7, 2, 5))
    golden = {
        65536: [10, 0, 3, 7, 12, 5, 4, 8, 11, 6, 1, 2, 13, 9, 12, 1, 3, 11, 13, 7, 4, 10, 0, 2],
        4: [2, 8, 3, 7, 11, 10, 12, 9, 5, 0, 4, 1, 13, 6, 2, 9, 3, 10, 0, 8, 1, 7, 5, 11],
    }
    for size, numbers in golden.items():
        monkeypatch.setattr(data_order, "GROUP_RECORDS", size)
        assert sum(batches(paths, 8, batch_size=3), []) == numbers
        assert sum(batches(paths, 2, batch_size=3, position=18), []) == numbers[18:]


def test_a_resumed_run_reads_no_more_than_a_new_one_and_a_worker_its_own_blocks(
    tmp_path, monkeypatch
):
    for owner, name, value in (
        (record_files, "BLOCK", 64), (data_order, "LANES", 16), (data_order, "GROUP_RECORDS", 400),
        (numpy_batches, "CACHE_BYTES", 0), (numpy_batches, "_CHUNK", 100),
    ):
        monkeypatch.setattr(owner, name, value)
    sizes, read = [], record_files.read_block
    monkeypatch.setattr(
        record_files, "read_block", lambda *block: sizes.append(block[2]) or read(*block)
    )
    total = 20_000
    paths = write(tmp_path, (total // 2, total // 2))
    size = sum((tmp_path / f"{i}.tfrecord").stat().st_size for i in range(2))

    def bytes_read(position, count, share=None):
        sizes.clear()
        batches(paths, count, batch_size=80, position=position, share=share)
        return sum(sizes)

    # The amount of read-ahead depends on thread timing: up to an eighth.
    assert bytes_read(0, 1) < 0.2 * size
    # At nine tenths of the second epoch, no records from before that position are read.
    assert bytes_read(int(1.9 * total), 1) < 0.2 * size
    # Over a full epoch, each of four workers reads about a quarter.
    whole, quarter = (bytes_read(0, total // 80 - 1, s) for s in (None, Share(4, 1, 1)))
    assert 0.9 * size < whole < 1.5 * size
    assert quarter < 0.4 * whole
