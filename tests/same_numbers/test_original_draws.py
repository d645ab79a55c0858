"""`--original_draw_order`: the original's instances, token for token."""

import hashlib
import json
import random

import jobs
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_one_clear_line

from albert import tokenization
from albert.pretraining_data.masking import MaskingSettings
from albert.pretraining_data.original_draws import Generators, OriginalRecipe
from albert.pretraining_data.pairs import PairSettings
from albert.records import tfrecord


@pytest.fixture(scope="module")
def golden(golden_path):
    # spec 17: the original's functions, run with fixed seeds for both generators.
    return json.loads(golden_path("spec_golden.json").read_text())["pretraining_data"]


def recipe(golden, pairs=None, **masking) -> OriginalRecipe:
    return OriginalRecipe(
        pairs or PairSettings(), MaskingSettings(**masking), golden["vocab"],
        lambda piece: tokenization.is_start_piece(piece, True),
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("wwm=True perm=False favor=True max=20", {}),
        ("wwm=True perm=False favor=False max=20", {"favor_shorter_ngram": False}),
        ("wwm=False perm=False favor=True max=3",
         {"do_whole_word_mask": False, "max_predictions_per_seq": 3}),
        ("wwm=True perm=True favor=True max=4",
         {"do_permutation": True, "max_predictions_per_seq": 4}),
    ],
)
def test_masks_are_the_originals_token_for_token(name, settings, golden):
    draws = Generators(random.Random(12345), np.random.RandomState(7))
    made = recipe(golden, masked_lm_prob=0.3, **settings).create_masked_lm_predictions(
        golden["toks"], draws
    )
    expected = golden[name]
    keys = ("tokens", "positions", "labels", "boundary")
    assert dict(zip(keys, map(list, made), strict=True)) == expected


@pytest.mark.parametrize("random_next", [False, True])
def test_instances_are_the_originals_token_for_token(random_next, golden):
    pairs = PairSettings(16, sentence_objective="nsp" if random_next else "sop")
    one = recipe(golden, pairs, max_predictions_per_seq=2)
    draws = Generators(random.Random(5), np.random.RandomState(3))
    made = [
        instance
        for index in range(len(golden["docs"]))
        for instance in one.create_instances_from_document(golden["docs"], index, draws)
    ]
    expected = golden[f"instances_rns={random_next}"]
    assert len(made) == len(expected)
    for ours, theirs in zip(made, expected, strict=True):
        assert ours.tokens == theirs["tokens"]
        assert ours.segment_ids == theirs["seg"]
        assert int(ours.is_random_next) == theirs["label"]
        assert ours.masked_lm_positions == theirs["pos"]
        assert ours.masked_lm_labels == theirs["labels"]
        assert ours.token_boundary == theirs["boundary"]


def records_of(path) -> list[bytes]:
    return list(tfrecord.read_records(str(path)))


@pytest.mark.parametrize("setting", ["default", "random_next", "permutation"])
def test_the_command_writes_the_originals_records(setting, golden_path, tmp_path):
    folder = golden_path("pretraining_data")
    chosen = json.loads((folder / "stats.json").read_text())[setting]
    arguments = [f"--{name}={value}" for name, value in chosen["settings"].items()]
    out = tmp_path / "out.tfrecord"
    assert 0 == jobs.create_data(
        f"--input_file={folder / 'corpus.txt'}", f"--output_file={out}", *arguments,
        f"--spm_model_file={golden_path('spm/30k-clean.model')}",
        f"--random_seed={chosen['seed']}", "--original_draw_order",
    )
    digest, ours = hashlib.sha256(), records_of(out)
    for record in ours:
        example = tf.train.Example.FromString(record)
        digest.update(example.SerializeToString(deterministic=True))
    expected = json.loads((folder / "records_sha256.json").read_text())[setting]
    assert {"records": len(ours), "sha256": digest.hexdigest()} == expected


@pytest.fixture
def make(golden_path, tmp_path):
    """Function that makes records of four documents, given output names and flags; returns the exit code."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("one two three four\nfive six seven" for _ in range(4)))

    def run(names, *more) -> int:
        outputs = ",".join(str(tmp_path / name) for name in names.split(","))
        return jobs.create_data(
            f"--input_file={text}", f"--spm_model_file={golden_path('spm/30k-clean.model')}",
            "--max_seq_length=12", "--dupe_factor=2", f"--output_file={outputs}", *more,
        )

    return run


def test_the_numpy_seed_is_the_other_one_unless_given_and_files_take_turns(make, tmp_path):
    for names, *more in (
        ("default",), ("a,b",), ("same", "--numpy_seed=12345"), ("other", "--numpy_seed=6"),
        ("negative", "--random_seed=-1", "--numpy_seed=1"),
    ):
        assert make(names, "--original_draw_order", *more) == 0
    default, a, b, same, other = (
        records_of(tmp_path / name) for name in ("default", "a", "b", "same", "other")
    )
    assert default == same != other
    assert (a, b) == (default[::2], default[1::2])


def test_what_the_original_could_not_do_is_one_clear_line(make, tmp_path, capsys):
    original, before = "--original_draw_order", {*tmp_path.iterdir()}
    for flags, said in (
        ([original, "--strict_sentence_order"], [original, "--strict_sentence_order"]),
        ([original, "--nomask_across_segments"], [original, "--mask_across_segments"]),
        ([original, "--held_out_fraction=0.1", f"--eval_output_file={tmp_path / 'e'}"],
         [original, "--held_out_fraction"]),
        ([original, "--num_processes=2"], [original, "--num_processes"]),
        ([original, "--random_seed=-1"], ["--numpy_seed", "-1"]),
        ([original, "--numpy_seed=4294967296"], ["--numpy_seed", "4294967296"]),
        (["--numpy_seed=1"], ["--numpy_seed", original]),
    ):
        assert make("out", *flags) == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert all(part in line for part in said), line
    assert {*tmp_path.iterdir()} == before


def test_all_files_or_none_are_written(make, tmp_path, capsys):
    before = {*tmp_path.iterdir(), tmp_path / ".0.tfrecord.work"}
    names = ",".join(f"{number}.tfrecord" for number in range(60))
    assert make(names, "--original_draw_order") == 2
    assert "would be empty" in assert_one_clear_line(capsys.readouterr().err)
    assert set(tmp_path.iterdir()) == before


def test_words_of_a_wordpiece_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", "we"])
    )
    (tmp_path / "text.txt").write_text("\n\n".join("We playing\nplays we playing" for _ in "abcd"))
    out = tmp_path / "out.tfrecord"
    assert 0 == jobs.create_data(
        f"--input_file={tmp_path / 'text.txt'}", f"--vocab_file={tmp_path / 'vocab.txt'}",
        f"--output_file={out}", "--max_seq_length=12", "--dupe_factor=3", "--original_draw_order",
        "--short_seq_prob=0", "--max_predictions_per_seq=4", "--masked_lm_prob=0.4",
    )
    whole = set()
    for record in records_of(out):
        feature = tf.train.Example.FromString(record).features.feature
        ids, boundary, positions, labels = (
            list(feature[name].int64_list.value)
            for name in ("input_ids", "token_boundary", "masked_lm_positions", "masked_lm_ids")
        )
        length = sum(feature["input_mask"].int64_list.value)
        for position, label in zip(positions, labels, strict=True):
            if position:
                ids[position] = label
        assert boundary[:length] == [int(i not in (6, 7)) for i in ids[:length]]
        chosen = set(positions) - {0}
        for position in range(1, length):
            if ids[position] in (6, 7):  # masked together with its word
                assert (position in chosen) == (position - 1 in chosen)
                whole.add(position in chosen)
    assert whole == {True, False}
