"""What the commands that use a model share: its directory, lines of text, batches of few lengths.

No TensorFlow at import; a command has checked its input before it is loaded.

Legend: L places of a row.
"""

import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert import tokenization
from albert.cli import flags
from albert.config import AlbertConfig
from albert.data import files, text_files
from albert.errors import CheckpointError, DataError, FlagError, UserError
from albert.formats.model_facts import Facts

log = logging.getLogger("albert")

STDIN = "-"
# Texts that are tokenised, sorted by length and computed together.
CHUNK = 4096

Row = Mapping[str, np.ndarray]  # each is [..., L], or of another length if it is not of places
Outputs = Mapping[str, np.ndarray]


def define_flags(values: flags.FlagValues) -> None:
    """The model, and what it reads."""
    flags.define("string", values, "model", None,
                 "Directory with the model: an output directory, a released archive, Hugging "
                 "Face's layout or a TF-Hub module; or a checkpoint's prefix. Required.")
    flags.define("string", values, "spm_model_file", None,
                 "SentencePiece model, if it is not in the directory.")
    flags.define("string", values, "vocab_file", None,
                 "WordPiece vocabulary, if it is not in the directory.")
    flags.define("bool", values, "do_lower_case", None,
                 "Whether the model is lower-cased; by default what the directory says, else yes.")
    flags.define("string", values, "input_file", STDIN,
                 "Text (UTF-8, or UTF-16 with its mark; packed or not), one input a line; - is the "
                 "standard input.")
    flags.define("integer", values, "max_seq_length", None,
                 "Longest input in pieces; by default that of the training, else the model's.",
                 least=4)
    flags.define("integer", values, "batch_size", 32, "Inputs computed together.", least=1)


def check_flags(values: flags.FlagValues) -> None:
    """Raises a UserError for flags that are missing, and absent files."""
    flags.require(values, "model")
    if not (os.path.isdir(values.model) or os.path.isfile(values.model + ".index")):
        raise CheckpointError(f"--model: no such directory or checkpoint: {values.model}")
    if "output_file" in values:
        files.refuse_overwriting(
            values.output_file, values.input_file, values.spm_model_file, values.vocab_file
        )


# === The model ===


@dataclasses.dataclass(frozen=True)
class Opened:
    """A model's directory, its vocabulary, and what is known of its training."""

    path: str
    directory: str
    config: AlbertConfig
    tokenizer: tokenization.FullTokenizer
    max_seq_length: int
    shapes: Mapping[str, Sequence[int]]  # of its weights
    facts: Facts  # what is told beside the weights


def open_model(values: flags.FlagValues) -> Opened:
    """Returns what --model and the vocabulary flags mean, which fit each other.

    Raises:
      UserError: no model, no vocabulary, or --max_seq_length beyond its positions.
    """
    flags.import_tensorflow()
    from albert.formats import pretrained

    source = pretrained.open_path(values.model, "model")
    weights = source.weights()
    tokenizer = _tokenizer(values, source)
    most = source.config.max_position_embeddings
    if (values.max_seq_length or 0) > most:
        raise FlagError(
            f"--max_seq_length={values.max_seq_length} exceeds max_position_embeddings {most} of "
            f"{values.model}"
        )
    told = source.facts.max_seq_length or source.vocabulary.max_length or most
    return Opened(
        values.model, source.directory, source.config, tokenizer,
        values.max_seq_length or min(told, most), weights.shapes, source.facts,
    )


def _tokenizer(values: flags.FlagValues, source) -> tokenization.FullTokenizer:
    """Returns the tokenizer that is given, in the directory, or where the training had it."""
    given = values.spm_model_file, values.vocab_file, values.do_lower_case
    vocabulary = source.vocabulary.override(*given)
    if vocabulary:
        tokenizer = vocabulary.open()
        tokenization.check_vocabulary(tokenizer, source.config)
        return tokenizer
    told = source.told_vocabulary.override(None, None, values.do_lower_case)
    path = told.spm_model_file or told.vocab_file
    if not (path and os.path.isfile(path)):
        raise DataError(
            f"{source.directory} has no vocabulary: give --spm_model_file or --vocab_file"
        )
    try:
        tokenizer = told.open()
        tokenization.check_vocabulary(tokenizer, source.config)
    except (UserError, OSError) as error:
        # Not why: a stranger may have named the file to learn what is in it.
        raise DataError(
            f"{source.directory} has no vocabulary, and {path}, which its checkpoint names, is "
            "none of this model: give --spm_model_file or --vocab_file"
        ) from error
    log.warning("%s has no vocabulary: taking %s, where the training had it",
                source.directory, path)
    return tokenizer


# === Lines ===


def read_texts(path: str) -> list[str]:
    """Returns the lines of a text, of a pipe, or of the standard input; see `text_files`.

    An empty line is a text too, so that outputs are as many as lines.

    Raises:
      DataError: no such file, no lines, or not UTF-8 (file:line).
    """
    name, counts = source_name(path), text_files.Counts()
    with contextlib.ExitStack() as stack:
        if path == STDIN:
            stream = text_files.as_utf8(sys.stdin.buffer, name)
        else:
            stream = stack.enter_context(text_files.open_text(path))
        lines = text_files.read_lines(stream, name, counts, longest=sys.maxsize, most_bad=0)
        texts = [text.removesuffix("\n").removesuffix("\r") for text, *_ in lines]
    if not texts:
        raise DataError(f"{name}: nothing in it")
    return texts


def source_name(path: str) -> str:
    """Returns how messages call the input."""
    return "standard input" if path == STDIN else path


# === Rows and batches ===


def row(first: Sequence[int], second: Sequence[int] | None, opened: Opened) -> dict[str, Any]:
    """Returns one unpadded row of a model, cut if need be, and whether it was (`is_cut`)."""
    from albert.data import features

    special = 2 if second is None else 3
    needed = len(first) + len(second or ()) + special
    length = min(needed, opened.max_seq_length)
    packed = features.pack(
        first, second, length, opened.tokenizer.cls_id, opened.tokenizer.sep_id
    )
    return {**packed.as_dict(), "is_cut": needed > length}


class Computer:
    """Applies a compiled function to rows, in batches of rows of nearly the same length."""

    def __init__(
        self,
        function: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        batch_size: int,
        max_seq_length: int,
    ):
        """Takes `function`, from a batch of tensors [B, ..., L] to tensors [B, ...]."""
        import tensorflow as tf

        from albert.data import input_pipeline

        self._function = tf.function(function, reduce_retracing=True, autograph=False)
        self._batch_size = batch_size
        self._lengths = input_pipeline.row_lengths(max_seq_length)

    def __call__(self, rows: Sequence[Row]) -> Iterator[tuple[int, Outputs]]:
        """Yields (index of a row, its outputs), the longest rows first.

        Arrays of another length than the row's `input_ids` are passed as they are.
        """
        sizes = [one["input_ids"].shape[-1] for one in rows]
        order = sorted(range(len(rows)), key=lambda index: -sizes[index])
        for start in range(0, len(order), self._batch_size):
            chosen = order[start : start + self._batch_size]
            length = next(n for n in self._lengths if n >= sizes[chosen[0]])
            batch = {
                name: np.stack([_padded(rows[i][name], sizes[i], length) for i in chosen])
                for name in rows[chosen[0]]
            }
            outputs = {k: v.numpy() for k, v in self._function(batch).items()}
            for place, index in enumerate(chosen):
                yield index, {name: value[place] for name, value in outputs.items()}


def _padded(values: np.ndarray, size: int, length: int) -> np.ndarray:
    values = np.asarray(values, np.int32)
    if values.shape[-1] != size:
        return values
    room = [(0, 0)] * (values.ndim - 1) + [(0, length - size)]
    return np.pad(values, room)


def model_inputs(one: Mapping[str, Any]) -> Row:
    """Returns what of a row a model reads."""
    return {name: one[name] for name in ("input_ids", "input_mask", "segment_ids")}


def report_cut(count: int, opened: Opened, what: str = "inputs") -> None:
    """Warns of inputs that were longer than a row."""
    if count:
        log.warning(
            "%s %s are longer than --max_seq_length=%d and were cut",
            f"{count:,}", what, opened.max_seq_length,
        )


def numbers(values: np.ndarray) -> list[float]:
    """Returns the shortest decimals that are the same float32 again."""
    return [float(str(x)) for x in np.asarray(values, np.float32)]


def print_line(line: str) -> None:
    """Writes a line to the standard output at once."""
    print(line, flush=True)
