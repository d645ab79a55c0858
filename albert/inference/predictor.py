"""Answers inputs in batches of sequences of similar length.

Legend: B batch, L sequence.
"""

import bisect
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.errors import DataError

log = logging.getLogger("albert")

CHUNK = 4096  # number of inputs that are encoded and sorted by length together
# Tokens of padding in a batch. One more call costs as much as 12 tokens, in small models and in the
# base model.
MOST_PADDING = 24

Row = Mapping[str, np.ndarray]  # arrays [..., L]; some have another last dimension
Outputs = Mapping[str, np.ndarray]
Call = Callable[[Mapping[str, np.ndarray]], Outputs]  # of a model
# From sequences to (index of a sequence, its outputs), in any order.
Compute = Callable[[Sequence[Row]], Iterator[tuple[int, Outputs]]]


class Batch(NamedTuple):
    """Encoded inputs."""

    rows: Sequence[Sequence[Row]]  # the unpadded sequences of each input
    context: Any = None  # for `decode`
    num_cut: int = 0  # number of truncated inputs, or of words that were cut off
    num_counted: int | None = None  # number of words; None: `num_cut` counts inputs


class Predictor:
    """Answers inputs with a session's model.

    Subclasses name the model's class, and have methods without side effects, so that threads may
    share a predictor:

      encode(inputs)           returns a `Batch` with the sequences of each input
      compute(model, batch)    returns arrays {name: [B, ...]}, by default the model's outputs
      decode(context, outputs) yields the answer to each input from its sequences' outputs
    """

    session: Any  # an AnsweringSession
    class_name = ""  # of the model
    counted = "inputs"  # what `Batch.num_cut` counts

    def model(self) -> Call:
        """Returns the model's call, which the session keeps."""
        return self.session.model(self.class_name)

    def compute(self, model: Call, batch: Mapping[str, np.ndarray]) -> Outputs:
        return model(batch)

    def predict(self, inputs: Iterable[Any], progress: Any = None) -> Iterator[Any]:
        """Yields the answer to each input; at the end, warns once of inputs that were truncated.

        Args:
          progress: a `Progress` over the inputs.
        """
        compute = batched(functools.partial(self.compute, self.model()), self.session.batch_size)
        inputs, num_done, num_cut, num_counted = iter(inputs), 0, 0, 0
        while chunk := list(itertools.islice(inputs, CHUNK)):
            batch, computed = self.encode(chunk), {}
            rows = [row for of_one in batch.rows for row in of_one]
            for index, outputs in compute(rows):
                if not all(map(np.all, map(np.isfinite, outputs.values()))):
                    raise DataError("the model computes NaN or infinity: its weights are damaged, or too large "
                                    "for this precision")
                computed[index] = outputs
                if progress:
                    progress.update(num_done + len(computed) * len(chunk) // len(rows))
            if progress:
                progress.clear()
            num_done, num_cut = num_done + len(chunk), num_cut + batch.num_cut
            num_counted += len(chunk) if batch.num_counted is None else batch.num_counted
            order = itertools.count()
            yield from self.decode(
                batch.context, [[computed[next(order)] for _ in of_one] for of_one in batch.rows]
            )
        if unknown := self.session.tokenizer.unknown_tokens():
            self.session.once("unknown", lambda: log.warning("%s", unknown))
        if num_cut:
            self.session.once(("truncated", type(self)), lambda: log.warning(
                "truncated %s of %s %s (%.1f %%) to max_seq_length=%d", f"{num_cut:,}", f"{num_counted:,}",
                self.counted, 100 * num_cut / num_counted, self.session.max_seq_length,
            ))


def masked_logits(model: Call, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the logits [B, P, V] of a masked LM at the batch's positions [B, P, 1]."""
    positions = batch["masked_lm_positions"][..., 0]
    outputs = model(model_inputs(batch) | {"masked_lm_positions": positions})
    return np.asarray(outputs["prediction_logits"])


def model_inputs(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs that a model reads."""
    return {name: values[name] for name in ("input_ids", "input_mask", "segment_ids")}


def batched(function: Call, batch_size: int) -> Compute:
    """Returns a function from sequences to (index, outputs), the longest sequence first.

    A batch has sequences of similar length: fewer than `batch_size` rather than more padding than
    MOST_PADDING. Arrays are padded if they are as long as the `input_ids`.
    """

    def compute(rows: Sequence[Row]) -> Iterator[tuple[int, Outputs]]:
        sizes = [row["input_ids"].shape[-1] for row in rows]
        order = sorted(range(len(rows)), key=lambda index: -sizes[index])
        while order:
            longest = sizes[order[0]]
            padding = list(itertools.accumulate(longest - sizes[i] for i in order[:batch_size]))
            count = bisect.bisect_right(padding, MOST_PADDING)
            chosen, order = order[:count], order[count:]
            batch = {
                name: np.stack([_padded(rows[i][name], sizes[i], longest) for i in chosen])
                for name in rows[chosen[0]]
            }
            outputs = function(batch)
            for position, index in enumerate(chosen):
                yield index, {name: value[position] for name, value in outputs.items()}

    return compute


def _padded(values: np.ndarray, size: int, length: int) -> np.ndarray:
    missing = length - size if np.shape(values)[-1] == size else 0
    return np.pad(np.asarray(values, np.int32), [(0, 0)] * (np.ndim(values) - 1) + [(0, missing)])


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
