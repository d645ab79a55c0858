"""AlbertConfig: reading, saving and refusals; the files in configs/."""

import json
import os

import jobs
import pytest
from helpers import REPO, assert_one_clear_line, run_here

from albert import run_classifier, run_pretraining, run_race, run_squad_v1, run_squad_v2
from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import ConfigError, DataError
from albert.formats import huggingface

CONFIGS = REPO / "configs"
model_info = jobs.script("model_info", "scripts")
SIZES = {
    "vocab_size": 100, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 4,
    "num_attention_heads": 2, "intermediate_size": 32,
}
RELEASED_KEYS = SIZES | {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02, "max_position_embeddings": 512, "type_vocab_size": 2,
    "num_hidden_groups": 1, "net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0,
    "inner_group_num": 1, "down_scale_factor": 1,
}


def load(name: str) -> AlbertConfig:
    return AlbertConfig.from_json_file(str(CONFIGS / f"{name}.json"))


def test_what_is_read_is_written_back_and_an_unknown_key_warned_of(tmp_path, caplog):
    path = tmp_path / "albert_config.json"
    path.write_text(json.dumps(RELEASED_KEYS))
    config = AlbertConfig.from_json_file(str(path))
    assert json.loads(config.to_json_string()) == RELEASED_KEYS  # including the authors' leftovers
    for path in CONFIGS.glob("*.json"):
        load(path.stem)
    assert not caplog.records
    config = AlbertConfig.from_dict(SIZES | {"my_note": "x", "parameter_sharing": "ffn"})
    assert AlbertConfig.from_dict(config.to_dict()) == config and config.parameter_sharing == "ffn"
    assert config.to_dict()["my_note"] == "x" and "my_note" in caplog.text
    # Released files lack the key for sharing, and others lack one for the head count.
    assert "parameter_sharing" not in AlbertConfig(**SIZES).to_dict()
    values = {k: v for k, v in SIZES.items() if k != "num_attention_heads"} | {"hidden_size": 64}
    assert AlbertConfig.from_dict(values, origin="my.json").num_attention_heads == 64
    assert "my.json" in caplog.text and "num_attention_heads" in caplog.text
    xxlarge = AlbertConfig(30000)
    sizes = xxlarge.hidden_size, xxlarge.num_attention_heads, xxlarge.intermediate_size
    assert sizes == (4096, 64, 16384)


REFUSED = [
    ({"num_attention_heads": 3}, "hidden_size 16 is not a multiple of num_attention_heads 3"),
    ({"num_hidden_groups": 5}, "num_hidden_groups 5 exceeds num_hidden_layers 4"),
    ({"hidden_size": 16.0}, "hidden_size must be an integer from 1, got 16.0"),
    ({"hidden_size": True}, "hidden_size must be an integer from 1, got True"),
    ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be a number in"),
    ({"hidden_dropout_prob": "0"}, "hidden_dropout_prob must be a number"),
    ({"initializer_range": 0}, "initializer_range must be a number above 0"),
    ({"hidden_act": "swish"}, "hidden_act must be one of"),
    ({"vocab_size": 0}, "vocab_size must be an integer from 1, got 0"),
    ({"parameter_sharing": "some"}, "all, attention, ffn, none, got 'some'"),
]


def test_what_does_not_fit_is_refused_with_its_values(tmp_path):
    for change, message in REFUSED:
        with pytest.raises(ConfigError, match=message):
            AlbertConfig.from_dict(SIZES | change)
    wrong = SIZES | {"hidden_size": "16", "vocab_size": "100"}
    with pytest.raises(ConfigError, match="my.json: bad .* vocab_size must .*; hidden_size must be an "):
        AlbertConfig.from_dict(wrong, origin="my.json")
    misspelt = {f"{key}s" if key == "hidden_size" else key: value for key, value in SIZES.items()}
    with pytest.raises(ConfigError, match="my.json: missing keys: hidden_size; unknown keys: hidden_sizes"):
        AlbertConfig.from_dict(misspelt, origin="my.json")
    for text in ("", "[1]", "{", "null", "[" * 100_000):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises((ConfigError, DataError), match="c.json"):
            AlbertConfig.from_json_file(str(tmp_path / "c.json"))


def test_the_group_of_a_layer_is_computed_as_in_the_original():
    # spec 2.3: floating-point rounding puts layer 15 of 22 in group 14 of 22, not 15.
    config = AlbertConfig(**SIZES | {"num_hidden_layers": 22, "num_hidden_groups": 22})
    assert config.group_of_layer(15) == 14
    config = AlbertConfig(**SIZES | {"num_hidden_layers": 12, "num_hidden_groups": 3})
    assert [config.group_of_layer(i) for i in range(12)] == [0] * 4 + [1] * 4 + [2] * 4


# --- Architectures ---

# Backbone with pooler at V = 30000; attention heads; dropout of version 1.
BACKBONE = {
    "base": (11_683_584, 12, 0.1), "large": (17_683_968, 16, 0.1),
    "xlarge": (58_724_864, 16, 0.1), "xxlarge": (222_595_584, 64, 0.0),
}


@pytest.mark.parametrize("size", BACKBONE)
def test_released_architectures_have_the_released_sizes_and_keys(size):
    parameters, heads, dropout = BACKBONE[size]
    v1, v2 = (load(f"albert_{size}_{version}") for version in ("v1", "v2"))
    assert model_info.parameter_count(v1) == model_info.parameter_count(v2) == parameters
    assert v2.num_attention_heads == heads and v2.num_hidden_groups == 1
    assert (v1.hidden_dropout_prob, v1.attention_probs_dropout_prob) == (dropout, dropout)
    assert v1.with_dropout(0.0) == v2
    for version, config in (("v1", v1), ("v2", v2)):
        text = (CONFIGS / f"albert_{size}_{version}.json").read_text()
        assert set(json.loads(text)) == set(RELEASED_KEYS)
        name = f"{size}_{version}"
        assert config == AlbertConfig.released(name) == huggingface.read_config(name)
    # The contents of the released pretraining checkpoint.
    assert model_info.parameter_count(load("albert_base_v2"), heads=True) == 11_813_810


def test_a_file_of_a_released_name_comes_first_and_unknown_names_are_refused(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base_v2").write_text(json.dumps(SIZES))
    (tmp_path / "large_v2").mkdir()  # a run's, which hides nothing
    assert huggingface.read_config("large_v2").hidden_size == 1024
    assert huggingface.read_config("base_v2").hidden_size == 16
    assert AlbertConfig.released("base_v2").hidden_size == 768
    said = "no such file: base_v3. Architectures with a name: base_v1, base_v2, large_v1"
    with pytest.raises(DataError, match=said):
        huggingface.read_config("base_v3")
    with pytest.raises(DataError, match=said):
        AlbertConfig.released("base_v3")
    with pytest.raises(DataError, match="no such file: work/base.json$"):
        huggingface.read_config(os.path.join("work", "base.json"))
    others = ["--input_file=x", "--output_dir=out", "--do_train"]
    assert run_here(run_pretraining, "--albert_config_file=base_v3", *others) == 2
    assert "base_v3. Architectures" in assert_one_clear_line(capsys.readouterr().err)


# --- Recipes ---

# arXiv 1909.11942, table 14: rate, batch, ALBERT dropout, classifier dropout, steps, warm-up.
TABLE_14 = {
    "glue/cola": (1e-5, 16, 0, 0.1, 5336, 320), "glue/sts-b": (2e-5, 16, 0, 0.1, 3598, 214),
    "glue/sst-2": (1e-5, 32, 0, 0.1, 20935, 1256), "glue/mnli": (3e-5, 128, 0, 0.1, 10000, 1000),
    "glue/qnli": (1e-5, 32, 0, 0.1, 33112, 1986), "glue/qqp": (5e-5, 128, 0.1, 0.1, 14000, 1000),
    "glue/rte": (3e-5, 32, 0.1, 0.1, 800, 200), "glue/mrpc": (2e-5, 32, 0, 0.1, 800, 200),
    "glue/wnli": (2e-5, 16, 0.1, 0.1, 2000, 250), "race": (2e-5, 32, 0.1, 0.1, 12000, 1000),
    "squad_v1": (5e-5, 48, 0, None, 3649, 365), "squad_v2": (3e-5, 48, 0, 0.1, 8144, 814),
}
COMMANDS = {"race": run_race, "squad_v1": run_squad_v1, "squad_v2": run_squad_v2}


def test_recipes_hold_the_papers_hyper_parameters():
    recipes = {path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.glob("glue/*.flags")}
    assert {str(recipe) for recipe in recipes} == set(TABLE_14) - set(COMMANDS)
    for name, expected in TABLE_14.items():
        command, path = COMMANDS.get(name, run_classifier), CONFIGS / f"{name}.flags"
        values = flags.parse(command.define_flags, ["command", f"--flagfile={path}"])
        dropout = {"squad_v1": None, "squad_v2": "dropout_prob"}.get(name, "classifier_dropout")
        assert expected == (
            values.learning_rate, values.train_batch_size, values.albert_dropout,
            dropout and values[dropout].value, values.train_step, values.warmup_step,
        ), name
        assert values.max_seq_length == (384 if name == "squad_v1" else 512)
        assert values.do_train and values.do_predict
        assert name.startswith("squad") or values.do_eval
        assert command is not run_classifier or values.task_name.lower() == name[5:]
        header = [line for line in path.read_text().splitlines() if line.startswith("#")]
        assert any(f"--flagfile=configs/{name}.flags" in line for line in header)
