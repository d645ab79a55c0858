"""Encoding of texts as sequences."""

import numpy as np
import pytest

from albert.records import features

@pytest.mark.parametrize(("a", "b", "length", "ids", "second"), [
    ([10, 11], None, 6, [2, 10, 11, 3], 0),
    ([10, 11], [20], 8, [2, 10, 11, 3, 20, 3], 2),
    ([10, 11], [], 8, [2, 10, 11, 3, 3], 1),
    ([], None, 5, [2, 3], 0),
    ([10, 11, 12, 13], None, 5, [2, 10, 11, 12, 3], 0),
    ([10, 11, 12, 13], [20, 21, 22], 8, [2, 10, 11, 12, 3, 20, 21, 3], 3),
])
def test_texts_are_cut_and_laid_out_with_their_separators(a, b, length, ids, second):
    row = features.join_texts(a, b, length, cls_id=2, sep_id=3)
    padding = [0] * (length - len(ids))
    assert row["input_ids"].tolist() == ids + padding
    assert row["input_mask"].tolist() == [1] * len(ids) + padding
    assert row["segment_ids"].tolist() == [0] * (len(ids) - second) + [1] * second + padding
    assert all(values.dtype == np.int64 for values in row.values())


def test_truncation_takes_from_the_longer_text_and_from_the_second_on_a_tie():
    for length_a, length_b, room, kept in (
        (5, 2, 7, (5, 2)), (5, 2, 5, (3, 2)), (2, 5, 5, (2, 3)), (3, 3, 5, (3, 2)),
        (4, 4, 1, (1, 0)),
    ):
        a, b = features.truncate_pair(range(length_a), range(length_b), room)
        assert ([*a], [*b]) == ([*range(kept[0])], [*range(kept[1])])
