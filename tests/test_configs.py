"""The architectures in configs/ are the released ones, by their keys and their sizes."""

import json
import math
import pathlib

import pytest

from albert.config import AlbertConfig
from albert.model_size import parameter_count, parameter_counts

CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "configs"
RELEASED_KEYS = {
    "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "embedding_size",
    "hidden_size", "initializer_range", "intermediate_size", "max_position_embeddings",
    "num_attention_heads", "num_hidden_layers", "num_hidden_groups", "net_structure_type",
    "gap_size", "num_memory_blocks", "inner_group_num", "down_scale_factor", "type_vocab_size",
    "vocab_size",
}
# Backbone with pooler at V = 30000.
BACKBONE = {
    "base": 11_683_584, "large": 17_683_968, "xlarge": 58_724_864, "xxlarge": 222_595_584,
}


def load(name: str) -> AlbertConfig:
    return AlbertConfig.from_json_file(str(CONFIGS / f"{name}.json"))


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("size", BACKBONE)
def test_released_architectures_have_the_released_parameter_counts(size, version):
    assert parameter_count(load(f"albert_{size}_{version}")) == BACKBONE[size]


def test_heads_add_what_the_pretraining_checkpoint_holds():
    config = load("albert_base_v2")
    assert parameter_count(config, heads=True) == 11_813_810
    assert sum(parameter_counts(config).values()) == 11_813_810


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("size", BACKBONE)
def test_released_architectures_have_exactly_the_released_keys(size, version):
    text = (CONFIGS / f"albert_{size}_{version}.json").read_text()
    assert set(json.loads(text)) == RELEASED_KEYS


@pytest.mark.parametrize("size", BACKBONE)
def test_only_dropout_differs_between_versions(size):
    v1, v2 = load(f"albert_{size}_v1"), load(f"albert_{size}_v2")
    expected = 0.0 if size == "xxlarge" else 0.1
    assert (v1.hidden_dropout_prob, v1.attention_probs_dropout_prob) == (expected, expected)
    assert v1.without_dropout() == v2


def test_heads_of_the_released_architectures():
    heads = {size: load(f"albert_{size}_v2").num_attention_heads for size in BACKBONE}
    assert heads == {"base": 12, "large": 16, "xlarge": 16, "xxlarge": 64}


@pytest.mark.parametrize("name", ["tiny", "quickstart"])
def test_parameter_count_agrees_with_the_model_that_is_built(name):
    from albert import modeling

    config = load(name)
    shapes = modeling.parameter_shapes(modeling.AlbertForPreTraining(config))
    assert sum(math.prod(shape) for shape in shapes.values()) == parameter_count(config, heads=True)


@pytest.mark.parametrize("name", [p.stem for p in sorted(CONFIGS.glob("*.json"))])
def test_every_config_is_accepted_without_a_warning(name, caplog):
    load(name)
    assert not caplog.records
