"""The inputs and outputs of a model's call, by name."""

import difflib
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
    "unique_ids", "example_ids", "packed_places", "packed_mask", "offset_mapping",
)
_IDS = ("input_ids", "segment_ids", "position_ids")


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
        heads = [head for head in _HEADS if head in self] or ["sequence_output", "pooled_output"]
        names = [n for n in ("loss", *heads, "hidden_states", "attentions") if n in self]
        if not -len(names) <= name < len(names):
            raise IndexError(f"no output {name} of {len(names)} outputs: {', '.join(names)}")
        return self[names[name]]


if keras.backend.backend() == "jax":
    trees_for_jax()
_HEADS = "logits", "prediction_logits", "sop_logits", "start_logits", "end_logits"


def inputs_of(inputs: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs of a call by our names, as arrays or tensors.

    Args:
      inputs: ids, a mapping of inputs, or None.
      named: inputs that were passed by name.

    Raises:
      ValueError: a name is unknown, an input is given twice, its lists differ in length, or there
        are no ids.
    """
    pairs = inputs.items() if isinstance(inputs, Mapping) else [("input_ids", inputs)]
    batch: dict[str, Any] = {}
    for name, value in [*pairs, *named.items()]:
        if value is None:
            continue
        ours = OURS.get(name, name)
        if ours not in KNOWN:
            raise ValueError(_unknown(name))
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
    return batch


def outputs_of(outputs: Any) -> Any:
    """Returns the outputs of an eager call as `ModelOutputs`, those of a graph unchanged."""
    is_eager = not any(map(_is_symbolic, outputs.values()))
    return ModelOutputs(outputs) if is_eager else outputs


def _unknown(name: str) -> str:
    if name in ("inputs_embeds", "head_mask"):
        return f"{name} isn't supported"
    near = difflib.get_close_matches(name, [*KNOWN, *OURS], n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join([*KNOWN[:4], *OURS])}"
    return f"unknown input {name!r}; {hint}"


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
    return array.astype("float32" if array.dtype.kind == "f" else "int32")


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_symbolic, value))
    if isinstance(value, keras.KerasTensor):
        return True
    if keras.backend.backend() == "tensorflow":
        return not hasattr(value, "numpy")
    import jax

    return isinstance(value, jax.core.Tracer)
