"""Splits paragraphs into sentences by rule: no model, no language resources.

Made for pretraining text, where a sentence that is cut in two costs more than
two that stay together; so a doubtful full stop does not split.
"""

import re

# A full stop after these does not end a sentence unless the paragraph ends too.
_ABBREVIATIONS = frozenset(
    """
    mr mrs ms mx dr prof rev hon st sr jr messrs mme mlle col gen capt lt sgt maj cmdr gov sen rep
    pres supt vs viz cf eg ie i.e e.g al approx ca no nos vol vols ch chap fig figs sec sect pp p
    ed eds trans illus inc ltd co corp bros dept est mt ft jan feb mar apr jun jul aug sep sept
    oct nov dec u.s u.k ph.d b.a m.a m.d a.k.a
    """.split()
)
# These may end a sentence: they do when a capital follows.
_MAY_END = frozenset(
    "etc a.m p.m inc ltd co corp jr sr u.s u.k ph.d b.a m.a m.d b.c a.d no".split()
)

_CLOSERS = "\"'”’»)\\]}"
# Latin terminators need white space after them; the CJK ones do not.
_BOUNDARY = re.compile(
    rf"(?P<stop>[.!?…]+)(?P<close>[{_CLOSERS}]*)\s+|(?P<cjk>[。！？]+[」』”’）]*)\s*"
)
_LAST_WORD = re.compile(r"[^\s(\[{\"“‘«—–/]+$")
_INITIAL = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_OPENERS = "\"'“‘«([{*_`¿¡—–-"


def split_sentences(paragraph: str) -> list[str]:
    """Returns the sentences of a paragraph, white space collapsed, nothing else changed.

    Joined by single spaces they give the (collapsed) paragraph again, except
    between sentences that end in a CJK full stop, which need no space.
    """
    text = " ".join(paragraph.split())
    sentences, start = [], 0
    for match in _BOUNDARY.finditer(text):
        if match["cjk"] or _ends_sentence(text, start, match):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    if start < len(text):
        sentences.append(text[start:])
    return sentences


def _ends_sentence(text: str, start: int, match: re.Match) -> bool:
    following = text[match.end() : match.end() + 12].lstrip(_OPENERS)[:1]
    if following.islower() or following in (".", "!", "?", "…"):
        # "Stop!" he said; a spaced ". . ."; a name such as "iter" may start a
        # sentence, but most lower-case followers continue one.
        return False
    if match["stop"] != ".":
        return True
    before = _LAST_WORD.search(text, start, match.start())
    if before is None:
        return bool(match["close"])  # the last of ". . ."
    word = before.group().lower()
    if word in _MAY_END:
        return following.isupper() and match["close"] != ")"
    if word in _ABBREVIATIONS:
        return False
    if _INITIAL.fullmatch(word) and word not in ("i", "a") and not match["close"]:
        # "J. Smith", "U.N. Building"; "and I. Then" ends, so does "x)." above.
        return not _is_name_initial(text, match.start(), word)
    if word.isdigit() and match.start() - len(word) == start and not match["close"]:
        return False  # "1. First item": the number of a list item
    return True


def _is_name_initial(text: str, stop: int, word: str) -> bool:
    """Whether the letter(s) before the full stop stand as a capital initial."""
    return text[stop - len(word) : stop].isupper()
