"""A pretraining run's directory is a complete model: it keeps the vocabulary of its records."""

import json
import os
import shutil

import jobs
import numpy as np
import pytest
from helpers import SIZES, assert_one_clear_line, run_here

import albert
from albert import (convert_hf, create_pretraining_data, fill_mask)
from albert.cli import flags
from albert.formats import tokenizer_files
from albert.records import manifests

WORDS = [*(f"w{i}" for i in range(30)), "The", "cat", "the"]
SIZE = len(jobs.SPECIALS) + len(WORDS)


@pytest.fixture(scope="module")
def made(made_once):
    """A folder with a vocabulary, a text, its records, and a finished run on them of 4 steps."""

    def make(folder):
        write_vocabulary(folder / "my_vocab.txt")
        rng = np.random.default_rng(0)
        texts = ["\n".join(" ".join(rng.choice(WORDS, 3 + (d + n) % 7)) for n in range(9))
                 for d in range(20)]
        (folder / "corpus.txt").write_text("\n\n".join(texts) + "\n")
        sizes = SIZES | {"vocab_size": SIZE, "num_hidden_layers": 1, "max_position_embeddings": 24}
        (folder / "config.json").write_text(json.dumps(sizes))
        (folder / "records").mkdir()
        make_records(folder, "train")
        assert train(folder, "--do_eval") == 0

    return made_once("pretraining-start", make)


@pytest.fixture
def trained(made, tmp_path):
    """A copy of `made` that a test may change, in another location."""
    shutil.copytree(made[0], tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def folder(trained):
    """The same, but the run is called `first`, and there is no `out`."""
    (trained / "out").rename(trained / "first")
    return trained


def write_vocabulary(path, words=WORDS):
    path.write_text("\n".join([*jobs.SPECIALS, *words]) + "\n")


def make_records(folder, name, *more, vocabulary="my_vocab.txt"):
    assert 0 == run_here(
        create_pretraining_data, f"--input_file={folder}/corpus.txt", "--num_processes=1",
        f"--vocab_file={folder / vocabulary}", f"--output_file={folder}/records/{name}.tfrecord",
        "--max_seq_length=24", "--max_predictions_per_seq=5", "--dupe_factor=2", *more,
    )


def job(folder, *more, name="train", config="config.json"):
    return [
        f"--input_file={folder}/records/{name}.tfrecord", f"--output_dir={folder}/out",
        *([f"--albert_config_file={folder / config}"] if config else []),
        "--max_seq_length=24", "--max_predictions_per_seq=5", "--train_batch_size=4",
        "--eval_batch_size=4", "--max_eval_steps=2", "--num_train_steps=4",
        "--num_warmup_steps=1", "--save_checkpoints_steps=2", "--log_steps=2", *more,
    ]


def train(folder, *more, **options) -> int:
    return jobs.pretrain(*job(folder, *more, **options))


@pytest.fixture
def begin_here(begin):
    """Function that runs pretraining up to the training itself: see `begin`."""
    return lambda folder, *more, **options: begin(jobs.pretrain, *job(folder, *more, **options))


def vocabulary_of(folder):
    """Returns the tokenizer of the run's directory; None if it has none."""
    found = tokenizer_files.find(str(folder / "out"))
    return found.open() if found else None


# --- The vocabulary is kept, and found by everything that opens the directory ---


def test_the_directory_of_a_run_is_a_whole_model_for_every_command(trained, tmp_path, begin):
    names = set(os.listdir(trained / "out"))
    assert {"albert_config.json", "vocab.txt", "tokenizer_config.json", "README.md"} <= names
    assert (trained / "out/vocab.txt").read_bytes() == (trained / "my_vocab.txt").read_bytes()
    for name in ("my_vocab.txt", "config.json", "records"):  # not needed from here on
        (trained / name).rename(trained / f"{name}.gone")
    out = trained / "out"
    assert 0 == flags.run_command(
        "", fill_mask.define_flags, fill_mask.main,
        ["command", f"--model={out}", "w1 [MASK] w2"], takes_arguments=True,
    )
    assert len(albert.open_session(str(out)).embed(["w1 w2"], pooling="mean")[0]) == 16
    (tmp_path / "train.tsv").write_text(
        "sentence\tlabel\n" + "".join(f"w{i % 30} w2\t{i % 2}\n" for i in range(40))
    )
    begin(
        jobs.classify, f"--train_file={tmp_path}/train.tsv", f"--init_checkpoint={out}",
        f"--output_dir={tmp_path}/classifier", "--max_seq_length=12",
    )


def test_the_vocabulary_is_there_before_the_first_step_with_the_case_of_the_records(
    folder, begin_here, capsys
):
    make_records(folder, "cased", "--nodo_lower_case")
    recorded = manifests.Manifest.read(f"{folder}/records/cased.tfrecord").info["vocabulary"]
    assert recorded == {
        "vocab_file": f"{folder}/my_vocab.txt", "spm_model_file": None,
        "beside": "cased.tfrecord.vocabulary.txt", "do_lower_case": False, "keep_accents": False,
        "remove_space": True, "strip_accents": None, "tokenize_chinese_chars": True, "as_in_bert": False,
    }
    assert train(folder, name="*") == 2
    assert "different vocabularies or case flags" in assert_one_clear_line(capsys.readouterr().err)
    _, options = begin_here(folder, name="cased")
    assert options["flags"]["do_lower_case"] is False
    assert sorted(os.listdir(folder / "out")) == [
        "special_tokens_map.json", "tokenizer_config.json", "vocab.txt"
    ]
    tokenizer = vocabulary_of(folder)
    assert not tokenizer.do_lower_case and tokenizer.tokenize("The cat") == ["The", "cat"]


# --- Where the vocabulary comes from ---


def test_records_that_were_moved_take_their_own_copy_of_the_vocabulary(
    folder, made, begin_here, caplog
):
    caplog.set_level("INFO", "albert")
    write_vocabulary(folder / "my_vocab.txt", ["w99", *WORDS[1:]])
    begin_here(folder)
    assert f"vocabulary: {folder}/records/train.tfrecord.vocabulary.txt" in caplog.text
    assert vocabulary_of(folder).vocab["w0"] == 5


@pytest.fixture
def lost(folder):
    """Records without their copy of the vocabulary, whose file now holds another one."""
    shutil.copy(folder / "my_vocab.txt", folder / "kept.txt")
    shutil.copy(folder / "my_vocab.txt", folder / "old_vocab.txt")
    make_records(folder, "train", vocabulary="old_vocab.txt")
    (folder / "records/train.tfrecord.vocabulary.txt").unlink()
    write_vocabulary(folder / "old_vocab.txt", ["w99", *WORDS[1:]])
    return folder


@pytest.mark.parametrize("is_there", [True, False])
def test_only_the_copy_next_to_the_records_is_taken_and_only_if_it_is_theirs(
    is_there, lost, begin_here, caplog
):
    if is_there:
        shutil.copy(lost / "old_vocab.txt", lost / "records/train.tfrecord.vocabulary.txt")
    begin_here(lost, f"--init_checkpoint={lost}/first")
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "will have no vocabulary: pass that of" in warning and "train.tfrecord" in warning
    assert not (lost / "out").exists()


def test_the_flag_comes_first_and_must_name_the_vocabulary_of_the_records(lost, begin_here, capsys):
    assert train(lost, f"--vocab_file={lost}/old_vocab.txt") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"train.tfrecord was not made with {lost}/old_vocab.txt" in line
    assert train(lost, f"--vocab_file={lost}/kept.txt", "--nodo_lower_case") == 2
    assert "and this --do_lower_case" in assert_one_clear_line(capsys.readouterr().err)
    assert train(lost, "--nodo_train", "--do_eval", f"--vocab_file={lost}/kept.txt") == 2
    assert "--vocab_file needs --do_train" in assert_one_clear_line(capsys.readouterr().err)
    assert not (lost / "out").exists()
    begin_here(lost, f"--vocab_file={lost}/kept.txt")
    assert vocabulary_of(lost).vocab["w0"] == 5


def test_records_without_a_manifest_train_on_and_take_the_flag(folder, begin_here, caplog, capsys):
    (folder / "records/train.tfrecord.manifest.json").unlink()
    begin_here(folder)
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.endswith("train.tfrecord with --spm_model_file or --vocab_file")
    write_vocabulary(folder / "short.txt", ["w1"])
    assert train(folder, f"--vocab_file={folder}/short.txt") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"6 tokens, config vocab_size is {SIZE}" in line
    begin_here(folder, f"--vocab_file={folder}/my_vocab.txt", "--nodo_lower_case")
    assert not vocabulary_of(folder).do_lower_case


def test_a_directory_with_checkpoints_of_another_vocabulary_is_refused(trained, begin_here, capsys):
    write_vocabulary(trained / "other_vocab.txt", ["w99", *WORDS[1:]])
    make_records(trained, "other", vocabulary="other_vocab.txt")
    assert train(trained, name="other") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "out/model.ckpt-best was trained with another vocabulary or tokenizer setting" in line
    kept = (trained / "out/vocab.txt").read_bytes()
    assert kept == (trained / "my_vocab.txt").read_bytes()
    assert not (trained / "out/other_vocab.txt").exists()


# --- Architecture ---


@pytest.fixture
def converted(folder):
    """Function from an activation to a directory in Hugging Face's layout that uses it."""

    def convert(activation):
        target = folder / activation
        command = convert_hf, f"--albert_directory={folder}/first", f"--output_dir={target}"
        assert run_here(*command) == 0
        config = json.loads((target / "config.json").read_text()) | {"hidden_act": activation}
        (target / "config.json").write_text(json.dumps(config))
        return target

    return convert


@pytest.mark.parametrize(("act", "ours"), [("gelu_new", "gelu"), ("gelu", "gelu_erf")])
def test_a_directory_of_hugging_face_gives_architecture_weights_and_vocabulary(
    act, ours, converted, folder, begin_here, caplog
):
    caplog.set_level("INFO", "albert")
    start = converted(act)
    (_, config, *_), _ = begin_here(folder, f"--init_checkpoint={start}", config=None)
    assert config.hidden_act == ours
    assert f"activation: {ours}" in caplog.text
    assert vocabulary_of(folder).vocab_size == SIZE
    assert ("gelu_python" in caplog.text) == (act == "gelu")


def test_another_activation_than_the_weights_were_trained_with_is_warned_about(
    converted, folder, begin_here, caplog
):
    start = converted("gelu")
    theirs = f"--albert_config_file={start}/config.json"  # means the same as their directory
    (_, config, *_), _ = begin_here(folder, f"--init_checkpoint={start}", theirs, config=None)
    assert config.hidden_act == "gelu_erf"
    assert "--albert_config_file replaces" not in caplog.text
    # Ours says "gelu", the tanh form.
    (_, config, *_), _ = begin_here(folder, f"--init_checkpoint={start}")
    assert config.hidden_act == "gelu"
    assert "has the activation gelu_erf, which --albert_config_file replaces by gelu" in caplog.text


def test_the_architecture_of_the_runs_own_directory_is_enough(trained, begin_here, capsys):
    (_, config, *_), _ = begin_here(trained, config=None)
    assert config.vocab_size == SIZE
    (trained / "out/eval_results.json").unlink()
    assert train(trained, "--nodo_train", "--do_eval", config=None) == 0
    assert json.loads((trained / "out/eval_results.json").read_text())["global_step"] == 4
    assert train(trained, f"--output_dir={trained}/other", config=None) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "--albert_config_file is required (or the directory of a model as" in line
