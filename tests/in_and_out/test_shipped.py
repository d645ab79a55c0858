"""The models that come with the package."""

import importlib
import json
import os
import pathlib
import re
import shlex
import shutil

import numpy as np
import pytest
from helpers import REPO, assert_one_clear_line, run, run_here

import albert
from albert import (
    convert_hf,
    export_model,
    export_to_tfhub,
    extract_features,
    modeling,
    predict,
    score,
)
from albert.cli import flags
from albert.config import AlbertConfig
from albert.formats import pretrained
from albert.storage import shipped

NAMES = shipped.names()
TABLE = "bert/embeddings/word_embeddings"


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_opened_by_its_name(name):
    model = albert.from_pretrained(name)
    assert isinstance(model, modeling.AlbertForPreTraining)
    assert model.config == AlbertConfig.from_flag(name)
    tokenizer = albert.AlbertTokenizer.from_pretrained(name)
    assert tokenizer.vocab_size == model.config.vocab_size
    weights = pretrained.open_any_weights(name)
    for weight, variable in modeling.named_weights(model).items():
        np.testing.assert_array_equal(weights.read(weight), variable.numpy())


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_its_card_tells_licence_and_data(name):
    folder = pathlib.Path(shipped.path_of(name))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 12_000_000
    card = (folder / "README.md").read_text()
    for wanted in ("apache-2.0", "CC BY-SA 3.0", "public domain", "BLiMP", "run_pretraining"):
        assert wanted in card, wanted


@pytest.mark.parametrize("name", NAMES)
def test_it_knows_english(name):
    session = albert.open_session(name)
    texts = {
        "The boys [MASK] playing in the garden.": {"were", "are"},
        "He opened the [MASK] and walked into the room.": {"door"},
        "I do not [MASK] what you mean.": {"know", "understand", "see"},
    }
    for masks, wanted in zip(session.fill_mask(list(texts)), texts.values(), strict=True):
        assert {one["piece"].strip("▁") for one in masks[0]} & wanted


def commands_of_models():
    """Yields (define_flags, flag) of every flag that names a model or its vocabulary."""
    for path in sorted((REPO / "albert").glob("*.py")):
        module = importlib.import_module(f"albert.{path.stem}")
        if not hasattr(module, "define_flags"):
            continue
        values = flags.parse(module.define_flags, ["command"])
        for name in values:
            if getattr(values[name], "use", None) == "model" or "spm_model" in name:
                yield pytest.param(module.define_flags, name, id=f"{path.stem}-{name}")


@pytest.mark.parametrize("define_flags, flag", list(commands_of_models()))
def test_every_flag_of_a_model_takes_a_name(define_flags, flag):
    values = flags.parse(define_flags, ["command", f"--{flag}={NAMES[0]}"])
    folder = shipped.path_of(NAMES[0])
    assert getattr(values, flag) == (f"{folder}/spiece.model" if "spm" in flag else folder)
    assert os.path.exists(getattr(values, flag))


def test_the_first_minute(tmp_path, capsys):
    """The commands that a reader tries first, and what they answer."""
    text = tmp_path / "text.txt"
    text.write_text("A first text.\nAnd a second one.\n")
    readme = (REPO / "README.md").read_text("utf-8")
    shown = re.search(r"^ +python -m (albert.fill_mask) (.+)$", readme, re.M)
    done = run(shown[1], *shlex.split(shown[2]), "--format=json")
    [pieces] = json.loads(done.stdout)["masks"]
    assert len(pieces) == 5 and pieces[0]["probability"] > 0.05
    vectors = tmp_path / "vectors.npz"
    assert run_here(extract_features, f"--model={NAMES[0]}", f"--input_file={text}",
                    f"--output_file={vectors}") == 0
    config = AlbertConfig.from_flag(NAMES[0])
    with np.load(vectors) as arrays:
        assert {array.shape for array in arrays.values()} == {(2, config.hidden_size)}
    # What it was not trained for is said, and how to go on.
    assert run_here(predict, f"--model={NAMES[0]}", f"--input_file={text}") == 2
    assert "is pretrained, not fine-tuned" in assert_one_clear_line(capsys.readouterr().err)
    assert run_here(export_model, f"--model_dir={NAMES[0]}", f"--export_path={tmp_path}/e") == 2
    assert "is pretrained, not fine-tuned" in assert_one_clear_line(capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_becomes_a_module_and_an_archive(name, tmp_path):
    assert 0 == run_here(export_to_tfhub, f"--albert_directory={name}",
                         f"--export_path={tmp_path}/module")
    assert 0 == run_here(convert_hf, f"--hf_directory={name}", f"--output_dir={tmp_path}/ours")
    theirs = pretrained.open_any_weights(name)
    for folder in ("module", "ours"):
        ours = pretrained.open_path(str(tmp_path / folder)).weights()
        np.testing.assert_array_equal(ours.read(TABLE), theirs.read(TABLE))


def test_the_commands_take_a_name(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("The boys were playing.\nThe boys was playing.\n")
    assert run_here(score, f"--model={NAMES[0]}", f"--input_file={text}") == 0
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert good["log_probability"] > bad["log_probability"]


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    shutil.copytree(shipped.path_of(NAMES[0]), tmp_path / NAMES[0])
    monkeypatch.chdir(tmp_path)
    assert shipped.path_of(NAMES[0]) == NAMES[0]
    assert os.path.samefile(pretrained.open_path(NAMES[0]).directory, tmp_path / NAMES[0])


def test_a_wrong_name_is_answered_with_those_there_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_here(score, "--model=small_xx", "--input_file=/dev/null") == 2
    assert NAMES[0] in assert_one_clear_line(capsys.readouterr().err)
