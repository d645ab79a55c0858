"""One seed for each purpose, made of the seed of all: no two that are given share their numbers."""

import hashlib


def child_seed(seed: int, *names: str | int) -> int:
    """Returns a seed of 64 bits for one purpose; another's numbers are independent of it.

    Sums would not do: seed 1 in epoch 1 would be seed 2 in epoch 0.
    """
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
