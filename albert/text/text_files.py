"""Text files as streams of UTF-8 lines that end with LF or CRLF.

A file may be compressed (gzip, bzip2, xz, zstd), by its first bytes, not its name. It is streamed, so
it may be a pipe.
"""

import bz2
import contextlib
import dataclasses
import gzip
import io
import logging
import lzma
import re
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from albert.errors import DataError

log = logging.getLogger("albert")

LONGEST_LINE = 1 << 20  # bytes; longer lines are divided, so that memory stays bounded
MAX_BAD = 0.05  # maximum fraction of a text's lines that are not UTF-8
PARQUET = b"PAR1"  # the first bytes of such a file, which is not text
CONVERT = "convert it first, for example with iconv -f WINDOWS-1252 -t UTF-8"


# === Lines ===


@dataclasses.dataclass
class ReadingCounts:
    """A reader's counts."""

    documents: int = 0
    copies: int = 0  # documents that were dropped, since an earlier one has the same text
    lines: int = 0  # blank ones included
    bytes: int = 0  # of the text as UTF-8
    cuts: int = 0  # positions at which very long lines were divided
    cut_documents: int = 0  # positions at which very long documents were divided
    bad_utf8_lines: int = 0  # decoded with U+FFFD
    first_bad: str = ""  # file and line of the first of them
    files_of_lines: list[str] = dataclasses.field(default_factory=list)  # each line is a document

    def check(self, max_bad: float | None = None) -> None:
        """Raises a DataError if more than a fraction of the lines (by default `MAX_BAD`) are bad."""
        max_bad = MAX_BAD if max_bad is None else max_bad
        if self.bad_utf8_lines > max_bad * self.lines:
            raise DataError(f"{self.first_bad}; {self.bad_utf8_lines:,} of {self.lines:,} lines "
                            "are not UTF-8")

    def warn(self) -> None:
        """Logs unusual properties: copies, no blank lines, lines that are not UTF-8."""
        if self.copies:
            log.info("dropped %s document(s): copies of earlier ones", f"{self.copies:,}")
        if self.files_of_lines:
            first, *others = self.files_of_lines
            more = f" (and {len(others):,} more files)" if others else ""
            log.warning("%s%s: no blank line separates documents, so each line is one; "
                        "--document_layout=files or blank_lines decides otherwise", first, more)
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
            raise DataError(f"{name}:{counts.lines - before + 1}: a NUL byte: this is not UTF-8 text; "
                            "convert it first (iconv -f UTF-16 -t UTF-8), or remove them (tr -d '\\000')")
        try:
            text = part.decode("utf-8")
        except UnicodeDecodeError:
            text = part.decode("utf-8", "replace")
            counts.bad_utf8_lines += 1
            counts.first_bad = counts.first_bad or (
                f"{name}:{counts.lines - before + 1}: not UTF-8 text; {CONVERT}"
            )
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


# === Files ===


@contextlib.contextmanager
def open_text(
    path: str, flag: str = "input_file", encoding: str | None = None
) -> Iterator[BinaryIO]:
    """Yields a file, a pipe or a device as a stream of UTF-8; see `decode`.

    Raises:
      DataError: it cannot be read (names the flag).
    """
    try:
        stream = open(path, "rb")
    except FileNotFoundError as error:
        raise DataError(f"{flag}: no such file: {path}") from error
    except OSError as error:
        raise DataError(f"{flag}: cannot read {path}: {error.strerror}") from error
    with stream:
        yield decode(stream, path, encoding)


def decode(stream: BinaryIO, name: str, encoding: str | None = None) -> BinaryIO:
    """Returns a stream of UTF-8; `stream` itself if that is not compressed, and can seek.

    Args:
      name: the file, for messages.
      encoding: of the text, if not UTF-8; then it is read into memory.

    Raises:
      DataError: it is damaged or truncated, needs a package, or its lines end with CR alone; also
        while it is read.
    """
    head = head_of(stream)
    for magic, decompress in _COMPRESSED:
        if magic.match(head):
            stream = io.BufferedReader(_Decompressed(decompress, stream, name), LONGEST_LINE)
            head = head_of(stream)
            break
    if encoding:
        try:
            return io.BytesIO(stream.read().decode(encoding).encode())
        except UnicodeDecodeError as error:
            where = f"{error.reason} at byte {error.start:,}"
            raise DataError(f"{name}: not {encoding} text ({where})") from error
    if b"\r" in head[:-1] and b"\n" not in head and not head.startswith(PARQUET):
        raise DataError(f"{name}: its lines end with CR alone: convert them (tr '\\r' '\\n')")
    return stream


def head_of(stream: BinaryIO) -> bytes:
    """Returns the first mebibyte of a stream at its beginning, or less of a pipe, without reading on."""
    if not stream.seekable():
        return stream.peek(LONGEST_LINE)
    head = stream.read(LONGEST_LINE)
    stream.seek(-len(head), io.SEEK_CUR)
    return head


# === Compression ===


def _open_zstd(stream: BinaryIO) -> BinaryIO:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdFile(stream)


_COMPRESSED = (
    (re.compile(rb"\x1f\x8b\x08"), lambda stream: gzip.GzipFile(fileobj=stream)),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), bz2.BZ2File),
    (re.compile(rb"\xfd7zXZ\x00"), lzma.LZMAFile),
    (re.compile(rb"\x28\xb5\x2f\xfd"), _open_zstd),
)


class _Decompressed(io.RawIOBase):
    """A decompressed stream, which reports damage with the file's name."""

    def __init__(self, decompress: Callable[[BinaryIO], BinaryIO], stream: BinaryIO, name: str):
        self._name = name
        try:
            self._stream = decompress(stream)
        except ImportError as error:
            raise DataError(f"{name}: zstd needs a package: pip install backports.zstd") from error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        """Fills the buffer, as far as there is text."""
        view, size = memoryview(buffer), 0
        try:
            while size < len(view) and (count := self._stream.readinto(view[size:])):
                size += count
        except Exception as error:  # each library has its own
            detail = " ".join(str(error).split())
            raise DataError(f"{self._name}: damaged or truncated compressed data ({detail})") from error
        return size
