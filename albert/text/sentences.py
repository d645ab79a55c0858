"""Sentence splitting, in about three hundred languages. No TensorFlow."""

import re
from collections.abc import Iterator

# The library never ends a sentence within a quotation, which may be pages long. So quotation marks
# are replaced by characters that may begin or end a sentence.
_OPENS = re.compile(r"(?<![^\s(\[—–])[“”„\"«»]")
_CLOSES = str.maketrans(dict.fromkeys("“”„\"«»", "’"))
_ENDS_QUOTED = tuple("“”\"«»’'")


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Returns the sentences of a text with collapsed white space.

    Joined by spaces, they are the collapsed text again, except for scripts without spaces between
    sentences.

    Args:
      language: ISO 639 code, perhaps with a region (`pt-BR`), for abbreviations; an unknown one is read
        as English.
    """
    language = re.split("[-_]", language.lower())[0]
    text = " ".join(text.split())  # other white space confuses the library
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


# Characters passed to the library, whose time is quadratic in the length.
_WINDOW = 4096
_LONGEST_SENTENCE = 8 * _WINDOW  # characters; longer ones are divided


def _segments(text: str, language: str) -> Iterator[str]:
    """Yields the parts of a text up to the end of each sentence; concatenated, they are the text."""
    start, window = 0, _WINDOW
    while start < len(text):
        chunk = text[start : start + window]
        parts = _segments_of(chunk, language)
        if start + len(chunk) < len(text):
            if len(parts) > 1:
                parts.pop()  # which may continue after the window
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
        if type(error).__name__ != "PanicException":  # of Rust, not a subclass of Exception
            raise
        return [text]
