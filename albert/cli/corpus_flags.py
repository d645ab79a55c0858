"""Flags of the commands that read a corpus: its files and their form."""

from albert.cli import flags
from albert.text import corpus_files

WHERE = (
    "files, globs, folders and @lists of names, comma-separated: plain text (UTF-8, or UTF-16 "
    "with its mark), JSON lines or Parquet; packed with gzip, bzip2, xz or zstd, or not"
)
FLAGS = ("text_field", "document_layout", "language")


def define_flags(values: flags.FlagValues, with_layout: bool = True) -> None:
    """Defines the flags of a corpus's form.

    Args:
      with_layout: the command reads documents, not only lines.
    """
    flags.define("string", values, "text_field", "text",
                 "Field of JSON lines, or column of a Parquet table, that holds the text.")
    if with_layout:
        flags.define("enum", values, "document_layout", corpus_files.AUTO,
                     "How documents lie in plain text: ended by blank lines, one a line, or one a "
                     "file; json: the files are JSON lines. auto: decided by a sample of the text, "
                     "and logged.", enum_values=list(corpus_files.LAYOUTS))
        flags.define("string", values, "language", "en",
                     "Language of the text, as an ISO 639 code: it decides which full stops belong "
                     "to abbreviations where sentences are split.")


def form_of(values: flags.FlagValues) -> corpus_files.Form:
    """Returns the form that the flags describe; the layout may be `AUTO`."""
    layout = values.document_layout if "document_layout" in values else corpus_files.BLANK_LINES
    detects_json = layout == corpus_files.AUTO or "document_layout" not in values
    language = values.language if getattr(values, "split_sentences", False) else None
    return corpus_files.Form(layout, values.text_field, detects_json, language)
