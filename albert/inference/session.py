"""A model that is opened once, and computes rows in batches of few lengths.

No engine at import: a command checks its input before it loads one.

Legend: B rows of a batch, L places of a row.
"""

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from albert import tokenization
from albert.errors import FlagError
from albert.formats import pretrained
from albert.formats.pretrained import Pretrained
from albert.inference import arrays
from albert.inference.compilation import Function, compiled_function
from albert.inference.onnx_file import OnnxFile
from albert.records import features, packing

log = logging.getLogger("albert")

# So many texts are tokenised, sorted by length and computed together.
CHUNK = 4096

Row = Mapping[str, np.ndarray]  # arrays [..., L]; some have another last dimension
Outputs = Mapping[str, np.ndarray]
# From rows to (index of a row, its outputs), in any order.
Compute = Callable[[Sequence[Row]], Iterator[tuple[int, Outputs]]]
# From inputs to the unpadded rows of each, and what else is needed to decode their outputs.
Encode = Callable[[Sequence[Any]], tuple[Sequence[Sequence[Row]], Any]]


# === The model ===

_Kind = TypeVar("_Kind", bound="Session")


@dataclasses.dataclass(eq=False)
class Session:
    """An opened model and its tokenizer, with the sizes of rows and batches.

    Threads may share a session: nothing that belongs to a call is kept on it.
    """

    source: Pretrained
    tokenizer: tokenization.FullTokenizer
    max_seq_length: int
    batch_size: int
    onnx: OnnxFile | None = None  # computes instead of the engine

    # Not of a copy that `dataclasses.replace` makes: of the models that were loaded, and `once`.
    _variables: list = dataclasses.field(init=False, default_factory=list)
    _made: dict = dataclasses.field(init=False, default_factory=dict)
    _lock: Any = dataclasses.field(init=False, default_factory=threading.RLock)

    @classmethod
    def of(
        cls: type[_Kind], source: Pretrained, tokenizer: tokenization.FullTokenizer,
        max_seq_length: int | None, batch_size: int, name: str = "--max_seq_length",
    ) -> _Kind:
        """Returns the session of an opened model.

        Args:
          max_seq_length: by default that of the training, else the most that the model takes.
          name: what errors call it.
        """
        most = source.config.max_position_embeddings
        if (max_seq_length or 0) > most:
            raise FlagError(
                f"{name}={max_seq_length} exceeds max_position_embeddings {most} of {source.path}"
            )
        told = source.facts.max_seq_length or source.vocabulary.max_length or most
        return cls(source, tokenizer, max_seq_length or min(told, most), batch_size)

    def load(
        self, class_name: str, *, all_states: bool = False, needed_outputs_only: bool = False,
        complete: bool = True, **options: Any,
    ):
        """Returns the model of a class of `albert`, see `EncoderOptions` and `pretrained.load`.

        Only with `all_states` does it return the hidden states after every layer.
        With an ONNX file that file computes, from arrays to arrays.
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
        model = pretrained.load(kind, self.source, how, complete=complete, **options)
        return self.add(model)

    @property
    def ops(self) -> Any:
        """What computes with a model's outputs: `keras.ops`, or of an ONNX file its like."""
        if self.onnx:
            return arrays
        from keras import ops

        return ops

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns what `make` returned for this key, which the first of all threads calls."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def add(self, model: Any) -> Any:
        """Returns a model, whose weights `computer` now knows."""
        self._variables.extend(model.variables)
        return model

    def row(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[Row, bool]:
        """Returns the unpadded row of the ids of one text or of two, and whether it was cut."""
        needed = len(first) + len(second or ()) + (2 if second is None else 3)
        length = min(needed, self.max_seq_length)
        ids = self.tokenizer.cls_id, self.tokenizer.sep_id
        packed = features.pack(first, second, length, *ids).as_dict()
        return model_inputs(packed), needed > length

    def report_cut(self, count: int, what: str) -> None:
        """Warns of inputs that were longer than a row."""
        if count:
            log.warning("%s %s are longer than --max_seq_length=%d and were cut", f"{count:,}",
                        what, self.max_seq_length)

    def computer(self, function: Function) -> "Compute":
        """Returns what computes any rows with a function of a batch, which is compiled.

        A batch is as long as its longest row; with JAX, which compiles every length, it is filled
        up to one of a few lengths.
        """
        lengths: Sequence[int] = range(1, self.max_seq_length + 1)
        if self.onnx:
            return batched(function, self.batch_size, lengths)
        from albert.model.encoder_options import loop_engine

        if loop_engine() == "scan":
            lengths = packing.row_lengths(self.max_seq_length)
        compute = compiled_function(function, self._variables)
        return batched(compute, self.batch_size, lengths)

    def outputs(
        self,
        inputs: Sequence[Any],
        encode: Encode,
        compute: Compute,
        progress: Any = None,
    ) -> Iterator[tuple[Any, list[list[Outputs]]]]:
        """Yields, chunk by chunk, what `encode` returned beside the rows, and the rows' outputs.

        Args:
          compute: see `computer`.
          progress: a `Progress` over the inputs.
        """
        for start in range(0, len(inputs), CHUNK):
            chunk = inputs[start : start + CHUNK]
            rows, context = encode(chunk)
            places = [(i, j) for i, some in enumerate(rows) for j in range(len(some))]
            found: list[list[Any]] = [[None] * len(some) for some in rows]
            for done, (place, outputs) in enumerate(compute([rows[i][j] for i, j in places])):
                i, j = places[place]
                found[i][j] = outputs
                if progress:
                    progress.update(start + done * len(chunk) // len(places))
            if progress:
                progress.clear()
            yield context, found


def model_inputs(values: Mapping[str, Any]) -> Row:
    """Returns those values of a row that a model reads."""
    return {name: values[name] for name in ("input_ids", "input_mask", "segment_ids")}


# === Batches ===


def batched(function: Function, batch_size: int, lengths: Sequence[int]) -> Compute:
    """Returns a function from rows to (index of a row, its outputs), the longest row first.

    A batch holds rows of nearly the same length, filled up to one of `lengths`. Arrays are padded
    if they are as long as the row's `input_ids`.
    """

    def compute(rows: Sequence[Row]) -> Iterator[tuple[int, Outputs]]:
        sizes = [one["input_ids"].shape[-1] for one in rows]
        order = sorted(range(len(rows)), key=lambda index: -sizes[index])
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            length = next(n for n in lengths if n >= sizes[chosen[0]])
            batch = {
                name: np.stack([_padded(rows[i][name], sizes[i], length) for i in chosen])
                for name in rows[chosen[0]]
            }
            outputs = {k: np.asarray(v) for k, v in function(batch).items()}
            for place, index in enumerate(chosen):
                yield index, {name: value[place] for name, value in outputs.items()}

    return compute


def _padded(values: np.ndarray, size: int, length: int) -> np.ndarray:
    values = np.asarray(values, np.int32)
    if values.shape[-1] != size:
        return values
    room = [(0, 0)] * (values.ndim - 1) + [(0, length - size)]
    return np.pad(values, room)


def numbers(values: np.ndarray) -> list[float]:
    """Returns the shortest decimals that are the same float32 again."""
    return [float(str(x)) for x in np.asarray(values, np.float32)]
