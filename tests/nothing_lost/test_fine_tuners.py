"""The fine-tuning commands survive the same failures as pretraining."""

import json
import os
import pathlib
import re
import shutil

import jobs
import pytest
from helpers import assert_one_clear_line, metrics, write_config
from invariants import nothing_lost, snapshot, untouched

from albert.storage import locks

FAST = ("race",)
MOSTLY_SLOW = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in jobs.TUNERS]
)


def assert_same_results(name: str, ours: pathlib.Path, theirs: pathlib.Path) -> None:
    jobs.assert_same_run(ours, theirs, jobs.TUNERS[name].last)
    for file in jobs.TUNERS[name].results:
        assert (ours / file).read_bytes() == (theirs / file).read_bytes(), file


@MOSTLY_SLOW
def test_a_fine_tuner_repeats_lost_steps_to_the_same_bits(
    name, tuned, tmp_path, capsys
):
    tuner, whole = jobs.TUNERS[name], tuned(name)
    run = whole.copy(tmp_path / "out")
    newest, lines = f"model.ckpt-{tuner.last}", run.out / "metrics.jsonl"
    os.truncate(run.out / f"{newest}.data-00000-of-00001", 500)
    os.truncate(lines, lines.stat().st_size - 20)
    (run.out / "checkpoint").write_text("\0garbage")
    changing = ("*/best.json", "*/model.ckpt-best*", *(f"*/{file}" for file in tuner.results))
    with nothing_lost(run.out, *changing):
        assert tuner.run(*run.flags) == 0
        said = capsys.readouterr().err
        assert said.count("unreadable") == 1 == said.count(f"{newest} unreadable (")
        assert re.search(rf"resuming from \S+ckpt-{tuner.last // 2}\n", said)
        assert (run.out / f"{newest}.index.corrupt").exists()
        assert set(re.findall(r"[ ;] --(\w+)=.*?, not ", said)) <= {"output_dir"}
    assert_same_results(name, run.out, whole.out)
    # Rerunning the command trains nothing, and rewrites its results.
    for file in tuner.results:
        (run.out / file).unlink()
    with nothing_lost(run.out):
        assert tuner.run(*run.flags) == 0
    assert f"already trained to step {tuner.last}" in capsys.readouterr().err
    assert_same_results(name, run.out, whole.out)


@MOSTLY_SLOW
def test_a_fine_tuner_refuses_a_directory_that_it_cannot_use_and_leaves_it_as_it_was(
    name, tuned, tmp_path, capsys
):
    tuner, run = jobs.TUNERS[name], tuned(name).copy(tmp_path / "out")
    other = next(n for n in jobs.TUNERS if n != name)
    (tmp_path / "other").mkdir()
    wide = write_config(tmp_path, hidden_size=32, num_hidden_layers=1)
    stranger = [*jobs.TUNERS[other].flags(tmp_path / "other"), *jobs.TUNERS[other].asked]

    def refused(command, *flags) -> str:
        with untouched(run.out):
            assert command(*flags) == 2
        return assert_one_clear_line(capsys.readouterr().err)

    said = refused(tuner.run, *run.flags, f"--albert_config_file={wide}")
    assert "hidden_size: checkpoint 16, config 32" in said
    said = refused(jobs.TUNERS[other].run, *stranger, f"--output_dir={run.out}")
    assert f"was trained with another task ({tuner.task}, not {jobs.TUNERS[other].task})" in said
    with locks.hold(str(run.out)):
        line = refused(tuner.run, *run.flags)
        assert f"is in use by pid {os.getpid()} on host" in line and "wait for it, or stop it" in line
    for path in run.out.glob("model.ckpt-[0-9]*.index"):
        os.truncate(path, 10)
    assert "no checkpoint in" in refused(tuner.run, *run.flags)


# --- Inputs that do not fit together, for every command concerned ---


@MOSTLY_SLOW
def test_sizes_steps_and_batches_that_do_not_fit_are_refused(name, tmp_path, capsys):
    flags = [*jobs.TUNERS[name].flags(tmp_path), *jobs.TUNERS[name].asked]
    flags = [flag for flag in flags if not flag.startswith("--num_train_epochs")]
    flags.append("--train_step=4")

    def refused(*more) -> str:
        with nothing_lost(tmp_path, "*/albert_config.json"):
            assert jobs.TUNERS[name].run(*flags, *more) == 2
        assert not list(tmp_path.glob("out/model.ckpt*"))
        return assert_one_clear_line(capsys.readouterr().err)

    assert "--warmup_step=900" in refused("--warmup_step=900")
    assert "--train_batch_size=4" in refused("--gradient_accumulation_steps=3")
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    for change, message in (
        ({"max_position_embeddings": 8}, "max_position_embeddings 8"),
        ({"vocab_size": 50}, "vocab_size"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
    ):
        write_config(tmp_path, **change)
        assert message in refused("--max_seq_length=12")
        assert not list(tmp_path.glob("out/*"))


# --- Task files ---

# The tests of each task have all messages.
BAD_FILES = {
    "classifier": [
        ("SST-2/train.tsv", "text\tlabel\nw1\t0\nw2\n", "train.tsv:3: expected at least 2 tab-separated"),
        ("SST-2/test.tsv", "index\tsentence\n", "test.tsv: no examples"),
    ],
    "squad": [
        ("squad.json", "{", "squad.json:1:2: not JSON"), ("other.json", "{", "other.json:1:2: not JSON"),
    ],
    "race": [
        ("RACE/train/middle/0.txt", "[1]", "0.txt:1: expected an object, got int"),
        ("RACE/test/high/0.txt", "{", "0.txt:1:2: not JSON"),
    ],
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_of_a_task_is_one_line_with_its_place_before_anything_is_written(
    name, tmp_path, capsys
):
    for number, (file, text, message) in enumerate(BAD_FILES[name]):
        (folder := tmp_path / str(number)).mkdir()
        flags = [*jobs.TUNERS[name].flags(folder), *jobs.TUNERS[name].asked]
        (folder / file).write_text(text)
        if file == "other.json":
            flags.append(f"--predict_file={folder / file}")
        before = snapshot(folder)
        assert jobs.TUNERS[name].run(*flags) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert snapshot(folder) == before


def test_labels_that_are_all_the_same_or_absent_are_warned_about(tmp_path, capsys, begin):
    for task, labels, warning in (
        ("RTE", ["entailment"] * 2, "every label is entailment: there is nothing to learn"),
        ("MNLI", ["entailment", "neutral"] * 2, "no training example has the label: contradiction"),
        ("QNLI", ["entailment"] * 2 + ["not_entailment"],
         "only one training example has the label (misspelt?): not_entailment"),
    ):
        flags = jobs.classifier_flags(tmp_path, task_name=task)
        (tmp_path / task).mkdir()
        rows = ["\t".join(["w1"] * 10 + [label]) for label in ("label", *labels)]
        (tmp_path / task / "train.tsv").write_text("\n".join(rows) + "\n")
        begin(jobs.classify, *flags, "--do_train", "--train_batch_size=1")
        said = capsys.readouterr().err
        assert f"{task}/train.tsv: {warning}" in said and said.count(" W ") == 1


def test_metrics_of_training_and_evaluation_have_different_names(classified):
    for line in metrics(classified.out):
        other = {"train": "eval_", "eval": "train_"}[line["kind"]]
        assert not [name for name in line if name.startswith(other)]
        assert f"{line['kind']}_accuracy" in line


@pytest.mark.slow
def test_a_passage_of_ten_megabytes_is_cut_into_windows_within_a_minute_of_cpu_and_4_gb(tmp_path):
    words = " ".join(jobs.WORDS[i % len(jobs.WORDS)] for i in range(2_700_000))
    question = {"id": "1", "question": "w5?", "answers": [{"text": "w1", "answer_start": 3}]}
    path = tmp_path / "huge.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": words, "qas": [question]}]}]}))
    assert path.stat().st_size > 10_000_000
    code = (
        "import sys, time; from albert.tasks import squad\n"
        "from albert.tokenization import FullTokenizer\n"
        "tokenizer = FullTokenizer(sys.argv[2], True)\n"
        "questions = squad.read_questions(sys.argv[1], True)\n"
        "count = sum(1 for _ in squad.make_windows(questions, tokenizer, max_seq_length=384,\n"
        "    doc_stride=128, max_query_length=64))\n"
        "[line] = [l for l in open('/proc/self/status') if l.startswith('VmHWM')]\n"
        "print(count, time.process_time(), line.split()[1])"
    )
    count, seconds, kilobytes = jobs.python(code, path, jobs.write_vocabulary(tmp_path)).split()
    assert int(count) > 2_700_000 / 384 and float(seconds) < 60 and int(kilobytes) < 4 << 20
