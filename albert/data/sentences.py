"""Running text to sentences, in some three hundred languages. No TensorFlow."""

import re

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


def _segments(text: str, language: str) -> list[str]:
    import sentencex

    try:
        return sentencex.segment(language, text)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, and no Exception of Python's
            raise
        return [text]
