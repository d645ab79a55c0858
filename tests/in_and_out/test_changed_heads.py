"""A loaded model takes other labels."""

import keras
import numpy as np
import pytest
from helpers import SIZES

import albert
from albert import modeling
from albert.config import AlbertConfig
from albert.errors import CheckpointError

IDS = np.array([[2, 7, 4, 9, 3]])


@pytest.fixture(scope="module")
def two_labels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    modeling.AlbertForSequenceClassification(AlbertConfig(**SIZES), 2).save_pretrained(folder)
    return folder


def test_labels_are_named_by_either_of_hugging_faces_arguments(two_labels):
    for how in ({"label_names": ["no", "yes"]}, {"id2label": {1: "yes", 0: "no"}},
                {"id2label": {"0": "no", "1": "yes"}, "num_labels": 2}):
        assert albert.from_pretrained(two_labels, **how).label_names == ("no", "yes")
    for bad in ({"id2label": {0: "a", 2: "b"}}, {"label_names": ["a", "b"], "num_labels": 3}):
        with pytest.raises((ValueError, CheckpointError)):
            albert.from_pretrained(two_labels, **bad)


def test_another_number_of_labels_is_a_new_head_on_request(two_labels):
    with pytest.raises(CheckpointError, match="ignore_mismatched_sizes=True"):
        albert.from_pretrained(two_labels, num_labels=3)
    model = albert.from_pretrained(two_labels, label_names=["a", "b", "c"], ignore_mismatched_sizes=True)
    assert model(IDS).logits.shape == (1, 3) and model.label_names == ("a", "b", "c")
    former = albert.from_pretrained(two_labels)
    for ours, theirs in zip(model.bert.weights, former.bert.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (ours, theirs)))
