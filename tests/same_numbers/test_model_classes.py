"""The registry describes every model class correctly."""

import inspect

import numpy as np
import pytest

import albert
from albert import modeling
from albert.formats import model_classes
from albert.formats.model_classes import MODEL_CLASSES
from albert.modeling import named_weights

CONFIG = albert.AlbertConfig(
    20, 8, 8, 2, num_attention_heads=2, intermediate_size=8, max_position_embeddings=8
)


def make(name):
    kind = getattr(albert, name)
    is_labelled = "num_labels" in inspect.signature(kind).parameters
    return kind(CONFIG, **({"num_labels": 3} if is_labelled else {}))


def test_every_public_class_is_in_the_registry():
    public = {name for name in modeling.__all__ if name.startswith("AlbertFor")}
    assert public | {"AlbertModel"} == set(MODEL_CLASSES)
    # For weights with several heads, the fine-tuned head counts.
    weights = [*named_weights(make("AlbertForPreTraining")), "output_weights"]
    assert model_classes.class_of_weights(weights).name == "AlbertForSequenceClassification"


@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_the_registry_is_true_of_the_class(name):
    kind, model = MODEL_CLASSES[name], make(name)
    rng = np.random.default_rng(0)
    shape = (1, 4, 6) if kind.task == model_classes.CHOICE else (1, 6)
    inputs = {"input_ids": rng.integers(0, 20, shape, np.int32)}
    before = model(inputs)
    assert set(kind.outputs) <= set(before)
    assert kind.has_labels == ("num_labels" in inspect.signature(type(model)).parameters)
    weights = named_weights(model)
    assert kind.weight is None or kind.weight in weights
    assert model_classes.class_of_weights(weights).weight == kind.weight
    weights["bert/pooler/dense/kernel"].assign(rng.normal(0, 9, [8, 8]))
    after = model(inputs)
    changes = any(not np.array_equal(before[output], after[output]) for output in kind.outputs)
    assert kind.reads_pooler == changes
    assert model_classes.reads_pooler(type("Theirs", (type(model),), {})) == kind.reads_pooler
