"""URLs in flags and in Python, on fsspec's in-memory file system."""

import contextlib
import importlib
import json
import os
import pathlib
import re

import jobs
import numpy as np
import pytest
from helpers import REPO, assert_one_clear_line, run_here, write_config

from albert import export_checkpoints
from albert.cli import flags, remote_paths
from albert.errors import DataError, UserError
from albert.storage import cloud, files

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'albert-keras[test]'")
pytestmark = pytest.mark.usefixtures("memory")

# String flags that are not paths.
NO_PATHS = {
    "checkpoint_name", "delimiter", "encoding", "label_column", "label_list",
    "language", "runner", "task_name", "text_column", "text_field", "text_pair_column",
    "user_defined_symbols",
}
SPECIAL = {"flagfile", "undefok", "help", "helpshort", "helpfull"}
RUN = "memory://data/run"


def put(system, folder, pattern: str, url: str) -> None:
    """Copies matching files, with their paths relative to the folder."""
    for path in filter(pathlib.Path.is_file, pathlib.Path(folder).rglob(pattern)):
        system.pipe_file(f"{url}/{path.relative_to(folder)}", path.read_bytes())


def test_messages_show_an_address_for_its_copy_or_its_output_alone():
    for tree in ("inputs", "outputs"):
        folder = cloud.Folder(RUN, tree).path
        assert cloud.as_given(f"cannot read {folder}/a") == f"cannot read {RUN}/a"
    other = f"cannot read {cloud.cache_directory()}/archives/s3/a"
    assert cloud.as_given(other) == other


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
            is_ignored = (values[flag].help or "").startswith("No effect")
            if (values[flag].flag_type() == "string" and not is_ignored
                    and not hasattr(values[flag], "use")):
                seen.add(flag)
                is_choice = bool(getattr(values[flag].parser, "enum_values", None))
                assert is_choice or flag in NO_PATHS | SPECIAL, f"{name} --{flag}"
    assert seen >= NO_PATHS


def test_every_path_flag_reads_from_or_writes_to_its_address(memory, capfd):
    for name, module, values in commands():
        uses = {flag: getattr(values[flag], "use", None) for flag in values}
        for flag in (flag for flag, use in uses.items() if use in ("file", "model")):
            with contextlib.suppress(SystemExit):
                module.cli([name, f"--{flag}=memory://data/absent"])
            line = assert_one_clear_line(capfd.readouterr().err)
            assert "memory://data/absent" in line and f"--{flag}" in line, (name, flag, line)
        values([name])
        urls = {flag: f"memory://{name}/{flag}/out" for flag, use in uses.items()
                if use in remote_paths._WRITTEN}
        for flag, url in urls.items():
            values[flag].value = url
        with remote_paths.local_paths(values):
            for flag, url in urls.items():
                path = values[flag].value
                assert "://" not in path and cloud.as_given(path) == url
                assert flags.to_dict(values)[flag] == url
                files.write_json(os.path.join(path, "made.json"), {})
                pathlib.Path(path, ".hidden.json").write_text("{}")
        for flag in urls:
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
        def refuse(*_):
            raise PermissionError("no")

        patch.setattr(type(memory), "put_file", refuse)
        assert jobs.create_data(*remote) == 2
    line = capfd.readouterr().err.strip().splitlines()[-1]
    assert "cannot write memory://data/made: permission denied" in line
    assert list(pathlib.Path(line.rpartition(" is in ")[2]).rglob("out.tfrecord.manifest.json"))
    assert not memory.find("/data/made")
    assert jobs.create_data(*remote) == 0
    assert jobs.create_data(*jobs.data_flags(tmp_path)) == 0
    records, manifest = "/data/made/out.tfrecord", "/data/made/out.tfrecord.manifest.json"
    assert memory.find("/data/made") == [records, manifest, records + ".vocabulary.txt"]
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
    assert not [name for name in memory.find("/data/run") if "/." in name]
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


def test_bad_addresses_are_one_line_before_anything_is_done(memory, tmp_path, capfd, monkeypatch):
    memory.put_file(jobs.write_corpus(tmp_path), "/data/corpus.txt")
    before = memory.find("/")
    given = {"input_file": "memory://data/corpus.txt", "output_file": "memory://data/out"}

    def absent(*_, **__):
        raise ImportError("Install adlfs to access")

    for flag, value, broken, message in (
        ("output_file", "memory://data/corpus.txt", (), "is an input and would be overwritten"),
        ("input_file", "memory://data/none*", (), "no file matches memory://data/none*"),
        ("input_file", "nosuch://data/a", (), "nosuch"),
        ("output_file", "memory://x", (), "is a bucket"),
        ("input_file", "abfs://data/a", (fsspec.core, "url_to_fs", absent),
         "pip install 'albert-keras[azure]'"),
    ):
        with monkeypatch.context() as patch:
            if broken:
                patch.setattr(*broken)
            assert jobs.create_data(*jobs.data_flags(tmp_path, **given | {flag: value})) == 2
        assert message in assert_one_clear_line(capfd.readouterr().err)
        assert memory.find("/") == before


def test_names_that_lead_out_of_the_folder_are_ignored_or_refused(memory, tmp_path):
    memory.store["/data/run/../../escape"] = fsspec.implementations.memory.MemoryFile(
        memory, "/data/run/../../escape", b"x"
    )
    memory.pipe_file("/data/run/a", b"a")
    copy = pathlib.Path(cloud.local_copy(RUN))
    assert [path.name for path in copy.iterdir() if path.name[0] != "."] == ["a"]
    assert not list(tmp_path.rglob("escape"))
    memory.pipe_file("/data/run/a\\b", b"x")
    with pytest.raises(DataError, match="cannot be a file name here"):
        cloud.local_copy(RUN)


# === Copies ===


def test_files_directories_and_globs_are_copied(memory):
    content = {"a.txt": b"aa", "b.txt": b"b" * 700_000, "deep/c.txt": b"c", ".hidden": b"x",
               "a.txt.manifest.json": b"{}"}
    for name, value in content.items():
        memory.pipe_file(f"/bucket/base/{name}", value)
    root = "memory://bucket/base"
    copies = cloud.local_copies(f"{root}/[ab].txt", "input_file", files.BESIDE_RECORDS)
    assert list(map(cloud.as_given, copies)) == [f"{root}/a.txt", f"{root}/b.txt"]
    assert [pathlib.Path(copy).read_bytes() for copy in copies] == [content["a.txt"], content["b.txt"]]
    assert os.path.exists(files.find_files(copies[0], "input_file")[0] + ".manifest.json")
    assert not os.path.exists(os.path.join(os.path.dirname(copies[0]), "deep"))
    [folder] = cloud.local_copies(root, "input_file")
    assert cloud.local_copy(root) == folder and cloud.as_given(folder) == root
    names = [p.name for p in pathlib.Path(folder).rglob("*") if p.is_file() and p.name[0] != "."]
    assert sorted(names) == ["a.txt", "a.txt.manifest.json", "b.txt", "c.txt"]


def test_a_change_of_the_same_size_is_copied_and_what_was_removed_goes(memory):
    memory.pipe_file("/bucket/m/v.txt", b"one")
    memory.pipe_file("/bucket/m/deep/b", b"b")
    path = cloud.local_copy("memory://bucket/m/v.txt")
    assert pathlib.Path(path).read_bytes() == b"one"
    before = os.stat(path).st_ino
    assert os.stat(cloud.local_copy("memory://bucket/m/v.txt")).st_ino == before
    memory.pipe_file("/bucket/m/v.txt", b"two")
    assert pathlib.Path(cloud.local_copy("memory://bucket/m/v.txt")).read_bytes() == b"two"
    folder = pathlib.Path(cloud.local_copy("memory://bucket/m"))
    memory.rm_file("/bucket/m/v.txt")
    assert cloud.local_copy("memory://bucket/m") == str(folder)
    assert [p.name for p in folder.rglob("*") if p.is_file() and p.name[0] != "."] == ["b"]
    assert cloud.local_copy("file:///x/y") == "/x/y"


def test_a_file_that_is_replaced_while_it_is_copied_is_not_used(memory, monkeypatch):
    memory.pipe_file("/bucket/v.txt", b"all of it")
    monkeypatch.setattr(
        type(memory), "get_file", lambda _, source, target, **__: pathlib.Path(target).write_bytes(b"half"))
    with pytest.raises(DataError, match="memory://bucket/v.txt was replaced while it was copied"):
        cloud.local_copy("memory://bucket/v.txt")


def test_errors_of_file_systems_are_one_line_with_the_address():
    for error, message in (
        (PermissionError("no"), "permission denied: no"), (ConnectionError("reset\nby peer"), "reset"),
        (ValueError("Unable to locate credentials"), "no credentials"),
    ):
        with pytest.raises(DataError, match=f"cannot read memory://bucket/x: {message}"):
            with cloud.open_storage("memory://bucket/x"):
                raise error


# === From Python ===


def test_models_and_tokenizers_are_saved_to_and_opened_from_cloud_storage(
    memory, tmp_path, monkeypatch
):
    import albert

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "link"))  # a symlinked cache works too
    for path in (jobs.write_vocabulary(tmp_path), write_config(tmp_path, num_hidden_layers=1)):
        memory.put_file(path, f"/data/{os.path.basename(path)}")
    config = albert.AlbertConfig.from_json_file("memory://data/albert_config.json")
    tokenizer = albert.AlbertTokenizer.from_pretrained("memory://data/vocab.txt")
    model = albert.AlbertForSequenceClassification(config, num_labels=2)
    for _ in range(2):  # overwritten, as a directory on a disk would be
        model.save_pretrained("memory://data/model")
        tokenizer.save_pretrained("memory://data/model")
    assert {name.rpartition("/")[2] for name in memory.find("/data/model")} >= {
        "config.json", "model.safetensors", "vocab.txt", "README.md"
    }
    opened = albert.from_pretrained("memory://data/model")
    batch = albert.AlbertTokenizer.from_pretrained("memory://data/model")(["w1 w2 w3"])
    np.testing.assert_array_equal(batch["input_ids"], tokenizer(["w1 w2 w3"])["input_ids"])
    expected = np.asarray(model(batch)["logits"])
    np.testing.assert_array_equal(expected, np.asarray(opened(batch)["logits"]))
    session = albert.open_session("memory://data/model", vocab_file="memory://data/vocab.txt")
    assert 0 <= session.classify("w1 w2 w3")["probability"] <= 1


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
