"""A small labelled task in SST-2's layout, made from any text: which part is a sentence from?

The train, dev and test sets share no sentence. All randomness comes from the caller's `rng`.
"""

import dataclasses
import random
from collections.abc import Iterable, Iterator

from albert.errors import DataError
from albert.storage import files

_MIN_WORDS, _MAX_WORDS = 6, 18  # mostly fits in 32 tokens of a small vocabulary
_MIN_SET = 10  # rows; a smaller set is meaningless
# Of the text that dev and test may take from the pretraining corpus, unless a single document each
# is more.
_MAX_FRACTION = 0.15
Row = tuple[str, int]  # (sentence, label)


@dataclasses.dataclass(frozen=True)
class Document:
    """A run of sentences that belong together."""

    name: str  # its source, for messages and the split
    part: str  # the part of the text that it belongs to: a class of the task
    sentences: list[str]


@dataclasses.dataclass(frozen=True)
class LabelledTask:
    """The rows of the three sets, the documents held out for dev and test, and the rest."""

    train: list[Row]
    dev: list[Row]
    test: list[Row]
    dev_documents: list[Document]
    test_documents: list[Document]
    rest: list[Document]  # everything except dev and test


def make_task(
    documents: list[Document], sizes: tuple[int, int, int], rng: random.Random
) -> LabelledTask:
    """Returns a task of at most `sizes` (train, dev, test) rows, fewer if the text is small.

    Dev and test are the ends of documents if those are long enough; otherwise, complete documents.

    Raises:
      DataError: there is too little text for a set of `_MIN_SET` rows.
    """
    num_train, num_dev, num_test = sizes
    usable = {d.name: len(_usable(d.sentences)) for d in documents}
    rest = documents.copy()
    rng.shuffle(rest)
    allowed = max(1, int(_MAX_FRACTION * sum(usable.values())))
    held: list[list[Document]] = []
    ends = _cut_ends(documents)
    if ends is not None:
        rest, *held = ends
    for wanted in () if ends is not None else (num_dev, num_test):
        share = min(wanted, allowed * wanted // max(1, num_dev + num_test))
        chosen, rest = _take(rest, usable, share)
        held.append(chosen)
    seen: set[str] = set()  # no sentence in two sets, even if the text repeats itself
    parts = sorted({d.part for d in documents})
    if len(parts) != 2:
        raise DataError(f"the labelled task needs a text of two parts, this one has {len(parts)}")
    test = _rows(held[1], parts, num_test, rng, seen)
    dev = _rows(held[0], parts, num_dev, rng, seen)
    train = _rows(rest, parts, num_train, rng, seen)
    for name, rows in (("train", train), ("dev", dev), ("test", test)):
        if len(rows) < _MIN_SET:
            raise DataError(
                f"too little text for the labelled task: {len(rows)} rows in the {name} set, at "
                f"least {_MIN_SET} are needed (sentences of {_MIN_WORDS} to {_MAX_WORDS} words from "
                "different documents); use a longer text"
            )
    return LabelledTask(train, dev, test, *held, rest)


def _cut_ends(
    documents: list[Document],
) -> tuple[list[Document], list[Document], list[Document]] | None:
    """Returns (beginnings, ends, parts just before the ends), or None if the ends are too short."""
    pieces: tuple[list[Document], ...] = ([], [], [])
    for document in documents:
        held = int(len(document.sentences) * _MAX_FRACTION)
        # Two thirds for dev, on which results are reported.
        cut, last = len(document.sentences) - held, len(document.sentences) - held * 2 // 3
        spans = (slice(0, cut), slice(last, None), slice(cut, last))
        for piece, span, title in zip(pieces, spans, ("", " (end)", " (before the end)"),
                                      strict=True):
            if document.sentences[span]:
                piece.append(dataclasses.replace(
                    document, name=document.name + title, sentences=document.sentences[span]
                ))
    parts = {d.part for d in documents}
    shortest = min(
        sum(len(_usable(d.sentences)) for d in piece if d.part == part)
        for piece in pieces[1:]
        for part in parts
    )
    return pieces if shortest >= _MIN_SET else None


def _take(
    documents: list[Document], usable: dict[str, int], rows: int
) -> tuple[list[Document], list[Document]]:
    """Splits off documents, in the given order, until they hold `rows` usable sentences.

    Half come from each part. At least one document of each part is taken and at least one left.
    """
    parts = sorted({d.part for d in documents})
    taken: list[Document] = []
    for part in parts:
        candidates = [d for d in documents if part == d.part and usable[d.name]]
        count = 0
        for document in candidates[:-1]:
            if count >= max(1, rows // len(parts)):
                break
            taken.append(document)
            count += usable[document.name]
    names = {d.name for d in taken}
    return taken, [d for d in documents if d.name not in names]


def _usable(sentences: Iterable[str]) -> list[str]:
    """Returns the sentences whose length fits a row."""
    return [s for s in sentences if _MIN_WORDS <= len(s.split()) <= _MAX_WORDS and "\t" not in s]


def _rows(
    documents: list[Document], parts: list[str], count: int, rng: random.Random, seen: set[str]
) -> list[Row]:
    """Returns up to `count` shuffled rows, half of each class."""
    by_class = [
        [(sentence, 1 - number)
         for sentence in _fresh([d for d in documents if d.part == part], rng, seen)]
        for number, part in enumerate(parts)
    ]
    half = min(count // 2, *map(len, by_class))
    chosen = by_class[1][:half] + by_class[0][:half]
    rng.shuffle(chosen)
    return chosen


def _fresh(documents: list[Document], rng: random.Random, seen: set[str]) -> Iterator[str]:
    """Yields usable sentences that no set has yet, in random order."""
    pool = [s for document in documents for s in _usable(document.sentences)]
    rng.shuffle(pool)
    for sentence in pool:
        if sentence.lower() not in seen:
            seen.add(sentence.lower())
            yield sentence


def write_task(directory: str, task: LabelledTask) -> None:
    """Publishes train.tsv, dev.tsv (sentence, label) and test.tsv (index, sentence)."""
    for name in ("train", "dev"):
        with files.atomic_write(f"{directory}/{name}.tsv") as stream:
            stream.write("sentence\tlabel\n")
            stream.writelines(f"{sentence}\t{label}\n" for sentence, label in getattr(task, name))
    with files.atomic_write(f"{directory}/test.tsv") as stream:
        stream.write("index\tsentence\n")
        stream.writelines(f"{i}\t{sentence}\n" for i, (sentence, _) in enumerate(task.test))
