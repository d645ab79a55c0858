"""Embeddings of texts. No TensorFlow at import.

Legend: B batch, L sequence, D size of an embedding.
"""

from typing import Any

import numpy as np

from albert.errors import CheckpointError
from albert.formats import sentence_files
from albert.inference.predictor import Batch, Predictor

POOLINGS = ("mean", "cls", "pooled")
_POOLER = "bert/pooler/dense/kernel"


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Scales vectors to the length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


class Embedder(Predictor):
    """Computes embeddings of texts. An answer has `vector` [D].

    Args:
      pooling: one of `POOLINGS`, see `albert.extract_features`; by default the model's own, else
        the mean.

    Raises:
      CheckpointError: the model's own is not supported.
    """

    class_name = "AlbertModel"

    def __init__(self, session: Any, pooling: str | None):
        own = session.source.metadata.pooling or "mean"
        if not pooling and own not in (*sentence_files.SUPPORTED, *POOLINGS):
            raise CheckpointError(f"{session.source.path} makes embeddings by {own!r}, which is not "
                                  f"supported: choose a pooling, {', '.join(POOLINGS)}")
        self.session, (self.pooling, *rest) = session, (pooling or own).split("+")
        self.is_normalized = bool(rest)
        self.size = session.source.config.hidden_size

    def model(self):
        source = self.session.source
        if self.pooling == "pooled" and _POOLER not in source.weights().shapes:
            raise CheckpointError(
                f"{source.path} has no trained {_POOLER}: choose another pooling"
            )
        return super().model()

    def encode(self, inputs):
        texts = self.session.tokenizer.encode_batch(inputs)
        rows = [self.session.row(ids) for ids in texts]
        return Batch([[row] for row, _ in rows], None, sum(is_cut for _, is_cut in rows))

    def compute(self, model, batch):
        """Returns `vector` [B, D]."""
        outputs = model(batch)
        if self.pooling == "pooled":
            return {"vector": outputs["pooled_output"]}
        states, mask = outputs["sequence_output"], batch["input_mask"].astype(np.float32)
        if self.pooling == "cls":
            mask[:, 1:] = 0
        vectors = np.einsum("blh,bl->bh", states, mask) / mask.sum(axis=1, keepdims=True)
        return {"vector": _unit(vectors) if self.is_normalized else vectors}

    def decode(self, context, outputs):
        for (one,) in outputs:
            yield one
