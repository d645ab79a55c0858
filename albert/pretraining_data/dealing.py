"""The first stage of the shuffle: a block's pairs are dealt out to buckets.

What is random about it follows from the seed, the block and the pass.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.pretraining_data import held_out
from albert.pretraining_data.pairs import create_pairs, tokenize_block, truncate_pairs
from albert.pretraining_data.recipe import Job, Recipe, Stream, load_tokenizer
from albert.text.documents import Item, cut_blocks
from albert.tokenization import FullTokenizer

PAIR_NUMBERS = 4  # int32 of a pair beside its tokens


class BlockTask(NamedTuple):
    """Some passes over a block of a stream's documents."""

    stream: str
    index: int  # of the block in its stream
    documents: Sequence[Any]  # `Document`s, or what stands for them
    passes: range
    num_buckets: int

    @property
    def name(self) -> str:
        """The name of its spill."""
        return f"{self.stream}-{self.index}-{self.passes.start}-{self.passes.stop}.spill"


def plan_blocks(
    job: Job,
    documents: Iterable[tuple[Item, int]],
    text_bytes: int,
    passes_at_once: Callable[[Stream], int],
    parts: held_out.Parts[Item] = held_out.LINES,
) -> Iterator[BlockTask]:
    """Yields the first stage's tasks; documents are (one, its characters), in order."""
    seed = job.recipe.seed("held out")
    divided = held_out.HeldOut(job.held_out_fraction, seed, text_bytes, parts)
    for which, index, block in cut_blocks(documents, job.block_characters, divided.split):
        stream = job.streams[which]
        step, buckets = passes_at_once(stream), stream.buckets(text_bytes)
        for first in range(0, stream.passes, step):
            passes = range(first, min(first + step, stream.passes))
            yield BlockTask(stream.name, index, block, passes, buckets)


class DealtPairs(NamedTuple):
    """The pairs of some passes over a block, in the order of their buckets."""

    ids: np.ndarray  # tokens of the block
    ranges: np.ndarray  # int64 [n, 5], see `pairs.PairRange`
    lost: np.ndarray  # int64 [n], tokens that were cut off each pair, or left out before it
    counts: np.ndarray  # int64 [num_buckets], pairs in each bucket

    def table(self, some: slice = slice(None)) -> np.ndarray:
        """Returns length of A, length of B, label and lost tokens of pairs: int32 [n, 4]."""
        ranges = self.ranges[some]
        return np.column_stack([_lengths(ranges), ranges[:, 4], self.lost[some]]).astype("<i4")

    def tokens(self, dtype: np.dtype, some: slice = slice(None)) -> np.ndarray:
        """Returns the tokens of pairs, A before B."""
        ranges = self.ranges[some]
        starts, lengths = ranges[:, [0, 2]].ravel(), _lengths(ranges).ravel()
        before = np.cumsum(lengths) - lengths
        places = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
        return self.ids[places].astype(dtype)

    def tokens_of_buckets(self) -> np.ndarray:
        """Returns int64 [num_buckets], the tokens in each."""
        bucket = np.repeat(np.arange(len(self.counts)), self.counts)
        sizes = _lengths(self.ranges).sum(axis=1)
        return np.bincount(bucket, sizes, len(self.counts)).astype(np.int64)


def _lengths(ranges: np.ndarray) -> np.ndarray:
    """Returns the tokens of A and of B of pairs: [n, 2]."""
    return ranges[:, [1, 3]] - ranges[:, [0, 2]]


def _count_unpaired(size: int, ranges: np.ndarray) -> int:
    """Returns how many of a block's `size` tokens are in no pair of these ranges."""
    begins = np.bincount(ranges[:, [0, 2]].ravel(), minlength=size + 1)
    ends = np.bincount(ranges[:, [1, 3]].ravel(), minlength=size + 1)
    return np.count_nonzero(np.cumsum(begins - ends)[:size] == 0)


def token_type(tokenizer: FullTokenizer) -> np.dtype:
    """Returns the type of a spilled token: two bytes, if its id fits them."""
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def pair_block(
    recipe: Recipe, task: BlockTask, before_pass: Callable[[], None] = lambda: None
) -> DealtPairs:
    """Returns the pairs of some passes over a block, dealt out to buckets."""
    block = tokenize_block(task.documents, load_tokenizer(recipe))
    pairs, buckets = [np.zeros((0, 5), np.int64)], [np.zeros(0, np.int64)]
    lost = [np.zeros(0, np.int64)]
    for number in task.passes:
        before_pass()
        seed = recipe.seed(task.stream, "pairs", task.index, number)
        found = create_pairs(block, recipe.pairs, random.Random(seed))
        rng = np.random.default_rng(seed)
        whole = np.array(found, np.int64).reshape(-1, 5)
        pairs.append(
            truncate_pairs(whole, recipe.pairs.max_tokens, rng, recipe.pairs.is_swapped_later)
        )
        lost.append((_lengths(whole) - _lengths(pairs[-1])).sum(axis=1))
        if recipe.pairs.strict_sentence_order and len(whole):
            # They are a pass's, not a pair's: its first one has them.
            lost[-1][0] += _count_unpaired(len(block.ids), whole)
        buckets.append(_deal(len(whole), task.num_buckets, rng))
    bucket = np.concatenate(buckets)
    order = np.argsort(bucket, kind="stable")
    counts = np.bincount(bucket, minlength=task.num_buckets)
    return DealtPairs(block.ids, np.concatenate(pairs)[order], np.concatenate(lost)[order], counts)


def _deal(count: int, num_buckets: int, rng: np.random.Generator) -> np.ndarray:
    """Returns a random bucket for each pair; all buckets get equally many, if they can."""
    bucket = np.empty(count, np.int64)
    bucket[rng.permutation(count)] = np.arange(count) + rng.integers(num_buckets)
    return bucket % num_buckets
