"""An opened model, and the computation of its inputs in batches.

No engine at import: a command checks its input before loading one.

Legend: B batch, L sequence.
"""

import bisect
import dataclasses
import functools
import itertools
import logging
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
CHUNK = 4096  # inputs that are encoded, sorted by length and computed together

Row = Mapping[str, np.ndarray]  # arrays [..., L]; some have another last dimension
Outputs = Mapping[str, np.ndarray]
# From rows to (index of a row, its outputs), in any order.
Compute = Callable[[Sequence[Row]], Iterator[tuple[int, Outputs]]]


class Batch(NamedTuple):
    """Encoded inputs."""

    rows: Sequence[Sequence[Row]]  # unpadded, of each input
    context: Any = None  # what `decode` needs to know of the inputs
    num_cut: int = 0  # inputs, or words, that were truncated


_Kind = TypeVar("_Kind", bound="Session")


@dataclasses.dataclass(eq=False)
class Session:
    """An opened model and its tokenizer, with the sizes of sequences and batches.

    Threads may share a session: nothing that belongs to a call is kept on it.
    """

    source: Pretrained
    tokenizer: tokenization.FullTokenizer
    max_seq_length: int
    batch_size: int
    onnx: OnnxFile | None = None  # computes instead of the engine
    dtype: str = "float32"  # one of DTYPES, for the engine's weights and computation

    _cache: dict = dataclasses.field(init=False, default_factory=dict)
    _lock: Any = dataclasses.field(init=False, default_factory=threading.RLock)

    @classmethod
    def of(
        cls: type[_Kind], source: Pretrained, tokenizer: tokenization.FullTokenizer,
        max_seq_length: int | None, batch_size: int, name: str = "--max_seq_length",
    ) -> _Kind:
        """Returns the session of an opened model.

        Args:
          max_seq_length: by default that of the training, else the model's maximum.
          name: what errors call it.
        """
        limit = source.config.max_position_embeddings
        if (max_seq_length or 0) > limit:
            raise FlagError(
                f"{name}={max_seq_length} exceeds max_position_embeddings {limit} of {source.path}"
            )
        default = source.metadata.max_seq_length or source.vocabulary.max_length or limit
        return cls(source, tokenizer, max_seq_length or min(default, limit), batch_size)

    def load(
        self, class_name: str, *, all_states: bool = False, needed_outputs_only: bool = False,
        complete: bool = True, **options: Any,
    ) -> Any:
        """Returns the model of a class of `albert`, see `EncoderOptions` and `pretrained.load`.

        Only with `all_states` does it return the hidden states after every layer.
        With an ONNX file, that file computes, from arrays to arrays.
        """
        if self.onnx:
            if all_states:
                raise FlagError("an ONNX file returns the last layer's states alone")
            self.onnx.check(class_name, self.source.weights())
            return self.onnx
        from albert import modeling
        from albert.model.encoder_options import loop_engine

        engine = "unrolled" if all_states else loop_engine()
        how = modeling.EncoderOptions(engine=engine, needed_outputs_only=needed_outputs_only)
        kind = getattr(modeling, class_name)
        if self.dtype != "float32":
            options["dtype"] = self.dtype
        return pretrained.load(kind, self.source, how, complete=complete, **options)

    def masked_lm(self) -> Any:
        """Returns the model with the masked-LM head, which is loaded once."""
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
        """Returns `make`'s result for this key; the first thread that asks calls it."""
        with self._lock:
            if key not in self._cache:
                self._cache[key] = make()
            return self._cache[key]

    def row(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[Row, bool]:
        """Returns the unpadded sequence of one text's ids or two's, and whether it was cut."""
        needed = len(first) + len(second or ()) + (2 if second is None else 3)
        length = min(needed, self.max_seq_length)
        ids = self.tokenizer.cls_id, self.tokenizer.sep_id
        packed = features.pack(first, second, length, *ids)
        return model_inputs(packed), needed > length

    def compiled(self, model: Any, function: Callable[[Any, Any], Any]) -> Compute:
        """Returns a function that computes rows with the compiled `function(model, batch)`.

        A batch is as long as its longest row. With JAX, which compiles every length, it is padded
        to one of a few lengths.
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

    A subclass has four methods, which keep nothing, so that threads may share a predictor:

      load_model()             returns the model
      encode(inputs)           returns a `Batch` with the rows of each input
      compute(model, batch)    returns tensors {name: [B, ...]}; it is compiled
      decode(context, outputs) yields the answer to each input, from the outputs of its rows
    """

    session: Session
    counted = "inputs"  # what `Batch.num_cut` counts

    @property
    def key(self) -> Any:
        """Distinguishes the compiled function from those of the session's other predictors."""
        return type(self)

    def predict(self, inputs: Iterable[Any], progress: Any = None) -> Iterator[Any]:
        """Yields the answer to each input; finally warns of inputs that were truncated.

        Args:
          progress: a `Progress` over the inputs.
        """
        compute = self.session.once(
            self.key, lambda: self.session.compiled(self.load_model(), self.compute)
        )
        inputs, num_done, num_cut = iter(inputs), 0, 0
        while chunk := list(itertools.islice(inputs, CHUNK)):
            batch, found = self.encode(chunk), {}
            rows = [row for of_one in batch.rows for row in of_one]
            for index, outputs in compute(rows):
                found[index] = outputs
                if progress:
                    progress.update(num_done + len(found) * len(chunk) // len(rows))
            if progress:
                progress.clear()
            num_done, num_cut = num_done + len(chunk), num_cut + batch.num_cut
            order = itertools.count()
            yield from self.decode(
                batch.context, [[found[next(order)] for _ in of_one] for of_one in batch.rows]
            )
        if num_cut:
            log.warning("%s %s are longer than --max_seq_length=%d and were cut",
                        f"{num_cut:,}", self.counted, self.session.max_seq_length)


def model_inputs(values: Mapping[str, Any]) -> Row:
    """Returns the values that a model reads."""
    return {name: values[name] for name in ("input_ids", "input_mask", "segment_ids")}


def batched(
    function: Callable[[Any], Any], batch_size: int, lengths: Sequence[int]
) -> Compute:
    """Returns a function from rows to (index of a row, its outputs), the longest row first.

    A batch holds rows of nearly the same length, padded to one of `lengths`. Arrays are padded
    if they are as long as the row's `input_ids`.
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
    """Returns an array of a type that NumPy knows itself: bfloat16 becomes float32."""
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
    """Returns the sigmoid in float32, without an infinite power for either sign."""
    power = np.exp(-np.abs(np.asarray(logits, np.float32)))
    return np.where(logits < 0, power, np.float32(1.0)) / (1 + power)


def numbers(values: np.ndarray) -> list[float]:
    """Returns the shortest decimals that are the same float32 again."""
    return [float(str(x)) for x in np.asarray(values, np.float32)]
