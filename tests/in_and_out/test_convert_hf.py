"""Hugging Face's layout: the same numbers there and here, the same bytes after a round trip.

The comparisons with transformers itself run where the extra `interop` is
installed (`pip install -e .[interop]`).
"""

import json
import pathlib
import shutil
import struct

import apart
import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import their_transformers
from helpers import assert_one_clear_line, run_here

from albert import convert_hf, modeling, tokenization
from albert.albert_tokenizer import AlbertTokenizer
from albert.config import AlbertConfig
from albert.errors import ConfigError
from albert.formats import (
    checkpoint_files,
    checkpoints,
    huggingface,
    pretrained,
    tokenizer_files,
)
from albert.formats.model_classes import MODEL_CLASSES

SIZES = {
    "vocab_size": 60, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 4,
    "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}
HEADS = {
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


def random_model(kind: str, seed: int = 0, **changes) -> keras.Model:
    """A model of ours whose every weight matters: no zero bias, no gamma of one."""
    model = getattr(modeling, kind)(AlbertConfig(**SIZES | changes), **HEADS[kind])
    rng = np.random.default_rng(seed)
    for name, weight in modeling.named_weights(model).items():
        value = rng.normal(0, 0.3, weight.shape) + name.endswith("gamma")
        weight.assign(value.astype("float32"))
    return model


def save(model: keras.Model, folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    (folder / "albert_config.json").write_text(model.config.to_json_string())
    tensors = {n: w.numpy() for n, w in modeling.named_weights(model).items()}
    checkpoint_files.write(str(folder / "model.ckpt-best"), tensors)
    return folder


def load(kind: str, folder: pathlib.Path, **sizes) -> keras.Model:
    found = pretrained.open_path(str(folder))
    model = getattr(modeling, kind)(found.config, **sizes)
    weights = found.weights()
    for name, weight in modeling.named_weights(model).items():
        weight.assign(weights.read(name))
    return model


def batch(choices: int | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shape = (3, 9) if choices is None else (3, choices, 9)
    return {
        "input_ids": rng.integers(1, SIZES["vocab_size"], shape),
        "input_mask": np.arange(9) < rng.integers(5, 10, [*shape[:-1], 1]),
        "segment_ids": (np.arange(9) > 4) * np.ones(shape, int),
    }


@pytest.mark.parametrize("case", ["tiny", "tiny_groups", "tiny_nomap"])
def test_their_files_give_the_originals_numbers_and_come_back_byte_for_byte(
    case, golden_path, tmp_path
):
    theirs = golden_path(f"hf/{case}")
    assert convert(f"--hf_directory={theirs}", f"--output_dir={tmp_path / 'ours'}") == 0
    original = golden_path(f"tf1_ckpt_{case}")
    ours = checkpoints.open_weights(str(tmp_path / "ours"))
    released = checkpoints.open_weights(str(original / "model.ckpt-best"))
    slots = {n for n in released.shapes if n.endswith(("/adam_m", "/adam_v"))}
    assert set(ours.shapes) == set(released.shapes) - slots
    for name in set(ours.shapes) - {"global_step"}:
        np.testing.assert_array_equal(ours.read(name), released.read(name), err_msg=name)
    model = load("AlbertForPreTraining", tmp_path / "ours")
    golden = np.load(original / "io.npz")
    inputs = {k[3:]: golden[k] for k in golden.files if k.startswith("in/")}
    output = model(inputs, output_hidden_states=True)["sequence_output"]
    np.testing.assert_allclose(output, golden["out/sequence_output"], atol=1e-5)
    ours = tmp_path / "ours"
    assert convert(f"--albert_directory={ours}", f"--output_dir={tmp_path / 'back'}") == 0
    again = (tmp_path / "back/model.safetensors").read_bytes()
    assert again == (theirs / "model.safetensors").read_bytes()


def test_a_real_model_gives_the_numbers_of_another_runtime(shared, tmp_path):
    folder = shared / "data/weights"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shutil.copy(folder / "plbert_kokoro_config.json", theirs / "config.json")
    with np.load(folder / "plbert_kokoro_dequant_fp32.npz") as tensors:
        safetensors.numpy.save_file(dict(tensors), theirs / "model.safetensors")
    assert convert(f"--hf_directory={theirs}", f"--output_dir={tmp_path / 'plbert'}") == 0
    model = load("AlbertModel", tmp_path / "plbert")
    reference = np.load(folder / "plbert_kokoro_reference_io.npz")
    output = model({"input_ids": reference["input_ids"]})["sequence_output"]
    np.testing.assert_allclose(output, reference["last_hidden_float"], atol=2e-5)


def test_half_precision_halves_the_file_and_rounds_each_weight_once(golden_path, tmp_path):
    source = golden_path("tf1_ckpt_tiny")
    sizes = {}
    for dtype in ("float32", "float16"):
        folder = tmp_path / dtype
        assert convert(
            f"--albert_directory={source}", f"--output_dir={folder}", f"--dtype={dtype}"
        ) == 0
        sizes[dtype] = (folder / "model.safetensors").stat().st_size
        assert ("bit for bit" if dtype == "float32" else "float16") in (
            folder / "README.md"
        ).read_text()
    assert sizes["float16"] < 0.6 * sizes["float32"]
    whole, half = (pretrained.open_path(str(tmp_path / d)).weights() for d in sizes)
    assert set(whole.shapes) == set(half.shapes)
    for name in whole.shapes:
        np.testing.assert_array_equal(
            half.read(name), whole.read(name).astype(np.float16).astype(np.float32)
        )


def test_half_precision_is_refused_for_our_checkpoints(golden_path, tmp_path, capsys):
    flags = f"--hf_directory={golden_path('hf/tiny')}", f"--output_dir={tmp_path / 'out'}"
    assert convert(*flags, "--dtype=float16") == 2
    assert "--dtype goes with --albert_directory" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", HEADS)
def test_every_head_comes_back_unchanged(kind, tmp_path):
    folder = save(random_model(kind), tmp_path / "ours")
    here = f"--albert_directory={folder}"
    assert convert(here, f"--architecture={kind}", f"--output_dir={tmp_path / 'theirs'}") == 0
    back = tmp_path / "back"
    assert convert(f"--hf_directory={tmp_path / 'theirs'}", f"--output_dir={back}") == 0
    before, after = (checkpoints.open_weights(str(f)) for f in (folder, back))
    # There, some heads have no pooler: it comes back new.
    gone = {n for n in before.shapes if "pooler" in n and not MODEL_CLASSES[kind].reads_pooler}
    assert set(after.shapes) == set(before.shapes) | {"global_step"}
    for name in set(before.shapes) - gone:
        np.testing.assert_array_equal(after.read(name), before.read(name), err_msg=name)
    assert AlbertConfig.from_json_file(str(back / "albert_config.json")) == AlbertConfig(**SIZES)


@pytest.fixture(scope="module")
def transformers():
    apart.needs("transformers", "torch", extra="interop")
    with apart.process() as call:
        yield call


OURS_TO_THEIRS = {
    "sequence_output": "last_hidden_state", "pooled_output": "pooler_output", "logits": "logits",
    "prediction_logits": "logits", "sop_logits": "sop_logits",
    "start_logits": "start_logits", "end_logits": "end_logits",
}


def their_outputs(transformers, kind: str, folder, inputs, **labels):
    return transformers(their_transformers.outputs, kind, str(folder), inputs, labels)


def outputs_and_loss(kind: str, model, inputs):
    """Returns our outputs, our loss as theirs defines it (a plain mean), and its labels."""
    positions = {}
    if kind == "AlbertForPreTraining":
        rows = np.arange(inputs["input_ids"].shape[1])
        positions["masked_lm_positions"] = np.tile(rows, [len(inputs["input_ids"]), 1])
    made = model(inputs | positions)
    outputs = {k: np.asarray(v) for k, v in made.items() if k in OURS_TO_THEIRS}
    rng = np.random.default_rng(2)

    def draw(logits):
        return rng.integers(0, logits.shape[-1], logits.shape[:-1])

    def mean(logits, labels):
        return float(np.mean(modeling.cross_entropy(logits, labels)))

    if kind == "AlbertModel":
        return outputs, None, {}
    if kind == "AlbertForQuestionAnswering":
        start, end = draw(outputs["start_logits"]), draw(outputs["end_logits"])
        loss = (mean(outputs["start_logits"], start) + mean(outputs["end_logits"], end)) / 2
        return outputs, loss, {"start_positions": start, "end_positions": end}
    main = outputs["logits" if "logits" in outputs else "prediction_logits"]
    labels = {"labels": draw(main)}
    loss = mean(main, labels["labels"])
    if kind == "AlbertForPreTraining":
        labels["sentence_order_label"] = draw(outputs["sop_logits"])
        loss += mean(outputs["sop_logits"], labels["sentence_order_label"])
    return outputs, loss, labels


def assert_agree(ours, loss, theirs, kind):
    # "prediction_logits" is the name in pretraining only.
    renamed = OURS_TO_THEIRS | (
        {"prediction_logits": "prediction_logits"} if kind == "AlbertForPreTraining" else {}
    )
    compared = [name for name in ours if renamed[name] in theirs]
    assert compared
    for name in compared:
        np.testing.assert_allclose(ours[name], theirs[renamed[name]], atol=1e-5, err_msg=name)
    if loss is not None:
        np.testing.assert_allclose(loss, theirs["loss"], rtol=1e-5)


@pytest.mark.parametrize("kind", HEADS)
def test_transformers_computes_the_same_from_our_export(kind, transformers, tmp_path):
    model = random_model(kind, num_hidden_groups=2, inner_group_num=2)
    folder = save(model, tmp_path / "ours")
    theirs = tmp_path / "theirs"
    arguments = f"--albert_directory={folder}", f"--architecture={kind}", f"--output_dir={theirs}"
    assert convert(*arguments) == 0
    inputs = batch(HEADS[kind].get("num_choices"))
    ours, loss, labels = outputs_and_loss(kind, model, inputs)
    assert_agree(ours, loss, their_outputs(transformers, kind, theirs, inputs, **labels), kind)


@pytest.mark.parametrize("kind", HEADS)
def test_we_compute_the_same_from_their_export(kind, transformers, tmp_path):
    sizes = SIZES | {"hidden_act": "gelu", "initializer_range": 0.3}
    sizes["num_labels"] = HEADS[kind].get("num_labels", 2)
    transformers(their_transformers.save, kind, sizes, str(tmp_path / "theirs"))
    ours = tmp_path / "ours"
    assert convert(f"--hf_directory={tmp_path / 'theirs'}", f"--output_dir={ours}") == 0
    model = load(kind, ours, **HEADS[kind])
    assert model.config.hidden_act == "gelu_erf"
    inputs = batch(HEADS[kind].get("num_choices"))
    outputs, loss, labels = outputs_and_loss(kind, model, inputs)
    theirs = their_outputs(transformers, kind, tmp_path / "theirs", inputs, **labels)
    assert_agree(outputs, loss, theirs, kind)
    back = tmp_path / "back"
    arguments = f"--albert_directory={ours}", f"--architecture={kind}", f"--output_dir={back}"
    assert convert(*arguments) == 0
    before, after = (
        safetensors.numpy.load_file(f / "model.safetensors") for f in (tmp_path / "theirs", back)
    )
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


@pytest.mark.parametrize(
    "changes",
    [
        {"parameter_sharing": "attention"}, {"parameter_sharing": "ffn", "num_hidden_groups": 2},
        {"parameter_sharing": "none"}, {"num_hidden_layers": 22, "num_hidden_groups": 22},
        {"embedding_size": 16}, {"hidden_act": "relu"},
    ],
    ids=lambda c: "-".join(map(str, c.values())),
)
def test_every_sharing_and_activation_is_the_same_there(changes, transformers, tmp_path):
    model = random_model("AlbertModel", **changes)
    folder = save(model, tmp_path / "ours")
    assert convert(f"--albert_directory={folder}", f"--output_dir={tmp_path / 'theirs'}") == 0
    inputs = batch()
    theirs = their_outputs(transformers, "AlbertModel", tmp_path / "theirs", inputs)
    expected = model(inputs)["sequence_output"]
    np.testing.assert_allclose(theirs["last_hidden_state"], expected, atol=1e-5)
    again = tmp_path / "again"
    assert convert(f"--hf_directory={tmp_path / 'theirs'}", f"--output_dir={again}") == 0
    back = load("AlbertModel", again)(inputs)["sequence_output"]
    np.testing.assert_allclose(back, expected, atol=1e-6)


def test_groups_that_they_round_differently_are_read_as_they_mean_them(transformers, tmp_path):
    # Layer 15 of 22 in 22 groups: group 14 in the original, 15 there.
    sizes = {"num_hidden_layers": 22, "num_hidden_groups": 22, "initializer_range": 0.3}
    transformers(their_transformers.save, "AlbertModel", SIZES | sizes, str(tmp_path / "theirs"))
    model = load("AlbertModel", tmp_path / "theirs")
    inputs = batch()
    theirs = their_outputs(transformers, "AlbertModel", tmp_path / "theirs", inputs)
    np.testing.assert_allclose(
        model(inputs)["sequence_output"], theirs["last_hidden_state"], atol=1e-5
    )


def with_vocabulary(folder: pathlib.Path, **changes) -> pathlib.Path:
    size = {"vocab_size": 30000} | changes
    save(random_model("AlbertForMaskedLM", **size), folder)
    return folder


def test_auto_tokenizer_cuts_text_as_we_do(golden_path, transformers, tmp_path):
    folder = with_vocabulary(tmp_path / "ours")
    model = shutil.copy(golden_path("spm/30k-clean.model"), folder)
    assert convert(f"--albert_directory={folder}", f"--output_dir={tmp_path / 'theirs'}") == 0
    theirs = str(tmp_path / "theirs")
    ours = tokenization.FullTokenizer(None, True, model)
    cases = json.loads(golden_path("tokenization.json").read_text("utf-8"))["cases"]
    texts = [case["text"] for case in cases]
    assert len(texts) > 300
    encoded = transformers(their_transformers.encode, theirs, texts)
    differ = [
        text for text, ids in zip(texts, encoded, strict=True) if ids != ours.encode_text(text)
    ]
    # They take special pieces written in a text for the pieces themselves.
    special = [text for text in differ if any(p in text for p in ("[MASK]", "[SEP]", "[CLS]"))]
    assert len(differ) - len(special) <= 1, differ
    calls = ("the first", "a second"), ("a [MASK] b",)
    pair, masked = transformers(their_transformers.tokenize, theirs, *calls)
    first, second = ours.encode_text("the first"), ours.encode_text("a second")
    assert pair["input_ids"] == [2, *first, 3, *second, 3]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert masked["input_ids"].count(4) == 1


@pytest.mark.parametrize("keep_accents", [True, False])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_settings_of_a_tokenizer_mean_there_what_they_mean_here(
    keep_accents, do_lower_case, golden_path, transformers, tmp_path
):
    ours = tokenization.FullTokenizer(
        None, do_lower_case, str(golden_path("spm/30k-clean.model")), keep_accents=keep_accents
    )
    tokenizer_files.write(ours, str(tmp_path), 64)
    texts = ["Café  naïve", "हिन्दी भाषा", "The \u00c5ngstr\u00f6m", "e\u0301 x"]
    theirs = transformers(their_transformers.encode, str(tmp_path), texts)
    again = AlbertTokenizer.from_pretrained(str(tmp_path))
    assert again.tokenizer.settings == ours.settings and again.model_max_length == 64
    for text, expected in zip(texts, theirs, strict=True):
        assert ours.encode_text(text) == again.tokenizer.encode_text(text) == expected, text


def test_auto_tokenizer_reads_a_wordpiece_vocabulary(golden_path, transformers, tmp_path):
    vocab = golden_path("spm/albert_zh_vocab.txt")
    ours = tokenization.FullTokenizer(str(vocab), True)
    folder = with_vocabulary(tmp_path / "ours", vocab_size=ours.vocab_size)
    shutil.copy(vocab, folder)
    assert convert(f"--albert_directory={folder}", f"--output_dir={tmp_path / 'theirs'}") == 0
    texts = ["今天天气很好", "TensorFlow 2.21 真棒!", "Café naïve (1999)"]
    encoded = transformers(their_transformers.encode, str(tmp_path / "theirs"), texts)
    assert encoded == [ours.encode_text(text) for text in texts]
    config = json.loads((tmp_path / "theirs/config.json").read_text())
    assert config["bos_token_id"] == ours.cls_id == 101


# --- What "gelu" means ---


@pytest.mark.parametrize(
    ("change", "flag", "expected"),
    [
        ({}, "auto", "gelu_erf"),
        ({}, "tanh", "gelu"),
        ({"hidden_act": "gelu_new"}, "auto", "gelu"),
        # albert-base-v1 as published: "gelu", trained with tanh.
        ({"vocab_size": 30000, "embedding_size": 128, "hidden_size": 768, "num_hidden_layers": 12,
          "num_attention_heads": 12}, "auto", "gelu"),
        # The same fine-tuned over there, with erf.
        ({"vocab_size": 30000, "embedding_size": 128, "hidden_size": 768, "num_hidden_layers": 12,
          "num_attention_heads": 12, "architectures": ["AlbertForSequenceClassification"]},
         "auto", "gelu_erf"),
    ],
)
def test_what_gelu_means_is_decided_and_told(change, flag, expected, caplog):
    values = SIZES | {"hidden_act": "gelu"} | change
    config = huggingface.config_from_theirs(values, "config.json", flag)
    assert config.hidden_act == expected
    if flag == "auto" and values["hidden_act"] == "gelu":
        assert "tanh" in caplog.text and "--gelu" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "model_type is 'bert'"),
        ({"hidden_act": "silu"}, "hidden_act 'silu'"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ],
)
def test_a_config_that_we_do_not_compute_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        huggingface.config_from_theirs(SIZES | change, "config.json")


def test_a_config_without_head_count_warns(caplog):
    values = {k: v for k, v in SIZES.items() if k != "num_attention_heads"} | {"hidden_size": 64}
    huggingface.config_from_theirs(values, "config.json")
    assert "num_attention_heads" in caplog.text


# --- Bad input ---


@pytest.fixture
def theirs(tmp_path):
    folder = save(random_model("AlbertForMaskedLM"), tmp_path / "ours")
    assert convert(f"--albert_directory={folder}", f"--output_dir={tmp_path / 'theirs'}") == 0
    return tmp_path / "theirs"


def refused(capsys, tmp_path, *arguments) -> str:
    capsys.readouterr()
    assert convert(*arguments, f"--output_dir={tmp_path / 'out'}") == 2
    assert not (tmp_path / "out").exists()
    return assert_one_clear_line(capsys.readouterr().err)


def lie(path: pathlib.Path, change) -> None:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    change(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + size :])


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["predictions.bias"].update(shape=[10**9]),
        lambda h: h["predictions.bias"].update(data_offsets=[0, 10**12]),
        lambda h: h["predictions.bias"].update(dtype="F99"),
        lambda h: h["predictions.bias"].update(shape=[2**62, 2**62]),
    ],
    ids=["shape", "offset", "dtype", "overflow"],
)
def test_a_lying_safetensors_header_is_refused(theirs, tmp_path, capsys, change):
    lie(theirs / "model.safetensors", change)
    line = refused(capsys, tmp_path, f"--hf_directory={theirs}")
    assert "model.safetensors is not a readable safetensors file" in line


def test_a_header_of_absurd_length_is_refused_without_reading_it(theirs, tmp_path, capsys):
    (theirs / "model.safetensors").write_bytes(struct.pack("<Q", 10**15) + b"{}")
    assert "header too large" in refused(capsys, tmp_path, f"--hf_directory={theirs}")


def test_shards_are_read_together_and_a_missing_or_escaping_one_is_named(theirs, tmp_path, capsys):
    tensors = safetensors.numpy.load_file(theirs / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        safetensors.numpy.save_file({n: tensors[n] for n in part}, theirs / file)
    (theirs / "model.safetensors").unlink()
    index = theirs / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: f for f, p in parts.items() for n in p}}))
    assert convert(f"--hf_directory={theirs}", f"--output_dir={tmp_path / 'whole'}") == 0
    assert checkpoints.open_weights(str(tmp_path / "whole")).shapes
    (theirs / "b.safetensors").unlink()
    line = refused(capsys, tmp_path, f"--hf_directory={theirs}")
    assert "shard b.safetensors is missing" in line
    index.write_text(json.dumps({"weight_map": {names[0]: "../ours/x.safetensors"}}))
    assert "not a plain" in refused(capsys, tmp_path, f"--hf_directory={theirs}")


def test_tensors_of_another_model_are_refused(theirs, tmp_path, capsys):
    safetensors.numpy.save_file({"bert.x.weight": np.zeros(3)}, theirs / "model.safetensors")
    assert "holds no ALBERT encoder" in refused(capsys, tmp_path, f"--hf_directory={theirs}")


def test_a_weight_that_is_missing_or_of_another_shape_is_listed(theirs, tmp_path, capsys):
    path = theirs / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    name = "albert.embeddings.position_embeddings.weight"
    tensors[name] = tensors[name][:-1]
    safetensors.numpy.save_file(tensors, path)
    line = refused(capsys, tmp_path, f"--hf_directory={theirs}")
    assert "bert/embeddings/position_embeddings: checkpoint [15, 8], model [16, 8]" in line


def test_an_output_matrix_of_its_own_is_refused(theirs, tmp_path, capsys):
    path = theirs / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["predictions.decoder.weight"] = np.ones((60, 8), np.float32)
    safetensors.numpy.save_file(tensors, path)
    line = refused(capsys, tmp_path, f"--hf_directory={theirs}")
    assert "predictions.decoder.weight is not a copy" in line


def test_a_projection_where_none_can_be_is_refused(tmp_path, capsys):
    folder = save(random_model("AlbertModel", embedding_size=16), tmp_path / "ours")
    assert convert(f"--albert_directory={folder}", f"--output_dir={tmp_path / 'theirs'}") == 0
    path = tmp_path / "theirs/model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["encoder.embedding_hidden_mapping_in.weight"] *= 2
    safetensors.numpy.save_file(tensors, path)
    line = refused(capsys, tmp_path, f"--hf_directory={tmp_path / 'theirs'}")
    assert "not the identity" in line


def test_of_a_head_that_exists_only_here_the_encoder_is_converted(tmp_path):
    config = AlbertConfig(**SIZES)
    folder = save(modeling.AlbertForBeamQuestionAnswering(config), tmp_path / "ours")
    assert convert(f"--albert_directory={folder}", f"--output_dir={tmp_path / 'theirs'}") == 0
    values = json.loads((tmp_path / "theirs/config.json").read_text())
    assert values["architectures"] == ["AlbertModel"]
    names = safetensors.numpy.load_file(tmp_path / "theirs/model.safetensors")
    assert not any("/" in name for name in names)


def test_half_precision_files_are_read_as_float32(theirs, tmp_path):
    path = theirs / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    half = {n: tf.cast(v, tf.bfloat16).numpy() for n, v in tensors.items()}
    header, body = {}, b""
    for name, value in half.items():
        end = len(body) + value.nbytes
        header[name] = {"dtype": "BF16", "shape": value.shape, "data_offsets": [len(body), end]}
        body += value.tobytes()
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + body)
    assert convert(f"--hf_directory={theirs}", f"--output_dir={tmp_path / 'out'}") == 0
    read = checkpoints.open_weights(str(tmp_path / "out")).read("cls/predictions/output_bias")
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, half["predictions.bias"].astype("float32"))


def test_an_existing_directory_is_not_overwritten(theirs, tmp_path, capsys):
    capsys.readouterr()
    assert convert(f"--hf_directory={theirs}", f"--output_dir={tmp_path / 'ours'}") == 2
    assert "exists" in assert_one_clear_line(capsys.readouterr().err)
