"""A model that is opened once and answers texts: its flags, lines of text, batches of few lengths.

No engine at import: a command checks its input before it loads one.

Legend: B rows of a batch, L places of a row.
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
from albert.data import features, files, packing, text_files
from albert.errors import CheckpointError, DataError, FlagError, UserError
from albert.formats import checkpoint_files, pretrained
from albert.formats.pretrained import Pretrained
from albert.inference.compilation import compiled

log = logging.getLogger("albert")

STDIN = "-"
# So many texts are tokenised, sorted by length and computed together.
CHUNK = 4096

Row = Mapping[str, np.ndarray]  # arrays [..., L]; some have another last dimension
Outputs = Mapping[str, np.ndarray]
# From a batch of tensors [B, ..., L] to tensors [B, ...].
Function = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the model and of its input."""
    flags.define("string", values, "model", None,
                 "Directory of the model: an output directory, a released archive, Hugging "
                 "Face's layout or a TF-Hub module. Or the prefix of a checkpoint. Required.")
    flags.define("string", values, "spm_model_file", None,
                 "SentencePiece model, if it is not in the directory.")
    flags.define("string", values, "vocab_file", None,
                 "WordPiece vocabulary, if it is not in the directory.")
    flags.define("bool", values, "do_lower_case", None,
                 "Put texts in lower case; by default what the directory says, else yes.")
    flags.define("string", values, "input_file", STDIN,
                 "Text file with one input a line: UTF-8, or UTF-16 with a byte-order mark; it may "
                 "be compressed. - reads the standard input.")
    flags.define("integer", values, "max_seq_length", None,
                 "Longest input, in pieces; longer ones are cut, or refused by fill_mask. By "
                 "default that of the training, else the most that the model takes.",
                 least=4)
    flags.define("integer", values, "batch_size", 32,
                 "Inputs computed together; fewer need less memory.", least=1)


def check_flags(values: flags.FlagValues) -> None:
    """Raises a UserError for flags that are missing, and absent files."""
    flags.require(values, "model")
    if not (os.path.isdir(values.model) or checkpoint_files.exists(values.model)):
        raise CheckpointError(f"--model: no such directory or checkpoint: {values.model}")
    if "output_file" in values:
        files.refuse_overwriting(
            values.output_file, values.input_file, values.spm_model_file, values.vocab_file
        )


# === The model ===


@dataclasses.dataclass(frozen=True)
class Session:
    """An opened model and its tokenizer, with the sizes of rows and batches."""

    source: Pretrained
    tokenizer: tokenization.FullTokenizer
    max_seq_length: int
    batch_size: int

    _variables: list = dataclasses.field(default_factory=list)  # of the models that were loaded

    def load(
        self, class_name: str, *, all_states: bool = False, needed_outputs_only: bool = False,
        complete: bool = True, **options: Any,
    ):
        """Returns the model of a class of `albert`, see `EncoderOptions` and `pretrained.load`.

        Only with `all_states` does it return the hidden states after every layer.
        """
        from albert import modeling
        from albert.model.encoder_options import loop_engine

        engine = "unrolled" if all_states else loop_engine()
        how = modeling.EncoderOptions(engine=engine, needed_outputs_only=needed_outputs_only)
        kind = getattr(modeling, class_name)
        model = pretrained.load(kind, self.source, how, complete=complete, **options)
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

    def outputs(
        self,
        inputs: Sequence[Any],
        rows_of: Callable[[Sequence[Any]], Sequence[Sequence[Row]]],
        function: Function,
        progress: Any = None,
    ) -> Iterator[tuple[Sequence[Any], list[list[Outputs]]]]:
        """Yields part of the inputs with the outputs of their rows, until all have been yielded.

        Args:
          rows_of: turns a part of the inputs into the unpadded rows of each.
          function: computes a batch; it is compiled.
          progress: a `summaries.Progress` over the inputs.
        """
        compute = _batched(
            compiled(function, self._variables), self.batch_size, self.max_seq_length
        )
        for start in range(0, len(inputs), CHUNK):
            chunk = inputs[start : start + CHUNK]
            rows = rows_of(chunk)
            places = [(i, j) for i, some in enumerate(rows) for j in range(len(some))]
            found: list[list[Any]] = [[None] * len(some) for some in rows]
            for done, (place, outputs) in enumerate(compute([rows[i][j] for i, j in places])):
                i, j = places[place]
                found[i][j] = outputs
                if progress:
                    progress.update(start + done * len(chunk) // len(places))
            if progress:
                progress.clear()
            yield chunk, found


def model_inputs(values: Mapping[str, Any]) -> Row:
    """Returns those values of a row that a model reads."""
    return {name: values[name] for name in ("input_ids", "input_mask", "segment_ids")}


def open_model(values: flags.FlagValues) -> Session:
    """Opens what --model and the vocabulary flags name, and checks that these fit each other.

    Raises:
      UserError: no model or vocabulary, or --max_seq_length is more than the model has positions.
    """
    source = pretrained.open_path(values.model, "model")
    tokenizer = _tokenizer(values, source)
    most = source.config.max_position_embeddings
    if (values.max_seq_length or 0) > most:
        raise FlagError(
            f"--max_seq_length={values.max_seq_length} exceeds max_position_embeddings {most} of "
            f"{values.model}"
        )
    told = source.facts.max_seq_length or source.vocabulary.max_length or most
    flags.start_engine()
    source.weights()
    return Session(
        source, tokenizer, values.max_seq_length or min(told, most), values.batch_size
    )


def _tokenizer(values: flags.FlagValues, source: Pretrained) -> tokenization.FullTokenizer:
    """Returns the tokenizer of the flags, of the directory, or of the path used in training."""
    given = values.spm_model_file, values.vocab_file, values.do_lower_case
    if tokenizer := source.tokenizer(*given):
        return tokenizer
    told = source.told_vocabulary
    path = told.spm_model_file or told.vocab_file
    if not (path and os.path.isfile(path)):
        raise DataError(
            f"{source.directory} has no vocabulary: give --spm_model_file or --vocab_file"
        )
    try:
        tokenizer = dataclasses.replace(source, vocabulary=told).tokenizer(*given)
    except (UserError, OSError) as error:
        # The reason is not shown: a stranger may have named the file to learn what is in it.
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

    An empty line is a text too, so that there is one output for each line.

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
    """Returns the name of the input in messages."""
    return "standard input" if path == STDIN else path


# === Batches ===


def _batched(
    function: Function, batch_size: int, max_seq_length: int
) -> Callable[[Sequence[Row]], Iterator[tuple[int, Outputs]]]:
    """Returns a function from rows to (index of a row, its outputs), the longest row first.

    A batch holds rows of nearly the same length. Arrays are padded if they are as long as the
    row's `input_ids`.
    """
    lengths = packing.row_lengths(max_seq_length)

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
