"""Documents that are left out of a prepared text, on request: doubles, lengths, languages."""

import hashlib
from collections.abc import Callable, Iterator, Sequence

from albert.errors import FlagError
from albert.text.documents import Document

# Why a document is left out, or None.
Filter = Callable[[Document], str | None]

_PERMUTATIONS = 128  # of MinHash: the similarity of two documents is known to about 0.05
_SHINGLE = 5  # words, or characters of scripts that do not part words
_WORD = 12  # characters; a longer usual word is of such a script
_LOOKED_AT = 4000  # characters from which the language is told


def by_length(least: int, most: int | None) -> Filter:
    """Returns what drops documents of fewer or more words."""
    def check(document: Document) -> str | None:
        words = sum(len(sentence.split()) for sentence in document)
        if words < least:
            return f"fewer than {least:,} words"
        return f"more than {most:,} words" if most and words > most else None

    return check


def by_language(wanted: Sequence[str]) -> Filter:
    """Returns what drops documents that are of none of these languages (ISO 639-1 codes).

    Raises:
      FlagError: the library is not there, or does not know a language.
    """
    try:
        import py3langid
    except ImportError as error:
        raise FlagError("--keep_languages needs py3langid: pip install py3langid") from error
    known = {language for language, _ in py3langid.rank("")}
    if unknown := set(wanted) - known:
        raise FlagError(f"--keep_languages: {', '.join(sorted(unknown))}: none of "
                        f"{', '.join(sorted(known))}")

    def check(document: Document) -> str | None:
        found, _ = py3langid.classify(" ".join(document)[:_LOOKED_AT])
        return None if found in wanted else f"not of the languages {', '.join(wanted)}"

    return check


def by_content() -> Filter:
    """Returns what drops documents whose words were there before; some 100 bytes each are held."""
    seen: set[bytes] = set()

    def check(document: Document) -> str | None:
        words = " ".join(" ".join(document).split()).encode("utf-8", "replace")
        digest = hashlib.blake2b(words, digest_size=16).digest()
        if digest in seen:
            return "the same words as an earlier document"
        seen.add(digest)
        return None

    return check


def by_likeness(threshold: float, seed: int) -> Filter:
    """Returns what drops documents that are nearly an earlier one.

    Their sets of runs of five words are alike to `threshold` (Jaccard), as MinHash tells. Some
    kilobytes are held for each document.

    Raises:
      FlagError: the library is not there.
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
        return f"nearly an earlier document (alike to {threshold:g})"

    return check


def _shingles(document: Document) -> Iterator[str]:
    text = " ".join(document).lower()
    words: Sequence[str] = text.split()
    if _WORD * len(words) < len(text):
        words = text
    for start in range(max(1, len(words) - _SHINGLE + 1)):
        yield " ".join(words[start : start + _SHINGLE])
