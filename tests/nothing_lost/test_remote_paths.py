"""Addresses in flags and in Python, on fsspec's file system in memory."""

import contextlib
import importlib
import json
import os
import pathlib
import re

import numpy as np
import pytest
import jobs
from helpers import REPO, assert_one_clear_line, write_config

from albert import (
    export_checkpoints,
    run_classifier,
)
from albert.cli import flags, remote_paths
from albert.errors import DataError, RunDirBusyError, UserError
from albert.formats import checkpoints
from albert.pretraining_data import outputs
from albert.storage import files, filesystem, fsspec_calls, locks, scratch
from albert.training import checkpoint_store, summaries

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'albert[test]'")

# Flags of strings that are no paths.
NO_PATHS = {
    "checkpoint_name", "depth_schedule", "gcp_project", "label_column",
    "label_list", "language", "layers", "master", "runner", "task_name", "text_column",
    "text_field", "text_pair_column", "topology", "tpu_name", "tpu_zone",
}
SPECIAL = {"flagfile", "undefok", "help", "helpshort", "helpfull"}


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """An empty file system in memory, and an empty cache."""
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def put(system, source, url: str) -> None:
    system.pipe_file(url, pathlib.Path(source).read_bytes())


def copy_of(system, url: str) -> dict[str, bytes]:
    return {name: system.cat_file(name) for name in system.find(url)}


def found_commands():
    for path in sorted((REPO / "albert").glob("*.py")):
        if "cli = " in path.read_text(encoding="utf-8") and path.stem != "__init__":
            module = importlib.import_module(f"albert.{path.stem}")
            if hasattr(module, "define_flags"):
                yield path.stem, module


COMMANDS = list(found_commands())


def test_every_flag_of_every_command_is_a_path_with_a_use_or_is_known_to_be_none():
    seen = set()
    for name, module in COMMANDS:
        values = flags.FlagValues()
        module.define_flags(values)
        for flag in values:
            if values[flag].flag_type() != "string" or hasattr(values[flag], "use"):
                continue
            seen.add(flag)
            is_choice = bool(getattr(values[flag].parser, "enum_values", None))
            assert is_choice or flag in NO_PATHS | SPECIAL, f"{name} --{flag}"
    assert seen >= NO_PATHS


@pytest.mark.parametrize("name, module", COMMANDS, ids=lambda value: getattr(value, "__name__", value))
def test_each_path_flag_that_is_read_is_looked_for_where_it_says(name, module, memory, capfd):
    values = flags.FlagValues()
    module.define_flags(values)
    for flag in sorted(values):
        if getattr(values[flag], "use", None) in ("file", "model"):
            with contextlib.suppress(SystemExit):
                module.cli([name, f"--{flag}=memory://data/absent"])
            line = assert_one_clear_line(capfd.readouterr().err)
            assert "memory://data/absent" in line, (flag, line)
            assert f"--{flag}" in line, (flag, line)


@pytest.mark.parametrize("name, module", COMMANDS, ids=lambda value: getattr(value, "__name__", value))
def test_each_path_flag_that_is_written_stands_for_its_address(name, module, memory):
    values = flags.FlagValues()
    module.define_flags(values)
    values([name])
    written = [f for f in values if getattr(values[f], "use", "") in remote_paths._WRITTEN]
    for flag in written:
        values[flag].value = f"memory://data/{flag}/out"
    with remote_paths.local_paths(values):
        for flag in written:
            path = values[flag].value
            assert "://" not in path and filesystem.address_of(path) == f"memory://data/{flag}/out"
            assert flags.to_dict(values)[flag] == f"memory://data/{flag}/out"
            files.write_json(os.path.join(path, "made.json"), {})
            pathlib.Path(path, "other.json").write_text("{}")  # was not published
    for flag in written:
        assert memory.find(f"/data/{flag}") == [f"/data/{flag}/out/made.json"], flag


def test_records_made_of_a_remote_text_have_the_bytes_of_a_local_one(memory, tmp_path):
    text, vocabulary = jobs.write_corpus(tmp_path), jobs.write_vocabulary(tmp_path)
    put(memory, text, "/data/text/a.txt")
    put(memory, vocabulary, "/data/vocab.txt")
    assert jobs.create_data(*jobs.data_flags(tmp_path)) == 0
    assert jobs.create_data(*jobs.data_flags(
        tmp_path, input_file="memory://data/text/*.txt", vocab_file="memory://data/vocab.txt",
        output_file="memory://data/records/out.tfrecord",
    )) == 0
    made = copy_of(memory, "/data/records")
    assert set(made) == {
        "/data/records/out.tfrecord", "/data/records/out.tfrecord.manifest.json"
    }
    assert made["/data/records/out.tfrecord"] == (tmp_path / "out.tfrecord").read_bytes()
    manifest = json.loads(made["/data/records/out.tfrecord.manifest.json"])
    assert manifest["info"]["flags"]["input_file"] == "memory://data/text/*.txt"
    # Nothing stays on the disk.
    assert not list((tmp_path / "cache").rglob("*.tfrecord"))


def remote_job(system, folder, **changes) -> list[str]:
    """Puts the data of a tiny pretraining into memory; returns the flags that train there."""
    local = jobs.pretraining_flags(folder)
    given = dict(flag.lstrip("-").split("=") for flag in local)
    for path in pathlib.Path(folder).glob("train.tfrecord*"):
        put(system, path, f"/data/records/{path.name}")
    put(system, given["albert_config_file"], "/data/config.json")
    given |= {
        "albert_config_file": "memory://data/config.json",
        "input_file": "memory://data/records/train*", "output_dir": "memory://data/run",
    } | changes
    return [f"--{name}={value}" for name, value in given.items()]


def newest(system, url: str, folder: pathlib.Path):
    """Returns the step and the tensors of a remote run's newest checkpoint."""
    for name in system.find(url):
        target = folder / name.strip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(system.cat_file(name))
    steps = checkpoints.list_steps(str(folder / url.strip("/")))
    return max(steps), jobs.tensors(steps[max(steps)])


def test_a_remote_run_trains_stops_and_goes_on_as_a_local_one(memory, tmp_path):
    arguments = remote_job(memory, tmp_path)
    assert jobs.pretrain(*arguments, "--until_step=10") == 0
    assert "/data/run/model.ckpt-10.index" in memory.store
    assert jobs.pretrain(*arguments) == 0
    assert jobs.pretrain(*jobs.pretraining_flags(tmp_path)) == 0
    step, tensors = newest(memory, "/data/run", tmp_path / "fetched")
    here = jobs.tensors(tmp_path / "out" / "model.ckpt-23")
    assert step == 23 and set(tensors) == set(here)
    for name, value in here.items():
        np.testing.assert_array_equal(value, tensors[name], name)
    run_state = json.loads(memory.cat_file("/data/run/model.ckpt-23.json"))
    assert run_state["flags"]["output_dir"] == "memory://data/run"
    assert not [name for name in memory.find("/data/run") if "tmp-" in name or "lease" in name]
    for name in memory.find("/data/run"):
        assert str(tmp_path / "cache").encode() not in memory.cat_file(name), name


@pytest.mark.slow
def test_a_model_of_another_place_is_started_from_and_exported_to_one(memory, tmp_path):
    arguments = remote_job(memory, tmp_path)
    assert jobs.pretrain(*arguments, "--num_train_steps=4", "--num_warmup_steps=0") == 0
    more = remote_job(
        memory, tmp_path, init_checkpoint="memory://data/run/model.ckpt-4",
        output_dir="memory://data/second",
    )
    assert jobs.pretrain(*more, "--num_train_steps=2", "--num_warmup_steps=0") == 0
    assert "memory://data/run/model.ckpt-4" in json.dumps(
        json.loads(memory.cat_file("/data/second/model.ckpt-2.json"))["flags"]
    )
    assert flags.run_command(
        "", export_checkpoints.define_flags, export_checkpoints.main,
        ["export", "--albert_directory=memory://data/run", "--checkpoint_name=model.ckpt-4",
         "--export_path=memory://data/clean/model"],
    ) == 0
    assert {name.rpartition("/")[2] for name in memory.find("/data/clean")} >= {
        "model.index", "model.data-00000-of-00001", "README.md"
    }


def test_a_classifier_is_trained_from_and_into_another_place(memory, tmp_path):
    given = dict(
        flag.lstrip("-").partition("=")[::2] for flag in jobs.classifier_flags(tmp_path)
    )
    for name in ("albert_config_file", "vocab_file"):
        put(memory, given[name], f"/data/{os.path.basename(given[name])}")
        given[name] = f"memory://data/{os.path.basename(given[name])}"
    for path in pathlib.Path(given["data_dir"]).rglob("*.tsv"):
        put(memory, path, f"/data/glue/{path.relative_to(given['data_dir'])}")
    given |= {"data_dir": "memory://data/glue", "output_dir": "memory://data/classifier"}
    arguments = [f"--{k}={v}" if v else f"--{k}" for k, v in given.items()]
    assert jobs.command(run_classifier, *arguments, "--do_train", "--do_eval") == 0
    names = {name.rpartition("/")[2] for name in memory.find("/data/classifier")}
    assert {"eval_results.txt", "checkpoint", "vocab.txt"} <= names


# === Refusals ===


@pytest.mark.parametrize("changes, told", [
    ({"output_file": "memory://data/text/a.txt"}, "is given twice, as a file to write and to read"),
    ({"input_file": "memory://data/none*"}, "no file matches memory://data/none*"),
    ({"input_file": "nosuch://data/a"}, "nosuch"),
    ({"output_file": "memory://x"}, "is a bucket"),
])
def test_what_cannot_be_is_one_line_before_anything_is_done(
    changes, told, memory, tmp_path, capfd
):
    put(memory, jobs.write_corpus(tmp_path), "/data/text/a.txt")
    given = {"input_file": "memory://data/text/a.txt",
             "output_file": "memory://data/out.tfrecord", **changes}
    before = copy_of(memory, "/data")
    assert jobs.create_data(*jobs.data_flags(tmp_path, **given)) == 2
    assert told in assert_one_clear_line(capfd.readouterr().err)
    assert copy_of(memory, "/data") == before


def test_a_scheme_whose_package_is_not_installed_is_one_line_with_what_to_install(
    monkeypatch, tmp_path, capfd
):
    def absent(*_, **__):
        raise ImportError("Install adlfs to access")

    monkeypatch.setattr(fsspec.core, "url_to_fs", absent)
    assert jobs.create_data(*jobs.data_flags(tmp_path, input_file="abfs://data/a")) == 2
    assert "pip install 'albert[azure]'" in assert_one_clear_line(capfd.readouterr().err)


def test_without_fsspec_one_line_says_what_to_install(monkeypatch, tmp_path, capfd):
    real = fsspec_calls.importlib.util.find_spec
    monkeypatch.setattr(
        fsspec_calls.importlib.util, "find_spec",
        lambda name, *more: None if name == "fsspec" else real(name, *more),
    )
    assert jobs.create_data(*jobs.data_flags(tmp_path, input_file="s3://bucket/a")) == 2
    assert "s3:// needs fsspec: pip install 'albert[s3]'" in assert_one_clear_line(
        capfd.readouterr().err
    )


def test_local_paths_import_no_fsspec():
    said = jobs.python(
        "import sys\nfrom albert import create_pretraining_data as command\n"
        "try: command.cli(['x', '--input_file=/absent', '--output_file=o', '--vocab_file=v'])\n"
        "except SystemExit: pass\n"
        "print('fsspec' in sys.modules)"
    )
    assert said.strip().endswith("False")


# === Leases ===


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setenv("ALBERT_LEASE_SECONDS", "0.6")


def foreign(system, **changes):
    """Leaves the lease of a process on another machine."""
    holder = {"id": "x", "pid": 7, "host": "elsewhere", "since": "noon", "renewals": 0, **changes}
    system.pipe_file("/data/run/.lease", json.dumps(holder).encode())


def test_a_directory_that_another_process_renews_is_refused(memory, quick, monkeypatch):
    with locks._lease("memory://data/run"):
        monkeypatch.setattr(locks, "_machine", lambda: "another machine")
        with pytest.raises(RunDirBusyError, match=f"in use by pid {os.getpid()} on host"):
            with locks._lease("memory://data/run"):
                pass
    assert not memory.find("/data/run")


def test_a_silent_holder_is_succeeded_and_stops_when_it_wakes(memory, quick):
    with locks._lease("memory://data/run") as first:
        first._is_released.set()  # asleep: it renews nothing
        first._thread.join()
        with locks._lease("memory://data/run") as second:
            second.check()
            with pytest.raises(RunDirBusyError, match="taken over by another process"):
                first.check()
            assert second._is_own()


def test_a_lease_of_a_dead_process_of_this_machine_is_taken_over_at_once(memory, monkeypatch):
    monkeypatch.setenv("ALBERT_LEASE_SECONDS", "3000")
    said = jobs.python(
        "import json\nfrom albert.storage import locks\nimport os, socket\n"
        "print(json.dumps({'pid': os.getpid(), 'host': socket.gethostname(), "
        "'machine': locks._machine()}))"
    )
    foreign(memory, **json.loads(said.strip().splitlines()[-1]))
    with locks._lease("memory://data/run"):
        assert b'"x"' not in memory.cat_file("/data/run/.lease")


def test_of_two_that_want_a_stale_lease_one_gets_it(memory, quick, monkeypatch):
    foreign(memory)
    real = fsspec_calls.create

    def late(url, content):
        foreign(memory, id="y")  # another was faster
        return real(url, content)

    monkeypatch.setattr(fsspec_calls, "create", late)
    with pytest.raises(RunDirBusyError), locks._lease("memory://data/run"):
        pass
    assert b'"y"' in memory.cat_file("/data/run/.lease")


def test_a_second_run_on_a_remote_directory_is_refused(memory, quick, tmp_path, capfd, monkeypatch):
    arguments = remote_job(memory, tmp_path)
    with locks._lease("memory://data/run"):
        monkeypatch.setattr(locks, "_machine", lambda: "another machine")
        assert jobs.pretrain(*arguments) == 2
        assert "output_dir memory://data/run is in use by pid" in capfd.readouterr().err
        assert memory.find("/data/run") == ["/data/run/.lease"]


# === Killed at any call ===


class Dead(BaseException):
    """The process is killed."""


def dying(monkeypatch, after: int) -> list[int]:
    """Lets all calls that change something fail after so many; returns how many there were."""
    calls, real = [0], fsspec_calls.call

    def call(url, verb, do):
        if verb in ("write", "remove"):
            calls[0] += 1
            if calls[0] > after:
                raise Dead
        return real(url, verb, do)

    monkeypatch.setattr(fsspec_calls, "call", call)
    return calls


def abandon_scratch_folder() -> None:
    """Does what the end of a killed process does."""
    scratch._pending.clear()
    scratch._directories.clear()
    for lock in scratch._locks.values():
        lock.release()
    scratch._locks.clear()


SHAPES = {"bert/a": (2, 3), "global_step": ()}


def a_run(url: str) -> None:
    """Three checkpoints with their evaluations, in the order in which the trainer makes them."""
    from test_crashes import CONFIG

    with scratch.uploaded():
        local = scratch.open_directory(url)
        with locks.hold(local):
            scratch.synchronize(local)
            writer = summaries.MetricsWriter(local, 0)
            for step in (1, 2, 3):
                writer.write(step, "train", {})
                writer.upload()
                tensors = {"bert/a": np.full((2, 3), step, "float32"), "global_step": np.int64(step)}
                run_state = {"task": "t", "config": CONFIG.to_dict(), "records_seen": 4 * step}
                prefix = checkpoint_store.save(local, step, tensors, run_state, keep=1)
                checkpoint_store.publish_best(prefix)
                files.write_json(os.path.join(local, "best.json"), {"step": step})
                writer.write(step, "eval", {})
                writer.upload()
            writer.close()


def test_a_kill_at_any_call_leaves_a_checkpoint_and_the_lines_that_belong_to_it(
    memory, tmp_path, monkeypatch
):
    from test_crashes import CONFIG

    number, seen, of_best = 0, set(), 0
    while True:
        memory.store.clear()
        with monkeypatch.context() as patch:
            calls = dying(patch, number)
            with contextlib.suppress(Dead):
                a_run("memory://data/run")
        abandon_scratch_folder()
        with scratch.uploaded():
            left = pathlib.Path(scratch.open_directory("memory://data/run"))
            found = checkpoint_store.read_newest(str(left), SHAPES, CONFIG, "t")
            written = left / "metrics.jsonl"
            lines = map(json.loads, written.read_text().splitlines() if written.exists() else [])
            lines = list(lines)
            step = int(found[1]["global_step"]) if found else 0
            seen.add(step)
            if found:
                assert (found[1]["bert/a"] == step).all()
                assert {"step": step, "kind": "train"} in lines
            if os.path.exists(left / "model.ckpt-best.index"):
                best = checkpoints.open_weights(str(left / "model.ckpt-best"))
                of_best = int(best.read("global_step"))
                assert (best.read("bert/a") == of_best).all()
            evaluated = [line["step"] for line in lines if line["kind"] == "eval"]
            if evaluated:  # then the best is not sought again
                assert json.loads((left / "best.json").read_text())["step"] >= max(evaluated)
                assert of_best >= max(evaluated)
        if calls[0] <= number:
            break
        number += 1
    assert seen == {0, 1, 2, 3} and number > 20
    # The keep rule holds there, too.
    assert {name for name in memory.find("/data/run") if name.endswith(".index")} == {
        "/data/run/model.ckpt-3.index", "/data/run/model.ckpt-best.index"
    }


def test_a_kill_at_any_call_of_uploading_records_leaves_them_with_their_manifest_or_none(
    memory, tmp_path, monkeypatch
):
    from helpers import write_pretraining_records

    from albert.records import tfrecord
    from albert.records.record_files import RecordFiles

    number = 0
    while True:
        memory.store.clear()
        for count in (3, 5):
            with monkeypatch.context() as patch:
                calls = dying(patch, number if count == 5 else 99)
                with contextlib.suppress(Dead), scratch.uploaded("memory://data/x.tfrecord") as path:
                    write_pretraining_records(path, count)
            abandon_scratch_folder()
        if memory.exists("/data/x.tfrecord.manifest.json"):
            source = RecordFiles(["memory://data/x.tfrecord"])
            [(_, manifest)] = source.manifests()
            assert manifest.bytes == filesystem.size(source.paths[0])
            assert manifest.records == len(list(tfrecord.read_records(source.paths[0]))) in (3, 5)
        if calls[0] <= number:
            break
        number += 1
    assert number >= 3


def failing_uploads(monkeypatch):
    """Lets no file be uploaded."""
    def refuse(path, url):
        raise UserError(f"cannot write {url}: permission denied")

    monkeypatch.setattr(fsspec_calls, "upload", refuse)


def test_what_cannot_be_uploaded_at_the_end_stays_here_and_is_named(
    memory, tmp_path, monkeypatch, capfd
):
    failing_uploads(monkeypatch)
    assert jobs.create_data(*jobs.data_flags(
        tmp_path, input_file=jobs.write_corpus(tmp_path), output_file="memory://data/out.tfrecord",
    )) == 2
    line = capfd.readouterr().err.strip().splitlines()[-1]
    assert "cannot write memory://data/out.tfrecord: permission denied" in line
    kept = line.rpartition(" is in ")[2]
    assert list(pathlib.Path(kept).rglob("out.tfrecord"))


def test_records_that_cannot_be_uploaded_are_not_made_again(memory, tmp_path, monkeypatch, capfd):
    arguments = jobs.data_flags(tmp_path, output_file="memory://data/out.tfrecord")
    with monkeypatch.context() as patch:
        failing_uploads(patch)
        assert jobs.create_data(*arguments) == 2
    assert "tasks were done" not in capfd.readouterr().err
    assert jobs.create_data(*arguments) == 0
    assert "tasks were done" in capfd.readouterr().err
    assert not list((tmp_path / "cache/work").rglob("*.pairs"))
    assert jobs.create_data(*jobs.data_flags(tmp_path)) == 0
    assert memory.cat_file("/data/out.tfrecord") == (tmp_path / "out.tfrecord").read_bytes()


def test_a_run_goes_on_while_nothing_can_be_uploaded(memory, tmp_path, monkeypatch, caplog):
    real, failures = fsspec_calls.upload, [0]

    def upload(path, url):
        failures[0] += 1
        if failures[0] < 6:
            raise UserError(f"cannot write {url}: timed out")
        real(path, url)

    monkeypatch.setattr(fsspec_calls, "upload", upload)
    a_run("memory://data/run")
    assert "timed out; trying again with the next file" in caplog.text
    assert memory.exists("/data/run/model.ckpt-3.index")
    assert len(memory.cat_file("/data/run/metrics.jsonl").splitlines()) == 6


def test_what_a_command_makes_before_it_holds_a_directory_counts(memory):
    memory.pipe_file("/data/run/a.json", b"{}")
    with scratch.uploaded():
        local = scratch.open_directory("memory://data/run")
        files.write_json(os.path.join(local, "a.json"), {"mine": 1})
        memory.pipe_file("/data/run/b.json", b"{}")  # by the last holder
        assert memory.cat_file("/data/run/a.json") == b"{}"  # which may be at work
        with locks.hold(local):
            scratch.synchronize(local)
            assert files.read_json(os.path.join(local, "a.json")) == {"mine": 1}
            assert json.loads(memory.cat_file("/data/run/a.json")) == {"mine": 1}
            assert os.path.exists(os.path.join(local, "b.json"))


def test_a_cache_behind_a_link_serves_as_well(memory, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "link"))
    with files.publish_dir("memory://data/model", "index") as folder:
        pathlib.Path(folder, "index").touch()
    assert memory.find("/data") == ["/data/model/index"]


def test_a_process_that_lost_its_directory_uploads_nothing_more(memory, quick):
    with pytest.raises(RunDirBusyError, match="was taken over"), scratch.uploaded():
        local = scratch.open_directory("memory://data/run")
        with locks.hold(local):
            files.write_json(os.path.join(local, "a.json"), {})
            [lease] = locks._leases
            lease._is_released.set()
            lease._thread.join()
            foreign(memory)
            lease._confirmed -= 1
            files.write_json(os.path.join(local, "b.json"), {})
    assert memory.find("/data/run") == ["/data/run/.lease", "/data/run/a.json"]


# === Whose files they are ===


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_two_commands_with_a_common_stem_touch_no_files_but_their_own(where, memory, tmp_path):
    """The text, the user's files and both outputs lie in one directory."""
    system = fsspec.filesystem("file") if where == "disk" else memory
    folder = str(tmp_path / "d") if where == "disk" else "memory://b/d"
    text = jobs.write_corpus(tmp_path)
    users = {f"train.{ending}": ending.encode() for ending in ("README.md", "16.txt", "32x")}
    users |= {"train": b"x", "train.txt": pathlib.Path(text).read_bytes()}
    system.makedirs(folder, exist_ok=True)
    for name, content in users.items():
        system.pipe_file(f"{folder}/{name}", content)

    def flags_of(length):
        return jobs.data_flags(
            tmp_path, input_file=f"{folder}/train.txt", output_file=f"{folder}/train.{length}",
            max_seq_length=length,
        )

    def names():
        return {name.rpartition("/d/")[2] for name in system.find(folder)}

    # The first one is killed in the middle of publishing; the second one runs meanwhile.
    with contextlib.suppress(Dead), pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "_publish_file", lambda *_: exec("raise Dead", {"Dead": Dead}))
        jobs.create_data(*flags_of(16))
    abandon_scratch_folder()
    resumable = set(locks_of(tmp_path, where))
    assert resumable
    assert jobs.create_data(*flags_of(32)) == 0
    assert set(locks_of(tmp_path, where)) == resumable
    assert names() - {".train.16.work"} >= {*users, "train.32", "train.32.manifest.json"}
    assert jobs.create_data(*flags_of(16)) == 0
    assert names() == {
        *users, "train.16", "train.16.manifest.json", "train.32", "train.32.manifest.json"
    }
    for name, content in users.items():
        assert system.cat_file(f"{folder}/{name}") == content


def locks_of(folder, where) -> list[str]:
    """Returns the files of unfinished jobs."""
    root = folder / ("d" if where == "disk" else "cache/work")
    return [str(path) for path in root.rglob("*.pairs")]


def test_a_run_deletes_its_old_checkpoints_and_not_the_users_files(memory, tmp_path):
    memory.pipe_file("/data/run/notes.txt", b"mine")
    memory.pipe_file("/data/run/deep/model.ckpt-1.index", b"mine")
    a_run("memory://data/run")
    a_run("memory://data/run")
    assert memory.cat_file("/data/run/notes.txt") == b"mine"
    assert memory.cat_file("/data/run/deep/model.ckpt-1.index") == b"mine"
    assert len([name for name in memory.find("/data/run") if name.endswith(".index")]) == 3


# === Listings of strangers ===


def test_names_that_lead_out_of_the_folder_are_refused(memory):
    memory.store["/data/run/../../escape"] = fsspec.implementations.memory.MemoryFile(
        memory, "/data/run/../../escape", b"x"
    )
    with pytest.raises(DataError, match="cannot be a file name here"):
        filesystem.local_copy("memory://data/run")


def test_weights_of_checkpoints_are_downloaded_when_they_are_read(memory, tmp_path):
    a_run("memory://data/run")
    folder = filesystem.local_copy("memory://data/run")
    assert filesystem.is_placeholder(f"{folder}/model.ckpt-3.data-00000-of-00001")
    weights = checkpoints.open_weights(f"{folder}/model.ckpt-3")
    assert (weights.read("bert/a") == 3).all()
    assert not filesystem.is_placeholder(f"{folder}/model.ckpt-3.data-00000-of-00001")
    for path in ("memory://data/run/model.ckpt-best", "memory://data/run/model.ckpt-best.index"):
        copy = filesystem.local_copy(path)
        assert (checkpoints.open_weights(copy).read("bert/a") == 3).all()


# === From Python ===


def test_models_and_tokenizers_are_saved_to_and_opened_from_another_place(memory, tmp_path):
    import albert

    jobs.write_vocabulary(tmp_path)
    put(memory, tmp_path / "vocab.txt", "/data/vocab.txt")
    put(memory, write_config(tmp_path, num_hidden_layers=1), "/data/config.json")
    config = albert.AlbertConfig.from_json_file("memory://data/config.json")
    tokenizer = albert.AlbertTokenizer.from_pretrained("memory://data/vocab.txt")
    model = albert.AlbertForSequenceClassification(config, num_labels=2)
    model.save_pretrained("memory://data/model")
    tokenizer.save_pretrained("memory://data/model")
    assert tokenizer.save_vocabulary("memory://data/words") == ("memory://data/words/vocab.txt",)
    assert {name.rpartition("/")[2] for name in memory.find("/data/model")} >= {
        "config.json", "model.safetensors", "vocab.txt", "README.md"
    }
    opened = albert.from_pretrained("memory://data/model")
    rows = albert.AlbertTokenizer.from_pretrained("memory://data/model")(["w1 w2 w3"])
    np.testing.assert_array_equal(rows["input_ids"], tokenizer(["w1 w2 w3"])["input_ids"])
    expected = np.asarray(model(rows)["logits"])
    np.testing.assert_array_equal(expected, np.asarray(opened(rows)["logits"]))
    session = albert.open_session("memory://data/model", vocab_file="memory://data/words/vocab.txt")
    assert 0 <= session.classify("w1 w2 w3")["probability"] <= 1
    # Written over, as a run on a disk would be.
    model.save_pretrained("memory://data/model")
    assert "/data/model/vocab.txt" in memory.find("/data/model")
    assert not list((tmp_path / "cache").glob("scratch-?"))


@pytest.mark.parametrize("path, told", [
    ("memory://data/absent", "no such file: memory://data/absent"),
    ("memory://data/empty", "memory://data/empty holds neither albert_config.json"),
])
def test_a_model_that_is_not_there_is_told_by_its_address(path, told, memory, tmp_path):
    import albert

    memory.pipe_file("/data/empty/notes.txt", b"x")
    for opener in (albert.from_pretrained, albert.open_session,
                   albert.AlbertTokenizer.from_pretrained, albert.AlbertModel.from_pretrained):
        with pytest.raises(UserError, match=re.escape(told)):
            opener(path)
