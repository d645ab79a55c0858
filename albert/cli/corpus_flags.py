"""Flags of the commands that read a corpus: its files and their layout."""

from albert.cli import flags
from albert.text import corpus_files, sentences

WHERE = (
    "comma-separated files, globs and folders: plain text (UTF-8), JSON lines or Parquet; optionally "
    "compressed (gzip, bzip2, xz, zstd)"
)
FLAGS = ("text_field", "document_layout", "language")


def define_flags(values: flags.FlagValues, with_layout: bool = True) -> None:
    """Defines how a corpus is read; `with_layout` if the command reads documents, not only lines."""
    flags.define("string", values, "text_field", "text",
                 "Field of JSON lines, or column of a Parquet table, that holds the text.")
    if with_layout:
        flags.define("enum", values, "document_layout", None,
                     "How plain text is divided into documents: by blank lines, one per line, or one "
                     "per file; json: JSON lines. Default: by blank lines or, in a file without any, "
                     "one per line.", enum_values=list(corpus_files.LAYOUTS))
    flags.define("string", values, "language", "en",
                 "Language of the text (ISO 639 code), for the abbreviations that sentence splitting "
                 "must know.")


def form_of(values: flags.FlagValues) -> corpus_files.Form:
    """Returns the form that the flags describe.

    Raises:
      FlagError: sentences cannot be split in --language.
    """
    language = sentences.language_code(values.language)
    layout = values.document_layout if "document_layout" in values else None
    is_split = getattr(values, "split_sentences", False)
    return corpus_files.Form(layout, values.text_field, language if is_split else None)
