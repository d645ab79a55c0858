"""Predictors: batches of sequences of similar length, embeddings, and predictions of masked tokens.

No TensorFlow at import. Those for fine-tuned models are in `fine_tuned`.

Legend: B batch, L sequence, P masks, K tokens, D size of an embedding.
"""

import bisect
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.albert_tokenizer import MASK, AlbertTokenizer
from albert.errors import CheckpointError, DataError, FlagError
from albert.formats import sentence_files
from albert.formats.model_classes import MODEL_CLASSES
from albert.inference.onnx_graph import Call
from albert.inference.onnx_model import INPUTS
from albert.records import features

log = logging.getLogger("albert")

POOLINGS = ("mean", "cls", "pooled")
CHUNK = 4096  # number of inputs that are encoded and sorted by length together
# Tokens of padding in a batch. One more call costs as much as 12 tokens, in small models and in the
# base model.
MOST_PADDING = 24

Row = Mapping[str, np.ndarray]  # arrays [..., L]
Outputs = Mapping[str, np.ndarray]


class Encoded(NamedTuple):
    """An input as the model reads it."""

    rows: Sequence[Row]  # its sequences, without padding
    context: Any = None  # for `decode`
    is_cut: bool = False  # whether it, or one of its words, was truncated


class Predictor:
    """Answers inputs with a session's model.

    Subclasses name the model's class, and have methods without side effects, so that threads may
    share a predictor:

      read(value, origin)      returns an input; the origin names it in a DataError
      encode(inputs)           returns an `Encoded` for each input
      compute(model, batch)    returns arrays {name: [B, ...]}, by default the model's outputs
      decode(context, outputs) returns the answer to an input, given its sequences' outputs
    """

    session: Any  # an AnsweringSession
    class_name = ""  # of the model

    def read(self, value: Any, origin: str) -> Any:
        if not isinstance(value, str):
            raise DataError(f"{origin} is not a text: {value!r:.80}")
        return value

    def compute(self, model: Call, batch: Mapping[str, np.ndarray]) -> Outputs:
        return model(batch)

    def predict(self, inputs: Iterable[Any], progress: Any = None) -> Iterator[Any]:
        """Yields the answer to each input; at the end, warns once of inputs that were truncated.

        Args:
          progress: a `Progress` over the inputs.
        """
        session, inputs = self.session, iter(inputs)
        num_done = num_cut = 0
        while chunk := list(itertools.islice(inputs, CHUNK)):
            encoded = list(self.encode(chunk))
            yield from self.answers(encoded, progress, num_done)
            num_done += len(chunk)
            num_cut += sum(one.is_cut for one in encoded)
        if unknown := session.tokenizer.unknown_tokens():
            session.once("unknown", lambda: log.warning("%s", unknown))
        if num_cut:
            session.once(("truncated", type(self)), lambda: log.warning(
                "truncated %s of %s inputs (%.1f %%) to max_seq_length=%d", f"{num_cut:,}", f"{num_done:,}",
                100 * num_cut / num_done, session.max_seq_length,
            ))

    def answers(
        self, encoded: Sequence[Encoded], progress: Any = None, num_done: int = 0
    ) -> Iterator[Any]:
        """Yields the answers to inputs that are computed together, after `num_done` others."""
        session = self.session
        model = session.once(self.class_name, lambda: session.load(self.class_name))
        rows, computed = [row for one in encoded for row in one.rows], {}
        for indices, batch in batches(rows, session.batch_size):
            outputs = self.compute(model, batch)
            if not all(np.isfinite(values).all() for values in outputs.values()):
                raise DataError("the model computes NaN or infinity: its weights are damaged, or too "
                                "large for this precision")
            for position, index in enumerate(indices):
                computed[index] = {name: values[position] for name, values in outputs.items()}
            if progress:
                progress.update(num_done + len(computed) * len(encoded) // len(rows))
        if progress:
            progress.clear()
        order = itertools.count()
        for one in encoded:
            yield self.decode(one.context, [computed[next(order)] for _ in one.rows])

    def sequence(self, first: Sequence[int], second: Sequence[int] | None = None) -> Encoded:
        """Returns the sequence of one or two texts' ids."""
        needed = len(first) + len(second or ()) + (2 if second is None else 3)
        length = min(needed, self.session.max_seq_length)
        ids = self.session.tokenizer.cls_id, self.session.tokenizer.sep_id
        return Encoded([features.join_texts(first, second, length, *ids)], is_cut=needed > length)


def batches(rows: Sequence[Row], batch_size: int) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Yields (numbers of sequences, their padded int32 arrays), the longest sequence first.

    A batch has sequences of similar length: fewer than `batch_size` rather than more padding than
    MOST_PADDING.
    """
    sizes = [row["input_ids"].shape[-1] for row in rows]
    order = sorted(range(len(rows)), key=lambda index: -sizes[index])
    while order:
        longest = sizes[order[0]]
        padding = list(itertools.accumulate(longest - sizes[i] for i in order[:batch_size]))
        count = bisect.bisect_right(padding, MOST_PADDING)
        chosen, order = order[:count], order[count:]
        batch = {}
        for name, array in rows[chosen[0]].items():
            batch[name] = np.zeros((count, *array.shape[:-1], longest), np.int32)
            for values, i in zip(batch[name], chosen, strict=True):
                values[..., : sizes[i]] = rows[i][name]
        yield chosen, batch


def without_padding(row: Mapping[str, Any]) -> Row:
    """Returns the model's inputs [..., L] of a record."""
    used = int(row["input_mask"].sum(axis=-1).max())
    return {name: row[name][..., :used] for name in INPUTS}


# === Numbers ===


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the softmax over the last axis, in float32."""
    logits = np.asarray(logits, np.float32)
    powers = np.exp(logits - np.max(logits, -1, keepdims=True))
    return powers / np.sum(powers, -1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Returns the sigmoid in float32, without overflow."""
    power = np.exp(-np.abs(np.asarray(logits, np.float32)))
    return np.where(logits < 0, power, np.float32(1.0)) / (1 + power)


def numbers(values: np.ndarray) -> list[float]:
    """Returns the shortest decimals that round to the same float32."""
    return [float(str(x)) for x in np.asarray(values, np.float32)]


# === Pretrained models ===


class Embedder(Predictor):
    """Computes embeddings of texts. An answer is an array [D].

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

    def encode(self, inputs):
        return map(self.sequence, self.session.tokenizer.encode_batch(inputs))

    def compute(self, model, batch):
        outputs = model(batch)
        if self.pooling == "pooled":
            if "pooled_output" not in outputs:
                raise CheckpointError(
                    f"{self.session.source.path} has no trained bert/pooler: choose another pooling"
                )
            return {"vector": outputs["pooled_output"]}
        states, mask = outputs["sequence_output"], batch["input_mask"].astype(np.float32)
        if self.pooling == "cls":
            mask[:, 1:] = 0
        vectors = np.einsum("blh,bl->bh", states, mask) / mask.sum(axis=1, keepdims=True)
        if self.is_normalized:  # to the length 1; zeros stay
            lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
            vectors = vectors / np.where(lengths > 0, lengths, 1)
        return {"vector": vectors}  # [B, D]

    def decode(self, context, outputs):
        return outputs[0]["vector"]


class MaskFiller(Predictor):
    """Predicts the most likely tokens for each [MASK] of a text.

    An answer has, for each [MASK], a list of `{"piece", "id", "probability"}`.

    Raises:
      FlagError: the vocabulary has fewer than `top_k` tokens.
    """

    class_name = "AlbertForMaskedLM"

    def __init__(self, session: Any, top_k: int):
        if MODEL_CLASSES[self.class_name].weight not in session.source.weights().shapes:
            raise CheckpointError(f"{session.source.path} has no masked-LM head: it was trained for "
                                  "something else")
        vocab_size = session.tokenizer.vocab_size  # the model may have further rows
        if not 1 <= top_k <= vocab_size:
            raise FlagError(f"top_k={top_k}: the vocabulary has {vocab_size} tokens")
        self.session, self.top_k = session, top_k
        self._encode = AlbertTokenizer(session.tokenizer).encode

    def read(self, value, origin):
        """Returns the ids of a text; a DataError if it has no [MASK] or is too long."""
        ids = self._encode(super().read(value, origin), add_special_tokens=False)
        if self.session.tokenizer.mask_id not in ids:
            raise DataError(f"{origin}: no {MASK} in the text: {value!r:.80}")
        length, limit = len(ids) + 2, self.session.max_seq_length
        if length > limit:
            raise DataError(f"{origin}: {length} tokens with [CLS] and [SEP], at most {limit} fit")
        return ids

    def encode(self, inputs):
        return map(self.sequence, inputs)

    def compute(self, model, batch):
        is_mask = batch["input_ids"] == self.session.tokenizer.mask_id  # [B, L]
        counts = is_mask.sum(axis=-1)
        # The masks first; where a text has fewer, positions that `decode` ignores.
        positions = np.argsort(~is_mask, axis=-1, kind="stable")[:, : counts.max()].astype(np.int32)
        logits = model({**batch, "masked_lm_positions": positions})["prediction_logits"]
        logits = logits[..., : self.session.tokenizer.vocab_size]  # [B, P, V]
        best = np.argpartition(-logits, self.top_k - 1)[..., : self.top_k]  # in any order
        order = np.argsort(-np.take_along_axis(logits, best, -1))  # probabilities may be equal
        ids = np.take_along_axis(best, order, -1)  # [B, P, K]
        return {"ids": ids, "probabilities": np.take_along_axis(softmax(logits), ids, -1), "count": counts}

    def decode(self, context, outputs):
        [one] = outputs
        pieces = self.session.tokenizer.convert_ids_to_tokens
        return [[
            {"piece": piece, "id": int(i), "probability": p}
            for piece, i, p in zip(pieces(ids), ids, numbers(probabilities), strict=True)
        ] for ids, probabilities in zip(one["ids"], one["probabilities"], strict=True)][: one["count"]]
