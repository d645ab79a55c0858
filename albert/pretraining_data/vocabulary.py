"""SentencePiece vocabularies with the special-token layout of the released ALBERT models."""

import dataclasses
import io
import itertools
import logging
import random
import re
from collections.abc import Iterable, Iterator

from albert.errors import DataError, FlagError
from albert.storage import files
from albert.text import corpus_files, text_files

log = logging.getLogger("albert")

CONTROL_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]")
USER_DEFINED_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
LAYOUT = ("<pad>", "<unk>", *CONTROL_SYMBOLS, *USER_DEFINED_SYMBOLS)  # ids 0, 1, 2, ...

# The trainer skips longer sentences; bytes, its own default and the release's.
_MAX_SENTENCE_BYTES = 4192
# Fixed, not the machine's: sums are taken thread by thread, and the result
# must not depend on how many cores there are.
_THREADS = 16


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a vocabulary is trained; defaults are those of the release."""

    vocab_size: int = 30000  # pieces, special ones included
    character_coverage: float = 0.99995  # share of characters that get a piece
    model_type: str = "unigram"
    do_lower_case: bool = True
    input_sentence_size: int = 10_000_000  # most sentences trained on, 0 for all
    shuffle_input_sentence: bool = True
    seed: int = 12345


def train(
    paths: list[str], settings: Settings, form: corpus_files.Form = corpus_files.Form()
) -> bytes:
    """Returns the serialized model trained on the lines of the files, which are read once.

    Raises:
      DataError: there is no text, or see `corpus_files`; FlagError: the vocabulary does not fit
      the text.
    """
    import sentencepiece

    lines = _Lines(paths, settings.do_lower_case, form)
    texts = iter(lines)
    first = next(texts, None)
    if first is None:
        raise DataError(f"{', '.join(paths)}: no text to train a vocabulary on")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sample(itertools.chain([first], texts), settings),
            model_writer=model,
            vocab_size=settings.vocab_size,
            character_coverage=settings.character_coverage,
            model_type=settings.model_type,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            num_threads=_THREADS,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(CONTROL_SYMBOLS),
            user_defined_symbols=list(USER_DEFINED_SYMBOLS),
            minloglevel=1,
        )
    except (RuntimeError, OSError) as error:  # the library's way to say what it cannot do
        raise FlagError(_explain(str(error), settings, paths)) from error
    lines.report()
    check_layout(model.getvalue())
    return model.getvalue()


def _sample(lines: Iterable[str], settings: Settings) -> Iterator[str]:
    """Returns at most `input_sentence_size` lines: a random sample, or the first ones.

    The trainer could do it, but seeds itself from the operating system, so that
    the same command would give another vocabulary every time.
    """
    size = settings.input_sentence_size
    if not size:
        return iter(lines)
    if not settings.shuffle_input_sentence:
        return itertools.islice(lines, size)
    rng = random.Random(f"{settings.seed}/vocabulary")
    kept: list[str] = []  # reservoir sampling: every line is kept with the same probability
    for number, line in enumerate(lines):
        if number < size:
            kept.append(line)
        elif (place := rng.randrange(number + 1)) < size:
            kept[place] = line
    return iter(kept)


class _Lines:
    """The preprocessed lines of the files; counts what the trainer will skip."""

    def __init__(
        self, paths: list[str], do_lower_case: bool, form: corpus_files.Form = corpus_files.Form()
    ):
        self._paths, self._lower, self._form = paths, do_lower_case, form
        self._too_long, self._counts = 0, text_files.Counts()

    def __iter__(self) -> Iterator[str]:
        from albert.tokenization import preprocess_text

        self._too_long, self._counts = 0, text_files.Counts()
        for path in self._paths:
            with corpus_files.open_lines(path, self._form, "input") as (stream, _):
                for text, *_ in text_files.read_lines(stream, path, self._counts):
                    line = preprocess_text(text, lower=self._lower)
                    self._too_long += len(line.encode()) > _MAX_SENTENCE_BYTES
                    if line:
                        yield line

    def report(self) -> None:
        if self._too_long:
            log.warning("%d lines of more than %d bytes were left out; split them into sentences",
                        self._too_long, _MAX_SENTENCE_BYTES)
        if self._counts.bad_utf8_lines:
            log.warning("%d lines are not UTF-8; what cannot be decoded became U+FFFD",
                        self._counts.bad_utf8_lines)


def _explain(message: str, settings: Settings, paths: list[str]) -> str:
    """Returns one line for the user from the trainer's message."""
    text = ", ".join(paths)
    largest = re.search(r"set it to a value <= (\d+)", message)
    if largest:
        return (f"--vocab_size={settings.vocab_size} is too large for {text}; "
                f"the largest possible is {largest[1]}")
    smallest = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if smallest:
        return (f"--vocab_size={settings.vocab_size} is too small for the characters of {text}; "
                f"use at least {smallest[1]}, or a lower --character_coverage")
    return f"cannot train a vocabulary on {text}: {' '.join(message.split())}"


def check_layout(model: bytes) -> None:
    """Asserts that the special pieces have the ids of the release."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = tuple(processor.id_to_piece(i) for i in range(len(LAYOUT)))
    assert found == LAYOUT, f"sentencepiece laid the special pieces out differently: {found}"
    assert processor.bos_id() == processor.eos_id() == -1
    assert all(processor.is_control(2 + i) for i in range(len(CONTROL_SYMBOLS)))


def publish(prefix: str, model: bytes) -> None:
    """Writes <prefix>.vocab (piece, score), then <prefix>.model."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    with files.atomic_write(f"{prefix}.vocab") as stream:
        for i in range(processor.vocab_size()):
            stream.write(f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n")
    with files.atomic_write(f"{prefix}.model", "wb") as stream:
        stream.write(model)
