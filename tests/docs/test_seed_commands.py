"""Every command in the original's README runs as printed.

Paths replace its dots, and additional flags at the end reduce sizes that would need a data centre.
"""

import re

import jobs
import pytest
from helpers import run_here, write_config, write_pretraining_records, write_weights

import albert
from albert import (
    fill_mask, run_classifier, run_pretraining, run_race, run_squad_v1, run_squad_v2,
    train_sentencepiece,
)
from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError

MODULES = {m.__name__.split(".")[1]: m for m in (
    run_classifier, run_pretraining, run_race, run_squad_v1, run_squad_v2,
)}
SQUAD = "--max_seq_length=48 --doc_stride=16 --max_query_length=12 --train_batch_size=4"
REDUCED = {
    "run_pretraining": "--train_batch_size=4 --eval_batch_size=4 --max_seq_length=12 "
    "--max_predictions_per_seq=3 --num_train_steps=2 --num_warmup_steps=1 --max_eval_steps=1",
    "run_classifier": "--max_seq_length=32 --train_step=2 --warmup_step=1 "
    "--save_checkpoints_steps=2 --train_batch_size=4",
    "run_race": "--max_seq_length=16 --max_qa_length=6 --train_batch_size=2 --train_step=2 "
    "--warmup_step=1",
    "run_squad_v1": SQUAD, "run_squad_v2": SQUAD,
}


@pytest.fixture(scope="module")
def printed(golden_path) -> dict[str, list[str]]:
    """{command: its flags in the README, with the dots filled in}."""
    text = golden_path("original_readme.md").read_text(encoding="utf-8")
    found = re.findall(r"python -m albert\.(\w+) \\\n((?: +--.*\n)+)", text)
    # The pretraining example quotes the optimizer for the shell.
    return {name: re.sub(r" \\$", "", block, flags=re.M).replace("'", "").split()
            for name, block in found}


def write_files(folder, golden_path) -> dict[str, str]:
    """Writes the files behind the README's dots; returns {flag: value}."""
    config = write_config(
        folder, vocab_size=30000, max_position_embeddings=64, num_hidden_layers=1
    )
    model = write_weights(
        folder / "model.ckpt-best", AlbertConfig.from_json_file(config).to_dict())
    (folder / "MNLI").mkdir()
    labels = ("entailment", "neutral", "contradiction")
    for name in ("train", "dev_matched", "test_matched"):
        rows = [["h"] * 15, *([str(i), *["x"] * 7, f"the cat {i}", "a dog", *["x"] * 4,
                               labels[i % 3]] for i in range(8))]
        (folder / f"MNLI/{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return {
        "albert_config_file": config, "init_checkpoint": model, "data_dir": str(folder),
        "spm_model_file": str(golden_path("spm/30k-clean.model")),
        "input_file": write_pretraining_records(folder / "x.tfrecord", vocab_size=30000),
        "train_file": jobs.write_squad(folder), "predict_file": jobs.write_squad(folder),
    }


def filled_in(name, printed, golden_path, tmp_path) -> list[str]:
    """Returns the flags of a command with paths instead of dots, and fewer steps."""
    known = write_files(tmp_path, golden_path) | {"output_dir": str(tmp_path / "out")}
    if name == "run_race":
        known |= dict.fromkeys(("train_file", "eval_file"), str(tmp_path / "race"))  # no effect
        jobs.write_race(tmp_path)
    for feature in ("train_feature_file", "predict_feature_file", "predict_feature_left_file"):
        known[feature] = str(tmp_path / feature)
    given = [re.sub(r"^--(\w+)=\.\.\.$", lambda m: f"--{m[1]}={known[m[1]]}", flag)
             for flag in printed[name]]
    assert given and not any("..." in flag for flag in given)
    return [*given, *REDUCED[name].split()]


@pytest.mark.parametrize("name", MODULES)
def test_a_command_as_printed_begins_to_train(name, printed, golden_path, tmp_path, begin):
    begin(lambda *given: run_here(MODULES[name], *given), *filled_in(name, printed, golden_path, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_a_command_runs_as_printed(name, printed, golden_path, tmp_path):
    assert run_here(MODULES[name], *filled_in(name, printed, golden_path, tmp_path)) == 0
    assert " = " in (tmp_path / "out/eval_results.txt").read_text()
    if name.startswith("run_squad"):
        assert (tmp_path / "out/predictions.json").exists()
        assert not (tmp_path / "predict_feature_file").exists()


def test_every_command_of_the_readme_is_tried_and_takes_the_flags_as_printed(printed):
    assert set(printed) == set(MODULES)
    for name, given in printed.items():
        assert flags.parse(MODULES[name].define_flags, [name, *given]).output_dir == "..."


def test_the_command_of_spm_train_works_with_its_flags(golden_path, tmp_path, capsys):
    text = golden_path("original_readme.md").read_text(encoding="utf-8")
    flags = re.search(r"spm_train \\\n((?:.*=.*\n)+)", text)[1].replace("\\\n", " ").split()
    flags = [flag if flag.startswith("--") or i and flags[i - 1] == "--input" else f"--{flag}"
             for i, flag in enumerate(flags)]  # its page lost some dashes
    corpus = jobs.write_corpus(tmp_path)
    given = [corpus if flag == "all.txt" else flag for flag in flags if "vocab_size" not in flag]
    given = [flag.replace("30k-clean", f"{tmp_path}/spm") for flag in given]
    more = "--vocab_size=50", "--control_symbols=[CLS],[SEP],[MASK]"
    assert run_here(train_sentencepiece, *given, *more) == 0
    assert (tmp_path / "spm.model").is_file()
    assert run_here(train_sentencepiece, *given, "--vocab_size=50", "--pad_id=3") == 2
    assert "pad_id" in capsys.readouterr().err


# --- Hugging Face's page and model cards ---


@pytest.mark.parametrize("size", ["base", "large", "xlarge", "xxlarge"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_released_model_has_its_first_name_too(size, version, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    name = f"albert-{size}-{version}"
    for load in (albert.AlbertModel, albert.AlbertTokenizer):
        with pytest.raises(CheckpointError, match=f"'albert/{name}'"):
            load.from_pretrained(name)
    (tmp_path / "in.txt").write_text("A [MASK].\n")
    assert run_here(fill_mask, f"--model={name}", "--input_file=in.txt") == 2
    assert f"albert/{name}" in capsys.readouterr().err
    (tmp_path / name).mkdir()  # of the user's
    with pytest.raises(CheckpointError, match="holds neither"):
        albert.AlbertModel.from_pretrained(name)


class Torch:
    """Like torch.float16."""

    def __str__(self):
        return "torch.float16"


def test_arguments_of_the_page_are_taken_or_said_to_have_no_effect(caplog):
    caplog.set_level("INFO", "albert")
    for precision in (Torch(), "float16", "torch.float16"):
        model = albert.AlbertModel.from_pretrained(
            "small_en", torch_dtype=precision, attn_implementation="sdpa")
        assert model.dtype_policy.name == "float16"
    assert "attn_implementation='sdpa': no effect" in caplog.text
    assert albert.TFAlbertModel is albert.FlaxAlbertModel is albert.AlbertModel
    assert albert.AlbertTokenizerFast is albert.AlbertTokenizer
    named = albert.TFAlbertForSequenceClassification.from_pretrained("small_en", label2id={"b": 1, "a": 0})
    assert named.label_names == ("a", "b")
    albert.AlbertConfig(vocab_size=30, classifier_dropout_prob=0.1)
    assert "classifier_dropout_prob=0.1: no effect, pass classifier_dropout" in caplog.text


@pytest.mark.parametrize("pair", [None, [8, 9]])
def test_the_methods_of_the_tokenizer_on_the_page(pair, tmp_path):
    tokenizer = albert.AlbertTokenizerFast.from_pretrained("small_en")
    ids = tokenizer.build_inputs_with_special_tokens([7, 6, 5], pair)
    special = tokenizer.get_special_tokens_mask([7, 6, 5], pair)
    assert special == tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
    usual = [i for i, is_special in zip(ids, special, strict=True) if not is_special]
    assert usual == [7, 6, 5, *(pair or ())]
    encoded = tokenizer("one two", None if pair is None else "three")
    texts = [tokenizer.encode(text, add_special_tokens=False) for text in ("one two", "three")]
    assert encoded["token_type_ids"] == tokenizer.create_token_type_ids_from_sequences(
        texts[0], None if pair is None else texts[1])
    [path] = tokenizer.save_vocabulary(tmp_path, "my")
    assert path.endswith("my-vocab.txt")
    assert albert.AlbertTokenizer.from_pretrained(path).encode("one two") == tokenizer.encode("one two")
    with pytest.raises(DataError, match="torch.from_numpy"):
        tokenizer("a", return_tensors="pt")
