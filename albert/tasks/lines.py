"""Lines of the files that tasks read. No TensorFlow."""

import codecs
import json
import logging
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from albert.errors import DataError
from albert.text import text_files
from albert.text.cleaning import scrub_surrogates

log = logging.getLogger("albert")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # or a complete pair
_SPACE, _BETWEEN = re.compile(r"\s*"), re.compile(r"[\s,]*")
# Maximum bytes of a line: a file with a longer one is not a table, or has no line feeds.
MAX_LINE = 16 * 1024 * 1024
MAX_BYTES = 1 << 30  # of a file that is read at once, which a small compressed one can exceed


def read_text(path: str, flag: str, encoding: str | None = None) -> str:
    """Returns the text of a file that is read at once, without a byte-order mark.

    Args:
      encoding: of the text, if not UTF-8.

    Raises:
      DataError: not UTF-8 (file:line), or more than `MAX_BYTES`.
    """
    with text_files.open_text(path, flag, encoding) as stream:
        content = stream.read(MAX_BYTES + 1).removeprefix(codecs.BOM_UTF8)
    if len(content) > MAX_BYTES:
        raise too_large(path)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        *before, line = content[:error.start].split(b"\n")
        raise DataError(f"{path}:{len(before) + 1}: not UTF-8 text (byte {len(line) + 1} of the line); "
                        f"{text_files.CONVERT}") from error


def too_large(path: str) -> DataError:
    """Returns the error for a file of more than `MAX_BYTES`."""
    return DataError(f"{path}: more than {MAX_BYTES >> 20} MB when it is unpacked: keep the columns that are "
                     "needed, or divide it")


def read_lines(path: str, flag: str, is_strict: bool = True) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text with its line end) of a file's lines; see `decode_lines`."""
    with text_files.open_text(path, flag) as stream:
        yield from decode_lines(stream, path, is_strict)


def decode_lines(stream: BinaryIO, name: str, is_strict: bool = True) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text with its line end) of a stream's lines.

    Only a line feed ends a line; other separators (U+2028, form feed) are text. Bytes that are not
    UTF-8 are an error or, if not `is_strict`, become U+FFFD, with one warning that counts the lines.

    Raises:
      DataError: not UTF-8 text, or a line of more than `MAX_LINE` bytes (file:line).
    """
    num_bad = number = 0
    for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE + 1), b""), start=1):
        if len(raw) > MAX_LINE:
            raise DataError(
                f"{name}:{number}: a line of more than {MAX_LINE:,} bytes; is this a text whose "
                "lines end with a line feed?"
            )
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            if is_strict:
                raise DataError(
                    f"{name}:{number}: not UTF-8 text (byte {error.start + 1} of the line); "
                    f"{text_files.CONVERT}"
                ) from error
            text = raw.decode(errors="replace")
            num_bad += 1
        yield number, text
    if num_bad:
        log.warning("%s: %s of %s lines had invalid UTF-8, replaced by U+FFFD",
                    name, f"{num_bad:,}", f"{number:,}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object, of which Python would silently keep the last of equal keys."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} occurs twice in an object")
    return values


def json_values(path: str, flag: str, encoding: str | None = None) -> Iterator[tuple[int, Any]]:
    """Yields (line, value) of each JSON value in a file, or of each item of a list.

    Several values may be on one line, as when files without a final line feed are joined with `cat`.
    Halves of surrogate pairs become U+FFFD, with one warning.

    Raises:
      DataError: not UTF-8, or not JSON (file:line).
    """
    text, line, counted, num_replaced = read_text(path, flag, encoding), 1, 0, 0
    has_surrogates = bool(_SURROGATE.search(text))
    decoder, start = json.JSONDecoder(object_pairs_hook=_object), _SPACE.match(text).end()
    is_list = text[start : start + 1] == "["
    end = start + is_list
    while (start := (_BETWEEN if is_list else _SPACE).match(text, end).end()) < len(text):
        if is_list and text[start] == "]" and not text[start + 1 :].strip():
            is_list = False
            break
        line, counted = line + text.count("\n", counted, start), start
        try:
            value, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            where = f", in the value that begins at line {line}" if line < error.lineno else ""
            place = f"{path}:{error.lineno}:{error.colno}"
            raise DataError(f"{place}: not JSON: {error.msg}{where}") from error
        except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
            detail = "nested too deeply" if isinstance(error, RecursionError) else error
            raise DataError(f"{path}:{line}: not usable JSON: {detail}") from error
        if has_surrogates:
            plain = json.dumps(value, ensure_ascii=False)
            if (scrubbed := scrub_surrogates(plain)) != plain:
                value, num_replaced = json.loads(scrubbed), num_replaced + 1
        yield line, value
    if num_replaced:
        log.warning("%s: replaced lone surrogates by U+FFFD in %s rows", path, f"{num_replaced:,}")
    if is_list:
        raise DataError(f"{path}: the list is not closed")
