"""The transcription of the original's recipe gives its instances, token for token."""

import hashlib
import json
import random

import jobs
import numpy as np
import pytest
import tensorflow as tf
from original_draws import Generators, OriginalRecipe, Settings, serialized

from albert import tokenization
from albert.records import tfrecord


@pytest.fixture(scope="module")
def golden(golden_path):
    # spec 17: the original's functions, run with fixed seeds for both generators.
    return json.loads(golden_path("spec_golden.json").read_text())["pretraining_data"]


def recipe(golden, **settings) -> OriginalRecipe:
    return OriginalRecipe(
        Settings(**settings), golden["vocab"],
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
    one = recipe(golden, max_seq_length=16, random_next_sentence=random_next,
                 max_predictions_per_seq=2)
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


@pytest.mark.parametrize("setting", ["default", "random_next", "permutation"])
def test_records_are_the_originals(setting, golden_path):
    folder = golden_path("pretraining_data")
    chosen = json.loads((folder / "stats.json").read_text())[setting]
    values = dict(chosen["settings"])
    tokenizer = tokenization.FullTokenizer(
        None, values.pop("do_lower_case"), str(golden_path("spm/30k-clean.model"))
    )
    digest, count = hashlib.sha256(), 0
    for record in serialized(
        str(folder / "corpus.txt"), tokenizer, Settings(**values), chosen["seed"]
    ):
        example = tf.train.Example.FromString(record)
        digest.update(example.SerializeToString(deterministic=True))
        count += 1
    expected = json.loads((folder / "records_sha256.json").read_text())[setting]
    assert {"records": count, "sha256": digest.hexdigest()} == expected


def test_words_of_a_wordpiece_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", "we"])
    )
    (tmp_path / "text.txt").write_text("\n\n".join("We playing\nplays we playing" for _ in "abcd"))
    out = tmp_path / "out.tfrecord"
    assert 0 == jobs.create_data(
        f"--input_file={tmp_path / 'text.txt'}", f"--vocab_file={tmp_path / 'vocab.txt'}",
        f"--output_file={out}", "--max_seq_length=12", "--dupe_factor=3",
        "--short_seq_prob=0", "--max_predictions_per_seq=4", "--masked_lm_prob=0.4",
    )
    whole = set()
    for record in tfrecord.read_records(str(out)):
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
