"""AlbertConfig: what is read, what is kept, what is refused."""

import json
import logging
import os

import pytest
from helpers import assert_one_clear_line, run_here

from albert import model_info, run_pretraining
from albert.config import RELEASED, AlbertConfig
from albert.errors import ConfigError, DataError

SIZES = {
    "vocab_size": 100,
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def test_a_released_file_with_the_authors_leftover_keys_is_read_and_written_back_unchanged(
    tmp_path, caplog
):
    released = SIZES | {
        "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02, "max_position_embeddings": 512, "type_vocab_size": 2,
        "num_hidden_groups": 1, "net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0,
        "inner_group_num": 1, "down_scale_factor": 1,
    }
    path = tmp_path / "albert_config.json"
    path.write_text(json.dumps(released))
    with caplog.at_level(logging.WARNING, logger="albert"):
        config = AlbertConfig.from_json_file(str(path))
    assert json.loads(config.to_json_string()) == released
    assert not caplog.records


def test_an_unknown_key_is_kept_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="albert"):
        config = AlbertConfig.from_dict(SIZES | {"my_note": "x"})
    assert config.to_dict()["my_note"] == "x"
    assert "my_note" in caplog.text


def test_every_problem_is_in_one_message():
    bad = SIZES | {"hiden_act": "gelu", "num_attention_heads": 3, "vocab_size": "100"}
    del bad["intermediate_size"]
    with pytest.raises(ConfigError) as error:
        AlbertConfig.from_dict(bad, origin="my.json")
    for part in ("my.json", "did you mean 'hidden_act'", "'intermediate_size'", "vocab_size must"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 3}, "hidden_size 16 is not a multiple of num_attention_heads 3"),
        ({"num_hidden_groups": 5}, "num_hidden_groups 5 exceeds num_hidden_layers 4"),
        ({"hidden_size": 16.0}, "hidden_size must be an integer, got 16.0"),
        ({"hidden_size": True}, "hidden_size must be an integer, got True"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be in"),
        ({"hidden_dropout_prob": "0"}, "hidden_dropout_prob must be a number"),
        ({"initializer_range": 0}, "initializer_range must be above 0"),
        ({"hidden_act": "swish"}, "hidden_act must be one of"),
        ({"vocab_size": 0}, "vocab_size must be at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_their_values(change, message):
    with pytest.raises(ConfigError, match=message):
        AlbertConfig.from_dict(SIZES | change)


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", "[" * 100_000])
def test_a_file_that_is_not_a_json_object_is_refused_by_name(text, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises((ConfigError, DataError), match="c.json"):
        AlbertConfig.from_json_file(str(path))


def test_the_group_of_a_layer_is_computed_as_in_the_original():
    # spec 2.3: floating rounding makes (22 layers, 22 groups, layer 15) group 14, not 15.
    config = AlbertConfig(**SIZES | {"num_hidden_layers": 22, "num_hidden_groups": 22})
    assert config.group_of_layer(15) == 14
    config = AlbertConfig(**SIZES | {"num_hidden_layers": 12, "num_hidden_groups": 3})
    assert [config.group_of_layer(i) for i in range(12)] == [0] * 4 + [1] * 4 + [2] * 4


def test_the_constructors_defaults_are_those_of_xxlarge():
    config = AlbertConfig(30000)
    assert (config.hidden_size, config.num_attention_heads, config.intermediate_size) == (
        4096, 64, 16384,
    )


def test_a_file_without_head_count_takes_the_originals_default_and_warns(caplog):
    values = {k: v for k, v in SIZES.items() if k != "num_attention_heads"}
    with caplog.at_level(logging.WARNING, logger="albert"):
        config = AlbertConfig.from_dict(values | {"hidden_size": 64}, origin="my.json")
    assert config.num_attention_heads == 64
    assert "my.json" in caplog.text and "num_attention_heads" in caplog.text


def test_sharing_is_a_key_that_released_files_lack():
    assert "parameter_sharing" not in AlbertConfig(**SIZES).to_dict()
    config = AlbertConfig.from_dict(SIZES | {"parameter_sharing": "ffn"})
    assert AlbertConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match="all, attention, ffn, none, got 'some'"):
        AlbertConfig.from_dict(SIZES | {"parameter_sharing": "some"})


# --- Released architectures by their names ---


def test_every_released_architecture_is_known_by_its_name():
    assert len(RELEASED) == 8
    for name in RELEASED:
        config = AlbertConfig.released(name)
        assert config == AlbertConfig.from_flag(name)
        assert config.vocab_size == 30000 and config.num_hidden_groups == 1
    assert AlbertConfig.released("base_v2").hidden_size == 768
    assert AlbertConfig.released("xxlarge_v1").num_attention_heads == 64


def test_a_file_of_a_released_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base_v2").write_text(json.dumps(SIZES | {"num_attention_heads": 2}))
    assert AlbertConfig.from_flag("base_v2").hidden_size == 16
    assert AlbertConfig.released("base_v2").hidden_size == 768


def test_an_unknown_name_is_refused_with_the_known_ones():
    said = "no such file: base_v3; nor is it an architecture with a name: base_v1, base_v2, large_v1"
    with pytest.raises(DataError, match=said):
        AlbertConfig.from_flag("base_v3")
    with pytest.raises(DataError, match="no released architecture 'base_v3': there are base_v1"):
        AlbertConfig.released("base_v3")
    with pytest.raises(DataError, match="no such file: work/base.json$"):
        AlbertConfig.from_flag(os.path.join("work", "base.json"))


def test_an_unknown_architecture_is_one_clear_line(tmp_path, capsys):
    others = ["--input_file=x", f"--output_dir={tmp_path}/out", "--do_train"]
    for command, more in ((run_pretraining, others), (model_info, [])):
        assert run_here(command, "--albert_config_file=base_v3", *more) == 2
        assert "base_v3; nor is it an arch" in assert_one_clear_line(capsys.readouterr().err)
