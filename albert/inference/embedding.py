"""Embeddings of texts. No TensorFlow at import.

Legend: B batch, L sequence, D size of an embedding.
"""

from albert.errors import CheckpointError
from albert.inference.session import Batch, Predictor, Session

POOLINGS = ("pooled", "cls", "mean")
_POOLER = "bert/pooler/dense/kernel"


class Embedder(Predictor):
    """Computes embeddings of texts. An answer has `vector` [D].

    Args:
      pooling: one of `POOLINGS`, see `albert.extract_features`.
    """

    def __init__(self, session: Session, pooling: str):
        self.session, self.pooling = session, pooling

    @property
    def key(self):
        return Embedder, self.pooling

    def load_model(self):
        source = self.session.source
        if self.pooling == "pooled" and _POOLER not in source.weights().shapes:
            raise CheckpointError(
                f"{source.path} has no trained {_POOLER}: choose another pooling"
            )
        return self.session.encoder()

    def encode(self, inputs):
        rows = [self.session.row(ids) for ids in self.session.tokenizer.encode_batch(inputs)]
        return Batch([[row] for row, _ in rows], num_cut=sum(is_cut for _, is_cut in rows))

    def compute(self, model, batch):
        """Returns `vector` [B, D]."""
        ops, outputs = self.session.ops, model(batch, training=False)
        if self.pooling == "pooled":
            return {"vector": ops.array(outputs["pooled_output"], "float32")}
        states = ops.array(outputs["sequence_output"], "float32")
        if self.pooling == "cls":
            return {"vector": states[:, 0]}
        mask = ops.array(batch["input_mask"], "float32")[:, :, None]
        return {"vector": ops.sum(states * mask, axis=1) / ops.sum(mask, axis=1)}

    def decode(self, context, outputs):
        for (one,) in outputs:
            yield one
