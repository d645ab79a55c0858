"""Filters of documents: duplicates, lengths, languages."""

import hashlib
from collections.abc import Callable, Iterator, Sequence

from albert.errors import FlagError
from albert.text.documents import Document

# Returns the reason for dropping a document, or None.
Filter = Callable[[Document], str | None]

_PERMUTATIONS = 128  # of MinHash: the error of a similarity is about 0.05
_SHINGLE = 5  # words, or characters of scripts without spaces between words
_LONG_WORD = 12  # characters; if the mean is longer, the script has no spaces between words
_SAMPLE = 4000  # characters from which the language is detected


def by_length(min_words: int, max_words: int | None) -> Filter:
    """Returns a filter that drops documents of fewer or more words."""
    def check(document: Document) -> str | None:
        words = sum(len(sentence.split()) for sentence in document)
        if words < min_words:
            return f"fewer than {min_words:,} words"
        return f"more than {max_words:,} words" if max_words and words > max_words else None

    return check


def by_language(languages: Sequence[str]) -> Filter:
    """Returns a filter that drops documents in other languages than these (ISO 639-1 codes).

    Raises:
      FlagError: the library is not installed, or does not know a language.
    """
    try:
        import py3langid
    except ImportError as error:
        raise FlagError("--keep_languages needs py3langid: pip install py3langid") from error
    known = {language for language, _ in py3langid.rank("")}
    if unknown := set(languages) - known:
        raise FlagError(f"--keep_languages: {', '.join(sorted(unknown))}: none of "
                        f"{', '.join(sorted(known))}")

    def check(document: Document) -> str | None:
        language, _ = py3langid.classify(" ".join(document)[:_SAMPLE])
        return None if language in languages else f"not in {', '.join(languages)}"

    return check


def by_content() -> Filter:
    """Returns a filter that drops copies of earlier documents; it stores 100 bytes per document."""
    seen: set[bytes] = set()

    def check(document: Document) -> str | None:
        words = " ".join(" ".join(document).split()).encode("utf-8", "replace")
        digest = hashlib.blake2b(words, digest_size=16).digest()
        if digest in seen:
            return "duplicate of an earlier document"
        seen.add(digest)
        return None

    return check


def by_similarity(threshold: float, seed: int) -> Filter:
    """Returns a filter that drops near duplicates of earlier documents.

    Their sets of five-word sequences have a Jaccard similarity of at least `threshold`, estimated by
    MinHash. It stores a few kilobytes per document.

    Raises:
      FlagError: the library is not installed.
    """
    try:
        import rensa
    except ImportError as error:
        raise FlagError("--drop_duplicates=near needs rensa: pip install rensa") from error
    known = rensa.RMinHashDeduplicator(
        threshold=threshold, num_perm=_PERMUTATIONS, use_lsh=True, seed=seed
    )
    numbers = iter(range(1 << 62))

    def check(document: Document) -> str | None:
        sketch = rensa.RMinHash(num_perm=_PERMUTATIONS, seed=seed)
        sketch.update(list(_shingles(document)))
        if known.add(str(next(numbers)), sketch):
            return None
        return f"near duplicate of an earlier document (similarity {threshold:g})"

    return check


def _shingles(document: Document) -> Iterator[str]:
    text = " ".join(document).lower()
    words: Sequence[str] = text.split()
    if _LONG_WORD * len(words) < len(text):
        words = text
    for start in range(max(1, len(words) - _SHINGLE + 1)):
        yield " ".join(words[start : start + _SHINGLE])
