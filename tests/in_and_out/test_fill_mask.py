"""fill_mask and extract_features: their output is the model's."""

import io
import json
import sys

import helpers
import jobs
import keras
import numpy as np
import pytest

from albert import extract_features, fill_mask, modeling
from albert.albert_tokenizer import AlbertTokenizer
from albert.cli import flags
from albert.config import AlbertConfig
from albert.inference import predictors

VOCABULARY = [*jobs.SPECIALS, *jobs.WORDS]
PRETRAINED = "AlbertForPreTraining"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pretrained, a fine-tuned and a bare model, with weights large enough that inputs matter."""
    place = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(3)
    config = AlbertConfig.from_dict(helpers.SIZES | {"initializer_range": 0.5, "max_position_embeddings": 48})
    for name in ("AlbertForPreTraining", "AlbertForSequenceClassification", "AlbertModel"):
        options = {"num_labels": 2} if "Classification" in name else {}
        getattr(modeling, name)(config, **options).save_pretrained(str(place / name))
        jobs.write_vocabulary(place / name)
    return place


def fill(capsys, model, *arguments) -> list[str]:
    fill_mask.main(*flags.parse_with_arguments(fill_mask.define_flags, ["x", f"--model={model}", *arguments]))
    return capsys.readouterr().out.splitlines()


def masks(folder, text):
    """Returns the probabilities [P, V] at the masks of one text, from calling the model."""
    path = str(folder / PRETRAINED)
    model = modeling.AlbertForMaskedLM.from_pretrained(path)
    encoded = AlbertTokenizer.from_pretrained(path)([text], return_tensors="np")
    logits = model(encoded)["prediction_logits"][0]
    at = np.flatnonzero(encoded["input_ids"][0] == 4)
    return keras.ops.convert_to_numpy(keras.ops.softmax(logits))[at]


TEXTS = ["w1 [MASK] w3", "[MASK] w2 " + "w5 " * 37 + "[MASK]", "w7 [MASK]"]


def test_the_likeliest_pieces_of_every_mask_come_with_the_models_probabilities(
    folder, capsys, tmp_path, monkeypatch
):
    """From arguments, a file's lines (an empty one has no mask), and standard input."""
    model, as_json = folder / PRETRAINED, ("--format=json", "--top_k=3")
    lines = fill(capsys, model, *as_json, "--batch_size=2", *TEXTS)
    found = [json.loads(line) for line in lines]
    assert [one["text"] for one in found] == TEXTS
    for text, one in zip(TEXTS, found, strict=True):
        expected = masks(folder, text)
        assert len(one["masks"]) == len(expected) == text.count("[MASK]")
        for row, pieces in zip(expected, one["masks"], strict=True):
            best = np.argsort(-row)[:3]
            assert [p["id"] for p in pieces] == best.tolist()
            assert [p["piece"] for p in pieces] == [VOCABULARY[i] for i in best]
            np.testing.assert_allclose([p["probability"] for p in pieces], row[best], rtol=1e-4)
    (tmp_path / "in.txt").write_text("\n".join([TEXTS[0], "", TEXTS[2], " ", ""]))
    of_file = [json.loads(line) for line in fill(capsys, model, *as_json, f"--input_file={tmp_path}/in.txt")]
    assert [one["text"] for one in of_file] == [TEXTS[0], "", TEXTS[2], " "]
    assert [[p["id"] for one in line["masks"] for p in one] for line in of_file] == [
        [p["id"] for p in found[0]["masks"][0]], [], [p["id"] for p in found[2]["masks"][0]], [],
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(TEXTS).encode())))
    assert fill(capsys, model, *as_json, "--batch_size=2") == lines


def test_pieces_of_equal_probabilities_are_ordered_by_their_logits(folder, capsys, tmp_path):
    model = modeling.AlbertForPreTraining.from_pretrained(str(folder / PRETRAINED))
    weights, head = modeling.named_weights(model), "cls/predictions"
    for name in ("gamma", "beta"):  # only the output bias is left
        weight = weights[f"{head}/transform/LayerNorm/{name}"]
        weight.assign(np.zeros(weight.shape))
    bias = np.full(helpers.VOCAB, 0.1, "float32")
    bias[30] = np.nextafter(bias[30], np.float32(1))
    weights[f"{head}/output_bias"].assign(bias)
    model.save_pretrained(str(tmp_path / "model"))
    jobs.write_vocabulary(tmp_path / "model")
    (line,) = fill(capsys, tmp_path / "model", "--format=json", "--top_k=2", "w1 [MASK]")
    first, second = json.loads(line)["masks"][0]
    assert first["id"] == 30 and first["probability"] == second["probability"]


def test_the_table_names_each_mask(folder, capsys):
    lines = fill(capsys, folder / PRETRAINED, "--top_k=2", TEXTS[1])
    assert lines[0] == TEXTS[1]
    assert [line for line in lines if "[MASK] " in line][1:] == ["  [MASK] 1", "  [MASK] 2"]
    probability, piece = lines[2].split()
    row = masks(folder, TEXTS[1])[0]
    assert piece == VOCABULARY[row.argmax()] and probability == f"{row.max():.4f}"


def refused(capsys, module, *arguments, takes_arguments=False) -> str:
    code = flags.run_command(
        module.__doc__, module.define_flags, module.main, ["x", *map(str, arguments)],
        takes_arguments,
    )
    assert code == 2
    return helpers.assert_one_clear_line(capsys.readouterr().err)


NO_MASKS = [
    (PRETRAINED, ["no mask"], "argument 1: no [MASK] in the text"),
    (PRETRAINED, ["[MASK]", "w1 " * 50 + "[MASK]"],
     "argument 2: 53 tokens with [CLS] and [SEP], at most 48 fit"),
    (PRETRAINED, ["[MASK] \udcff"], "argument 1: not UTF-8 text"),
    (PRETRAINED, ["--max_seq_length=49", "[MASK]"],
     "--max_seq_length=49 exceeds max_position_embeddings 48"),
    (PRETRAINED, ["--top_k=41", "[MASK]"], "the vocabulary has 40 tokens"),
    (PRETRAINED, ["--input_file=/nowhere"], "no such file"),
    (PRETRAINED, ["--input_file=/nowhere", "[MASK]"], "not both"),
    ("AlbertForSequenceClassification", ["[MASK]"], "has no trained cls/predictions"),
    ("", ["[MASK]"], "holds neither albert_config.json"),
    ("none", ["[MASK]"], "--model: no directory"),
    (PRETRAINED, ["--model=", "[MASK]"], "--model"),
]


def test_what_cannot_be_filled_is_refused(folder, capsys):
    for model, arguments, message in NO_MASKS:
        given = [f"--model={folder / model}", *arguments]
        assert message in refused(capsys, fill_mask, *given, takes_arguments=True)


# --- extract_features ---

LINES = ["w1 w2", "", "w9 " * 60, *(f"w{i % 35} w{i % 7} w3" * (1 + i % 9) for i in range(30))]


def extract(folder, tmp_path, name, *arguments, lines=LINES):
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    values = flags.parse(extract_features.define_flags, [
        "x", f"--model={folder}/AlbertModel", f"--input_file={tmp_path}/in.txt",
        f"--output_file={tmp_path}/{name}", "--batch_size=4", *arguments,
    ])
    extract_features.main(values)
    if name.endswith(".npz"):
        return dict(np.load(tmp_path / name))
    return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def outputs(folder):
    """The model's outputs for each line alone."""
    path = str(folder / "AlbertModel")
    model = modeling.AlbertModel.from_pretrained(path)
    tokenizer = AlbertTokenizer.from_pretrained(path)
    found = []
    for line in LINES:
        encoded = tokenizer([line], return_tensors="np")
        result = model(encoded, output_hidden_states=True)
        found.append({
            "ids": encoded["input_ids"][0], "pooled": np.array(result["pooled_output"][0]),
            "layers": [np.array(x[0]) for x in result["encoder_outputs"]],
        })
    return found


def test_vectors_are_the_models_in_the_order_of_the_lines(folder, tmp_path, outputs, monkeypatch):
    """However lines are batched."""
    of_outputs = {
        "pooled": lambda o: o["pooled"], "cls": lambda o: o["layers"][-1][0],
        "mean": lambda o: o["layers"][-1].mean(axis=0),
    }
    for pooling, of_output in of_outputs.items():
        expected = [of_output(o) for o in outputs]
        vectors = extract(folder, tmp_path, "x.npz", f"--pooling={pooling}")["vectors"]
        np.testing.assert_allclose(vectors, expected, atol=2e-5)
        monkeypatch.setattr(predictors, "CHUNK", 7)
    lines = extract(folder, tmp_path, "x.jsonl", "--pooling=mean", "--batch_size=3")
    assert [line["text"] for line in lines] == LINES
    np.testing.assert_allclose([line["vector"] for line in lines], expected, atol=2e-5)


NO_FEATURES = [
    (["--output_file=x.txt"], "ends neither in .jsonl nor in .npz"),
    (["--input_file={}/bad.txt"], "bad.txt:2: not UTF-8 text"),
    (["--input_file={}/empty.txt"], "empty.txt: empty input"),
    (["--model={}/none"], "--model: no directory"),
]


def test_what_cannot_be_extracted_is_refused(folder, capsys, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "in.txt").write_text("w1\n")
    for arguments, message in NO_FEATURES:
        assert message in refused(
            capsys, extract_features, f"--model={folder}/AlbertModel",
            f"--input_file={tmp_path}/in.txt", f"--output_file={tmp_path}/x.npz",
            *(a.replace("{}", str(tmp_path)) for a in arguments),
        )
        assert not (tmp_path / "x.npz").exists(), message
