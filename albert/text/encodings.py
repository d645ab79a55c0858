"""Arguments and results of a tokenizer's call. No TensorFlow."""

import itertools
from collections.abc import Callable, Mapping, Sequence
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


def padded(
    rows: list[list[int]], boundaries: list[int], width: int, pad_id: int
) -> dict[str, np.ndarray]:
    """Returns the model's inputs as padded arrays [B, width]; segment 1 begins at a boundary."""
    lengths = np.array([len(row) for row in rows], np.int32)
    positions = np.arange(width, dtype=np.int32)
    mask = positions < lengths[:, None]
    ids = np.full(mask.shape, pad_id, np.int32)
    ids[mask] = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
    segments = mask & (positions >= np.array(boundaries, np.int32)[:, None])
    arrays = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def columns(text: Any, text_pair: Any) -> list[list[str]]:
    """Returns the first texts, and the second ones if there are pairs."""
    if text_pair is None and not isinstance(text, str):
        text = list(text)
        if text and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in text):
            text, text_pair = map(list, zip(*text, strict=True))
    firsts = texts(text, "text")
    if text_pair is None:
        return [firsts]
    seconds = texts(text_pair, "text_pair")
    if len(seconds) != len(firsts):
        raise DataError(f"{len(firsts)} texts, but {len(seconds)} second texts")
    return [firsts, seconds]


def texts(text: str | Sequence[str], name: str) -> list[str]:
    """Returns a text or several as a list; raises a DataError for anything else."""
    texts = [text] if isinstance(text, str) else list(text)
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
