"""A rerun on other data, another split, seed or meaning of the ids is refused; so is another's directory."""

import json

import jobs
import numpy as np
import pytest
from helpers import (
    SIZES, assert_one_clear_line, results_of, run_here, write_pretraining_records,
)
from hf_models import random_model, save
from invariants import untouched

import albert
from albert import convert_hf, pretrain_from_text
from albert.cli import classifier_report, earlier_run
from albert.errors import CheckpointError, FlagError
from albert.formats import checkpoints, metadata, pretrained
from albert.formats.weights import Weights
from albert.model.weights import named_weights
from albert.training import loop, store

OWN, OWN_RUN = "own table", ("--do_train", "--do_eval", "--cross_validation=0")


def own_flags(folder) -> list[str]:
    write_own(folder)
    flags = jobs.classifier_flags(folder)
    return [flag for flag in flags if not flag[2:].startswith(("task_name", "data_dir"))] + [
        f"--train_file={folder / 'own.csv'}"
    ]


def write_own(folder, labels=("bad", "good"), rows=range(60)):
    lines = [f"w{i % 9} w{i % 7} w{i % 5},{labels[i % 2]}\n" for i in rows]
    (folder / "own.csv").write_text("text,label\n" + "".join(lines))


@pytest.fixture
def own(run_once, tmp_path):
    """A finished run of own.csv, whose rest is held out, and its flags."""
    run = run_once("own-table", jobs.classify, own_flags, *OWN_RUN)
    run.copy(tmp_path / "out")
    return own_flags(tmp_path)


def saved(folder, **run_state) -> str:
    """Saves a checkpoint of step 1; returns its prefix."""
    return store.save(str(folder), 1, {"global_step": np.int64(1)}, {"records_seen": 4} | run_state, 0)


@pytest.fixture
def started(begin, tmp_path, capsys):
    """Function from a command to it and its flags, where its run has saved a checkpoint in tmp_path/out."""

    def get(name) -> tuple:
        command, flags_of, asked = {
            OWN: (jobs.classify, own_flags, OWN_RUN),
            "pretraining": (jobs.pretrain, jobs.pretraining_flags, ()),
            **{name: (tuner.run, tuner.flags, tuner.asked) for name, tuner in jobs.TUNERS.items()},
        }[name]
        flags = [*flags_of(tmp_path), *asked]
        (_, config, *_), options = begin(command, *flags)
        saved(tmp_path / "out", config=config.to_dict(), flags=options["flags"])
        capsys.readouterr()
        return command, flags

    return get


def records(count=40, seed=0):
    return lambda folder: write_pretraining_records(folder / "train.tfrecord", count, seed)


def table(**changes):
    return lambda folder: write_own(folder, **changes)


def another_answer(folder):
    squad = json.loads((path := folder / "squad.json").read_text())
    first = squad["data"][0]["paragraphs"][0]
    first["qas"][0]["answers"] = [{"text": first["context"].split()[0], "answer_start": 0}]
    path.write_text(json.dumps(squad))


def places(folder):
    for split in ("train", "dev", "test"):
        (folder / f"{split}.txt").write_text("w1 B-LOC\nw2 O\n\nw3 O\n" * 4)


def other_order_of_words(folder):
    path = folder / "vocab.txt"
    *others, one, two = path.read_text().split()
    path.write_text("\n".join([*others, two, one]))


OTHER, SEED = "but other texts, labels or order", "was trained with another seed (12345, not 99)"
VOCABULARY = "with another vocabulary or tokenizer setting ("
# For each command: what changes, further flags, and the message.
CHANGES = {
    "pretraining": [
        (records(seed=1), [], OTHER), (records(44), [], "40 examples then, 44 now"),
        (None, ["--seed=99"], SEED),
    ],
    "squad": [(another_answer, [], OTHER), (None, ["--seed=99"], SEED)],
    OWN: [
        (table(labels=("good", "bad")), [], OTHER), (table(rows=range(57)), [], " examples then, "),
        (None, ["--dev_share=0.3"], "--dev_share was 0.1, is 0.3"),
        (None, ["--label_list=good,bad"], "another label_list (['bad', 'good'], not ['good', 'bad']"),
        (table(labels=("0", "1")), ["--regression"], "another label_list (['bad', 'good'], not []"),
        (table(labels=("bad", "aces")), [], "another label_list (['bad', 'good'], not ['aces', 'bad']"),
    ],
    "tokens": [
        (None, ["--label_list=O I-PER B-PER"], "['O', 'B-PER', 'I-PER'], not ['O', 'I-PER', 'B-PER']"),
        (places, [], "['O', 'B-PER', 'I-PER'], not ['O', 'B-LOC', 'I-LOC']"),
        (other_order_of_words, [], VOCABULARY),
    ],
    "race": [
        (other_order_of_words, [], VOCABULARY),
        (None, ["--nodo_lower_case"], "with another do_lower_case (True, not False)"),
    ],
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_data_seeds_and_meanings_of_ids_are_refused(name, started, tmp_path, capsys):
    command, flags = started(name)
    inputs = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for change, more, message in CHANGES[name]:
        if change:
            change(tmp_path)
        with untouched(tmp_path / "out"):
            assert command(*flags, *more) == 2
        for path, content in inputs.items():
            path.write_bytes(content)
        line = assert_one_clear_line(capsys.readouterr().err)
        assert "out/model.ckpt-1 was trained " in line and message in line
        assert line.endswith(": use another --output_dir")


def test_rows_that_were_trained_on_are_never_evaluated(own, tmp_path, capsys):
    for change in ("--seed=99", "--dev_share=0.3", "rows"):
        more = [] if change == "rows" else [change]
        if change == "rows":
            write_own(tmp_path, rows=range(70))
        with untouched(tmp_path / "out"):
            assert jobs.classify(*own, "--nodo_train", "--do_eval", *more) == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert "out/model.ckpt-best was trained " in line and "another --output_dir" in line


def test_the_same_rows_at_another_place_are_the_same_data(started, begin, tmp_path):
    command, flags = started(OWN)
    begin(command, *flags, f"--train_file={(tmp_path / 'own.csv').rename(tmp_path / 'mine.csv')}")


def test_new_rows_may_be_predicted_and_evaluated(own, tmp_path, capsys):
    new = tmp_path / "new.csv"
    new.write_text("text,label\nw80 w81,bad\nw3 w82,good\nw84 w4,good\n")
    write_own(tmp_path, rows=range(57))  # so whether the new ones were trained on is unknown
    asked = [f"--dev_file={new}", f"--test_file={new}", "--nodo_train", "--do_eval", "--do_predict"]
    assert jobs.classify(*own, *asked) == 0
    assert "which may have the evaluated rows" in capsys.readouterr().err
    assert results_of(tmp_path / "out")["eval_accuracy"] in (0, 1 / 3, 2 / 3, 1)
    assert len((tmp_path / "out/submit_results.tsv").read_text().splitlines()) == 4


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


def test_a_later_stage_of_pretraining_may_read_other_files(started, begin, tmp_path, capsys):
    command, flags = started("pretraining")
    other = f"--input_file={write_pretraining_records(tmp_path / 'other.tfrecord', seed=7)}"
    begin(command, *flags, other)
    assert "training continues on other data (--input_file was " in capsys.readouterr().err
    assert command(*flags, other, "--until_step=1") == 2  # it is finished, and not on these
    assert "was trained on other data (--input_file was " in capsys.readouterr().err


def test_another_task_of_the_same_labels_may_evaluate_but_not_resume(tmp_path):
    for then, now, message in (
        ({"task": "sst-2"}, {"task": "cola"}, r"another task \(sst-2, not cola\)"),
        # Each option has its own logit.
        ({"number of options": 4}, {"number of options": 5}, r"another number of options \(4, not 5\)"),
    ):
        origin = saved(tmp_path, flags={"conditions": {"task": "race", "label_list": ["0", "1"]} | then})
        earlier_run.check(origin, {"task": "race", "label_list": ["0", "1"]} | now)
        with pytest.raises(FlagError, match=f"was trained with {message}: use another --output_dir"):
            earlier_run.check(origin, {"task": "race", "label_list": ["0", "1"]} | now, is_resumed=True)


# --- Flags that a finished run was not trained with ---


def test_a_finished_run_with_other_training_flags_is_refused(finished, capsys):
    with untouched(finished.out):
        assert jobs.pretrain(*finished.flags, "--learning_rate=0.5") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "out is already trained, with --learning_rate=" in line and "not 0.5" in line
    assert jobs.pretrain(*finished.flags, "--eval_batch_size=3") == 0
    for path in finished.out.glob("model.ckpt-*.json"):  # as of records without masks
        recorded = metadata.read_run_state(str(path)[:-5])["flags"]
        jobs.change_json(path, flags=recorded | {"mask_token_share": 1.0, "teacher": "another"})
    capsys.readouterr()
    assert jobs.pretrain(*finished.flags) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "--mask_token_share=1.0, not 0.8" in line and "--teacher=another, not None" in line


def test_workers_at_different_steps_are_refused_before_anything_changes(begun, monkeypatch, capsys):
    def refuse(engine, values):
        if any(name.startswith("step in ") for name in values):
            raise FlagError("workers differ")

    monkeypatch.setattr(loop, "check_agreement", refuse)
    with untouched(begun.out):
        assert jobs.pretrain(*begun.flags) == 2
    assert "workers differ" in assert_one_clear_line(capsys.readouterr().err)


def test_the_report_tells_what_the_model_was_trained_with_whatever_is_typed_later(own, tmp_path, monkeypatch):
    rate = metadata.read_run_state(str(tmp_path / "out/model.ckpt-6"))["flags"]["learning_rate"]
    asked = ["--nodo_train", "--do_eval", "--learning_rate=0.5", "--optimizer=adamw",
             "--class_weights=balanced"]
    write, is_balanced = classifier_report.write, []

    def noted(*arguments, **options):
        is_balanced.append(options["is_balanced"])
        return write(*arguments, **options)

    monkeypatch.setattr(classifier_report, "write", noted)
    assert jobs.classify(*own, *asked) == 0
    assert is_balanced == [False]
    report = (tmp_path / "out/report.md").read_text()
    assert f"| --learning_rate | {rate:g} (when it was trained) |" in report
    assert "(given)" not in report.partition("--learning_rate")[2].partition("--train_batch")[0]


# --- Directories of other kinds ---


def test_a_directory_with_somebody_elses_model_is_not_trained_in(tmp_path, capsys):
    another = "holds a model that is not a run's checkpoint: use another"
    for number, (files, message) in enumerate((
        (["config.json", "model.safetensors"], another), (["variables/variables.index"], another),
        (["albert_config.json", "model.ckpt-best.index"], another),
        (["plan.json"], "holds a run of pretrain_from_text: use another directory"),
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
            assert message in assert_one_clear_line(capsys.readouterr().err)


def test_no_command_writes_into_the_directory_of_another_kind(own, whole, tmp_path, capsys):
    out = whole.copy(tmp_path / "other").out
    asked = ["--nodo_train", "--do_eval", f"--checkpoint={tmp_path / 'out'}"]
    with untouched(out):
        assert jobs.classify(*own, *asked, f"--output_dir={out}") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "holds another model or run: use another directory" in line
    (tmp_path / "text.txt").write_text("w1 w2 w3.\n" * 50)
    text = f"--input_file={tmp_path / 'text.txt'}", "--hours=0.001"
    with untouched(out):
        assert run_here(pretrain_from_text, *text, f"--output_dir={out}") == 2
    assert "other holds another model or run: use another" in assert_one_clear_line(capsys.readouterr().err)


# --- Heads that were trained for other labels ---


@pytest.mark.parametrize("labels, is_kept", [
    ("bad,good", True), ("good,bad", True), ("bad,best", False), ("bad,fine,good", False),
])
def test_a_head_answers_only_for_the_labels_that_it_was_trained_for(labels, is_kept, own, tmp_path, caplog):
    caplog.set_level("INFO", "albert")
    model = albert.AlbertForSequenceClassification.from_pretrained(
        str(tmp_path / "out"), label_names=labels.split(","))
    rows = checkpoints.open_weights(str(tmp_path / "out")).read("output_weights")
    assert ("its head was trained for bad; good, so this one is new" in caplog.text) != is_kept
    for name, row in zip(labels.split(","), model.classifier.output_weights.numpy(), strict=True):
        assert (name in ("bad", "good") and (row == rows["bad good".split().index(name)]).all()) == is_kept


def test_a_run_starts_from_the_head_of_its_labels(own, begin, tmp_path):
    for start, labels in (("out", "good,bad"), ("out/model.ckpt-best", "bad,best")):
        write_own(tmp_path, sorted(labels.split(",")))
        _, options = begin(
            jobs.classify, *own, f"--init_checkpoint={tmp_path / start}", f"--output_dir={tmp_path / 'new'}",
            f"--label_list={labels}", "--do_train", "--do_eval")
        if labels == "good,bad":
            rows = checkpoints.open_weights(str(tmp_path / "out")).read("output_weights")
            np.testing.assert_array_equal(options["init"].read("output_weights"), rows[::-1])
        else:
            assert "output_weights" not in options["init"].shapes


def test_a_head_without_names_and_of_another_size_is_new(caplog):
    head = {"output_weights": np.zeros((1, 4), np.float32), "output_bias": np.zeros(1, np.float32)}
    one = Weights.of("sts/model.ckpt-9", head)  # of a regression, or of multiple choice
    assert not {*one.for_labels(None, ("bad", "good")).shapes}
    assert caplog.messages == ["sts/model.ckpt-9: its head was trained for something else, so this one is new"]
    two = Weights.of("theirs", {name: np.repeat(value, 2, 0) for name, value in head.items()})
    for same in (one.for_labels(None, ()), one.for_labels(None, None), two.for_labels(None, ("bad", "good")),
                 one.for_labels(None, ("bad", "good"), is_required=True)):
        assert {*same.shapes} == {*head}


def test_a_conversion_gives_no_head_other_labels(own, tmp_path, capsys):
    flags = f"--albert_directory={tmp_path / 'out'}", f"--output_dir={tmp_path / 'theirs'}"
    assert run_here(convert_hf, *flags, "--label_list=bad,best") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "was trained for the labels bad; good, not bad; best" in line
    assert run_here(convert_hf, *flags, "--label_list=good,bad") == 0
    head = pretrained.open_path(str(tmp_path / "theirs")).weights().read("output_weights")
    rows = checkpoints.open_weights(str(tmp_path / "out")).read("output_weights")
    np.testing.assert_array_equal(head, rows[::-1])


def test_a_head_of_words_starts_no_head_of_texts(tmp_path):
    """Their weights have the same names and shapes."""
    words = albert.AlbertForTokenClassification(albert.AlbertConfig(**SIZES), 3)
    words.save_pretrained(str(tmp_path))
    with pytest.raises(CheckpointError, match="has no classifier yet: pass num_labels"):
        albert.AlbertForSequenceClassification.from_pretrained(str(tmp_path))
    texts = albert.AlbertForSequenceClassification.from_pretrained(str(tmp_path), num_labels=3)
    assert not np.allclose(words.classifier.output_weights, texts.classifier.output_weights)


def test_a_pooler_that_nobody_trained_is_not_written(tmp_path):
    """As Hugging Face's class for masked tokens has none, its files would hold a random one."""
    pooler, theirs = "bert/pooler/dense/kernel", tmp_path / "theirs"
    source = save(random_model("AlbertForMaskedLM"), tmp_path / "source")
    assert 0 == run_here(convert_hf, f"--albert_directory={source}", f"--output_dir={theirs}")
    albert.AlbertForMaskedLM.from_pretrained(str(theirs)).save_pretrained(str(tmp_path / "saved"))
    assert 0 == run_here(convert_hf, f"--hf_directory={theirs}", f"--output_dir={tmp_path / 'ours'}")
    for name in ("theirs", "saved", "ours"):
        names = pretrained.open_path(str(tmp_path / name)).weights().shapes
        assert "bert/embeddings/word_embeddings" in names and pooler not in names
        again = albert.AlbertModel.from_pretrained(str(tmp_path / name))
        kernel = named_weights(again)[pooler]
        kernel.assign(kernel + 1)  # trained, it is written
        again.save_pretrained(str(tmp_path / f"{name}-trained"))
        assert pooler in pretrained.open_path(str(tmp_path / f"{name}-trained")).weights().shapes
