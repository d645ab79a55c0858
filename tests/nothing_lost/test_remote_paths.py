"""Addresses in flags and in Python, on fsspec's file system in memory."""

import contextlib
import importlib
import json
import os
import pathlib
import re

import jobs
import numpy as np
import pytest
import stores
from helpers import REPO, assert_one_clear_line, run_here, write_config, write_pretraining_records

from albert import export_checkpoints
from albert.cli import flags, remote_paths
from albert.errors import DataError, RunDirBusyError, UserError
from albert.formats import checkpoints
from albert.pretraining_data import outputs
from albert.records import tfrecord
from albert.records.record_files import RecordFiles
from albert.storage import files, filesystem, fsspec_calls, locks, scratch
from albert.training import checkpoint_store, summaries

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'albert[test]'")
pytestmark = pytest.mark.usefixtures("memory")

# Flags of strings that are not paths.
NO_PATHS = {
    "checkpoint_name", "depth_schedule", "gcp_project", "label_column",
    "label_list", "language", "layers", "master", "runner", "task_name", "text_column",
    "text_field", "text_pair_column", "topology", "tpu_name", "tpu_zone",
}
SPECIAL = {"flagfile", "undefok", "help", "helpshort", "helpfull"}
RUN = "memory://data/run"


def put(system, folder, pattern: str, url: str) -> None:
    """Copies the files that match, with their paths below the folder."""
    for path in filter(pathlib.Path.is_file, pathlib.Path(folder).rglob(pattern)):
        system.pipe_file(f"{url}/{path.relative_to(folder)}", path.read_bytes())


def commands():
    for path in sorted((REPO / "albert").glob("*.py")):
        if "cli = " in path.read_text(encoding="utf-8") and path.stem != "__init__":
            module = importlib.import_module(f"albert.{path.stem}")
            if hasattr(module, "define_flags"):
                values = flags.FlagValues()
                module.define_flags(values)
                yield path.stem, module, values


def test_every_string_flag_is_a_path_with_a_use_or_known_not_to_be_one():
    seen = set()
    for name, _, values in commands():
        for flag in values:
            if values[flag].flag_type() == "string" and not hasattr(values[flag], "use"):
                seen.add(flag)
                is_choice = bool(getattr(values[flag].parser, "enum_values", None))
                assert is_choice or flag in NO_PATHS | SPECIAL, f"{name} --{flag}"
    assert seen >= NO_PATHS


def test_an_absent_input_is_reported_by_its_address_and_flag(capfd):
    for name, module, values in commands():
        for flag in sorted(values):
            if getattr(values[flag], "use", None) in ("file", "model"):
                with contextlib.suppress(SystemExit):
                    module.cli([name, f"--{flag}=memory://data/absent"])
                line = assert_one_clear_line(capfd.readouterr().err)
                assert "memory://data/absent" in line and f"--{flag}" in line, (name, flag, line)


def test_every_output_flag_uploads_what_is_published_to_its_address(memory):
    for name, _, values in commands():
        values([name])
        written = [f for f in values if getattr(values[f], "use", "") in remote_paths._WRITTEN]
        for flag in written:
            values[flag].value = f"memory://{name}/{flag}/out"
        with remote_paths.local_paths(values):
            for flag in written:
                path, url = values[flag].value, f"memory://{name}/{flag}/out"
                assert "://" not in path and filesystem.address_of(path) == url
                assert flags.to_dict(values)[flag] == url
                files.write_json(os.path.join(path, "made.json"), {})
                pathlib.Path(path, "other.json").write_text("{}")  # not published
        for flag in written:
            assert memory.find(f"/{name}/{flag}") == [f"/{name}/{flag}/out/made.json"], flag


# === Commands ===


def test_records_from_and_to_cloud_storage_have_the_same_bytes_also_after_a_failed_upload(
    memory, tmp_path, monkeypatch, capfd
):
    for path in (jobs.write_corpus(tmp_path), jobs.write_vocabulary(tmp_path)):
        memory.put_file(path, f"/data/{os.path.basename(path)}")
    remote = jobs.data_flags(
        tmp_path, input_file="memory://data/corp*.txt",
        vocab_file="memory://data/vocab.txt", output_file="memory://data/made/out.tfrecord",
    )
    with monkeypatch.context() as patch:
        def refuse(path, url):
            raise UserError(f"cannot write {url}: permission denied")

        patch.setattr(fsspec_calls, "upload", refuse)
        assert jobs.create_data(*remote) == 2
    said = capfd.readouterr().err
    assert "tasks were done" not in said
    line = said.strip().splitlines()[-1]
    assert "cannot write memory://data/made/out.tfrecord: permission denied" in line
    assert list(pathlib.Path(line.rpartition(" is in ")[2]).rglob("out.tfrecord"))
    assert jobs.create_data(*remote) == 0
    assert "tasks were done" in capfd.readouterr().err  # and not made again
    assert not list((tmp_path / "cache/work").rglob("*.pairs"))
    assert jobs.create_data(*jobs.data_flags(tmp_path)) == 0
    records, manifest = "/data/made/out.tfrecord", "/data/made/out.tfrecord.manifest.json"
    assert memory.find("/data/made") == [records, manifest]
    assert memory.cat_file(records) == (tmp_path / "out.tfrecord").read_bytes()
    told = json.loads(memory.cat_file(manifest))["info"]["flags"]
    assert told["input_file"] == "memory://data/corp*.txt"


def test_a_run_in_cloud_storage_resumes_and_exports_as_a_local_one(memory, begun, whole, tmp_path):
    inputs = whole.out.parent
    put(memory, inputs, "train.tfrecord*", "/data/records")
    put(memory, inputs, "albert_config.json", "/data")
    (begun.out / ".lock").unlink()
    put(memory, begun.out, "*", "/data/run")
    assert jobs.pretrain(
        *begun.flags, "--albert_config_file=memory://data/albert_config.json",
        "--input_file=memory://data/records/train*", f"--output_dir={RUN}", "--do_eval",
    ) == 0
    assert not [name for name in memory.find("/data/run") if "tmp-" in name or "lease" in name]
    for name in memory.find("/data/run"):
        assert str(tmp_path / "cache").encode() not in memory.cat_file(name), name
    assert run_here(
        export_checkpoints, f"--albert_directory={RUN}", "--checkpoint_name=model.ckpt-23",
        "--export_path=memory://data/clean/model",
    ) == 0
    assert {name.rpartition("/")[2] for name in memory.find("/data/clean")} >= {
        "model.index", "model.data-00000-of-00001", "README.md"
    }
    memory.get("/data/run", str(tmp_path / "fetched"), recursive=True)
    jobs.assert_same_run(tmp_path / "fetched", whole.out, 23)
    run_state = json.loads(memory.cat_file("/data/run/model.ckpt-23.json"))
    assert run_state["flags"]["output_dir"] == RUN


def test_a_classifier_starts_from_cloud_storage_and_is_trained_into_it(memory, whole, tmp_path):
    given = jobs.classifier_flags(tmp_path, train_step=2)
    for pattern in ("*.tsv", "vocab.txt", "albert_config.json"):
        put(memory, tmp_path, pattern, "/data")
    put(memory, whole.out, "model.ckpt-best.*", "/data/run")
    assert jobs.classify(
        *given, "--do_train", "--do_eval", "--data_dir=memory://data",
        "--vocab_file=memory://data/vocab.txt", "--output_dir=memory://data/classifier",
        "--albert_config_file=memory://data/albert_config.json",
        f"--init_checkpoint={RUN}/model.ckpt-best",
    ) == 0
    names = {name.rpartition("/")[2] for name in memory.find("/data/classifier")}
    assert {"eval_results.txt", "checkpoint", "vocab.txt", "model.ckpt-2.index"} <= names
    run_state = json.loads(memory.cat_file("/data/classifier/model.ckpt-2.json"))
    assert run_state["flags"]["init_checkpoint"] == f"{RUN}/model.ckpt-best"


def test_bad_addresses_are_one_line_before_anything_is_done(memory, tmp_path, capfd, monkeypatch):
    memory.put_file(jobs.write_corpus(tmp_path), "/data/corpus.txt")
    before = memory.find("/")

    def refused(**changes) -> str:
        given = {"input_file": "memory://data/corpus.txt", "output_file": "memory://data/out"}
        assert jobs.create_data(*jobs.data_flags(tmp_path, **given | changes)) == 2
        assert memory.find("/") == before
        return assert_one_clear_line(capfd.readouterr().err)

    for flag, value, message in (
        ("output_file", "memory://data/corpus.txt", "is given twice, as a file to write and to read"),
        ("input_file", "memory://data/none*", "no file matches memory://data/none*"),
        ("input_file", "nosuch://data/a", "nosuch"),
        ("output_file", "memory://x", "is a bucket"),
    ):
        assert message in refused(**{flag: value})

    def absent(*_, **__):
        raise ImportError("Install adlfs to access")

    with monkeypatch.context() as patch:
        patch.setattr(fsspec.core, "url_to_fs", absent)
        assert "pip install 'albert[azure]'" in refused(input_file="abfs://data/a")
    real = fsspec_calls.importlib.util.find_spec
    monkeypatch.setattr(
        fsspec_calls.importlib.util, "find_spec",
        lambda name, *more: None if name == "fsspec" else real(name, *more),
    )
    assert "s3:// needs fsspec: pip install 'albert[s3]'" in refused(input_file="s3://bucket/a")


def test_local_paths_import_no_fsspec():
    said = jobs.python(
        "import sys\nfrom albert import create_pretraining_data as command\n"
        "try: command.cli(['x', '--input_file=/absent', '--output_file=o', '--vocab_file=v'])\n"
        "except SystemExit: print('fsspec' in sys.modules)"
    )
    assert said.strip().endswith("False")


# === Leases ===


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setenv("ALBERT_LEASE_SECONDS", "0.6")


def write_foreign_lease(system, **changes):
    """Leaves the lease of a process on another machine."""
    holder = {"id": "x", "pid": 7, "host": "elsewhere", "since": "noon", "renewals": 0, **changes}
    system.pipe_file("/data/run/.lease", json.dumps(holder).encode())


def silence(lease) -> None:
    """Stops a lease's renewals, as if its process slept."""
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
            assert second._is_own()


def test_a_lease_of_a_dead_process_of_this_machine_is_taken_over_at_once(memory, monkeypatch):
    monkeypatch.setenv("ALBERT_LEASE_SECONDS", "3000")
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
        write_foreign_lease(memory, id="y")  # another was faster
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
    """The process is killed."""


def killed_at_each_call(monkeypatch, work, least: int):
    """Does `work` again and again, killed before each of its changing calls; yields after each.

    The last one was not killed.
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
    """Does what the end of a killed process does."""
    scratch._pending.clear()
    scratch._directories.clear()
    for lock in scratch._locks.values():
        lock.release()
    scratch._locks.clear()


def make_run(steps=(1, 2, 3)) -> None:
    """Checkpoints with their evaluations, in the order in which the trainer makes them."""
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
            if evaluated:  # then the best is not sought again
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
        if memory.exists("/data/x.tfrecord.manifest.json"):
            source = RecordFiles(["memory://data/x.tfrecord"])
            [(_, manifest)] = source.manifests()
            assert manifest.bytes == filesystem.size(source.paths[0])
            assert manifest.records == len(list(tfrecord.read_records(source.paths[0]))) in (3, 5)


# === Whose files they are ===


def test_two_commands_with_a_common_stem_touch_no_files_but_their_own(memory, tmp_path, monkeypatch):
    text = pathlib.Path(jobs.write_corpus(tmp_path)).read_bytes()
    users = {"train.README.md": b"r", "train.16.txt": b"t", "train": b"x", "train.txt": text}
    for name, content in users.items():
        memory.pipe_file(f"/b/d/{name}", content)

    def create(length) -> int:
        return jobs.create_data(*jobs.data_flags(
            tmp_path, input_file="memory://b/d/train.txt", max_seq_length=length,
            output_file=f"memory://b/d/train.{length}",
        ))

    def die(*_):
        raise Dead

    # The first one is killed in the middle of publishing; the second one runs meanwhile.
    with contextlib.suppress(Dead), monkeypatch.context() as patch:
        patch.setattr(outputs, "_publish_file", die)
        create(16)
    abandon_scratch_folder()
    resumable = set((tmp_path / "cache/work").rglob("*.pairs"))
    assert resumable and create(32) == 0
    assert set((tmp_path / "cache/work").rglob("*.pairs")) == resumable
    assert create(16) == 0
    made = {f"train.{length}{end}" for length in (16, 32) for end in ("", ".manifest.json")}
    assert {name.rpartition("/d/")[2] for name in memory.find("/b/d")} == users.keys() | made
    assert all(memory.cat_file(f"/b/d/{name}") == content for name, content in users.items())


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
    assert len(memory.cat_file("/data/run/metrics.jsonl").splitlines()) == 8
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


def test_names_that_lead_out_of_the_folder_are_refused(memory):
    memory.store["/data/run/../../escape"] = fsspec.implementations.memory.MemoryFile(
        memory, "/data/run/../../escape", b"x"
    )
    with pytest.raises(DataError, match="cannot be a file name here"):
        filesystem.local_copy(RUN)


# === From Python ===


def test_models_and_tokenizers_are_saved_to_and_opened_from_cloud_storage(
    memory, tmp_path, monkeypatch
):
    import albert

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "link"))  # a cache behind a link serves, too
    for path in (jobs.write_vocabulary(tmp_path), write_config(tmp_path, num_hidden_layers=1)):
        memory.put_file(path, f"/data/{os.path.basename(path)}")
    config = albert.AlbertConfig.from_json_file("memory://data/albert_config.json")
    tokenizer = albert.AlbertTokenizer.from_pretrained("memory://data/vocab.txt")
    model = albert.AlbertForSequenceClassification(config, num_labels=2)
    for _ in range(2):  # written over, as a directory on a disk would be
        model.save_pretrained("memory://data/model")
        tokenizer.save_pretrained("memory://data/model")
    assert tokenizer.save_vocabulary("memory://data/words") == ("memory://data/words/vocab.txt",)
    assert {name.rpartition("/")[2] for name in memory.find("/data/model")} >= {
        "config.json", "model.safetensors", "vocab.txt", "README.md"
    }
    opened = albert.from_pretrained("memory://data/model")
    batch = albert.AlbertTokenizer.from_pretrained("memory://data/model")(["w1 w2 w3"])
    np.testing.assert_array_equal(batch["input_ids"], tokenizer(["w1 w2 w3"])["input_ids"])
    expected = np.asarray(model(batch)["logits"])
    np.testing.assert_array_equal(expected, np.asarray(opened(batch)["logits"]))
    session = albert.open_session("memory://data/model", vocab_file="memory://data/words/vocab.txt")
    assert 0 <= session.classify("w1 w2 w3")["probability"] <= 1
    assert not list((tmp_path / "link").glob("scratch-?"))


def test_a_model_that_is_absent_is_reported_by_its_address(memory):
    import albert

    memory.pipe_file("/data/empty/notes.txt", b"x")
    for path, message in (
        ("memory://data/absent", "no such file: memory://data/absent"),
        ("memory://data/empty", "memory://data/empty holds neither albert_config.json"),
    ):
        for opener in (albert.from_pretrained, albert.open_session,
                       albert.AlbertTokenizer.from_pretrained, albert.AlbertModel.from_pretrained):
            with pytest.raises(UserError, match=re.escape(message)):
                opener(path)
