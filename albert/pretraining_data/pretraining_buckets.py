"""The two stages of making pre-training records that run in worker processes.

`spill_block` tokenises a block, pairs its segments for some of the passes and
deals the pairs out to buckets, in a temporary file. `finish_bucket` gathers
one bucket from all those files, shuffles, masks and serialises it. Both draw
random numbers that depend on the seed and on what they work at, never on the
process: together they give the same bytes however the work is divided.

What is written is noted as done beside it when it is whole and on the disk, and
not made again if it is still there: so a run goes on with what a killed one left.
"""

import contextlib
import dataclasses
import functools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from albert.data import files, records
from albert.data.records import FeatureSpec
from albert.data.seeds import child_seed
from albert.errors import DataError, UserError
from albert.pretraining_data import masking, pair_records
from albert.pretraining_data.documents import (
    Document,
    HeldOut,
    PairSettings,
    create_pairs,
    tokenize_block,
    truncate_pairs,
)
from albert.pretraining_data.masking import MaskingSettings
from albert.tokenization import FullTokenizer

LAYOUT = 2  # of the temporary files: those of another are not gone on with
_BATCH = 1024  # instances masked and serialised together
PAIR_NUMBERS = 4  # int32 of a spilled pair beside its tokens
_PAIR_BYTES = 4 * PAIR_NUMBERS
_STOP_FILE = "stop"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides the content of the records, but the text."""

    pairs: PairSettings
    masking: MaskingSettings
    vocab_file: str | None
    spm_model_file: str | None
    vocabulary_sha256: str  # of the one in use: a file that changed is read anew
    do_lower_case: bool
    random_seed: int
    static_masks: bool = True  # masks are in the records, not drawn when they are read

    @property
    def vocabulary(self) -> str:
        """The file in use."""
        return self.spm_model_file or self.vocab_file

    def feature_spec(self) -> FeatureSpec:
        """Returns the features of a record: as the original wrote them, or a pair's."""
        length = self.pairs.max_seq_length
        if not self.static_masks:
            return FeatureSpec(pair_records.pair_features(length))
        return FeatureSpec(
            pair_records.masked_features(length, self.masking.num_predictions, with_boundary=True)
        )


@dataclasses.dataclass
class TrainingInstance:
    """One pair with its predictions, for people to read."""

    tokens: list[str]
    segment_ids: list[int]
    masked_lm_positions: list[int]
    masked_lm_labels: list[str]
    is_random_next: bool
    token_boundary: list[int]
    lost: int = dataclasses.field(default=0, repr=False)  # tokens that were cut off

    def __str__(self) -> str:
        lines = []
        for field in filter(lambda field: field.repr, dataclasses.fields(self)):
            value = getattr(self, field.name)
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            lines.append(f"{field.name}: {text}")
        return "\n".join(lines) + "\n"


class StoppedError(Exception):
    """The main process asked for an end."""


_loaded: dict[tuple, FullTokenizer] = {}  # the last one, by what its vocabulary holds


def _tokenizer_key(recipe: Recipe) -> tuple:
    return recipe.vocabulary_sha256, recipe.do_lower_case, bool(recipe.spm_model_file)


def has_tokenizer(recipe: Recipe) -> bool:
    """Whether this process has read the tokenizer."""
    return _tokenizer_key(recipe) in _loaded


def load_tokenizer(recipe: Recipe, vocabulary: str | None = None) -> FullTokenizer:
    """Returns the tokenizer, read once in every process.

    Args:
      vocabulary: where its file is on this machine, if not where the recipe says.
    """
    key = _tokenizer_key(recipe)
    tokenizer = _loaded.get(key)
    if tokenizer is None:
        path = vocabulary or recipe.vocabulary
        names = (None, path) if recipe.spm_model_file else (path, None)
        tokenizer = FullTokenizer(names[0], recipe.do_lower_case, names[1])
        _loaded.clear()
        _loaded[key] = tokenizer
    return tokenizer


@functools.lru_cache(maxsize=1)
def load_pieces(recipe: Recipe) -> masking.Pieces:
    """Returns what masking needs to know of the vocabulary."""
    tokenizer = load_tokenizer(recipe)
    is_start = np.array(tokenizer.start_pieces())
    return masking.Pieces(is_start, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)


def ask_to_stop(directory: str) -> None:
    """Makes the workers of this temporary directory end soon."""
    with open(os.path.join(directory, _STOP_FILE), "w", encoding="utf-8"):
        pass


def _end_if_asked(directory: str) -> None:
    if os.path.exists(os.path.join(directory, _STOP_FILE)):
        raise StoppedError


# === Work that is done ===

_DONE = ".done"


@contextlib.contextmanager
def _write_whole(path: str) -> Iterator[BinaryIO]:
    """Yields a file that becomes `path` when the block ends well, on the disk then."""
    # A process whose owner was killed may write a moment longer: not into the same file.
    own = files.temporary_name(path)
    try:
        with open(own, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(own, path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror})") from error


def _note_done(path: str, result: list) -> None:
    files.write_json(path + _DONE, {"bytes": os.path.getsize(path), "result": result})


def _read_done(path: str) -> list | None:
    """Returns what was noted of a file that is there as it was written, else None."""
    try:
        note = files.read_json_object(path + _DONE)
        return note.get("result") if note.get("bytes") == os.path.getsize(path) else None
    except (DataError, OSError):
        return None


def resume(directory: str) -> int:
    """Prepares a killed run's temporary directory to be gone on with; returns what is done."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, _STOP_FILE))
    return sum(_read_done(os.path.join(directory, name.removesuffix(_DONE))) is not None
               for name in os.listdir(directory) if name.endswith(_DONE))


# === What is made ===

_SMALLEST_BUCKET, _LARGEST_BUCKET = 1 << 20, 64 << 20  # bytes of pairs, about


@dataclasses.dataclass(frozen=True)
class Stream:
    """One set of output files: the training records, or the held-out ones."""

    name: str
    outputs: tuple[str, ...]
    passes: int  # over its documents
    share: float  # of the documents

    def buckets(self, text_bytes: int) -> int:
        """Returns how many buckets the pairs are dealt out to; a multiple of the outputs."""
        # About four bytes of text a token, two bytes for it in a pair, and its pair's.
        estimate = 0.6 * text_bytes * self.share * self.passes
        bucket = min(max(estimate / 64, _SMALLEST_BUCKET), _LARGEST_BUCKET)
        return max(1, round(estimate / bucket / len(self.outputs))) * len(self.outputs)


def choose_held_out(recipe: Recipe, fraction: float) -> HeldOut:
    """Returns the choice of held-out documents."""
    return HeldOut(fraction, child_seed(recipe.random_seed, "held out"))


# === First stage ===


class DealtPairs(NamedTuple):
    """The pairs of some passes over a block, in the order of their buckets."""

    ids: np.ndarray  # tokens of the block
    ranges: np.ndarray  # int64 [n, 5], see `documents.Pair`
    lost: np.ndarray  # int64 [n], tokens that were cut off each pair, or left out before it
    counts: np.ndarray  # int64 [num_buckets], pairs in each bucket

    def table(self, some: slice = slice(None)) -> np.ndarray:
        """Returns length of A, length of B, label and lost tokens of pairs: int32 [n, 4]."""
        ranges = self.ranges[some]
        columns = [_lengths(ranges), ranges[:, 4], self.lost[some]]
        return np.column_stack(columns).astype("<i4")

    def tokens(self, dtype: np.dtype, some: slice = slice(None)) -> np.ndarray:
        """Returns the tokens of pairs, A before B."""
        ranges = self.ranges[some]
        return _ragged(self.ids, ranges[:, [0, 2]], _lengths(ranges)).astype(dtype)

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
    recipe: Recipe,
    stream: str,
    index: int,
    documents: Sequence[Document],
    passes: range,
    num_buckets: int,
    before_pass: Callable[[], None] = lambda: None,
) -> DealtPairs:
    """Returns the pairs of some passes over block `index` of a stream, dealt out to buckets."""
    block = tokenize_block(documents, load_tokenizer(recipe))
    pairs, buckets = [np.zeros((0, 5), np.int64)], [np.zeros(0, np.int64)]
    lost = [np.zeros(0, np.int64)]
    for number in passes:
        before_pass()
        seed = child_seed(recipe.random_seed, stream, "pairs", index, number)
        found = create_pairs(block, recipe.pairs, random.Random(seed))
        rng = np.random.default_rng(seed)
        table = np.array(found, np.int64).reshape(-1, 5)
        pairs.append(
            truncate_pairs(table, recipe.pairs.max_tokens, rng, recipe.pairs.is_swapped_later)
        )
        lost.append((_lengths(table) - _lengths(pairs[-1])).sum(axis=1))
        if recipe.pairs.strict_sentence_order and len(table):
            # They are a pass's, not a pair's: its first one has them.
            lost[-1][0] += _count_unpaired(len(block.ids), table)
        buckets.append(_deal(len(table), num_buckets, rng))
    bucket = np.concatenate(buckets)
    order = np.argsort(bucket, kind="stable")
    counts = np.bincount(bucket, minlength=num_buckets)
    return DealtPairs(block.ids, np.concatenate(pairs)[order], np.concatenate(lost)[order], counts)


class Spill(NamedTuple):
    """A file of pairs in the order of their buckets.

    It holds int32 [n, 4], see `DealtPairs.table`, then the tokens of all pairs, A before B.
    """

    path: str
    pairs: np.ndarray  # int64 [num_buckets], pairs in each bucket
    tokens: np.ndarray  # int64 [num_buckets], their tokens
    token_bytes: int  # bytes of a token

    def section(self, bucket: int) -> "Section":
        """Returns where the pairs of one bucket are."""
        pairs, tokens = int(self.pairs[:bucket].sum()), int(self.tokens[:bucket].sum())
        return Section(
            self.path,
            pairs * _PAIR_BYTES,
            int(self.pairs[bucket]),
            int(self.pairs.sum()) * _PAIR_BYTES + tokens * self.token_bytes,
            int(self.tokens[bucket]),
            self.token_bytes,
        )


class Section(NamedTuple):
    """The pairs of one bucket in one spill."""

    path: str
    table_at: int  # byte where lengths and labels begin
    pairs: int
    tokens_at: int  # byte where tokens begin
    tokens: int
    token_bytes: int


def spill_block(
    recipe: Recipe,
    stream: str,
    index: int,
    documents: Sequence[Document],
    passes: range,
    num_buckets: int,
    path: str,
) -> Spill:
    """Writes the pairs of some passes over block `index` of a stream to `path`.

    Raises:
      UserError: the disk is full; StoppedError: see `ask_to_stop`.
    """
    if done := _read_done(path):
        counts, tokens, token_bytes = done
        return Spill(path, np.array(counts), np.array(tokens), token_bytes)
    pairs = pair_block(
        recipe, stream, index, documents, passes, num_buckets,
        lambda: _end_if_asked(os.path.dirname(path)),
    )
    dtype, tokens = token_type(load_tokenizer(recipe)), pairs.tokens_of_buckets()
    with _write_whole(path) as out:
        out.write(pairs.table().tobytes())
        for start in range(0, len(pairs.ranges), 1 << 14):
            out.write(pairs.tokens(dtype, slice(start, start + (1 << 14))).tobytes())
    _note_done(path, [pairs.counts.tolist(), tokens.tolist(), dtype.itemsize])
    return Spill(path, pairs.counts, tokens, dtype.itemsize)


def _deal(count: int, num_buckets: int, rng: np.random.Generator) -> np.ndarray:
    """Returns a bucket for each pair: random, but as many in each as can be."""
    bucket = np.empty(count, np.int64)
    bucket[rng.permutation(count)] = np.arange(count) + rng.integers(num_buckets)
    return bucket % num_buckets


def _ragged(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns ids[start:start + length] of every range, one after the other."""
    starts, lengths = starts.ravel(), lengths.ravel()
    before = np.cumsum(lengths) - lengths
    return ids[np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))]


# === Second stage ===


class PairFacts(NamedTuple):
    """What there is to say of pairs."""

    labelled: int = 0  # pairs of label 1
    tokens: int = 0  # in pairs
    lost: int = 0  # cut off them, or in none

    @classmethod
    def of(cls, table: np.ndarray) -> "PairFacts":
        """Returns those of a `DealtPairs.table`."""
        return cls(*map(int, (table[:, 2].sum(), table[:, :2].sum(), table[:, 3].sum())))

    def __add__(self, other: "PairFacts") -> "PairFacts":
        return PairFacts(*map(sum, zip(self, other, strict=True)))


class Part(NamedTuple):
    """A finished bucket: framed records in a file of their own."""

    path: str
    records: int
    bytes: int
    examples: list[str]  # the first instances, printed
    blocks: list[tuple[int, int]]  # (records, bytes) of successive parts of it
    facts: Sequence[int]  # `PairFacts`


def finish_bucket(
    recipe: Recipe,
    stream: str,
    bucket: int,
    sections: Sequence[Section],
    path: str,
    examples: int = 0,
) -> Part:
    """Shuffles, masks and serialises one bucket into `path`; prints the first `examples`.

    Args:
      sections: the bucket's pairs in every spill, in order; one at least.

    Raises:
      UserError: the disk is full; StoppedError: see `ask_to_stop`.
    """
    if done := _read_done(path):
        return Part(path, *done)
    table, ids = _read_bucket(sections)
    blocks, printed = [], []
    with _write_whole(path) as out:
        for content, count, texts in frame_bucket(recipe, stream, bucket, table, ids, examples):
            _end_if_asked(os.path.dirname(path))
            blocks.append((count, out.write(content)))
            printed += texts
    size = sum(size for _, size in blocks)
    done = [len(table), size, printed, blocks, PairFacts.of(table)]
    _note_done(path, done)
    return Part(path, *done)


def frame_bucket(
    recipe: Recipe,
    stream: str,
    bucket: int,
    table: np.ndarray,
    ids: np.ndarray,
    examples: int = 0,
) -> Iterator[tuple[bytes, int, list[str]]]:
    """Yields (framed records, how many, instances for people to read) of a bucket, shuffled.

    Args:
      table: int64 [n, 4], see `DealtPairs.table`, of all blocks in order.
      ids: their tokens.
    """
    rng = np.random.default_rng(child_seed(recipe.random_seed, stream, "bucket", bucket))
    starts = np.cumsum(table[:, 0] + table[:, 1]) - table[:, 0] - table[:, 1]
    order, spec = rng.permutation(len(table)), recipe.feature_spec()
    for first in range(0, len(order), _BATCH):
        rows = order[first : first + _BATCH]
        batch = make_features(recipe, ids, starts[rows], table[rows], rng)
        texts = [_describe(recipe, batch, row) for row in range(min(len(rows), examples))]
        examples -= len(texts)
        yield records.frame_examples(batch, spec), len(rows), texts


def _read_bucket(sections: Sequence[Section]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (`DealtPairs.table` [n, 4], tokens) of a bucket."""
    tables, tokens = [], []
    for section in sections:
        with open(section.path, "rb") as stream:
            stream.seek(section.table_at)
            table = np.frombuffer(stream.read(section.pairs * _PAIR_BYTES), "<i4")
            stream.seek(section.tokens_at)
            size = section.token_bytes
            tokens.append(np.frombuffer(stream.read(section.tokens * size), f"<u{size}"))
        tables.append(table.reshape(-1, PAIR_NUMBERS))
    return np.concatenate(tables).astype(np.int64), np.concatenate(tokens)


def make_features(
    recipe: Recipe,
    ids: np.ndarray,
    starts: np.ndarray,
    table: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Returns the features of B records: see `Recipe.feature_spec`.

    Args:
      ids: tokens, A before B of every pair.
      starts: [B], where each pair begins in `ids`.
      table: [B, 4], see `DealtPairs.table`.
    """
    pieces, column = load_pieces(recipe), np.arange(recipe.pairs.max_seq_length)
    length_a, lengths = table[:, :1], (table[:, 0] + table[:, 1] + 3)[:, None]
    in_b = column > length_a + 1
    inside = column < lengths
    source = np.clip(starts[:, None] + column - 1 - in_b, 0, len(ids) - 1)
    unmasked = np.where(inside, ids[source], 0).astype(np.int64)
    unmasked[:, 0] = pieces.cls_id
    unmasked[(column == length_a + 1) | (column == lengths - 1)] = pieces.sep_id
    boundary = masking.token_boundaries(unmasked, lengths[:, 0], pieces)
    segments, labels = table[:, :2].astype(np.int64), table[:, 2:3].astype(np.int64)
    told = {"token_boundary": boundary, "segment_lengths": segments}
    if not recipe.static_masks:
        return told | {"input_ids": unmasked, "next_sentence_labels": labels}
    keys = masking.draw_keys(len(table), rng)
    return told | pair_records.mask_rows(
        unmasked, segments, boundary, labels, pieces.specials, recipe.masking, keys
    )


def _describe(recipe: Recipe, batch: dict[str, np.ndarray], row: int) -> str:
    names = load_tokenizer(recipe).convert_ids_to_tokens
    in_a, in_b = batch["segment_lengths"][row].tolist()
    length, count = in_a + in_b + 3, 0
    if recipe.static_masks:
        count = int(batch["masked_lm_weights"][row].sum())

    def masked(feature: str) -> list[int]:
        return batch[feature][row, :count].tolist() if count else []

    return str(TrainingInstance(
        tokens=names(batch["input_ids"][row, :length]),
        segment_ids=[0] * (in_a + 2) + [1] * (in_b + 1),
        masked_lm_positions=masked("masked_lm_positions"),
        masked_lm_labels=names(masked("masked_lm_ids")),
        is_random_next=bool(batch["next_sentence_labels"][row, 0]),
        token_boundary=batch["token_boundary"][row, :length].tolist(),
    ))
