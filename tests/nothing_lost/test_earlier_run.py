"""A run that is resumed must mean the same by its ids; what else lies in --output_dir is safe."""

import pathlib

import pytest
import jobs
from helpers import (
    LENGTH,
    PREDICTIONS,
    VOCAB,
    assert_one_clear_line,
    pretraining_rows,
    run_here,
)
from invariants import snapshot

from albert import run_classifier, run_pretraining, run_race, run_squad_v1, run_token_classifier
from albert.cli import earlier_run
from albert.errors import FlagError
from albert.records import records

COMMANDS = {
    "classifier": run_classifier, "own file": run_classifier, "words": run_token_classifier,
    "squad": run_squad_v1, "race": run_race, "pretraining": run_pretraining,
}


def flags_of(name: str, folder: pathlib.Path) -> list[str]:
    """Returns a tiny run of two steps; its data lie in `folder`, its results in `folder`/out."""
    short = {"train_step": 2, "save_checkpoints_steps": 2, "cached_dir": folder / "records"}
    if name == "classifier":
        return [*jobs.classifier_flags(folder, **short), "--do_train", "--do_eval"]
    if name == "own file":
        write_own(folder, ("bad", "good"))
        own = ("task_name", "data_dir")
        shared = [flag for flag in jobs.classifier_flags(folder, **short)
                  if not flag[2:].startswith(own)]
        return [*shared, f"--train_file={folder / 'own.csv'}"]
    if name == "words":
        write_words(folder, "B-PER")
        shared = [flag for flag in jobs.classifier_flags(folder, **short)
                  if not flag.startswith("--task_name")]
        return [*shared, "--do_train", "--do_eval"]
    if name == "squad":
        del short["train_step"]  # of 8 questions in batches of 4
        return jobs.squad_flags(folder, num_train_epochs=1, **short)
    if name == "race":
        return jobs.race_flags(folder, **short)
    write_records(folder, "one")
    return jobs.pretraining_flags(
        folder, input_file=folder / "some.tfrecord", num_train_steps=2, num_warmup_steps=0,
        save_checkpoints_steps=2,
    )


def write_own(folder, labels):
    lines = [f"w{i % 9} w{i % 7},{labels[i % 2]}" for i in range(30)]
    (folder / "own.csv").write_text("text,label\n" + "\n".join(lines) + "\n")


def write_words(folder, label):
    for split in ("train", "dev"):
        (folder / f"{split}.txt").write_text(f"w1 {label}\nw2 O\n\nw3 O\n" * 4)


def write_records(folder, tokenizer):
    from albert.tasks.pretraining import PretrainingTask

    records.write_records(
        str(folder / "some.tfrecord"), pretraining_rows(12),
        PretrainingTask(LENGTH, PREDICTIONS).feature_spec(),
        {"vocab_size": VOCAB, "tokenizer_sha256": tokenizer},
    )


def shuffle_vocabulary(folder):
    path = folder / "vocab.txt"
    *others, one, two = path.read_text().split()
    path.write_text("\n".join([*others, two, one]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """{command: (folder, flags)} of runs to their end, made when they are asked for."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("run")
            flags = flags_of(name, folder)
            assert run_here(COMMANDS[name], *flags) == 0
            made[name] = folder, flags
        return made[name]

    return get


LONGER = {"squad": "--num_train_epochs=2", "pretraining": "--num_train_steps=4"}
VOCABULARY = "with another vocabulary, or other settings of the tokenizer"
CASED = "with --do_lower_case=True, not False"


@pytest.mark.parametrize("name, change, more, message", [
    ("own file", None, ["--label_list=good,bad"],
     "with --label_list='bad,good', not with 'good,bad'"),
    ("own file", lambda folder: write_own(folder, ("0", "1")), ["--regression"],
     "with --label_list='bad,good', not with --regression"),
    ("classifier", None, ["--nodo_lower_case"], CASED),
    ("classifier", shuffle_vocabulary, [], VOCABULARY),
    ("own file", lambda folder: write_own(folder, ("bad", "aces")), [],
     "with --label_list='bad,good', not with 'aces,bad'"),
    ("words", lambda folder: write_words(folder, "B-LOC"), [],
     "with --label_list='O B-PER I-PER', not with 'O B-LOC I-LOC'"),
    ("words", None, ["--label_list=O I-PER B-PER"], "'O B-PER I-PER', not with 'O I-PER B-PER'"),
    ("words", shuffle_vocabulary, [], VOCABULARY),
    ("squad", shuffle_vocabulary, [], VOCABULARY),
    ("squad", None, ["--nodo_lower_case"], CASED),
    ("race", shuffle_vocabulary, [], VOCABULARY),
    ("pretraining", lambda folder: write_records(folder, "two"), [], VOCABULARY),
])
def test_ids_of_another_meaning_are_refused_before_the_first_step(
    name, change, more, message, trained, capsys
):
    folder, flags = trained(name)
    data = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    before = snapshot(folder / "out")
    assert str(folder / "out/model.ckpt-2.json") in before
    if change:
        change(folder)
    try:
        assert run_here(COMMANDS[name], *flags, LONGER.get(name, "--train_step=4"), *more) == 2
    finally:
        for path, content in data.items():
            path.write_bytes(content)
    line = assert_one_clear_line(capsys.readouterr().err)
    assert message in line and line.endswith(": use another --output_dir")
    assert snapshot(folder / "out") == before


def test_runs_of_several_seeds_are_all_compared_before_the_first_is_made(trained, tmp_path, capsys):
    folder, flags = trained("own file")
    (tmp_path / "seed-6").symlink_to(folder / "out")
    more = [f"--output_dir={tmp_path}", "--num_runs=2", "--seed=5", "--label_list=good,bad"]
    assert run_here(run_classifier, *flags, *more) == 2
    assert "seed-6/model.ckpt-best was trained" in assert_one_clear_line(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["seed-6"]


def test_another_task_of_the_same_labels_may_evaluate_but_not_resume(trained):
    folder, _ = trained("classifier")
    origin, other = str(folder / "out/model.ckpt-2"), earlier_run.Identity("cola", labels=("0", "1"))
    other.check(origin)
    with pytest.raises(FlagError, match="is of task sst-2, not cola: use another --output_dir"):
        other.check(origin, is_resumed=True)


def test_the_number_of_options_is_compared(trained):
    folder, _ = trained("race")
    with pytest.raises(FlagError, match="on questions of 4 options, not 5"):
        earlier_run.Identity("race", num_choices=5).check(str(folder / "out/model.ckpt-2"))


# --- Models of others ---


@pytest.mark.parametrize("files", [
    ["config.json", "model.safetensors"], ["variables/variables.index"],
    ["albert_config.json", "model.ckpt-best.index"],
])
@pytest.mark.parametrize("name", ["classifier", "pretraining"])
def test_a_directory_with_somebody_elses_model_is_not_trained_in(name, files, tmp_path, capsys):
    flags = flags_of(name, tmp_path)
    for file in files:
        path = tmp_path / "out" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    before = snapshot(tmp_path / "out")
    assert run_here(COMMANDS[name], *flags) == 2
    assert "holds a model that is not a run's checkpoint: train in another directory" in (
        assert_one_clear_line(capsys.readouterr().err)
    )
    assert snapshot(tmp_path / "out") == before
