"""Gives a pretrained model another vocabulary and keeps the embeddings of shared tokens.

Tokens of both vocabularies keep their embeddings. A new one starts with the mean embedding of the old
tokens into which its text is split, or with one predicted from its co-occurrence with other tokens.

Shapes: V vocabulary size, E embedding size.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from albert.storage import files
from albert.tokenization import SPIECE_UNDERLINE, FullTokenizer

# Relative to the mean variance of a dimension; results are the same from 0.01 to 1.
RIDGE = 0.1


@dataclasses.dataclass(frozen=True)
class Transfer:
    """For each new token, the old tokens of whose embeddings it is the mean."""

    sources: Sequence[Sequence[int]]  # [V new] of ids of old tokens; may be empty
    is_shared: np.ndarray  # bool [V new]: tokens of both vocabularies

    def rows(self, table: np.ndarray) -> np.ndarray:
        """Returns the table of the new tokens, [V new, ...], from one of the old, [V old, ...]."""
        mean = table.mean(axis=0)
        rows = [
            table[ids].mean(axis=0, dtype=np.float64) if ids else mean for ids in self.sources
        ]
        return np.array(rows, table.dtype)

    def is_predicted(self, vectors: np.ndarray | None) -> np.ndarray:
        """Returns, bool [V new], which tokens `predicted` gives another embedding."""
        if vectors is None:
            return np.zeros(len(self.is_shared), bool)
        has_vector = ~np.isnan(vectors).any(axis=1)
        # Without shared tokens there is nothing to predict from.
        return ~self.is_shared & has_vector & (self.is_shared & has_vector).any()

    def predicted(self, table: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Replaces the embeddings of new tokens by a linear function of their vectors.

        It is the ridge regression from vectors to embeddings over the tokens of both vocabularies.

        Args:
          table: [V new, E], from `rows`.
          vectors: [V new, D]; NaN for tokens that keep their embedding.
        """
        new, known = self.is_predicted(vectors), self.is_shared & ~np.isnan(vectors).any(axis=1)
        if not new.any():
            return table
        x, y = vectors[known], table[known]
        x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
        square = (x - x_mean).T @ (x - x_mean)
        penalty = RIDGE * np.trace(square) / len(square) * np.eye(len(square))
        weights = np.linalg.solve(square + penalty, (x - x_mean).T @ (y - y_mean))
        result = table.copy()
        result[new] = y_mean + (vectors[new] - x_mean) @ weights
        return result


def plan(old: FullTokenizer, new: FullTokenizer) -> Transfer:
    """Returns which old tokens initialize the tokens of a new vocabulary."""
    # The two kinds of vocabulary name two special tokens differently.
    renamed = {} if old.is_spm == new.is_spm else {
        "<pad>": "[PAD]", "<unk>": "[UNK]", "[PAD]": "<pad>", "[UNK]": "<unk>"
    }
    tokens = [new.inv_vocab[i] for i in range(new.vocab_size)]
    tokens = [renamed.get(token, token) for token in tokens]
    is_shared = np.array([token in old.vocab for token in tokens])
    texts = [_text_of(token, new) for token in tokens if token not in old.vocab]
    encoded = iter(old.encode_batch(texts))
    unknown = {old.vocab.get(token) for token in ("<unk>", "[UNK]", SPIECE_UNDERLINE)}
    sources = [
        [old.vocab[token]] if token in old.vocab
        else [i for i in next(encoded) if i not in unknown]
        for token in tokens
    ]
    return Transfer(sources, is_shared)


def _text_of(token: str, tokenizer: FullTokenizer) -> str:
    if tokenizer.is_spm:
        return token.replace(SPIECE_UNDERLINE, " ").strip()
    return token.removeprefix("##")


_LINES = 4096  # tokenized at once


def write_used(tokenizer: FullTokenizer, corpus: str, prefix: str) -> int:
    """Writes the part of a vocabulary that a text uses: PREFIX.model or PREFIX.txt.

    Special tokens and single characters stay, so that any text can still be read.

    Args:
      corpus: a text file in UTF-8.

    Returns:
      its number of entries, in their former order.
    """
    is_used = np.zeros(len(tokenizer.vocab), bool)
    is_used[list(tokenizer.special_ids)] = True
    for token, i in tokenizer.vocab.items():
        is_used[i] |= len(token.removeprefix("##").removeprefix(SPIECE_UNDERLINE)) <= 1
    with open(corpus, encoding="utf-8") as stream:
        while lines := list(itertools.islice(stream, _LINES)):
            is_used[tokenizer.encode_flat(lines)[0]] = True
    if tokenizer.is_spm:
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto.FromString(
            tokenizer.sp_model.serialized_model_proto())
        used = [piece for piece, keep in zip(model.pieces, is_used) if keep or piece.type != 1]
        del model.pieces[:]
        model.pieces.extend(used)
        with files.atomic_write(f"{prefix}.model", "wb") as stream:
            stream.write(model.SerializeToString(deterministic=True))
        return len(used)
    with files.atomic_write(f"{prefix}.txt") as stream:
        stream.writelines(f"{token}\n" for token, i in tokenizer.vocab.items() if is_used[i])
    return int(is_used.sum())
