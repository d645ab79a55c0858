"""Hugging Face's layout: the same numbers in both libraries, the same bytes after a round trip.

The comparisons with transformers itself run where the extra `interop` is
installed (`pip install -e .[interop]`).
"""

import json
import pathlib
import shutil
import struct

import apart
import numpy as np
import pytest
import safetensors.numpy
import their_transformers
from helpers import assert_one_clear_line
from hf_models import HEADS, SIZES, batch, convert, load, random_model, save_with_metadata

from albert import modeling, tokenization
from albert.albert_tokenizer import AlbertTokenizer
from albert.formats import checkpoints, pretrained, tokenizer_files


@pytest.mark.parametrize("case", ["tiny", "tiny_groups", "tiny_nomap"])
def test_their_files_give_the_originals_numbers_and_come_back_byte_for_byte(case, golden_path, tmp_path):
    theirs, ours = golden_path(f"hf/{case}"), tmp_path / "ours"
    assert convert(f"--hf_directory={theirs}", f"--output_dir={ours}") == 0
    original = golden_path(f"tf1_ckpt_{case}")
    weights = checkpoints.open_weights(str(ours))
    released = checkpoints.open_weights(str(original / "model.ckpt-best"))
    slots = {n for n in released.shapes if n.endswith(("/adam_m", "/adam_v"))}
    assert set(weights.shapes) == set(released.shapes) - slots
    for name in set(weights.shapes) - {"global_step"}:
        np.testing.assert_array_equal(weights.read(name), released.read(name), err_msg=name)
    golden = np.load(original / "io.npz")
    inputs = {name: golden[f"in/{name}"] for name in ("input_ids", "input_mask", "segment_ids")}
    model = load("AlbertForPreTraining", ours)
    output = model(inputs, output_hidden_states=True)["sequence_output"]
    np.testing.assert_allclose(output, golden["out/sequence_output"], atol=1e-5)
    assert convert(f"--albert_directory={ours}", f"--output_dir={tmp_path / 'back'}") == 0
    again = (tmp_path / "back/model.safetensors").read_bytes()
    assert again == (theirs / "model.safetensors").read_bytes()


def test_a_real_model_gives_the_numbers_of_another_runtime(shared, tmp_path):
    folder, theirs = shared / "data/weights", tmp_path / "theirs"
    theirs.mkdir()
    shutil.copy(folder / "plbert_kokoro_config.json", theirs / "config.json")
    with np.load(folder / "plbert_kokoro_dequant_fp32.npz") as tensors:
        safetensors.numpy.save_file(dict(tensors), theirs / "model.safetensors")
    reference = np.load(folder / "plbert_kokoro_reference_io.npz")
    output = load("AlbertModel", theirs)({"input_ids": reference["input_ids"]})["sequence_output"]
    np.testing.assert_allclose(output, reference["last_hidden_float"], atol=2e-5)


def test_half_precision_halves_the_file_and_rounds_each_weight_once(golden_path, tmp_path, capsys):
    source, sizes = golden_path("tf1_ckpt_tiny"), {}
    for dtype, told in {"float32": "bit for bit", "float16": "in float16"}.items():
        folder = tmp_path / dtype
        assert convert(f"--albert_directory={source}", f"--output_dir={folder}", f"--dtype={dtype}") == 0
        sizes[dtype] = (folder / "model.safetensors").stat().st_size
        assert told in (folder / "README.md").read_text()
        assert json.loads((folder / "config.json").read_text())["dtype"] == dtype
    assert sizes["float16"] < 0.6 * sizes["float32"]
    whole, half = (pretrained.open_path(str(tmp_path / d)).weights() for d in sizes)
    assert set(whole.shapes) == set(half.shapes)
    for name in whole.shapes:
        np.testing.assert_array_equal(half.read(name), whole.read(name).astype(np.float16).astype(np.float32))
    flags = f"--hf_directory={tmp_path}/float32", f"--output_dir={tmp_path}/out"
    assert convert(*flags, "--dtype=float16") == 2
    assert "--dtype needs --albert_directory" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


# --- transformers itself ---


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


def assert_computes_as_theirs(kind, model, folder, transformers):
    """Compares the outputs and loss of our model with those of their class, from a directory."""
    inputs = batch(HEADS[kind].get("num_choices"))
    ours, loss, labels = outputs_and_loss(kind, model, inputs)
    theirs = transformers(their_transformers.outputs, kind, str(folder), inputs, labels)
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


@pytest.mark.parametrize("kind, changes", [
    *((kind, {"num_hidden_groups": 2, "inner_group_num": 2}) for kind in HEADS),
    *(("AlbertModel", changes) for changes in (
        {"parameter_sharing": "attention"}, {"parameter_sharing": "ffn", "num_hidden_groups": 2},
        {"parameter_sharing": "none"}, {"num_hidden_layers": 22, "num_hidden_groups": 22},
        {"embedding_size": 16}, {"hidden_act": "relu"},
    )),
], ids=str)
def test_transformers_computes_the_same_from_our_export(kind, changes, transformers, tmp_path):
    model, theirs = random_model(kind, **changes), tmp_path / "theirs"
    folder = save_with_metadata(model, tmp_path / "ours")
    assert convert(f"--albert_directory={folder}", f"--output_dir={theirs}") == 0
    assert_computes_as_theirs(kind, model, theirs, transformers)


@pytest.mark.parametrize("kind", HEADS)
def test_we_compute_the_same_from_their_export(kind, transformers, tmp_path):
    sizes = SIZES | {"hidden_act": "gelu", "initializer_range": 0.3}
    sizes["num_labels"] = HEADS[kind].get("num_labels", 2)
    theirs, ours, back = (tmp_path / name for name in ("theirs", "ours", "back"))
    transformers(their_transformers.save, kind, sizes, str(theirs))
    assert convert(f"--hf_directory={theirs}", f"--output_dir={ours}") == 0
    model = load(kind, ours, **HEADS[kind])
    assert model.config.hidden_act == "gelu_erf"
    assert_computes_as_theirs(kind, model, theirs, transformers)
    assert convert(f"--albert_directory={ours}", f"--output_dir={back}") == 0
    before, after = (safetensors.numpy.load_file(f / "model.safetensors") for f in (theirs, back))
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def test_groups_that_they_round_differently_are_read_as_they_mean_them(transformers, tmp_path):
    # Layer 15 of 22 in 22 groups: group 14 in the original, 15 there.
    sizes = {"num_hidden_layers": 22, "num_hidden_groups": 22, "initializer_range": 0.3}
    transformers(their_transformers.save, "AlbertModel", SIZES | sizes, str(tmp_path))
    assert_computes_as_theirs("AlbertModel", load("AlbertModel", tmp_path), tmp_path, transformers)


def test_auto_tokenizer_cuts_text_as_we_do(golden_path, transformers, tmp_path):
    ours = tokenization.FullTokenizer(None, True, str(golden_path("spm/30k-clean.model")))
    tokenizer_files.write(ours, str(tmp_path))
    cases = json.loads(golden_path("tokenization.json").read_text("utf-8"))["cases"]
    texts = [case["text"] for case in cases]
    assert len(texts) > 300
    encoded = transformers(their_transformers.encode, str(tmp_path), texts)
    differ = [text for text, ids in zip(texts, encoded, strict=True) if ids != ours.encode_text(text)]
    # Their tokenizer parses special tokens that are spelled out in a text.
    special = [text for text in differ if any(p in text for p in ("[MASK]", "[SEP]", "[CLS]"))]
    assert len(differ) - len(special) <= 1, differ
    calls = ("the first", "a second"), ("a [MASK] b",)
    pair, masked = transformers(their_transformers.tokenize, str(tmp_path), *calls)
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


@pytest.mark.parametrize("name", ["30k-clean.model", "albert_zh_vocab.txt"])
def test_added_tokens_mean_there_what_they_mean_here(name, golden_path, transformers, tmp_path):
    plain, ours, theirs = (str(tmp_path / folder) for folder in ("plain", "ours", "theirs"))
    tokenizer = AlbertTokenizer.from_pretrained(golden_path(f"spm/{name}"))
    tokenizer.save_pretrained(plain)
    tokens = ["[E1]", "[/E1]", "COVID19", "covid"]
    assert tokenizer.add_tokens(tokens) == 4
    tokenizer.save_pretrained(ours)
    transformers(their_transformers.add_tokens, plain, tokens, theirs)
    texts = ["the [E1] one", "[e1]Bill[/E1] says", "covid19s Covid, covid19", "a[E1][/E1] b", "[E1]"]
    expected = [tokenizer.tokenizer.encode_text(text) for text in texts]
    assert transformers(their_transformers.encode, ours, texts) == expected
    if not tokenizer.tokenizer.is_spm:
        return  # their library writes it in a form that isn't read
    again = AlbertTokenizer.from_pretrained(theirs)
    assert len(again) == len(tokenizer)
    assert [again.tokenizer.encode_text(text) for text in texts] == transformers(
        their_transformers.encode, theirs, texts
    )


# --- Their files ---


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    """Their directory; read-only."""
    folder = tmp_path_factory.mktemp("masked_lm") / "theirs"
    random_model("AlbertForMaskedLM", embedding_size=16).save_pretrained(str(folder))
    return folder


@pytest.fixture
def theirs(masked_lm, tmp_path):
    return pathlib.Path(shutil.copytree(masked_lm, tmp_path / "theirs"))


def change_header(change):
    """Returns a function that changes the header of a directory's safetensors file."""
    def spoil(folder: pathlib.Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        header["predictions.bias"].update(change)
        encoded = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + size :])

    return spoil


def change_tensors(change):
    def spoil(folder: pathlib.Path) -> None:
        path = folder / "model.safetensors"
        safetensors.numpy.save_file(change(safetensors.numpy.load_file(path)), path)

    return spoil


def in_8_bits(folder: pathlib.Path) -> None:
    change_tensors(lambda tensors: tensors | {"predictions.bias": np.zeros(60, "u1")})(folder)
    change_header({"dtype": "F8_E4M3"})(folder)


def change_config(change):
    def spoil(folder: pathlib.Path) -> None:
        values = json.loads((folder / "config.json").read_text())
        del values["albert"]
        (folder / "config.json").write_text(json.dumps(values | change))

    return spoil


UNREADABLE = "model.safetensors is not a readable safetensors file"
POSITIONS = "albert.embeddings.position_embeddings.weight"
MAPPING = "albert.encoder.embedding_hidden_mapping_in.weight"
BAD_FILES = {
    "a pickle": (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
                 "pytorch_model.bin: "),
    "a shape": (change_header({"shape": [10**9]}), UNREADABLE),
    "an offset": (change_header({"data_offsets": [0, 10**12]}), UNREADABLE),
    # More such tricks are in test_security.
    "a type": (change_header({"dtype": "F99"}), UNREADABLE),
    "another model": (change_tensors(lambda _: {"bert.x.weight": np.zeros(3)}),
                      "holds no ALBERT encoder"),
    "another size": (
        change_tensors(lambda tensors: tensors | {POSITIONS: tensors[POSITIONS][:-1]}),
        "bert/embeddings/position_embeddings: checkpoint [15, 16], model [16, 16]"),
    **{
        f"{what} in the weights": (
            change_tensors(lambda tensors, kind=kind: tensors | {POSITIONS: tensors[POSITIONS].astype(kind)}),
            f"{POSITIONS} holds {np.dtype(kind)}, not floating-point numbers")
        for what, kind in (("complex numbers", "c8"), ("truth values", "?"), ("integers", "i1"))
    },
    **{
        f"{number} in the weights": (
            change_tensors(lambda tensors, number=number: tensors | {POSITIONS: tensors[POSITIONS] * number}),
            f"{POSITIONS} holds NaN or infinity")
        for number in (np.float32("nan"), np.float32("inf"))
    },
    "numbers of 8 bits": (in_8_bits, "cannot read predictions.bias"),
    **{
        f"a false {key}": (change_config({key: value}), message) for key, value, message in (
            ("hidden_size", 10**9, "model [16, 1000000000]"),
            ("vocab_size", 10**12, "model [1000000000000, 16]"),
            ("max_position_embeddings", 10**9, "checkpoint [16, 16], model [1000000000, 16]"),
            ("num_hidden_layers", 10**6, "num_hidden_layers must be an integer from 1 to 1,000, got 1000000"),
            ("inner_group_num", 900, "inner_group_899/attention_1/self/query/kernel: not in the checkpoint"),
            ("intermediate_size", 10**9, "model [16, 1000000000]"),
        )
    },
    "an output matrix": (
        change_tensors(lambda x: x | {"predictions.decoder.weight": np.ones((60, 16), "f4")}),
        "predictions.decoder.weight is not a copy"),
    "a projection": (change_tensors(lambda x: x | {MAPPING: 2 * x[MAPPING]}), "must be the identity"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_damaged_or_of_another_model_is_refused(name, theirs, tmp_path, capsys):
    spoil, message = BAD_FILES[name]
    spoil(theirs)
    assert convert(f"--hf_directory={theirs}", f"--output_dir={tmp_path / 'out'}") == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_head_that_exists_only_here_comes_back_also_where_no_metadata_names_it(
    golden_path, tmp_path, capsys, caplog
):
    start, theirs, back = golden_path("heads/squad_v2"), tmp_path / "theirs", tmp_path / "back"
    flags = f"--albert_directory={start}", f"--output_dir={theirs}"
    assert convert(*flags) == convert(f"--hf_directory={theirs}", f"--output_dir={back}") == 0
    assert [line for line in caplog.messages if "transformers" in line] == [
        "Hugging Face has no AlbertForBeamQuestionAnswering: transformers opens its encoder alone"]
    names = safetensors.numpy.load_file(theirs / "model.safetensors")
    assert {name.partition("/")[0] for name in names if not name.startswith("albert.")} == {
        "answer_class", "end_logits", "start_logits"}
    before, after = (pretrained.open_path(str(path)).weights() for path in (start, back))
    assert before.shapes.keys() - {"global_step"} == after.shapes.keys() - {"global_step"}
    for name in after.shapes.keys() - {"global_step"}:
        np.testing.assert_array_equal(before.read(name), after.read(name), err_msg=name)
    capsys.readouterr()
    assert convert(*flags) == 2  # nothing is overwritten
    assert "exists" in assert_one_clear_line(capsys.readouterr().err)
