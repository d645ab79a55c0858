"""A rerun on other data, another split, seed or meaning of the ids is refused; so is another's directory."""

import json

import jobs
import numpy as np
import pytest
from helpers import (
    LENGTH, PREDICTIONS, VOCAB, assert_one_clear_line, pretraining_rows, results_of, run_here,
    write_pretraining_records,
)
from hf_models import random_model, save
from invariants import untouched
from record_files_made import write_records

import albert
from albert import convert_hf, pretrain_from_text
from albert.cli import classifier_report, earlier_run
from albert.errors import CheckpointError, FlagError
from albert.formats import checkpoints, metadata, pretrained
from albert.model.weights import named_weights
from albert.tasks.pretraining import PretrainingTask
from albert.training import loop

OWN, OWN_RUN = "own table", ("--do_train", "--do_eval", "--cross_validation=0")
COMMANDS = {
    **{name: (tuner.run, tuner.flags, tuner.asked) for name, tuner in jobs.TUNERS.items()},
    "pretraining": (jobs.pretrain, jobs.pretraining_flags, ("--do_eval",)),
}
CHANGES = ("labels", "deleted", "added", "seed")


def own_flags(folder) -> list[str]:
    write_own(folder)
    flags = jobs.classifier_flags(folder)
    return [flag for flag in flags if not flag[2:].startswith(("task_name", "data_dir"))] + [
        f"--train_file={folder / 'own.csv'}"
    ]


def write_own(folder, change=None, labels=("bad", "good")):
    rows = [[f"w{i % 9} w{i % 7} w{i % 5}", labels[i % 2]] for i in range(60)]
    if change == "labels":
        rows = [[text, {"bad": "good", "good": "bad"}[label]] for text, label in rows]
    rows = rows[3:] if change == "deleted" else rows
    rows += [[f"w{i} w1", "bad"] for i in range(20, 30)] if change == "added" else []
    (folder / "own.csv").write_text("text,label\n" + "".join(",".join(r) + "\n" for r in rows))


def change_labels(name, folder):
    """Changes a label of a command's training data in place."""
    if name == "classifier":
        header, *lines = (path := folder / "SST-2/train.tsv").read_text().splitlines()
        path.write_text("\n".join([header, *(line[:-1] + "10"[int(line[-1])] for line in lines)]) + "\n")
    elif name == "squad":
        squad = json.loads((path := folder / "squad.json").read_text())
        first = squad["data"][0]["paragraphs"][0]
        first["qas"][0]["answers"] = [{"text": first["context"].split()[0], "answer_start": 0}]
        path.write_text(json.dumps(squad))
    elif name == "race":
        path = folder / "RACE/train/middle/0.txt"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"answers": ["D"]}))
    else:
        path = folder / "train.txt"
        path.write_text(path.read_text().replace("O", "B-PER", 1))


def change_data(name, folder, change):
    """Changes the training data in place."""
    if name == OWN:
        write_own(folder, change)
    elif name == "pretraining":  # records made again under the same name
        count = {"deleted": 36, "added": 44}.get(change, 40)
        write_pretraining_records(folder / "train.tfrecord", count, seed=change == "labels")
    else:
        change_labels(name, folder)


@pytest.fixture
def started(tuned, whole, run_once, tmp_path):
    """Function from a command to a copy of its run, with its data in tmp_path."""

    def get(name, is_finished):
        if name == OWN:
            command, flags, more = jobs.classify, own_flags, OWN_RUN
            run = run_once("own-table", command, flags, *more)
        else:
            command, flags, more = COMMANDS[name]
            run = whole if name == "pretraining" else tuned(name)
        steps = sorted(int(p.stem.split("-")[1]) for p in run.out.glob("model.ckpt-*[0-9].index"))
        run.copy(tmp_path / "out", None if is_finished else steps[0])
        given = flags(tmp_path)
        for path in (tmp_path / "out").glob("model.ckpt-*.json"):  # as if started in tmp_path
            known = json.dumps(metadata.read_run_state(str(path)[:-5])["flags"])
            known = known.replace(str(run.out.parent), str(tmp_path))
            jobs.change_json(path, flags=json.loads(known))
        return command, [*given, *more]

    return get


@pytest.mark.parametrize("name, is_finished, change", [
    # They share the code.
    *(pytest.param(name, True, "labels", marks=() if name == "squad" else pytest.mark.slow) for name in jobs.TUNERS),
    ("pretraining", False, "labels"),
    *((name, True, change) for name in ("pretraining", OWN) for change in CHANGES),
])
def test_other_training_data_and_seeds_are_refused(name, is_finished, change, started, tmp_path, capsys):
    command, flags = started(name, is_finished)
    if change == "seed":
        flags = [*flags, "--seed=99"]
        message = "was trained with another seed (12345, not 99): use another --output_dir"
    else:
        change_data(name, tmp_path, change)
        message = "): use another --output_dir"
    capsys.readouterr()
    with untouched(tmp_path / "out"):
        assert command(*flags) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert line.endswith(message) and "out/model.ckpt-" in line
    if change in ("deleted", "added"):
        assert " examples then, " in line
    elif change == "labels":
        assert "but other texts, labels or order" in line


# --- The split ---


@pytest.fixture
def own(run_once, tmp_path):
    """A finished run of own.csv, whose rest is held out, and its flags."""
    run = run_once("own-table", jobs.classify, own_flags, *OWN_RUN)
    run.copy(tmp_path / "out")
    return own_flags(tmp_path)


@pytest.mark.parametrize("actions", [["--do_train", "--do_eval"], ["--nodo_train", "--do_eval"]])
@pytest.mark.parametrize("change", ["--seed=99", "--dev_share=0.3", "rows"])
def test_rows_that_were_trained_on_are_never_evaluated(own, actions, change, tmp_path, capsys):
    if change == "rows":
        write_own(tmp_path, "added")
    more = [] if change == "rows" else [change]
    with untouched(tmp_path / "out"):
        assert jobs.classify(*own, *actions, *more) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "out/model.ckpt-best was trained " in line and "another --output_dir" in line
    if change.startswith("--dev_share"):
        assert "--dev_share was 0.1, is 0.3" in line


def test_the_same_rows_at_another_place_are_the_same_data(own, tmp_path, capsys):
    (tmp_path / "moved").mkdir()
    rows = (tmp_path / "own.csv").rename(tmp_path / "moved/mine.csv")
    given = [*own, f"--train_file={rows}", "--do_train", "--do_eval"]
    before = results_of(tmp_path / "out")
    assert jobs.classify(*given) == 0 and results_of(tmp_path / "out") == before
    assert "already trained to step 6" in capsys.readouterr().err


def test_new_rows_may_be_predicted_and_evaluated(own, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("text,label\nw80 w81,bad\nw3 w82,good\nw84 w4,good\n")
    asked = [f"--dev_file={tmp_path / 'new.csv'}", "--nodo_train", "--do_eval"]
    assert jobs.classify(*own, *asked) == 0
    assert results_of(tmp_path / "out")["eval_accuracy"] in (0, 1 / 3, 2 / 3, 1)
    test = [f"--test_file={tmp_path / 'new.csv'}", "--do_predict", "--nodo_train", "--nodo_eval"]
    assert jobs.classify(*own, *test) == 0
    assert len((tmp_path / "out/submit_results.tsv").read_text().splitlines()) == 4
    # The table has changed: whether these rows were trained on is unknown.
    write_own(tmp_path, "deleted")
    assert jobs.classify(*own, *test) == 0
    capsys.readouterr()
    assert jobs.classify(*own, *asked) == 0
    assert "which may have the evaluated rows" in capsys.readouterr().err


@pytest.mark.parametrize("name", jobs.TUNERS)
def test_examples_that_are_trained_on_and_evaluated_are_counted(name, begin, tmp_path, capsys):
    tuner = jobs.TUNERS[name]
    flags = [*tuner.flags(tmp_path), *tuner.asked]  # its dev files are its training files
    count = {"classifier": 12, "squad": 8, "race": 12, "tokens": 8}[name]
    begin(tuner.run, *flags)
    said = capsys.readouterr().err
    assert f"{count} of {count} examples to evaluate on are training examples too" in said


def test_a_copied_text_counts_whatever_its_label_and_a_new_one_does_not(begin, tmp_path, capsys):
    flags = jobs.classifier_flags(tmp_path)
    text, label = (tmp_path / "SST-2/train.tsv").read_text().splitlines()[1].split("\t")
    (tmp_path / "SST-2/dev.tsv").write_text(f"sentence\tlabel\n{text}\t{1 - int(label)}\nnew\t1\n")
    begin(jobs.classify, *flags, "--do_train", "--do_eval")
    assert "1 of 2 examples to evaluate on are training examples too" in capsys.readouterr().err


def test_a_later_stage_of_pretraining_may_read_other_files(begun, tmp_path, capsys):
    other = write_pretraining_records(tmp_path / "other.tfrecord", seed=7)
    given = [*begun.flags, f"--input_file={other}"]
    assert jobs.pretrain(*given) == 0
    said = capsys.readouterr().err
    assert "training continues on other data (--input_file was " in said
    assert jobs.pretrain(*given) == 0  # these are its data now
    assert jobs.pretrain(*begun.flags) == 2  # it is finished, and not on these
    assert "was trained on other data (--input_file was " in capsys.readouterr().err


# --- Ids of another meaning, and models of others ---

VOCABULARY = "with another vocabulary or tokenizer setting ("
CASED = "with another do_lower_case (True, not False)"


def write_words(folder, label):
    for split in ("train", "dev", "test"):
        (folder / f"{split}.txt").write_text(f"w1 {label}\nw2 O\n\nw3 O\n" * 4)


def shuffle_vocabulary(folder):
    path = folder / "vocab.txt"
    *others, one, two = path.read_text().split()
    path.write_text("\n".join([*others, two, one]))


def pretend(out, conditions, **known) -> None:
    """Changes the conditions and the metadata in a run's checkpoints."""
    for path in out.glob("model.ckpt-*.json"):
        state = metadata.read_run_state(str(path)[:-5])
        flags = state["flags"] | {"conditions": state["flags"]["conditions"] | conditions}
        jobs.change_json(path, flags=flags, metadata=state["metadata"] | known)


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
            labels = ["bad", "good"]
            pretend(copy.out, {"task": "tsv", "label_list": labels}, task="tsv", label_names=labels)
        more = [] if name in ("own file", "pretraining") else jobs.TUNERS[name].asked
        return command, copy.out, [*flags(tmp_path), *more]

    return get


@pytest.mark.parametrize("name, cases", [
    ("own file", [
        (None, ["--label_list=good,bad"], "another label_list (['bad', 'good'], not ['good', 'bad']"),
        (lambda folder: write_own(folder, labels=("0", "1")), ["--regression"],
         "another label_list (['bad', 'good'], not []"),
        (lambda folder: write_own(folder, labels=("bad", "aces")), [],
         "another label_list (['bad', 'good'], not ['aces', 'bad']"),
    ]),
    ("tokens", [
        (None, ["--label_list=O I-PER B-PER"], "['O', 'B-PER', 'I-PER'], not ['O', 'I-PER', 'B-PER']"),
        (lambda folder: write_words(folder, "B-LOC"), [],
         "['O', 'B-PER', 'I-PER'], not ['O', 'B-LOC', 'I-LOC']"),
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
        pretend(out, {"vocabulary or tokenizer setting": "one"})
        spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
        write_records(str(tmp_path / "train.tfrecord"), pretraining_rows(12), spec,
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
    other = {"task": "cola", "label_list": ["0", "1"]}
    earlier_run.check(origin, other)
    with pytest.raises(FlagError, match=r"was trained with another task \(sst-2, not cola\): use another --output_dir"):
        earlier_run.check(origin, other, is_resumed=True)
    trained, of_five = str(tuned("race").out / "model.ckpt-4"), {"task": "race", "number of options": 5}
    earlier_run.check(trained, of_five)  # each option has its own logit
    with pytest.raises(FlagError, match=r"with another number of options \(4, not 5\)"):
        earlier_run.check(trained, of_five, is_resumed=True)


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


# --- Flags that a finished run was not trained with ---


@pytest.mark.parametrize("name", ["squad", "pretraining", OWN])
def test_a_finished_run_with_other_training_flags_is_refused(name, started, tmp_path, capsys):
    command, flags = started(name, True)
    capsys.readouterr()
    with untouched(tmp_path / "out"):
        assert command(*flags, "--learning_rate=0.5") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "out is already trained, with --learning_rate=" in line and "not 0.5" in line
    assert command(*flags, "--eval_batch_size=3" if name != "squad" else "--predict_batch_size=3") == 0


def test_a_finished_run_with_other_masks_is_refused(started, tmp_path, capsys):
    """Which records without masks get from the flags."""
    command, flags = started("pretraining", True)
    for path in (tmp_path / "out").glob("model.ckpt-*.json"):
        recorded = metadata.read_run_state(str(path)[:-5])["flags"]
        jobs.change_json(path, flags=recorded | {"mask_token_share": 1.0, "teacher": "another"})
    capsys.readouterr()
    assert command(*flags) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "--mask_token_share=1.0, not 0.8" in line and "--teacher=another, not None" in line


def test_workers_at_different_steps_are_refused_before_anything_changes(started, tmp_path, monkeypatch, capsys):
    def refuse(engine, values):
        if any(name.startswith("step in ") for name in values):
            raise FlagError("workers differ")

    monkeypatch.setattr(loop, "check_agreement", refuse)
    command, flags = started("race", False)
    with untouched(tmp_path / "out"):
        assert command(*flags) == 2
    assert "workers differ" in assert_one_clear_line(capsys.readouterr().err)


def test_the_report_tells_what_the_model_was_trained_with_whatever_is_typed_later(own, tmp_path, monkeypatch):
    rate = metadata.read_run_state(str(tmp_path / "out/model.ckpt-6"))["flags"]["learning_rate"]
    asked = ["--nodo_train", "--do_eval", "--learning_rate=0.5", "--optimizer=adamw", "--class_weights=balanced"]
    write, is_balanced = classifier_report.write, []
    monkeypatch.setattr(classifier_report, "write", lambda *a, **k: is_balanced.append(k["is_balanced"]) or write(*a, **k))
    assert jobs.classify(*own, *asked) == 0
    assert is_balanced == [False]
    report = (tmp_path / "out/report.md").read_text()
    assert f"| --learning_rate | {rate:g} (when it was trained) |" in report
    assert "(given)" not in report.partition("--learning_rate")[2].partition("--train_batch")[0]


# --- Directories of other kinds ---


@pytest.mark.parametrize("name", ["pretraining", OWN])
def test_no_command_writes_into_the_directory_of_another_kind(name, started, tmp_path, capsys):
    command, flags = started(name, True)
    (tmp_path / "text.txt").write_text("w1 w2 w3.\n" * 50)
    text = f"--input_file={tmp_path / 'text.txt'}", "--hours=0.001"
    with untouched(tmp_path / "out"):
        assert run_here(pretrain_from_text, *text, f"--output_dir={tmp_path / 'out'}") == 2
    assert "out holds another model or run: use another" in assert_one_clear_line(capsys.readouterr().err)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/plan.json").write_text("{}")
    with untouched(tmp_path / "begun"):
        assert command(*flags, f"--output_dir={tmp_path / 'begun'}") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "begun holds a run of pretrain_from_text: use another directory" in line


def test_results_of_a_checkpoint_go_into_no_other_runs_directory(own, whole, tmp_path, capsys):
    whole.copy(tmp_path / "other")
    asked = ["--nodo_train", "--do_eval", f"--checkpoint={tmp_path / 'out'}", f"--output_dir={tmp_path / 'other'}"]
    with untouched(tmp_path / "other"):
        assert jobs.classify(*own, *asked) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "other holds another model or run: use another directory" in line


# --- Heads that were trained for other labels ---

FAST_HEADS = {("command", "good,bad"), ("prefix", "bad,best"), ("python", "good,bad"), ("python", "bad,fine,good")}


@pytest.mark.parametrize("by, labels, is_kept", [
    pytest.param(by, *case, marks=() if (by, case[0]) in FAST_HEADS else pytest.mark.slow)
    for by in ("command", "prefix", "python") for case in (
        ("bad,good", True), ("good,bad", True), ("bad,best", False), ("bad,fine,good", False))
])
def test_a_head_answers_only_for_the_labels_that_it_was_trained_for(
    by, labels, is_kept, own, tmp_path, capsys, caplog
):
    caplog.set_level("INFO", "albert")
    names, before = labels.split(","), checkpoints.open_weights(str(tmp_path / "out"))
    if by == "python":
        model = albert.AlbertForSequenceClassification.from_pretrained(
            str(tmp_path / "out"), label_names=names)
        head = model.classifier.output_weights.numpy()
    else:
        write_own(tmp_path, labels=names[:2])
        with (tmp_path / "own.csv").open("a") as stream:
            stream.writelines(f"w{i} w{i} w7,{label}\n" for i in range(4) for label in names)
        start = "out" if by == "command" else "out/model.ckpt-best"
        changed = [f"--init_checkpoint={tmp_path / start}", f"--output_dir={tmp_path / 'new'}",
                   f"--label_list={labels}", "--train_step=1", "--learning_rate=1e-12", "--do_train",
                   "--do_eval"]
        assert jobs.classify(*own, *changed) == 0
        head = checkpoints.open_weights(str(tmp_path / "new/model.ckpt-1")).read("output_weights")
    rows = before.read("output_weights")
    assert len(head) == len(names)
    said = "its head was trained for bad; good, so this one is new" in caplog.text + capsys.readouterr().err
    assert said != is_kept
    for name, row in zip(names, head, strict=True):
        same = name in ("bad", "good") and np.allclose(row, rows[("bad", "good").index(name)], atol=1e-6)
        assert same == is_kept


def test_a_conversion_gives_no_head_other_labels(own, tmp_path, capsys):
    flags = f"--albert_directory={tmp_path / 'out'}", f"--output_dir={tmp_path / 'theirs'}"
    assert run_here(convert_hf, *flags, "--label_list=bad,best") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "was trained for the labels bad; good, not bad; best" in line
    assert run_here(convert_hf, *flags, "--label_list=good,bad") == 0
    head = pretrained.open_path(str(tmp_path / "theirs")).weights().read("output_weights")
    np.testing.assert_array_equal(head, checkpoints.open_weights(str(tmp_path / "out")).read("output_weights")[::-1])


def test_a_head_of_words_starts_no_head_of_texts(tuned, tmp_path):
    """Their weights have the same names and shapes."""
    folder = str(tuned("tokens").out)
    words = albert.AlbertForTokenClassification.from_pretrained(folder)
    with pytest.raises(CheckpointError, match="has no classifier yet: give num_labels"):
        albert.AlbertForSequenceClassification.from_pretrained(folder)
    texts = albert.AlbertForSequenceClassification.from_pretrained(folder, num_labels=3)
    assert not np.allclose(words.classifier.output_weights, texts.classifier.output_weights)


def test_a_pooler_that_nobody_trained_is_not_written(tmp_path):
    """As Hugging Face's class for masked tokens has none, its files would hold a random one."""
    source = save(random_model("AlbertForMaskedLM"), tmp_path / "source")
    assert 0 == run_here(convert_hf, f"--albert_directory={source}", f"--output_dir={tmp_path / 'theirs'}")
    model = albert.AlbertForMaskedLM.from_pretrained(str(tmp_path / "theirs"))
    model.save_pretrained(str(tmp_path / "saved"))
    assert 0 == run_here(convert_hf, f"--hf_directory={tmp_path / 'theirs'}", f"--output_dir={tmp_path / 'ours'}")
    for name in ("theirs", "saved", "ours"):
        names = pretrained.open_path(str(tmp_path / name)).weights().shapes
        assert "bert/embeddings/word_embeddings" in names
        assert not [name for name in names if name.startswith("bert/pooler/")]
        again = albert.AlbertModel.from_pretrained(str(tmp_path / name))
        kernel = next(w for n, w in named_weights(again).items() if n == "bert/pooler/dense/kernel")
        kernel.assign(kernel + 1)  # trained, it is written
        again.save_pretrained(str(tmp_path / f"{name}-trained"))
        assert "bert/pooler/dense/kernel" in pretrained.open_path(str(tmp_path / f"{name}-trained")).weights().shapes
