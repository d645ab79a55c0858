"""Flags of the commands that read a corpus: where it lies, and in what form."""

import dataclasses
from collections.abc import Callable

from albert.cli import flags
from albert.text import corpus_files, text_files

WHERE = (
    "files, globs, folders and @lists of names, comma-separated: plain text (UTF-8, or UTF-16 "
    "with its mark), JSON lines or Parquet; packed with gzip, bzip2, xz or zstd, or not"
)
FLAGS = ("text_field", "document_layout", "language")


def define_flags(values: flags.FlagValues, with_layout: bool = True) -> None:
    """In what form the text is.

    Args:
      with_layout: the command looks at documents, not only at lines.
    """
    flags.define("string", values, "text_field", "text",
                 "The field of JSON lines, or the column of a Parquet table, that holds the text.")
    if with_layout:
        flags.define("enum", values, "document_layout", corpus_files.AUTO,
                     "How documents lie in plain text: ended by blank lines, one a line, or one a "
                     "file; json: the files are JSON lines. auto: as a sample of the text looks, "
                     "which is told.", enum_values=list(corpus_files.LAYOUTS))
        flags.define("string", values, "language", "en",
                     "Language of the text, as an ISO 639 code: it decides which full stops are of "
                     "abbreviations where sentences are split.")


def form_of(values: flags.FlagValues) -> corpus_files.Form:
    """Returns the form that the flags tell; of layout auto it is yet to be recognised."""
    layout = values.document_layout if "document_layout" in values else corpus_files.BLANK_LINES
    is_open = layout == corpus_files.AUTO or "document_layout" not in values
    language = values.language if getattr(values, "split_sentences", False) else None
    return corpus_files.Form(layout, values.text_field, is_open, language)


def recognise(
    values: flags.FlagValues, paths: list[str], break_between_files: bool = True,
    as_original: bool = False, open_raw: Callable = text_files.open_raw,
) -> tuple[corpus_files.Form, str]:
    """Returns the form of a corpus, and what decided it; see `corpus_files.recognise`."""
    form = form_of(values)
    if as_original and form.layout == corpus_files.AUTO:
        form = dataclasses.replace(form, layout=corpus_files.BLANK_LINES)
        return form, "a blank line ends a document, as in the original"
    return corpus_files.recognise(paths, form, break_between_files, open_raw=open_raw)
