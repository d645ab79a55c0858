"""The alignment of SQuAD's passages, compared with a plain version of the original's table."""

import json
import random

import numpy as np
import pytest

from albert.errors import DataError
from albert.tasks.squad import alignment as squad_alignment
from albert.tasks.squad.alignment import Alignment, align, convert_indices


def plain_alignment(original, cleaned) -> Alignment | None:
    """Spec 10.3 cell by cell."""
    n, m = len(original), len(cleaned)
    if not n or not m:
        return None
    band = abs(n - m) + 5
    for _ in range(2):
        table, pointers = np.zeros((n, m), int), {}
        for i in range(n):
            for j in range(max(0, i - band), min(m, i + band)):
                value = 0
                if i:
                    value, pointers[i, j] = table[i - 1, j], 0
                if j and table[i, j - 1] > value:
                    value, pointers[i, j] = table[i, j - 1], 1
                diagonal = table[i - 1, j - 1] if i and j else 0
                if original[i] == cleaned[j] and diagonal + 1 > value:
                    value, pointers[i, j] = diagonal + 1, 2
                table[i, j] = value
        if table[n - 1, m - 1] > 0.8 * n:
            break
        band *= 2
    to_cleaned, to_original = np.full(n, -1), np.full(m, -1)
    i, j = n - 1, m - 1
    while (i, j) in pointers:
        pointer = pointers[i, j]
        if pointer == 2:
            to_cleaned[i], to_original[j] = j, i
        i, j = i - (pointer != 1), j - (pointer != 0)
    if table[n - 1, m - 1] < 0.8 * n or (to_cleaned < 0).all():
        return None
    return Alignment(to_cleaned, to_original)


def assert_equal(ours, expected):
    assert (ours is None) == (expected is None)
    if expected is not None:
        np.testing.assert_array_equal(ours.to_cleaned, expected.to_cleaned)
        np.testing.assert_array_equal(ours.to_original, expected.to_original)


# Rows that share masks: a text may end within the first, or span many of them.
def test_texts_that_differ_in_a_few_places_are_aligned_as_by_the_plain_table(monkeypatch):
    rng, mismatches = random.Random(1), 0
    for block in [1, 3, 512] * 150:
        monkeypatch.setattr(squad_alignment, "_BLOCK", block)
        kinds = rng.randint(1, 4)
        original = [rng.randrange(kinds) for _ in range(rng.randint(0, 40))]
        cleaned = list(original)
        for _ in range(rng.randint(0, 6)):
            place = rng.randint(0, len(cleaned))
            new = [rng.randrange(kinds)] * rng.randint(0, 3)
            cleaned[place : place + rng.randint(0, 2)] = new
        expected = plain_alignment(original, cleaned)
        assert_equal(align(original, cleaned), expected)
        mismatches += expected is None
    assert 10 < mismatches < 200


def test_a_text_that_cannot_be_aligned_costs_no_table():
    # A million spaces that collapse: the band would be that wide.
    assert align([1, *[0] * 10**6, 2], [0, 1, 0, 2]) is None


def test_a_table_beyond_memory_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(squad_alignment, "_MOST_BITS", 10_000)
    with pytest.raises(DataError, match="passage of 200 characters is too long .* paragraphs"):
        align([1, 2] * 100, [1, 2] * 100)


def test_positions_without_counterpart_take_a_neighbours_as_in_the_original(golden_path):
    # spec 17: keys are (position, length, is_start).
    golden = json.loads(golden_path("spec_golden.json").read_text())
    index = np.array([-1, 2, -1, -1, 7, -1])
    for key, expected in golden["pretraining_data"]["convert_index"].items():
        position, length, is_start = eval(key, {"__builtins__": {}})
        assert convert_indices(index, np.array([position]), length, is_start) == [expected], key
