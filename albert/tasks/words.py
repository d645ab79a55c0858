"""Labels of words (named entities, parts of speech): files, records, task and scores.

A line of a file holds columns separated by blanks or tabs: the first is a word, the last its label.
An empty line ends a sentence. `-DOCSTART-` lines separate documents and belong to no sentence.

Labels of entities are `O`, or a prefix and a type: `B-` begins an entity, `I-` continues it. A
predicted entity is correct if its type, first word and last word are, as in the CoNLL shared tasks.

Legend: B batch, L sequence, C labels, N sequences.
"""

import collections
import dataclasses
import itertools
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.engines import LazyModule
from albert.errors import DataError
from albert.records import features
from albert.records.examples import FeatureSpec
from albert.storage import files
from albert.tasks import lines
from albert.tasks.table import label_name
from albert.tasks.task import Task, chosen, mean, real

if TYPE_CHECKING:
    from albert.tokenization import FullTokenizer

ops, modeling = map(LazyModule, ("keras.ops", "albert.modeling"))
log = logging.getLogger("albert")

SCHEMES = ("bio", "none")  # whether labels mark entities, by B- and I-, or not
DOCUMENT_START = "-DOCSTART-"
OUTSIDE = "O"
# Other white space, such as the no-break space, is part of a word.
_SEPARATOR = re.compile("[ \t]+")

Entity = tuple[str, int, int]  # type, first word, last word

# === Files ===


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words as in the file, and their labels if there are any."""

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    line: int  # of its first word in the file, from 1


def read_lines(path: str) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yields (number from 1, text, columns) of every line; a line that is no word has no columns.

    Raises:
      DataError: a line is not UTF-8 text, or lines of words differ in their number of columns.
    """
    expected = 0
    for number, text in lines.numbered(lines.read_text(path, "data_dir")):
        columns = tuple(filter(None, _SEPARATOR.split(text)))
        if not columns or columns[0] == DOCUMENT_START:
            yield number, text, ()
            continue
        expected = expected or len(columns)
        if len(columns) != expected:
            raise DataError(f"{path}:{number}: {len(columns)} columns, the lines before have {expected}")
        yield number, text, columns


def read_sentences(
    path: str, scheme: str = "bio", known: Sequence[str] | None = None, needs_labels: bool = True
) -> list[Sentence]:
    """Returns the sentences of a file.

    Args:
      scheme: one of SCHEMES.
      known: the labels that may occur; None: any.
      needs_labels: whether a file of words alone is refused.

    Raises:
      DataError: no sentences, no labels, or a label that is unknown or misplaced (file:line).
    """
    sentences: list[Sentence] = []
    for is_words, group in itertools.groupby(read_lines(path), lambda line: bool(line[2])):
        if not is_words:
            continue
        numbers, _, rows = zip(*group, strict=True)
        has_labels = len(rows[0]) > 1
        if needs_labels and not has_labels:
            raise DataError(f"{path}:{numbers[0]}: only one column: expected a word and its label, "
                            "separated by a blank or tab")
        labels = tuple(label_name(row[-1]) for row in rows) if has_labels else None
        before = OUTSIDE
        for number, label in zip(numbers, labels or (), strict=False):
            where = f"{path}:{number}"
            check_label(label, scheme, where)
            if known is not None and label not in known:
                raise DataError(f"{where}: label {label!r} is not one of {', '.join(known)[:200]}")
            if scheme == "bio" and label[:2] == "I-" and before not in (f"B-{label[2:]}", label):
                raise DataError(f"{where}: {label} cannot follow {before}: entities begin with B-")
            before = label
        sentences.append(Sentence(tuple(row[0] for row in rows), labels, numbers[0]))
    if not sentences:
        raise DataError(f"{path}: no sentences in it")
    return sentences


def check_label(label: str, scheme: str, where: str) -> None:
    """Raises a DataError if a label does not fit the scheme."""
    if scheme == "bio" and label != OUTSIDE and label[:2] not in ("B-", "I-"):
        raise DataError(f"{where}: label {label!r} is not {OUTSIDE}, B-<type>, I-<type>; pass "
                        "--scheme=none if labels do not mark entities")


def collect_labels(sentences: Iterable[Sentence], scheme: str) -> tuple[str, ...]:
    """Returns all labels, O first and the others in alphabetical order.

    Each entity type has both prefixes: with `B-` alone, a model could never predict an entity of
    several words.
    """
    labels = {label for sentence in sentences for label in sentence.labels or ()}
    if scheme == "bio":
        labels |= {f"{prefix}-{label[2:]}" for label in labels - {OUTSIDE} for prefix in "BI"}
    return tuple(sorted(labels, key=lambda label: (label != OUTSIDE, label)))


def write_with_labels(path: str, predictions: Iterable[str], destination: str) -> str:
    """Publishes the lines of `path` with the predicted label as a new last column; returns the path.

    If `path` has gold labels, conlleval can read the result. `-DOCSTART-` lines get the label O;
    empty lines stay as they are. A tab precedes the label where the line has tabs.
    """
    labels = iter(predictions)
    with files.atomic_write(destination) as stream:
        for _, text, columns in read_lines(path):
            if text.strip(" \t"):
                separator = "\t" if "\t" in text.strip() else " "
                text = f"{text.rstrip()}{separator}{next(labels) if columns else OUTSIDE}"
            stream.write(text + "\n")
    return destination


# === Records ===


def encode_words(tokenizer: "FullTokenizer", words: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each word's tokens, at least one per word.

    Words are encoded separately, so that no token belongs to two words. A word of which cleaning
    leaves nothing (a lone accent, an invisible character) becomes the unknown token.
    """
    # [MASK] if there is no unknown token.
    unknown = tokenizer.vocab.get(tokenizer.special_tokens["unk"], tokenizer.mask_id)
    return [ids or [unknown] for ids in tokenizer.encode_batch(words)]


def sentence_rows(
    ids: Sequence[Sequence[int]], label_ids: Sequence[int], tokenizer: "FullTokenizer", max_seq_length: int
) -> list[dict[str, Any]]:
    """Returns the records of one sentence: as many words in each as fit.

    A word's label is on its first token. `label_ids` [L] of a record is 0 where nothing is labelled,
    else 1 + the label's id; `continues` is 1 if the previous record belongs to the same sentence.

    Args:
      ids: of the tokens of each word (see `encode_words`).
      label_ids: of each word, from 0.
    """
    windows: list[list[int]] = []  # words
    used = room = max_seq_length - 2
    for word, tokens in enumerate(ids):
        size = min(len(tokens), room)
        if used + size > room:
            windows.append([])
            used = 0
        windows[-1].append(word)
        used += size
    rows = []
    for number, words in enumerate(windows):
        tokens, labels = [], np.zeros(max_seq_length, np.int64)
        for word in words:
            labels[1 + len(tokens)] = 1 + label_ids[word]
            tokens += ids[word][:room]
        row = features.join_texts(tokens, None, max_seq_length, tokenizer.cls_id, tokenizer.sep_id)
        rows.append({**row, "label_ids": labels, "continues": int(number > 0), "is_real_example": 1})
    return rows


# === Task ===


@dataclasses.dataclass(frozen=True)
class WordLabelTask(Task):
    """Cross-entropy over C labels at the first token of each word."""

    max_seq_length: int  # L
    labels: tuple[str, ...]  # C, in the order of their ids
    has_entities: bool = True  # whether the labels mark entities, which are then scored as units
    classifier_dropout: float = 0.1  # on the encoder's output in training
    name: str = "token_classification"
    test_file: str = ""  # whose lines are written with their predicted labels
    statistic_names = ("eval_accuracy", "eval_loss")

    def metadata(self, flags):
        return dataclasses.replace(super().metadata(flags), label_names=self.labels)

    @property
    def best_metric(self) -> str:
        return "eval_f1" if self.has_entities else "eval_accuracy"

    def feature_spec(self) -> FeatureSpec:
        rows = ("input_ids", "input_mask", "segment_ids", "label_ids")
        return FeatureSpec(
            {name: ("int64", self.max_seq_length) for name in rows}
            | {name: ("int64", None) for name in ("continues", "is_real_example")},
            row_length=self.max_seq_length,
            row_features=("label_ids",),
        )

    def rows(self, examples, tokenizer, split):
        numbers, num_split, num_truncated = {x: i for i, x in enumerate(self.labels)}, 0, 0
        for sentence in examples:
            ids = encode_words(tokenizer, sentence.words)
            labels = [numbers[label] for label in sentence.labels or self.labels[:1] * len(ids)]
            rows = sentence_rows(ids, labels, tokenizer, self.max_seq_length)
            num_split += len(rows) > 1
            num_truncated += sum(len(word) > self.max_seq_length - 2 for word in ids)
            yield from rows
        for count, effect in (
            (num_split, "sentences longer than --max_seq_length=%d, split into windows: %s"),
            (num_truncated, "words longer than --max_seq_length=%d, truncated: %s"),
        ):
            if count:
                log.warning(f"%s.txt: {effect}", split, self.max_seq_length, f"{count:,}")

    def build_model(self, config, **options):
        count = len(self.labels)
        return modeling.AlbertForTokenClassification(config, count, self.classifier_dropout, **options)

    def loss_weights(self, batch):
        return {"loss": ops.sum(_labelled(batch))}

    def loss_sums(self, batch, outputs):
        return {"loss": ops.sum(_losses(batch, outputs) * _labelled(batch))}

    def statistics(self, batch, outputs):
        labelled = _labelled(batch)
        hits = chosen(outputs["logits"]) == batch["label_ids"] - 1
        return {
            "eval_loss": mean(_losses(batch, outputs), labelled),
            "eval_accuracy": mean(hits, labelled),
        }

    def predictions(self, batch, outputs):
        def full(x):  # [B, L]: trimmed sequences, padded with zeros again
            return ops.pad(x, [[0, 0], [0, self.max_seq_length - ops.shape(x)[1]]])

        return {
            "predicted_ids": full(chosen(outputs["logits"])),
            "label_ids": full(batch["label_ids"]),
            "continues": batch["continues"],
            "is_real_example": batch["is_real_example"],
        }

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        if not self.has_entities:
            return {}
        gold, predicted = [], []
        rows = (predictions[name] for name in ("continues", "label_ids", "predicted_ids"))
        for continues, ids, predicted_ids in zip(*rows, strict=True):
            if not continues:  # entities end with their sentence
                gold.append(OUTSIDE)
                predicted.append(OUTSIDE)
            gold += [self.labels[i - 1] for i in ids[ids > 0]]
            predicted += [self.labels[i] for i in predicted_ids[ids > 0]]
        return entity_scores(gold, predicted)

    def write_predictions(self, examples, predictions, directory, origin=""):
        path = os.path.join(directory, "test_predictions.txt")
        ids = predictions["predicted_ids"][predictions["label_ids"] > 0]
        return [write_with_labels(self.test_file, (self.labels[i] for i in ids), path)]


def _losses(batch, outputs) -> Any:  # [B, L]
    return modeling.cross_entropy(outputs["logits"], ops.maximum(batch["label_ids"] - 1, 0))


def _labelled(batch) -> Any:  # [B, L]
    return ops.cast(batch["label_ids"] > 0, "float32") * real(batch)[:, None]


# === Scores ===


def find_entities(labels: Sequence[str]) -> list[Entity]:
    """Returns the entities of a sequence in order; labels that are neither B- nor I- mark none.

    In predictions, where labels may not fit together, an entity also begins at an `I-` that does not
    continue the previous one. So does the official script conlleval (Tjong Kim Sang and Buchholz,
    2000, https://aclanthology.org/W00-0726).
    """
    found: list[Entity] = []
    for position, label in enumerate(labels):
        prefix, kind = label[:2], label[2:]
        if prefix == "I-" and found and found[-1][::2] == (kind, position - 1):
            found[-1] = (kind, found[-1][1], position)
        elif prefix in ("B-", "I-"):
            found.append((kind, position, position))
    return found


def entity_scores(labels: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns `eval_precision`, `eval_recall`, `eval_f1` over all entities, and F1 of each type.

    A metric is 0 if its denominator is. The F1 of a type is `eval_f1_<type>`, for each type that
    occurs in `labels`.

    Args:
      labels, predictions: one label for each word, with an `O` between sentences.
    """
    entities, predicted_entities = set(find_entities(labels)), set(find_entities(predictions))
    gold, predicted, correct = (
        collections.Counter(kind for kind, *_ in found)
        for found in (entities, predicted_entities, entities & predicted_entities)
    )

    def ratio(numerator: int, denominator: int) -> float:
        return numerator / denominator if denominator else 0.0

    return {
        "eval_precision": ratio(correct.total(), predicted.total()),
        "eval_recall": ratio(correct.total(), gold.total()),
        "eval_f1": ratio(2 * correct.total(), predicted.total() + gold.total()),
    } | {
        f"eval_f1_{kind}": ratio(2 * correct[kind], predicted[kind] + gold[kind])
        for kind in sorted(gold)
    }
