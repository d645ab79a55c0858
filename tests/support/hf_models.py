"""Small models of every class with random weights, and ways to save and load them."""

import os
import pathlib

import keras
import numpy as np
from helpers import run_here

import albert
from albert import convert_hf, modeling
from albert.config import AlbertConfig
from albert.formats import checkpoints, pretrained

SIZES = {
    "vocab_size": 60, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 4,
    "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}
HEADS = {  # of the classes that Hugging Face has too
    "AlbertModel": {},
    "AlbertForPreTraining": {},
    "AlbertForMaskedLM": {},
    "AlbertForSequenceClassification": {"num_labels": 3},
    "AlbertForTokenClassification": {"num_labels": 5},
    "AlbertForMultipleChoice": {"num_choices": 3},
    "AlbertForQuestionAnswering": {},
}


def convert(*arguments) -> int:
    return run_here(convert_hf, *arguments)


def random_model(kind: str, seed: int = 0, options=None, **changes) -> keras.Model:
    """One of our models in which every weight matters: no zero bias, no gamma of one."""
    options = HEADS[kind] if options is None else options
    model = getattr(modeling, kind)(AlbertConfig(**SIZES | changes), **options)
    rng = np.random.default_rng(seed)
    for name, weight in modeling.named_weights(model).items():
        value = rng.normal(0, 0.3, weight.shape) + name.endswith("gamma")
        weight.assign(value.astype("float32"))
    return model


def save(model: keras.Model, folder: pathlib.Path) -> pathlib.Path:
    """Writes a released archive's configuration and checkpoint."""
    folder.mkdir()
    (folder / "albert_config.json").write_text(model.config.to_json_string())
    tensors = {n: w.numpy() for n, w in modeling.named_weights(model).items()}
    checkpoints.write(str(folder / "model.ckpt-best"), tensors)
    return folder


def save_with_metadata(model: keras.Model, folder: pathlib.Path) -> pathlib.Path:
    """Writes what `convert_hf` writes: the file beside the checkpoint names the class."""
    folder.mkdir()
    pretrained.save(model, str(folder), is_archive=True)
    return folder


def load(kind: str, folder: str | os.PathLike, **options) -> keras.Model:
    return getattr(albert, kind).from_pretrained(str(folder), **options)


def batch(choices: int | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shape = (3, 9) if choices is None else (3, choices, 9)
    return {
        "input_ids": rng.integers(1, SIZES["vocab_size"], shape),
        "input_mask": np.arange(9) < rng.integers(5, 10, [*shape[:-1], 1]),
        "segment_ids": (np.arange(9) > 4) * np.ones(shape, int),
    }


def assert_same_weights(found, expected, but=()) -> None:
    """Compares two models, or {name: array}, weight by weight, except names that contain `but`."""
    found, expected = (
        modeling.named_weights(x) if isinstance(x, keras.Model) else x for x in (found, expected)
    )
    assert found.keys() == expected.keys()
    for name in expected:
        if not any(part in name for part in but):
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
