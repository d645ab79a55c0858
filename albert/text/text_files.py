"""Plain text as all commands read it: unpacked, decoded, line by line. No TensorFlow.

A file may be packed (gzip, bzip2, xz, zstd), be of UTF-8 with or without a mark, or of UTF-16 or
UTF-32 with one, and end its lines with LF, CRLF or CR. What it is, its first bytes tell, not its
name. It is read once, from its beginning to its end, and never held: pipes are files too.
"""

import bz2
import codecs
import contextlib
import dataclasses
import gzip
import io
import itertools
import lzma
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from albert.errors import DataError
from albert.storage import opening

LONGEST_LINE = 1 << 20  # bytes; a longer line is cut, so that memory stays bounded
MOST_BAD = 0.05  # share of a file's lines that may be no UTF-8

PARQUET = b"PAR1"  # how such a table begins, which is no text
_FIRST_OF_MARK = codecs.BOM_UTF8[0]
_CHUNK = 1 << 16
# Of zstd at a time: a few bytes of it may hold 128 KiB of text.
_PACKED_CHUNK = 1 << 9
_PACKED = (
    (re.compile(rb"\x1f\x8b\x08"), "gzip", lambda stream: gzip.GzipFile(fileobj=stream)),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bzip2", bz2.BZ2File),
    (re.compile(rb"\xfd7zXZ\x00"), "xz", lzma.LZMAFile),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", lambda stream: as_stream(_unzstd(stream))),
)
# That of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclasses.dataclass
class Counts:
    """What was met while reading."""

    lines: int = 0  # blank ones included
    bad_utf8_lines: int = 0  # decoded with U+FFFD
    cuts: int = 0  # places where a very long line was cut
    bytes: int = 0

    def add(self, other: "Counts") -> None:
        """Adds what was met elsewhere."""
        for field in dataclasses.fields(other):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


# === Lines ===


def read_lines(
    stream: BinaryIO,
    name: str,
    counts: Counts,
    longest: int | None = None,
    most_bad: float | None = None,
) -> Iterator[tuple[str, int, bool]]:
    r"""Yields (text, its bytes, whether a line ends here); adds to `counts` at the end.

    Lines end at "\n" or "\r\n", which are left at the text; very long ones come in parts, cut at
    a space. A byte-order mark before a line is no text: files are put end to end.

    Args:
      stream: of `as_utf8`.
      name: what messages call it.
      longest: bytes of a part; by default `LONGEST_LINE`.
      most_bad: share of the lines that may be no UTF-8, which get U+FFFD; by default `MOST_BAD`.

    Raises:
      DataError: a NUL, or at the end too many lines that are no UTF-8.
    """
    longest = LONGEST_LINE if longest is None else longest
    most_bad = MOST_BAD if most_bad is None else most_bad
    lines = bad = first_bad = cuts = total = 0
    rest = sample = b""
    # No part depends on where the one before began: they can be read again from there.
    while (part := stream.readline(longest - len(rest))) or rest:
        piece, rest = rest + part, b""
        ends = len(piece) < longest or piece.endswith(b"\n")
        if not ends:
            cut = piece.rfind(b" ") + 1 or _last_character(piece)
            piece, rest = piece[:cut], piece[cut:]
            cuts += 1
        if b"\0" in piece:
            raise DataError(f"{name}:{lines + 1}: a NUL byte: {_look_of_binary(piece)}")
        try:
            text = piece.decode("utf-8")
        except UnicodeDecodeError:
            text = piece.decode("utf-8", "replace")
            bad += 1
            if not first_bad:
                first_bad, sample = lines + 1, piece
        if piece[0] == _FIRST_OF_MARK:
            text = text.lstrip("\ufeff")
        lines += ends
        total += len(piece)
        yield text, len(piece), ends
    counts.add(Counts(lines, bad, cuts, total))
    if bad > most_bad * lines:
        count = "" if not most_bad else f": {bad:,} of {lines:,} lines are not"
        raise DataError(f"{name}:{first_bad}: not UTF-8 text{count}; {_look_of_bad(sample)}")


def _last_character(line: bytes) -> int:
    """Returns where the last UTF-8 character begins."""
    at = len(line) - 1
    while at > len(line) - 4 and line[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _look_of_binary(piece: bytes) -> str:
    if piece[257:262] == b"ustar":
        return "this is a tar archive; unpack it first"
    if 3 * piece.count(0) > len(piece):
        order = "LE" if piece[0] else "BE"
        return (f"it looks like UTF-16 without a mark; convert it first (iconv -f UTF-16{order} "
                "-t UTF-8)")
    return "this is no UTF-8 text; convert it (iconv), or remove them (tr -d '\\000')"


def _look_of_bad(piece: bytes) -> str:
    high = sum(byte > 127 for byte in piece)
    if 3 * high > len(piece):
        return ("it looks like another script's encoding (GB18030, Shift_JIS, KOI8-R, ...); "
                "convert it first (iconv -f GB18030 -t UTF-8)")
    return "it looks like Latin-1; convert it first (iconv -f WINDOWS-1252 -t UTF-8)"


# === Files ===


class Position:
    """How much of some files has been read, packed as they are."""

    def __init__(self):
        self._before, self._stream = 0, None

    @contextlib.contextmanager
    def follow(self, stream: BinaryIO) -> Iterator[None]:
        """Looks at a file while it is read; one that cannot seek counts nothing."""
        self._stream = stream if stream.seekable() else None
        yield
        self._before, self._stream = self.bytes, None

    @property
    def bytes(self) -> int:
        return self._before + (self._stream.tell() if self._stream else 0)


@contextlib.contextmanager
def open_text(path: str, flag: str = "input_file") -> Iterator[BinaryIO]:
    """Yields the text of a file, a pipe or a device; see `as_utf8`.

    Raises:
      DataError: it cannot be read (naming the flag).
    """
    with open_raw(path, flag) as stream:
        yield as_utf8(stream, path)


def open_raw(path: str, flag: str = "input_file") -> BinaryIO:
    """Returns a file as it is; errors as of `open_text`."""
    try:
        return opening.open_read(path)
    except FileNotFoundError as error:
        raise DataError(f"--{flag}: no such file: {path}") from error
    except OSError as error:
        raise DataError(f"--{flag}: cannot read {path}: {error.strerror}") from error


def size_of_text(path: str, flag: str = "input_file") -> int:
    """Returns the bytes of a file's text as `as_utf8` gives it.

    A file that is packed or of another encoding is read through for that: this costs little
    beside what is done with the text, and no place on the disk.

    Raises:
      DataError: see `open_text`.
    """
    with open_raw(path, flag) as stream:
        text = as_utf8(stream, path)
        return opening.size_of(path) if text is stream else sum(map(len, chunks(text)))


def as_utf8(stream: BinaryIO, name: str) -> BinaryIO:
    """Returns a stream of UTF-8 with LF or CRLF at the ends of lines.

    It is `stream` itself, at its beginning, if that is such a text and can seek: then a place in
    it is one in the file.

    Args:
      name: what messages call it.

    Raises:
      DataError: it is damaged or cut off, or needs a package; also while it is read.
    """
    return decoded(stream, name)[1]


def decoded(stream: BinaryIO, name: str) -> tuple[bytes, BinaryIO]:
    """Returns the first bytes of the text and the stream of `as_utf8`, at its beginning."""
    head, stream = _look(stream)
    for magic, kind, unpack in _PACKED:
        if magic.match(head):
            head, stream = _look(as_stream(_checked(unpack(stream), name, kind)))
            break
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            head, stream = _look(as_stream(_converted(stream, encoding, name)))
            break
    # A CR alone is a line's end where no line ends otherwise.
    if b"\r" in head[:-1] and b"\n" not in head and not head.startswith(PARQUET):
        stream = as_stream(_with_line_feeds(stream))
    return head, stream


def _look(stream: BinaryIO) -> tuple[bytes, BinaryIO]:
    """Returns the first bytes, as many as a line may have, and the stream at its beginning."""
    if stream.seekable():
        start = stream.tell()
        head = stream.read(LONGEST_LINE)
        stream.seek(start)
        return head, stream
    head = stream.read(LONGEST_LINE)
    # A terminal's end is not asked for twice.
    rest = chunks(stream) if len(head) == LONGEST_LINE else ()
    return head, as_stream(itertools.chain([head], rest))


def chunks(stream: BinaryIO, size: int = _CHUNK) -> Iterator[bytes]:
    """Yields what a stream holds."""
    return iter(lambda: stream.read(size), b"")


class _Chunks(io.RawIOBase):
    """A stream of what an iterator of bytes yields."""

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


def as_stream(parts: Iterable[bytes]) -> BinaryIO:
    """Returns a stream of what an iterator yields; it cannot seek."""
    return io.BufferedReader(_Chunks(parts), _CHUNK)


# === What a file may be ===


def _checked(stream: BinaryIO, name: str, kind: str) -> Iterator[bytes]:
    """Yields what a packed stream holds, and says so where it cannot be unpacked."""
    try:
        yield from chunks(stream)
    except ImportError as error:
        raise DataError(f"{name}: packed with zstd, which needs: pip install zstandard") from error
    except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        detail = " ".join(str(error).split())
        raise DataError(f"{name}: damaged or cut off: not whole {kind} data ({detail})") from error


def _unzstd(stream: BinaryIO) -> Iterator[bytes]:
    new, problem = _zstd()
    one = new()
    for chunk in chunks(stream, _PACKED_CHUNK):
        while chunk:
            if one.eof:
                one = new()
            try:
                yield one.decompress(chunk)
            except problem as error:
                raise ValueError(str(error)) from error
            chunk = one.unused_data if one.eof else b""
    if not one.eof:
        raise EOFError("the end is missing")


def _zstd():
    """Returns (what makes a decompressor, its error)."""
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdDecompressor, zstd.ZstdError
    import zstandard

    return lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError


def _converted(stream: BinaryIO, encoding: str, name: str) -> Iterator[bytes]:
    """Yields text of another encoding, which has a mark, as UTF-8 without one."""
    decoder, line = codecs.getincrementaldecoder(encoding)(), 1
    for chunk in itertools.chain(chunks(stream), [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode(error.encoding, "ignore")
            raise DataError(
                f"{name}:{line + before.count(chr(10))}: not {encoding.upper()} text, though the "
                f"file begins with its mark ({error.reason})"
            ) from error
        line += text.count("\n")
        yield text.encode()


def _with_line_feeds(stream: BinaryIO) -> Iterator[bytes]:
    """Yields text whose lines end with CR, or here and there with CRLF, with LF instead."""
    decoder = io.IncrementalNewlineDecoder(None, translate=True)
    for chunk in itertools.chain(chunks(stream), [b""]):
        yield decoder.decode(chunk.decode("latin-1"), final=not chunk).encode("latin-1")
