"""Gives a pretrained model another vocabulary; what it knows of shared pieces stays.

A piece of both vocabularies keeps its embedding. One that is new begins with the mean of
the embeddings of the old pieces that its text is cut into, and so as what the model took
that text for before.

Shapes: V pieces, E embedding size.
"""

import dataclasses

import numpy as np

from albert.tokenization import SPIECE_UNDERLINE, FullTokenizer


@dataclasses.dataclass(frozen=True)
class Transfer:
    """What each new piece is made of: the mean of `old[start:end]` of the old pieces."""

    old: np.ndarray  # int64, ids of old pieces, one new piece after another
    counts: np.ndarray  # int64 [V new], how many each has; 0: nothing of it was known
    is_shared: np.ndarray  # bool [V new], pieces of both vocabularies

    def rows(self, table: np.ndarray) -> np.ndarray:
        """Returns the new rows of a table of the old pieces, [V old, ...] to [V new, ...]."""
        ends = np.cumsum(self.counts)
        sums = np.concatenate([np.zeros_like(table[:1], np.float64),
                               np.cumsum(table[self.old], axis=0, dtype=np.float64)])
        totals = sums[ends] - sums[ends - self.counts]
        shape = (-1, *[1] * (table.ndim - 1))
        means = totals / np.maximum(self.counts, 1).reshape(shape)
        unknown = (self.counts == 0).reshape(shape)
        found = np.where(unknown, table.mean(axis=0), means).astype(table.dtype)
        # Exactly, not by way of a sum.
        found[self.is_shared] = table[self.old[(ends - 1)[self.is_shared]]]
        return found


def plan(old: FullTokenizer, new: FullTokenizer) -> Transfer:
    """Returns what the new vocabulary's pieces are made of."""
    # The two kinds of vocabulary name two special pieces otherwise.
    renamed = {} if old.is_spm == new.is_spm else {
        "<pad>": "[PAD]", "<unk>": "[UNK]", "[PAD]": "<pad>", "[UNK]": "<unk>"
    }
    pieces = [new.inv_vocab[i] for i in range(new.vocab_size)]
    pieces = [renamed.get(piece, piece) for piece in pieces]
    is_shared = np.array([piece in old.vocab for piece in pieces])
    strangers = [piece for piece, shared in zip(pieces, is_shared, strict=True) if not shared]
    cut = iter(old.encode_batch([_text_of(piece, new) for piece in strangers]))
    unknown = {old.vocab.get(piece) for piece in ("<unk>", "[UNK]", SPIECE_UNDERLINE)}
    ids = [
        [old.vocab[piece]] if shared else [i for i in next(cut) if i not in unknown]
        for piece, shared in zip(pieces, is_shared, strict=True)
    ]
    counts = np.array([len(one) for one in ids], np.int64)
    return Transfer(np.array([i for one in ids for i in one], np.int64), counts, is_shared)


def _text_of(piece: str, tokenizer: FullTokenizer) -> str:
    if tokenizer.is_spm:
        return piece.replace(SPIECE_UNDERLINE, " ").strip()
    return piece.removeprefix("##")
