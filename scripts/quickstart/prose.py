"""Extracts the English prose from technical documentation: plain text or reStructuredText.

Code, doctests, grammars, tables, signatures, headings and link targets are left
out, inline markup is removed, and sentences remain. The rules look at one block
of lines at a time and would rather lose a sentence than keep code.
"""

import re
from collections.abc import Iterator

from albert.text.sentences import split_sentences

_UNDERLINE = re.compile(r"\s*([=\-~^\"'`*+#.:_])\1{2,}\s*$")
_BULLET = re.compile(r"(?P<indent>\s*)(?:[-*+•]|#\.|\(?\d{1,2}[.)]|\(?[a-z]\))\s+(?P<rest>\S.*)$")
_TERM = re.compile(r"^[\w.*`\"'()\[\], ]{1,30}?\s+(?:--?|–|—)\s+(?=[A-Z])")
_NEWS = re.compile(r"^(?:Changed|New|Added|Deprecated)(?: in version [\d.]+| since)[^:]{0,40}: *")
# A block with one line like these is not prose.
_NO_PROSE_LINE = re.compile(
    r"""\s*(?:>>>|\.\.\.(?:\s|$)|\$\s|%\s|\#|\||\+[-=]|[-=]{3,}\s+[-=]{3,}|@\w+|\.\.\s|:\w+[^:]*:
    |(?:def|class|import|from|print|return|raise|assert|with|for|while|try|if|elif|else)\b
      .*[:)\]]\s*$
    |[\w.,\[\] ]+\s[-+*/|&]?=\s|.*::=|.*[{}\\]\s*$|.*[)\]\d'"];\s*$|</?\w)""",
    re.VERBOSE,
)
_MARKUP = (
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r":[a-z:+]+:`[~!]?([^`<]+?)(?:\s*<[^>]*>)?`"), r"\1"),  # :func:`name`
    (re.compile(r"`([^`<]+?)\s*<[^>]*>`__?"), r"\1"),  # `text <link>`_
    (re.compile(r"[`']([^`'\s]+)'"), r"\1"),  # `name' and 'name', the older habit
    (re.compile(r"`([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*{1,2}(\w[^*]*?)\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"\s*\[(?:\d+|#\w*)\]_?"), ""),  # footnotes
    (re.compile(r"::(?=\s|$)"), ":"),
    (re.compile(r"\\([*_`|])"), r"\1"),
)
_PLAIN_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_EDGES = "\"'“”‘’()[]{}.,;:!?*"
_QUOTED_NAME = re.compile(r"\"[\w.*()]+\"\s+\w")  # '"remove()" raises an error if'
_LINK = re.compile(r"https?:|www\.|\w@\w")
_FUNCTION_WORDS = frozenset(
    """a an the of to in is are be was and or if this that it for with as by on not from at which
    will can may when all no do does has have its""".split()
)
_MIN_WORDS = 4  # shorter ones are labels ("Return value:", "See above.")
_MIN_PLAIN_SHARE = 0.7


def sentences_of(text: str) -> list[str]:
    """Returns the English sentences of a docstring or a documentation page, in order."""
    return [s for paragraph in _paragraphs(text) for s in _clean_sentences(paragraph)]


def is_underline(line: str) -> bool:
    """Whether the line underlines (or overlines) a heading."""
    return bool(_UNDERLINE.match(line))


def _paragraphs(text: str) -> Iterator[str]:
    """Yields the text of every block of prose, one string each."""
    for block in _blocks(text.expandtabs()):
        for piece in _pieces(block):
            if not any(_NO_PROSE_LINE.match(line) for line in piece):
                yield " ".join(line.strip() for line in piece)


def _blocks(text: str) -> Iterator[list[str]]:
    """Yields runs of lines without a blank between them, headings left out."""
    block: list[str] = []
    for line in text.split("\n"):
        if is_underline(line):
            block = block[:-1]  # the heading above the underline
        elif line.strip():
            block.append(line.rstrip())
            continue
        if block:
            yield block
        block = []
    if block:
        yield block


def _pieces(block: list[str]) -> Iterator[list[str]]:
    """Splits a block where its indentation changes, keeping hanging bullets together."""
    piece: list[str] = []
    expected = None  # the indentation of a continuation line; None: any
    for line in block:
        bullet = _BULLET.match(line)
        indent = len(line) - len(line.lstrip())
        if bullet or (expected is not None and indent != expected):
            if piece:
                yield piece
            piece, expected = [], None if bullet else indent
        if not piece:
            piece = [bullet["rest"] if bullet else line]
            expected = None if bullet else indent
            continue
        piece.append(line)
        expected = indent
    if piece:
        yield piece


def _clean_sentences(paragraph: str) -> Iterator[str]:
    for pattern, replacement in _MARKUP:
        paragraph = pattern.sub(replacement, paragraph)
    paragraph = _NEWS.sub("", _TERM.sub("", paragraph))
    for i, sentence in enumerate(split_sentences(paragraph)):
        if _starts_well(sentence, is_first=i == 0) and _is_english(sentence):
            yield sentence


def _starts_well(sentence: str, is_first: bool) -> bool:
    """Whether it starts like a sentence: capital, quoted name, or the start of a paragraph."""
    if sentence.lstrip("\"'“‘([")[:1].isupper() or _QUOTED_NAME.match(sentence):
        return True
    return is_first and sentence[:1].islower() and sentence[-1] in ".!?"


def _is_english(sentence: str) -> bool:
    """Whether it consists mostly of words, some of them function words, and has no link."""
    if _LINK.search(sentence):
        return False
    words = [word.strip(_EDGES) for word in sentence.split()]
    plain = [word for word in words if _PLAIN_WORD.fullmatch(word)]
    if len(plain) < _MIN_WORDS or len(plain) < _MIN_PLAIN_SHARE * len(words):
        return False
    return any(word.lower() in _FUNCTION_WORDS for word in plain)
