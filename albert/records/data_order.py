"""The order of training records, which depends on the seed, the epoch and the blocks alone.

Files consist of blocks of successive records. Each epoch permutes the blocks and groups them. First
come groups of `LANES` blocks of equal size: their blocks are shuffled, and read in turn, one record
at a time. So record p of a group is in block p modulo `LANES`, and workers that take turns at records
don't have to read each other's blocks. The remaining blocks form groups of about `GROUP_RECORDS`
records, each shuffled across its blocks; a small data set is one such group.

Any number of readers can compute any position.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from albert.runtime.seeds import child_seed

LANES = 64
GROUP_RECORDS = 65536


@dataclasses.dataclass(frozen=True)
class Share:
    """The replicas of one input pipeline; each gets an equal part of a batch."""

    num_replicas: int = 1  # of the run
    first: int = 0  # of this pipeline
    count: int = 1  # of this pipeline

    @property
    def worker(self) -> int:
        return self.first // self.count

    @property
    def num_workers(self) -> int:
        return self.num_replicas // self.count


def readings(
    sizes: np.ndarray, seed: int, position: int = 0, worker: int = 0, num_workers: int = 1
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yields endlessly what a worker reads, from a position of the run on, in groups.

    Yields (numbers of the blocks to read [S], the block of each record as an index of these [N], its number
    in the block [N], its position in the run [N]), int64. The worker reads every `num_workers`-th record;
    the one at `position` belongs to worker 0.

    Args:
      sizes: int64 [K], records of each block.
    """
    first = position + worker
    epoch, start = divmod(first, int(sizes.sum()))
    start = first - start
    while True:
        groups, num_even = groups_of(sizes, seed, epoch)
        for number, blocks in enumerate(groups):
            end = start + int(sizes[blocks].sum())
            if first < end:
                lanes, rows = _order(sizes[blocks], number < num_even, seed, epoch, number)
                positions = np.arange(first, end, num_workers)
                first = int(positions[-1]) + num_workers
                used, lanes = np.unique(lanes[positions - start], return_inverse=True)
                yield blocks[used], lanes, rows[positions - start], positions
            start = end
        epoch += 1


def groups_of(sizes: np.ndarray, seed: int, epoch: int) -> tuple[list[np.ndarray], int]:
    """Returns the numbers of the blocks in each group of an epoch, and how many groups are even.

    Even groups, of `LANES` blocks of equal size, are first.
    """
    order = np.random.default_rng(child_seed(seed, "order", epoch)).permutation(len(sizes))
    order = order[sizes[order] > 0]
    is_even = (sizes[order] == sizes.max()) & (sizes.sum() > GROUP_RECORDS)
    even, rest = order[is_even], order[~is_even]
    num_even = len(even) // LANES
    rest = np.concatenate([even[num_even * LANES :], rest])
    group = (np.cumsum(sizes[rest]) - 1) // GROUP_RECORDS
    rests = np.split(rest, np.flatnonzero(np.diff(group)) + 1) if len(rest) else []
    return [*even[: num_even * LANES].reshape(-1, LANES), *rests], num_even


def _order(
    sizes: np.ndarray, is_even: bool, seed: int, epoch: int, group: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (index of the block, number in the block) of each record of a group, in order."""
    rng = np.random.default_rng(child_seed(seed, "order", epoch, group))
    if is_even:
        rows = rng.permuted(np.tile(np.arange(sizes[0]), (LANES, 1)), axis=1)
        return np.tile(np.arange(LANES), sizes[0]), rows.T.ravel()
    order = rng.permutation(int(sizes.sum()))
    lanes = np.repeat(np.arange(len(sizes)), sizes)[order]
    return lanes, order - (np.cumsum(sizes) - sizes)[lanes]
