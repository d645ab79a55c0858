"""An opened model that computes inputs in batches.

Imports no engine, so that commands check their input before they load one.

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
from albert.errors import FlagError
from albert.formats import pretrained
from albert.formats.pretrained import Pretrained
from albert.inference.compiled_call import compiled_function
from albert.inference.onnx_file import OnnxFile
from albert.records import features, packing

log = logging.getLogger("albert")

DTYPES = ("float32", "bfloat16")
CHUNK = 4096  # number of inputs that are encoded and sorted by length together

Row = Mapping[str, np.ndarray]  # arrays [..., L]; some have another last dimension
Outputs = Mapping[str, np.ndarray]
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
    onnx: OnnxFile | None = None  # computes instead of an engine
    dtype: str = "float32"  # one of DTYPES: of the engine's weights and computation

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
        limit = source.config.max_position_embeddings
        if (max_seq_length or 0) > limit:
            raise FlagError(
                f"max_seq_length={max_seq_length} exceeds max_position_embeddings {limit} of {source.path}"
            )
        default = source.metadata.max_seq_length or source.vocabulary.max_length or limit
        return cls(source, tokenizer, max_seq_length or min(default, limit), batch_size)

    def load(
        self, class_name: str, *, needed_outputs_only: bool = False, complete: bool = True,
        **options: Any,
    ) -> Any:
        """Loads the model as one of albert's classes, or returns the ONNX file instead.

        Args:
          needed_outputs_only: see `EncoderOptions`.
          complete: see `pretrained.load`.
          options: arguments of the class.
        """
        if self.onnx:
            self.onnx.check(class_name, self.source.weights())
            return self.onnx
        from albert import modeling
        from albert.model.encoder_options import loop_engine

        encoder_options = modeling.EncoderOptions(
            engine=loop_engine(), needed_outputs_only=needed_outputs_only
        )
        if self.dtype != "float32":
            options["dtype"] = self.dtype
        return pretrained.load(
            getattr(modeling, class_name), self.source, encoder_options, complete=complete, **options
        )

    def masked_lm(self) -> Any:
        """Returns the model with the masked-LM head, which it loads once."""
        return self.once("masked_lm", lambda: self.load(
            "AlbertForMaskedLM", needed_outputs_only=True
        ))

    @property
    def ops(self) -> Any:
        """The module that computes with a model's outputs: `keras.ops`, or NumPy with ONNX."""
        if self.onnx:
            return np
        from keras import ops

        return ops

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

    def encoder(self) -> Any:
        """Returns the encoder with the states of its last layer, which it loads once."""
        return self.once("encoder", lambda: self.load("AlbertModel", complete=False))

    def row(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[Row, bool]:
        """Returns the unpadded sequence of one or two texts' ids, and whether it was truncated."""
        needed = len(first) + len(second or ()) + (2 if second is None else 3)
        length = min(needed, self.max_seq_length)
        ids = self.tokenizer.cls_id, self.tokenizer.sep_id
        packed = features.join_texts(first, second, length, *ids)
        return model_inputs(packed), needed > length

    def compiled(self, model: Any, function: Callable[[Any, Any], Any]) -> Compute:
        """Returns a function that computes sequences with the compiled `function(model, batch)`.

        Batches are padded to their longest sequence; with JAX, which compiles each length, to one
        of a few lengths.
        """
        call, lengths = functools.partial(function, model), range(1, self.max_seq_length + 1)
        if not self.onnx:
            from albert.model.encoder_options import loop_engine

            call = compiled_function(call, model.variables)
            if loop_engine() == "scan":
                lengths = packing.row_lengths(self.max_seq_length)
        return batched(call, self.batch_size, lengths)


class Predictor:
    """Answers inputs with a session's model.

    Subclasses have four methods without side effects, so that threads may share a predictor:

      load_model()             returns the model
      encode(inputs)           returns a `Batch` with the sequences of each input
      compute(model, batch)    returns tensors {name: [B, ...]}; it is compiled
      decode(context, outputs) yields the answer to each input from its sequences' outputs
    """

    session: Session
    counted = "inputs"  # what `Batch.num_cut` counts

    @property
    def key(self) -> Any:
        """Distinguishes the compiled function from those of the session's other predictors."""
        return type(self)

    def predict(self, inputs: Iterable[Any], progress: Any = None) -> Iterator[Any]:
        """Yields the answer to each input; at the end, warns once of inputs that were truncated.

        Args:
          progress: a `Progress` over the inputs.
        """
        compute = self.session.once(
            self.key, lambda: self.session.compiled(self.load_model(), self.compute)
        )
        inputs, num_done, num_cut, num_counted = iter(inputs), 0, 0, 0
        while chunk := list(itertools.islice(inputs, CHUNK)):
            batch, computed = self.encode(chunk), {}
            rows = [row for of_one in batch.rows for row in of_one]
            for index, outputs in compute(rows):
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
        if num_cut:
            self.session.once(("truncated", type(self)), lambda: log.warning(
                "%s of %s %s (%.0f %%) are longer than max_seq_length=%d and were truncated",
                f"{num_cut:,}", f"{num_counted:,}", self.counted,
                100 * num_cut / num_counted, self.session.max_seq_length,
            ))


def model_inputs(values: Mapping[str, Any]) -> Row:
    """Returns the inputs that a model reads."""
    return {name: values[name] for name in ("input_ids", "input_mask", "segment_ids")}


def batched(
    function: Callable[[Any], Any], batch_size: int, lengths: Sequence[int]
) -> Compute:
    """Returns a function from sequences to (index, outputs), the longest sequence first.

    A batch has sequences of similar length, padded to one of `lengths`. Arrays are padded if they
    are as long as the `input_ids`.
    """

    def compute(rows: Sequence[Row]) -> Iterator[tuple[int, Outputs]]:
        sizes = [row["input_ids"].shape[-1] for row in rows]
        order = sorted(range(len(rows)), key=lambda index: -sizes[index])
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            length = lengths[bisect.bisect_left(lengths, sizes[chosen[0]])]
            batch = {
                name: np.stack([_padded(rows[i][name], sizes[i], length) for i in chosen])
                for name in rows[chosen[0]]
            }
            outputs = {name: _numbers(value) for name, value in function(batch).items()}
            for position, index in enumerate(chosen):
                yield index, {name: value[position] for name, value in outputs.items()}

    return compute


def _numbers(values: Any) -> np.ndarray:
    """Returns an array of one of NumPy's own types: bfloat16 becomes float32."""
    array = np.asarray(values)
    return array if array.dtype.kind in "iufb" else array.astype(np.float32)


def _padded(values: np.ndarray, size: int, length: int) -> np.ndarray:
    values = np.asarray(values, np.int32)
    if values.shape[-1] != size:
        return values
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, length - size)])


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
