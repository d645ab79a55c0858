"""Running text to sentences, in some three hundred languages. No TensorFlow."""

import re
from collections.abc import Iterator

# The library never ends a sentence inside of a quotation, which may be a page of speech. So
# quotation marks are shown to it as what may begin a sentence, and what may end one.
_OPENS = re.compile(r"(?<![^\s(\[—–])[“”„\"«»]")
_CLOSES = str.maketrans(dict.fromkeys("“”„\"«»", "’"))
_ENDS_QUOTED = tuple("“”\"«»’'")


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Returns the sentences of a text, white space collapsed, nothing else changed.

    Joined by single spaces they give the (collapsed) text again, but for scripts whose sentences
    have no space between them.

    Args:
      language: its ISO 639 code, which decides what abbreviations there are; of an unknown one
        the marks alone count.
    """
    text = " ".join(text.split())  # the library stumbles over white space of other kinds
    sentences: list[str] = []
    at = 0
    for part in _segments(_OPENS.sub("A", text).translate(_CLOSES), language):
        sentence = text[at : at + len(part)].strip()
        at += len(part)
        if sentences and sentence[:1].islower() and sentences[-1].endswith(_ENDS_QUOTED):
            sentences[-1] += f" {sentence}"  # "Stop!" he said
        elif sentence:
            sentences.append(sentence)
    return sentences


# The library takes time with the square of a text's length: it is given so many characters.
_WINDOW = 4096
_LONGEST_SENTENCE = 8 * _WINDOW  # characters; a longer one is cut


def _segments(text: str, language: str) -> Iterator[str]:
    """Yields the parts of a text, each up to the end of a sentence; joined they are the text."""
    start, window = 0, _WINDOW
    while start < len(text):
        chunk = text[start : start + window]
        parts = _segments_of(chunk, language)
        if start + len(chunk) < len(text):
            if len(parts) > 1:
                parts.pop()  # it may go on behind the window
            elif window < _LONGEST_SENTENCE:
                window *= 2
                continue
            else:
                parts = [chunk[: chunk.rfind(" ") + 1] or chunk]
        yield from parts
        start, window = start + sum(map(len, parts)), _WINDOW


def _segments_of(text: str, language: str) -> list[str]:
    import sentencex

    try:
        return sentencex.segment(language, text)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, and no Exception of Python's
            raise
        return [text]
