"""--train_file of `run_classifier`: a file of one's own texts becomes a task with its settings.

No TensorFlow at import.
"""

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

from albert.cli import fine_tuning, flags
from albert.errors import DataError, FlagError
from albert.formats import known_tasks
from albert.storage import files
from albert.tasks import own_file

FLAGS = ("dev_file", "dev_share")  # what only --train_file looks at
PATIENCE = 4  # evaluations, each after a pass over the rows


def define_flags(values: flags.FlagValues) -> None:
    """Where one's own labelled texts lie, and what of them is held out."""
    flags.define("path", values, "train_file", None,
                 "Your own labelled texts: *.csv, *.tsv or *.jsonl, also packed. Instead of "
                 "--task_name and --data_dir.", use="file")
    flags.define("path", values, "dev_file", None,
                 "Labelled texts to measure with; by default a part of --train_file.", use="file")
    flags.define("float", values, "dev_share", 0.1,
                 "The part of --train_file that is held out, of each label.", above=0, below=1)


def check_flags(values: flags.FlagValues) -> None:
    """Raises a FlagError for flags that do not go with --train_file, or only with it."""
    if not values.train_file:
        for name in FLAGS:
            if flags.given(values, name) is not None:
                raise FlagError(f"--{name} goes with --train_file")
        return
    for name in ("data_dir", "task_name", "do_predict"):
        if getattr(values, name):
            raise FlagError(f"--{name} does not go with --train_file")
    flags.refuse_together(values, "dev_file", "dev_share")
    if values.label_list and values.regression:
        raise FlagError("give one of --regression and --label_list")
    # Without a word about it, everything is done.
    if flags.given(values, "do_train") is None and flags.given(values, "do_eval") is None:
        values.do_train = values.do_eval = True
    elif values.do_train and not values.do_eval:
        raise FlagError("--train_file holds rows out to measure with: add --do_eval")


class OwnTexts:
    """The rows of --train_file, understood and parted.

    The flags are set as if its parts had been given as --task_name=tsv. Nothing is written before
    `publish`.

    Attributes:
      told: what was found and chosen, as (name, value), for the report.
    """

    def __init__(self, values: flags.FlagValues):
        self.told: list[tuple[str, str]] = []
        self._values = values
        self._folder = os.path.join(fine_tuning.work_directory(values), "own_data")
        asked = values.text_column, values.text_pair_column, values.label_column
        table, self._columns = self._open("train_file", asked)
        columns = self._columns
        rows, other = own_file.rows_of(table, columns), []
        self._files = [(table, rows)]
        if values.dev_file:
            found = columns.text, columns.pair, columns.label
            asked = [one if one is not None else two for one, two in zip(asked, found, strict=True)]
            dev_table, dev_columns = self._open("dev_file", asked, {row[-1] for row in rows})
            other = own_file.rows_of(dev_table, dev_columns)
            self._files.append((dev_table, other))
        if not values.regression and not values.label_list:
            values.label_list = ",".join(own_file.labels_of([*rows, *other], table, columns))
        if values.dev_file:
            self._parts, held_out = {"train": rows, "dev": other}, values.dev_file
        else:
            train, dev = own_file.parted(rows, values.dev_share, values.seed, not values.regression)
            if not dev:
                raise DataError(
                    f"{table.path}: too few rows to hold one out of each label: give --dev_file"
                )
            self._parts = {"train": train, "dev": dev}
            held_out = f"{len(dev):,} of {len(rows):,} rows"
        values.task_name, values.data_dir, values.tsv_header = known_tasks.TSV, self._folder, True
        values.text_column, values.label_column = own_file.TEXT, own_file.LABEL
        values.text_pair_column = own_file.PAIR if columns.pair else None
        if flags.given(values, "max_seq_length") is None:
            values.max_seq_length = 4  # until the texts are counted
        named = [columns.text, *([columns.pair] if columns.pair else []), columns.label]
        self._tell("file", values.train_file)
        self._tell("columns", ", ".join(named))
        self._tell("held out", held_out)
        if values.label_list:
            self._tell("labels", ", ".join(known_tasks.split_labels(values.label_list)))

    def _open(
        self, flag: str, columns: Sequence[str | None], labels: Collection[str] = ()
    ) -> tuple[own_file.Table, own_file.Columns]:
        """Returns a file's table and what its columns hold; `labels` are known already."""
        values, path = self._values, getattr(self._values, flag)
        has_header = flags.given(values, "tsv_header")
        if has_header is None:
            def has_header(rows):
                return own_file.has_header(path, rows, *columns, values.regression, labels)
        elif own_file.is_json(path):
            raise FlagError(f"--tsv_header has no effect on --{flag}={path}: JSON has no header")
        table = own_file.read_table(path, flag, has_header)
        return table, own_file.find_columns(table, *columns)

    def publish(self, encoder: fine_tuning.Encoder) -> None:
        """Writes the parts as `albert.tasks.tsv` reads them, and sets what fits them and the encoder.

        Raises:
          DataError: a label is none of --label_list, or no number for --regression (file:line).
        """
        self._check_labels(encoder.tokenizer.preprocess)
        files.make_dirs(self._folder)
        for name, rows in self._parts.items():
            own_file.write_rows(os.path.join(self._folder, f"{name}.tsv"), rows, self._columns)
        self._suit(encoder.config.hidden_size, self._row_length(encoder))

    def _check_labels(self, normalize: Callable[[str], str]) -> None:
        known = set(map(normalize, known_tasks.split_labels(self._values.label_list or "")))
        for table, rows in self._files:
            for line, row in zip(table.lines, rows, strict=True):
                if self._values.regression and not own_file.is_number(row[-1]):
                    raise DataError(f"{table.path}:{line}: not a number: {row[-1]!r:.80}")
                if not self._values.regression and normalize(row[-1]) not in known:
                    raise DataError(
                        f"{table.path}:{line}: the label {row[-1]!r:.80} is none of "
                        f"{self._values.label_list}"
                    )

    def _row_length(self, encoder: fine_tuning.Encoder) -> int:
        columns = 2 if self._columns.pair else 1
        texts = [" ".join(row[:columns]) for rows in self._parts.values() for row in rows]
        lengths = [len(ids) + 3 for ids in encoder.tokenizer.encode_batch(texts)]
        return own_file.row_length(lengths, encoder.config.max_position_embeddings)

    def _suit(self, width: int, row_length: int) -> None:
        """Sets what the user did not give by the sizes of model and file."""
        values, count = self._values, len(self._parts["train"])
        for_rows = f"for {count:,} rows"
        self._choose("max_seq_length", row_length, "99 % of the texts fit")
        self._choose(
            "learning_rate", own_file.learning_rate(width), f"for a model of width {width}"
        )
        self._choose("train_batch_size", 32 if count >= 2000 else 16, for_rows)
        self._choose("early_stopping_patience", PATIENCE, "evaluations without progress")
        if flags.given(values, "train_step") is None:
            self._choose("num_train_epochs", own_file.epochs(count), for_rows)
            steps = fine_tuning.steps_of(values, count)
            self._choose("warmup_step", steps // 10, "a tenth of the steps")
            per_epoch = max(1, round(steps / values.num_train_epochs))
            self._choose("save_checkpoints_steps", per_epoch, "each epoch")

    def _choose(self, name: str, value: Any, why: str) -> None:
        if flags.given(self._values, name) is not None:
            value, why = getattr(self._values, name), "given"
        else:
            setattr(self._values, name, value)
        self._tell(f"--{name}", f"{value:g} ({why})")

    def _tell(self, name: str, value: str) -> None:
        self.told.append((name, value))
        flags.log.info("%s: %s", name, value)
