"""The models that come with the package."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from helpers import assert_one_clear_line, run_here

import albert
from albert import modeling, score
from albert.config import AlbertConfig
from albert.data import shipped
from albert.formats import pretrained

NAMES = shipped.names()


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
