"""An opened model that computes inputs in batches.

onnxruntime computes: neither TensorFlow nor JAX is imported.

Legend: B batch, L sequence.
"""

import bisect
import dataclasses
import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from albert import tokenization
from albert.errors import DataError, FlagError
from albert.formats.model_classes import MODEL_CLASSES
from albert.formats.pretrained import Pretrained
from albert.inference import onnx_file, onnx_model
from albert.records import features

log = logging.getLogger("albert")

DTYPES = ("float32", "int8")
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


_Kind = TypeVar("_Kind", bound="Session")


@dataclasses.dataclass(eq=False)
class Session:
    """An opened model and its tokenizer, with the sizes of sequences and batches.

    Threads may share a session: it has no state that belongs to a call.
    """

    source: Pretrained
    tokenizer: tokenization.FullTokenizer
    max_seq_length: int
    batch_size: int
    dtype: str = "float32"  # one of DTYPES, of large matrices

    # The arguments of `open_session`, by which another process opens the same.
    opened_with: Mapping[str, Any] = dataclasses.field(init=False, default_factory=dict)
    _cache: dict = dataclasses.field(init=False, default_factory=dict)
    _process: int = dataclasses.field(init=False, default_factory=os.getpid)
    _lock: Any = dataclasses.field(init=False, default_factory=threading.RLock)

    @classmethod
    def of(
        cls: type[_Kind], source: Pretrained, tokenizer: tokenization.FullTokenizer,
        max_seq_length: int | None, batch_size: int,
    ) -> _Kind:
        """Creates the session of an opened model.

        Args:
          max_seq_length: maximum sequence length, by default that of fine-tuning, else the model's.
        """
        source.config.check_length(max_seq_length, source.path)
        limit = source.config.max_position_embeddings
        default = source.metadata.max_seq_length or source.vocabulary.max_length or limit
        return cls(source, tokenizer, max_seq_length or min(default, limit), batch_size)

    def model(self, class_name: str) -> Call:
        """Returns the call of the model as one of albert's classes, which is loaded once."""
        return self.once(class_name, lambda: self.load(class_name))

    def load(self, class_name: str) -> Call:
        """Loads the model as one of albert's classes; returns its call, see `model`."""
        kind = MODEL_CLASSES[class_name]
        return onnx_file.opened(onnx_model.model_file(
            kind, self.source, is_int8=self.dtype == "int8", has_positions=kind.head == "masked_lm"
        ))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns the result of `make` for this key, which only the first thread calls.

        Raises:
          FlagError: the session was opened by the process that this one was forked from, whose
            threads, with which it would compute, are not here.
        """
        if self._process != os.getpid():
            raise FlagError(
                "a session that was opened before a fork cannot answer after it: open one in each "
                'process, or use multiprocessing.get_context("spawn")'
            )
        with self._lock:
            if key not in self._cache:
                self._cache[key] = make()
            return self._cache[key]

    def close(self) -> None:
        """Frees the model and its compiled graphs; the next question loads it again."""
        with self._lock:
            self._cache.clear()

    def __enter__(self: _Kind) -> _Kind:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def row(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[Row, bool]:
        """Returns the unpadded sequence of one or two texts' ids, and whether it was truncated."""
        needed = len(first) + len(second or ()) + (2 if second is None else 3)
        length = min(needed, self.max_seq_length)
        ids = self.tokenizer.cls_id, self.tokenizer.sep_id
        packed = features.join_texts(first, second, length, *ids)
        return model_inputs(packed), needed > length


class Predictor:
    """Answers inputs with a session's model.

    Subclasses name the model's class, and have methods without side effects, so that threads may
    share a predictor:

      encode(inputs)           returns a `Batch` with the sequences of each input
      compute(model, batch)    returns arrays {name: [B, ...]}, by default the model's outputs
      decode(context, outputs) yields the answer to each input from its sequences' outputs
    """

    session: Session
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
