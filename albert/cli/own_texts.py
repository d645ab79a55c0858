"""--train_file of `run_classifier`: your own texts in one file, and settings that fit them.

No TensorFlow at import.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert.cli import flags
from albert.cli.encoder import Encoder
from albert.cli.fine_tuning_settings import FineTuningSettings
from albert.errors import DataError, FlagError
from albert.formats import known_tasks
from albert.tasks import own_file
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels

FLAGS = ("dev_file", "dev_share")  # what only --train_file looks at
PATIENCE = 4  # evaluations, each after a pass over the rows


def define_flags(values: flags.FlagValues) -> None:
    """Where your own labelled texts are, and what of them is held out."""
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
    if values.do_train and not values.do_eval:
        raise FlagError("--train_file holds rows out to measure with: add --do_eval")


class OwnTexts:
    """The examples of --train_file, and settings that fit them where no flag was given.

    Attributes:
      data: what is trained on and measured with.
      choices: what was found and chosen, as (name, value), for the report.
    """

    def __init__(self, values: flags.FlagValues, encoder: Encoder):
        self._values, self._encoder = values, encoder
        self.choices: list[tuple[str, str]] = []
        given = values.text_column, values.text_pair_column, values.label_column
        table, columns = self._open("train_file", given)
        rows = own_file.rows_of(table, columns)
        files = {"train": (table, columns, rows)}
        used = columns.text, columns.pair, columns.label
        names = [None if number is None else table.names[number] for number in used]
        if values.dev_file:
            asked = [a if a is not None else b for a, b in zip(given, names, strict=True)]
            dev = self._open("dev_file", asked, {row[-1] for row in rows})
            files["dev"] = *dev, own_file.rows_of(*dev)
        labels: tuple[str, ...] = ()
        if values.label_list:
            labels = known_tasks.parse_labels(values.label_list)
        elif not values.regression:
            every = [row for *_, some in files.values() for row in some]
            labels = tuple(own_file.labels_of(every, table, columns))
        examples = {
            split: own_file.examples_of(*file, labels, encoder.tokenizer.preprocess)
            for split, file in files.items()
        }
        held_out = values.dev_file
        if not held_out:
            count = len(rows)
            train, dev = own_file.split_off(
                examples["train"], values.dev_share, values.seed, by_label=bool(labels)
            )
            if not dev:
                raise DataError(
                    f"{table.path}: too few rows to hold one out of each label: give --dev_file"
                )
            examples, held_out = {"train": train, "dev": dev}, f"{len(dev):,} of {count:,} rows"
        warn_of_labels(values.train_file, [one.label for one in examples["train"]], labels)
        self.data = FineTuningData(
            known_tasks.TSV, examples, labels,
            {"labels": list(labels) or None, "text_pair_column": names[1]},
        )
        self._report("file", values.train_file)
        self._report("columns", ", ".join(filter(None, names)))
        self._report("held out", held_out)
        if labels:
            self._report("labels", ", ".join(labels))

    def _open(self, flag: str, columns, labels=()) -> tuple[own_file.Table, own_file.Columns]:
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

    def suit(self, settings: FineTuningSettings) -> FineTuningSettings:
        """Returns the settings with those not given chosen by the sizes of model and data."""
        count, config = len(self.data.examples["train"]), self._encoder.config
        texts = [
            " ".join(filter(None, (example.text_a, example.text_b)))
            for examples in self.data.examples.values() for example in examples
        ]
        lengths = [len(ids) + 3 for ids in self._encoder.tokenizer.encode_batch(texts)]
        settings = dataclasses.replace(
            settings,
            max_seq_length=self._choose(
                "max_seq_length",
                row_length(lengths, config.max_position_embeddings),
                "99 % of the texts fit",
            ),
            learning_rate=self._choose(
                "learning_rate", learning_rate(config.hidden_size),
                f"for a model of width {config.hidden_size}",
            ),
            train_batch_size=self._choose(
                "train_batch_size", 32 if count >= 2000 else 16, f"for {count:,} rows"
            ),
            early_stopping_patience=self._choose(
                "early_stopping_patience", PATIENCE, "evaluations without progress"
            ),
        )
        if flags.given(self._values, "train_step") is not None:
            return settings
        passes = self._choose("num_train_epochs", epochs(count), f"for {count:,} rows")
        settings = dataclasses.replace(settings, train_step=None, num_train_epochs=passes)
        settings = settings.with_steps(count)
        per_epoch = max(1, round(settings.train_step / passes))
        return dataclasses.replace(
            settings,
            warmup_step=self._choose(
                "warmup_step", settings.train_step // 10, "a tenth of the steps"
            ),
            save_checkpoints_steps=self._choose(
                "save_checkpoints_steps", per_epoch, "each epoch"
            ),
        )

    def _choose(self, name: str, value: Any, why: str) -> Any:
        if flags.given(self._values, name) is not None:
            value, why = getattr(self._values, name), "given"
        self._report(f"--{name}", f"{value:g} ({why})")
        return value

    def _report(self, name: str, value: str) -> None:
        self.choices.append((name, value))
        flags.log.info("%s: %s", name, value)


def learning_rate(hidden_size: int) -> float:
    """Returns a rate that suits models of this width; larger ones want a lower one."""
    for least, rate in ((2048, 1e-5), (768, 3e-5), (256, 1e-4)):
        if hidden_size >= least:
            return rate
    return 3e-4


def epochs(num_rows: int) -> float:
    """Returns how often to read so many rows: few rows more often."""
    for least, count in ((5000, 3.0), (1000, 5.0)):
        if num_rows >= least:
            return count
    return 10.0


def row_length(lengths: Sequence[int], most: int) -> int:
    """Returns the places of a row in which 99 % of the texts fit whole; a multiple of 16."""
    wanted = int(np.quantile(np.asarray(lengths), 0.99, method="higher"))
    return min(max(32, -(-wanted // 16) * 16), most)
