"""Records from text: the original's statistics, the same bytes always, nothing half-done."""

import dataclasses
import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import jobs
from helpers import cpu_seconds_of_children, parse_with_tensorflow
from invariants import snapshot

from albert import create_pretraining_data as command
from albert.cli import flags
from albert.errors import DataError, FlagError, RunDirBusyError, UserError
from albert.pretraining_data import (
    dynamic_masking,
    instances,
    job,
    masking,
    outputs,
    pipeline,
    shuffle,
)
from albert.pretraining_data.instances import TrainingInstance
from albert.pretraining_data.job import OutputSplit, Recipe
from albert.pretraining_data.masking import MaskingSettings
from albert.pretraining_data.pairs import (
    PAIR,
    Block,
    PairSettings,
    create_pairs,
    randbelow,
    truncate_pairs,
)
from albert.records import records, tfrecord
from albert.records.record_files import RecordFiles
from albert.text import documents, text_files

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NUM_WORDS = 200


@pytest.fixture
def tiny(tmp_path):
    """A folder with a vocabulary w0..w199 and 40 documents; document i has only words wi."""
    (tmp_path / "vocab.txt").write_text(
        "\n".join([*SPECIALS, *(f"w{i}" for i in range(NUM_WORDS))]) + "\n"
    )
    write_corpus(tmp_path / "corpus.txt", range(40))
    return tmp_path


def write_corpus(path, numbers, lines=8):
    texts = ["\n".join([f"w{i} " * (3 + (i + n) % 7) for n in range(lines)]) for i in numbers]
    path.write_text("\n\n".join(texts) + "\n")


def run(folder, **changes):
    """Runs the command in this process; returns its flags."""
    values = dict(
        input_file=folder / "corpus.txt", output_file=folder / "out.tfrecord",
        vocab_file=folder / "vocab.txt", max_seq_length=32, max_predictions_per_seq=5,
        dupe_factor=3, num_processes=1,
    ) | changes
    argv = ["command", *(f"--{k}={v}" for k, v in values.items() if v is not None)]
    parsed = flags.parse(command.define_flags, argv)
    command.main(parsed)
    return parsed


def read(path, length=32, predictions=5):
    """Returns the features of a record file, [N, length] each."""
    recipe = Recipe(
        PairSettings(length), MaskingSettings(predictions), None, None, "", True, 0
    )
    return parse_with_tensorflow(path, recipe.feature_spec())


def leavings(folder):
    """What there is beside the fixture's two files."""
    return sorted(set(os.listdir(folder)) - {"vocab.txt", "corpus.txt"})


def published(folder):
    """What there is besides, without unfinished work."""
    return [name for name in leavings(folder) if not name.endswith(".work")]


def words_in(features):
    return set(np.unique(features["input_ids"])) - set(range(len(SPECIALS)))


# --- Reproducible, whole, complete ---


def test_the_same_bytes_with_one_and_two_processes(tiny, monkeypatch):
    monkeypatch.setattr(job, "_BLOCK", (1500, 1500))  # several blocks
    contents = []
    for processes in (1, 2):
        changes = dict(held_out_fraction=0.2, eval_output_file=tiny / "eval.tfrecord")
        outputs = f"{tiny}/out-0.tfrecord,{tiny}/out-1.tfrecord"
        run(tiny, output_file=outputs, num_processes=processes, **changes)
        names = leavings(tiny)
        assert len(names) == 6  # three files, three manifests
        contents.append({name: (tiny / name).read_bytes() for name in names})
    assert contents[0] == contents[1]


def test_another_seed_gives_other_records(tiny):
    run(tiny)
    before = (tiny / "out.tfrecord").read_bytes()
    run(tiny)
    assert (tiny / "out.tfrecord").read_bytes() == before
    run(tiny, random_seed=1)
    assert (tiny / "out.tfrecord").read_bytes() != before


def test_instances_are_spread_evenly_and_shuffled_over_the_files(tiny):
    outputs = [tiny / f"out-{i}.tfrecord" for i in range(3)]
    run(tiny, output_file=",".join(map(str, outputs)))
    counts = [tfrecord.count_records(str(path)) for path in outputs]
    assert max(counts) - min(counts) <= 3 and min(counts) > 10
    first = read(outputs[0])["input_ids"][:, 1]
    assert (np.diff(first) < 0).sum() > len(first) / 4  # not in the order of the corpus
    manifest = records.Manifest.read(str(outputs[1]))
    assert manifest.info["shards"] == [path.name for path in outputs]
    assert manifest.records == counts[1] and manifest.info["vocab_size"] == 205
    assert manifest.info["flags"]["dupe_factor"] == 3


def test_files_that_would_be_empty_are_refused(tiny):
    write_corpus(tiny / "corpus.txt", [1], lines=2)
    outputs = ",".join(str(tiny / f"out-{i}.tfrecord") for i in range(30))
    with pytest.raises(DataError, match=r"would be empty: \d+ records for 30 files"):
        run(tiny, output_file=outputs)
    assert published(tiny) == []


def test_a_failure_keeps_the_previous_records(tiny, monkeypatch):
    run(tiny)
    before = {name: (tiny / name).read_bytes() for name in leavings(tiny)}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pipeline.shutil, "copyfileobj", full)
    with pytest.raises(UserError, match="cannot write .*No space left on device"):
        run(tiny, random_seed=2)
    assert {name: (tiny / name).read_bytes() for name in published(tiny)} == before


# --- As a process ---


def spawn(folder, *more, **kwargs):
    argv = [
        sys.executable, "-m", "albert.create_pretraining_data",
        f"--input_file={folder}/corpus.txt", f"--output_file={folder}/out.tfrecord",
        f"--vocab_file={folder}/vocab.txt", "--max_seq_length=32", *more,
    ]
    root = os.path.dirname(os.path.dirname(os.path.abspath(command.__file__)))
    return subprocess.Popen(argv, cwd=root, stderr=subprocess.PIPE, text=True, **kwargs)


WORK = ".out.tfrecord.work"


def wait_for_work(folder, process, tasks=1):
    """Waits until so many tasks of a run are done."""
    deadline = time.monotonic() + 60
    while sum(name.suffix == ".pairs" for name in (folder / WORK).glob("*")) < tasks:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number, processes, code", [
    (signal.SIGTERM, 1, 143), (signal.SIGINT, 2, 130), (signal.SIGKILL, 2, -signal.SIGKILL),
])
def test_whatever_ends_a_run_the_same_command_resumes_it_to_the_same_bytes(
    number, processes, code, tiny
):
    flags_of_run = ("--dupe_factor=600", f"--num_processes={processes}")
    process = spawn(tiny, *flags_of_run)
    wait_for_work(tiny, process, tasks=2)
    process.send_signal(number)
    _, log = process.communicate(timeout=60)
    assert process.returncode == code, log
    assert leavings(tiny) == [WORK]
    if number != signal.SIGKILL:
        assert f"stopped by {signal.Signals(number).name}: rerun the same command to resume" in log
    _, log = (again := spawn(tiny, *flags_of_run)).communicate(timeout=300)
    assert again.returncode == 0, log
    assert int(re.search(r"resumed an unfinished run: (\d+) of its tasks", log)[1]) >= 2
    assert leavings(tiny) == ["out.tfrecord", "out.tfrecord.manifest.json"]
    found = (tiny / "out.tfrecord").read_bytes()
    _, log = (alone := spawn(tiny, *flags_of_run)).communicate(timeout=300)
    assert alone.returncode == 0 and "resumed" not in log, log
    assert (tiny / "out.tfrecord").read_bytes() == found


def test_other_jobs_in_a_folder_leave_unfinished_work_alone_and_use_none_of_it(tiny, capsys):
    process = spawn(tiny, "--dupe_factor=100000", "--num_processes=1")
    wait_for_work(tiny, process)
    with pytest.raises(RunDirBusyError, match=f"{WORK} is in use by pid {process.pid} on host"):
        run(tiny)
    process.kill()
    process.communicate(timeout=60)
    before = snapshot(tiny / WORK)
    run(tiny, output_file=f"{tiny}/another.tfrecord")
    assert snapshot(tiny / WORK) == before
    run(tiny)  # the same output by other flags: the unfinished work is of no use
    assert leavings(tiny) == [
        f"{name}{suffix}" for name in ("another.tfrecord", "out.tfrecord")
        for suffix in ("", ".manifest.json")
    ]


def die_at(monkeypatch, module, name, number):
    """Lets the `number`-th call of a function end its process as by kill -9."""
    original, left = getattr(module, name), [number]

    def call(*arguments):
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
        return original(*arguments)

    monkeypatch.setattr(module, name, call)


def calls_of(monkeypatch, *functions):
    """Returns {name: calls} of (module, name), which is kept up to date."""
    counts = dict.fromkeys((name for _, name in functions), 0)

    def counted(module, name):
        original = getattr(module, name)

        def call(*arguments):
            counts[name] += 1
            return original(*arguments)

        return call

    for module, name in functions:
        monkeypatch.setattr(module, name, counted(module, name))
    return counts


PAIRING, FRAMING = (shuffle, "deal_pairs"), (instances, "frame_bucket")


def run_in_a_fork(monkeypatch, owner, name, number, folder, **changes):
    """Runs the command in a process that dies as by kill -9 in a call of a function."""
    child = os.fork()
    if child == 0:
        try:
            die_at(monkeypatch, owner, name, number)
            run(folder, **changes)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize(
    ("owner", "name", "number", "kept_pairings", "framings"),
    [
        (*PAIRING, 2, 2, 4),
        (*FRAMING, 1, None, 3),
        (outputs.Output, "add", 2, None, 1),  # after the third bucket was appended and noted
        (outputs, "_publish_file", 1, None, 0),  # between the two files
        (outputs.records, "manifest_path", 4, None, 0),  # before their manifests
    ],
)
def test_finished_work_of_a_killed_run_stays_and_nothing_is_lost_or_double(
    owner, name, number, kept_pairings, framings, tiny, monkeypatch, caplog
):
    monkeypatch.setattr(job, "_BLOCK", (1500, 1500))
    caplog.set_level("INFO", "albert")
    monkeypatch.setattr(OutputSplit, "num_buckets", lambda *_: 4)
    paths = dict(output_file=f"{tiny}/out-0.tfrecord,{tiny}/out-1.tfrecord")
    whole = calls_of(monkeypatch, PAIRING, FRAMING)
    run(tiny, **paths)
    assert whole["deal_pairs"] > 3 and whole["frame_bucket"] == 4
    # None: all of them are kept.
    pairings = 0 if kept_pairings is None else whole["deal_pairs"] - kept_pairings
    expected = {path: (tiny / path).read_bytes() for path in leavings(tiny)}
    for path in expected:
        (tiny / path).unlink()
    run_in_a_fork(monkeypatch, owner, name, number, tiny, **paths)
    again = calls_of(monkeypatch, PAIRING, FRAMING)
    run(tiny, **paths)
    assert again == {"deal_pairs": pairings, "frame_bucket": framings}
    assert "resumed an unfinished run: " in caplog.text
    assert {path: (tiny / path).read_bytes() for path in leavings(tiny)} == expected


def test_a_run_resumed_with_other_processes_loses_nothing(tiny, monkeypatch):
    size = (tiny / "corpus.txt").stat().st_size
    monkeypatch.setattr(job, "_BLOCK", (size // 3 + 1,) * 2)  # fewer blocks than processes use
    first, second = (dict(num_processes=count, dupe_factor=8) for count in (1, 2))
    run(tiny, **first)
    expected = (tiny / "out.tfrecord").read_bytes()
    (tiny / "out.tfrecord").unlink()
    run_in_a_fork(monkeypatch, *PAIRING, 1, tiny, **first)
    run(tiny, **second)
    assert (tiny / "out.tfrecord").read_bytes() == expected


def test_only_the_blocks_of_a_mended_line_are_made_again(tiny, monkeypatch):
    monkeypatch.setattr(job, "_BLOCK", (400, 400))
    good = (tiny / "corpus.txt").read_bytes()
    (tiny / "corpus.txt").write_bytes(good + b"\xff\xfe\xfd\n" * 40)
    counts = calls_of(monkeypatch, PAIRING)
    with pytest.raises(DataError, match="not UTF-8"):
        run(tiny)
    made = counts["deal_pairs"]
    (tiny / "corpus.txt").write_bytes(good)
    counts["deal_pairs"] = 0
    run(tiny)
    assert made > 20 and counts["deal_pairs"] <= 4  # two blocks at the end, in two tasks each
    found = (tiny / "out.tfrecord").read_bytes()
    run(tiny)
    assert (tiny / "out.tfrecord").read_bytes() == found


@pytest.mark.parametrize("change", ["flag", "text", "damage"])
def test_the_work_of_another_job_or_a_damaged_one_is_not_gone_on_with(
    change, tiny, monkeypatch
):
    monkeypatch.setattr(job, "_BLOCK", (1500, 1500))
    run_in_a_fork(monkeypatch, *FRAMING, 0, tiny)
    [scratch] = leavings(tiny)
    blocks, changes = len(list((tiny / scratch).glob("*.pairs"))), {}
    if change == "flag":
        changes = {"random_seed": 7}
    elif change == "text":
        text = (tiny / "corpus.txt").read_text()
        (tiny / "corpus.txt").write_text(re.sub(r"\d", lambda digit: str(9 - int(digit[0])), text))
    else:
        for path in (tiny / scratch).glob("*.pairs"):
            path.write_bytes(path.read_bytes()[:-1])
    counts = calls_of(monkeypatch, PAIRING)
    run(tiny, **changes)
    assert counts["deal_pairs"] == blocks > 3
    found = (tiny / "out.tfrecord").read_bytes()
    run(tiny, **changes)
    assert (tiny / "out.tfrecord").read_bytes() == found
    assert leavings(tiny) == ["out.tfrecord", "out.tfrecord.manifest.json"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_is_exit_2_and_the_same_command_resumes(tiny, processes):
    import resource

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    more = ("--dupe_factor=300", f"--num_processes={processes}")
    process = spawn(tiny, *more, preexec_fn=small_files)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 2 and "cannot write" in log, log
    assert published(tiny) == []
    _, log = (again := spawn(tiny, *more)).communicate(timeout=300)
    assert again.returncode == 0, log
    assert leavings(tiny) == ["out.tfrecord", "out.tfrecord.manifest.json"]


def test_help_and_bad_flags_answer_at_once(tiny):
    for flag, code in (("--help", 0), ("--ngrams=3", 2)):
        before = cpu_seconds_of_children()
        process = spawn(tiny, flag, stdout=subprocess.DEVNULL)
        process.communicate(timeout=60)
        assert process.returncode == code and cpu_seconds_of_children() - before < 2


def test_the_command_never_imports_tensorflow(tiny):
    code = (
        "import sys; from albert import create_pretraining_data as c\n"
        "try: c.cli(sys.argv)\n"
        "except SystemExit as e: assert not e.code\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    argv = [f"--input_file={tiny}/corpus.txt", f"--output_file={tiny}/out.tfrecord",
            f"--vocab_file={tiny}/vocab.txt", "--max_seq_length=32", "--dupe_factor=1"]
    root = os.path.dirname(os.path.dirname(os.path.abspath(command.__file__)))
    done = subprocess.run([sys.executable, "-c", code, *argv], cwd=root, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"wrote " in done.stderr and b" records in " in done.stderr


# --- Input that is not as it should be ---


@pytest.fixture
def warnings(caplog, monkeypatch):
    return caplog


def test_invalid_utf8_is_read_on_and_counted(tiny, warnings):
    with open(tiny / "corpus.txt", "ab") as stream:
        stream.write(b"\nw1 \xff\xfe w1\nw1 w2 \xe2\x28\xa1\nw3\n")
    run(tiny)
    lines = (tiny / "corpus.txt").read_bytes().count(b"\n")
    assert f"2 of {lines} lines had invalid UTF-8" in warnings.text


@pytest.mark.parametrize(("more", "warned"), [
    ({}, True), ({"strict_sentence_order": True}, False), ({"sentence_objective": "nsp"}, True),
    ({"strict_sentence_order": True, "sentence_objective": "both"}, True),
])
def test_one_document_is_warned_about_where_b_may_be_of_another(more, warned, tiny, warnings):
    (tiny / "corpus.txt").write_text("w1 w2 w3\n" * 50)
    run(tiny, **more)
    assert ("the text is one document (no blank line in it)" in warnings.text) == warned


@pytest.mark.parametrize("text,message", [
    ("", "nothing but empty files"), ("\n \n\t\r\n", "no documents, only blank lines"),
])
def test_empty_input_is_refused(tiny, text, message):
    (tiny / "corpus.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        run(tiny)
    assert published(tiny) == []


def test_missing_input_is_named(tiny):
    with pytest.raises(DataError, match="--input_file: no file matches .*absent"):
        run(tiny, input_file=tiny / "absent*.txt")


@pytest.mark.parametrize("name,value", [
    ("max_seq_length", 4), ("max_predictions_per_seq", 0), ("dupe_factor", 0), ("ngram", 0),
    ("num_processes", 0), ("masked_lm_prob", 1.5),
])
def test_a_number_out_of_range_is_refused_with_its_flag(tiny, name, value):
    with pytest.raises(FlagError, match=f"--{name}={value}: must be"):
        run(tiny, **{name: value})


def test_the_message_about_a_number_has_its_range(tiny):
    with pytest.raises(FlagError, match="--ngram=33: must be a whole number, from 1 to 32"):
        run(tiny, ngram=33)


def test_outputs_that_collide_are_refused(tiny):
    for changes in (
        dict(output_file=tiny / "corpus.txt"),
        dict(output_file=f"{tiny}/a,{tiny}/a"),
        dict(held_out_fraction=0.1, eval_output_file=tiny / "out.tfrecord"),
    ):
        with pytest.raises(FlagError, match="given twice"):
            run(tiny, **changes)
    with pytest.raises(FlagError, match="go together"):
        run(tiny, held_out_fraction=0.1)


def test_no_vocabulary_and_a_missing_one_are_refused(tiny):
    with pytest.raises(FlagError, match="--spm_model_file or --vocab_file"):
        run(tiny, vocab_file=None)
    with pytest.raises(DataError, match="--vocab_file: no such file"):
        run(tiny, vocab_file=tiny / "absent.txt")


def test_a_vocabulary_that_changed_is_read_anew(tiny):
    run(tiny)
    before = records.Manifest.read(str(tiny / "out.tfrecord")).info
    with open(tiny / "vocab.txt", "a") as stream:
        stream.write("new\n")
    run(tiny)
    after = records.Manifest.read(str(tiny / "out.tfrecord")).info
    assert (before["vocab_size"], after["vocab_size"]) == (205, 206)
    assert before["tokenizer_sha256"] != after["tokenizer_sha256"]


def test_a_vocabulary_without_specials_is_refused(tiny):
    (tiny / "vocab.txt").write_text("[PAD]\nw1\n")
    with pytest.raises(DataError, match=r"no \[CLS\], \[SEP\], \[MASK\]"):
        run(tiny)


def read_all(paths, **kwargs):
    counts = documents.ReadingCounts()
    found = documents.read_documents([str(p) for p in paths], str.strip, counts, **kwargs)
    return list(found), counts


def test_only_a_newline_ends_a_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffa\u2028b\x85c\x0bd\r\n\r\ne".encode())
    found, counts = read_all([path])
    assert found == [["a\u2028b\x85c\x0bd"], ["e"]]
    assert (counts.lines, counts.documents) == (3, 2)


def test_a_file_ends_its_last_document_unless_told_otherwise(tmp_path):
    for name, text in (("a", "1\n\n2\n"), ("b", "3\n")):
        (tmp_path / name).write_text(text)
    paths = [tmp_path / "a", tmp_path / "b"]
    assert read_all(paths)[0] == [["1"], ["2"], ["3"]]
    assert read_all(paths, break_between_files=False)[0] == [["1"], ["2", "3"]]


@pytest.mark.parametrize("more", [
    {}, {"document_break_between_files": False},
    {"original_draw_order": True},
    {"original_draw_order": True, "document_break_between_files": True},
])
def test_one_document_a_file_is_as_many_documents_unless_the_original_is_wanted(
    more, tiny, warnings
):
    (tiny / "corpus.txt").unlink()
    for number in range(7):
        write_corpus(tiny / f"{number}.txt", [number])
    run(tiny, input_file=tiny / "[0-9].txt", **more)
    whole = more.get("document_break_between_files", not more)
    documents_found = records.Manifest.read(str(tiny / "out.tfrecord")).info["documents"]
    assert documents_found == (7 if whole else 1)
    hint = "its 7 files end none without --document_break_between_files"
    assert (hint in warnings.text) == (not whole)


# --- What is said of the records ---


SENTENCES = "w1 w2 w3\nw4 w5\nw6 w7 w8 w9\nw10 w11 w12\n\n" * 60
LONG_LINES = "".join(f"w{i} " * 100 + "\n" for i in range(60))
LONE_LINES = "".join(f"w{i} w{i + 1}\n\n" for i in range(60))


@pytest.mark.parametrize(("text", "more", "warned"), [
    (SENTENCES, {}, ""),
    (SENTENCES, {"sentence_objective": "none"}, ""),
    (SENTENCES, {"original_draw_order": True}, ""),
    (LONG_LINES, {}, "label lost"),
    (LONG_LINES, {"original_draw_order": True}, "label lost"),
    (LONG_LINES, {"sentence_objective": "none"}, "label lost"),
    (LONG_LINES, {"static_masks": False, "max_predictions_per_seq": None}, "label lost"),
    (LONG_LINES, {"strict_sentence_order": True}, "lost"),
    (LONE_LINES, {}, "label"),
    (LONE_LINES + "w1 w2\nw3 w4\n", {"strict_sentence_order": True}, "lost"),
])
def test_records_that_are_not_as_they_should_be_are_told_with_what_helps(
    text, more, warned, tiny, warnings
):
    warnings.set_level("INFO", "albert")
    (tiny / "corpus.txt").write_text(text)
    run(tiny, **more)
    lines, documents_found = text.count("\n"), len([t for t in text.split("\n\n") if t.strip()])
    said = f"{documents_found} documents of {lines} lines; label 1: "
    assert said in warnings.text
    label = "% are expected. Many documents or rows hold a single line" in warnings.text
    lost = "of the tokens were truncated or left out: lines are too long" in warnings.text
    assert (label, lost) == ("label" in warned, "lost" in warned), warnings.text
    assert ("--strict_sentence_order takes B from" in warnings.text) == label
    assert ("A larger one helps, --fit_sentences, or" in warnings.text) == lost


@pytest.mark.parametrize("strict", [False, True])
def test_the_shares_that_are_told_are_those_of_the_records(strict, tiny, warnings):
    warnings.set_level("INFO", "albert")
    write_corpus(tiny / "corpus.txt", range(9), lines=5)
    run(tiny, strict_sentence_order=strict, short_seq_prob=0, num_processes=2, dupe_factor=5)
    found = read(tiny / "out.tfrecord")
    label, tokens = found["next_sentence_labels"].mean(), found["input_mask"].sum()
    assert f"label 1: {100 * label:.1f} % of the records" in warnings.text
    if not strict:  # each token of the text is in an A, or in a B that is not of elsewhere
        return
    text = 5 * len((tiny / "corpus.txt").read_text().split())
    lost = text - (tokens - 3 * len(found["input_ids"]))
    assert 0 < lost and f"left out: {100 * lost / text:.1f} % of the tokens" in warnings.text


def test_the_work_of_another_layout_is_not_gone_on_with(tiny, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_LAYOUT", 1)
        run_in_a_fork(patch, *FRAMING, 0, tiny)
    assert leavings(tiny)
    counts = calls_of(monkeypatch, PAIRING)
    run(tiny)
    assert counts["deal_pairs"] == 3
    assert leavings(tiny) == ["out.tfrecord", "out.tfrecord.manifest.json"]


def test_a_line_that_cleaning_empties_is_a_document_border(tmp_path):
    from albert.tokenization import preprocess_text

    (tmp_path / "a").write_text("x\n\u0301\u0302\ny\n\u0301z\n")
    counts = documents.ReadingCounts()
    found = list(documents.read_documents([str(tmp_path / "a")], preprocess_text, counts))
    assert found == [["x"], ["y", "\u0301z"]]


@pytest.mark.parametrize("text", ["ab cd " * 100, "é" * 300, "a" * 512])
def test_very_long_lines_are_cut_without_loss(tmp_path, monkeypatch, text):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 64)
    (tmp_path / "a").write_text(text + "\nend\n\nnext\n", encoding="utf-8")
    found, counts = read_all([tmp_path / "a"])
    assert len(found) == 2 and found[0][-1] == "end" and found[1] == ["next"]
    assert "".join(found[0][:-1]).replace(" ", "") == text.replace(" ", "")
    assert counts.bad_utf8_lines == 0 and counts.cuts >= len(text.encode()) // 64 - 1


@pytest.mark.parametrize("line", [
    " " * 99 + "a b", "a b" + " " * 199, "a b" + " " * 199 + "c",
    "\t" * 150 + "a b" + "\u3000" * 90,
])
def test_blank_parts_of_a_very_long_line_end_no_document(line, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 64)
    (tmp_path / "a").write_text(f"x\n{line}\ny\n" + " " * 99 + "\nz\n", encoding="utf-8")
    found, counts = read_all([tmp_path / "a"])
    assert [" ".join(document).split() for document in found] == [["x", *line.split(), "y"], ["z"]]
    assert counts.lines == 5 and all(text.strip() for document in found for text in document)


def test_blocks_have_two_documents_wherever_there_are_two():
    def sizes(lengths, size):
        sized = ((False, ["x" * n], n) for n in lengths)
        return [len(block) for _, _, block in documents.cut_blocks(sized, size)]

    assert sizes([5] * 7, 10) == [2, 2, 3]
    assert sizes([100, 1, 100, 100], 10) == [2, 2]
    assert sizes([100], 10) == [1] and sizes([], 10) == []
    assert sizes([1] * 5, 100) == [5]


# --- Pairs ---


def make_block(lengths):
    """A block whose token at place p is p; lengths: documents of segments of tokens."""
    segments, borders = [0], [0]
    for document in lengths:
        for length in document:
            segments.append(segments[-1] + length)
        borders.append(len(segments) - 1)
    return Block(np.arange(segments[-1], dtype=np.int32), segments, borders)


def all_pairs(block, seed=0, **settings):
    import random

    return create_pairs(block, PairSettings(**settings), random.Random(seed))


def test_random_numbers_of_pairs_are_those_of_pythons_randrange():
    one, two = random.Random(5), random.Random(5)
    counts = [*range(1, 70), 1000, 1 << 20, (1 << 33) + 1] * 20
    assert [randbelow(n, one) for n in counts] == [two.randrange(n) for n in counts]


def test_pairs_cover_each_document_in_order():
    rng = np.random.default_rng(0)
    block = make_block([rng.integers(1, 9, 50).tolist() for _ in range(4)])
    for seed in range(20):
        pairs = all_pairs(block, seed, max_seq_length=32, short_seq_prob=0.3)
        seen = np.zeros(len(block.ids), int)
        for a0, a1, b0, b1, label in pairs:
            assert a0 < a1 and b0 < b1
            if label == 0:
                assert a1 == b0
            swapped = label == 1 and b1 == a0
            for first, last in [(a0, a1)] + [(b0, b1)] * (label == 0 or swapped):
                seen[first:last] += 1
        assert (seen == 1).all()


def test_random_documents_are_others_and_unused_text_comes_again():
    block = make_block([[4] * 30 for _ in range(6)])
    pairs = all_pairs(block, max_seq_length=32, sentence_objective="nsp")
    document = lambda at: at // 120  # noqa: E731
    labels = [p[4] for p in pairs]
    assert 0.3 < np.mean(labels) < 0.7
    for a0, a1, b0, b1, label in pairs:
        assert (document(a0) != document(b0)) == bool(label)
        assert label == 1 or a1 == b0
    covered = np.zeros(len(block.ids), bool)
    for a0, a1, b0, b1, label in pairs:
        covered[a0:a1] = True
        covered[b0:b1] |= label == 0
    assert covered.all()


def test_a_lone_segment_meets_another_document_unless_strict():
    block = make_block([[50], [50] * 5, [50]])
    pairs = all_pairs(block, max_seq_length=32)
    assert {p[4] for p in pairs} == {1} and len(pairs) == 7
    strict = all_pairs(block, max_seq_length=32, strict_sentence_order=True)
    assert len(strict) == 2
    for a0, a1, b0, b1, label in strict:
        assert (b0, b1) == (a1, a1 + 50) if label == 0 else (a0, a1) == (b1, b1 + 50)


@pytest.mark.parametrize("length", [8, 24, 64])
def test_strict_pairs_of_short_rows_are_of_one_document_and_balanced(length):
    rng = random.Random(1)
    block = make_block([[rng.randint(5, 40) for _ in range(30)] for _ in range(300)])
    pairs = all_pairs(block, max_seq_length=length, strict_sentence_order=True)
    for a0, a1, b0, b1, label in pairs:  # neighbours, whichever comes first
        assert (a1 == b0, b1 == a0) == (label == 0, label == 1)
    share = sum(p[4] for p in pairs) / len(pairs)
    assert len(pairs) > 2000 and abs(share - 0.5) < 5 * 0.5 / len(pairs) ** 0.5
    usual = all_pairs(block, max_seq_length=length)
    assert sum(p[4] for p in usual) / len(usual) > 0.55 or length == 64


@pytest.mark.parametrize("strict", [False, True])
def test_pairs_that_end_at_the_nearest_border_lose_far_less(strict):
    rng = random.Random(1)
    block = make_block([[rng.randint(5, 40) for _ in range(60)] for _ in range(100)])
    lost = {}
    for fits in (False, True):
        settings = dict(max_seq_length=128, short_seq_prob=0, strict_sentence_order=strict)
        pairs = all_pairs(block, fit_sentences=fits, **settings)
        assert all((a1 == b0) == (label == 0) for _, a1, b0, _, label in pairs)
        sizes = np.array([a1 - a0 + b1 - b0 for a0, a1, b0, b1, _ in pairs])
        lost[fits] = np.maximum(sizes - 125, 0).sum() / sizes.sum()
        assert sizes.sum() > 0.99 * len(block.ids)  # a lone last segment may go
    assert 0.08 < lost[False] and lost[True] < 0.4 * lost[False]


def test_one_document_pairs_with_itself_rather_than_fail():
    assert len(all_pairs(make_block([[50, 50]]), max_seq_length=32)) == 2


def test_lengths_do_not_tell_whether_segments_are_swapped_later():
    longer = {}
    for is_swapped_later in (False, True):
        pairs = np.full(4000, np.array((0, 100, 100, 100, 0, 0), PAIR))
        truncate_pairs(pairs, 45, np.random.default_rng(0), is_swapped_later)
        a, b = pairs["a_length"], pairs["b_length"]
        assert (a + b == 45).all() and (abs(a - b) == 1).all()
        longer[is_swapped_later] = (a > b).mean()
    assert longer[False] == 1  # the original: A keeps the odd token, whichever A is
    assert abs(longer[True] - 0.5) < 5 * 0.5 / 4000**0.5


def test_truncation_is_the_originals_loop_in_closed_form():
    rng = np.random.default_rng(0)
    size = rng.integers(1, 40, (500, 2))
    pairs = np.zeros(500, PAIR)
    pairs["a_length"], pairs["b_start"], pairs["b_length"] = size[:, 0], 100, size[:, 1]
    truncate_pairs(pairs, 25, rng)
    for pair, (a, b) in zip(pairs, size.tolist(), strict=True):
        whole_a, whole_b = a, b
        while a + b > 25:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        assert (pair["a_length"], pair["b_length"]) == (a, b)
        assert pair["lost"] == whole_a + whole_b - a - b
        assert 0 <= pair["a_start"] and pair["a_start"] + a <= whole_a
        assert 100 <= pair["b_start"] and pair["b_start"] + b <= 100 + whole_b
    dropped = pairs["lost"].sum()
    front = pairs["a_start"].sum() + (pairs["b_start"] - 100).sum()
    assert abs(front / dropped - 0.5) < 4 * 0.5 / np.sqrt(dropped)


def test_a_training_instance_prints_every_field():
    text = str(TrainingInstance(["[CLS]", "a"], [0, 0], [1], ["b"], True, [1, 1]))
    assert text == (
        "tokens: [CLS] a\nsegment_ids: 0 0\nmasked_lm_positions: 1\nmasked_lm_labels: b\n"
        "is_random_next: True\ntoken_boundary: 1 1\n"
    )


# --- The original's file and statistics ---

SETTINGS = (
    "default", "unigram", "long_ngrams", "no_whole_word", "random_next", "permutation", "no_mask",
)


@pytest.fixture(scope="module")
def golden(golden_path):
    with open(golden_path("pretraining_data/stats.json"), encoding="utf-8") as stream:
        return json.load(stream)


@pytest.fixture(scope="module")
def is_start(golden_path):
    from albert.tokenization import FullTokenizer

    tokenizer = FullTokenizer(None, spm_model_file=str(golden_path("spm/30k-clean.model")))
    return np.array(tokenizer.start_pieces())


def make(golden_path, folder, settings, dupe_factor=12):
    values = dict(settings, dupe_factor=dupe_factor)
    run(folder, input_file=golden_path("pretraining_data/corpus.txt"), vocab_file=None,
        spm_model_file=golden_path("spm/30k-clean.model"), **values)
    predictions = settings["max_predictions_per_seq"] * (1 + settings["do_permutation"])
    return read(folder / "out.tfrecord", settings["max_seq_length"], predictions)


def make_and_mask(golden_path, folder, settings, dupe_factor=12):
    """Returns what `make` does, of records whose masks are drawn as they are read."""
    chosen = {f.name: settings[f.name] for f in dataclasses.fields(MaskingSettings)
              if f.name in settings}
    others = {name: value for name, value in settings.items() if name not in chosen}
    others |= {"dupe_factor": dupe_factor, "static_masks": False, "max_predictions_per_seq": None}
    run(folder, input_file=golden_path("pretraining_data/corpus.txt"), vocab_file=None,
        spm_model_file=golden_path("spm/30k-clean.model"), **others)
    path, length = str(folder / "out.tfrecord"), settings["max_seq_length"]
    masks = dynamic_masking.dynamic_masking(RecordFiles([path]), length, MaskingSettings(**chosen), 0)
    rows = parse_with_tensorflow(path, masks.feature_spec())
    features = masks.mask(
        *(rows[name] for name in ("input_ids", "segment_lengths", "token_boundary",
                                  "next_sentence_labels")),
        np.arange(len(rows["input_ids"])),
    )
    # A and B may have changed places.
    is_start, special_ids = job.vocabulary_info(Recipe(
        PairSettings(length), MaskingSettings(), None,
        str(golden_path("spm/30k-clean.model")), "", True, 0,
    ))
    ids = features["input_ids"].copy()
    row, rank = np.nonzero(features["masked_lm_weights"])
    ids[row, features["masked_lm_positions"][row, rank]] = features["masked_lm_ids"][row, rank]
    lengths = features["input_mask"].sum(axis=1)
    return features | {"token_boundary": masking.token_boundaries(
        ids, lengths, is_start, special_ids
    )}


def statistics(features, is_start, whole_words=True):
    """The shares that the golden file has, of any set of records."""
    ids, inside = features["input_ids"], features["input_mask"] == 1
    lengths = inside.sum(axis=1)
    label = features["next_sentence_labels"].mean()
    row, rank = np.nonzero(features["masked_lm_weights"])
    column, was = features["masked_lm_positions"][row, rank], features["masked_lm_ids"][row, rank]
    now, predicted = ids[row, column], np.zeros(ids.shape, bool)
    predicted[row, column] = True
    original = ids.copy()
    original[row, column] = was
    # Runs of predicted places, and words that are wholly or partly predicted.
    starts = predicted & ~np.pad(predicted, ((0, 0), (1, 0)))[:, :-1]
    runs = np.bincount(np.cumsum(starts.ravel())[predicted.ravel()])[1:]
    special = (original == 2) | (original == 3)
    token = inside & ~special
    word = np.cumsum((is_start[original] & token).ravel())
    count, all_of = np.bincount(word[token.ravel()]), np.bincount(word[predicted.ravel()])
    all_of = np.pad(all_of, (0, len(count) - len(all_of)))
    partly = ((all_of > 0) & (all_of < count)).sum()
    length_b = features["segment_ids"].sum(axis=1) - 1
    return {
        "label": label, "length": lengths.mean(),
        "at_max": (lengths == ids.shape[1]).mean(), "length_b": length_b.mean(),
        "predicted": len(row) / lengths.sum(),
        "mask": (now == 4).sum() / max(len(now), 1), "kept": (now == was).sum() / max(len(now), 1),
        "runs": [(runs == n).mean() if len(runs) else 0 for n in (1, 2, 3)],
        "partly": partly / max((all_of > 0).sum(), 1),
        "boundary": features["token_boundary"][inside].mean(),
        "counts": np.bincount(predicted.sum(axis=1)) / len(ids),
        "position": (column / lengths[row]).mean() if len(row) else 0,
    }


@pytest.mark.parametrize("how", [make, make_and_mask])
@pytest.mark.parametrize("name", SETTINGS)
def test_statistics_are_the_originals_within_sampling_error(
    name, how, golden_path, tiny, golden, is_start
):
    want, settings = golden[name], golden[name]["settings"]
    got = statistics(how(golden_path, tiny, settings), is_start)
    # Text alone decides these; short_seq_prob acts on whole documents, of
    # which the original's run had few.
    slack = 1 if settings["short_seq_prob"] == 0 else 4
    assert abs(got["label"] - want["sop_label_1_rate"]) < 4 * np.sqrt(0.25 / want["instances"])
    assert abs(got["length"] - want["length"]["mean"]) < 0.02 * slack * settings["max_seq_length"]
    assert abs(got["at_max"] - want["length"]["at_max_rate"]) < 0.025 * slack
    assert abs(got["length_b"] - want["len_b_mean_std"][0]) < 2.5 * slack
    assert abs(got["boundary"] - want["token_boundary_rate"]) < 0.003
    if not want["predicted_tokens"]:
        assert got["predicted"] == 0
        return
    assert abs(got["predicted"] - want["predicted_fraction_of_tokens"]) < 0.003
    error = 4 * np.sqrt(0.25 / want["predicted_tokens"])
    assert abs(got["mask"] - want["as_mask_kept_random"][0]) < error
    assert abs(got["kept"] - want["as_mask_kept_random"][1]) < error
    runs = want["run_length_tokens"]
    for n, share in zip((1, 2, 3), got["runs"], strict=True):
        assert abs(share - runs.get(str(n), 0) / sum(runs.values())) < error, n
    words = want["words_fully_masked"] + want["words_partly_masked"]
    assert abs(got["partly"] - want["words_partly_masked"] / words) < 0.01
    assert abs(got["position"] - want["mean_relative_position"]) < 0.015
    histogram = want["predictions_per_instance"]
    most = max(map(int, histogram))
    assert len(got["counts"]) == most + 1
    assert abs(got["counts"][most] - histogram[str(most)] / want["instances"]) < 0.03 * slack


def test_the_originals_own_records_have_these_statistics_too(golden_path, golden, is_start):
    # That the measure above is the golden file's: on the file it was made from.
    features = read(golden_path("pretraining_data/default.tfrecord"), 128, 20)
    got, want = statistics(features, is_start), golden["default"]
    assert got["label"] == pytest.approx(want["sop_label_1_rate"])
    assert got["length"] == pytest.approx(want["length"]["mean"])
    assert got["predicted"] == pytest.approx(want["predicted_fraction_of_tokens"])
    assert got["mask"] == pytest.approx(want["as_mask_kept_random"][0])
    assert got["kept"] == pytest.approx(want["as_mask_kept_random"][1])
    assert got["boundary"] == pytest.approx(want["token_boundary_rate"])
    assert got["runs"][0] == pytest.approx(6566 / sum(want["run_length_tokens"].values()))


def test_every_segment_is_text_of_the_corpus(golden_path, tiny, golden):
    import gzip

    path = golden_path("pretraining_data/documents_ids.json.gz")
    with gzip.open(path, "rt") as stream:
        texts = [np.concatenate(d).astype("<u2").tobytes() for d in json.load(stream)]
    settings = dict(golden["default"]["settings"], masked_lm_prob=0, max_seq_length=64)
    features = make(golden_path, tiny, settings, dupe_factor=1)
    for ids, segments, mask, label in zip(
        features["input_ids"], features["segment_ids"], features["input_mask"],
        features["next_sentence_labels"], strict=True,
    ):
        a = ids[(segments == 0) & (mask == 1)][1:-1]
        b = ids[segments == 1][:-1]
        found = [[i for i, text in enumerate(texts) if s.astype("<u2").tobytes() in text]
                 for s in (a, b)]
        assert found[0] and found[1]
        assert label[0] == 1 or set(found[0]) & set(found[1])


# --- The report ---


def test_the_manifest_says_what_the_records_are_like(tiny, caplog):
    caplog.set_level("INFO", "albert")
    for more in ({"original_draw_order": True}, {}, {"static_masks": False,
                                                   "max_predictions_per_seq": None}):
        caplog.clear()
        run(tiny, **more)
        manifest = records.Manifest.read(str(tiny / "out.tfrecord"))
        report = manifest.info["report"]
        assert report["records"] == manifest.records and report["documents"] == 40
        assert report["sentences"] == 320 and report["unknown_tokens"] == 0
        assert "tokens of a record: " in caplog.text
        shown = 0 if "original_draw_order" in more else 3
        assert caplog.text.count("a record:\ntokens: [CLS] ") == shown
        if more.get("static_masks", True):
            lengths = np.sort(read(tiny / "out.tfrecord")["input_mask"].sum(axis=1))
            assert report["tokens"] == lengths.sum() - 3 * len(lengths)
            for share, length in report["length_percentiles"].items():
                assert length == lengths[max(0, -(-len(lengths) * int(share) // 100) - 1)]


@pytest.mark.parametrize(("share", "warned"), [(200, False), (50, True)])
def test_unknown_tokens_are_counted_and_warned_about(share, warned, tiny, warnings):
    words = [f"w{n % 9}" if n % share else "unheard" for n in range(4000)]
    lines = [" ".join(words[at : at + 8]) for at in range(0, len(words), 8)]
    (tiny / "corpus.txt").write_text("\n".join(lines) + "\n\nw1 w2\nw3\n")
    for more in ({}, {"original_draw_order": True}):
        warnings.clear()
        run(tiny, **more)
        told = records.Manifest.read(str(tiny / "out.tfrecord")).info["report"]
        assert abs(told["unknown_tokens"] - 1 / share) < 0.4 / share
        assert ("are unknown to the vocabulary" in warnings.text) == warned


# --- Size ---


def test_memory_does_not_grow_with_the_text_nor_with_a_document(tiny, monkeypatch):
    import tracemalloc

    monkeypatch.setattr(job, "_BLOCK", (6_000, 6_000))
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 12_000)
    monkeypatch.setattr(text_files, "LONGEST_LINE", 6_000)
    lines = [f"w{i % 90} w{i % 7} w{i % 31}" for i in range(1500)]
    peaks = {}
    for name, join in (("one document", "\n"), ("many documents", "\n\n"), ("one line", " ")):
        for times in (1, 5):
            (tiny / "corpus.txt").write_text(join.join(lines * times) + "\n")
            tracemalloc.start()
            run(tiny, dupe_factor=1)
            peaks[name, times] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peaks[name, 5] < 1.5 * peaks[name, 1], peaks


def gigabyte(path, golden_path, breaks_every: int | None):
    """Writes some 10^9 bytes of sentences, packed, which makes them small."""
    text = golden_path("pretraining_data/corpus.txt").read_text(encoding="utf-8")
    sentences = [line for line in text.split("\n") if len(line.split()) > 5]
    count = 1_000_000 // sum(len(line.encode()) + 1 for line in sentences)
    lines, size = [], 0
    for line in sentences * count:
        lines.append(line)
        size += len(line)
        if breaks_every and size >= breaks_every:
            lines.append("")
            size = 0
    part = ("\n".join(lines) + "\n").encode()
    packed = gzip.compress(part, 1)
    with open(path, "wb") as stream:
        for _ in range(-(-10**9 // len(part))):
            stream.write(packed)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # four minutes of a core
@pytest.mark.parametrize("breaks_every", [None, 400], ids=["one document", "2 million documents"])
def test_a_gigabyte_takes_400_mb_of_memory_however_its_documents_are(
    breaks_every, tmp_path, golden_path
):
    gigabyte(tmp_path / "corpus.txt.gz", golden_path, breaks_every)
    try:
        peak = jobs.peak_of_data_creation(
            f"--input_file={tmp_path}/corpus.txt.gz", f"--output_file={tmp_path}/out.tfrecord",
            f"--spm_model_file={golden_path('spm/30k-clean.model')}", "--max_seq_length=512",
            "--nostatic_masks", "--num_processes=1",
        )
        documents_found = records.Manifest.read(f"{tmp_path}/out.tfrecord").info["documents"]
        assert documents_found > 1.8e6 if breaks_every else documents_found < 200  # of 8 MB
        assert peak < 400e6  # it is all that there is: one process
    finally:
        shutil.rmtree(tmp_path)


def test_a_disk_that_is_too_small_is_refused_before_the_work(tiny, monkeypatch, caplog):
    caplog.set_level("INFO", "albert")
    monkeypatch.setattr(pipeline, "_CHECKED_DISK", 0)
    run(tiny)
    assert "making records takes about 0.0 GB in" in caplog.text
    for name in leavings(tiny):
        (tiny / name).unlink()
    monkeypatch.setattr(pipeline.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 9))
    with pytest.raises(UserError, match="; 0.0 GB are free. Free some, or choose"):
        run(tiny)
    assert published(tiny) == []


def test_the_disk_that_is_said_to_be_needed_is_needed(tiny, golden_path, monkeypatch, caplog):
    caplog.set_level("INFO", "albert")
    monkeypatch.setattr(pipeline, "_CHECKED_DISK", 0)
    sizes = []
    monkeypatch.setattr(pipeline, "publish", lambda *_: sizes.append(
        sum(path.stat().st_size for path in (tiny / WORK).iterdir())
    ))
    for more in ({}, {"static_masks": False, "max_predictions_per_seq": None}):
        caplog.clear()
        run(tiny, input_file=golden_path("pretraining_data/corpus.txt"), vocab_file=None,
            spm_model_file=golden_path("spm/30k-clean.model"), max_seq_length=128, **more)
        needed = pipeline.needed_disk(command.job_of(flags.parse(command.define_flags, [
            "command", f"--input_file={golden_path('pretraining_data/corpus.txt')}",
            f"--spm_model_file={golden_path('spm/30k-clean.model')}",
            f"--output_file={tiny}/out.tfrecord", "--max_seq_length=128", "--dupe_factor=3",
            *(["--nostatic_masks"] if more else ["--max_predictions_per_seq=5"]),
        ])))
        assert 0.6 < needed / sizes.pop() <= 1.1


def test_a_large_text_has_larger_blocks(tiny):
    parsed = flags.parse(command.define_flags, [
        "command", f"--input_file={tiny}/corpus.txt", f"--vocab_file={tiny}/vocab.txt",
        f"--output_file={tiny}/out", "--max_seq_length=128", "--dupe_factor=10",
        "--sentence_objective=sop",
    ])
    for gigabytes, want in ((0.01, 4 << 20), (4, 4 << 20), (10, 10_000_000), (160, 32 << 20)):
        large = dataclasses.replace(command.job_of(parsed), text_bytes=int(gigabytes * 1e9))
        assert large.block_characters == want
        # Each bucket is read from the file of each block.
        reads = large.text_bytes // want * large.splits[0].num_buckets(large.text_bytes)
        assert reads < 80e6
