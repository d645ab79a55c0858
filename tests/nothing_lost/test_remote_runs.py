"""Runs in cloud storage: leases, kills at any call, and uploads that fail, all in memory."""

import contextlib
import json
import os
import pathlib

import jobs
import pytest
import stores
from helpers import assert_one_clear_line, write_pretraining_records

from albert.errors import RunDirBusyError, UserError
from albert.formats import checkpoints
from albert.records import records, tfrecord
from albert.records.record_files import RecordFiles
from albert.storage import files, filesystem, fsspec_calls, locks, scratch
from albert.training import checkpoint_store, summaries

pytestmark = pytest.mark.usefixtures("memory")
RUN = "memory://data/run"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setenv("ALBERT_LEASE_SECONDS", "0.6")


def write_foreign_lease(system, **changes):
    """Writes the lease of a process on another machine."""
    holder = {"id": "x", "pid": 7, "host": "elsewhere", "since": "noon", "renewals": 0, **changes}
    system.pipe_file("/data/run/.lease", json.dumps(holder).encode())


def silence(lease) -> None:
    """Stops renewing a lease, as if its process slept."""
    lease._is_released.set()
    lease._thread.join()


def test_a_second_run_in_a_directory_that_is_in_use_is_refused(
    memory, quick, whole, capfd, monkeypatch
):
    with locks._lease(RUN):
        monkeypatch.setattr(locks, "_machine", lambda: "another machine")
        assert jobs.pretrain(*whole.flags, f"--output_dir={RUN}") == 2
        line = assert_one_clear_line(capfd.readouterr().err)
        assert f"output_dir {RUN} is in use by pid {os.getpid()} on host" in line
        assert memory.find("/data/run") == ["/data/run/.lease"]
    assert not memory.find("/data/run")


def test_a_silent_holder_is_succeeded_and_stops_when_it_wakes(quick):
    with locks._lease(RUN) as first:
        silence(first)
        with locks._lease(RUN) as second:
            second.check()
            with pytest.raises(RunDirBusyError, match="taken over by another process"):
                first.check()
            assert second._is_held()


def test_a_lease_of_a_dead_process_of_this_machine_is_taken_over_at_once(memory, monkeypatch):
    def sleep(seconds):
        sleeps.append(seconds)
        assert len(sleeps) == 1, "it waits for a sign of life"

    sleeps = []
    monkeypatch.setattr(locks.time, "sleep", sleep)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    write_foreign_lease(memory, pid=child, machine=locks._machine())
    with locks._lease(RUN):
        assert b'"x"' not in memory.cat_file("/data/run/.lease")


def test_of_two_that_want_a_stale_lease_one_gets_it(memory, quick, monkeypatch):
    write_foreign_lease(memory)
    real = fsspec_calls.create

    def late(url, content):
        write_foreign_lease(memory, id="y")  # another process was faster
        return real(url, content)

    monkeypatch.setattr(fsspec_calls, "create", late)
    with pytest.raises(RunDirBusyError), locks._lease(RUN):
        pass
    assert b'"y"' in memory.cat_file("/data/run/.lease")


def test_a_process_that_lost_its_directory_uploads_nothing_more(memory, quick):
    with pytest.raises(RunDirBusyError, match="was taken over"), scratch.uploaded():
        local = scratch.open_directory(RUN)
        with locks.hold(local):
            files.write_json(os.path.join(local, "a.json"), {})
            [lease] = locks._leases
            silence(lease)
            write_foreign_lease(memory)
            lease._confirmed -= 1
            files.write_json(os.path.join(local, "b.json"), {})
    assert memory.find("/data/run") == ["/data/run/.lease", "/data/run/a.json"]


# === Killed at any call ===


class Dead(BaseException):
    """Signals that the process was killed."""


def killed_at_each_call(monkeypatch, work, least: int):
    """Repeats `work`, killed before each of its modifying calls in turn; yields after each.

    The last time it is not killed.
    """
    real = fsspec_calls.call
    for number in range(1000):
        calls = [0]

        def call(url, verb, do, calls=calls, number=number):
            if verb in ("write", "remove"):
                calls[0] += 1
                if calls[0] > number:
                    raise Dead
            return real(url, verb, do)

        with monkeypatch.context() as patch, contextlib.suppress(Dead):
            work(lambda patch=patch, call=call: patch.setattr(fsspec_calls, "call", call))
        abandon_scratch_folder()
        yield
        if calls[0] <= number:
            assert number >= least
            return


def abandon_scratch_folder() -> None:
    """Has the effect of a killed process's end."""
    scratch._pending.clear()
    scratch._directories.clear()
    for lock in scratch._locks.values():
        lock.release()
    scratch._locks.clear()


def make_run(steps=(1, 2, 3)) -> None:
    """Saves checkpoints with their evaluations, in the trainer's order."""
    with scratch.uploaded():
        local = scratch.open_directory(RUN)
        with locks.hold(local):
            scratch.synchronize(local)
            writer = summaries.MetricsWriter(local, 0)
            for step in steps:
                writer.write(step, "train", {})
                writer.upload()
                checkpoint_store.publish_best(stores.save(local, step, keep=1))
                files.write_json(os.path.join(local, "best.json"), {"step": step})
                writer.write(step, "eval", {})
                writer.upload()
            writer.close()


def test_a_kill_at_any_call_leaves_a_checkpoint_and_the_lines_that_belong_to_it(
    memory, monkeypatch
):
    def work(begin_to_count):
        memory.store.clear()
        begin_to_count()
        make_run((1, 2))

    seen = set()
    for _ in killed_at_each_call(monkeypatch, work, least=15):
        with scratch.uploaded():
            left = pathlib.Path(scratch.open_directory(RUN))
            step, of_best, written = stores.newest(left), None, left / "metrics.jsonl"
            lines = [*map(json.loads, written.read_text().splitlines())] if written.exists() else []
            seen.add(step)
            assert not step or {"step": step, "kind": "train"} in lines
            if os.path.exists(left / "model.ckpt-best.index"):
                best = checkpoints.open_weights(str(left / "model.ckpt-best"))
                of_best = int(best.read("global_step"))
                assert (best.read("bert/a") == of_best).all()
            evaluated = [line["step"] for line in lines if line["kind"] == "eval"]
            if evaluated:  # in that case the best is not searched for again
                assert json.loads((left / "best.json").read_text())["step"] >= max(evaluated)
                assert of_best is None or of_best >= max(evaluated)  # or it is being replaced
    assert seen == {0, 1, 2}
    # Old checkpoints are deleted there, too.
    assert {name for name in memory.find("/data/run") if name.endswith(".index")} == {
        "/data/run/model.ckpt-2.index", "/data/run/model.ckpt-best.index"
    }


def test_a_kill_at_any_call_of_uploading_records_leaves_them_with_their_manifest_or_none(
    memory, monkeypatch
):
    def work(begin_to_count):
        memory.store.clear()
        for count in (3, 5):
            with scratch.uploaded("memory://data/x.tfrecord") as path:
                if count == 5:
                    begin_to_count()
                write_pretraining_records(path, count)

    for _ in killed_at_each_call(monkeypatch, work, least=3):
        path = "memory://data/x.tfrecord"
        if memory.exists("/data/x.tfrecord.manifest.json") and records.is_complete(path):
            source = RecordFiles(["memory://data/x.tfrecord"])
            [(_, manifest)] = source.manifests()
            assert manifest.bytes == filesystem.size(source.paths[0])
            assert manifest.records == len(list(tfrecord.read_records(source.paths[0]))) in (3, 5)


def test_a_run_goes_on_while_nothing_can_be_uploaded_and_keeps_the_users_files(
    memory, monkeypatch, caplog
):
    users = ("/data/run/notes.txt", "/data/run/deep/model.ckpt-1.index")
    for name in users:
        memory.pipe_file(name, b"mine")
    make_run((1, 2))
    real, failures = fsspec_calls.upload, [0]

    def upload(path, url):
        failures[0] += 1
        if failures[0] < 6:
            raise UserError(f"cannot write {url}: timed out")
        real(path, url)

    with monkeypatch.context() as patch:
        patch.setattr(fsspec_calls, "upload", upload)
        make_run((3, 4))
    assert "timed out; trying again with the next file" in caplog.text
    assert len(memory.cat_file("/data/run/metrics.jsonl").splitlines()) == 4
    assert all(memory.cat_file(name) == b"mine" for name in users)
    indices = [name for name in memory.find("/data/run") if name.endswith(".index")]
    assert sorted(indices)[1:] == ["/data/run/model.ckpt-4.index", "/data/run/model.ckpt-best.index"]
    # Weights are downloaded when they are read.
    folder = filesystem.local_copy(RUN)
    data = f"{folder}/model.ckpt-4.data-00000-of-00001"
    assert filesystem.is_placeholder(data)
    assert (checkpoints.open_weights(f"{folder}/model.ckpt-4").read("bert/a") == 4).all()
    assert not filesystem.is_placeholder(data)
    for path in (f"{RUN}/model.ckpt-best", f"{RUN}/model.ckpt-best.index"):
        copy = filesystem.local_copy(path)
        assert (checkpoints.open_weights(copy).read("bert/a") == 4).all()
