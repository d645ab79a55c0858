"""Precision, recall and F1 of entire entities, as the CoNLL shared tasks count them.

An entity is found if its type, first word and last word are right. Labels are `O`,
or a prefix and a type: `B-` begins an entity, `I-` is in one, `E-` ends one,
`S-` is an entire one (IOBES). A model may predict labels that do not fit together. An
entity then begins at any prefix that does not continue the entity before it:
`O I-PER` is an entity. The official script conlleval counts in the same way (Tjong Kim Sang and
Buchholz, 2000, https://aclanthology.org/W00-0726).
"""

import collections
from collections.abc import Sequence

Entity = tuple[str, int, int]  # type, first word, last word

PREFIXES = "BIES"


def split_label(label: str) -> tuple[str, str]:
    """Returns (prefix, type) of a label, or ("O", "") if it is not part of an entity."""
    prefix, dash, kind = label.partition("-")
    return (prefix, kind) if dash and prefix and prefix in PREFIXES else ("O", "")


def find_entities(labels: Sequence[str]) -> list[Entity]:
    """Returns the entities of one sentence, in their order."""
    entities: list[Entity] = []
    before, first = ("O", ""), 0
    for place, label in enumerate([*labels, "O"]):
        here = split_label(label)
        if not _continues(before, here):
            if before[0] != "O":
                entities.append((before[1], first, place - 1))
            first = place
        before = here
    return entities


def may_follow(label: str, before: str) -> bool:
    """Whether `label` may stand after `before`: I- and E- must continue an entity."""
    here = split_label(label)
    return here[0] not in "IE" or _continues(split_label(before), here)


def _continues(before: tuple[str, str], here: tuple[str, str]) -> bool:
    """Whether the entity of the previous word continues."""
    return before[0] in "BI" and here[0] in "IE" and before[1] == here[1]


def score(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns `eval_precision`, `eval_recall`, `eval_f1` over all entities, and F1 of each type.

    Args:
      labels, predictions: one label for each word of each sentence.

    A number is 0 where it would be divided by 0. The F1 of a type is `eval_f1_<type>`, for
    each type that occurs in `labels`.
    """
    correct, gold, found = (collections.Counter() for _ in range(3))
    for right, guess in zip(labels, predictions, strict=True):
        right_entities, guessed = set(find_entities(right)), set(find_entities(guess))
        gold.update(kind for kind, *_ in right_entities)
        found.update(kind for kind, *_ in guessed)
        correct.update(kind for kind, *_ in right_entities & guessed)
    results = {
        "eval_precision": _share(correct.total(), found.total()),
        "eval_recall": _share(correct.total(), gold.total()),
        "eval_f1": _f1(correct.total(), found.total(), gold.total()),
    }
    return results | {
        f"eval_f1_{kind}": _f1(correct[kind], found[kind], gold[kind]) for kind in sorted(gold)
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _f1(correct: int, found: int, gold: int) -> float:
    return _share(2 * correct, found + gold)
