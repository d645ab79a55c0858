"""The files that tasks read: lines and JSON. No TensorFlow."""

import codecs
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

from albert.errors import DataError
from albert.text import text_files
from albert.text.cleaning import scrub_surrogates

log = logging.getLogger("albert")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # or a complete pair
_SPACE, _BETWEEN = re.compile(r"\s*"), re.compile(r"[\s,]*")
MAX_BYTES = 1 << 30  # of a file that is read at once, which a small compressed one can exceed
_KINDS = {list: "a list", str: "a text", int: "an integer"}


def read_text(path: str, flag: str, encoding: str | None = None, is_strict: bool = True) -> str:
    """Returns the text of a file that is read at once; see `decoded`.

    Args:
      encoding: of the text, if not UTF-8.
    """
    with text_files.open_text(path, flag, encoding) as stream:
        return decoded(stream.read(MAX_BYTES + 1), path, is_strict)


def decoded(content: bytes, name: str, is_strict: bool = True) -> str:
    """Returns the text of a file's content, without a byte-order mark.

    Bytes that are not UTF-8 are an error or, if not `is_strict`, become U+FFFD, with one warning that
    counts the lines.

    Raises:
      DataError: not UTF-8 (file:line), or more than `MAX_BYTES`.
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    if len(content) > MAX_BYTES:
        raise too_large(name)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        if is_strict:
            *before, line = content[:error.start].split(b"\n")
            raise DataError(f"{name}:{len(before) + 1}: not UTF-8 text (byte {len(line) + 1} of the line); "
                            f"{text_files.CONVERT}") from error
    text = content.decode(errors="replace")
    bad = ["\ufffd" in line for _, line in numbered(text)]
    log.warning("%s: %s of %s lines had invalid UTF-8, replaced by U+FFFD",
                name, f"{sum(bad):,}", f"{len(bad):,}")
    return text


def too_large(path: str) -> DataError:
    """Returns the error for a file of more than `MAX_BYTES`."""
    return DataError(f"{path}: more than {MAX_BYTES >> 20} MB when it is unpacked: keep the columns that are "
                     "needed, or divide it")


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text without its end) of each line.

    Only a line feed ends a line, after a carriage return or not; other separators (U+2028, form feed)
    are text.
    """
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        yield number, line.rstrip("\r")


def cell(text: str) -> str:
    """Returns a text as a cell of a file without quotes: tabs and line ends become blanks."""
    return re.sub(r"[\t\r\n]", " ", text).encode("utf-8", "replace").decode("utf-8")


def member(value: Any, name: str, kind: type, where: str, form: str) -> Any:
    """Returns a member of a parsed JSON object.

    Args:
      form: of the file, for messages.

    Raises:
      DataError: there is none, or it is of another kind (at `where`).
    """
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object, got {type(value).__name__}; is it a {form} file?")
    if name not in value:
        raise DataError(f"{where}: no {name!r}; is it a {form} file?")
    found = value[name]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise DataError(f"{where}: {name!r} must be {_KINDS[kind]}, got {found!r:.60}")
    return found


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
