"""Models by name: released ones, downloaded once, and those that ship with the package."""

import filecmp
import importlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import helpers
import hub_server
import jobs
import numpy as np
import pytest
import safetensors.numpy
from helpers import REPO, run_here

import albert
from albert import convert_hf, export_model, modeling, run_classifier
from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import CheckpointError
from albert.formats import huggingface, model_hub, pretrained
from albert.storage import shipped

TEXT = "The boys [MASK] playing in the garden."
LOADED = """
import sys, albert
for name, *revision in (argument.split() for argument in sys.argv[1:]):
    how = {"revision": revision[0]} if revision else {}
    model = albert.from_pretrained(name, **how)
    settings = albert.AlbertTokenizer.from_pretrained(name, **how).tokenizer.settings
    print(type(model).__name__, model.config.hidden_size, settings.do_lower_case)
"""
DOWNLOADED = """
import sys
from albert.formats import model_hub
for path in sys.argv[1:]:
    print(model_hub.local_path(path))
"""
REFUSED = """
import sys
from albert import fill_mask
from albert.cli import flags
for model in sys.argv[1:]:
    given = ["fill_mask", f"--model={model}", "a [MASK]"]
    code = flags.run_command(fill_mask.__doc__, fill_mask.define_flags, fill_mask.main, given, True)
    print(f"--- {code}", file=sys.stderr, flush=True)
"""

CLOCKED = """
import time, huggingface_hub
from albert.errors import CheckpointError
from albert.formats import model_hub
start = time.monotonic()
try:
    model_hub.local_path("owner/small")
except CheckpointError as error:
    print(time.monotonic() - start, error, sep="\\n")
"""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with the model owner/small, for commands in the test, with a separate cache."""
    shutil.copytree(shipped.path_of("small_en"), tmp_path / "hub/owner/small/main")
    with hub_server.serving(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "cache"))
        for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield hub


def fill_mask(model, **environment) -> subprocess.CompletedProcess:
    return helpers.run("albert.fill_mask", f"--model={model}", TEXT, env=environment)


def download(folder: pathlib.Path, *paths: str, **environment) -> list[str]:
    """Downloads models in a separate process; returns their paths."""
    (folder / "program.py").write_text(DOWNLOADED)
    done = helpers.run("program", *paths, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def assert_same_files(folder, original: pathlib.Path) -> None:
    """Compares a model's downloaded files, which include its weights and configuration."""
    names = [str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*")
             if path.is_file() and not path.name.startswith(".")]
    assert "config.json" in names and any(name.endswith(".safetensors") for name in names)
    for name in names:
        assert filecmp.cmp(f"{folder}/{name}", original / name, shallow=False), name


def asked_for(hub, *names: str) -> int:
    """Returns how often a file with one of these names was requested from a hub."""
    return sum(kind == "GET" and path.endswith(names) for kind, path in hub.requests)


@pytest.fixture(scope="module")
def answer() -> str:
    return fill_mask("small_en").stdout


def test_a_name_is_downloaded_once_and_then_needs_no_network(hub, answer, tmp_path):
    done = fill_mask("owner/small")
    assert (done.returncode, done.stdout) == (0, answer), done.stderr
    assert ": commit " in done.stderr
    hub.requests.clear()
    [folder] = download(tmp_path, "owner/small")
    assert hub.requests and not any("/resolve/" in path for kind, path in hub.requests if kind == "GET")
    hub.broken = True
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        assert download(tmp_path, "owner/small", **environment) == [folder]


def test_what_cannot_be_had_is_refused_in_one_line(hub, tmp_path):
    hub.private.add("owner/private")
    shutil.copytree(hub.folder / "owner/small", hub.folder / "owner/private")
    (hub.folder / "owner/roberta/main").mkdir(parents=True)
    (hub.folder / "owner/roberta/main/config.json").write_text('{"model_type": "roberta"}')
    (hub.folder / "owner/empty/main").mkdir(parents=True)
    shutil.copy(hub.folder / "owner/small/main/config.json", hub.folder / "owner/empty/main")
    refused = {
        "owner/smal": ("no directory 'owner/smal' here", hub.address, "small_en"),
        "owner/small@v9": ("no revision 'v9'",),
        "owner/private": ("HF_TOKEN",),
        "owner/roberta": ("model_type is 'roberta'",),
        "owner/empty": ("has no readable weights", "model.safetensors"),
        f"{hub.address}/none.tar.gz": ("tar -xzf", "albert/albert-base-v2"),
    }
    (tmp_path / "program.py").write_text(REFUSED)
    *said, _ = helpers.run("program", *refused, cwd=tmp_path).stderr.split("--- 2\n")
    offline = fill_mask("owner/small", HF_HUB_OFFLINE="1")
    assert offline.returncode == 2
    expected = [*refused.values(), ("HF_HUB_OFFLINE is set",)]
    for one, parts in zip([*said, offline.stderr], expected, strict=True):
        line = helpers.assert_one_clear_line(one)
        assert all(part in line for part in parts), line
    assert fill_mask("owner/private", HF_TOKEN="secret").returncode == 0


def test_a_hub_that_is_out_of_reach_is_given_up_soon(hub, tmp_path):
    (tmp_path / "program.py").write_text(CLOCKED)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nothing listens there, and nothing else can
        for server in (silent, closed):
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
            done = helpers.run("program", cwd=tmp_path, env={
                "HF_ENDPOINT": address, "HF_HUB_ETAG_TIMEOUT": "1"})
            seconds, said = done.stdout.splitlines()
            assert f"{address} can't be reached). Built-in models: small_en" in said, done.stderr
            assert float(seconds) < 10, said


def test_a_revision_is_that_of_its_name_in_python_and_in_flags(hub, tmp_path):
    older = hub.folder / "owner/small/v1"
    shutil.copytree(hub.folder / "owner/small/main", older)
    sizes = helpers.SIZES | {"vocab_size": 8000}
    modeling.AlbertForMaskedLM(AlbertConfig(**sizes)).save_pretrained(older)
    settings = json.loads((older / "tokenizer_config.json").read_text())
    (older / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": False}))
    (tmp_path / "program.py").write_text(LOADED)
    done = helpers.run("program", "owner/small", "owner/small v1", "owner/small@v1", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "AlbertForMaskedLM 384 True", *["AlbertForMaskedLM 16 False"] * 2,
    ], done.stderr
    with pytest.raises(CheckpointError, match="not the name of a model of the hub"):
        model_hub.with_revision("small_en", "v1")


def test_weights_in_several_files_are_read_by_their_index(hub, tmp_path):
    main = hub.folder / "owner/small/main"
    expected = safetensors.numpy.load_file(main / "model.safetensors")
    os.remove(main / "model.safetensors")
    names, files = sorted(expected), {}
    for number in range(3):
        file = f"model-{number + 1:05}-of-00003.safetensors"
        safetensors.numpy.save_file({name: expected[name] for name in names[number::3]}, main / file)
        files |= dict.fromkeys(names[number::3], file)
    index = main / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    [folder] = download(tmp_path, "owner/small")
    paths = str(folder), shipped.path_of("small_en")
    found, original = (pretrained.open_path(path).weights() for path in paths)
    assert found.shapes == original.shapes
    for name in found.shapes:
        np.testing.assert_array_equal(found.read(name), original.read(name))
    for weight_map in ([1], {"a": "../model.safetensors"}, None):
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(CheckpointError, match="weight_map must name the file of each tensor"):
            pretrained.open_path(str(main)).weights()


def test_a_download_that_is_cut_says_so_in_one_line_and_the_rerun_completes_it(hub, tmp_path):
    hub.cuts = 100
    (tmp_path / "program.py").write_text(REFUSED)
    done = helpers.run("program", "owner/small", cwd=tmp_path)
    line = helpers.assert_one_clear_line(done.stderr.removesuffix("--- 2\n"))
    assert "cut" in line and "owner/small" in line and "Rerun the command" in line
    hub.cuts = 0
    [folder] = download(tmp_path, "owner/small")
    assert_same_files(folder, hub.folder / "owner/small/main")


def test_processes_that_want_the_same_model_at_once_all_get_it(hub, answer):
    hub.goes_on.clear()
    processes = [helpers.start("albert.fill_mask", "--model=owner/small", TEXT) for _ in range(2)]
    assert hub.has_stopped.wait(100)
    hub.goes_on.set()
    for process in processes:
        out, err = process.communicate(timeout=100)
        assert (process.returncode, out) == (0, answer), err
    assert asked_for(hub, "model.safetensors") == 1


def test_a_download_that_is_stopped_by_hand_is_taken_up_by_the_same_command(hub, answer):
    hub.goes_on.clear()
    process = helpers.start("albert.fill_mask", "--model=owner/small", TEXT)
    assert hub.has_stopped.wait(100)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)  # not first at the end of the download
    assert process.returncode == 130 and "Traceback" not in err, err
    hub.goes_on.set()
    done = fill_mask("owner/small")
    assert (done.returncode, done.stdout) == (0, answer), done.stderr


def test_what_is_here_is_never_looked_for_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model.index").touch()
    for path in ("a/b", "run/model-best", "x/model.ckpt-5", "a/b/c", "small_en", "/a/b", "x/a.tar.gz"):
        assert not model_hub.is_name(path), path
    assert model_hub.is_name("a/c") and model_hub.is_name("albert/albert-base-v2@main")


# --- Models that ship with the package ---

NAMES = shipped.names()
EACH = pytest.mark.parametrize("name", NAMES)
TABLE = "bert/embeddings/word_embeddings"


@EACH
def test_a_model_is_opened_by_its_name_and_is_small_and_its_card_tells_licence_and_data(name, caplog):
    model, tokenizer = albert.from_pretrained(name), albert.AlbertTokenizer.from_pretrained(name)
    assert isinstance(model, modeling.AlbertForMaskedLM)
    assert model.config == huggingface.read_config(name)
    assert tokenizer.vocab_size == model.config.vocab_size
    np.testing.assert_array_equal(
        pretrained.open_any_weights(name).read(TABLE), modeling.named_weights(model)[TABLE]
    )
    folder = pathlib.Path(shipped.path_of(name))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 33_000_000
    card = (folder / "README.md").read_text()
    for wanted in ("apache-2.0", "CC BY-SA 3.0", "public domain", "all-MiniLM-L6-v2", "run_pretraining"):
        assert wanted in card, wanted
    modeling.AlbertForSequenceClassification.from_pretrained(name, num_labels=2)
    assert f"{name}: new, to be trained: output_weights; output_bias" in caplog.messages


@EACH
def test_it_knows_english(name):
    session = albert.open_session(name)
    texts = {
        "The boys [MASK] playing in the garden.": {"were", "are"},
        "He opened the [MASK] and walked into the room.": {"door"},
        "I do not [MASK] what you mean.": {"know", "understand", "see"},
    }
    for masks, wanted in zip(session.fill_mask(list(texts)), texts.values(), strict=True):
        assert {one["piece"] for one in masks[0]} & wanted


def test_every_flag_of_a_model_or_its_vocabulary_takes_a_name():
    folder, found = shipped.path_of(NAMES[0]), 0
    for path in sorted((REPO / "albert").glob("*.py")):
        define = getattr(importlib.import_module(f"albert.{path.stem}"), "define_flags", None)
        values = flags.parse(define, ["command"]) if define else ()
        for flag in values:
            if getattr(values[flag], "use", None) == "model" or flag.endswith("vocab_file"):
                value = getattr(flags.parse(define, ["command", f"--{flag}={NAMES[0]}"]), flag)
                assert value == (f"{folder}/vocab.txt" if "vocab" in flag else folder), flag
                found += 1
    assert os.path.exists(value) and found > 30


def test_what_is_written_says_the_name_that_was_typed_and_no_path_of_this_machine(tmp_path, monkeypatch):
    models, out = tmp_path / "models", tmp_path / "out"
    models.mkdir()
    jobs.save_encoder(models)  # with the name "model"
    monkeypatch.setattr(shipped, "FOLDER", str(models))
    run, name, table = out / "run", "model", tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"w{i % 35} w{i % 9},{'ab'[i % 2]}\n" for i in range(60)))
    assert 0 == run_here(
        run_classifier, f"--train_file={table}", f"--init_checkpoint={name}", f"--vocab_file={name}",
        f"--output_dir={run}", "--train_step=1", "--train_batch_size=2", "--cross_validation=0",
    )
    warm_start = json.loads((run / "warm_start.json").read_text())
    states = [json.loads(path.read_text()) for path in run.glob("model.ckpt-*.json")]
    assert warm_start["checkpoint"] == name and states
    assert all(state["flags"]["init_checkpoint"] == name for state in states)
    for source, flag, form in ((name, "hf_directory", "ours"), (run, "albert_directory", "theirs")):
        assert 0 == run_here(convert_hf, f"--{flag}={source}", f"--output_dir={out / form}")
    assert 0 == run_here(export_model, f"--model_dir={name}", f"--export_path={out}/a.tflite")
    for path in filter(pathlib.Path.is_file, out.rglob("*")):
        assert os.fsencode(models) not in path.read_bytes(), path


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    shutil.copytree(shipped.path_of(NAMES[0]), tmp_path / NAMES[0])
    monkeypatch.chdir(tmp_path)
    assert shipped.path_of(NAMES[0]) == NAMES[0]
    assert os.path.samefile(pretrained.open_path(NAMES[0]).directory, tmp_path / NAMES[0])
