"""What a config.json of Hugging Face's means here."""

import json

import pytest
from absl.flags import FlagValues
from hf_models import SIZES

from albert import (
    export_checkpoints, run_classifier, run_race, run_squad_v1, run_squad_v2, run_token_classifier,
)
from albert.cli import flags
from albert.cli.encoder import open_encoder
from albert.config import AlbertConfig
from albert.errors import ConfigError
from albert.formats import huggingface, pretrained

BASE = {"vocab_size": 30000, "embedding_size": 128, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12}


@pytest.mark.parametrize("change, expected", [
    ({}, "gelu_erf"), ({"hidden_act": "gelu_new"}, "gelu"), ({"hidden_act": "gelu_python"}, "gelu_erf"),
    # albert-base-v1 as published: "gelu", trained with tanh.
    (BASE, "gelu"),
    # The same fine-tuned over there, with erf.
    (BASE | {"architectures": ["AlbertForSequenceClassification"]}, "gelu_erf"),
])
def test_what_gelu_means_is_decided_and_told(change, expected, caplog):
    values = SIZES | {"hidden_act": "gelu"} | change
    assert huggingface.config_from_theirs(values, "config.json").hidden_act == expected
    is_doubtful = values["hidden_act"] == "gelu"
    assert is_doubtful == ("change it to gelu_python (erf) or gelu_new (tanh)" in caplog.text)


@pytest.mark.parametrize("command", [run_classifier, run_race, run_squad_v1, run_squad_v2, run_token_classifier,
                                     export_checkpoints])
def test_every_command_reads_their_configuration_as_theirs(command, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "albert", **SIZES, "hidden_act": "gelu"}))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(SIZES["vocab_size"] - 5))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    given = {"albert_config_file": config, "vocab_file": tmp_path / "vocab.txt", "output_dir": tmp_path}
    values = FlagValues()
    command.define_flags(values)
    values = flags.parse(command.define_flags, ["", *(
        f"--{name}={value}" for name, value in given.items() if name in values)])
    if command is export_checkpoints:
        found = pretrained.open_named(str(tmp_path), "model.ckpt-best", str(config)).config
    else:
        found = open_encoder(values, None).config
    assert found.hidden_act == "gelu_erf"


def test_their_configuration_is_not_taken_for_ours(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert", **SIZES}))
    with pytest.raises(ConfigError, match=r"config\.json is a configuration of Hugging Face: open"):
        AlbertConfig.from_json_file(str(tmp_path / "config.json"))


def test_what_their_configuration_leaves_out_has_their_defaults(caplog):
    config = huggingface.config_from_theirs({}, "config.json")
    found = config.embedding_size, config.hidden_size, config.num_attention_heads
    assert found == (128, 4096, 64) and config.hidden_act == "gelu"
    assert (config.num_hidden_layers, config.intermediate_size) == (12, 16384)
    assert "num_attention_heads" in caplog.text


@pytest.mark.parametrize("change, message", [
    ({"model_type": "roberta"}, "model_type is 'roberta'"), ({"hidden_act": "silu"}, "hidden_act 'silu'"),
    ({"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
])
def test_a_config_that_we_do_not_compute_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        huggingface.config_from_theirs(SIZES | change, "config.json")
