"""Embeddings of texts. No TensorFlow at import.

Legend: B batch, L sequence, D size of an embedding.
"""

from collections.abc import Sequence

from albert.errors import CheckpointError, FlagError
from albert.inference.session import Batch, Predictor, Session

POOLINGS = ("pooled", "cls", "mean")
_POOLER = "bert/pooler/dense/kernel"


class Embedder(Predictor):
    """Computes embeddings of texts. An answer has `vector` [D] and `input_ids` [L].

    Args:
      pooling: one of `POOLINGS`, see `albert.extract_features`.
      layers: layers that are concatenated, except for "pooled"; 1 is the first, -1 the last.
      with_tokens: whether to add the tokens, `pieces`, and their embeddings, `tokens` [L, D].

    Raises:
      FlagError: the model does not have these layers.
    """

    def __init__(
        self, session: Session, pooling: str, layers: Sequence[int] = (-1,),
        with_tokens: bool = False,
    ):
        self.session, self.pooling, self.with_tokens = session, pooling, with_tokens
        config = session.source.config
        count = config.num_hidden_layers * config.inner_group_num
        if not layers or not all(1 <= abs(layer) <= count for layer in layers):
            listed = ",".join(map(str, layers))
            raise FlagError(f"--layers={listed}: {session.source.path} has {count} layers")
        # Counted from the end, because layers in a loop return only the last one's states.
        self._layers = tuple(layer if layer < 0 else layer - 1 - count for layer in layers)
        has_states = pooling != "pooled" or with_tokens
        self._reads_all = has_states and set(self._layers) != {-1}

    @property
    def key(self):
        return Embedder, self.pooling, self._layers, self.with_tokens

    def load_model(self):
        source = self.session.source
        if self.pooling == "pooled" and _POOLER not in source.weights().shapes:
            raise CheckpointError(
                f"{source.path} has no trained {_POOLER}: choose another pooling"
            )
        if self._reads_all:
            return self.session.load("AlbertModel", complete=False, all_states=True)
        return self.session.encoder()

    def encode(self, inputs):
        rows = [self.session.row(ids) for ids in self.session.tokenizer.encode_batch(inputs)]
        return Batch([[row] for row, _ in rows], rows, sum(is_cut for _, is_cut in rows))

    def compute(self, model, batch):
        """Returns `vector` [B, D] and, if requested, `tokens` [B, L, D]."""
        ops = self.session.ops
        outputs = model(batch, training=False, output_hidden_states=self._reads_all)
        if self.pooling == "pooled":
            vector = ops.array(outputs["pooled_output"], "float32")
            if not self.with_tokens:
                return {"vector": vector}
        states = outputs.get("encoder_outputs") or [outputs["sequence_output"]]
        chosen = ops.concatenate([states[i] for i in self._layers], axis=-1)
        chosen = ops.array(chosen, "float32")
        if self.pooling == "cls":
            vector = chosen[:, 0]
        elif self.pooling == "mean":
            mask = ops.array(batch["input_mask"], "float32")[:, :, None]
            vector = ops.sum(chosen * mask, axis=1) / ops.sum(mask, axis=1)
        return {"vector": vector} | ({"tokens": chosen} if self.with_tokens else {})

    def decode(self, context, outputs):
        for (row, _), (one,) in zip(context, outputs, strict=True):
            ids = row["input_ids"]
            answer = {**one, "input_ids": ids}
            if self.with_tokens:
                answer["tokens"] = one["tokens"][: len(ids)]
                answer["pieces"] = self.session.tokenizer.convert_ids_to_tokens(ids)
            yield answer
