"""Small models that answer texts, and the comparison of their answers."""

import dataclasses
import pathlib
from typing import Any

import keras
import numpy as np
from helpers import SIZES
from jobs import SPECIALS

import albert
from albert import modeling
from albert.formats import pretrained
from albert.inference import session

WORDS = [f"w{i}" for i in range(35)]
TEXTS = [" ".join(WORDS[i % 35] for i in range(n, n + 1 + n % 7)) for n in range(12)]
CONFIG = modeling.AlbertConfig(
    **SIZES | {"max_position_embeddings": 64, "initializer_range": 0.4}
)
MULTI_LABEL = {"problem_type": "multi_label_classification"}
TAGS = {"label_names": ("O", "B-X", "I-X")}


def saved(folder: pathlib.Path, kind: str, *arguments, layers: int = 1, **facts):
    """Saves a model with random weights and a word list; returns it and its session."""
    keras.utils.set_random_seed(1)
    model = getattr(albert, kind)(dataclasses.replace(CONFIG, num_hidden_layers=layers), *arguments)
    for name, value in facts.items():
        setattr(model, name, value)
    rng = np.random.default_rng(1)
    for weight in model.trainable_variables:  # biases too
        weight.assign(weight + rng.normal(0, 0.1, weight.shape))
    model.save_pretrained(str(folder))
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *WORDS]))
    return model, albert.open_session(str(folder), batch_size=4)


def by_keras(monkeypatch: Any) -> None:
    """Lets the Keras models compute what sessions ask."""
    def load(self, class_name):
        model = pretrained.load(getattr(modeling, class_name), self.source)
        return lambda batch: {name: np.asarray(value) for name, value in model(batch).items()}

    monkeypatch.setattr(session.AnsweringSession, "load", load)


def passage(n: int) -> str:
    return " ".join(WORDS[(3 * i + n) % 35] for i in range(n))


# Texts of ten lengths, unsorted, so that the next one may be longer or shorter.
LENGTHS = (2, 10, 20, 30, 40, 1, 37, 5, 24, 50)
CLASSIFIER, READER = "AlbertForSequenceClassification", "AlbertForQuestionAnswering"
# For each method of a session: the model's class, its arguments and metadata, and an input of n words.
FINE_TUNED = {
    "classify": (CLASSIFIER, (2,), {"label_names": ("no", "yes")}, passage),
    "classify, pairs": (CLASSIFIER, (2,), {}, lambda n: (passage(n), passage(3))),
    "classify, several labels": (CLASSIFIER, (3,), MULTI_LABEL, passage),
    "classify, a number": (CLASSIFIER, (1,), {"problem_type": "regression"}, passage),
    "tag": ("AlbertForTokenClassification", (3,), TAGS, passage),
    "answer": (READER, (), {}, lambda n: ("w1 w2", passage(n))),
    "answer, SQuAD 2.0": (
        "AlbertForBeamQuestionAnswering", (), {}, lambda n: ("w1 w2", passage(n)),
    ),
    "choose": (
        "AlbertForMultipleChoice", (4,), {}, lambda n: (passage(n), "w3", *WORDS[n % 9:][:4]),
    ),
}
METHODS = FINE_TUNED | {
    "fill_mask": ("AlbertForPreTraining", (), {}, lambda n: passage(n) + " [MASK]" * (1 + n % 3)),
    "embed": ("AlbertForPreTraining", (), {}, passage),
}


def method_of(session: Any, name: str) -> Any:
    return getattr(session, name.partition(",")[0])


def assert_same_answer(found: Any, expected: Any) -> None:
    """Compares two answers: texts exactly, numbers to 1e-5."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same_answer(one, other)
    elif isinstance(expected, str):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
