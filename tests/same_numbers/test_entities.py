"""Entity scores: the official counting, on well-formed labels and on model predictions."""

import random

import pytest

from albert.tasks import entity_metrics as entities


@pytest.mark.parametrize(("labels", "expected"), [
    ("O O", []),
    ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
    ("B-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
    ("O I-PER I-PER", [("PER", 1, 2)]),  # begins without B-
    ("B-PER I-LOC", [("PER", 0, 0), ("LOC", 1, 1)]),  # another type never continues
    ("I-PER O I-PER", [("PER", 0, 0), ("PER", 2, 2)]),
    ("B-A I-A E-A S-A", [("A", 0, 2), ("A", 3, 3)]),
    ("E-A I-A", [("A", 0, 0), ("A", 1, 1)]),
    ("S-A I-A", [("A", 0, 0), ("A", 1, 1)]),
    ("B-a-b I-a-b", [("a-b", 0, 1)]),
    ("NN X-PER -", []),
    ("", []),
])
def test_entities_are_those_of_conlleval(labels, expected):
    assert entities.find_entities(labels.split()) == expected


# From seqeval 1.2.2 (default mode), for the same sentences.
@pytest.mark.parametrize(("seed", "precision", "recall", "f1", "by_type"), [
    (1, 0.6035502958579881, 0.5895953757225434, 0.5964912280701754,
     {"LOC": 0.5974025974025974, "ORG": 0.6461538461538462, "PER": 0.5691056910569106}),
    (2, 0.5632183908045977, 0.5664739884393064, 0.5648414985590778,
     {"LOC": 0.5112781954887218, "ORG": 0.625, "PER": 0.582089552238806}),
])
def test_scores_equal_seqevals(seed, precision, recall, f1, by_type):
    rng = random.Random(seed)
    known = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "I-ORG"]
    gold = [[rng.choice(known) for _ in range(6)] for _ in range(40)]
    guessed = [[x if rng.random() < 0.6 else rng.choice(known) for x in s] for s in gold]
    expected = {"eval_precision": precision, "eval_recall": recall, "eval_f1": f1}
    expected |= {f"eval_f1_{kind}": value for kind, value in by_type.items()}
    assert entities.score(gold, guessed) == pytest.approx(expected, abs=1e-12)


def test_nothing_found_and_nothing_to_find_are_zero_not_an_error():
    assert entities.score([["O"]], [["O"]]) == {
        "eval_precision": 0.0, "eval_recall": 0.0, "eval_f1": 0.0
    }
    assert entities.score([["B-A"]], [["O"]])["eval_f1_A"] == 0.0
