"""The order of training records that are too many to shuffle at once.

Files are cut into blocks of successive records. Each epoch permutes the blocks and makes groups
of `LANES` of them. A block's records are shuffled. The blocks of a group are read in turn, a
record of each. Short blocks, and blocks that make no whole group, come last.

All of it follows from the seed, the epoch and the blocks. So any position is found by
arithmetic, by any number of readers. Of a whole group, record p is of block p modulo `LANES`.
So workers that take turns at records need not read each other's blocks.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from albert.runtime.seeds import child_seed

LANES = 64


SHUFFLE_BUFFER = 65536  # records; whole data sets of usual size fit


@dataclasses.dataclass(frozen=True)
class Share:
    """The replicas of one input pipeline, among all; each gets an equal share of a batch."""

    num_replicas: int = 1  # in all
    first: int = 0  # of this pipeline
    count: int = 1  # of this pipeline


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Successive records of a file, block by block; all arrays int64 [K]."""

    file: np.ndarray  # its number
    offset: np.ndarray  # byte of the block's first record
    records: np.ndarray

    @property
    def num_records(self) -> int:
        """Of all blocks: an epoch's."""
        return int(self.records.sum())


@dataclasses.dataclass(frozen=True)
class Reading:
    """What one worker reads of a group: blocks, in turn a record of each."""

    # int64 [S, 4]: number of the file, byte, records, seed that they are shuffled with.
    blocks: np.ndarray
    skip: int  # records before the first of its own
    every: int  # from there on, its own are each so-many-th; the others are other workers'


def blocks_of(files: Sequence[Sequence[tuple[int, int]]]) -> Blocks:
    """Returns where the blocks of all files begin.

    Args:
      files: (records, bytes) of each file's blocks, in order.
    """
    rows = []
    for number, blocks in enumerate(files):
        offset = 0
        for count, size in blocks:
            if count:
                rows.append((number, offset, count))
            offset += size
    return Blocks(*np.array(rows, np.int64).T)


class EpochOrder:
    """The groups of one epoch."""

    def __init__(self, blocks: Blocks, seed: int, epoch: int):
        rng = np.random.default_rng(child_seed(seed, "order", epoch))
        order = rng.permutation(len(blocks.records))
        is_full = blocks.records[order] == blocks.records.max()
        full = order[is_full]
        count = len(full) // LANES * LANES
        self.num_whole = count // LANES  # groups of equal blocks, which come first
        self.order = np.concatenate([full[:count], full[count:], order[~is_full]])
        self.seeds = rng.integers(1, 1 << 31, len(order))
        self.blocks, self.start = blocks, epoch * blocks.num_records
        self._seed, self._epoch = seed, epoch
        sizes = np.add.reduceat(blocks.records[self.order], np.arange(0, len(order), LANES))
        # Where each group begins, as a position in the run; and where the last one ends.
        self.begins = self.start + np.concatenate([[0], np.cumsum(sizes)])

    @property
    def num_groups(self) -> int:
        """The same in every epoch."""
        return len(self.begins) - 1

    def group_at(self, position: int) -> int:
        """Returns the number of the group that holds a position of this epoch."""
        return int(np.searchsorted(self.begins, position, "right")) - 1

    def after(self, group: int, position: int, worker: int, num_workers: int) -> np.ndarray:
        """Returns the blocks that a worker reads after those of a group; see `Reading`."""
        if group + 1 < self.num_groups:
            return self.reading(group + 1, position, worker, num_workers).blocks
        following = EpochOrder(self.blocks, self._seed, self._epoch + 1)
        return following.reading(0, position, worker, num_workers).blocks

    def reading(self, group: int, position: int, worker: int, num_workers: int) -> Reading:
        """Returns what a worker reads of a group, from a position in the run on.

        Its records are those whose position is `worker` modulo `num_workers`.
        """
        begin = int(self.begins[group])
        own = (worker - begin) % num_workers  # its first record of the group
        step = math.gcd(num_workers, LANES) if group < self.num_whole else 1
        first, every = own % step, num_workers // step
        chosen = slice(group * LANES, (group + 1) * LANES)
        numbers, seeds = self.order[chosen][first::step], self.seeds[chosen][first::step]
        seen = max(-(-(position - begin - first) // step), 0)
        columns = (self.blocks.file, self.blocks.offset, self.blocks.records)
        return Reading(
            np.stack([*(column[numbers] for column in columns), seeds], axis=1),
            seen + ((own - first) // step - seen) % every, every,
        )
