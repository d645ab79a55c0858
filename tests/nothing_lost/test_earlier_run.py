"""A resumed run must mean the same by its ids; other files in --output_dir are safe."""

import jobs
import pytest
from helpers import LENGTH, PREDICTIONS, VOCAB, assert_one_clear_line, pretraining_rows
from invariants import untouched

from albert.cli import earlier_run
from albert.errors import FlagError
from albert.formats import run_states
from albert.records import manifests
from albert.tasks.pretraining import PretrainingTask

VOCABULARY = "with another vocabulary, or other settings of the tokenizer"
CASED = "with --do_lower_case=True, not False"


def own_flags(folder) -> list[str]:
    """Flags of a classifier of the rows in own.csv."""
    write_own(folder, ("bad", "good"))
    flags = jobs.classifier_flags(folder)
    return [flag for flag in flags if not flag[2:].startswith(("task_name", "data_dir"))] + [
        f"--train_file={folder / 'own.csv'}"
    ]


def write_own(folder, labels):
    lines = [f"w{i % 9} w{i % 7},{labels[i % 2]}" for i in range(30)]
    (folder / "own.csv").write_text("text,label\n" + "\n".join(lines) + "\n")


def write_words(folder, label):
    for split in ("train", "dev", "test"):
        (folder / f"{split}.txt").write_text(f"w1 {label}\nw2 O\n\nw3 O\n" * 4)


def shuffle_vocabulary(folder):
    path = folder / "vocab.txt"
    *others, one, two = path.read_text().split()
    path.write_text("\n".join([*others, two, one]))


def pretend(out, flags, **facts) -> None:
    """Changes the metadata in a run's checkpoints."""
    for path in out.glob("model.ckpt-*.json"):
        recorded = run_states.read_run_state(str(path)[:-5])["flags"]
        jobs.change_json(path, "facts", flags=recorded | flags, **facts)


@pytest.fixture
def trained(classified, tuned, whole, tmp_path):
    """Function from a command to a copy of a finished run, with its inputs written to tmp_path."""

    def get(name) -> tuple:
        if name == "own file":
            run, command, flags = classified, jobs.classify, own_flags
        elif name == "pretraining":
            run, command, flags = whole, jobs.pretrain, jobs.pretraining_flags
        else:
            run, command, flags = tuned(name), jobs.TUNERS[name].run, jobs.TUNERS[name].flags
        copy = run.copy(tmp_path / "out")
        if name == "own file":
            pretend(copy.out, {"label_list": "bad,good"}, task="tsv")
        more = [] if name in ("own file", "pretraining") else jobs.TUNERS[name].asked
        return command, copy.out, [*flags(tmp_path), *more]

    return get


@pytest.mark.parametrize("name, cases", [
    ("own file", [
        (None, ["--label_list=good,bad"], "with --label_list='bad,good', not with 'good,bad'"),
        (lambda folder: write_own(folder, ("0", "1")), ["--regression"],
         "with --label_list='bad,good', not with --regression"),
        (lambda folder: write_own(folder, ("bad", "aces")), [],
         "with --label_list='bad,good', not with 'aces,bad'"),
    ]),
    ("tokens", [
        (None, ["--label_list=O I-PER B-PER"], "'O B-PER I-PER', not with 'O I-PER B-PER'"),
        (lambda folder: write_words(folder, "B-LOC"), [],
         "with --label_list='O B-PER I-PER', not with 'O B-LOC I-LOC'"),
        (shuffle_vocabulary, [], VOCABULARY),
    ]),
    ("race", [(shuffle_vocabulary, [], VOCABULARY), (None, ["--nodo_lower_case"], CASED)]),
    ("pretraining", [(None, [], VOCABULARY)]),
])
def test_ids_of_another_meaning_are_refused_before_the_first_step(
    name, cases, trained, tmp_path, capsys
):
    command, out, flags = trained(name)
    if name == "pretraining":
        pretend(out, {"tokenizer_sha256": "one"})
        spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
        manifests.write_records(str(tmp_path / "train.tfrecord"), pretraining_rows(12), spec,
                              {"vocab_size": VOCAB, "tokenizer_sha256": "two"})
    inputs = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for change, more, message in cases:
        if change:
            change(tmp_path)
        with untouched(out):
            assert command(*flags, *more) == 2
        for path, content in inputs.items():
            path.write_bytes(content)
        line = assert_one_clear_line(capsys.readouterr().err)
        assert message in line and line.endswith(": use another --output_dir")


def test_another_task_of_the_same_labels_may_evaluate_but_not_resume(classified, tuned):
    origin = str(classified.out / "model.ckpt-6")
    other = earlier_run.Identity("cola", labels=("0", "1"))
    other.check(origin)
    with pytest.raises(FlagError, match="was trained for sst-2, not cola: use another --output_dir"):
        other.check(origin, is_resumed=True)
    trained, of_five = str(tuned("race").out / "model.ckpt-4"), earlier_run.Identity("race", num_choices=5)
    of_five.check(trained)  # each option has its own logit
    with pytest.raises(FlagError, match="on questions of 4 options, not 5"):
        of_five.check(trained, is_resumed=True)


def test_a_directory_with_somebody_elses_model_is_not_trained_in(tmp_path, capsys):
    for number, files in enumerate((
        ["config.json", "model.safetensors"], ["variables/variables.index"],
        ["albert_config.json", "model.ckpt-best.index"],
    )):
        out = tmp_path / str(number)
        for file in files:
            (out / file).parent.mkdir(parents=True, exist_ok=True)
            (out / file).write_text("{}")
        for command, flags in (
            (jobs.classify, [*jobs.classifier_flags(tmp_path), "--do_train"]),
            (jobs.pretrain, jobs.pretraining_flags(tmp_path)),
        ):
            with untouched(out):
                assert command(*flags, f"--output_dir={out}") == 2
            line = assert_one_clear_line(capsys.readouterr().err)
            assert "holds a model that is not a run's checkpoint: use another" in line
