"""Arguments and results of a tokenizer's call. No TensorFlow."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert.engines import LazyModule
from albert.errors import DataError
from albert.runtime.named_dict import NamedDict, trees_for_jax

# Hugging Face's name of a model's input, and ours.
OURS = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}


class Encoding(NamedDict):
    """A tokenizer's result, by our names or Hugging Face's: `["attention_mask"]`, `.input_ids`."""

    also = OURS
    # For the tokens of each sequence.
    _words: Callable[[], list[list[int | None]]]
    _sequences: Callable[[], list[list[int | None]]]

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return Encoding, (dict(self),)  # only the values are pickled

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """Returns for each token of a sequence the number of its word; None for special tokens."""
        return self._words()[batch_index]

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """Returns for each token 0 or 1, the first or second text; None for special tokens."""
        return self._sequences()[batch_index]


# Values of padding, for each array of tokens but the ids; other values are not padded.
_PADDING_VALUES = {
    "input_mask": 0, "segment_ids": 0, "special_tokens_mask": 1, "offset_mapping": 0,
    "labels": -100, "label_ids": -100,
}


class Frame:
    """The length of sequences, and where they are padded.

    Args:
      lengths: of the sequences without padding.
      width: minimum length of the longest with padding.
      multiple: the padded length is a multiple of it.
      is_padded: whether lists have padding; arrays always have.
      is_left: whether padding comes before the tokens.
    """

    def __init__(
        self, lengths: list[int], width: int, multiple: int, is_padded: bool, is_left: bool
    ):
        self.lengths, self.is_padded, self.is_left = lengths, is_padded, is_left and is_padded
        self.width = max([width, *lengths])
        if is_padded:
            self.width = -(-self.width // multiple) * multiple
        self._padding = self.width - np.array(lengths, np.int32)[:, None]  # [B, 1]
        columns = np.arange(self.width)
        self.mask = columns >= self._padding if self.is_left else columns < self.width - self._padding

    def inputs(
        self, rows: list[list[int]], boundaries: list[int], pad_id: int
    ) -> dict[str, np.ndarray]:
        """Returns the model's inputs as arrays [B, width]; segment 1 begins at a boundary."""
        starts = np.array(boundaries, np.int32)[:, None] + self._padding * self.is_left
        return {
            "input_ids": self.filled(rows, pad_id), "input_mask": self.mask.astype(np.int32),
            "segment_ids": (self.mask & (np.arange(self.width) >= starts)).astype(np.int32),
        }

    def filled(self, rows: Iterable[Iterable[Any]], value: Any) -> np.ndarray:
        """Returns int32 values of tokens [B, width, ...], with `value` as padding."""
        flat = np.array(list(itertools.chain.from_iterable(rows)), np.int32)
        array = np.full((*self.mask.shape, *np.shape(value)), value, np.int32)
        array[self.mask] = flat.reshape(-1, *np.shape(value))
        return array

    def listed(self, rows: list[list[Any]]) -> list[list[Any]]:
        """Returns values of tokens as lists, with None as padding."""
        padding = [[None] * (self.width * self.is_padded - len(row)) for row in rows]
        pairs = zip(rows, padding, strict=True)
        return [pad + row if self.is_left else row + pad for row, pad in pairs]

    def converted(self, arrays: Mapping[str, np.ndarray], convert: Any) -> dict[str, Any]:
        """Returns arrays of another kind, or lists without `convert`."""
        if convert is None:
            return {
                name: array.tolist() if self.is_padded
                else [row[:size].tolist() for row, size in zip(array, self.lengths, strict=True)]
                for name, array in arrays.items()
            }
        if not self.is_padded and len(set(self.lengths)) > 1:
            raise DataError(f"texts of {min(self.lengths)} to {max(self.lengths)} tokens don't fit in "
                            "an array: pass padding=True")
        return {name: convert(array) for name, array in arrays.items()}

    def repadded(self, batch: Mapping[str, Any], pad_id: int) -> dict[str, np.ndarray]:
        """Returns the values of encodings as arrays, those of tokens padded to [B, width].

        Raises:
          DataError: other values, such as numbers of labels, differ in length.
        """
        arrays, by_name = {}, {"input_ids": pad_id, **_PADDING_VALUES}
        for name, values in batch.items():
            values = [np.asarray(value) for value in values]
            is_of_tokens = [len(v) if v.ndim else None for v in values] == self.lengths
            if name in by_name and is_of_tokens and values and values[0].dtype.kind != "f":
                padding = np.full(values[0].shape[1:], by_name[name])
                arrays[name] = self.filled(values, padding)
            elif len({value.shape for value in values}) > 1:
                raise DataError(f"{name} of {values[0].shape} and other shapes do not fit in an array")
            else:
                array = np.array(values)
                arrays[name] = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
        return arrays


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


def columns(
    text: Any, text_pair: Any, is_split_into_words: bool
) -> tuple[list[list[list[str]]], bool]:
    """Returns the strings of the first texts, and of the second ones if there are pairs.

    A text is one string, or a list of words. Also returns whether there is only one, not in a list.
    """
    is_single = isinstance(text, str)
    if is_split_into_words:
        is_single = bool(len(text)) and isinstance(text[0], str)
        given = [text] if text_pair is None else [text, text_pair]
        of_all = [[one] if is_single else collection(one, "text") for one in given]
        found = [[texts(words, "word", is_split=True) for words in one] for one in of_all]
    else:
        if is_single and text_pair == "":
            text_pair = None  # as in transformers, which keeps it in lists
        if text_pair is None and not is_single:
            text = list(collection(text, "text"))
            if text and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in text):
                text, text_pair = map(list, zip(*text, strict=True))
        given = {"text": text} if text_pair is None else {"text": text, "text_pair": text_pair}
        found = [[[one] for one in texts(values, name)] for name, values in given.items()]
    if len(found[0]) != len(found[-1]):
        raise DataError(f"{len(found[0])} texts, but {len(found[-1])} second texts")
    return found, is_single


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


def texts(text: str | Sequence[str], name: str, is_split: bool = False) -> list[str]:
    """Returns a text or several as a list; raises a DataError for anything else."""
    if is_split and isinstance(text, str):
        raise DataError(f"is_split_into_words: expected a list of words, got {text!r:.60}")
    texts = [text] if isinstance(text, str) else list(collection(text, name))
    for i, value in enumerate(texts):
        if not isinstance(value, str):
            raise DataError(f"{name} {i} is not a string but {type(value).__name__}: {value!r:.60}")
    return texts


def _as_jax(array: np.ndarray) -> Any:
    import jax.numpy as jnp

    trees_for_jax()
    return jnp.asarray(array)


PADDING = {True: "longest", "longest": "longest", "max_length": "max_length", False: "", "do_not_pad": ""}
TRUNCATION = {None: "longest_first", True: "longest_first", "longest_first": "longest_first",
              "only_first": "only_first", "only_second": "only_second", False: "", "do_not_truncate": ""}
TENSORS = {None: None, "np": np.asarray, "jax": _as_jax,
           "tf": lambda array: LazyModule("tensorflow").constant(array)}


def option(name: str, known: Mapping[Any, Any], value: Any) -> Any:
    """Returns the meaning of an option's value."""
    if value == "pt":
        raise DataError('return_tensors="pt": use "np", and torch.from_numpy of each array')
    if not isinstance(value, bool | str | None) or value not in known:
        raise DataError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    return known[value]
