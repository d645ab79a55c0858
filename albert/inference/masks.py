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


def likeliest_pieces(
    session: Session, texts: Sequence[str], places: Sequence[str], top_k: int
) -> Iterator[list[list[dict[str, Any]]]]:
    """Yields for each text, for each [MASK], its likeliest pieces with their probabilities.

    `places` tell where each text is from. A DataError names the place of a text that is too long.
    """
    from keras import ops

    tokenizer = AlbertTokenizer(session.tokenizer, session.max_seq_length)
    rows = [_row(tokenizer, text, place) for text, place in zip(texts, places, strict=True)]
    most = max(len(row["masked_lm_positions"]) for row in rows)
    for row in rows:
        missing = most - len(row["masked_lm_positions"])
        # [P, 1], so that it is not padded like the rows of L places
        row["masked_lm_positions"] = np.pad(row["masked_lm_positions"], (0, missing))[:, None]
    model = session.load("AlbertForMaskedLM")

    def compute(batch):
        positions = batch["masked_lm_positions"][..., 0]  # [B, P]
        outputs = model({**batch, "masked_lm_positions": positions}, training=False)
        logits = ops.cast(outputs["prediction_logits"], "float32")
        _, ids = ops.top_k(logits, top_k)  # [B, P, K]; probabilities may be equal
        likely = ops.take_along_axis(ops.softmax(logits), ids, axis=-1)
        return {"ids": ids, "probabilities": likely}

    counts = iter(text.count(MASK) for text in texts)
    for _, outputs in session.outputs(rows, lambda some: [[row] for row in some], compute):
        for (found,) in outputs:
            pairs = zip(found["ids"], found["probabilities"], strict=True)
            yield [_pieces(session, *pair) for pair in itertools.islice(pairs, next(counts))]


def _row(tokenizer: AlbertTokenizer, text: str, place: str) -> dict[str, Any]:
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
