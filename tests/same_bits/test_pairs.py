"""Pairs of segments: each document in order, B by the objective, truncated like the original."""

import random

import numpy as np
import pytest

from albert.pretraining_data import pairs as pairing
from albert.pretraining_data.pairs import (
    PAIR, Block, PairSettings, create_pairs, randbelow, truncate_pairs,
)
from albert.text import documents


def make_block(lengths):
    """A block whose token at position p is p; lengths: tokens per segment of each document."""
    segments, borders = [0], [0]
    for document in lengths:
        for length in document:
            segments.append(segments[-1] + length)
        borders.append(len(segments) - 1)
    return Block(np.arange(segments[-1], dtype=np.int32), segments, borders)


def all_pairs(block, seed=0, **settings):
    return create_pairs(block, PairSettings(**settings), random.Random(seed))


def test_random_numbers_of_pairs_are_those_of_pythons_randrange():
    one, two = random.Random(5), random.Random(5)
    counts = [*range(1, 70), 1000, 1 << 20, (1 << 33) + 1] * 20
    assert [randbelow(n, one) for n in counts] == [two.randrange(n) for n in counts]


def test_blocks_have_two_documents_wherever_there_are_two():
    def sizes(lengths, size):
        of_length = ((False, ["x" * n]) for n in lengths)
        return [len(block) for _, _, block in documents.cut_blocks(of_length, size)]

    assert sizes([5] * 7, 10) == [2, 2, 3]
    assert sizes([100, 1, 100, 100], 10) == [2, 2]
    assert sizes([100], 10) == [1] and sizes([], 10) == []
    assert sizes([1] * 5, 100) == [5]


def test_pairs_cover_each_document_in_order():
    rng = np.random.default_rng(0)
    block = make_block([rng.integers(1, 9, 50).tolist() for _ in range(4)])
    for seed in range(20):
        seen = np.zeros(len(block.ids), int)
        for a0, a1, b0, b1, label in all_pairs(block, seed, max_seq_length=32, short_seq_prob=0.3):
            assert a0 < a1 and b0 < b1
            assert label == 1 or a1 == b0
            is_swapped = label == 1 and b1 == a0
            for first, last in [(a0, a1)] + [(b0, b1)] * (label == 0 or is_swapped):
                seen[first:last] += 1
        assert (seen == 1).all()


def test_full_sequences_cover_each_document_without_a_gap_and_are_never_truncated():
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 90, 30).tolist() for _ in range(4)]  # many longer than a sequence
    block, ends = make_block(lengths), set(np.cumsum(np.concatenate(lengths)).tolist())
    settings = {"max_seq_length": 32, "full_sequences": True, "short_seq_prob": 0}
    at_an_end = total = 0
    for seed in range(5):
        found = np.array(all_pairs(block, seed, **settings))
        swapped = found[:, 4] == 1
        assert 0.3 < swapped.mean() < 0.7
        firsts, lasts = found[:, [0, 1]], found[:, [2, 3]]
        firsts[swapped], lasts[swapped] = lasts[swapped], firsts[swapped]
        assert (firsts[:, 1] == lasts[:, 0]).all()  # A and B follow each other
        sizes = lasts[:, 1] - firsts[:, 0]
        assert (sizes <= 29).all() and (sizes < 29).sum() <= len(lengths)  # one at each document's end
        seen = np.zeros(len(block.ids), int)
        for first, last in zip(firsts[:, 0], lasts[:, 1], strict=True):
            seen[first:last] += 1
        assert seen.max() == 1 and (seen == 0).sum() <= len(lengths)
        at_an_end += np.isin(firsts[:, 1], list(ends)).sum()
        total += len(firsts)
    assert at_an_end > 0.3 * total
    pairs = pairing.pairs_of_block(block, PairSettings(**settings), 0)
    assert pairs["lost"].sum() <= len(lengths)


def test_random_documents_are_others_and_unused_text_comes_again():
    block = make_block([[4] * 30 for _ in range(6)])
    found = np.array(all_pairs(block, max_seq_length=32, sentence_objective="nsp"))
    a0, a1, b0, b1, label = found.T
    assert 0.3 < label.mean() < 0.7
    assert ((a0 // 120 != b0 // 120) == (label == 1)).all()
    assert (a1 == b0)[label == 0].all()
    covered = np.zeros(len(block.ids), bool)
    for start, end in [*zip(a0, a1, strict=True), *found[label == 0, 2:4]]:
        covered[start:end] = True
    assert covered.all()


def test_a_lone_segment_meets_another_document_unless_strict():
    block = make_block([[50], [50] * 5, [50]])
    found = all_pairs(block, max_seq_length=32)
    assert {pair[4] for pair in found} == {1} and len(found) == 7
    strict = all_pairs(block, max_seq_length=32, strict_sentence_order=True)
    assert len(strict) == 2
    for a0, a1, b0, b1, label in strict:
        assert (b0, b1) == (a1, a1 + 50) if label == 0 else (a0, a1) == (b1, b1 + 50)
    # A single document is paired with itself instead of failing.
    assert len(all_pairs(make_block([[50, 50]]), max_seq_length=32)) == 2


@pytest.mark.parametrize("length", [8, 24, 64])
def test_strict_pairs_of_short_sequences_are_of_one_document_and_balanced(length):
    rng = random.Random(1)
    block = make_block([[rng.randint(5, 40) for _ in range(30)] for _ in range(300)])
    a0, a1, b0, b1, label = np.array(
        all_pairs(block, max_seq_length=length, strict_sentence_order=True)
    ).T
    # Neighbours, in either order.
    assert ((a1 == b0) == (label == 0)).all() and ((b1 == a0) == (label == 1)).all()
    assert len(label) > 2000 and abs(label.mean() - 0.5) < 5 * 0.5 / len(label) ** 0.5
    usual = np.array(all_pairs(block, max_seq_length=length))[:, 4]
    assert usual.mean() > 0.55 or length == 64


@pytest.mark.parametrize("objective,want", [
    ("sop", (0.0, 0.5)), ("nsp", (0.5, 0.0)), ("none", (0.0, 0.0)),
])
def test_so_many_pairs_have_a_random_b_and_so_many_are_swapped(objective, want):
    # Documents of four segments of one token each, the number that a pair takes.
    count = 40_000
    starts = list(range(count + 1))
    block = Block(np.arange(count, dtype=np.int32), starts, starts[::4])
    settings = PairSettings(7, 0.0, objective, strict_sentence_order=True)
    found = pairing.pairs_of_block(block, settings, 5)
    is_random = found["a_start"] // 4 != found["b_start"] // 4
    is_swapped = ~is_random & (found["b_start"] < found["a_start"])
    shares = np.array([is_random.mean(), is_swapped.mean()])
    assert np.abs(shares - want).max() < 4 * 0.5 / np.sqrt(len(found))
    assert ((found["label"] == 1) == (is_random | is_swapped)).all()


def test_so_many_documents_have_shorter_pairs_of_any_length():
    block = make_block([[1] * 40] * 2000)
    for share in (0.0, 0.3, 1.0):
        found = np.array(all_pairs(block, max_seq_length=43, short_seq_prob=share))
        sizes = found[:, 1] - found[:, 0] + found[:, 3] - found[:, 2]
        starts = np.minimum(found[:, 0], found[:, 2])
        first = sizes[starts % 40 == 0][:2000]  # of each document; lone segments meet others
        shorter, expected = first[first < 40], share * 38 / 39  # the length drawn may be 40, too
        error = np.sqrt(expected * (1 - expected) / 2000)
        assert abs(len(shorter) / len(first) - expected) <= 4 * error
        assert not share or set(shorter.tolist()) == set(range(2, 40))


def test_lengths_do_not_reveal_whether_segments_are_swapped_later():
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
