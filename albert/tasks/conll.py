"""Reads CoNLL files of labelled words, and makes records of them. No TensorFlow.

A line holds columns separated by blanks or tabs: by default the first is a word, the last its label.
An empty line ends a sentence. `-DOCSTART-` lines separate documents and belong to no
sentence. A `token_classification.TokenClassificationTask` is trained on these files.

Legend: L sequence length.
"""

import dataclasses
import itertools
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.errors import DataError
from albert.records import features
from albert.records.examples import FeatureSpec
from albert.storage import files
from albert.tasks import entity_metrics as entities
from albert.tasks import lines

if TYPE_CHECKING:
    from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

DOCUMENT_START = "-DOCSTART-"
OUTSIDE = "O"
# How labels mark entities: B- at the start of each; B- only between adjacent ones (the original
# files of CoNLL-2003); also E- at the end and S- for single words; not at all (parts of speech).
SCHEMES = ("bio", "iob1", "iobes", "none")
_PREFIXES = {"bio": "BI", "iob1": "BI", "iobes": "BIES"}
# Other white space, such as the no-break space, is part of a word.
_SEPARATOR = re.compile("[ \t]+")
_RANGE = re.compile(r"\d+[-.]\d+")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of words and labels, counted from 0, or backwards from -1; and comments."""

    word: int = 0
    label: int = -1
    has_comments: bool = False  # lines that begin with "#" and a blank or tab, or are "#" alone


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words as in the file, and their labels if there are any."""

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    line: int  # of its first word in the file, from 1


# === Reading ===


def file_path(data_dir: str, split: str) -> str:
    """Returns the file of train, dev or test.

    Raises:
      DataError: it does not exist.
    """
    path = os.path.join(data_dir, f"{split}.txt")
    if not os.path.isfile(path):
        raise DataError(f"no such file: {path}; --data_dir must hold {split}.txt")
    return path


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a file."""

    number: int  # from 1
    text: str  # without line end
    columns: tuple[str, ...]  # of a word; none of other lines
    ends_sentence: bool  # whether words before and after it are in different sentences


def read_lines(path: str, layout: Layout = Layout()) -> Iterator[Line]:
    """Yields every line.

    Raises:
      DataError: a line is not UTF-8 text, or lines of words differ in their number of columns.
    """
    expected = 0
    for number, raw in lines.read_lines(path, "data_dir"):
        text = raw.rstrip("\r\n")
        columns = tuple(_SEPARATOR.split(text.strip(" \t"))) if text.strip(" \t") else ()
        if not columns or columns[0] == DOCUMENT_START or layout.has_comments and columns[0] == "#":
            yield Line(number, text, (), True)
        # CoNLL-U: several words that are written as one (1-2), and words that are not written (8.1).
        elif layout.word % len(columns) and _RANGE.fullmatch(columns[0]):
            yield Line(number, text, (), False)
        else:
            expected = expected or len(columns)
            if len(columns) != expected:
                remedy = "; give --skip_comments if this is a comment" if columns[0][0] == "#" else ""
                raise DataError(f"{path}:{number}: {len(columns)} columns, the lines before have "
                                f"{expected}{remedy}")
            yield Line(number, text, columns, False)


def read_sentences(
    path: str,
    scheme: str = "bio",
    known: Sequence[str] | None = None,
    needs_labels: bool = True,
    layout: Layout = Layout(),
) -> list[Sentence]:
    """Returns the sentences of a file. Labels of the scheme `iob1` are converted to `bio`.

    Args:
      scheme: one of SCHEMES.
      known: the labels that may occur; None: any.
      needs_labels: whether a file of words alone is refused.

    Raises:
      DataError: no sentences, no labels, or a label that is unknown or misplaced (file:line).
    """
    sentences: list[Sentence] = []
    groups = itertools.groupby(read_lines(path, layout), lambda line: line.ends_sentence)
    for group in (list(group) for is_end, group in groups if not is_end):
        rows = [(line.number, line.columns) for line in group if line.columns]
        if not rows:
            continue
        line, columns = rows[0]
        word, label = _columns_of(len(columns), layout, f"{path}:{line}")
        if needs_labels and label is None:
            raise DataError(f"{path}:{line}: only one column: expected a word and its label, "
                            "separated by a blank or tab")
        labels = None
        if label is not None:
            labels = _checked_labels(
                [(row[label], f"{path}:{number}") for number, row in rows], scheme, known
            )
        sentences.append(Sentence(tuple(row[word] for _, row in rows), labels, line))
    if not sentences:
        raise DataError(f"{path}: no sentences in it")
    return sentences


def _columns_of(size: int, layout: Layout, place: str) -> tuple[int, int | None]:
    """Returns the columns of words and of labels (None without labels) of `size` columns."""
    for flag, n in (("word", layout.word), ("label", layout.label)):
        if not -size <= n < size:
            raise DataError(f"{place}: --{flag}_column={n}: the columns are 0 to {size - 1}")
    word, label = layout.word % size, layout.label % size
    return word, None if label == word else label


def _checked_labels(
    located: Sequence[tuple[str, str]], scheme: str, known: Sequence[str] | None
) -> tuple[str, ...]:
    """Returns the labels of a sentence, given with file:line; `iob1` is converted to `bio`."""
    labels, before = [], OUTSIDE
    for label, place in located:
        _check_form(label, place, scheme)
        kind = entities.split_label(before)[1]
        if scheme == "iob1" and label.startswith("I-") and kind != label[2:]:
            label = "B" + label[1:]
        if known is not None and label not in known:
            raise DataError(f"{place}: label {label!r} is not one of {', '.join(known)[:200]}")
        if scheme != "none" and not entities.may_follow(label, before):
            raise DataError(f"{place}: {label} cannot follow {before}; correct it, or give "
                            "--scheme=iob1 if entities begin with I- in these files")
        labels.append(label)
        before = label
    return tuple(labels)


def _check_form(label: str, place: str, scheme: str) -> None:
    if scheme == "none" or label == OUTSIDE:
        return
    if entities.split_label(label)[0] not in _PREFIXES[scheme]:
        listed = ", ".join(f"{p}-<type>" for p in _PREFIXES[scheme])
        raise DataError(f"{place}: label {label!r} is not {OUTSIDE}, {listed}; give --scheme=none if "
                        "labels do not mark entities")


def check_labels(labels: Iterable[str], scheme: str) -> None:
    """Raises a DataError for a label of --label_list that does not fit the scheme."""
    for label in labels:
        _check_form(label, "--label_list", scheme)


def collect_labels(sentences: Iterable[Sentence], scheme: str) -> tuple[str, ...]:
    """Returns all labels, O first and the others in alphabetical order.

    Each entity type has all prefixes: with `B-` alone, a model could never predict an entity of
    several words.
    """
    labels = {label for sentence in sentences for label in sentence.labels or ()}
    if scheme != "none":
        kinds = {entities.split_label(label)[1] for label in labels - {OUTSIDE}}
        labels |= {f"{prefix}-{kind}" for kind in kinds for prefix in _PREFIXES[scheme]}
    return tuple(sorted(labels, key=lambda label: (label != OUTSIDE, label)))


# === Records ===


def encode_words(tokenizer: "FullTokenizer", words: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each word's tokens, at least one per word.

    Words are encoded separately, so that no token belongs to two words. A word of which cleaning
    leaves nothing (a lone accent, an invisible character) becomes the unknown token.
    """
    return [ids or [unknown_id(tokenizer)] for ids in tokenizer.encode_batch(words)]


def unknown_id(tokenizer: "FullTokenizer") -> int:
    """Returns the id of the unknown token, [MASK]'s if there is none."""
    return tokenizer.vocab.get("<unk>" if tokenizer.is_spm else "[UNK]", tokenizer.mask_id)


@dataclasses.dataclass(frozen=True)
class Part:
    """Words `start` to `end` - 1 of a sentence. Words `first` to `last` - 1 are labelled here."""

    start: int
    end: int
    first: int
    last: int


def parts(sizes: Sequence[int], room: int) -> list[Part]:
    """Returns windows of at most `room` tokens that label each word of a sentence once.

    Two neighbouring windows share about a quarter of their tokens, and each labels half of these, so
    that every word is labelled with context on both sides.

    Args:
      sizes: number of tokens of each word, at most `room`.
    """
    windows: list[Part] = []
    start, first = 0, 0
    while True:
        end, used = start, 0
        while end < len(sizes) and used + sizes[end] <= room:
            used += sizes[end]
            end += 1
        if end == len(sizes):
            return [*windows, Part(start, end, first, end)]
        # Share about a quarter, but leave enough tokens for the next word.
        max_shared, shared, following = min(room // 4, room - sizes[end]), 0, end
        while following - 1 > start and shared + sizes[following - 1] <= max_shared:
            following -= 1
            shared += sizes[following]
        last = max((following + end + 1) // 2, first + 1)
        windows.append(Part(start, end, first, last))
        start, first = following, last


def feature_spec(max_seq_length: int) -> FeatureSpec:
    """Returns the features of a window's record.

    `label_ids` [L] is 0 where nothing is labelled, else 1 + the label's id; `continues` is 1 if the
    previous record belongs to the same sentence.
    """
    rows = {
        name: ("int64", max_seq_length)
        for name in ("input_ids", "input_mask", "segment_ids", "label_ids")
    }
    return FeatureSpec(
        {**rows, "continues": ("int64", None), "is_real_example": ("int64", None)},
        row_length=max_seq_length,
        row_features=("label_ids",),
    )


@dataclasses.dataclass
class Overflow:
    """Counts of sentences and words that are too long for a sequence."""

    sentences: int = 0  # split into several windows
    words: int = 0  # truncated

    def report(self, origin: str, max_seq_length: int) -> None:
        for count, what, effect in (
            (self.sentences, "sentences", "split into windows"), (self.words, "words", "truncated"),
        ):
            if count:
                log.warning("%s: %s longer than --max_seq_length=%d, %s: %s", origin, what, max_seq_length,
                            effect, f"{count:,}")


def sentence_rows(
    pieces: Sequence[Sequence[int]],
    label_ids: Sequence[int],
    tokenizer: "FullTokenizer",
    max_seq_length: int,
    overflow: Overflow,
) -> Iterator[dict[str, Any]]:
    """Yields the records of one sentence; a word's label is on its first token.

    Args:
      pieces: ids of each word (see `encode_words`).
      label_ids: of each word, from 0.
    """
    room = max_seq_length - 2
    truncated = [list(ids[:room]) for ids in pieces]
    overflow.words += sum(len(ids) > room for ids in pieces)
    windows = parts([len(ids) for ids in truncated], room)
    overflow.sentences += len(windows) > 1
    for number, part in enumerate(windows):
        ids, labels = [], np.zeros(max_seq_length, np.int64)
        for word in range(part.start, part.end):
            if part.first <= word < part.last:
                labels[1 + len(ids)] = 1 + label_ids[word]
            ids += truncated[word]
        row = features.join_texts(ids, None, max_seq_length, tokenizer.cls_id, tokenizer.sep_id)
        yield {
            **row, "label_ids": labels, "continues": int(number > 0),
            "is_real_example": 1,
        }


# === Writing ===


def write_with_labels(
    path: str, predictions: Iterable[str], destination: str, layout: Layout = Layout()
) -> str:
    """Publishes the lines of `path` with the predicted label as a new last column; returns the path.

    If `path` has gold labels, conlleval can read the result. `-DOCSTART-` lines get the label O; other
    lines that are no word stay as they are. A tab precedes the label where the line has tabs.
    """
    labels = iter(predictions)
    with files.atomic_write(destination) as stream:
        for line in read_lines(path, layout):
            text = line.text
            if line.columns or text.split()[:1] == [DOCUMENT_START]:
                separator = "\t" if "\t" in text.strip() else " "
                text = f"{text.rstrip()}{separator}{next(labels) if line.columns else OUTSIDE}"
            stream.write(text + "\n")
    return destination
