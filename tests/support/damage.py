"""Ways to damage a file."""

import contextlib
import json
import os
import pathlib
import random
from collections.abc import Callable, Iterator

ODD_VALUES = (
    None, "x", -1, 0, 1.5, float("nan"), 10**30, True, [], {}, [[1]], [None], {"a": []}, "\ud800",
)


class Bomb:
    """Its pickle creates the directory $OWNED when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, (os.environ["OWNED"],))


def mutations(content: bytes, others: dict[str, bytes], count: int, seed: int) -> Iterator[
    tuple[str, Callable[[pathlib.Path], None]]
]:
    """Yields about `count` (what, how) for one file, the most revealing ones first."""
    rng, size = random.Random(seed), len(content)

    def put(new: bytes):
        return lambda path: path.write_bytes(new)

    def in_place(make):
        return lambda path: (path.unlink(), make(path))

    most_telling = [
        ("empty", put(b"")),
        ("cut in half", put(content[: size // 2])),
        ("one bit of the middle", put(flipped(content, size // 2, 1))),
        ("a directory", in_place(os.mkdir)),
        ("last byte lost", put(content[:-1])),
        ("first byte lost", put(content[1:])),
        ("gone", os.unlink),
        ("first bit", put(flipped(content, 0, 1))),
        ("last bit", put(flipped(content, size - 1, 0x80))),
        ("a link to nowhere", in_place(lambda path: os.symlink("/nowhere/at/all", path))),
        ("a link to itself", in_place(lambda path: os.symlink(path, path))),
        ("doubled", put(content * 2)),
        ("zeros", put(bytes(size))),
        ("noise", put(rng.randbytes(size))),
        ("junk at the end", put(content + b"\0junk")),
        ("not UTF-8", put(content[: size // 3] + b"\xff\xfe\x80" + content[size // 3 :])),
        ("a byte-order mark", put(b"\xef\xbb\xbf" + content)),
        ("deeply nested", put(b"[" * 100_000)),
        ("many digits", put(b'{"a": ' + b"9" * 6000 + b"}")),
        *((f"swapped with {name}", put(other)) for name, other in others.items()),
        *((f"cut at {at}", put(content[:at])) for at in (1, 2, 3, 4, 7, 8, 9, 11, 12, 16, size - 4)
          if 0 < at < size),
    ]
    structured = [(what, put(new)) for what, new in json_mutations(content, rng)]
    rng.shuffle(structured)
    telling = [*most_telling[:9], *structured[: count // 3], *most_telling[9:], *structured]
    yield from telling[: count * 2 // 3]
    for _ in range(count - min(len(telling), count * 2 // 3)):
        at, bits = rng.randrange(size), 1 << rng.randrange(8)
        yield f"bits {bits:#x} of byte {at}", put(flipped(content, at, bits))


def flipped(content: bytes, at: int, bits: int) -> bytes:
    return content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


def json_mutations(content: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yields JSON files in which a value anywhere has another type, or is missing."""
    try:
        places = list(places_in(json.loads(content)))
    except ValueError:
        return
    for place in rng.sample(places, min(len(places), 40)):
        for odd in (*rng.sample(ODD_VALUES, 4), "absent"):
            inner = changed = json.loads(content)
            if isinstance(changed, dict):
                changed.pop("content_sha256", None)
            for key in place[:-1]:
                inner = inner[key]
            with contextlib.suppress(KeyError):
                inner[place[-1]] = odd
                if odd == "absent":
                    del inner[place[-1]]
            yield f"{place} is {odd!r}", json.dumps(changed).encode()


def places_in(value, place=()):
    items = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ())
    for key, inner in items:
        yield (*place, key)
        yield from places_in(inner, (*place, key))
