"""Texts as vectors. No TensorFlow at import.

Legend: B batch, L places of a row, D size of a vector.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from albert.errors import FlagError
from albert.inference.session import Function, Session

POOLINGS = ("pooled", "cls", "mean")


class Embedder:
    """Texts as vectors.

    Args:
      pooling: see `albert.extract_features`.
      layers: the layers for `cls`, `mean` and the tokens; 1 is the first, -1 the last.
      with_tokens: adds the `pieces` and their vectors, `tokens` [L, D].
    """

    def __init__(
        self, session: Session, pooling: str, layers: Sequence[int], with_tokens: bool = False
    ):
        self.session, self.with_tokens = session, with_tokens
        self._settings = pooling, tuple(layers), with_tokens

    def vectors(self, texts: Sequence[str], progress: Any = None) -> Iterator[Mapping[str, Any]]:
        """Yields each text's `vector` [D] and `input_ids` [L], in the order of the texts.

        `progress` is a `Progress` over the texts.
        """
        session, num_cut = self.session, 0

        def encode(some: Sequence[str]):
            rows = [session.row(ids) for ids in session.tokenizer.encode_batch(some)]
            return [[row] for row, _ in rows], rows

        compute = session.once(
            (Embedder, *self._settings),
            lambda: session.computer(_vectors(session, *self._settings)),
        )
        for rows, outputs in session.outputs(texts, encode, compute, progress):
            num_cut += sum(is_cut for _, is_cut in rows)
            for (row, _), (found,) in zip(rows, outputs, strict=True):
                ids = row["input_ids"]
                result = {**found, "input_ids": ids}
                if self.with_tokens:
                    result["tokens"] = found["tokens"][: len(ids)]
                    result["pieces"] = session.tokenizer.convert_ids_to_tokens(ids)
                yield result
        session.report_cut(num_cut, "inputs")


def check_layers(session: Session, layers: Sequence[int]) -> None:
    """Raises a FlagError for a layer that the model does not have."""
    config = session.source.config
    count = config.num_hidden_layers * config.inner_group_num
    if any(abs(layer) > count for layer in layers):
        listed = ",".join(map(str, layers))
        raise FlagError(f"--layers={listed}: {session.source.path} has {count} layers")


def _vectors(session: Session, pooling: str, layers: Sequence[int], with_tokens: bool) -> Function:
    """Returns the function from a batch to `vector` [B, D] and, if wanted, `tokens` [B, L, D]."""
    ops = session.ops
    config = session.source.config
    count = config.num_hidden_layers * config.inner_group_num
    # Counted from the end, because a loop over the layers returns only the last one.
    indices = [layer if layer < 0 else layer - 1 - count for layer in layers]
    is_pooled = pooling == "pooled"
    model = session.load(
        "AlbertModel", complete=is_pooled, needed_outputs_only=is_pooled and not with_tokens,
        all_states=set(indices) != {-1},
    )

    def compute(batch):
        outputs = model(batch, training=False, output_hidden_states=True)
        if is_pooled:
            vector = ops.cast(outputs["pooled_output"], "float32")
            if not with_tokens:
                return {"vector": vector}
        states = outputs.get("encoder_outputs") or [outputs["sequence_output"]]
        chosen = ops.concatenate([states[i] for i in indices], axis=-1)
        chosen = ops.cast(chosen, "float32")
        if pooling == "cls":
            vector = chosen[:, 0]
        elif pooling == "mean":
            mask = ops.cast(batch["input_mask"], "float32")[:, :, None]
            vector = ops.sum(chosen * mask, axis=1) / ops.sum(mask, axis=1)
        return {"vector": vector} | ({"tokens": chosen} if with_tokens else {})

    return compute
