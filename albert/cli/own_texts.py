"""--train_file of `run_classifier`: labelled texts in one file, and settings that suit them.

No TensorFlow at import.
"""

import codecs
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert.cli import flags
from albert.cli.classifier_report import ENOUGH_ROWS
from albert.cli.encoder import Encoder
from albert.cli.fine_tuning_settings import FineTuningSettings
from albert.errors import DataError, FlagError
from albert.formats import known_tasks
from albert.tasks import own_file, tables
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels
from albert.tasks.glue import Example

# Flags that only --train_file uses.
TABLE_FLAGS = ("text_column", "text_pair_column", "tsv_header", "delimiter", "encoding")
FLAGS = ("cross_validation", "dev_file", "dev_share", "test_file", "label_list",
         "regression", "label_column", "label_columns", "threshold", *TABLE_FLAGS)


def define_flags(values: flags.FlagValues) -> None:
    """Defines where the labelled texts are, and how many are held out."""
    flags.define("path", values, "train_file", None,
                 "Your labelled texts (*.csv, *.tsv, *.jsonl, *.json or *.parquet), instead of "
                 "--task_name and --data_dir.", use="file")
    flags.define("path", values, "dev_file", None,
                 "Labelled texts to evaluate on. Default: a part of --train_file.", use="file")
    flags.define("float", values, "dev_share", 0.1,
                 "Fraction of --train_file to hold out, chosen by a hash of the text and --seed.",
                 above=0, below=1)
    flags.define("integer", values, "cross_validation", 0,
                 "Number of folds in which every row of --train_file is held out once, for a better "
                 "estimate in the report; 0: none.", lower_bound=0)
    flags.define("path", values, "test_file", None,
                 "Texts for --do_predict, in the same columns as --train_file; if they have labels, "
                 "the report scores them.",
                 use="file")
    flags.define("string", values, "label_list", None,
                 "Comma-separated labels of --train_file, in the order of their ids. Default: those "
                 "that occur.")
    flags.define("bool", values, "regression", False,
                 "Whether the labels of --train_file are numbers.")
    flags.define("string", values, "label_column", None,
                 "Column of the label; if it holds lists, a text has several labels.")
    flags.define("list", values, "label_columns", [],
                 "Columns of labels that do not exclude each other, with 1 or 0 in each cell.")
    flags.define("float", values, "threshold", 0.5,
                 "Minimum probability of a label, if a text may have several.", above=0, below=1)
    define_table_flags(values)


def define_table_flags(values: flags.FlagValues) -> None:
    """Defines how tables are read."""
    flags.define("string", values, "text_column", None,
                 "Column of the text: its name, or its number from 0. Default: detected by common "
                 "names.")
    flags.define("string", values, "text_pair_column", None, "Column of the second text, if any.")
    flags.define("bool", values, "tsv_header", True,
                 "Whether tables start with the column names. Default: all but *.txt.")
    flags.define("string", values, "delimiter", None,
                 "Delimiter of columns, whose cells may be quoted: a character, or tab. Default: "
                 "commas in *.csv, or semicolons if the header has no comma; in *.tsv and *.txt tabs, "
                 "where quotes are text.")
    flags.define("string", values, "encoding", None,
                 "Encoding of tables, such as cp1252 or utf-16. Default: UTF-8.")


def check_table_flags(values: flags.FlagValues) -> None:
    """Raises a FlagError for an unknown encoding, or a delimiter of several characters."""
    if len(delimiter_of(values) or ",") > 1:
        raise FlagError(f"--delimiter={values.delimiter}: give one character, or tab")
    try:
        codecs.lookup(values.encoding or "utf-8")
    except LookupError as error:
        raise FlagError(f"unknown --encoding={values.encoding}: give a name such as cp1252") from error


def delimiter_of(values: flags.FlagValues) -> str | None:
    """Returns the character that --delimiter names."""
    return "\t" if values.delimiter in ("tab", "\\t") else values.delimiter


def check_flags(values: flags.FlagValues) -> None:
    """Raises a FlagError for flags that conflict with --train_file, or that require it."""
    check_table_flags(values)
    if not values.train_file:
        if given := flags.given_as_typed(values, *FLAGS):
            raise FlagError(f"{', '.join(given)}: only with --train_file")
        return
    for name in ("data_dir", "task_name"):
        flags.refuse_together(values, "train_file", name)
    if values.do_predict and not values.test_file:
        raise FlagError("--do_predict needs --test_file if --train_file is given")
    flags.refuse_together(values, "dev_file", "dev_share")
    if values.cross_validation:
        flags.refuse_together(values, "dev_file", "cross_validation")
    if values.cross_validation == 1 or values.cross_validation and values.regression:
        raise FlagError("--cross_validation needs labels, and at least two folds")
    for name in ("label_column", "label_list", "regression"):
        flags.refuse_together(values, "label_columns", name)
    if values.label_list and values.regression:
        raise FlagError("give only one of --regression and --label_list")
    if values.do_train and not values.do_eval:
        raise FlagError("--train_file holds out rows for evaluation: add --do_eval")


def open_table(values: flags.FlagValues, flag: str) -> tables.Table:
    """Returns the table of a file that a flag names."""
    path, given = getattr(values, flag), flags.given(values, "tsv_header")
    if tables.ending(path) in tables.NAMED and flags.given_as_typed(values, "tsv_header", "delimiter"):
        raise FlagError(
            f"--tsv_header and --delimiter have no effect on --{flag}={path}, which has neither"
        )
    return tables.read_table(
        path, flag, tables.has_header(path, given), values.encoding, delimiter_of(values)
    )


class OwnTexts:
    """The examples of --train_file, and settings that suit them where no flag was given.

    Attributes:
      data: the examples to train on and to evaluate on.
      choices: columns, labels and settings as (name, value), for the report.
      test_labels: of the rows of --test_file, None for a row without one; None if no row has one.
    """

    def __init__(self, values: flags.FlagValues, encoder: Encoder):
        self._values, self._encoder = values, encoder
        self.choices: list[tuple[str, str]] = []
        given = values.text_column, values.text_pair_column, values.label_column
        table, columns = self._open("train_file", given)
        files = {"train": (table, columns, own_file.rows_of(table, columns))}
        names = [
            None if n is None else table.names[n]
            for n in (columns.text, columns.pair, columns.label)
        ]
        columns_of_all = [
            name if one is None else one for one, name in zip(given, names, strict=True)
        ]
        for split in ("dev", "test"):
            if getattr(values, f"{split}_file"):
                other = self._open(f"{split}_file", columns_of_all, needs_label=split == "dev")
                files[split] = *other, own_file.rows_of(*other)
        labels: tuple[str, ...] = ()
        if values.label_list:
            labels = tuple(map(own_file.label_name, known_tasks.parse_labels(values.label_list)))
        elif not values.regression:
            labelled = []
            for other, _, rows in (files[split] for split in files if split != "test"):
                own_file.refuse_missing(other, rows)
                labelled += rows
            labels = tuple(own_file.labels_of(labelled, table, columns))
        has_several = isinstance(files["train"][-1][0][-1], tuple)
        if has_several and values.regression:
            raise FlagError("--regression takes one number per text, not lists")
        if flags.given(values, "threshold") and not has_several:
            raise FlagError("--threshold has no effect: every text has one label")
        examples = {
            split: own_file.examples_of(*file, labels, encoder.tokenizer.preprocess, has_several)
            for split, file in files.items()
        }
        if values.dev_file:
            held_out = values.dev_file + self._drop_copies(examples)
        else:
            held_out = self._hold_out(examples)
        self.test_labels = self._labels_of_test(table, columns, files, examples, labels)
        trained = [one.label for one in examples["train"]]
        if has_several:
            trained = [label for several in trained for label in several]
        warn_of_labels(values.train_file, trained, labels)
        self.data = FineTuningData(
            known_tasks.TSV, examples, labels,
            {"labels": list(labels) or None, "text_column": names[0], "text_pair_column": names[1]}
            | ({"label_threshold": values.threshold} if has_several else {})
            | (_scale_of(trained) if values.regression else {}),
            trained_on=examples["train"], is_split=not values.dev_file,
        )
        named = ", ".join(filter(None, [*names, *values.label_columns]))
        self.choices += [("file", values.train_file), ("columns", named)]  # the log has both already
        self.report("held out", held_out)
        if labels:
            self.report("labels", ", ".join(labels))

    def _open(
        self, flag: str, names: Sequence[str | None], needs_label: bool = True
    ) -> tuple[tables.Table, own_file.Columns]:
        """Returns a file's table and columns, with those of labels only if they are needed."""
        values = self._values
        table = open_table(values, flag)
        columns = own_file.find_columns(table, *names, needs_label, values.label_columns)
        return (own_file.without_gaps(table, columns) if needs_label else table), columns

    def _drop_copies(self, examples: dict[str, list[Example]]) -> str:
        """Removes the dev examples whose texts are in the training file; says so if there are any.

        Raises:
          DataError: no other is left.
        """
        values = self._values
        trained = {own_file.texts_of(one) for one in examples["train"]}
        rest = [one for one in examples["dev"] if own_file.texts_of(one) not in trained]
        total = len(examples["dev"])
        if not rest:
            raise DataError(f"--dev_file={values.dev_file}: --train_file has all its texts, so nothing "
                            "is held out: leave the flag out, or give other rows")
        examples["dev"] = rest
        if len(rest) == total:
            return ""
        copies = f"{total - len(rest):,} of {total:,} rows"
        flags.log.warning("%s: left out %s, whose texts are in --train_file too", values.dev_file,
                          copies)
        return f" without {copies}, which are in the training file too"

    def _hold_out(self, examples: dict[str, list[Example]]) -> str:
        """Moves a part of the training examples to the dev examples; returns its size."""
        values, rows = self._values, examples["train"]
        train, dev = own_file.split_off(rows, values.dev_share, values.seed)
        if not (train and dev):
            raise DataError(
                f"{values.train_file}: none of {len(rows):,} rows is {'left' if dev else 'held out'}: "
                "give more rows, another --dev_share, or --dev_file"
            )
        examples |= {"train": train, "dev": dev}
        return f"{len(dev):,} of {len(rows):,} rows"

    def _labels_of_test(self, trained, columns, files, examples, labels) -> list[Any] | None:
        """Returns the label of each row of --test_file, None where it has none, if any has one.

        Rows that are in the training data do not count.
        """
        if "test" not in files:
            return None
        table, columns_of_test, _ = files["test"]
        names = [trained.names[n] for n in columns.flags or (columns.label,)]
        if not set(names) <= set(table.names):
            return None
        numbers = [table.names.index(name) for name in names]
        columns = dataclasses.replace(
            columns_of_test, label=None if columns.flags else numbers[0],
            flags=tuple(numbers) if columns.flags else (),
        )
        found = own_file.known_labels(table, columns, labels, self._encoder.tokenizer.preprocess)
        seen = {own_file.texts_of(one) for one in examples["train"]}
        copies = [i for i, one in enumerate(examples["test"]) if own_file.texts_of(one) in seen]
        if copies:
            flags.log.warning("%s: %s of %s rows are training rows, and are not scored", table.path,
                              f"{len(copies):,}", f"{len(found):,}")
        for number in copies:
            found[number] = None
        return None if set(found) == {None} else found

    def suit(self, settings: FineTuningSettings) -> FineTuningSettings:
        """Returns the settings, with those not given chosen by the sizes of model and data."""
        count, config = len(self.data.examples["train"]), self._encoder.config
        has_pairs = any(example.text_b for example in self.data.examples["train"])
        texts = [
            " ".join(filter(None, (example.text_a, example.text_b)))
            for split in ("train", "dev") for example in self.data.examples[split]
        ]
        tokenizer = self._encoder.tokenizer
        all_ids = tokenizer.encode_batch(texts)
        if unknown := tokenizer.unknown_tokens():
            self.report("texts", unknown)
        self._report_contradictions(all_ids)
        lengths = [len(ids) + 3 for ids in all_ids]
        suits = f"for a model of width {config.hidden_size}"
        optimizer = settings.optimizer
        # A rate that the user gives is AdamW's, unless they name another optimizer.
        if not {flags.given(self._values, n) for n in ("optimizer", "learning_rate")} - {None}:
            optimizer = best_optimizer(config.hidden_size, has_pairs)
        length = sequence_length(lengths, config.max_position_embeddings)
        settings = dataclasses.replace(
            settings,
            max_seq_length=self._choose(
                "max_seq_length", length,
                f"{100 * np.mean(np.array(lengths) <= length):.0f} % of the texts fit",
            ),
            optimizer=self._choose("optimizer", optimizer, suits),
            learning_rate=self._choose(
                "learning_rate", learning_rate(optimizer, config.hidden_size), suits
            ),
            train_batch_size=self._choose(
                "train_batch_size", 32 if count >= 2000 else 16, f"for {count:,} rows"
            ),
            keep_last=self._keeps_last(),
        )
        if flags.given(self._values, "train_step") is not None:
            return settings
        num_epochs = self._choose(
            "num_train_epochs", epochs(count, has_pairs),
            f"for {count:,} {'pairs' if has_pairs else 'rows'}",
        )
        settings = dataclasses.replace(settings, train_step=None, num_train_epochs=num_epochs)
        settings = settings.with_steps(count)
        per_epoch = max(1, round(settings.train_step / num_epochs))
        return dataclasses.replace(
            settings,
            warmup_step=self._choose(
                "warmup_step", settings.train_step // 10, "a tenth of the steps"
            ),
            save_checkpoints_steps=self._choose("save_checkpoints_steps", per_epoch, "each epoch"),
        )

    def _report_contradictions(self, all_ids: Sequence[Sequence[int]]) -> None:
        """Reports how many rows are the same input as another row with another label."""
        labels: dict[tuple[int, ...], set] = {}
        rows = [example for split in ("train", "dev") for example in self.data.examples[split]]
        keys = list(map(tuple, all_ids))
        for key, example in zip(keys, rows, strict=True):
            labels.setdefault(key, set()).add(example.label)
        if (count := sum(len(labels[key]) > 1 for key in keys)) and self.data.labels:
            self.report("contradictions", f"{count:,} of {len(rows):,} rows have the same tokens as "
                        "another row, and another label")

    def _keeps_last(self) -> bool:
        """Whether to keep the last weights, because the rows are too few to choose others."""
        num_rows = len(self.data.examples["dev"])
        # Among few, the best of several evaluations is a matter of luck; the last weights failed on
        # no seed (docs/evidence/results.md).
        if num_rows >= ENOUGH_ROWS:
            return False
        self.report("checkpoint", f"the last ({num_rows:,} held-out rows are too few to choose one)")
        return True

    def _choose(self, name: str, value: Any, why: str) -> Any:
        if flags.given(self._values, name) is not None:
            value, why = getattr(self._values, name), "given"
        self.report(f"--{name}", f"{value if isinstance(value, str) else f'{value:g}'} ({why})")
        return value

    def report(self, name: str, value: str) -> None:
        """Adds a line to the choices, and to the log."""
        self.choices.append((name, value))
        flags.log.info("%s: %s", name, value)


def _scale_of(values: Sequence[float]) -> dict[str, float]:
    """Returns mean and deviation of a regression's labels, as a run records them."""
    return {"label_mean": float(np.mean(values)), "label_deviation": float(np.std(values)) or 1.0}


def best_optimizer(hidden_size: int, has_pairs: bool) -> str:
    """Returns the optimizer that suits models of this width and texts (docs/evidence/results.md)."""
    return "adamw" if has_pairs or hidden_size >= 384 else "lamb"


def learning_rate(optimizer: str, hidden_size: int) -> float:
    """Returns a learning rate that suits models of this width; AdamW needs less for wider ones."""
    if optimizer == "lamb":
        return 2e-3
    for least, rate in ((2048, 1e-5), (768, 3e-5), (256, 1e-4)):
        if hidden_size >= least:
            return rate
    return 3e-4


def epochs(num_rows: int, has_pairs: bool) -> float:
    """Returns the number of epochs: the fewer rows, the more, and fewer for pairs."""
    few = 400 if has_pairs else 1000
    return 3.0 if num_rows >= 5000 else 5.0 if num_rows >= few else 10.0


def sequence_length(lengths: Sequence[int], max_length: int) -> int:
    """Returns the sequence length, a multiple of 16, that fits 99 % of the texts."""
    needed = int(np.quantile(np.asarray(lengths), 0.99, method="higher"))
    return min(max(32, -(-needed // 16) * 16), max_length)
