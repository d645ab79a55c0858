"""Makes vocabularies: trains SentencePiece with the special tokens of the releases, or reduces another."""

import dataclasses
import io
import itertools
import logging
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from albert.errors import DataError, FlagError
from albert.storage import files
from albert.text.cleaning import LostMarks, preprocess_text, restore_symbols
from albert.text.corpus_files import Form
from albert.text.documents import ReadingCounts, read_documents, sentences_of
from albert.text.spm_model import SPIECE_UNDERLINE, mark_model

log = logging.getLogger("albert")

CONTROL_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]")
USER_DEFINED_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
LAYOUT = ("<pad>", "<unk>", *CONTROL_SYMBOLS, *USER_DEFINED_SYMBOLS)  # ids 0, 1, 2, ...

# The trainer skips longer sentences; its default, as in the release.
_MAX_SENTENCE_BYTES = 4192
# Fixed, since sums depend on the number of threads, and results must not depend on the machine.
_THREADS = 16


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the training; defaults are those of the release."""

    vocab_size: int = 30000  # special tokens included
    character_coverage: float = 0.99995  # fraction of characters that get a token
    model_type: str = "unigram"
    do_lower_case: bool = True
    keep_accents: bool = False
    user_defined_symbols: tuple[str, ...] = ()  # further tokens that are never split
    input_sentence_size: int = 10_000_000  # maximum number of sentences, 0 for all
    shuffle_input_sentence: bool = True
    hard_vocab_limit: bool = True  # if false, a short text gets fewer tokens
    seed: int = 12345


def train(paths: list[str], settings: Settings, form: Form = Form()) -> bytes:
    """Returns the serialized model trained on the lines of the files, which are read once.

    Raises:
      DataError: there is no text, or see `read_documents`; FlagError: the text is too short for the
        vocabulary, or has too many characters.
    """
    import sentencepiece

    symbols = list(settings.user_defined_symbols)
    if any(re.search(r"\s", symbol) for symbol in symbols):
        raise FlagError(f"--user_defined_symbols={','.join(symbols)}: they must not contain blanks")
    lines = _sample(_read_lines(paths, settings, form), settings)
    if not lines:
        raise DataError(f"{', '.join(paths)}: no text to train a vocabulary on")
    stream = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=stream,
            vocab_size=settings.vocab_size,
            character_coverage=settings.character_coverage,
            model_type=settings.model_type,
            hard_vocab_limit=settings.hard_vocab_limit,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            num_threads=_THREADS,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(CONTROL_SYMBOLS),
            user_defined_symbols=[*USER_DEFINED_SYMBOLS, *symbols],
            minloglevel=1,
        )
    except (RuntimeError, OSError) as error:  # the library's errors
        raise FlagError(_explain(str(error), settings, paths)) from error
    model = stream.getvalue()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    first_tokens = tuple(processor.id_to_piece(i) for i in range(len(LAYOUT)))
    assert first_tokens == LAYOUT, f"unexpected special tokens: {first_tokens}"
    if settings.do_lower_case and not settings.keep_accents:
        return model
    return mark_model(model, {n: getattr(settings, n) for n in ("do_lower_case", "keep_accents")})


def _read_lines(paths: list[str], settings: Settings, form: Form) -> Iterator[str]:
    """Yields the preprocessed lines of the files; logs at the end how many the trainer skipped."""
    too_long, counts = 0, ReadingCounts()
    documents = read_documents(paths, str, counts, form=form)
    texts = (text for document in documents for text in sentences_of(document, form.language))
    marks, is_enough = LostMarks(), settings.keep_accents
    symbols = {s.lower(): s for s in settings.user_defined_symbols if settings.do_lower_case}
    for text in texts:
        is_enough = is_enough or not marks.add(text)
        line = preprocess_text(
            text, lower=settings.do_lower_case, keep_accents=settings.keep_accents
        )
        if line := restore_symbols(line, symbols):
            too_long += len(line.encode("utf-8", "surrogatepass")) > _MAX_SENTENCE_BYTES
            yield line
    counts.files_of_lines.clear()  # of no importance here
    counts.warn()
    marks.warn(", ".join(paths))
    if too_long:
        log.warning("skipped %d lines of more than %d bytes; split them into sentences", too_long,
                    _MAX_SENTENCE_BYTES)


def _sample(lines: Iterable[str], settings: Settings) -> list[str]:
    """Returns at most `input_sentence_size` lines: a random sample, or the first ones.

    The trainer's option for this has a random seed, so the same command would give different
    vocabularies.
    """
    size = settings.input_sentence_size
    if not size:
        return list(lines)
    if not settings.shuffle_input_sentence:
        return list(itertools.islice(lines, size))
    rng = random.Random(f"{settings.seed}/vocabulary")
    sample: list[str] = []  # reservoir sampling: every line is in it with the same probability
    for number, line in enumerate(lines):
        if number < size:
            sample.append(line)
        elif (index := rng.randrange(number + 1)) < size:
            sample[index] = line
    return sample


def _explain(message: str, settings: Settings, paths: list[str]) -> str:
    """Returns the trainer's error as one line."""
    text = ", ".join(paths)
    if "!sentences_.empty()" in message:
        return f"{text}: every line has more than {_MAX_SENTENCE_BYTES:,} bytes: add --split_sentences"
    if largest := re.search(r"set it to a value <= (\d+)", message):
        return (f"--vocab_size={settings.vocab_size} is too large for {text}; "
                f"the largest possible is {largest[1]}")
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (f"--vocab_size={settings.vocab_size} is too small for the characters of {text}; "
                f"use at least {smallest[1]}, or a lower --character_coverage")
    return f"cannot train a vocabulary on {text}: {' '.join(message.split())}"


def write(prefix: str, model: bytes) -> int:
    """Writes <prefix>.vocab (token, score), then <prefix>.model; returns the number of tokens."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    with files.atomic_write(f"{prefix}.vocab") as stream:
        for i in range(processor.vocab_size()):
            stream.write(f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n")
    with files.atomic_write(f"{prefix}.model", "wb") as stream:
        stream.write(model)
    return processor.vocab_size()


def write_used(tokenizer: Any, lines: Iterator[str], prefix: str) -> int:
    """Writes the part of a vocabulary that a text uses: PREFIX.model or PREFIX.txt.

    Special tokens and single characters stay, so that any text can still be read.

    Args:
      lines: the text.

    Returns:
      its number of entries, in their former order.
    """
    is_used = np.zeros(len(tokenizer.vocab), bool)
    is_used[list(tokenizer.special_ids)] = True
    for token, i in tokenizer.vocab.items():
        is_used[i] |= len(token.removeprefix("##").removeprefix(SPIECE_UNDERLINE)) <= 1
    while batch := list(itertools.islice(lines, 4096)):
        is_used[tokenizer.encode_flat(batch)[0]] = True
    if tokenizer.is_spm:
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto.FromString(
            tokenizer.sp_model.serialized_model_proto())
        used = [piece for piece, keep in zip(model.pieces, is_used) if keep or piece.type != 1]
        del model.pieces[:]
        model.pieces.extend(used)
        with files.atomic_write(f"{prefix}.model", "wb") as stream:
            stream.write(model.SerializeToString(deterministic=True))
        return len(used)
    with files.atomic_write(f"{prefix}.txt") as stream:
        stream.writelines(f"{token}\n" for token, i in tokenizer.vocab.items() if is_used[i])
    return int(is_used.sum())
