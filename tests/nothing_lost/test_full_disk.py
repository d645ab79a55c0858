"""A full disk: one line, no leftover files, and earlier files are unchanged."""

import contextlib
import os
import re
import resource
import shutil
import subprocess
import types

import jobs
import pytest
import stores
from helpers import assert_one_clear_line, metrics, run_here
from invariants import nothing_lost

from albert import convert_hf
from albert.errors import UserError
from albert.formats import checkpoints
from albert.training import store
from albert.training.metrics import MetricsWriter


@contextlib.contextmanager
def file_limit(size):
    """Lets no file of this process grow beyond `size` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def disk(tmp_path):
    """A disk of 400 kB, and a context manager that leaves the given number of bytes free on it.

    If none can be mounted, a folder and a limit on file size, which makes the same writes fail.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        yield folder, file_limit
        return

    @contextlib.contextmanager
    def fill(free):
        status = os.statvfs(folder)
        (folder / "ballast").write_bytes(b"x" * (status.f_bavail * status.f_bsize - free))
        yield
        (folder / "ballast").unlink()

    yield folder, fill
    subprocess.run(["umount", "-l", str(folder)], check=True)


def assert_no_space(line: str) -> None:
    assert re.search("cannot write .*(No space left on device|File too large)", line)


def test_a_disk_too_small_for_the_checkpoints_is_found_before_training(
    job, whole, tmp_path, monkeypatch, capsys
):
    def free(size):
        monkeypatch.setattr(store.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=size))

    size = sum(4 * value.size for value in jobs.tensors(whole.out / "model.ckpt-23").values())
    run = [*job, "--keep_checkpoint_max=1"]  # three in all, two at a time
    free(2 * size - 1)
    assert jobs.pretrain(*run) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"cannot write to {tmp_path}/out: the next 2 checkpoints need" in line and "MB are free" in line
    assert not list((tmp_path / "out").glob("*.json*"))
    free(2 * size)
    assert jobs.pretrain(*run) == 0


def test_a_full_disk_stops_pretraining_and_the_saved_step_is_kept(disk, whole, monkeypatch, capsys):
    monkeypatch.setattr(store, "check_space", lambda *_: None)  # what fills it comes later
    folder, full = disk
    run = whole.copy(folder / "out", step=10)
    # Pictures that cannot be written are no reason to stop.
    (run.out / "summaries").write_text("a file, where a folder should be")
    with full(30_000), nothing_lost(folder):
        assert jobs.pretrain(*run.flags) == 2
    said = capsys.readouterr().err
    assert said.count("no more TensorBoard summaries") == 1
    line = assert_one_clear_line(said)
    assert_no_space(line)
    assert "model.ckpt-20" in line
    assert list(checkpoints.list_steps(str(run.out))) == [10]
    assert not list(run.out.glob("model.ckpt-20*"))


def test_a_full_disk_stops_data_creation_and_keeps_the_old_records(disk, tmp_path, capsys):
    folder, full = disk
    job = jobs.data_flags(tmp_path, output_file=folder / "out.tfrecord")
    assert jobs.create_data(*job) == 0
    before = os.listdir(folder)
    capsys.readouterr()
    with full(20_000), nothing_lost(folder):
        assert jobs.create_data(*job, "--dupe_factor=60") == 2
        assert_no_space(assert_one_clear_line(capsys.readouterr().err))
    assert jobs.create_data(*job) == 0
    assert sorted(os.listdir(folder)) == sorted(before)


def test_the_best_checkpoint_survives_a_disk_too_full_for_a_better_one(tmp_path):
    store.publish_best(stores.save(tmp_path, 1))
    prefix = stores.save(tmp_path, 2, size=(10_000,))
    with nothing_lost(tmp_path), file_limit(20_000):
        with pytest.raises(UserError, match="cannot write .*model.ckpt-best"):
            store.publish_best(prefix)
    assert checkpoints.open_weights(str(tmp_path / "model.ckpt-best")).read("global_step") == 1


def test_metrics_that_cannot_be_written_are_a_clear_error(tmp_path, job, capsys):
    (tmp_path / "out/metrics.jsonl").mkdir(parents=True)
    assert jobs.pretrain(*job) == 2
    assert "metrics.jsonl" in assert_one_clear_line(capsys.readouterr().err)
    (tmp_path / "other").mkdir()
    writer = MetricsWriter(str(tmp_path / "other"), 0)
    with file_limit(10), pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl"):
        writer.write(1, "train", {"loss": 1.0})
    writer.close()
    # The next process drops the torn line.
    writer = MetricsWriter(str(tmp_path / "other"), 0)
    writer.write(1, "train", {"loss": 1.0})
    writer.close()
    assert metrics(tmp_path / "other") == [{"step": 1, "kind": "train", "loss": 1.0}]


def test_what_does_not_fit_on_the_disk_leaves_nothing(whole, tmp_path, capsys):
    vocabulary, out = f"--vocab_file={jobs.write_vocabulary(tmp_path)}", tmp_path / "new"
    with nothing_lost(tmp_path), file_limit(8_000):
        assert run_here(convert_hf, f"--albert_directory={whole.out}", vocabulary, f"--output_dir={out}") == 2
    assert "cannot write" in assert_one_clear_line(capsys.readouterr().err)
    assert not out.exists()
