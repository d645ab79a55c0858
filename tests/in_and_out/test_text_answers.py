"""A fine-tuned model as a SavedModel: strings in, answers out, without this package."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from apart import needs
from helpers import SIZES, assert_one_clear_line, run_here
from jobs import SPECIALS, change_json

import albert
from albert import export_model, modeling

needs("tensorflow_text", extra="text")

WORDS = [f"w{i}" for i in range(30)]
CONFIG = SIZES | {"initializer_range": 0.4, "max_position_embeddings": 90}
TEXTS = ["w1 w2", "", "W3, w4! (w5) w6", "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11", "é \u00a0w7.w8 ..", "\x00"]
PAIRS = ["w9", "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11", "", "w5", " ", "w2 w3"]
# Loads a SavedModel where this package is not installed.
LOADED = """
import json, sys
sys.path = [p for p in sys.path if p not in ("", sys.argv[3])]
import tensorflow as tf, tensorflow_text
assert "albert" not in sys.modules
model, inputs = tf.saved_model.load(sys.argv[1]), json.loads(sys.argv[2])
found = {}
for name, texts in inputs.items():
    outputs = model.signatures[name](**{k: tf.constant(v, tf.string) for k, v in texts.items()})
    found[name] = {k: v.numpy().tolist() for k, v in outputs.items()}
print(json.dumps(found, default=bytes.decode))
"""


def saved(folder, kind, *arguments, length=12, **facts):
    """Saves a model with random weights and a word list."""
    model = getattr(albert, kind)(modeling.AlbertConfig(**CONFIG), *arguments)
    for name, value in facts.items():
        setattr(model, name, value)
    model.save_pretrained(str(folder))
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *WORDS, ",", ".", "!", "(", ")"]))
    return albert.open_session(str(folder), max_seq_length=length)


def exported(folder, tmp_path, length=12):
    path = tmp_path / "served_1.0"  # a directory, despite the dot
    assert 0 == run_here(export_model, f"--model_dir={folder}", f"--export_path={path}",
                         f"--max_seq_length={length}")
    return path


def ask(path, **inputs):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(path), json.dumps(inputs),
         str(pathlib.Path(albert.__file__).parents[1])],
        capture_output=True, text=True, cwd=path,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_classifier_answers_texts_and_pairs_as_the_session_does(tmp_path):
    session = saved(
        tmp_path / "model", "AlbertForSequenceClassification", 3, label_names=("no", "yes", "eh")
    )
    path = exported(tmp_path / "model", tmp_path)
    found = ask(
        path, serving_default={"text": TEXTS}, pairs={"text": TEXTS, "text_pair": PAIRS},
        label_names={},
    )
    assert found["label_names"] == {"labels": ["no", "yes", "eh"]}
    pairs = list(zip(TEXTS, PAIRS, strict=True))
    for name, inputs in (("serving_default", TEXTS), ("pairs", pairs)):
        expected = list(session.classify(inputs))
        assert found[name]["label"] == [one["label"] for one in expected]
        assert_near(found[name]["probabilities"],
                    [list(one["probabilities"].values()) for one in expected])
        assert_near(found[name]["probability"], [one["probability"] for one in expected])
    card = (path / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=path.parent
    )
    assert done.returncode == 0 and "probability" in done.stdout, done.stderr


@pytest.mark.parametrize("count, problem", [(1, "regression"), (3, "multi_label_classification")])
def test_a_regression_and_several_labels_give_their_numbers(count, problem, tmp_path):
    session = saved(
        tmp_path / "model", "AlbertForSequenceClassification", count, problem_type=problem
    )
    found = ask(exported(tmp_path / "model", tmp_path), serving_default={"text": TEXTS})
    found, expected = found["serving_default"], list(session.classify(TEXTS))
    if count == 1:
        assert_near(found["value"], [one["value"] for one in expected])
    else:
        assert_near(found["probabilities"],
                    [list(one["probabilities"].values()) for one in expected])
        assert np.array_equal(found["is_label"], np.array(found["probabilities"]) >= 0.5)


def test_a_token_classifier_labels_the_words_that_the_session_finds(tmp_path):
    session = saved(
        tmp_path / "model", "AlbertForTokenClassification", 3, label_names=("O", "B-X", "I-X")
    )
    texts = [text for text in TEXTS if text not in (TEXTS[3], "\x00")]
    found = ask(exported(tmp_path / "model", tmp_path), serving_default={"text": [*texts, TEXTS[3]]})
    answers = found["serving_default"]
    for number, expected in enumerate(session.tag(texts)):
        count = len(expected["words"])
        assert answers["words"][number] == expected["words"] + [""] * (
            len(answers["words"][number]) - count
        )
        assert answers["labels"][number][:count] == expected["labels"]
        assert_near(answers["probabilities"][number][:count], expected["probabilities"])
    # Eleven words, and positions for ten.
    assert answers["words"][-1] == TEXTS[3].split()
    assert "" not in answers["labels"][-1][:10] and answers["labels"][-1][10] == ""


def test_what_has_no_such_form_is_refused(tmp_path, capsys):
    saved(tmp_path / "model", "AlbertForPreTraining")
    saved(tmp_path / "untold", "AlbertForMultipleChoice")
    saved(tmp_path / "reader", "AlbertForQuestionAnswering")
    change_json(tmp_path / "untold/config.json", architectures=None)  # which names its class
    for model, more, message in (
        ("model", [], "is pretrained, not fine-tuned: fine-tune it, or try albert.fill_mask"),
        ("reader", [], "a SavedModel answers with labels alone: serve a session over HTTP"),
        ("untold", [], "does not say what it was fine-tuned for: save it again"),
        ("model", ["--quantize"], "--quantize: only for .tflite and .onnx"),
    ):
        flags = f"--model_dir={tmp_path / model}", f"--export_path={tmp_path / 'served'}"
        capsys.readouterr()
        assert run_here(export_model, *flags, *more) == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert message in line and "--task" not in line
        assert not (tmp_path / "served").exists()
