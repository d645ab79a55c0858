"""Runs in cloud storage: their owner, kills at any call, and uploads that fail, all in memory."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jobs
import pytest
import stores
from helpers import REPO, assert_one_clear_line, write_pretraining_records
from record_files_made import payloads_of

from albert.errors import RunDirBusyError
from albert.formats import checkpoints
from albert.records.record_files import RecordFiles
from albert.storage import cloud, files, locks
from albert.training import store
from albert.training.metrics import MetricsWriter

pytestmark = pytest.mark.usefixtures("memory")
RUN = "memory://data/run"


OWNER = "/data/run/.owner"


@contextlib.contextmanager
def held_run(cache=None):
    """Opens and holds the run's directory as a command does; yields its local folder."""
    with pytest.MonkeyPatch.context() as patch:
        if cache:  # of another machine
            patch.setenv("ALBERT_CACHE", str(cache))
        with cloud.output(RUN, is_directory=True) as local, locks.hold(local):
            yield local


def test_a_second_run_of_this_machine_is_refused_while_the_first_is_alive(whole, capfd, memory):
    code = (
        "import sys\n"
        "from albert.storage import cloud, locks\n"
        f"with cloud.output('{RUN}', True) as local, locks.hold(local):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        assert jobs.pretrain(*whole.flags, f"--output_dir={RUN}") == 2
        process.kill()
    line = assert_one_clear_line(capfd.readouterr().err)
    assert f"{RUN} is in use by pid {process.pid} on host" in line
    assert not memory.find("/data/run")


def test_a_run_that_another_one_fenced_off_stops_and_uploads_nothing_more(memory, caplog, tmp_path):
    message = f"{RUN} was taken over by pid 7 on host elsewhere: this one stops, and writes nothing more"
    with pytest.raises(RunDirBusyError, match=message), held_run() as local:
        files.write_json(os.path.join(local, "a.json"), {})
        cloud.push()
        memory.pipe_file(OWNER, b"pid 7 on host elsewhere")
        files.write_json(os.path.join(local, "b.json"), {})
        cloud.push()
    assert memory.find("/data/run") == [OWNER, "/data/run/a.json"]
    with held_run(tmp_path / "elsewhere") as local:  # which has what the others have written
        assert [name for name in os.listdir(local) if name[0] != "."] == ["a.json"]
    assert f"took over {RUN} from pid 7 on host elsewhere" in caplog.text
    assert memory.find("/data/run") == ["/data/run/a.json"]


def test_of_two_that_start_at_the_same_time_one_goes_on(memory):
    two = [cloud.Folder(RUN, tree) for tree in ("one", "two")]
    for folder in two:
        folder.own()
    two[1].push()
    with pytest.raises(RunDirBusyError, match=f"taken over by pid {os.getpid()} on host"):
        two[0].push()
    two[1].give_up()
    with pytest.raises(RunDirBusyError, match="taken over by another process, which has ended"):
        two[0].push()


# === Killed at any call ===


class Dead(BaseException):
    """Signals that the process was killed."""


def killed_at_each_call(monkeypatch, system, work, least: int):
    """Repeats `work`, killed before each of its modifying calls in turn; yields after each.

    The last time it is not killed.
    """
    for number in range(1000):
        calls = [0]

        def dying(real, calls=calls, number=number):
            def call(*arguments):
                calls[0] += 1
                if calls[0] > number:
                    raise Dead
                return real(*arguments)
            return call

        def begin_to_count():
            for name in ("put_file", "rm_file", "pipe_file"):
                patch.setattr(type(system), name, dying(getattr(type(system), name)))  # noqa: B023

        with monkeypatch.context() as patch, contextlib.suppress(Dead):
            patch.setattr(cloud.Folder, "give_up", lambda _: None)  # as in a process that was killed
            work(begin_to_count)
        yield
        if calls[0] <= number:
            assert number >= least
            return


def make_run(steps=(1, 2, 3), cache=None) -> None:
    """Saves checkpoints with their evaluations, in the trainer's order."""
    with held_run(cache) as local:
        writer = MetricsWriter(local, 0)
        for step in steps:
            writer.write(step, "train", {})
            store.publish_best(stores.save(local, step, keep=1))
            files.write_json(os.path.join(local, "best.json"), {"step": step})
            writer.write(step, "eval", {})
            cloud.push()
        writer.close()


def test_a_kill_at_any_call_leaves_a_checkpoint_and_the_lines_that_belong_to_it(
    memory, monkeypatch, tmp_path
):
    def work(begin_to_count):
        memory.store.clear()
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        begin_to_count()
        make_run((1, 2))

    seen = set()
    for number, _ in enumerate(killed_at_each_call(monkeypatch, memory, work, least=15)):
        with monkeypatch.context() as patch:
            patch.setenv("ALBERT_CACHE", str(tmp_path / f"machine-{number}"))
            left = pathlib.Path(cloud.local_copy(RUN) if memory.exists("/data/run") else tmp_path / "none")
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
    memory, monkeypatch, tmp_path
):
    def work(begin_to_count):
        memory.store.clear()
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        for count in (3, 5):
            with cloud.output("memory://data/x.tfrecord") as path:
                if count == 5:
                    begin_to_count()
                write_pretraining_records(path, count)

    for _ in killed_at_each_call(monkeypatch, memory, work, least=3):
        if memory.exists("/data/x.tfrecord.manifest.json"):
            source = RecordFiles(cloud.local_copies("memory://data/x*", "x", files.BESIDE_RECORDS))
            [(_, manifest)] = source.manifests()
            assert manifest.bytes == os.path.getsize(source.paths[0])
            assert manifest.records == len(payloads_of(source.paths[0])) in (3, 5)


def test_what_a_killed_process_has_not_copied_out_is_copied_by_the_next_one(memory, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Dead), held_run() as local:
        for name in "ac":
            files.write_json(os.path.join(local, f"{name}.json"), {})
        cloud.push()
        for name in "bc":
            files.write_json(os.path.join(local, f"{name}.json"), {"newer": name})
        os.unlink(os.path.join(local, "a.json"))
        patch.setattr(cloud.Folder, "give_up", lambda _: None)
        raise Dead
    memory.pipe_file("/data/run/of_another.json", b"{}")
    memory.rm_file("/data/run/c.json")  # of which there is a newer one here
    with held_run() as local:
        assert os.path.exists(os.path.join(local, "of_another.json"))
    assert memory.find("/data/run") == [f"/data/run/{name}.json" for name in ("a", "b", "c", "of_another")]


def test_a_run_goes_on_while_nothing_can_be_uploaded_and_keeps_the_users_files(
    memory, monkeypatch, caplog
):
    users = ("/data/run/notes.txt", "/data/run/deep/model.ckpt-1.index")
    for name in users:
        memory.pipe_file(name, b"mine")
    make_run((1, 2))
    real, failures = type(memory).put_file, [0]

    def put_file(*arguments):
        failures[0] += 1
        if failures[0] < 4:
            raise TimeoutError("timed out")
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "put_file", put_file)
        make_run((3, 4))
    assert "timed out; trying again with the next checkpoint" in caplog.text
    assert len(memory.cat_file("/data/run/metrics.jsonl").splitlines()) == 4
    assert all(memory.cat_file(name) == b"mine" for name in users)
    indices = [name for name in memory.find("/data/run") if name.endswith(".index")]
    assert sorted(indices)[1:] == ["/data/run/model.ckpt-4.index", "/data/run/model.ckpt-best.index"]
    folder = cloud.local_copy(RUN)
    assert (checkpoints.open_weights(f"{folder}/model.ckpt-4").read("bert/a") == 4).all()


def test_of_a_checkpoint_its_files_and_the_small_ones_next_to_it_are_downloaded(memory):
    make_run((1, 2))
    make_run((3,))
    for path in (f"{RUN}/model.ckpt-best", f"{RUN}/model.ckpt-best.index"):
        copy = cloud.local_copy(path)
        assert (checkpoints.open_weights(copy).read("bert/a") == 3).all()
        names = os.listdir(os.path.dirname(copy))
        assert "best.json" in names and "model.ckpt-3.index" not in names
        assert "model.ckpt-3.data-00000-of-00001" not in names
