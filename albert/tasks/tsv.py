"""Your own labelled texts: train.tsv, dev.tsv and test.tsv whose columns you name. No TensorFlow.

A file is tab-separated UTF-8 text. Quotes have no special meaning, so a text cannot hold a
tab or a line feed. Every row has as many columns as the first.
"""

import itertools
import logging
import os
from collections.abc import Sequence

from albert.errors import DataError, FlagError
from albert.formats.known_tasks import TSV
from albert.tasks.glue import GlueTask, Split, read_tsv

log = logging.getLogger("albert")


def make_task(
    data_dir: str,
    splits: Sequence[str],
    *,
    labels: Sequence[str],
    text: str,
    text_pair: str | None,
    label: str | None,
    has_header: bool = True,
) -> GlueTask:
    """Returns the task of `data_dir`'s files.

    Args:
      splits: which of train, dev and test are wanted; the other files are not read.
      labels: in the order of their ids; empty for regression.
      text, text_pair, label: columns, by the header's name or by number from 0.
        test.tsv needs no label; it is not read.
      has_header: whether the first line is the columns' names.

    Raises:
      DataError: a file is absent or empty, or has no such column.
      FlagError: a column is named, but there is no header.
    """

    def layout(split: str) -> Split:
        file = f"{split}.tsv"
        path = os.path.join(data_dir, file)
        if split not in splits or not os.path.isfile(path):
            return Split(file, 0)  # reading it later says that it is absent
        (_, first), *_ = itertools.islice(read_tsv(path, is_strict=True), 1)
        names = first if has_header else None
        if has_header and split == "test" and text not in first:
            log.info("%s: the first line is taken as the header; --notsv_header if it is data", path)

        def column(value: str | None, flag: str) -> int | None:
            return None if value is None else _column(value, flag, names, len(first), path)

        columns = column(text, "text_column"), column(text_pair, "text_pair_column"), (
            column(label, "label_column") if split != "test" else None
        )
        used = [place for place in columns if place is not None]
        if len(set(used)) < len(used):
            raise FlagError(
                f"{path}: --text_column, --text_pair_column and --label_column must be different "
                "columns"
            )
        return Split(
            file,
            *columns,
            guid=None,
            has_header=has_header,
            num_columns=len(first),
        )

    return GlueTask(
        TSV, "", tuple(labels), "accuracy" if labels else "regression",
        layout("train"), layout("dev"), layout("test"), is_strict=True,
    )


def _column(
    value: str, flag: str, names: Sequence[str] | None, num_columns: int, path: str
) -> int:
    if names and value in names:
        if names.count(value) > 1:
            raise DataError(f"{path}:1: two columns are named {value!r}; give a number")
        return names.index(value)
    if value.isdecimal():
        if int(value) < num_columns:
            return int(value)
        raise DataError(
            f"{path}:1: no column {value}, there are {num_columns} (counted from 0): --{flag}"
        )
    if names is None:
        raise FlagError(f"--{flag}={value}: without a header, columns are given by number from 0")
    raise DataError(
        f"{path}:1: no column {value!r} in the header ({', '.join(names)[:200]}): --{flag}"
    )
