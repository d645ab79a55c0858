"""The statistics of records match the original's, however they are masked."""

import dataclasses
import functools
import gzip
import json

import making_records
import numpy as np
import pytest
from helpers import parse_with_tensorflow
from making_records import masked_pairs, read

from albert.pretraining_data import dynamic_masking, job, masking
from albert.pretraining_data.job import Recipe
from albert.pretraining_data.masking import MaskingSettings
from albert.pretraining_data.pairs import PairSettings
from albert.records.record_files import RecordFiles
from albert.tokenization import TextSettings

SETTINGS = (
    "default", "unigram", "long_ngrams", "no_whole_word", "random_next", "no_mask",
)


@pytest.fixture(scope="module")
def golden(golden_path):
    with open(golden_path("pretraining_data/stats.json"), encoding="utf-8") as stream:
        return json.load(stream)


@pytest.fixture(scope="module")
def vocabulary(golden_path):
    """The tokens that begin a word, and the special ids."""
    model = str(golden_path("spm/30k-clean.model"))
    return job.vocabulary_info(Recipe(
        PairSettings(), MaskingSettings(), None, model, "", TextSettings(), 0
    ))


@pytest.fixture(scope="module")
def make(golden_path, tmp_path_factory):
    """Function from settings to their record file; each is made once."""

    @functools.cache
    def made(settings):
        folder = tmp_path_factory.mktemp("made")
        making_records.make(
            folder, input_file=golden_path("pretraining_data/corpus.txt"), vocab_file=None,
            spm_model_file=golden_path("spm/30k-clean.model"), **dict(settings),
        )
        return folder / "out.tfrecord"

    return lambda **settings: made(tuple(sorted(settings.items())))


def static(make, vocabulary, settings, dupe_factor=6):
    """Returns the features of masked records."""
    predictions = settings["max_predictions_per_seq"]
    path = make(**settings | {"dupe_factor": dupe_factor})
    return read(path, settings["max_seq_length"], predictions)


def dynamic(make, vocabulary, settings):
    """Returns the features of records whose masks are drawn while reading."""
    chosen = {f.name: settings[f.name] for f in dataclasses.fields(MaskingSettings)
              if f.name in settings}
    others = {name: value for name, value in settings.items() if name not in chosen}
    path = str(make(**others | {
        "dupe_factor": 6, "static_masks": False, "max_predictions_per_seq": None
    }))
    masks = dynamic_masking.dynamic_masking(
        RecordFiles([path]), settings["max_seq_length"], MaskingSettings(**chosen), 0
    )
    rows = parse_with_tensorflow(path, masks.feature_spec())
    features = masked_pairs(
        masks, *(rows[name] for name in ("input_ids", "segment_lengths", "token_boundary",
                                  "next_sentence_labels")),
        np.arange(len(rows["input_ids"])),
    )
    # A and B may have been swapped.
    ids = features["input_ids"].copy()
    row, rank = np.nonzero(features["masked_lm_weights"])
    ids[row, features["masked_lm_positions"][row, rank]] = features["masked_lm_ids"][row, rank]
    lengths = features["input_mask"].sum(axis=1)
    boundary = masking.token_boundaries(ids, lengths, *vocabulary)
    return features | {"token_boundary": boundary}


def statistics(features, is_start):
    """Returns the golden file's statistics, computed for any set of records."""
    ids, inside = features["input_ids"], features["input_mask"] == 1
    lengths = inside.sum(axis=1)
    label = features["next_sentence_labels"].mean()
    row, rank = np.nonzero(features["masked_lm_weights"])
    column, was = features["masked_lm_positions"][row, rank], features["masked_lm_ids"][row, rank]
    now, predicted = ids[row, column], np.zeros(ids.shape, bool)
    predicted[row, column] = True
    original = ids.copy()
    original[row, column] = was
    # Runs of predicted positions, and words that are wholly or partly predicted.
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


FAST = {
    static: ("default", "long_ngrams", "random_next", "no_mask"),
    dynamic: ("default", "long_ngrams"),
}


@pytest.mark.parametrize(("name", "how"), [
    pytest.param(name, how, marks=() if name in FAST[how] else pytest.mark.slow)
    for how in FAST for name in SETTINGS
])  # fmt: skip
def test_statistics_are_the_originals_within_sampling_error(
    name, how, make, golden, vocabulary
):
    want, settings = golden[name], golden[name]["settings"]
    got = statistics(how(make, vocabulary, settings), vocabulary[0])
    # These depend on the text alone; short_seq_prob acts on entire documents, of
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


def test_the_originals_own_records_have_these_statistics_too(golden_path, golden, vocabulary):
    # Check that `statistics` computes the golden file's values, on the file it was made from.
    features = read(golden_path("pretraining_data/default.tfrecord"), 128, 20)
    got, want = statistics(features, vocabulary[0]), golden["default"]
    assert got["label"] == pytest.approx(want["sop_label_1_rate"])
    assert got["length"] == pytest.approx(want["length"]["mean"])
    assert got["predicted"] == pytest.approx(want["predicted_fraction_of_tokens"])
    assert got["mask"] == pytest.approx(want["as_mask_kept_random"][0])
    assert got["kept"] == pytest.approx(want["as_mask_kept_random"][1])
    assert got["boundary"] == pytest.approx(want["token_boundary_rate"])
    assert got["runs"][0] == pytest.approx(6566 / sum(want["run_length_tokens"].values()))


def test_every_segment_is_text_of_the_corpus(make, vocabulary, golden_path, golden):
    path = golden_path("pretraining_data/documents_ids.json.gz")
    with gzip.open(path, "rt") as stream:
        texts = [np.concatenate(d).astype("<u2").tobytes() for d in json.load(stream)]
    settings = dict(golden["default"]["settings"], masked_lm_prob=0, max_seq_length=64)
    features = static(make, vocabulary, settings, dupe_factor=1)
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
