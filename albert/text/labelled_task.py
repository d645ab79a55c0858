"""Cuts a small labelled task, in SST-2's layout, out of any documents.

Four tasks with two balanced classes; no sentence is in two of the train, dev and
test sets. All randomness is the caller's `rng`.

- `word_order`: 1 = the sentence as written, 0 = a few neighbouring words of it
  in another order. The words are the same, so counting words cannot tell.
- `word_choice`: 0 = some words replaced by words of other sentences, drawn
  with their frequencies, so that again no word tells by itself.
- `neighbours`: 1 = two sentences that follow each other, 0 = the second is from
  another document. Every sentence occurs once, so that none tells by itself.
- `part`: which part of the text the sentence is from: 1 = Python's library, 0 = its
  language reference; or 0 = the first and 1 = the second half of a user's documents.
"""

import dataclasses
import random
import re
from collections.abc import Iterable, Iterator

from albert.errors import DataError
from albert.storage import files
from albert.text.text_corpus import Document

LABELS = ("word_order", "word_choice", "neighbours", "part")
_MIN_WORDS, _MAX_WORDS = 6, 18  # mostly fits 32 pieces of a small vocabulary
_NEIGHBOUR_WORDS = 12  # at most, of each of the two
_MIN_SET = 10  # rows; a smaller set measures nothing
# Dev and test documents together may take this share of the text from the
# pretraining corpus, unless a single document each is already more.
_MAX_SHARE = 0.15
_PLAIN = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")

Row = tuple[str, int]  # (sentence, label)


@dataclasses.dataclass(frozen=True)
class LabelledTask:
    """Rows of the three sets, and the documents that dev and test were cut from."""

    train: list[Row]
    dev: list[Row]
    test: list[Row]
    dev_documents: list[Document]
    test_documents: list[Document]
    rest: list[Document]  # all but those of dev and test


def make_task(
    documents: list[Document],
    label: str,
    sizes: tuple[int, int, int],
    rng: random.Random,
) -> LabelledTask:
    """Returns a task of at most `sizes` (train, dev, test) rows, fewer when the text is small.

    Dev and test are whole documents; for `part` they are the ends of documents, if those are
    long enough, for what tells the parts apart is what their documents are about.

    Raises:
      DataError: there is too little text for a set of `_MIN_SET` rows.
    """
    num_train, num_dev, num_test = sizes
    usable = {d.name: _count_usable(d.sentences, label) for d in documents}
    rest = documents.copy()
    rng.shuffle(rest)
    allowed = max(1, int(_MAX_SHARE * sum(usable.values())))
    held: list[list[Document]] = []
    ends = _cut_ends(documents) if label == "part" else None
    if ends is not None:
        rest, *held = ends
    for wanted in () if ends is not None else (num_dev, num_test):
        share = min(wanted, allowed * wanted // max(1, num_dev + num_test))
        chosen, rest = _take(rest, usable, share, by_part=label == "part")
        held.append(chosen)
    seen: set[str] = set()  # no sentence in two sets, even where the text repeats itself
    test = _rows(held[1], documents, label, num_test, rng, seen)
    dev = _rows(held[0], documents, label, num_dev, rng, seen)
    train = _rows(rest, documents, label, num_train, rng, seen)
    for name, rows in (("train", train), ("dev", dev), ("test", test)):
        if len(rows) < _MIN_SET:
            raise DataError(
                f"too little text for the labelled task {label!r}: {len(rows)} rows in the {name} "
                f"set, at least {_MIN_SET} are needed (sentences of {_MIN_WORDS} to {_MAX_WORDS} "
                "words from different documents); use a longer text"
            )
    return LabelledTask(train, dev, test, *held, rest)


def _cut_ends(
    documents: list[Document],
) -> tuple[list[Document], list[Document], list[Document]] | None:
    """Returns (beginnings, ends, what comes before the ends), or None if ends are too short."""
    pieces: tuple[list[Document], ...] = ([], [], [])
    for document in documents:
        held = int(len(document.sentences) * _MAX_SHARE)
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
    documents: list[Document], usable: dict[str, int], rows: int, by_part: bool
) -> tuple[list[Document], list[Document]]:
    """Splits off documents, in the given order, until they hold `rows` usable sentences.

    By part, each part gives half of the rows. At least one document of each is
    taken and at least one left.
    """
    parts = sorted({d.part for d in documents}) if by_part else [None]
    taken: list[Document] = []
    for part in parts:
        candidates = [d for d in documents if part in (None, d.part) and usable[d.name]]
        count = 0
        for document in candidates[:-1]:
            if count >= max(1, rows // len(parts)):
                break
            taken.append(document)
            count += usable[document.name]
    names = {d.name for d in taken}
    return taken, [d for d in documents if d.name not in names]


def _count_usable(sentences: list[str], label: str) -> int:
    """About how many rows of the task a document gives."""
    if label == "neighbours":
        short = [3 <= len(s.split()) <= _NEIGHBOUR_WORDS for s in sentences]
        return sum(a and b for a, b in zip(short, short[1:], strict=False)) // 2
    return len(_usable(sentences))


def _usable(sentences: Iterable[str]) -> list[str]:
    """Returns the sentences of the lengths that make a row."""
    return [s for s in sentences if _MIN_WORDS <= len(s.split()) <= _MAX_WORDS and "\t" not in s]


def _rows(
    documents: list[Document],
    everything: list[Document],
    label: str,
    count: int,
    rng: random.Random,
    seen: set[str],
) -> list[Row]:
    """Returns up to `count` shuffled rows, half of each class."""
    if label == "part":
        rows = _part_rows(documents, sorted({d.part for d in everything}), rng, seen)
    elif label == "neighbours":
        rows = _neighbour_rows(documents, rng, seen)
    else:
        words = _plain_words(everything) if label == "word_choice" else []
        rows = _corrupted_rows(documents, label, words, rng, seen)
    by_class = [[row for row in rows if row[1] == c] for c in (0, 1)]
    half = min(count // 2, *map(len, by_class))
    chosen = by_class[0][:half] + by_class[1][:half]
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


def _part_rows(
    documents: list[Document], parts: list[str], rng: random.Random, seen: set[str]
) -> list[Row]:
    if len(parts) != 2:
        raise DataError(f"--label=part needs a text of two parts, this one has {len(parts)}")
    return [
        (sentence, 1 - parts.index(part))
        for part in parts
        for sentence in _fresh([d for d in documents if d.part == part], rng, seen)
    ]


def _neighbour_rows(documents: list[Document], rng: random.Random, seen: set[str]) -> list[Row]:
    """Returns pairs of neighbours, and as many whose second sentences changed places."""
    pairs: list[tuple[str, str, str]] = []  # first, second, document
    for document in documents:
        at = 0
        while at + 1 < len(document.sentences):
            first, second = document.sentences[at : at + 2]
            at += 1
            if any(not 3 <= len(s.split()) <= _NEIGHBOUR_WORDS or s.lower() in seen or "\t" in s
                   for s in (first, second)):
                continue
            seen.update((first.lower(), second.lower()))
            pairs.append((first, second, document.name))
            at += 1
    rng.shuffle(pairs)
    half = len(pairs) // 2
    rows = [(f"{first} {second}", 1) for first, second, _ in pairs[:half]]
    apart = sorted(pairs[half:], key=lambda pair: pair[2])
    # Sorted by document and turned by half, nearly every second is from elsewhere.
    turned = apart[len(apart) // 2 :] + apart[: len(apart) // 2]
    rows += [
        (f"{a[0]} {b[1]}", 0) for a, b in zip(apart, turned, strict=True) if a[2] != b[2]
    ]
    rng.shuffle(rows)
    return rows


def _corrupted_rows(
    documents: list[Document], label: str, words: list[str], rng: random.Random, seen: set[str]
) -> list[Row]:
    """Returns every other usable sentence as it is, the rest corrupted."""
    rows: list[Row] = []
    want_corrupt = False
    for sentence in _fresh(documents, rng, seen):
        corrupted = (
            _reorder(sentence, rng) if label == "word_order" else _replace(sentence, words, rng)
        )
        # Only sentences that could be corrupted are kept as they are, or the
        # kind of sentence would give the class away.
        if corrupted is not None:
            rows.append((corrupted, 0) if want_corrupt else (sentence, 1))
            want_corrupt = not want_corrupt
    return rows


_SPAN = 4  # neighbouring words that change places


def _reorder(sentence: str, rng: random.Random) -> str | None:
    """Returns the sentence with `_SPAN` neighbouring words in another order, or None.

    Only plain words inside the sentence move: no capital, no punctuation, so that
    neither is out of place afterwards.
    """
    words = sentence.split()
    starts = [
        i
        for i in range(1, len(words) - _SPAN)
        if all(_PLAIN.fullmatch(w) and w.islower() for w in words[i : i + _SPAN])
        and len(set(words[i : i + _SPAN])) == _SPAN
    ]
    if not starts:
        return None
    start = rng.choice(starts)
    span = words[start : start + _SPAN]
    while True:
        moved = rng.sample(span, _SPAN)
        if all(a != b for a, b in zip(moved, span, strict=True)):
            return " ".join(words[:start] + moved + words[start + _SPAN :])


def _plain_words(documents: list[Document]) -> list[str]:
    return [
        w for d in documents for s in d.sentences for w in s.split()
        if w.islower() and _PLAIN.fullmatch(w)
    ]


def _replace(sentence: str, pool: list[str], rng: random.Random) -> str | None:
    """Returns the sentence with a fifth of its words (two at least) replaced, or None."""
    words = sentence.split()
    places = [i for i, w in enumerate(words) if i and w.islower() and _PLAIN.fullmatch(w)]
    count = max(2, len(words) // 5)
    if len(places) < count or not pool:
        return None
    for place in rng.sample(places, count):
        original = words[place]
        while words[place] == original:
            words[place] = rng.choice(pool)
    return " ".join(words)


def write_task(directory: str, task: LabelledTask) -> None:
    """Publishes train.tsv, dev.tsv (sentence, label) and test.tsv (index, sentence)."""
    for name in ("train", "dev"):
        with files.atomic_write(f"{directory}/{name}.tsv") as stream:
            stream.write("sentence\tlabel\n")
            stream.writelines(f"{sentence}\t{label}\n" for sentence, label in getattr(task, name))
    with files.atomic_write(f"{directory}/test.tsv") as stream:
        stream.write("index\tsentence\n")
        stream.writelines(f"{i}\t{sentence}\n" for i, (sentence, _) in enumerate(task.test))
