"""What a model puts in the place of each [MASK] of a text. No TensorFlow at import.

Legend: B batch, P masks, K pieces.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from albert.albert_tokenizer import AlbertTokenizer
from albert.errors import DataError
from albert.inference.session import Session, numbers

MASK = "[MASK]"


class MaskFiller:
    """The likeliest pieces in the place of each [MASK]."""

    def __init__(self, session: Session, top_k: int):
        self.session, self.top_k = session, top_k
        self._tokenizer = AlbertTokenizer(session.tokenizer, session.max_seq_length)

    def fill(
        self, texts: Sequence[str], places: Sequence[str]
    ) -> Iterator[list[list[dict[str, Any]]]]:
        """Yields for each text, for each [MASK], its likeliest pieces with their probabilities.

        Args:
          places: where each text is from.

        Raises:
          DataError: a text has no [MASK], or is too long; names its place.
        """
        rows = [_row(self._tokenizer, *pair) for pair in zip(texts, places, strict=True)]
        counts = [len(row["masked_lm_positions"]) for row in rows]
        # A power of two, so that few shapes are compiled.
        width = 1 << (max(counts, default=1) - 1).bit_length()
        for row, count in zip(rows, counts, strict=True):
            missing = width - count
            # [P, 1], so that it is not padded like the rows of L places
            row["masked_lm_positions"] = np.pad(row["masked_lm_positions"], (0, missing))[:, None]
        for_each = iter(counts)
        def encode(some):
            return [[row] for row in some], None

        compute = self.session.once((MaskFiller, self.top_k), self._computer)
        for _, outputs in self.session.outputs(rows, encode, compute):
            for (found,) in outputs:
                pairs = zip(found["ids"], found["probabilities"], strict=True)
                chosen = itertools.islice(pairs, next(for_each))
                yield [_pieces(self.session, *pair) for pair in chosen]

    def _computer(self):
        from keras import ops

        model = self.session.load("AlbertForMaskedLM")

        def compute(batch):
            positions = batch["masked_lm_positions"][..., 0]  # [B, P]
            outputs = model({**batch, "masked_lm_positions": positions}, training=False)
            logits = ops.cast(outputs["prediction_logits"], "float32")
            _, ids = ops.top_k(logits, self.top_k)  # [B, P, K]; probabilities may be equal
            likely = ops.take_along_axis(ops.softmax(logits), ids, axis=-1)
            return {"ids": ids, "probabilities": likely}

        return self.session.computer(compute)


def require_mask(text: str, place: str) -> None:
    """Raises a DataError for a text without a [MASK]."""
    if MASK not in text:
        raise DataError(f"{place}: no {MASK} in the text: {text!r:.80}")


def _row(tokenizer: AlbertTokenizer, text: str, place: str) -> dict[str, Any]:
    require_mask(text, place)
    length, most = len(tokenizer.encode(text)), tokenizer.model_max_length
    if length > most:
        raise DataError(f"{place}: {length} pieces with [CLS] and [SEP], {most} are the most")
    row: dict[str, Any] = {name: values[0] for name, values in tokenizer(text).items()}
    (row["masked_lm_positions"],) = np.nonzero(row["input_ids"] == tokenizer.tokenizer.mask_id)
    return row


def _pieces(session: Session, ids: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
    pieces = session.tokenizer.convert_ids_to_tokens(ids)
    return [
        {"piece": piece, "id": int(i), "probability": p}
        for piece, i, p in zip(pieces, ids, numbers(probabilities), strict=True)
    ]
