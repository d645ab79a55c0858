"""The orders of tf.data's `shuffle` and `interleave`, computed without TensorFlow.

TensorFlow shuffles a data set that fits its buffer by drawing each record among those that are
left (Fisher and Yates). Its numbers come from the generator Philox4x32-10 (Salmon et al., 2011,
"Parallel random numbers: as easy as 1, 2, 3").
"""

from collections.abc import Iterator, Sequence

import numpy as np

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MOST_SEED = 2**31 - 1  # TensorFlow takes a seed modulo this


def permutation(count: int, global_seed: int, seed: int) -> np.ndarray:
    """Returns the places that `tf.data.Dataset.range(count).shuffle(count, seed)` gives.

    Args:
      global_seed: of `tf.random.set_seed`.
      seed: as a signed number of 64 bits.
    """
    seeds = global_seed % _MOST_SEED, seed % _MOST_SEED
    if seeds == (0, 0):
        seeds = 0, _MOST_SEED
    order = list(range(count))
    left = np.arange(count, 0, -1, dtype=np.uint32)
    places = (_philox(count, *seeds) % left + np.arange(count, dtype=np.uint32)).tolist()
    for i, place in enumerate(places):
        order[i], order[place] = order[place], order[i]
    return np.array(order, np.int64)


def interleaved(counts: Sequence[int], lanes: int) -> Iterator[tuple[int, int]]:
    """Yields (source, number of its element) as `interleave(..., cycle_length=lanes)` does.

    Args:
      counts: elements of each source.
    """
    waiting = iter(range(len(counts)))
    sources: list[int | None] = [None] * lanes
    seen, left, lane = [0] * len(counts), sum(counts), 0
    while left:
        if sources[lane] is None:
            sources[lane] = next(waiting, None)
        source = sources[lane]
        if source is not None:
            if seen[source] < counts[source]:
                yield source, seen[source]
                seen[source] += 1
                left -= 1
            else:  # the lane takes another source when its turn comes again
                sources[lane] = None
        lane = (lane + 1) % lanes


def _philox(count: int, key: int, counter: int) -> np.ndarray:
    """Returns the first `count` numbers of Philox4x32-10, uint32.

    Args:
      key: 64 bits.
      counter: the upper 64 bits of the counter; the lower ones count from 0.
    """
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    words = [
        blocks & _LOW, blocks >> _HALF,
        np.full_like(blocks, counter & 0xFFFFFFFF), np.full_like(blocks, counter >> 32),
    ]
    keys = [np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)]
    for _ in range(10):
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            (second >> _HALF) ^ words[1] ^ keys[0], second & _LOW,
            (first >> _HALF) ^ words[3] ^ keys[1], first & _LOW,
        ]
        keys = [(k + step) & _LOW for k, step in zip(keys, _KEY_STEPS, strict=True)]
    return np.stack(words, axis=1).astype(np.uint32).ravel()[:count]
