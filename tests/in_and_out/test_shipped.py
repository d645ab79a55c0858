"""The models that ship with the package."""

import importlib
import json
import os
import pathlib
import shutil

import jobs
import numpy as np
import pytest
from helpers import REPO, run_here

import albert
from albert import convert_hf, export_model, modeling, run_classifier
from albert.cli import flags
from albert.formats import huggingface, pretrained
from albert.storage import shipped

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
