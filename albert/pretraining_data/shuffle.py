"""Shuffles pairs through files: distributes each block's pairs over buckets, and gathers buckets.

Random numbers depend on the seed, the block, the pass and the bucket, never on the process, so that
any division of the work gives the same bytes.
"""

import itertools
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from albert.pretraining_data.held_out import HeldOut
from albert.pretraining_data.job import Job, Recipe, load_tokenizer
from albert.pretraining_data.pairs import PAIR, Block, pairs_of_block, tokenize_block
from albert.storage import files
from albert.text.documents import Document, cut_blocks, split_documents

_MIN_FILES = 32  # if there are enough passes, since an interrupted run repeats files in progress
_GATHERED = 1 << 14  # pairs whose tokens are gathered at once


class BlockTask(NamedTuple):
    """Some passes over a block of a split's documents."""

    split: str
    index: int  # of the block in its split
    documents: Sequence[Document]
    crc: int  # of the documents
    passes: range
    passes_per_file: int
    num_buckets: int

    def files(self, folder: str) -> list[tuple[range, str]]:
        """Returns the files of the pairs: (passes, path). The name identifies the pairs."""
        files_of_passes = []
        for first in range(self.passes.start, self.passes.stop, self.passes_per_file):
            passes = range(first, min(first + self.passes_per_file, self.passes.stop))
            name = f"{self.split}-{self.index}-{passes.start}-{passes.stop}"
            path = f"{folder}/{name}-of-{self.num_buckets}-{self.crc:08x}.pairs"
            files_of_passes.append((passes, path))
        return files_of_passes


def block_tasks(
    job: Job, documents: Iterable[Document], num_processes: int = 1
) -> Iterator[BlockTask]:
    """Divides documents into blocks of each split, and those into tasks."""
    num_blocks = max(1, job.text_bytes // job.block_characters)
    # If a small text has fewer blocks than there are processes, its passes are divided.
    num_tasks = -(-2 * num_processes // num_blocks) if num_processes > 1 else 1
    held_out = HeldOut(
        job.held_out_fraction, job.recipe.seed("held out"), job.text_bytes, job.recipe.language
    )
    parts = itertools.chain.from_iterable(map(held_out.split, documents))
    for which, index, block in cut_blocks(parts, job.block_characters):
        split, crc = job.splits[which], 0
        for line in (line for document in block for line in (*document, "")):
            crc = zlib.crc32(line.encode("utf-8", "surrogatepass") + b"\n", crc)
        per_file = -(-split.passes // -(-_MIN_FILES // num_blocks))
        per_task = per_file * -(-split.passes // (per_file * num_tasks))
        for first in range(0, split.passes, per_task):
            passes = range(first, min(first + per_task, split.passes))
            buckets = split.num_buckets(job.text_bytes)
            yield BlockTask(split.name, index, block, crc, passes, per_file, buckets)


class Bucket(NamedTuple):
    """Some pairs and their tokens."""

    pairs: np.ndarray  # `PAIR` [N]
    ids: np.ndarray  # token ids; B follows A


def token_dtype(recipe: Recipe) -> np.dtype:
    """Returns the dtype of token ids in files."""
    return np.dtype("<u2" if load_tokenizer(recipe).vocab_size <= 1 << 16 else "<u4")


def load_block(recipe: Recipe, task: BlockTask) -> Block:
    """Tokenizes the documents of a task, split into sentences if there is a language."""
    documents = split_documents(task.documents, recipe.language)
    return tokenize_block(documents, load_tokenizer(recipe))


def deal_pairs(
    recipe: Recipe, block: Block, task: BlockTask, passes: range
) -> tuple[np.ndarray, np.ndarray]:
    """Creates the pairs of passes over a block and distributes them over buckets.

    Returns:
      pairs: `PAIR` [N], ranges of the block's ids, sorted by bucket.
      counts: int64 [num_buckets], pairs in each bucket.
    """
    pairs, buckets = [], []
    for number in passes:
        seed = recipe.seed(task.split, "pairs", task.index, number)
        of_pass, rng = pairs_of_block(block, recipe.pairs, seed)
        count = len(of_pass)
        bucket = np.empty(count, np.int64)
        # All buckets get equally many pairs, if possible.
        bucket[rng.permutation(count)] = np.arange(count) + rng.integers(task.num_buckets)
        pairs.append(of_pass)
        buckets.append(bucket % task.num_buckets)
    bucket = np.concatenate(buckets)
    order = np.argsort(bucket, kind="stable")
    return np.concatenate(pairs)[order], np.bincount(bucket, minlength=task.num_buckets)


def gather(ids: np.ndarray, pairs: np.ndarray, dtype: np.dtype) -> Iterator[np.ndarray]:
    """Yields the tokens of pairs, A before B, in several parts."""
    for start in range(0, len(pairs), _GATHERED):
        part = pairs[start : start + _GATHERED]
        starts = np.stack([part["a_start"], part["b_start"]], 1).ravel().astype(np.int64)
        lengths = np.stack([part["a_length"], part["b_length"]], 1).ravel().astype(np.int64)
        before = np.cumsum(lengths) - lengths
        index = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
        yield ids[index].astype(dtype)


def write_block(recipe: Recipe, task: BlockTask, folder: str) -> None:
    """Writes the files of a task that are not complete yet, pairs in the order of their buckets.

    Layout: int64 [num_buckets + 1, 2], pairs and tokens before each bucket; the pairs; the tokens.

    Raises:
      UserError: a file cannot be written.
    """
    block, dtype = load_block(recipe, task), token_dtype(recipe)
    for passes, path in task.files(folder):
        if is_complete(path, task.num_buckets, dtype):
            continue
        pairs, counts = deal_pairs(recipe, block, task, passes)
        ends = np.zeros((task.num_buckets + 1, 2), np.int64)
        ends[1:, 0] = np.cumsum(counts)
        sizes = pairs["a_length"].astype(np.int64) + pairs["b_length"]
        ends[:, 1] = np.concatenate([[0], np.cumsum(sizes)])[ends[:, 0]]
        with files.atomic_write(path, "wb") as stream:
            stream.write(ends.astype("<i8").tobytes())
            stream.write(pairs.tobytes())
            for tokens in gather(block.ids, pairs, dtype):
                stream.write(tokens.tobytes())


def is_complete(path: str, num_buckets: int, dtype: np.dtype) -> bool:
    """Whether a file has as many pairs and tokens as its header states."""
    try:
        pairs, tokens = np.fromfile(path, "<i8", 2, offset=16 * num_buckets)
    except (FileNotFoundError, ValueError):
        return False
    size = 16 * (num_buckets + 1) + pairs * PAIR.itemsize + tokens * dtype.itemsize
    return os.path.getsize(path) == size


def read_bucket(paths: Sequence[str], bucket: int, num_buckets: int, dtype: np.dtype) -> Bucket:
    """Reads one bucket from the files of all blocks, in their order."""
    parts = []
    for path in paths:
        first, start, last, end = np.fromfile(path, "<i8", 4, offset=16 * bucket).tolist()
        [total] = np.fromfile(path, "<i8", 1, offset=16 * num_buckets).tolist()
        at_pairs = 16 * (num_buckets + 1)
        at_tokens = at_pairs + total * PAIR.itemsize
        parts.append((
            np.fromfile(path, PAIR, last - first, offset=at_pairs + first * PAIR.itemsize),
            np.fromfile(path, dtype, end - start, offset=at_tokens + start * dtype.itemsize),
        ))
    return join_buckets(parts, dtype)


def join_buckets(parts: Iterable[tuple[np.ndarray, np.ndarray]], dtype: np.dtype) -> Bucket:
    """Returns one bucket of the pairs and tokens of several; the pairs are ranges of its tokens."""
    pairs, ids = zip((np.zeros(0, PAIR), np.zeros(0, dtype)), *parts, strict=True)
    joined = np.concatenate(pairs)
    sizes = joined["a_length"].astype(np.int64) + joined["b_length"]
    joined["a_start"] = np.cumsum(sizes) - sizes
    joined["b_start"] = joined["a_start"] + joined["a_length"]
    return Bucket(joined, np.concatenate(ids))

