"""Predicts the most likely tokens for each [MASK] of a text. No TensorFlow at import.

Legend: B batch, L sequence, P masks, K tokens.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert.albert_tokenizer import AlbertTokenizer
from albert.errors import CheckpointError, DataError, FlagError
from albert.formats.model_classes import MODEL_CLASSES
from albert.inference.predictor import Batch, Predictor, masked_logits, numbers, softmax

MASK = "[MASK]"
_HEAD = MODEL_CLASSES["AlbertForMaskedLM"].weight


class MaskFiller(Predictor):
    """Predicts the most likely tokens for each [MASK].

    An input is a text and its name in errors. An answer has, for each [MASK], a list of
    `{"piece", "id", "probability"}`.

    Raises:
      FlagError: the vocabulary has fewer than `top_k` tokens.
    """

    class_name = "AlbertForMaskedLM"

    def __init__(self, session: Any, top_k: int):
        vocab_size = session.tokenizer.vocab_size  # the model may have further rows
        if not 1 <= top_k <= vocab_size:
            raise FlagError(f"top_k={top_k}: the vocabulary has {vocab_size} tokens")
        self.session, self.top_k = session, top_k
        self._tokenizer = AlbertTokenizer(session.tokenizer, session.max_seq_length)

    def model(self):
        source = self.session.source
        if _HEAD not in source.weights().shapes:
            raise CheckpointError(f"{source.path} has no masked-LM head, that is, it has no trained "
                                  f"{_HEAD}: it was trained for something else")
        return super().model()

    def encode(self, inputs: Sequence[tuple[str, str]]) -> Batch:
        """Encodes texts.

        Raises:
          DataError: a text has no [MASK], or is too long.
        """
        rows = [_row(self._tokenizer, text, origin) for text, origin in inputs]
        counts = [len(row["masked_lm_positions"]) for row in rows]
        width = max(counts, default=1)
        for row, count in zip(rows, counts, strict=True):
            # [P, 1], so that they aren't padded like arrays [L]
            positions = np.pad(row["masked_lm_positions"], (0, width - count))
            row["masked_lm_positions"] = positions[:, None]
        return Batch([[row] for row in rows], counts)

    def compute(self, model, batch):
        logits = masked_logits(model, batch)[..., : self.session.tokenizer.vocab_size]  # [B, P, V]
        best = np.argpartition(-logits, self.top_k - 1)[..., : self.top_k]  # in any order
        order = np.argsort(-np.take_along_axis(logits, best, -1))  # probabilities may be equal
        ids = np.take_along_axis(best, order, -1)  # [B, P, K]
        return {"ids": ids, "probabilities": np.take_along_axis(softmax(logits), ids, -1)}

    def decode(self, context, outputs):
        for count, (one,) in zip(context, outputs, strict=True):
            pairs = zip(one["ids"], one["probabilities"], strict=True)
            yield [self._tokens(*pair) for pair in itertools.islice(pairs, count)]

    def _tokens(self, ids: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
        tokens = self.session.tokenizer.convert_ids_to_tokens(ids)
        return [
            {"piece": token, "id": int(i), "probability": p}
            for token, i, p in zip(tokens, ids, numbers(probabilities), strict=True)
        ]


def require_mask(text: str, origin: str) -> None:
    """Raises a DataError for a text without a [MASK]."""
    if MASK not in text:
        raise DataError(f"{origin}: no {MASK} in the text: {text!r:.80}")


def _row(tokenizer: AlbertTokenizer, text: str, origin: str) -> dict[str, Any]:
    require_mask(text, origin)
    length, limit = len(tokenizer.encode(text)), tokenizer.model_max_length
    if length > limit:
        raise DataError(f"{origin}: {length} tokens with [CLS] and [SEP], at most {limit} fit")
    row: dict[str, Any] = {n: np.asarray(v, np.int32) for n, v in tokenizer(text).items()}
    (row["masked_lm_positions"],) = np.nonzero(row["input_ids"] == tokenizer.tokenizer.mask_id)
    return row
