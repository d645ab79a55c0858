"""Precision, recall and F1 of entire entities, as in the CoNLL shared tasks.

A predicted entity is correct if its type, first word and last word are. Labels are `O`, or a prefix
and a type: `B-` begins an entity, `I-` continues it, `E-` ends it, and `S-` is an entire entity
(IOBES). If predicted labels do not fit together, an entity begins at any prefix that does not
continue the previous one: `O I-PER` is an entity. This follows the official script conlleval (Tjong
Kim Sang and Buchholz, 2000, https://aclanthology.org/W00-0726).
"""

import collections
from collections.abc import Sequence

Entity = tuple[str, int, int]  # type, first word, last word

PREFIXES = "BIES"


def split_label(label: str) -> tuple[str, str]:
    """Returns (prefix, type) of a label, ("O", "") outside entities."""
    prefix, dash, kind = label.partition("-")
    return (prefix, kind) if dash and prefix and prefix in PREFIXES else ("O", "")


def find_entities(labels: Sequence[str]) -> list[Entity]:
    """Returns the entities of one sentence in order."""
    entities: list[Entity] = []
    previous, first = ("O", ""), 0
    for position, label in enumerate([*labels, "O"]):
        current = split_label(label)
        if not _continues(previous, current):
            if previous[0] != "O":
                entities.append((previous[1], first, position - 1))
            first = position
        previous = current
    return entities


def may_follow(label: str, previous: str) -> bool:
    """Whether `label` may follow `previous`: I- and E- must continue an entity."""
    current = split_label(label)
    return current[0] not in "IE" or _continues(split_label(previous), current)


def _continues(previous: tuple[str, str], current: tuple[str, str]) -> bool:
    """Whether the entity of the previous word continues."""
    return previous[0] in "BI" and current[0] in "IE" and previous[1] == current[1]


def score(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns `eval_precision`, `eval_recall`, `eval_f1` over all entities, and F1 of each type.

    A metric is 0 if its denominator is. The F1 of a type is `eval_f1_<type>`, for each type that
    occurs in `labels`.

    Args:
      labels, predictions: one label for each word of each sentence.
    """
    correct, gold, predicted = (collections.Counter() for _ in range(3))
    for of_sentence, guesses in zip(labels, predictions, strict=True):
        expected, guessed = set(find_entities(of_sentence)), set(find_entities(guesses))
        gold.update(kind for kind, *_ in expected)
        predicted.update(kind for kind, *_ in guessed)
        correct.update(kind for kind, *_ in expected & guessed)
    results = {
        "eval_precision": _ratio(correct.total(), predicted.total()),
        "eval_recall": _ratio(correct.total(), gold.total()),
        "eval_f1": _ratio(2 * correct.total(), predicted.total() + gold.total()),
    }
    return results | {
        f"eval_f1_{kind}": _ratio(2 * correct[kind], predicted[kind] + gold[kind])
        for kind in sorted(gold)
    }


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 0.0
