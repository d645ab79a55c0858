"""Reads and writes protobuf messages field by field, for files with few known messages."""

from collections.abc import Iterator


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (number, content) of each field; a number's content is its bytes.

    Raises:
      ValueError, IndexError: it is not a message.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = varint_at(message, at)
        kind = tag & 7
        if kind == 2:
            size, at = varint_at(message, at)
            stop = at + size
        elif kind == 0:
            _, stop = varint_at(message, at)
        elif kind in (1, 5):
            stop = at + (8 if kind == 1 else 4)
        else:
            raise ValueError(f"field of kind {kind}")
        if stop > end:
            raise ValueError("a field exceeds its message")
        yield tag >> 3, message[at:stop]
        at = stop


def varint_at(message: bytes, at: int) -> tuple[int, int]:
    """Returns the number at a byte, and its end.

    Raises:
      ValueError: it has more than 64 bits; IndexError: the message ends before it does.
    """
    byte = message[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        at += 1
        byte = message[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise ValueError("a number of more than 64 bits")
    return value, at + 1


def varint(number: int) -> bytes:
    """Returns a number with seven bits per byte, the lowest first."""
    septets = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(septet | 0x80 for septet in septets[:-1]), septets[-1]])


def field(number: int, content: bytes) -> bytes:
    """Returns a field of bytes."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content
