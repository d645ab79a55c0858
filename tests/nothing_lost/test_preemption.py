"""Signals and kills: the run ends soon, and the resumed run gives the same bits."""

import os
import shutil
import signal

import jobs
import pytest
from helpers import assert_one_clear_line, metrics
from invariants import assert_tidy, nothing_lost

from albert.formats import checkpoints, metadata
from albert.runtime import workers
from albert.storage import locks
from albert.training import evaluate
from albert.training.metrics import History


def test_one_process_owns_a_directory_until_sigterm_which_saves_the_step_and_exits_143(
    tmp_path, capsys
):
    out = tmp_path / "out"
    arguments = jobs.pretraining_flags(
        tmp_path, num_train_steps=1_000_000, save_checkpoints_steps=900_000
    )
    with jobs.running(*arguments) as process:
        jobs.wait_for(out / "metrics.jsonl", process)
        before = (out / "albert_config.json").stat()
        assert jobs.pretrain(*arguments) == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert f"in use by pid {process.pid} on host" in line and "since" in line
        assert process.poll() is None
        assert (out / "albert_config.json").stat() == before
        process.send_signal(signal.SIGTERM)
        # One call into TensorFlow takes about a second; the rest allows for a busy machine.
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 143, stderr
    [(step, prefix)] = checkpoints.list_steps(str(out)).items()
    assert f"stopped at step {step}, saved {prefix}" in stderr
    assert "Traceback" not in stderr
    assert int(jobs.tensors(prefix)["global_step"]) == step
    assert_tidy(tmp_path)
    # A dead process holds no lock, whatever its lock file says.
    assert f"pid {process.pid}" in (out / ".lock").read_text()
    with locks.hold(str(out)):
        assert f"pid {os.getpid()}" in (out / ".lock").read_text()


def test_a_second_signal_kills_by_its_default_action():
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with workers.first_signal() as numbers:
        assert not numbers
        os.kill(os.getpid(), signal.SIGINT)
        assert numbers == [signal.SIGINT]
        for each in (signal.SIGINT, signal.SIGTERM):
            assert signal.getsignal(each) is signal.SIG_DFL
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_worker_processes_leave_ctrl_c_to_the_command():
    with workers.Workers(2) as pool:
        assert list(pool.map(signal.getsignal, [(signal.SIGINT,)])) == [signal.SIG_IGN]


@pytest.mark.parametrize("step", [13, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 10))])
def test_a_run_stopped_at_any_step_or_evaluation_resumes_to_the_same_bits(
    step, begun, whole, monkeypatch
):
    if step > 10:  # The state file is never trusted.
        (begun.out / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1"\n')
    else:
        shutil.rmtree(begun.out)
    jobs.sigterm_when(
        monkeypatch, History, "note", lambda history, before, *_: before + 1 >= step
    )
    jobs.sigterm_when(monkeypatch, evaluate, "measure", lambda *_: True, signal.SIGINT)
    flags = [*begun.flags, "--do_eval"]
    assert sorted(jobs.pretrain(*flags) for _ in range(2)) == [130, 143]
    assert not [line for line in metrics(begun.out) if line["kind"] == "eval" and line["step"] > 10]
    before = metadata.read_run_state(str(begun.out / "model.ckpt-10"))
    with nothing_lost(begun.out, "*/model.ckpt-10.json"):
        assert jobs.pretrain(*flags) == 0
    after = metadata.read_run_state(str(begun.out / "model.ckpt-10"))  # which got its results
    assert after == before | {"results": after["results"], "metadata": after["metadata"]}
    jobs.assert_same_run(begun.out, whole.out, 23)
    assert (begun.out / "best.json").read_bytes() == (whole.out / "best.json").read_bytes()
    state = (begun.out / "checkpoint").read_text().splitlines()
    assert state[0] == 'model_checkpoint_path: "model.ckpt-23"'
    ours, theirs = (
        metadata.read_run_state(str(d / "model.ckpt-23")) for d in (begun.out, whole.out)
    )
    assert ours["records_seen"] == theirs["records_seen"]


def test_a_run_killed_between_evaluation_and_its_line_still_keeps_the_best(begun, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    flags = [*begun.flags, "--do_eval", "--num_train_steps=10"]
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "keep_if_best", die)
        with pytest.raises(Killed):
            jobs.pretrain(*flags)
    assert not (begun.out / "best.json").exists()
    assert jobs.pretrain(*flags) == 0
    assert evaluate.read_best(str(begun.out))["step"] == 10
    assert (begun.out / "model.ckpt-best.index").exists()
