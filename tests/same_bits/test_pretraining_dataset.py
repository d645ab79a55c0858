"""Pretraining batches for `Model.fit`: those of `run_pretraining`."""

import sys

import keras
import numpy as np
import pytest
from making_records import make, write_tiny

import albert
from albert.errors import DataError

CONFIG = dict(
    vocab_size=205, hidden_size=16, embedding_size=8, num_attention_heads=2, num_hidden_layers=1,
    intermediate_size=32, max_position_embeddings=32,
)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("records"))
    make(folder, output_file=folder / "masked.tfrecord")
    make(folder, output_file=folder / "pairs.tfrecord", static_masks=False, max_predictions_per_seq=None)
    return folder


def compiled_model(run_eagerly: bool) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = albert.AlbertForPreTraining(albert.AlbertConfig(**CONFIG))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    losses = {"prediction_logits": loss, "sop_logits": loss}
    model.compile(keras.optimizers.Adam(3e-3), losses, jit_compile=False, run_eagerly=run_eagerly)
    return model


@pytest.mark.parametrize("name", ["pairs", "masked"])
def test_a_model_trains_with_the_batches_packed_or_not_to_the_same_losses(name, records):
    losses = []
    for pack in (False, True):
        data = albert.pretraining_dataset(str(records / f"{name}.tfrecord"), 16, pack=pack)
        held_out = albert.pretraining_dataset(str(records / f"{name}.tfrecord"), 16, pack=pack, shuffle=False)
        model = compiled_model(run_eagerly=name == "masked")  # a graph takes seconds to trace
        before = model.evaluate(held_out, verbose=0, return_dict=True)
        losses.append(before["prediction_logits_loss"])
        assert model.fit(data, steps_per_epoch=10, verbose=0).history["loss"][0] < before["loss"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_masks_and_order_follow_from_the_seed_and_every_label_has_a_weight(records, monkeypatch):
    path = str(records / "pairs.tfrecord")
    first = [next(iter(albert.pretraining_dataset(path, 16, seed=seed))) for seed in (1, 1, 2)]
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    first.append(next(albert.pretraining_dataset(path, 16, seed=1)))
    ids = [np.asarray(inputs["input_ids"]) for inputs, _, _ in first]
    assert (ids[0] == ids[1]).all() and (ids[0] == ids[3]).all() and (ids[0] != ids[2]).any()
    inputs, labels, weights = first[3]
    lengths = inputs["input_mask"].sum(axis=1)
    assert (weights["prediction_logits"].sum(axis=1) == np.maximum(1, np.rint(0.15 * lengths))).all()
    assert weights["sop_logits"].all() and set(labels["sop_logits"]) == {0, 1}


def test_files_that_are_no_records_are_an_error(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"no records")
    with pytest.raises(DataError, match="no records of create_pretraining_data with their manifests"):
        albert.pretraining_dataset(str(tmp_path / "a.tfrecord"), 16)
