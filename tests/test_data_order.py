"""The order of training records is of seed and position alone, and its place is found, not read."""

import itertools
import json

import numpy as np
import pytest
from helpers import run

from albert.errors import DataError
from albert.records import data_order, records
from albert.records.data_order import Share
from albert.records.record_files import RecordFiles
from albert.storage import files as files_module

tf = pytest.importorskip("tensorflow")

from albert.records import input_pipeline  # noqa: E402

SPEC = records.FeatureSpec({"number": ("int64", None)})
COUNTS = (640, 100, 333, 1, 4, 460)
TOTAL = sum(COUNTS)
BATCH = 840  # which 1 to 8 share
EPOCHS = 3


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files of numbered records, too many to be shuffled at once."""
    monkeypatch.setattr(records, "BATCH", 8)
    monkeypatch.setattr(data_order, "LANES", 8)
    monkeypatch.setattr(data_order, "SHUFFLE_BUFFER", 400)
    return write(tmp_path, COUNTS)


def write(folder, counts):
    number, paths = itertools.count(), []
    for index, count in enumerate(counts):
        paths.append(str(folder / f"{index}.tfrecord"))
        rows = ({"number": next(number)} for _ in range(count))
        records.write_records(paths[-1], rows, SPEC, {})
    return paths


def batches(paths, count, *, position=0, seed=7, batch_size=BATCH, share=None):
    """Returns the numbers of so many elements of the pipeline."""
    made = input_pipeline.train_batches(
        RecordFiles(paths), SPEC, batch_size=batch_size, vocab_size=9, seed=seed,
        position=position, share=share,
    )
    return [batch["number"].numpy().tolist() for batch in made.take(count)]


def shared_batches(paths, count, workers, replicas, position=0):
    """Returns the batches that so many workers get together, of so many replicas each."""
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


def test_each_epoch_has_every_record_once_in_an_order_of_its_own(files):
    flat = sum(batches(files, 3 * EPOCHS * TOTAL // 6, batch_size=2), [])
    epochs = [flat[i * TOTAL : (i + 1) * TOTAL] for i in range(EPOCHS)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(TOTAL))
    assert epochs[0] != epochs[1] != epochs[2]
    # Far from the order of the files: a group is of blocks from everywhere.
    ranks = np.corrcoef(np.arange(TOTAL), epochs[0])[0, 1]
    assert abs(ranks) < 0.2
    assert batches(files, 2) == batches(files, 2) != batches(files, 2, seed=8)


@pytest.mark.parametrize(
    "workers", [1, 3, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5, 6, 7, 8))]
)
def test_the_batches_are_the_same_however_many_workers_read_them(files, workers):
    replicas = 2 if BATCH % (2 * workers) == 0 and workers < 5 else 1
    assert shared_batches(files, 5, workers, replicas) == batches(files, 5)


@pytest.mark.parametrize(
    "workers",
    [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4, 5, 6, 7, 8))],
)
def test_a_resumed_order_is_the_uninterrupted_one(files, workers):
    whole = batches(files, 6)
    # In the first epoch, at its end, in the second and the third; a batch is 0.55 of one.
    for step in (1, 2, 4):
        assert shared_batches(files, 6 - step, workers, 1, step * BATCH) == whole[step:]


@pytest.mark.slow
@pytest.mark.parametrize("is_large", [False, True])
def test_no_epoch_of_a_seed_has_the_order_of_an_epoch_of_another(is_large, files, monkeypatch):
    if not is_large:
        monkeypatch.setattr(data_order, "SHUFFLE_BUFFER", 1 << 20)
    tf.random.set_seed(7)  # the same for all, so that the orders' own seeds are compared
    orders = set()
    seeds = (0, 1, 2**32 - 1, 2**32, 2**32 + 1)
    for seed in seeds:
        flat = sum(batches(files, 3 * TOTAL // 2, seed=seed, batch_size=2), [])
        orders |= {tuple(flat[i * TOTAL : (i + 1) * TOTAL]) for i in range(EPOCHS)}
    assert len(orders) == EPOCHS * len(seeds)


def test_any_position_can_be_gone_on_from(files):
    flat = sum(batches(files, 2 * TOTAL // 11, batch_size=11), [])
    for position in (0, 1, 17, TOTAL - 60, TOTAL - 1, TOTAL, TOTAL + 5):
        [rest] = batches(files, 1, position=position, batch_size=200)
        assert rest == flat[position : position + 200]


def test_files_without_blocks_in_their_manifest_are_read_in_the_same_order(files):
    whole = batches(files, 4)
    for path in files[:3]:
        records.remove_manifest(path)
    manifest = json.loads(open(records.manifest_path(files[3])).read())
    del manifest["blocks"], manifest[files_module._SEAL]
    open(records.manifest_path(files[3]), "w").write(json.dumps(manifest))
    assert batches(files, 4) == whole


def test_blocks_are_whole_records(files):
    for path, count in zip(files, COUNTS, strict=True):
        blocks = RecordFiles([path]).blocks[0]
        assert sum(records for records, _ in blocks) == count
        assert [records for records, _ in blocks[:-1]] == [8] * (len(blocks) - 1)
        records.remove_manifest(path)
        assert RecordFiles([path]).blocks[0] == blocks


def test_blocks_that_are_not_the_file_are_refused(files):
    path = records.manifest_path(files[0])
    manifest = json.loads(open(path).read())
    manifest["blocks"][0][0] += 1
    del manifest[files_module._SEAL]
    open(path, "w").write(json.dumps(manifest))
    with pytest.raises(DataError, match="unusable blocks"):
        RecordFiles([files[0]]).blocks


def test_the_order_of_sets_that_are_shuffled_at_once_is_what_it_was(tmp_path):
    # A run that resumes with a later version goes on in it. TensorFlow mixes its global seed
    # in, which the trainer sets.
    tf.random.set_seed(7)
    golden = [6, 7, 1, 3, 10, 13, 0, 2, 9, 4, 5, 8, 12, 11, 12, 2, 5, 7, 0, 9, 1, 4, 13, 11]
    paths = write(tmp_path, (7, 2, 5))
    flat = sum(batches(paths, 8, batch_size=3), [])
    assert flat == golden
    assert sum(batches(paths, 2, batch_size=3, position=18), []) == golden[18:]


READ = """
import test_data_order as t
from albert.records import data_order, input_pipeline, records
from albert.records.data_order import Share
data_order.LANES, data_order.SHUFFLE_BUFFER, input_pipeline._READ_BYTES = 16, 400, 1024
paths = {paths!r}
def read():
    with open("/proc/self/io") as stream:
        return int(next(stream).split()[1])
t.batches(paths, 1, batch_size=8)  # what TensorFlow reads at its first use
before = read()
t.batches(paths, {count}, batch_size=80, position={position}, share={share})
print(read() - before)
"""


def bytes_read(folder, paths, position, count, share=None):
    """Returns what a process reads of its files for so many batches, counted by the kernel."""
    program = READ.format(paths=paths, count=count, position=position, share=share)
    (folder / "read_bytes.py").write_text(program)
    done = run("read_bytes", cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


def test_a_resumed_run_reads_no_more_than_a_new_one_and_a_worker_its_own_blocks(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(records, "BATCH", 64)
    total = 20_000
    paths = write(tmp_path, (total // 2, total // 2))
    size = sum((tmp_path / f"{i}.tfrecord").stat().st_size for i in range(2))
    begun = bytes_read(tmp_path, paths, 0, 1)
    # At nine tenths of the second epoch: neither what the first nor what this one had is read.
    resumed = bytes_read(tmp_path, paths, int(1.9 * total), 1)
    assert begun < 0.2 * size
    assert resumed < 1.2 * begun
    # A whole epoch: each of four workers reads about a quarter.
    whole = bytes_read(tmp_path, paths, 0, total // 80 - 1)
    quarter = bytes_read(tmp_path, paths, 0, total // 80 - 1, "Share(4, 1, 1)")
    assert 0.9 * size < whole < 1.5 * size
    assert quarter < 0.4 * whole
