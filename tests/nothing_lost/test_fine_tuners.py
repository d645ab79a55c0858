"""What pretraining survives, the fine-tuning commands survive: classifier, SQuAD and RACE."""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from helpers import assert_one_clear_line, metrics, write_config
from invariants import nothing_lost, snapshot

from albert.formats import checkpoint_files, checkpoints
from albert.storage import locks
from albert.training.history import History
import jobs
from test_full_disk import file_limit


@dataclasses.dataclass(frozen=True)
class Tuner:
    """A fine-tuning command, its flags for a tiny run, and what it then has written."""

    run: Callable[..., int]
    flags: Callable[..., list[str]]
    asked: tuple[str, ...]  # what it is to do
    last: int  # step at which it is done; it saves half-way, too
    results: tuple[str, ...]
    task: str


TUNERS = {
    "classifier": Tuner(
        jobs.classify, jobs.classifier_flags, ("--do_train", "--do_eval", "--do_predict"), 6,
        ("eval_results.txt", "test_results.tsv"), "sst-2",
    ),
    "squad": Tuner(
        jobs.squad, jobs.squad_flags, (), 4,
        ("eval_results.txt", "predictions.json", "nbest_predictions.json"), "squad_v1",
    ),
    "race": Tuner(
        jobs.race, jobs.race_flags, (), 4, ("eval_results.txt", "test_results.tsv"), "race",
    ),
}
NAMES = [*TUNERS]


@pytest.fixture
def whole(run_once, request) -> jobs.Run:
    """A run to its end, undisturbed."""
    name = request.node.callspec.params["name"]
    tuner = TUNERS[name]
    return run_once(f"tuned-{name}", tuner.run, lambda f: [*tuner.flags(f), *tuner.asked])


@pytest.fixture
def finished(whole, tmp_path) -> jobs.Run:
    return whole.copy(tmp_path / "out")


def assert_same_results(name: str, ours: pathlib.Path, theirs: pathlib.Path) -> None:
    jobs.assert_same_run(ours, theirs, TUNERS[name].last)
    for file in TUNERS[name].results:
        assert (ours / file).read_bytes() == (theirs / file).read_bytes(), file


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fine_tuner_that_was_stopped_resumes_to_the_same_bits(
    name, whole, tmp_path, monkeypatch
):
    flags = [*whole.flags, f"--output_dir={tmp_path / 'out'}"]
    half = TUNERS[name].last // 2
    jobs.sigterm_when(
        monkeypatch, History, "note", lambda history, before, rows: before >= half
    )
    assert TUNERS[name].run(*flags) == 143
    with nothing_lost(tmp_path):
        assert TUNERS[name].run(*flags) == 0
    assert_same_results(name, tmp_path / "out", whole.out)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_checkpoint_of_a_fine_tuner_is_set_aside_and_its_steps_made_again(
    name, whole, finished, capsys
):
    newest = f"model.ckpt-{TUNERS[name].last}"
    os.truncate(finished.out / f"{newest}.data-00000-of-00001", 500)
    (finished.out / "checkpoint").write_text("\0garbage")
    with nothing_lost(finished.out, "*/best.json", "*/model.ckpt-best*", "*results*",
                      "*predictions.json"):
        assert TUNERS[name].run(*finished.flags) == 0
    said = capsys.readouterr().err
    assert f"{newest} unreadable (" in said and f"ckpt-{TUNERS[name].last // 2} left off" in said
    assert_same_results(name, finished.out, whole.out)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fine_tuner_without_a_readable_checkpoint_stops_and_touches_nothing(
    name, finished, capsys
):
    for path in finished.out.glob("model.ckpt-[0-9]*.index"):
        os.truncate(path, 10)
    before = snapshot(finished.out)
    assert TUNERS[name].run(*finished.flags) == 2
    assert "no checkpoint in" in assert_one_clear_line(capsys.readouterr().err)
    after = snapshot(finished.out)
    del before[str(finished.out / ".lock")], after[str(finished.out / ".lock")]
    assert after == before


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fine_tuner_that_is_done_trains_nothing_and_says_the_same(
    name, whole, finished, capsys
):
    for file in TUNERS[name].results:
        (finished.out / file).unlink()
    with nothing_lost(finished.out):
        assert TUNERS[name].run(*finished.flags) == 0
    assert f"already trained to step {TUNERS[name].last}" in capsys.readouterr().err
    assert_same_results(name, finished.out, whole.out)


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_in_use_is_refused_by_every_fine_tuner(name, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    flags = [*TUNERS[name].flags(tmp_path), *TUNERS[name].asked, f"--cached_dir={tmp_path / 'c'}"]
    with locks.hold(str(tmp_path / "out")):
        before = snapshot(tmp_path / "out")
        assert TUNERS[name].run(*flags) == 2
        assert snapshot(tmp_path / "out") == before
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"is in use by pid {os.getpid()} on host" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_directory_of_another_architecture_or_task_is_refused_by_every_fine_tuner(
    name, finished, tmp_path, capsys
):
    other = next(n for n in NAMES if n != name)
    (tmp_path / "other").mkdir()
    wide = write_config(tmp_path, hidden_size=32, num_hidden_layers=1)
    stranger = [*TUNERS[other].flags(tmp_path / "other"), *TUNERS[other].asked]
    with nothing_lost(finished.out):
        for tuner, flags, message in (
            (name, [*finished.flags, f"--albert_config_file={wide}"],
             "hidden_size: checkpoint 16, config 32"),
            (other, [*stranger, f"--output_dir={finished.out}"],
             f"is of task {TUNERS[name].task}, not {TUNERS[other].task}"),
        ):
            cache = f"--cached_dir={tmp_path / 'c'}"
            assert TUNERS[tuner].run(*flags, cache) == 2
            assert message in assert_one_clear_line(capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_features_that_were_cut_are_made_again_and_flipped_ones_are_named(
    name, whole, finished, tmp_path, capsys
):
    records = shutil.copytree(whole.out.parent / ".out.work", tmp_path / "records")
    flags = [*finished.flags, f"--cached_dir={records}"]
    caches = [*records.glob("*.tf_record")]
    assert len(caches) >= 2
    for path in finished.out.glob("model.ckpt-*"):  # train again, from those features
        path.unlink()
    for file in ("metrics.jsonl", "best.json"):
        (finished.out / file).unlink()
    [path] = records.glob("*_train-*.tf_record")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert TUNERS[name].run(*flags) == 2
    assert f"{path.name}: corrupt after record" in assert_one_clear_line(capsys.readouterr().err)
    for path in caches:
        os.truncate(path, path.stat().st_size // 2)
    assert TUNERS[name].run(*flags) == 0
    assert_same_results(name, finished.out, whole.out)
    for path in caches:
        made = whole.out.parent / ".out.work" / path.name
        assert path.read_bytes() == made.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fine_tuner_on_a_full_disk_stops_with_one_line_and_keeps_what_was_saved(
    name, finished, capsys
):
    newest = TUNERS[name].last
    for path in finished.out.glob(f"model.ckpt-{newest}.*"):
        path.unlink()
    with nothing_lost(finished.out), file_limit(20_000):
        assert TUNERS[name].run(*finished.flags) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "cannot write" in line and f"model.ckpt-{newest}" in line
    assert list(checkpoints.list_steps(str(finished.out))) == [newest // 2]


@pytest.mark.parametrize(
    "name", ["race", *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n != "race")]
)
def test_a_fine_tuner_whose_losses_are_no_numbers_ends_with_3_and_saves_nothing(
    name, tmp_path, capsys
):
    from albert.config import AlbertConfig
    from albert.modeling import AlbertModel, parameter_shapes

    steps = {"num_train_epochs": 10} if name == "squad" else {"train_step": 20}
    flags = [*TUNERS[name].flags(tmp_path, **steps), *TUNERS[name].asked]
    config = AlbertConfig.from_json_file(str(tmp_path / "albert_config.json"))
    shapes = parameter_shapes(AlbertModel(config))
    checkpoint_files.write(
        str(tmp_path / "diverged"), {n: np.full(s, np.nan, "float32") for n, s in shapes.items()}
    )
    with nothing_lost(tmp_path):
        assert TUNERS[name].run(*flags, f"--init_checkpoint={tmp_path / 'diverged'}") == 3
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "training diverged at step" in line and "not finite: bert/" in line
    assert "last good checkpoint: none was written" in line
    assert not list((tmp_path / "out").glob("model.ckpt*"))


# --- What does not fit together, for every command that it concerns ---


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_position_embeddings": 8, "vocab_size": jobs.VOCAB}, "max_position_embeddings 8"),
        ({"vocab_size": 50}, "vocab_size"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
    ],
    ids=["too long", "another vocabulary", "heads"],
)
def test_sizes_that_do_not_fit_are_refused_by_every_fine_tuner(
    change, message, name, tmp_path, capsys
):
    flags = [*TUNERS[name].flags(tmp_path), *TUNERS[name].asked, "--max_seq_length=12"]
    write_config(tmp_path, **change)
    with nothing_lost(tmp_path):
        assert TUNERS[name].run(*flags) == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("name", [*NAMES, "pretraining"])
def test_steps_and_batches_that_do_not_fit_are_refused_by_every_command(name, tmp_path, capsys):
    if name == "pretraining":
        run, flags = jobs.pretrain, jobs.pretraining_flags(tmp_path)
        warm_up = "--num_warmup_steps=24"
    else:
        run, flags = TUNERS[name].run, [*TUNERS[name].flags(tmp_path), *TUNERS[name].asked]
        warm_up = "--warmup_step=900"
        flags = [flag for flag in flags if not flag.startswith("--num_train_epochs")]
        flags.append("--train_step=4")
    with nothing_lost(tmp_path):
        assert run(*flags, warm_up) == 2
        assert warm_up in assert_one_clear_line(capsys.readouterr().err)
        assert run(*flags, "--gradient_accumulation_steps=3") == 2
    assert "--train_batch_size=4" in assert_one_clear_line(capsys.readouterr().err)
    assert not list(tmp_path.glob("out/model.ckpt*"))


# --- Files of tasks ---

QUESTION = {"id": "1", "question": "w1?", "answers": [{"text": "w2", "answer_start": 3}]}


def of_squad(*questions) -> str:
    paragraphs = [{"context": "w1 w2 w3", "qas": [*questions]}]
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


def of_race(**change) -> str:
    return json.dumps({
        "id": "1", "article": "w1", "questions": ["w3 _"], "options": [["w1", "w2", "w3", "w4"]],
        "answers": ["A"],
    } | change)


BAD_FILES = {
    "classifier": ("SST-2/train.tsv", [
        ("text\tlabel\nw1\t0\nw2\n", "train.tsv:3: expected at least 2 tab-separated columns"),
        ("text\tlabel\nw1\tentails\n", "train.tsv:2: label 'entails' is not one of 0, 1"),
        ("", "train.tsv: the file is empty"),
        ("text\tlabel\n", "train.tsv: no examples in it"),
        ("w1\t0\nw2\t1\n", "train.tsv:1: a header line is expected, this is data"),
    ]),
    "squad": ("squad.json", [
        ("{", "squad.json:1:2: not JSON"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "data[0].paragraphs[0]: no 'context'"),
        (of_squad(QUESTION, {"id": "2"}), "data[0].paragraphs[0].qas[1]: no 'question'"),
        (of_squad(QUESTION, QUESTION), "qas[1]: id '1' stands already at data[0].paragraphs[0]"),
        (of_squad(QUESTION | {"answers": [{"text": "w2"}]}), "answers[0]: no 'answer_start'"),
        (of_squad(QUESTION | {"answers": [{"text": "w2", "answer_start": 900}]}),
         "no question"),
    ]),
    "race": ("RACE/train/middle/0.txt", [
        ("{", "0.txt:1:2: not JSON"),
        (of_race(answers=["E"]), "0.txt:1: question 1: answer 'E' is not one of A, B, C, D"),
        (of_race(options=[["w1"]]), "0.txt:1: question 1 has 1 options, expected 4"),
        (of_race(article=3), "0.txt:1: article must be a text, got 3"),
        ("[]", "0.txt:1: a passage is a JSON object, got list"),
    ]),
}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        pytest.param(name, text, message, id=f"{name}: {message}")
        for name, (_, cases) in BAD_FILES.items() for text, message in cases
    ],
)
def test_a_bad_file_of_a_task_is_one_line_with_its_place_and_nothing_is_written(
    name, text, message, tmp_path, capsys
):
    flags = [*TUNERS[name].flags(tmp_path), *TUNERS[name].asked]
    (tmp_path / BAD_FILES[name][0]).write_text(text)
    before = snapshot(tmp_path)
    assert TUNERS[name].run(*flags) == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert snapshot(tmp_path) == before


LAST_FILES = {
    "classifier": ("SST-2/test.tsv", "index\tsentence\n", "test.tsv: no examples in it"),
    "squad": ("other.json", "{", "other.json:1:2: not JSON"),
    "race": ("RACE/test/high/0.txt", "{", "0.txt:1:2: not JSON"),
}


@pytest.mark.parametrize("name", NAMES)
def test_all_files_of_a_task_are_read_before_anything_is_written(name, tmp_path, capsys):
    flags = [*TUNERS[name].flags(tmp_path), *TUNERS[name].asked]
    file, text, message = LAST_FILES[name]
    (tmp_path / file).write_text(text)
    if name == "squad":
        flags.append(f"--predict_file={tmp_path / file}")
    before = snapshot(tmp_path)
    assert TUNERS[name].run(*flags) == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("task", "labels", "warning"),
    [
        ("RTE", ["entailment"] * 2, "every label is entailment: there is nothing to learn"),
        ("MNLI", ["entailment", "neutral"], "no example has the label contradiction"),
    ],
)
def test_labels_that_are_all_the_same_or_that_no_example_has_are_told(
    task, labels, warning, tmp_path, capsys
):
    flags = [*jobs.classifier_flags(tmp_path, task_name=task), "--do_train"]
    (tmp_path / task).mkdir()
    rows = ["\t".join(["w1"] * 10 + [label]) for label in ("label", *labels)]
    (tmp_path / task / "train.tsv").write_text("\n".join(rows) + "\n")
    assert jobs.classify(*flags, "--train_step=1", "--train_batch_size=1") == 0
    assert f"{task}/train.tsv: {warning}" in capsys.readouterr().err


def test_a_line_of_training_calls_its_figures_those_of_training(runs):
    for line in metrics(runs("classifier").out):
        of_other = {"train": "eval_", "eval": "train_"}[line["kind"]]
        assert not [name for name in line if name.startswith(of_other)]
        assert f"{line['kind']}_accuracy" in line


def test_an_answer_that_cannot_be_placed_is_left_out_of_training_and_stays_in_the_evaluation(
    tmp_path, capsys
):
    from albert.tasks.squad import features as squad_features

    path = pathlib.Path(jobs.write_squad(tmp_path))
    value = json.loads(path.read_text())
    for paragraph, answer in zip(value["data"][0]["paragraphs"], (900, -1, 0), strict=False):
        paragraph["qas"][0]["answers"][0]["answer_start"] = answer
    path.write_text(json.dumps(value))
    logged = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(squad_features.log, "warning", lambda *parts: logged.append(parts))
        assert len(squad_features.read_examples(str(path), True)) == 5
        assert len(squad_features.read_examples(str(path), False)) == 8
    said = logged[0][0] % logged[0][1:]
    assert "3 of 8 questions" in said and "data[0].paragraphs[1].qas[0]" in said
    assert len(squad_features.read_answers(str(path))) == 8


@pytest.mark.slow
def test_a_passage_of_ten_megabytes_is_cut_into_windows_within_a_minute_of_cpu_and_4_gb(
    tmp_path
):
    words = " ".join(jobs.WORDS[i % len(jobs.WORDS)] for i in range(2_700_000))
    assert len(words) > 10_000_000
    path = tmp_path / "huge.json"
    question = {"id": "1", "question": "w5?", "answers": [{"text": "w1", "answer_start": 3}]}
    path.write_text(json.dumps({"version": "1.1", "data": [
        {"title": "t", "paragraphs": [{"context": words, "qas": [question]}]}
    ]}))
    code = (
        "import sys, time; from albert.tasks.squad import features as s\n"
        "from albert.tokenization import FullTokenizer\n"
        "tokenizer = FullTokenizer(sys.argv[2], True)\n"
        "examples = s.read_examples(sys.argv[1], True)\n"
        "count = sum(1 for _ in s.make_windows(examples, tokenizer, max_seq_length=384,\n"
        "    doc_stride=128, max_query_length=64, is_training=True))\n"
        "[line] = [l for l in open('/proc/self/status') if l.startswith('VmHWM')]\n"
        "print(count, time.process_time(), line.split()[1])"
    )
    count, seconds, kilobytes = jobs.python(
        code, path, jobs.write_vocabulary(tmp_path)).split()
    assert int(count) > 2_700_000 / 384 and float(seconds) < 60 and int(kilobytes) < 4 << 20
