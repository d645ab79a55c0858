"""Flags of the commands that read a corpus: its files and their layout."""

from typing import Any

from albert.cli import flags
from albert.text import corpus_files, vocabulary

WHERE = (
    "comma-separated files, globs and folders: plain text (UTF-8), JSON lines or Parquet; optionally "
    "compressed (gzip, bzip2, xz, zstd)"
)
FLAGS = ("text_field", "document_layout", "language")


def define_flags(values: flags.FlagValues, with_sentences: bool = True) -> None:
    """Defines how a corpus is read; `with_sentences` if the user decides whether to split it."""
    flags.define("string", values, "text_field", "text",
                 "Field of JSON lines, or column of a Parquet table, that holds the text.")
    flags.define("enum", values, "document_layout", None,
                 "How plain text is divided into documents: by blank lines, one per line, or one "
                 "per file; json: JSON lines. Default: by blank lines or, in a file without any, "
                 "one per line.", enum_values=list(corpus_files.LAYOUTS))
    if with_sentences:
        flags.define("bool", values, "split_sentences", False,
                     "Split lines into sentences, for paragraphs and for documents of one line, and drop "
                     "copies of earlier documents.")
    flags.define("string", values, "language", "en",
                 "Language of the text (ISO 639 code), for the abbreviations that sentence splitting "
                 "must know; an unknown one is read as English.")


def form_of(values: flags.FlagValues) -> corpus_files.Form:
    """Returns the form that the flags describe."""
    language = values.language if getattr(values, "split_sentences", False) else None
    return corpus_files.Form(values.document_layout, values.text_field, language)


def train_vocabulary(*arguments: Any) -> bytes:
    """Calls `vocabulary.train` in a worker process, with the log lines of a command."""
    flags.set_up_logging()
    return vocabulary.train(*arguments)
