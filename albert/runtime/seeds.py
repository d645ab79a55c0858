"""Seeds for separate purposes, derived from one seed."""

import hashlib


def child_seed(seed: int, *names: str | int) -> int:
    """Returns a 64-bit seed for one purpose, independent of the seeds of other purposes.

    Sums would not do: seed 1 in epoch 1 would be seed 2 in epoch 0.
    """
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
