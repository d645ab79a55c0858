"""A pretraining run's directory is a whole model: it keeps the vocabulary of its records."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from helpers import assert_one_clear_line, run, run_here

import albert
from albert import (
    convert_hf,
    create_pretraining_data,
    fill_mask,
    run_classifier,
    run_pretraining,
    score,
    tokenization,
)
from albert.config import AlbertConfig
from albert.formats import tokenizer_files
from albert.records import records
from albert.storage import files

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{i}" for i in range(30)] + ["The", "The", "cat"]
SIZES = {
    "vocab_size": 38, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 24,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a vocabulary, a text and its records."""
    folder = tmp_path_factory.mktemp("made")
    words = list(dict.fromkeys(WORDS))
    (folder / "my_vocab.txt").write_text("\n".join([*SPECIALS, *words, "the"]) + "\n")
    rng = np.random.default_rng(0)
    texts = ["\n".join(" ".join(rng.choice(words, 3 + (d + n) % 7)) for n in range(9))
             for d in range(20)]
    (folder / "corpus.txt").write_text("\n\n".join(texts) + "\n")
    (folder / "config.json").write_text(json.dumps(SIZES))
    (folder / "records").mkdir()
    make_records(folder, "train")
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of it that a test may change, moved away from where it was made."""
    shutil.copytree(made, tmp_path / "work")
    return tmp_path / "work"


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
    return run_here(run_pretraining, *job(folder, *more, **options))


@pytest.fixture
def begin(monkeypatch):
    """Does what `train` does, but for the training, which takes seconds."""
    from albert.training import trainer

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    def begin_it(folder, *more, **options) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "train", interrupt)
            try:
                return train(folder, *more, **options)
            except KeyboardInterrupt:
                return 0

    return begin_it


def vocabulary_of(folder):
    """Returns the tokenizer of the run's directory, None if it has none."""
    found = tokenizer_files.find(str(folder / "out"))
    return found.open() if found else None


# --- Kept, and found by whatever opens the directory ---


@pytest.mark.parametrize("engine", ["tensorflow", "jax"])
def test_the_directory_of_a_run_is_a_whole_model(engine, folder):
    result = run("albert.run_pretraining", *job(folder, "--do_eval", f"--engine={engine}"))
    assert result.returncode == 0, result.stderr
    assert " W " not in result.stderr
    names = set(os.listdir(folder / "out"))
    assert {"albert_config.json", "vocab.txt", "tokenizer_config.json", "README.md"} <= names
    kept = (folder / "out/vocab.txt").read_bytes()
    assert kept == (folder / "my_vocab.txt").read_bytes()


def test_commands_need_no_further_flag(folder, tmp_path, capsys):
    assert train(folder) == 0
    for name in ("my_vocab.txt", "config.json", "records"):  # it does without them from here on
        (folder / name).rename(folder / f"{name}.gone")
    out = folder / "out"
    capsys.readouterr()
    assert run_here_with(fill_mask, [f"--model={out}"], ["w1 [MASK] w2"]) == 0
    (tmp_path / "texts.txt").write_text("w1 w2 w3\nw4 w5\n")
    assert run_here(score, f"--model={out}", f"--input_file={tmp_path}/texts.txt",
                    f"--output_file={tmp_path}/scores.jsonl") == 0
    assert run_here(convert_hf, f"--albert_directory={out}", f"--output_dir={tmp_path}/hf") == 0
    assert len(albert.AlbertTokenizer.from_pretrained(str(tmp_path / "hf"))) == 38
    (tmp_path / "train.tsv").write_text(
        "sentence\tlabel\n" + "".join(f"w{i % 30} w2\t{i % 2}\n" for i in range(40))
    )
    assert run_here(
        run_classifier, f"--train_file={tmp_path}/train.tsv", f"--init_checkpoint={out}",
        f"--output_dir={tmp_path}/classifier", "--train_step=2", "--warmup_step=1",
        "--max_seq_length=12",
    ) == 0
    assert len(albert.open_session(str(out)).embed(["w1 w2"])[0]) == 16


def run_here_with(module, arguments, texts):
    from albert.cli import flags

    return flags.run_command(
        module.__doc__, module.define_flags, module.main, ["command", *arguments, *texts],
        takes_arguments=True,
    )


def test_it_is_there_before_the_first_step(folder, begin):
    assert begin(folder) == 0
    assert sorted(os.listdir(folder / "out")) == [
        "special_tokens_map.json", "tokenizer_config.json", "vocab.txt"
    ]


def test_case_is_that_of_the_records(folder):
    make_records(folder, "cased", "--nodo_lower_case")
    assert train(folder, name="cased") == 0
    tokenizer = vocabulary_of(folder)
    assert not tokenizer.do_lower_case and tokenizer.tokenize("The cat") == ["The", "cat"]
    run_state = json.loads((folder / "out/model.ckpt-4.json").read_text())
    assert run_state["flags"]["do_lower_case"] is False


def test_a_run_of_before_gets_it_when_it_is_resumed(folder, caplog):
    assert train(folder, "--until_step=2") == 0
    for name in ("vocab.txt", "tokenizer_config.json"):
        (folder / "out" / name).unlink()
    assert vocabulary_of(folder) is None
    assert train(folder) == 0
    assert vocabulary_of(folder).vocab_size == 38


# --- Where it is looked for ---


def test_records_name_it_as_given_and_as_seen_from_them(folder):
    make_records(folder, "again", "--nodo_lower_case")
    told = records.Manifest.read(f"{folder}/records/again.tfrecord").info["vocabulary"]
    assert told == {
        "vocab_file": f"{folder}/my_vocab.txt", "spm_model_file": None,
        "beside": "../my_vocab.txt", "do_lower_case": False, "keep_accents": False,
        "remove_space": True,
    }


def test_a_moved_vocabulary_of_the_same_content_alone_is_taken(folder, made, begin, caplog):
    caplog.set_level("INFO", "albert")
    words = (folder / "my_vocab.txt").read_text()
    (folder / "my_vocab.txt").write_text(words.replace("w1\n", "w99\n"))
    assert begin(folder) == 0  # there is the one where the records were made
    assert f"vocabulary: {made}/my_vocab.txt" in caplog.text
    assert vocabulary_of(folder).vocab["w1"] == 6


@pytest.fixture
def lost(folder):
    """Records whose vocabulary is gone, and another one is in its place."""
    words = (folder / "my_vocab.txt").read_text()
    (folder / "kept.txt").write_text(words)
    shutil.copy(folder / "my_vocab.txt", folder / "old_vocab.txt")
    make_records(folder, "train", vocabulary="old_vocab.txt")
    (folder / "old_vocab.txt").write_text(words.replace("w1\n", "w99\n"))
    return folder


def test_one_that_is_not_the_records_is_not_taken_and_the_run_goes_on(lost, caplog):
    assert train(lost) == 0
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "will have no vocabulary: give the records' with --spm_model_file or" in warning
    assert str(lost / "old_vocab.txt") in warning
    assert vocabulary_of(lost) is None


def test_that_of_init_checkpoint_is_taken_if_it_is_the_records(lost, begin, caplog):
    caplog.set_level("INFO", "albert")
    assert train(lost, f"--vocab_file={lost}/kept.txt") == 0
    (lost / "out").rename(lost / "first")
    (lost / "kept.txt").unlink()
    assert begin(lost, f"--init_checkpoint={lost}/first", config=None) == 0
    assert f"vocabulary: {lost}/first/" in caplog.text
    assert vocabulary_of(lost).vocab["w1"] == 6


def test_the_flag_is_the_first_to_be_taken_and_must_be_the_records(lost, begin, capsys):
    assert begin(lost, f"--vocab_file={lost}/old_vocab.txt") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"train.tfrecord was not made with {lost}/old_vocab.txt" in line
    assert begin(lost, f"--vocab_file={lost}/kept.txt", "--nodo_lower_case") == 2
    assert "and this --do_lower_case" in assert_one_clear_line(capsys.readouterr().err)
    assert not (lost / "out").exists()
    assert begin(lost, f"--vocab_file={lost}/kept.txt") == 0
    assert vocabulary_of(lost).vocab["w1"] == 6


def test_records_without_a_manifest_train_on_and_take_the_flag(folder, begin, caplog, capsys):
    (folder / "records/train.tfrecord.manifest.json").unlink()
    assert begin(folder) == 0
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.endswith("give the records' with --spm_model_file or --vocab_file")
    (folder / "short.txt").write_text("\n".join([*SPECIALS, "w1"]) + "\n")
    assert begin(folder, f"--vocab_file={folder}/short.txt") == 2
    assert "6 tokens, config vocab_size is 38" in assert_one_clear_line(capsys.readouterr().err)
    assert begin(folder, f"--vocab_file={folder}/my_vocab.txt", "--nodo_lower_case") == 0
    assert not vocabulary_of(folder).do_lower_case


def test_records_of_before_are_known_by_the_flags_in_their_manifest(folder, begin):
    path = f"{folder}/records/train.tfrecord"
    manifest = records.Manifest.read(path)
    del manifest.info["vocabulary"]
    files.write_sealed_json(records.manifest_path(path), manifest.to_json())
    assert begin(folder) == 0
    assert vocabulary_of(folder).vocab_size == 38


def test_records_of_two_vocabularies_are_refused(folder, begin, capsys):
    make_records(folder, "train-2", "--nodo_lower_case")
    assert begin(folder, name="train*") == 2
    assert "different vocabularies or case flags" in assert_one_clear_line(capsys.readouterr().err)


@pytest.mark.parametrize("is_of_0_2, message", [
    (False, "out/model.ckpt-2 was trained with another vocabulary"),
    (True, "holds checkpoints with the vocabulary vocab.txt"),  # with which nothing was recorded
])
def test_a_directory_with_checkpoints_of_another_vocabulary_is_refused(
    is_of_0_2, message, folder, begin, capsys
):
    assert train(folder, "--until_step=2") == 0
    for path in (folder / "out").glob("model.ckpt-*.json") if is_of_0_2 else ():
        run_state = json.loads(path.read_text())
        del run_state["content_sha256"], run_state["flags"]["tokenizer_sha256"]
        path.write_text(json.dumps(run_state))
    before = (folder / "out/vocab.txt").read_bytes()
    words = (folder / "my_vocab.txt").read_text().replace("w1\n", "w99\n")
    (folder / "other_vocab.txt").write_text(words)
    make_records(folder, "other", vocabulary="other_vocab.txt")
    assert begin(folder, name="other") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert message in line
    assert (folder / "out/vocab.txt").read_bytes() == before
    assert not (folder / "out/other_vocab.txt").exists()


def test_flags_of_a_vocabulary_that_is_not_kept_are_refused(folder, begin, capsys):
    assert begin(folder, "--nodo_train", "--do_eval", f"--vocab_file={folder}/my_vocab.txt") == 2
    assert "--vocab_file goes with --do_train" in assert_one_clear_line(capsys.readouterr().err)


# --- Architecture ---


@pytest.fixture(scope="module")
def theirs(made):
    """A directory of Hugging Face's layout, whose config says "gelu"."""
    assert train(made) == 0
    assert 0 == run_here(convert_hf, f"--albert_directory={made}/out", f"--output_dir={made}/hf")
    shutil.rmtree(made / "out")
    return made / "hf"


def with_activation(theirs, folder, name):
    shutil.copytree(theirs, folder / name)
    config = json.loads((theirs / "config.json").read_text()) | {"hidden_act": name}
    (folder / name / "config.json").write_text(json.dumps(config))
    return folder / name


@pytest.mark.parametrize(("act", "ours", "told"), [
    ("gelu_new", "gelu", "gelu, the tanh form"), ("gelu", "gelu_erf", "gelu, the exact one (erf)"),
])
def test_a_directory_of_hugging_face_is_gone_on_with(act, ours, told, theirs, folder, caplog):
    """Its architecture, its weights and its vocabulary, by one flag."""
    caplog.set_level("INFO", "albert")
    start = with_activation(theirs, folder, act)
    assert train(folder, f"--init_checkpoint={start}", config=None) == 0
    assert AlbertConfig.from_json_file(f"{folder}/out/albert_config.json").hidden_act == ours
    assert f"activation: {told}" in caplog.text
    assert vocabulary_of(folder).vocab_size == 38
    # Whatever is named is a flag of the command that is named with it.
    for module, name in re.findall(r"albert\.(\w+) with --(\w+)", caplog.text):
        assert (module, name) == ("convert_hf", "gelu")
    rest = re.sub(r"albert\.convert_hf with --gelu=tanh or --gelu=erf", "", caplog.text)
    assert "--gelu" not in rest


def test_their_config_file_means_what_their_directory_means(theirs, folder, caplog):
    start = with_activation(theirs, folder, "gelu")
    config = f"--albert_config_file={start}/config.json"
    assert train(folder, f"--init_checkpoint={start}", config, config=None) == 0
    assert AlbertConfig.from_json_file(f"{folder}/out/albert_config.json").hidden_act == "gelu_erf"
    assert "and --albert_config_file another" not in caplog.text


def test_another_activation_than_the_weights_were_trained_with_is_warned_about(
    theirs, folder, caplog
):
    start = with_activation(theirs, folder, "gelu")
    assert train(folder, f"--init_checkpoint={start}") == 0  # our file says "gelu", the tanh form
    assert ("has the activation gelu, the exact one (erf), and --albert_config_file another, which "
            "is taken: gelu, the tanh form") in caplog.text
    assert AlbertConfig.from_json_file(f"{folder}/out/albert_config.json").hidden_act == "gelu"


def test_the_architecture_of_the_runs_own_directory_is_enough(folder):
    assert train(folder, "--until_step=2") == 0
    assert train(folder, config=None) == 0
    assert train(folder, "--nodo_train", "--do_eval", config=None) == 0
    assert json.loads((folder / "out/eval_results.json").read_text())["global_step"] == 4


def test_without_any_architecture_the_flag_is_named(folder, capsys):
    assert train(folder, config=None) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "--albert_config_file is required (or the directory of a model as" in line


def test_a_checkpoint_beside_which_nothing_lies_is_still_enough(folder, capsys):
    assert train(folder) == 0
    (folder / "bare").mkdir()
    for name in ("model.ckpt-4.index", "model.ckpt-4.data-00000-of-00001"):
        shutil.copy(folder / "out" / name, folder / "bare" / name)
    shutil.rmtree(folder / "out")
    bare = f"--init_checkpoint={folder}/bare/model.ckpt-4"
    assert train(folder, bare) == 0
    assert train(folder, bare, f"--output_dir={folder}/other", config=None) == 2
    assert "bare" in assert_one_clear_line(capsys.readouterr().err)


def test_an_identity_is_that_of_the_opened_tokenizer(folder):
    path = str(folder / "my_vocab.txt")
    for lower in (False, True):
        opened = tokenization.FullTokenizer(path, lower)
        digest = files.sha256(path)
        assert tokenization.identity(digest, False, opened.settings) == opened.sha256
