"""The architectures in configs/ are the released ones, by their keys and their sizes."""

import json
import math

import pytest
from helpers import REPO

from albert.config import AlbertConfig
from albert.model.costs import parameter_count

CONFIGS = REPO / "configs"
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


FAMILY = ("quickstart", "tiny", "mini", "small", "albert_base_v2")


@pytest.mark.parametrize("name", FAMILY[:2])
def test_parameter_count_agrees_with_the_model_that_is_built(name):
    from albert import modeling

    config = load(name)
    shapes = modeling.parameter_shapes(modeling.AlbertForPreTraining(config))
    assert sum(math.prod(shape) for shape in shapes.values()) == parameter_count(config, heads=True)


def test_the_small_architectures_are_a_family_up_to_base():
    configs = list(map(load, FAMILY))
    for name in ("hidden_size", "vocab_size", "num_attention_heads", "max_position_embeddings"):
        values = [getattr(config, name) for config in configs]
        assert values == sorted(values), name
    counts = [parameter_count(config, heads=True) for config in configs]
    assert all(1.5 < two / one < 6 for one, two in zip(counts, counts[1:], strict=False))
    for config in configs[1:]:
        assert config.hidden_size == 64 * config.num_attention_heads
        assert config.intermediate_size == 4 * config.hidden_size
        assert config.embedding_size == 128


@pytest.mark.parametrize("name", [p.stem for p in sorted(CONFIGS.glob("*.json"))])
def test_every_config_is_accepted_without_a_warning(name, caplog):
    load(name)
    assert not caplog.records


# --- Recipes ---

# arXiv 1909.11942, table 14: rate, batch, ALBERT dropout, classifier dropout, steps, warm-up.
TABLE_14 = {
    "glue/cola": (1e-5, 16, 0, 0.1, 5336, 320), "glue/sts-b": (2e-5, 16, 0, 0.1, 3598, 214),
    "glue/sst-2": (1e-5, 32, 0, 0.1, 20935, 1256), "glue/mnli": (3e-5, 128, 0, 0.1, 10000, 1000),
    "glue/qnli": (1e-5, 32, 0, 0.1, 33112, 1986), "glue/qqp": (5e-5, 128, 0.1, 0.1, 14000, 1000),
    "glue/rte": (3e-5, 32, 0.1, 0.1, 800, 200), "glue/mrpc": (2e-5, 32, 0, 0.1, 800, 200),
    "glue/wnli": (2e-5, 16, 0.1, 0.1, 2000, 250), "race": (2e-5, 32, 0.1, 0.1, 12000, 1000),
}


@pytest.mark.parametrize("name", TABLE_14)
def test_fine_tuning_recipes_hold_the_papers_hyper_parameters(name):
    from albert import run_classifier, run_race
    from albert.cli import flags

    command = run_race if name == "race" else run_classifier
    path = CONFIGS / f"{name}.flags"
    values = flags.parse(command.define_flags, ["command", f"--flagfile={path}"])
    assert TABLE_14[name] == (
        values.learning_rate, values.train_batch_size, values.albert_dropout,
        values.classifier_dropout, values.train_step, values.warmup_step,
    )
    assert values.max_seq_length == 512
    assert values.do_train and values.do_eval and values.do_predict
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(f"--flagfile=configs/{name}.flags" in line for line in header)
    if name != "race":
        assert values.task_name.lower() == name.rpartition("/")[2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("squad_v1", (5e-5, 48, 0, 3649, 365, 384)), ("squad_v2", (3e-5, 48, 0, 8144, 814, 512))],
)
def test_squads_recipes_hold_the_papers_hyper_parameters(name, expected):
    from albert import run_squad_v1, run_squad_v2
    from albert.cli import flags

    command = {"squad_v1": run_squad_v1, "squad_v2": run_squad_v2}[name]
    path = CONFIGS / f"{name}.flags"
    values = flags.parse(command.define_flags, ["command", f"--flagfile={path}"])
    assert expected == (
        values.learning_rate, values.train_batch_size, values.albert_dropout,
        values.train_step, values.warmup_step, values.max_seq_length,
    )
    assert values.do_train and values.do_predict
    assert f"--flagfile=configs/{name}.flags" in path.read_text()
    if name == "squad_v2":
        assert values.dropout_prob == 0.1


def test_every_task_of_the_benchmark_has_a_recipe():
    recipes = {f"glue/{path.stem}" for path in (CONFIGS / "glue").glob("*.flags")}
    assert recipes == set(TABLE_14) - {"race"}
