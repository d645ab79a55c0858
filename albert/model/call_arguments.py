"""The inputs and outputs of a model's call, by name."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from albert.runtime.named_dict import NamedDict, as_tree, trees_for_jax
from albert.text.encodings import OURS

# Inputs of models, and other features in records and in the tokenizer's batches.
KNOWN = (
    "input_ids", "input_mask", "segment_ids", "position_ids", "masked_lm_positions",
    "masked_lm_weights", "masked_lm_ids", "next_sentence_labels", "labels", "sentence_order_label",
    "label_ids", "is_real_example", "start_positions", "end_positions", "is_impossible", "p_mask",
    "unique_ids", "example_ids", "packed_places", "packed_mask", "offset_mapping", "sample_weight",
)
_IDS = ("input_ids", "segment_ids", "position_ids")
_ORDER = ("input_ids", "input_mask", "segment_ids", "position_ids")  # of a list of inputs


@as_tree
class ModelOutputs(NamedDict):
    """The outputs of a call, by our names or Hugging Face's: `outputs["logits"]`, `outputs.logits`."""

    also = {
        "last_hidden_state": "sequence_output", "pooler_output": "pooled_output",
        "logits": "prediction_logits",
    }

    def __missing__(self, name: Any) -> Any:
        """Returns an output by Hugging Face's name, or by its number there."""
        if not isinstance(name, int):
            return super().__missing__(name)
        names = self._names()
        if not -len(names) <= name < len(names):
            raise IndexError(f"no output {name} of {len(names)} outputs: {', '.join(names)}")
        return self[names[name]]

    def to_tuple(self) -> tuple[Any, ...]:
        """Returns the outputs that Hugging Face's models have, in their order."""
        return tuple(self[name] for name in self._names())

    def _names(self) -> list[str]:
        heads = [head for head in _HEADS if head in self] or ["sequence_output", "pooled_output"]
        return [n for n in ("loss", *heads, "hidden_states", "attentions") if n in self]


if keras.backend.backend() == "jax":
    trees_for_jax()
_HEADS = "logits", "prediction_logits", "sop_logits", "start_logits", "end_logits"


def inputs_of(inputs: Any, named: Mapping[str, Any], rank: int = 2) -> dict[str, Any]:
    """Returns the inputs of a call by our names, as arrays or tensors.

    Args:
      inputs: ids, a mapping of inputs, a list of ids, masks, segments and positions, or None.
      named: inputs that were passed by name.
      rank: number of dimensions of the ids.

    Raises:
      ValueError: a name is unknown, an input is given twice, its lists differ in length, there
        are no ids, or they have too few dimensions.
    """
    if isinstance(inputs, Mapping):
        pairs = list(inputs.items())
    else:
        pairs = list(zip(_ORDER, _in_order(inputs, rank), strict=False))
    batch: dict[str, Any] = {}
    for name, value in [*pairs, *named.items()]:
        if value is None:
            continue
        ours = OURS.get(name, name)
        if name in ("inputs_embeds", "head_mask"):
            raise ValueError(f"{name} isn't supported")
        if ours not in KNOWN:
            raise ValueError(f"unknown input {name!r}; known are {', '.join([*KNOWN[:4], *OURS])}, labels")
        if ours in batch:
            names = "".join(f" (also called {n})" for n, m in OURS.items() if m == ours)
            raise ValueError(f"{ours}{names} is given twice")
        value = _as_array(value, name) if isinstance(value, list | tuple) else value
        # Like Keras's Embedding, accepts floats, which a distributed `fit` passes.
        is_float = "float" in str(getattr(value, "dtype", ""))
        batch[ours] = keras.ops.cast(value, "int32") if is_float and ours in _IDS else value
    if "input_ids" not in batch:
        raise ValueError("no input_ids: call the model with ids [B, L], or a dict with input_ids")
    if len(batch["input_ids"].shape) < 2:
        raise ValueError(
            "input_ids of a single sequence: call the model with a batch [B, L], of a list of texts"
        )
    if len(batch["input_ids"].shape) > rank:
        shape = tuple(batch["input_ids"].shape)
        raise ValueError(f"input_ids has the shape {shape}, at most {rank} dimensions are read")
    return batch


def _in_order(inputs: Any, rank: int) -> list[Any]:
    """Returns ids, masks, segments and positions, given a list of them, or the ids alone."""
    if isinstance(inputs, list | tuple) and 0 < len(inputs) <= len(_ORDER):
        ranks = [_rank(one) for one in inputs]
        if all(r == rank for r in ranks):
            return list(inputs)
    return [inputs]


def _rank(value: Any) -> int:
    """Returns the number of dimensions of an array, a tensor or nested lists."""
    if isinstance(value, list | tuple):
        return 1 + (_rank(value[0]) if len(value) else 0)
    return len(getattr(value, "shape", ()))


def is_batch(x: Any) -> bool:
    """Whether these are the inputs of a batch, not a data set or a generator of batches."""
    return isinstance(x, Mapping | list | tuple | np.ndarray) or keras.ops.is_tensor(x)


def check_range(name: str, values: Any, count: float, what: str, ignored: int | None = None) -> None:
    """Raises a ValueError unless integers are 0 to `count` - 1 or `ignored`, if they are known.

    Args:
      what: says where the limit comes from, for the error.
    """
    array = known_values(values)
    if array is None or not array.size or array.dtype.kind not in "iuf":
        return
    is_wrong = ~((array >= 0) & (array < count)) & (array != ignored)
    if np.any(is_wrong):
        position = tuple(int(i) for i in np.argwhere(is_wrong)[0])
        raise ValueError(f"{name}{list(position)} is {array[position]}: {what}")


def known_values(values: Any) -> np.ndarray | None:
    """Returns values as an array, or None if they are not known yet, as in a graph."""
    if isinstance(values, np.ndarray | list | tuple):
        return np.asarray(values)
    if not keras.ops.is_tensor(values) or _is_symbolic(values):
        return None
    return keras.ops.convert_to_numpy(values)


def outputs_of(outputs: Any) -> Any:
    """Returns the outputs of an eager call as `ModelOutputs`, those of a graph unchanged."""
    is_eager = not any(map(_is_symbolic, outputs.values()))
    return ModelOutputs(outputs) if is_eager else outputs


def _as_array(value: Any, name: str) -> Any:
    """Returns nested lists of numbers, or a list of tensors, as an array."""
    if len(value) and keras.ops.is_tensor(value[0]):
        return keras.ops.stack(value)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "iubf":
        raise ValueError(
            f"{name} isn't a list of numbers, or its lists have several lengths: pad them, as "
            "the tokenizer does"
        )
    if array.dtype.kind == "f":
        return array.astype("float32")
    if array.size and np.abs(array).max() > np.iinfo("int32").max:
        raise ValueError(f"{name} has the number {array.flat[np.abs(array).argmax()]}, beyond int32")
    return array.astype("int32")


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_symbolic, value))
    if isinstance(value, keras.KerasTensor):
        return True
    if keras.backend.backend() == "tensorflow":
        return not hasattr(value, "numpy")
    import jax

    return isinstance(value, jax.core.Tracer)
