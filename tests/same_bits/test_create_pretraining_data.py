"""Records from text: always the same bytes, nothing half-done, and an accurate report."""

import dataclasses
import hashlib
import random
import re
import shutil
import tracemalloc

import numpy as np
import pytest
from making_records import flags_of, make, published, read, take, write_corpus
from record_files_made import payloads_of

from albert import create_pretraining_data as command
from albert.cli import flags
from albert.errors import DataError, FlagError, UserError
from albert.pretraining_data import job, pipeline
from albert.records import manifests
from albert.storage import files
from albert.text import documents, text_files

UNMASKED = {"static_masks": False, "max_predictions_per_seq": None}


def manifest_of(folder, name="out.tfrecord"):
    return manifests.Manifest.read(str(folder / name))


# --- Reproducible and complete ---


def test_the_same_bytes_with_one_and_two_processes(tiny, monkeypatch):
    monkeypatch.setattr(job, "_BLOCK", (1500, 1500))  # several blocks
    contents = []
    for processes in (1, 2):
        make(tiny, output_file=f"{tiny}/out-0.tfrecord,{tiny}/out-1.tfrecord",
             num_processes=processes, held_out_fraction=0.2, split_sentences=True,
             eval_output_file=tiny / "eval.tfrecord")
        contents.append(take(tiny))
    assert contents[0] == contents[1] and len(contents[0]) == 6  # three files, three manifests


def test_the_records_follow_from_the_seed(tiny):
    made = []
    for seed in (12345, 12345, 1):
        make(tiny, random_seed=seed)
        made.append(take(tiny)["out.tfrecord"])
    assert made[0] == made[1] != made[2]


def test_text_is_passed_over_forty_times_by_default_and_once_without_masks(tiny):
    plain = flags_of(tiny, dupe_factor=None, max_predictions_per_seq=None)
    for more, passes in (([], 40), (["--nostatic_masks"], 1), (["--nostatic_masks", "--dupe_factor=3"], 3)):
        found = command.job_of(flags.parse(command.define_flags, ["command", *plain, *more]))
        assert found.passes["train"] == passes


def test_records_are_spread_evenly_and_shuffled_over_the_files_of_a_manifest(tiny):
    outputs = [tiny / f"out-{i}.tfrecord" for i in range(3)]
    make(tiny, output_file=",".join(map(str, outputs)))
    counts = [len(payloads_of(path)) for path in outputs]
    assert max(counts) - min(counts) <= 3 and min(counts) > 10
    first = read(outputs[0])["input_ids"][:, 1]
    assert (np.diff(first) < 0).sum() > len(first) / 4  # not in the order of the corpus
    manifest = manifest_of(tiny, "out-1.tfrecord")
    assert manifest.info["shards"] == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in outputs}
    assert manifest.records == counts[1] and manifest.info["vocab_size"] == 205
    assert manifest.info["flags"]["dupe_factor"] == 3


def test_no_pass_block_or_file_has_the_draws_of_another(tiny, monkeypatch):
    """Two blocks of the same text, three passes each: every pass has different pairs and masks."""
    text = "\n\n".join("\n".join(f"w{d} w{n}" for n in range(60)) for d in range(10)) + "\n\n"
    (tiny / "corpus.txt").write_text(text * 2)
    monkeypatch.setattr(job, "_BLOCK", (len(text.replace("\n", "")),) * 2)
    paths = [tiny / f"{name}.tfrecord" for name in ("one", "two", "eval")]
    make(tiny, output_file=f"{paths[0]},{paths[1]}", eval_output_file=paths[2],
         held_out_fraction=0.5, short_seq_prob=0, strict_sentence_order=True)
    files = [read(path) for path in paths]
    assert min(len(found["input_ids"]) for found in files) >= 30
    for one, two in ((0, 1), (0, 2), (1, 2)):  # the masks of records in the same position
        pairs = zip(*(files[number]["masked_lm_positions"].tolist() for number in (one, two)))
        assert np.mean([first == second for first, second in pairs]) < 0.1
    make(tiny, masked_lm_prob=0, strict_sentence_order=True, short_seq_prob=0)
    pairs = read(tiny / "out.tfrecord")["input_ids"]
    # Six passes over the same text draw where A ends and which of A and B is first.
    assert len(np.unique(pairs, axis=0)) > 0.7 * len(pairs)


def test_files_that_would_be_empty_are_refused(tiny):
    write_corpus(tiny / "corpus.txt", [1], lines=2)
    outputs = ",".join(str(tiny / f"out-{i}.tfrecord") for i in range(30))
    with pytest.raises(DataError, match=r"would be empty: there are \d+ records for 30 files"):
        make(tiny, output_file=outputs)
    assert published(tiny) == []


def test_records_come_with_a_copy_of_their_vocabulary_and_its_settings(tiny, monkeypatch):
    content = (tiny / "vocab.txt").read_bytes()
    make(tiny, output_file=f"{tiny}/a.tfrecord,{tiny}/b.tfrecord", held_out_fraction=0.2,
         eval_output_file=tiny / "held/out.tfrecord", do_lower_case=False)
    for folder, names in ((tiny, "ab"), (tiny / "held", ["out"])):
        for name in names:
            info = manifest_of(folder, f"{name}.tfrecord").info["vocabulary"]
            copy = folder / info["beside"]
            assert copy.parent == folder and copy.read_bytes() == content
            assert info["do_lower_case"] is False
    # A glob of record files doesn't mean it.
    assert files.expand_globs(f"{tiny}/[ab].tf*", "input_file") == [
        f"{tiny}/a.tfrecord", f"{tiny}/b.tfrecord"]

    def change(*arguments):
        (tiny / "vocab.txt").write_bytes(content + b"new\n")
        return original(*arguments)

    original = pipeline._check_outputs
    monkeypatch.setattr(pipeline, "_check_outputs", change)
    with pytest.raises(DataError, match="vocab.txt changed while records were made with it"):
        make(tiny, output_file=tiny / "c.tfrecord")
    assert "c.tfrecord" not in published(tiny)


# --- Bad input ---


@pytest.mark.parametrize("changes, error, message", [
    ({"input_file": "absent*.txt"}, DataError, "^input_file: no file matches .*absent"),
    ({"output_file": "corpus.txt"}, FlagError, "given twice"),
    ({"output_file": "{0}/a,{0}/a"}, FlagError, "given twice"),
    ({"held_out_fraction": 0.1, "eval_output_file": "out.tfrecord"}, FlagError, "given twice"),
    ({"held_out_fraction": 0.1}, FlagError, "go together"),
    ({"output_file": ","}, FlagError, "must name files"),
    ({"vocab_file": None}, FlagError, "--spm_model_file or --vocab_file"),
    ({"vocab_file": "absent.txt"}, DataError, "^vocab_file: no such file"),
    ({"vocab_file": "few.txt"}, DataError, r"no \[CLS\], \[SEP\], \[MASK\]"),
    ({"input_file": "empty.txt"}, DataError, "all files are empty"),
    ({"input_file": "blank.txt"}, DataError, "no documents, only blank lines"),
])
def test_what_cannot_be_made_is_refused_and_nothing_published(changes, error, message, tiny):
    for name, text in (("few", "[PAD]\nw1\n"), ("empty", ""), ("blank", "\n \n\t\r\n")):
        (tiny / f"{name}.txt").write_text(text)
    for name, value in changes.items():
        if isinstance(value, str):
            changes = changes | {name: value.format(tiny) if "," in value else tiny / value}
    with pytest.raises(error, match=message):
        make(tiny, **changes)
    assert [name for name in published(tiny) if not name.endswith(".txt")] == []


@pytest.mark.parametrize(("more", "is_warned"), [
    ({}, True), ({"strict_sentence_order": True}, False), ({"sentence_objective": "nsp"}, True),
    ({"strict_sentence_order": True, "sentence_objective": "nsp"}, True),
])
def test_one_document_is_warned_about_where_b_may_be_of_another(more, is_warned, tiny, caplog):
    (tiny / "corpus.txt").write_text("w1 w2 w3\n" * 50)
    make(tiny, document_layout="blank_lines", **more)
    assert ("the text is one document (no blank line in it)" in caplog.text) == is_warned


def test_a_flag_of_the_original_without_effect_is_accepted_in_a_line(tiny, caplog):
    make(tiny)
    before = take(tiny)["out.tfrecord"]
    make(tiny, do_permutation=True)
    assert "--do_permutation: no effect" in caplog.text and take(tiny)["out.tfrecord"] == before


def test_a_vocabulary_that_changed_is_read_anew(tiny):
    made = []
    for word in ("new", ""):
        make(tiny)
        made.append(manifest_of(tiny).info)
        with open(tiny / "vocab.txt", "a") as stream:
            stream.write(f"{word}\n")
    assert [info["vocab_size"] for info in made] == [205, 206]
    assert made[0]["tokenizer_sha256"] != made[1]["tokenizer_sha256"]


@pytest.mark.parametrize("more", [
    {}, {"document_break_between_files": False},
])
def test_one_document_a_file_is_as_many_documents_unless_the_original_is_wanted(
    more, tiny, caplog
):
    for number in range(7):
        write_corpus(tiny / f"{number}.txt", [number])
    make(tiny, input_file=tiny / "[0-9].txt", document_layout="blank_lines", **more)
    is_split = not more
    assert manifest_of(tiny).info["documents"] == (7 if is_split else 1)
    hint = "its 7 files do not end documents without --document_break_between_files"
    assert (hint in caplog.text) == (not is_split)


# --- The report ---


SENTENCES = "w1 w2 w3\nw4 w5\nw6 w7 w8 w9\nw10 w11 w12\n\n" * 60
LONG_LINES = "".join(f"w{i} " * 100 + "\n" for i in range(60))
LONE_LINES = "".join(f"w{i} w{i + 1}\n\n" for i in range(60))


@pytest.mark.parametrize(("text", "more", "warned"), [
    (SENTENCES, {}, ""),
    (LONG_LINES, {}, "label lost"),
    (LONG_LINES, UNMASKED, "label lost"),
    (LONG_LINES, {"strict_sentence_order": True}, "lost"),
    (LONE_LINES, {}, "label"),
    (LONE_LINES + "w1 w2\nw3 w4\n", {"strict_sentence_order": True}, "lost"),
])
def test_records_that_are_not_as_they_should_be_are_reported_with_what_helps(
    text, more, warned, tiny, caplog
):
    caplog.set_level("INFO", "albert")
    (tiny / "corpus.txt").write_text(text)
    make(tiny, document_layout="blank_lines", **more)
    lines, num_documents = text.count("\n"), len([t for t in text.split("\n\n") if t.strip()])
    assert f"{num_documents} documents of {lines} lines; label 1: " in caplog.text
    label = "% are expected. Many sequences hold a single line" in caplog.text
    lost = "of the tokens were truncated or left out: lines are too long" in caplog.text
    assert (label, lost) == ("label" in warned, "lost" in warned), caplog.text
    assert ("use --strict_sentence_order, or" in caplog.text) == label
    assert ("Use a larger one, --full_sequences, or" in caplog.text) == lost


def test_the_label_of_a_book_long_document_names_the_short_sequences(tiny, caplog):
    rng = random.Random(1)
    documents = ["\n".join(" ".join(f"w{rng.randrange(200)}" for _ in range(12)) for _ in range(300))
                 for _ in range(10)]
    (tiny / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    for share in (1, 0):
        caplog.clear()
        make(tiny, document_layout="blank_lines", short_seq_prob=share, dupe_factor=2)
        said = "The documents are long, and some (--short_seq_prob=1) become many short" in caplog.text
        assert said == (share == 1) and "Many sequences hold" not in caplog.text


@pytest.mark.parametrize("strict", [False, True])
def test_the_shares_that_are_reported_are_those_of_the_records(strict, tiny, caplog):
    caplog.set_level("INFO", "albert")
    write_corpus(tiny / "corpus.txt", range(9), lines=5)
    make(tiny, strict_sentence_order=strict, short_seq_prob=0, dupe_factor=5)
    found = read(tiny / "out.tfrecord")
    label, tokens = found["next_sentence_labels"].mean(), found["input_mask"].sum()
    assert f"label 1: {100 * label:.1f} % of the records" in caplog.text
    if strict:  # otherwise a token may also be in another document's B
        text = 5 * len((tiny / "corpus.txt").read_text().split())
        lost = text - (tokens - 3 * len(found["input_ids"]))
        assert 0 < lost and f"left out: {100 * lost / text:.1f} % of the tokens" in caplog.text


def test_the_manifest_says_what_the_records_are_like(tiny, caplog):
    caplog.set_level("INFO", "albert")
    make(tiny)
    manifest = manifest_of(tiny)
    report = manifest.info["report"]
    assert report["records"] == manifest.records and report["documents"] == 40
    assert report["unknown_tokens"] == 0
    records = read(tiny / "out.tfrecord")
    mask = records["input_mask"]
    [tokens] = re.findall(r"the first record has (\d+ tokens, label [01]: \[CLS\] .*\[SEP\])\n", caplog.text)
    assert tokens.count("(") == records["masked_lm_weights"][0].sum()
    assert tokens.startswith(f"{mask[0].sum()} tokens, label {records['next_sentence_labels'][0, 0]}: ")
    assert report["tokens"] == mask.sum() - 3 * len(mask)


@pytest.mark.parametrize(("share", "is_warned"), [(200, False), (50, True)])
def test_unknown_tokens_are_counted_and_warned_about(share, is_warned, tiny, caplog):
    words = [f"w{n % 9}" if n % share else "unheard" for n in range(4000)]
    lines = [" ".join(words[at : at + 8]) for at in range(0, len(words), 8)]
    (tiny / "corpus.txt").write_text("\n".join(lines) + "\n\nw1 w2\nw3\n")
    make(tiny)
    unknown = manifest_of(tiny).info["report"]["unknown_tokens"]
    assert abs(unknown - 1 / share) < 0.4 / share
    assert ("are unknown to the vocabulary" in caplog.text) == is_warned


# --- Size ---


def test_memory_does_not_grow_with_the_text_nor_with_a_document(tiny, monkeypatch):
    for owner, name in ((documents, "LONGEST_DOCUMENT"), (text_files, "LONGEST_LINE")):
        monkeypatch.setattr(owner, name, 3_000)
    monkeypatch.setattr(job, "_BLOCK", (3_000, 3_000))
    lines = [f"w{i % 90} w{i % 7} w{i % 31}" for i in range(800)]
    for join in ("\n", "\n\n", " "):  # one document, many documents, one line
        peaks = []
        for times in (1, 4):
            (tiny / "corpus.txt").write_text(join.join(lines * times) + "\n")
            tracemalloc.start()
            make(tiny, dupe_factor=1)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert peaks[1] < 1.3 * peaks[0], (join, peaks)


def test_a_disk_that_is_too_small_is_refused_before_the_work(tiny, monkeypatch, caplog):
    caplog.set_level("INFO", "albert")
    monkeypatch.setattr(pipeline, "_CHECKED_DISK", 0)
    make(tiny)
    assert "making records takes about 0.0 GB in" in caplog.text
    take(tiny)
    monkeypatch.setattr(pipeline.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 9))
    with pytest.raises(UserError, match="; 0.0 GB are free. Free some, or choose"):
        make(tiny)
    assert published(tiny) == []


@pytest.mark.parametrize("more", [{}, UNMASKED], ids=str)
def test_the_disk_that_is_said_to_be_needed_is_needed(more, tiny, golden_path, monkeypatch):
    used = []
    monkeypatch.setattr(pipeline, "_check_outputs", lambda *_: used.append(
        sum(path.stat().st_size for path in (tiny / ".out.tfrecord.work").iterdir())
    ))
    changes = dict(
        input_file=golden_path("pretraining_data/corpus.txt"), vocab_file=None, max_seq_length=128,
        spm_model_file=golden_path("spm/30k-clean.model"), **more,
    )
    make(tiny, **changes)
    assert 0.6 < pipeline.needed_disk(job_of(tiny, **changes)) / (2 * used[0]) <= 1.1


def job_of(folder, **changes):
    return command.job_of(
        flags.parse(command.define_flags, ["command", *flags_of(folder, **changes)])
    )


def test_a_large_text_has_larger_blocks(tiny):
    small = job_of(tiny, max_seq_length=128, dupe_factor=10)
    for gigabytes, want in ((0.01, 4 << 20), (4, 4 << 20), (10, 10_000_000), (160, 32 << 20)):
        large = dataclasses.replace(small, text_bytes=int(gigabytes * 1e9))
        assert large.block_characters == want
