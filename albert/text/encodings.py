"""Arguments and results of a tokenizer's call. No TensorFlow."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert.errors import DataError
from albert.runtime.named_dict import NamedDict, as_tree, trees_for_jax

# Hugging Face's name of a model's input, and ours.
OURS = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}


@as_tree
class Encoding(NamedDict):
    """A tokenizer's result, by our names or Hugging Face's: `["attention_mask"]`, `.input_ids`."""

    also = OURS
    _words: Callable[[int], list[int | None]]

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return Encoding, (dict(self),)  # only the values are pickled

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """Returns for each token of a sequence the number of its word; None for special tokens."""
        return self._words(batch_index)


# Values of padding, for each array of tokens but the ids; other values are not padded.
_PADDING_VALUES = {
    "input_mask": 0, "segment_ids": 0, "special_tokens_mask": 1, "offset_mapping": 0,
    "labels": -100, "label_ids": -100,
}


def padded(
    rows: list[list[int]], boundaries: list[int], width: int, pad_id: int
) -> dict[str, np.ndarray]:
    """Returns the model's inputs as padded arrays [B, width]; segment 1 begins at a boundary."""
    mask = _is_token([len(row) for row in rows], width)
    flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(mask.sum()))
    segments = mask & (np.arange(width) >= np.array(boundaries, np.int32)[:, None])
    arrays = {"input_ids": _filled(flat, mask, pad_id), "input_mask": mask, "segment_ids": segments}
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def repadded(batch: Mapping[str, Any], width: int, pad_id: int) -> dict[str, np.ndarray]:
    """Returns the values of encodings as arrays, those of tokens padded to [B, width].

    Raises:
      DataError: other values, such as numbers of labels, differ in length.
    """
    lengths = [len(row) for row in batch["input_ids"]]
    mask, arrays = _is_token(lengths, width), {}
    by_name = {"input_ids": pad_id, **_PADDING_VALUES}
    for name, values in batch.items():
        values = [np.asarray(value) for value in values]
        is_of_tokens = [len(v) if v.ndim else None for v in values] == lengths
        if name in by_name and is_of_tokens and values and values[0].dtype.kind != "f":
            array = _filled(np.concatenate(values), mask, by_name[name])
        elif len({value.shape for value in values}) > 1:
            raise DataError(f"{name} of {values[0].shape} and other shapes do not fit in an array")
        else:
            array = np.array(values)
        arrays[name] = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
    return arrays


def _is_token(lengths: list[int], width: int) -> np.ndarray:
    return np.arange(width) < np.array(lengths, np.int32)[:, None]


def _filled(flat: np.ndarray, mask: np.ndarray, value: int) -> np.ndarray:
    """Returns an array with the values of `flat` where the mask is, else `value`."""
    array = np.full((*mask.shape, *flat.shape[1:]), value, flat.dtype)
    array[mask] = flat
    return array


def batch_of(encoded: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns {our name: values of each text} of a list of encodings, or of one of several texts.

    Masks and segments are added where there are none.

    Raises:
      DataError: there are no `input_ids`, or the encodings have different keys.
    """
    if not isinstance(encoded, Mapping):
        encoded = list(encoded)
        if len({frozenset(one) for one in encoded}) != 1:
            raise DataError("pad takes encodings that have the same keys, and at least one")
        encoded = {name: [one[name] for one in encoded] for name in encoded[0]}
    batch = {OURS.get(name, name): values for name, values in encoded.items()}
    if "input_ids" not in batch:
        raise DataError(f"pad takes encodings with input_ids, not {', '.join(batch)}")
    for name, value in (("input_mask", 1), ("segment_ids", 0)):
        batch.setdefault(name, [[value] * len(row) for row in batch["input_ids"]])
    return batch


def columns(text: Any, text_pair: Any) -> list[list[str]]:
    """Returns the first texts, and the second ones if there are pairs."""
    if text_pair is None and not isinstance(text, str):
        text = list(collection(text, "text"))
        if text and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in text):
            text, text_pair = map(list, zip(*text, strict=True))
    firsts = texts(text, "text")
    if text_pair is None:
        return [firsts]
    seconds = texts(text_pair, "text_pair")
    if len(seconds) != len(firsts):
        raise DataError(f"{len(firsts)} texts, but {len(seconds)} second texts")
    return [firsts, seconds]


def collection(values: Any, name: str) -> Iterable[Any]:
    """Returns an iterable of texts; a NumPy array or a column of a table as a list.

    Raises:
      DataError: it is something else, such as a dict or a table, whose items are no texts.
    """
    is_table = hasattr(values, "columns") or getattr(values, "ndim", 1) not in (1, 2)
    if is_table or isinstance(values, Mapping | bytes | set) or not isinstance(values, Iterable):
        kind = type(values).__name__
        raise DataError(f"{name}: expected a text or a list of texts, got {kind}: {values!r:.60}")
    return values.tolist() if hasattr(values, "tolist") else values


def texts(text: str | Sequence[str], name: str) -> list[str]:
    """Returns a text or several as a list; raises a DataError for anything else."""
    texts = [text] if isinstance(text, str) else list(collection(text, name))
    for i, value in enumerate(texts):
        if not isinstance(value, str):
            raise DataError(f"{name} {i} is not a string but {type(value).__name__}: {value!r:.60}")
    return texts


def _as_tf(array: np.ndarray) -> Any:
    import tensorflow as tf

    return tf.constant(array)


def _as_jax(array: np.ndarray) -> Any:
    import jax.numpy as jnp

    trees_for_jax()
    return jnp.asarray(array)


PADDING = {True: "longest", "longest": "longest", "max_length": "max_length", False: "",
            "do_not_pad": ""}
TRUNCATION = {True: "longest_first", "longest_first": "longest_first", "only_first": "only_first",
               "only_second": "only_second", False: "", "do_not_truncate": ""}
TENSORS = {None: None, "np": np.asarray, "tf": _as_tf, "jax": _as_jax}


def option(name: str, known: Mapping[Any, Any], value: Any) -> Any:
    """Returns the meaning of an option's value."""
    if not isinstance(value, bool | str | None) or value not in known:
        raise DataError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    return known[value]
