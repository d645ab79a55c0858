"""fill_mask and extract_features give the answers of a session, compared with the model in test_session."""

import io
import json
import sys
import types

import helpers
import numpy as np
import pytest
from answers import saved

import albert
from albert import extract_features, fill_mask
from albert.cli import flags
from albert.inference import predictors

CLASSIFIER, PRETRAINED = "AlbertForSequenceClassification", "AlbertForPreTraining"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pretrained and a fine-tuned model."""
    place = tmp_path_factory.mktemp("models")
    saved(place / PRETRAINED, PRETRAINED)
    saved(place / CLASSIFIER, CLASSIFIER, 2)
    return place


def run(module, *arguments) -> int:
    return flags.run_command(
        module.__doc__, module.define_flags, module.main, ["x", *map(str, arguments)], module is fill_mask
    )


def fill(capsys, model, *arguments) -> list[str]:
    capsys.readouterr()
    assert run(fill_mask, f"--model={model}", *arguments) == 0
    return capsys.readouterr().out.splitlines()


TEXTS = ["w1 [MASK] w3", "[MASK] w2 " + "w5 " * 37 + "[MASK]", "w7 [MASK]"]


def test_texts_are_arguments_lines_of_a_file_or_of_the_standard_input(folder, capsys, tmp_path, monkeypatch):
    model, as_json = folder / PRETRAINED, ("--format=json", "--top_k=3")
    expected = albert.open_session(model).fill_mask(TEXTS, top_k=3)
    lines = fill(capsys, model, *as_json, *TEXTS)
    found = [json.loads(line) for line in lines]
    assert found == [{"text": text, "masks": masks} for text, masks in zip(TEXTS, expected, strict=True)]
    (tmp_path / "in.txt").write_text("\n".join([TEXTS[0], "", *TEXTS[1:], " ", ""]))
    of_file = [json.loads(line) for line in fill(capsys, model, *as_json, f"--input_file={tmp_path}/in.txt")]
    empty = [{"text": text, "masks": []} for text in ("", " ")]
    assert of_file == [found[0], empty[0], *found[1:], empty[1]]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(TEXTS).encode())))
    assert fill(capsys, model, *as_json) == lines
    # As a table
    lines = fill(capsys, model, "--top_k=2", *TEXTS)
    assert [line for line in lines if line in TEXTS] == TEXTS
    second = lines[lines.index(TEXTS[1]) + 1 : lines.index(TEXTS[2])]
    pieces = [[f"    {one['probability']:.4f}  {one['piece']}" for one in mask[:2]] for mask in expected[1]]
    assert second == ["  [MASK] 1", *pieces[0], "  [MASK] 2", *pieces[1]]


def test_pieces_of_equal_probabilities_are_ordered_by_their_logits():
    logits = np.zeros((1, 1, 40), np.float32)
    logits[..., 20], logits[..., 30] = 0.1, np.nextafter(np.float32(0.1), np.float32(1))
    filler = object.__new__(predictors.MaskFiller)
    filler.top_k, tokenizer = 2, types.SimpleNamespace(mask_id=4, vocab_size=40)
    filler.session = types.SimpleNamespace(tokenizer=tokenizer)
    found = filler.compute(lambda batch: {"prediction_logits": logits}, {"input_ids": np.array([[2, 4, 3]])})
    assert found["ids"].tolist() == [[[30, 20]]] and len({*found["probabilities"].ravel().tolist()}) == 1


LINES = ["w1 w2", "", "w9 " * 60, *(f"w{i % 35} w{i % 7} w3" * (1 + i % 9) for i in range(30))]


def extract(folder, tmp_path, name, *arguments):
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    assert 0 == run(
        extract_features, f"--model={folder / PRETRAINED}", f"--input_file={tmp_path}/in.txt",
        f"--output_file={tmp_path}/{name}", *arguments,
    )
    return tmp_path / name


def test_vectors_are_the_sessions_in_the_order_of_the_lines(folder, tmp_path, monkeypatch):
    """However lines are batched."""
    session = albert.open_session(folder / PRETRAINED)
    for pooling in ("pooled", "cls", "mean"):
        expected = session.embed(LINES, pooling=pooling)
        path = extract(folder, tmp_path, "x.npz", f"--pooling={pooling}", "--batch_size=4")
        vectors = np.load(path)["vectors"]
        np.testing.assert_allclose(vectors, expected, atol=2e-5)
        monkeypatch.setattr(predictors, "CHUNK", 7)
    path = extract(folder, tmp_path, "x.jsonl", "--pooling=mean", "--batch_size=3")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["text"] for line in lines] == LINES
    np.testing.assert_allclose([line["vector"] for line in lines], expected, atol=2e-5)


NO_MASKS = [
    (PRETRAINED, ["no mask"], "argument 1: no [MASK] in the text"),
    (PRETRAINED, ["[MASK]", "w1 " * 70 + "[MASK]"],
     "argument 2: 73 tokens with [CLS] and [SEP], at most 64 fit"),
    (PRETRAINED, ["[MASK] \udcff"], "argument 1: not UTF-8 text"),
    (PRETRAINED, ["--max_seq_length=65", "[MASK]"],
     "--max_seq_length=65 exceeds max_position_embeddings 64"),
    (PRETRAINED, ["--top_k=41", "[MASK]"], "the vocabulary has 40 tokens"),
    (PRETRAINED, ["--input_file=/nowhere"], "no such file"),
    (PRETRAINED, ["--input_file=/nowhere", "[MASK]"], "not both"),
    (CLASSIFIER, ["[MASK]"], "has no masked-LM head"),
    ("", ["[MASK]"], "holds neither albert_config.json"),
    ("none", ["[MASK]"], "--model: no directory"),
    (PRETRAINED, ["--model=", "[MASK]"], "--model"),
]
NO_FEATURES = [
    (PRETRAINED, ["--output_file=x.txt"], "ends neither in .jsonl nor in .npz"),
    (PRETRAINED, ["--input_file={}/bad.txt"], "bad.txt:2: not UTF-8 text"),
    (PRETRAINED, ["--input_file={}/empty.txt"], "empty.txt: empty input"),
    ("none", [], "--model: no directory"),
]


def test_what_cannot_be_answered_is_refused(folder, capsys, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "in.txt").write_text("w1\n")
    files = f"--input_file={tmp_path}/in.txt", f"--output_file={tmp_path}/x.npz"
    for module, given, cases in ((fill_mask, (), NO_MASKS), (extract_features, files, NO_FEATURES)):
        for model, arguments, message in cases:
            arguments = [argument.replace("{}", str(tmp_path)) for argument in arguments]
            assert run(module, f"--model={folder / model}", *given, *arguments) == 2
            assert message in helpers.assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "x.npz").exists()
