"""A full disk: one line, no litter, and what was there before is as it was.

A real one where a small tmpfs can be mounted; everywhere a limit on the size of
files, which fails in the same places.
"""

import contextlib
import functools
import os
import resource
import shutil
import subprocess

import jobs
import pytest
import stores
from helpers import assert_one_clear_line, metrics
from invariants import nothing_lost

from albert import convert_hf
from albert.errors import UserError
from albert.formats import checkpoints
from albert.training import checkpoint_store, summaries


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
    """A disk of 400 kB; skips where it cannot be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk, free):
    """Writes `disk`/ballast, which leaves so many bytes."""
    status = os.statvfs(disk)
    (disk / "ballast").write_bytes(b"x" * (status.f_bavail * status.f_bsize - free))


def test_a_real_full_disk_stops_pretraining_and_the_saved_step_is_kept(disk, whole, capsys):
    begun = whole.copy(disk / "out", step=10)
    fill(disk, 30_000)
    with nothing_lost(disk):
        assert jobs.pretrain(*begun.flags) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "cannot write" in line and "No space left on device" in line
    assert "model.ckpt-20" in line
    assert list(checkpoints.list_steps(str(disk / "out"))) == [10]
    assert not list((disk / "out").glob("model.ckpt-20*"))
    # With space again the same command goes on, to the bits of an undisturbed run.
    (disk / "ballast").unlink()
    assert jobs.pretrain(*begun.flags) == 0
    undisturbed = [line for line in metrics(whole.out) if line["kind"] == "train"]
    assert metrics(disk / "out") == undisturbed


def test_a_real_full_disk_stops_data_creation_and_keeps_the_old_records(disk, tmp_path, capsys):
    job = jobs.data_flags(tmp_path, output_file=disk / "out.tfrecord")
    assert jobs.create_data(*job) == 0
    fill(disk, 20_000)
    capsys.readouterr()
    with nothing_lost(disk):
        assert jobs.create_data(*job, "--dupe_factor=60") == 2
    assert "No space left on device" in assert_one_clear_line(capsys.readouterr().err)
    records = {"out.tfrecord", "out.tfrecord.manifest.json"}
    assert set(os.listdir(disk)) - {".out.tfrecord.work"} == {"ballast", *records}
    (disk / "ballast").unlink()
    assert jobs.create_data(*job) == 0
    assert set(os.listdir(disk)) == records


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_of_it(begun, capsys):
    with nothing_lost(begun.out), file_limit(30_000):
        assert jobs.pretrain(*begun.flags) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "cannot write" in line and "model.ckpt-20" in line
    assert not list(begun.out.glob("model.ckpt-20*"))


def test_the_best_checkpoint_survives_a_disk_too_full_for_a_better_one(tmp_path):
    checkpoint_store.publish_best(stores.save(tmp_path, 1))
    prefix = stores.save(tmp_path, 2, size=(10_000,))
    with nothing_lost(tmp_path), file_limit(20_000):
        with pytest.raises(UserError, match="cannot write .*model.ckpt-best"):
            checkpoint_store.publish_best(prefix)
    assert checkpoints.open_weights(str(tmp_path / "model.ckpt-best")).read("global_step") == 1


def test_pictures_that_cannot_be_written_are_no_reason_to_stop(begun, capsys):
    (begun.out / "summaries").write_text("a file, where a folder should be")
    assert jobs.pretrain(*begun.flags, "--num_train_steps=12") == 0
    assert capsys.readouterr().err.count("no more TensorBoard summaries") == 1
    assert [line["step"] for line in metrics(begun.out)] == [4, 8, 12]


def test_metrics_that_cannot_be_written_are_a_clear_error(tmp_path, job, capsys):
    (tmp_path / "out/metrics.jsonl").mkdir(parents=True)
    assert jobs.pretrain(*job) == 2
    assert "metrics.jsonl" in assert_one_clear_line(capsys.readouterr().err)
    (tmp_path / "other").mkdir()
    writer = summaries.MetricsWriter(str(tmp_path / "other"), 0)
    with file_limit(10), pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl"):
        writer.write(1, "train", {"loss": 1.0})
    writer.close()
    # The line that was torn is dropped by the next process.
    writer = summaries.MetricsWriter(str(tmp_path / "other"), 0)
    writer.write(1, "train", {"loss": 1.0})
    writer.close()
    assert metrics(tmp_path / "other") == [{"step": 1, "kind": "train", "loss": 1.0}]


@pytest.mark.parametrize("name", [
    "conversion", "features", *(pytest.param(n, marks=pytest.mark.slow) for n in ("served", "hub"))
])
def test_what_does_not_fit_on_the_disk_leaves_nothing(name, classified, whole, tmp_path, capsys):
    trained = classified.copy(tmp_path / "classifier").flags
    model = (f"--albert_directory={whole.out}", f"--vocab_file={jobs.write_vocabulary(tmp_path)}")
    out, many = tmp_path / "new", jobs.write_task(tmp_path, 200)
    command, *flags = {
        "conversion": (functools.partial(jobs.command, convert_hf), *model, f"--output_dir={out}"),
        "features": (jobs.classify, *trained, "--do_train", f"--cached_dir={tmp_path / 'c'}",
                     f"--data_dir={many}"),
        "served": (jobs.classify, *trained, f"--export_dir={out}"),
        "hub": (jobs.export_hub, *model, f"--export_path={out}"),
    }[name]
    with nothing_lost(tmp_path), file_limit(8_000):
        assert command(*flags) == 2
    assert "cannot write" in assert_one_clear_line(capsys.readouterr().err)
    assert not out.exists()
