"""A model becomes wider, and computes the same until it is trained further."""

import numpy as np
import pytest
from helpers import SIZES, run_here
from keras import ops

import albert
from albert import modeling, widen
from albert.config import AlbertConfig
from albert.formats import pretrained, width_transfer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of random weights, far from its initial ones."""
    folder, rng = tmp_path_factory.mktemp("width"), np.random.default_rng(0)
    model = modeling.AlbertForPreTraining(AlbertConfig.from_dict(SIZES | {"num_hidden_groups": 2}))
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape, scale=0.3))
    pretrained.save(model, str(folder / "model"))
    return folder


def outputs(path, ids):
    model = albert.AlbertForPreTraining.from_pretrained(str(path))
    found = model({"input_ids": ids, "input_mask": np.ones_like(ids),
                   "masked_lm_positions": np.tile(np.arange(5), (len(ids), 1))})
    return {name: ops.convert_to_numpy(found[name]) for name in ("prediction_logits", "sop_logits")}


@pytest.mark.parametrize("factor", [2, 3])
def test_a_wider_model_computes_what_the_given_one_did(folder, tmp_path, factor):
    out = tmp_path / "wide"
    assert 0 == run_here(widen, f"--model={folder / 'model'}", f"--factor={factor}",
                         f"--output_dir={out}")
    before, after = (pretrained.open_path(str(path)).config for path in (folder / "model", out))
    assert after.hidden_size == factor * before.hidden_size
    assert after.hidden_size // after.num_attention_heads == (
        before.hidden_size // before.num_attention_heads)
    assert after.embedding_size == before.embedding_size
    ids = np.random.default_rng(1).integers(5, before.vocab_size, (3, 12))
    narrow, wide = outputs(folder / "model", ids), outputs(out, ids)
    for name in narrow:
        assert np.ptp(narrow[name]) > 0.1
        np.testing.assert_allclose(wide[name], narrow[name], atol=2e-4, err_msg=name)


def test_what_reads_the_copies_of_a_unit_reads_each_otherwise():
    """So each copy gets a gradient of its own, and learns something else."""
    old = {"a/kernel": np.random.default_rng(0).normal(size=(6, 4)).astype("float32")}
    kernel = width_transfer.widen(old, {"a/kernel": (18, 8)}, seed=1)["a/kernel"]
    parts = kernel.reshape(3, 6, 2, 4)
    for copy in range(2):
        np.testing.assert_allclose(parts[:, :, copy].sum(axis=0), old["a/kernel"], atol=1e-5)
        assert np.abs(parts[0, :, copy] - parts[1, :, copy]).min() > 1e-4
    assert np.abs(parts[:, :, 0] - parts[:, :, 1]).max() > 0.1
    # A wider kernel has weights as large as its initializer would give it.
    assert kernel.std() == pytest.approx(old["a/kernel"].std() / np.sqrt(3), rel=0.3)


def test_the_same_seed_gives_the_same_weights():
    old = {"a/kernel": np.ones((2, 2), "float32"), "a/bias": np.arange(2.0)}
    old["a/kernel"][0, 0] = 3
    shapes = {"a/kernel": (4, 4), "a/bias": (4,)}
    first, again, other = (width_transfer.widen(old, shapes, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first["a/kernel"], again["a/kernel"])
    assert (first["a/kernel"] != other["a/kernel"]).any()
    np.testing.assert_array_equal(first["a/bias"], [0, 1, 0, 1])


@pytest.mark.parametrize("more,said", [
    (["--model={f}/nothing"], "no such directory"),
    (["--output_dir={f}"], "exists; remove it"),
    (["--factor=1"], "--factor"),
])
def test_what_cannot_be_widened_is_refused(folder, tmp_path, more, said, capsys):
    arguments = [f"--model={folder / 'model'}", f"--output_dir={tmp_path / 'out'}"]
    assert 2 == run_here(widen, *arguments, *(flag.format(f=folder) for flag in more))
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
