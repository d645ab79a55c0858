"""Initial token embeddings for pretraining, from the co-occurrence of tokens in the records.

They are a truncated singular value decomposition of the positive pointwise mutual information of
neighbouring tokens (Levy and Goldberg 2014); context counts are smoothed, and nearer tokens count
more, as recommended by Levy, Goldberg and Dagan 2015.

Legend: B batch, L sequence, V vocabulary, E embedding size.
"""

import logging
from collections.abc import Collection, Iterator

import numpy as np

from albert.config import AlbertConfig
from albert.errors import DataError
from albert.pretraining_data.features import masked_features, pair_features
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles
from albert.runtime.progress import Progress

NAME = "bert/embeddings/word_embeddings"
log = logging.getLogger("albert")

WINDOW = (1.0, 0.8, 0.6, 0.4, 0.3)  # weight of the next token, the one after it, ...
SMOOTHING = 0.75  # power of the context counts
STANDARD_DEVIATION = 0.06  # of all values
MAX_TOKENS = 20_000_000  # to count; takes a minute and at most 2 GB
_ADDED_AT_ONCE = 4_000_000  # pairs of tokens


def feature_spec(source: RecordFiles) -> FeatureSpec:
    """Returns the features of records, with or without masks, according to their manifests."""
    length, count = map(source.length_of, ("input_ids", "masked_lm_positions"))
    if length is None:
        raise DataError(f"{source}: no records of create_pretraining_data with their manifests, or "
                        "of different lengths: make records of one length from the text")
    features = masked_features(length, count) if count else pair_features(length)
    return FeatureSpec(features, row_length=length)


def initial_embeddings(
    source: RecordFiles, spec: FeatureSpec, special_ids: Collection[int], config: AlbertConfig, seed: int
) -> np.ndarray:
    """Returns [V, E]; tokens without an embedding have a random one, as usual."""
    values = embeddings(source, spec, special_ids, config.vocab_size, config.embedding_size, seed)
    scale = config.initializer_range
    random = np.random.default_rng(seed).normal(0.0, scale, values.shape).clip(-2 * scale, 2 * scale)
    return np.where(np.isnan(values), random, values).astype(np.float32)


def embeddings(
    source: RecordFiles, spec: FeatureSpec, special_ids: Collection[int], vocab_size: int,
    embedding_size: int, seed: int,
) -> np.ndarray:
    """Returns [V, E]; NaN for special tokens and tokens that do not occur.

    Args:
      source: training records, with or without masks.
      spec: their features.

    Raises:
      DataError: a record is damaged.
    """
    counts = _count(source, spec, special_ids, vocab_size)
    vectors = _decompose(_ppmi(counts), min(embedding_size, vocab_size - 1), seed)
    occurs = np.asarray(counts.sum(axis=1)).ravel() > 0
    vectors -= vectors[occurs].mean(axis=0)
    vectors *= STANDARD_DEVIATION / vectors[occurs].std()
    result = np.full((vocab_size, embedding_size), np.nan, np.float32)
    result[np.ix_(occurs, range(vectors.shape[1]))] = vectors[occurs]
    return result


def _count(source: RecordFiles, spec: FeatureSpec, special_ids: Collection[int], vocab_size: int):
    """Returns the symmetric sparse matrix [V, V] of weighted counts."""
    import scipy.sparse

    total = scipy.sparse.csr_array((vocab_size, vocab_size), dtype=np.float32)
    special = np.isin(np.arange(vocab_size), list(special_ids))
    ones: list[np.ndarray] = []
    others: list[np.ndarray] = []
    weights: list[np.ndarray] = []

    def add_up(total):
        if not ones:
            return total
        pairs = np.concatenate(ones), np.concatenate(others)
        part = scipy.sparse.coo_array((np.concatenate(weights), pairs), total.shape)
        for each in (ones, others, weights):
            each.clear()
        return total + part.tocsr()

    progress, tokens = Progress("counted", None, "tokens"), 0
    for ids in sequences(source, spec, vocab_size):  # [B, L]
        segment = np.cumsum(special[ids], axis=1)  # no special token is between equal numbers
        is_word = ~special[ids]
        for distance, weight in enumerate(WINDOW, 1):
            near = is_word[:, :-distance] & (segment[:, :-distance] == segment[:, distance:])
            ones.append(ids[:, :-distance][near])
            others.append(ids[:, distance:][near])
            weights.append(np.full(len(ones[-1]), weight, np.float32))
        tokens += int(is_word.sum())
        progress.update(tokens)
        if sum(map(len, ones)) >= _ADDED_AT_ONCE:
            total = add_up(total)
        if tokens >= MAX_TOKENS:
            break
    progress.clear()
    log.info("counted the co-occurrence of %s tokens", f"{tokens:,}")
    total = add_up(total)
    return total + total.T


def sequences(source: RecordFiles, spec: FeatureSpec, vocab_size: int) -> Iterator[np.ndarray]:
    """Yields the ids [B, L] of each block of records before masking."""
    for number in range(len(source.blocks.records)):
        features = source.read_block(number, spec, vocab_size)
        ids = features["input_ids"].astype(np.int64)
        if "masked_lm_positions" in features:
            rows, slots = np.nonzero(features["masked_lm_weights"])
            positions = features["masked_lm_positions"][rows, slots]
            ids[rows, positions] = features["masked_lm_ids"][rows, slots]
        yield ids


def _ppmi(counts):
    """Returns max(0, log(n_ij / (n_i p_j))), p_j the smoothed probability of context j."""
    import scipy.sparse

    sums = np.asarray(counts.sum(axis=1)).ravel().astype(np.float64)
    smoothed = sums**SMOOTHING
    smoothed /= max(smoothed.sum(), 1.0)
    entries = counts.tocoo()
    i, j = entries.coords
    values = np.log(entries.data / (sums[i] * smoothed[j]))
    keep = values > 0
    return scipy.sparse.csr_array((values[keep].astype(np.float32), (i[keep], j[keep])), counts.shape)


def _decompose(matrix, size: int, seed: int) -> np.ndarray:
    """Returns U sqrt(S) [V, size] of the truncated singular value decomposition U S V^T."""
    from scipy.sparse.linalg import svds

    start = np.random.default_rng(seed).standard_normal(matrix.shape[0])
    u, s, _ = svds(matrix, k=min(size, matrix.shape[0] - 1), v0=start, return_singular_vectors="u")
    return (u * np.sqrt(s)).astype(np.float32)
