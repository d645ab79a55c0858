"""Gives a pretrained model another vocabulary and keeps the embeddings of shared tokens.

Tokens of both vocabularies keep their embeddings. A new one starts with the mean embedding of the old
tokens into which its text is split, since the model has read that text as these tokens.

Shapes: V vocabulary size, E embedding size.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert.tokenization import SPIECE_UNDERLINE, FullTokenizer


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
