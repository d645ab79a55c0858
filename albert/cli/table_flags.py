"""The flags by which `run_classifier` and `predict` read a table."""

import codecs

from albert.cli import flags
from albert.errors import FlagError
from albert.tasks import table as tables

NAMES = ("text_column", "text_pair_column", "tsv_header", "delimiter", "encoding")


def define_flags(values: flags.FlagValues) -> None:
    """Defines how tables are read."""
    flags.define("string", values, "text_column", None,
                 "Column of the text: its name, or its number from 0. Default: detected by common "
                 "names.")
    flags.define("string", values, "text_pair_column", None, "Column of the second text, if any.")
    flags.define("bool", values, "tsv_header", True,
                 "Whether tables start with the column names; *.txt only if you pass this flag.")
    flags.define("string", values, "delimiter", None,
                 "Delimiter of columns, whose cells may be quoted: a character, or tab. Default: "
                 "commas in *.csv, or semicolons if the header has no comma; in *.tsv and *.txt tabs, "
                 "where quotes are text.")
    flags.define("string", values, "encoding", None,
                 "Encoding of tables, such as cp1252 or utf-16. Default: UTF-8.")


def check_flags(values: flags.FlagValues) -> None:
    """Raises a FlagError for an unknown encoding, or a delimiter of several characters."""
    if len(delimiter_of(values) or ",") > 1:
        raise FlagError(f"--delimiter={values.delimiter}: pass one character, or tab")
    try:
        codecs.lookup(values.encoding or "utf-8")
    except LookupError as error:
        raise FlagError(f"unknown --encoding={values.encoding}: pass a name such as cp1252") from error


def delimiter_of(values: flags.FlagValues) -> str | None:
    """Returns the character that --delimiter names."""
    return "\t" if values.delimiter in ("tab", "\\t") else values.delimiter


def open_table(values: flags.FlagValues, flag: str) -> tables.Table:
    """Returns the table of a file that a flag names."""
    path, given = getattr(values, flag), flags.given(values, "tsv_header")
    if tables.ending(path) in tables.NAMED and flags.given_as_typed(values, "tsv_header", "delimiter"):
        raise FlagError(f"--tsv_header and --delimiter have no effect on --{flag}={path}, which has neither")
    return tables.read_table(path, flag, given, values.encoding, delimiter_of(values))
