"""Text files as streams of UTF-8 lines that end with LF or CRLF.

A file may be compressed (gzip, bzip2, xz, zstd), by its first bytes, not its name. It is streamed, so
it may be a pipe.
"""

import bz2
import codecs
import contextlib
import dataclasses
import gzip
import io
import itertools
import logging
import lzma
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from albert.errors import DataError
from albert.storage import filesystem

log = logging.getLogger("albert")

LONGEST_LINE = 1 << 20  # bytes; longer lines are divided, so that memory stays bounded
MAX_BAD = 0.05  # maximum fraction of a text's lines that are not UTF-8
MAX_TAGS = 0.01  # fraction of the words, from which on HTML is warned about
_HOPELESS = 1 << 20  # bad lines after which a mostly bad text is not read to its end

PARQUET = b"PAR1"  # the first bytes of such a file, which is not text
_CHUNK = 1 << 16
_COMPRESSED = (
    (re.compile(rb"\x1f\x8b\x08"), "gzip", lambda stream: gzip.GzipFile(fileobj=stream)),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bzip2", bz2.BZ2File),
    (re.compile(rb"\xfd7zXZ\x00"), "xz", lzma.LZMAFile),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", lambda stream: as_stream(_unzstd(stream))),
)


# === Lines ===


@dataclasses.dataclass
class ReadingCounts:
    """A reader's counts."""

    documents: int = 0
    sentences: int = 0  # lines with text
    words: int = 0
    tags: int = 0  # of HTML
    lines: int = 0  # blank ones included
    bytes: int = 0  # of the text as UTF-8
    cuts: int = 0  # positions at which very long lines were divided
    cut_documents: int = 0  # positions at which very long documents were divided
    bad_utf8_lines: int = 0  # decoded with U+FFFD
    first_bad: str = ""  # file, line and likely encoding of the first of them
    files_of_lines: int = 0  # files without blank lines, whose lines are documents
    first_of_lines: str = ""

    def check(self, max_bad: float | None = None) -> None:
        """Raises a DataError if more than a fraction of the lines (by default `MAX_BAD`) are bad."""
        max_bad = MAX_BAD if max_bad is None else max_bad
        if self.bad_utf8_lines > max_bad * self.lines:
            raise DataError(f"{self.first_bad}; {self.bad_utf8_lines:,} of {self.lines:,} lines "
                            "are not UTF-8")

    def warn(self) -> None:
        """Logs unusual properties: no blank lines, HTML, lines that are not UTF-8."""
        if self.tags > MAX_TAGS * self.words:
            log.warning("%s of %s words are HTML tags, which would be trained on: extract the text first "
                        "(pip install trafilatura)", f"{self.tags:,}", f"{self.words:,}")
        if self.files_of_lines:
            more = f" (and {self.files_of_lines - 1:,} more files)" if self.files_of_lines > 1 else ""
            log.warning("%s%s: no blank line separates documents, so each line is one; "
                        "--document_layout=files or blank_lines decides otherwise",
                        self.first_of_lines, more)
        if self.bad_utf8_lines:
            log.warning("%s of %s lines had invalid UTF-8, replaced by U+FFFD: %s",
                        f"{self.bad_utf8_lines:,}", f"{self.lines:,}", self.first_bad)


def read_lines(
    stream: BinaryIO, name: str, counts: ReadingCounts, longest: int | None = None
) -> Iterator[tuple[str, bool]]:
    r"""Yields (text, whether a line ends after it), updating `counts`.

    Lines end with "\n" or "\r\n", which are part of the text. Long lines are divided at spaces.
    Byte-order marks at the beginning of lines are dropped, since files may be concatenated.

    Args:
      stream: UTF-8, see `open_text`.
      name: the file, for messages.
      longest: maximum bytes of a part; by default `LONGEST_LINE`.

    Raises:
      DataError: a NUL character.
    """
    longest = LONGEST_LINE if longest is None else longest
    before, rest = counts.lines, b""
    # The end of a part does not depend on its beginning, so that reading can start anywhere.
    while part := rest + stream.readline(longest - len(rest)):
        rest = b""
        is_end = len(part) < longest or part.endswith(b"\n")
        if not is_end:
            cut = part.rfind(b" ") + 1 or _last_character(part)
            part, rest = part[:cut], part[cut:]
            counts.cuts += 1
        if b"\0" in part:
            number = counts.lines - before + 1
            raise DataError(f"{name}:{number}: a NUL byte: {_advice_on_binary(part)}")
        try:
            text = part.decode("utf-8")
        except UnicodeDecodeError:
            text = part.decode("utf-8", "replace")
            counts.bad_utf8_lines += 1
            counts.first_bad = counts.first_bad or (
                f"{name}:{counts.lines - before + 1}: not UTF-8 text; {advice_on_encoding(part)}"
            )
            if counts.bad_utf8_lines == _HOPELESS:
                counts.check(0.5)
        if text[0] == "\ufeff":
            text = text.lstrip("\ufeff")
        counts.lines += is_end
        counts.bytes += len(part)
        yield text, is_end


def _last_character(line: bytes) -> int:
    """Returns the position of the last UTF-8 character."""
    position = len(line) - 1
    while position > len(line) - 4 and line[position] & 0xC0 == 0x80:
        position -= 1
    return position


def _advice_on_binary(line: bytes) -> str:
    if line[257:262] == b"ustar":
        return "this is a tar archive; unpack it first"
    if 3 * line.count(0) > len(line):
        order = "LE" if line[0] else "BE"
        return f"it looks like UTF-16; convert it first (iconv -f UTF-16{order} -t UTF-8)"
    return "this is not UTF-8 text; convert it (iconv), or remove them (tr -d '\\000')"


def advice_on_encoding(line: bytes) -> str:
    """Returns advice on a line that is not UTF-8."""
    if 3 * sum(byte > 127 for byte in line) > len(line):
        return ("it looks like another script's encoding (GB18030, Shift_JIS, KOI8-R, ...); "
                "convert it first (iconv -f GB18030 -t UTF-8)")
    return "it looks like Latin-1; convert it first (iconv -f WINDOWS-1252 -t UTF-8)"


# === Files ===


class Utf16Error(DataError):
    """A text begins with the mark of UTF-16."""


def open_file(path: str, flag: str = "input_file") -> BinaryIO:
    """Opens a file, a pipe or a device.

    Raises:
      DataError: it cannot be read (names the flag).
    """
    try:
        return filesystem.open_read(path)
    except FileNotFoundError as error:
        raise DataError(f"{flag}: no such file: {path}") from error
    except OSError as error:
        raise DataError(f"{flag}: cannot read {path}: {error.strerror}") from error


@contextlib.contextmanager
def open_text(
    path: str, flag: str = "input_file", encoding: str | None = None
) -> Iterator[BinaryIO]:
    """Yields a file as a stream of UTF-8; see `decode` and `open_file`."""
    with open_file(path, flag) as stream:
        yield decode(stream, path, encoding)[0]


def decode(
    stream: BinaryIO, name: str, encoding: str | None = None
) -> tuple[BinaryIO, bytes]:
    """Decompresses a stream.

    Args:
      name: the file, for messages.
      encoding: of the text, if not UTF-8; then it is read into memory.

    Returns:
      A stream of UTF-8 at its beginning, and its first bytes. It is `stream` itself if that is not
      compressed, and can seek.

    Raises:
      DataError: it is damaged or truncated, needs a package, or its lines end with CR alone; also
        while it is read.
    """
    stream, head = _peek(stream)
    for magic, kind, decompress in _COMPRESSED:
        if magic.match(head):
            stream, head = _peek(as_stream(_checked(decompress(stream), name, kind)))
            break
    if encoding:
        try:
            stream, head = _peek(io.BytesIO(stream.read().decode(encoding).encode()))
        except UnicodeDecodeError as error:
            raise DataError(f"{name}: not {encoding} text ({error.reason} at byte {error.start:,})") from error
    elif head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Utf16Error(f"{name}: it begins with the mark of UTF-16; convert it first (iconv -f UTF-16 "
                         "-t UTF-8)")
    if b"\r" in head[:-1] and b"\n" not in head and not head.startswith(PARQUET):
        raise DataError(f"{name}: its lines end with CR alone: convert them (tr '\\r' '\\n')")
    return stream, head


def _peek(stream: BinaryIO) -> tuple[BinaryIO, bytes]:
    """Returns the stream at its beginning, and its first `LONGEST_LINE` bytes."""
    head = stream.read(LONGEST_LINE)
    if stream.seekable():
        stream.seek(-len(head), io.SEEK_CUR)
        return stream, head
    # Don't read a terminal again after the end of its input.
    rest = chunks(stream) if len(head) == LONGEST_LINE else ()
    return as_stream(itertools.chain([head], rest)), head


def chunks(stream: BinaryIO, size: int = _CHUNK) -> Iterator[bytes]:
    """Yields the content of a stream."""
    return iter(lambda: stream.read(size), b"")


def as_stream(parts: Iterable[bytes]) -> BinaryIO:
    """Returns a stream of the bytes that an iterator yields; it cannot seek."""
    return io.BufferedReader(_Chunks(parts), _CHUNK)


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterable[bytes]):
        self._chunks = filter(None, chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


# === Compression ===


def _checked(stream: BinaryIO, name: str, kind: str) -> Iterator[bytes]:
    """Yields a decompressed stream; reports damage."""
    try:
        yield from chunks(stream)
    except ImportError as error:
        raise DataError(f"{name}: zstd needs a package: pip install backports.zstd") from error
    except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        detail = " ".join(str(error).split())
        raise DataError(f"{name}: damaged or truncated {kind} data ({detail})") from error


def _unzstd(stream: BinaryIO) -> Iterator[bytes]:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    try:
        yield from chunks(zstd.ZstdFile(stream))
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
