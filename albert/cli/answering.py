"""What the inference commands share: flags, the model, lines of text. Imports no engine."""

import contextlib
import json
import sys
from collections.abc import Iterable
from typing import Any

from albert.cli import flags
from albert.errors import DataError
from albert.formats import pretrained
from albert.inference.session import DTYPES, AnsweringSession
from albert.storage import files
from albert.text import text_files

STDIN = "-"


def define_flags(values: flags.FlagValues, batch_size: int = 32) -> None:
    """Defines the flags of the model and of its input."""
    flags.define("path", values, "model", None,
                 f"Model to use: {flags.A_MODEL}. Required.", use="model")
    flags.define_vocabulary_flags(values)
    flags.define("path", values, "input_file", STDIN,
                 "Text file with one input per line (UTF-8; may be compressed); "
                 "- reads the standard input.", use="file")
    flags.define("integer", values, "max_seq_length", None,
                 "Maximum input length in tokens; longer inputs are truncated (fill_mask refuses "
                 "them). Default: as in training, else the model's maximum.", lower_bound=4)
    flags.define("integer", values, "batch_size", batch_size,
                 "Inputs per batch; smaller batches need less memory.", lower_bound=1)
    flags.define("enum", values, "mixed_precision", "float32",
                 "Precision of weights and matrix products. bfloat16 changes answers in the third digit, "
                 "and needs OpenVINO; int8 changes them in the second, and quarters the memory.",
                 enum_values=list(DTYPES))


def check_flags(values: flags.FlagValues) -> None:
    """Raises a UserError for missing flags and files."""
    flags.require(values, "model")
    flags.refuse_together(values, "spm_model_file", "vocab_file")
    if "output_file" in values:
        files.refuse_overwriting(
            values.output_file, values.input_file, values.spm_model_file, values.vocab_file
        )


def open_model(values: flags.FlagValues) -> AnsweringSession:
    """Opens the model and vocabulary that the flags name, and checks that they match."""
    source = pretrained.open_path(values.model, "model")
    tokenizer = source.required_tokenizer(*flags.vocabulary_given(values))
    source.weights()  # a damaged file is found before any input is read
    return AnsweringSession(
        source, tokenizer, values.max_seq_length, values.batch_size, values.mixed_precision
    )


def read_texts(path: str) -> list[str]:
    """Returns the lines of a text file, a pipe or the standard input; see `text_files`.

    An empty line counts as a text, so that there is one output per line.
    """
    name, counts = source_name(path), text_files.ReadingCounts()
    if path == STDIN:
        opened = contextlib.nullcontext(text_files.decode(sys.stdin.buffer, name))
    else:
        opened = text_files.open_text(path)
    with opened as stream:
        lines = text_files.read_lines(stream, name, counts, longest=sys.maxsize)
        texts = [text.removesuffix("\n").removesuffix("\r") for text, _ in lines]
    counts.check(max_bad=0)
    if not texts:
        raise DataError(f"{name}: empty input")
    return texts


def write_lines(answers: Iterable[Any], path: str | None = None) -> None:
    """Writes answers as JSON lines: to a file once all are there, else each to the standard output."""
    lines = (json.dumps(answer, ensure_ascii=False, allow_nan=False) for answer in answers)
    if path:
        with files.atomic_write(path) as stream:
            stream.writelines(f"{line}\n" for line in lines)
    else:
        for line in lines:
            print(line, flush=True)


def source_name(path: str) -> str:
    """Returns the name of the input in messages."""
    return "standard input" if path == STDIN else path
