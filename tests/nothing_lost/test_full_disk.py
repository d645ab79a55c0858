"""A full disk: one line, no litter, and what was there before is as it was.

A real one where a small tmpfs can be mounted; everywhere a limit on the size of
files, which fails in the same places.
"""

import contextlib
import os
import resource
import subprocess

import pytest
from helpers import assert_one_clear_line, metrics
from invariants import assert_tidy, nothing_lost

from albert import convert_hf
from albert.errors import UserError
from albert.formats import checkpoints
from albert.training import checkpoint_store, summaries
import jobs


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
def small_disk(tmp_path):
    """Returns what mounts a tmpfs of some kilobytes; skips where that is not allowed."""
    mounted = []

    def mount(kilobytes):
        folder = tmp_path / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("no mount")
        if done.returncode:
            pytest.skip(f"a tmpfs cannot be mounted: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_real_full_disk_stops_pretraining_and_the_saved_step_is_kept(small_disk, whole, capsys):
    disk = small_disk(400)
    begun = whole.copy(disk / "out", step=10)
    (disk / "ballast").write_bytes(b"x" * (_free(disk) - 30_000))
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


def _free(folder):
    status = os.statvfs(folder)
    return status.f_bavail * status.f_bsize


def test_a_real_full_disk_stops_data_creation_and_keeps_the_old_records(
    small_disk, tmp_path, capsys
):
    disk = small_disk(300)
    job = jobs.data_flags(tmp_path, output_file=disk / "out.tfrecord")
    assert jobs.create_data(*job) == 0
    (disk / "ballast").write_bytes(b"x" * (_free(disk) - 20_000))
    capsys.readouterr()
    with nothing_lost(disk):
        assert jobs.create_data(*job, "--dupe_factor=60") == 2
    assert "No space left on device" in assert_one_clear_line(capsys.readouterr().err)
    assert set(os.listdir(disk)) - {".out.tfrecord.work"} == {
        "ballast", "out.tfrecord", "out.tfrecord.manifest.json"
    }
    (disk / "ballast").unlink()
    assert jobs.create_data(*job) == 0
    assert sorted(os.listdir(disk)) == ["out.tfrecord", "out.tfrecord.manifest.json"]


@pytest.mark.parametrize("size", [pytest.param(5_000, marks=pytest.mark.slow), 30_000])
def test_a_checkpoint_that_cannot_be_written_leaves_nothing_of_it(size, begun, capsys):
    with nothing_lost(begun.out), file_limit(size):
        assert jobs.pretrain(*begun.flags) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "cannot write" in line and "model.ckpt-20" in line
    assert not list(begun.out.glob("model.ckpt-20*"))


def test_the_best_checkpoint_survives_a_disk_too_full_for_a_better_one(tmp_path):
    import numpy as np

    def save(step, size):
        return checkpoint_store.save(
            str(tmp_path), step, {"bert/a": np.full(size, step, "float32")}, {}, 0
        )

    checkpoint_store.publish_best(save(1, 10))
    prefix = save(2, 10_000)
    with nothing_lost(tmp_path), file_limit(20_000):
        with pytest.raises(UserError, match="cannot write .*model.ckpt-best"):
            checkpoint_store.publish_best(prefix)
    assert checkpoints.open_weights(str(tmp_path / "model.ckpt-best")).read("bert/a")[0] == 1


def test_pictures_that_cannot_be_written_are_no_reason_to_stop(job, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/summaries").write_text("a file, where a folder should be")
    assert jobs.pretrain(*job) == 0
    assert capsys.readouterr().err.count("no more TensorBoard summaries") == 1
    assert [line["step"] for line in metrics(tmp_path / "out")] == [4, 8, 12, 16, 20, 23]


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


@pytest.mark.slow
def test_exports_and_conversions_that_do_not_fit_leave_nothing(
    classified, finished, tmp_path, capsys
):
    trained = classified.copy(tmp_path / "classifier")
    arguments, out = trained.flags, finished.out
    vocabulary = f"--vocab_file={jobs.write_vocabulary(tmp_path)}"
    (tmp_path / "many").mkdir()
    many = jobs.write_task(tmp_path / "many", 200)
    with nothing_lost(tmp_path):
        with file_limit(8_000):
            assert jobs.classify(*arguments, f"--export_dir={tmp_path / 'served'}") == 2
        assert "cannot write" in assert_one_clear_line(capsys.readouterr().err)
        with file_limit(8_000):
            assert jobs.export_hub(
                f"--albert_directory={out}", vocabulary,
                f"--export_path={tmp_path / 'module'}",
            ) == 2
        assert "cannot write" in assert_one_clear_line(capsys.readouterr().err)
        with file_limit(8_000):
            assert jobs.command(
                convert_hf, f"--albert_directory={out}", vocabulary,
                f"--output_dir={tmp_path / 'theirs'}",
            ) == 2
        assert "cannot write" in assert_one_clear_line(capsys.readouterr().err)
        with file_limit(8_000):
            assert jobs.classify(
                *arguments, "--do_train", f"--cached_dir={tmp_path / 'c'}",
                f"--data_dir={many}",
            ) == 2
        assert "cannot write" in assert_one_clear_line(capsys.readouterr().err)
    for name in ("served", "module", "theirs"):
        assert not (tmp_path / name).exists()
    assert_tidy(tmp_path)
