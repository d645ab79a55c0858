"""Held-out text: a fraction by size, in complete documents if they are small, chosen by the seed."""

import random

import pytest
from making_records import make, published, read, words_in, write_corpus

from albert.errors import DataError
from albert.pretraining_data.held_out import split_document
from albert.records.manifests import Manifest
from albert.runtime.seeds import child_seed


def documents_of(sizes, seed=0):
    """Returns documents with the given numbers of lines, all distinct."""
    rng = random.Random(seed)
    return [[f"{d} {n} {'x' * rng.randint(20, 80)}" for n in range(size)]
            for d, size in enumerate(sizes)]


def divide(documents, fraction, seed):
    """Returns (held-out parts, training parts), having checked that nothing is lost."""
    text_bytes = sum(len(line.encode()) + 1 for document in documents for line in document)
    sides = ([], [])
    for document in documents:
        whole = []
        for is_held_out, part in split_document(document, fraction, seed, text_bytes):
            assert sum(map(len, part)) > 0
            sides[not is_held_out].append(part)
            whole += part
        assert whole == document
    return sides


def share(sides):
    held_out, rest = (sum(len(line) for part in side for line in part) for side in sides)
    return held_out / (held_out + rest)


SHAPES = {
    "one document": [5000],
    "two documents": [700, 1500],
    "fourteen novels": [300, 1200, 60, 900, 1500, 400, 800, 2000, 150, 700, 1000, 500, 1300, 900],
    "forty alike": [100] * 40,
    "short and long in turn": [3, 30] * 200,
    "very different": [max(1, int(random.Random(n).lognormvariate(2, 1.2))) for n in range(800)],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5])
def test_the_fraction_is_held_out_by_size_whatever_the_documents_are(shape, fraction):
    documents = documents_of(SHAPES[shape])
    found = [share(divide(documents, fraction, seed)) for seed in range(20)]
    # Each document is chosen independently, so the error is that of sampling.
    sizes = [sum(map(len, document)) for document in documents]
    error = max(fraction * (1 - fraction) * sum((n / sum(sizes)) ** 2 for n in sizes), 1e-6) ** 0.5
    assert max(abs(value - fraction) for value in found) < max(0.01, 3.5 * error)
    assert abs(sum(found) / len(found) - fraction) < max(0.01, error)


def test_copies_of_a_document_are_on_one_side():
    for sizes in ([12] * 500, [400, 900]):
        documents = documents_of(sizes)
        held_out, rest = divide([*documents, *documents[::-1]], 0.1, seed=1)
        lines = [{line for part in side for line in part} for side in (held_out, rest)]
        assert lines[0] and not lines[0] & lines[1]


def test_a_document_stays_on_its_side_whatever_else_is_in_the_corpus():
    documents = documents_of([12] * 500)
    others = [[line + " other" for line in document] for document in documents[:300]]
    held_out, _ = divide(documents, 0.1, seed=1)
    again, _ = divide([*others, *documents[::-2]], 0.1, seed=1)
    kept = [document for document in documents[::-2]]
    assert [one for one in again if one in kept] == [one for one in kept if one in held_out]


def test_held_out_text_comes_from_many_places_and_from_long_and_short_documents():
    held_out, _ = divide(documents_of(SHAPES["fourteen novels"]), 0.1, seed=1)
    assert len({part[0].split()[0] for part in held_out}) >= 5
    held_out, _ = divide(documents_of(SHAPES["short and long in turn"]), 0.1, seed=1)
    lengths = [len(part) for part in held_out]
    assert 12 <= lengths.count(3) <= 28 and 12 <= lengths.count(30) <= 28


def test_small_documents_are_held_out_whole_and_other_seeds_choose_others():
    documents, chosen = documents_of([30] * 200), set()
    for seed in range(10):
        held_out, rest = divide(documents, 0.1, seed)
        assert 8 <= len(held_out) <= 34 and all(part in documents for part in held_out + rest)
        chosen.add(str(held_out))
    assert len(chosen) == 10
    assert divide(documents, 0.1, 3) == divide(documents, 0.1, 3)


def test_parts_of_a_long_document_on_the_same_side_stay_together():
    held_out, rest = divide(documents_of([5000]), 0.1, seed=1)
    assert 18 <= len(held_out) <= 22 and len(rest) <= len(held_out) + 1


# --- The command ---


@pytest.mark.parametrize(("fraction", "want"), [(0.1, 4), (0.3, 12)])
def test_whole_documents_are_held_out(tiny, fraction, want):
    write_corpus(tiny / "corpus.txt", range(0, 200, 5))  # all of the same length
    make(tiny, held_out_fraction=fraction, eval_output_file=tiny / "eval.tfrecord",
         masked_lm_prob=0)
    train, held_out = (words_in(read(tiny / f"{name}.tfrecord")) for name in ("out", "eval"))
    assert not train & held_out and len(train | held_out) == 40
    assert want / 2 <= len(held_out) <= want * 2
    splits = [Manifest.read(f"{tiny}/{name}.tfrecord").info["split"] for name in ("out", "eval")]
    assert splits == ["train", "eval"]


def test_a_part_of_the_only_document_is_held_out(tiny):
    lines = [f"w{n % 200} w{n % 199} w{n % 197}" for n in range(3000)]
    (tiny / "corpus.txt").write_text("\n".join(lines) + "\n")
    make(tiny, held_out_fraction=0.1, eval_output_file=tiny / "eval.tfrecord",
         document_layout="blank_lines", strict_sentence_order=True, dupe_factor=1, eval_dupe_factor=2)
    train, held_out = read(tiny / "out.tfrecord"), read(tiny / "eval.tfrecord")
    sizes = [(one["input_mask"].sum() - 3 * len(one["input_mask"])) for one in (train, held_out)]
    held = sizes[1] / 2 / (sizes[0] + sizes[1] / 2)
    assert abs(held - 0.1) < 0.02


def test_nothing_held_out_or_nothing_left_is_refused(tiny):
    write_corpus(tiny / "corpus.txt", [1, 2])
    documents = [[line.strip() for line in text.split("\n")]
                 for text in (tiny / "corpus.txt").read_text().strip().split("\n\n")]

    def seed_where(fraction, want):
        for seed in range(999):
            number = child_seed(seed, "held out")
            if all(is_held_out == want for document in documents
                   for is_held_out, _ in split_document(document, fraction, number, 1000)):
                return seed

    for fraction, want, message in (
        (0.01, False, "none of 2 documents is held out"),
        (0.99, True, "none of 2 documents is left for training"),
    ):
        with pytest.raises(DataError, match=message):
            make(tiny, held_out_fraction=fraction, random_seed=seed_where(fraction, want),
                 eval_output_file=tiny / "eval.tfrecord")
    assert published(tiny) == []
