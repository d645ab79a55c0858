"""--train_file of `run_classifier`: your own texts in one file, and settings that fit them.

No TensorFlow at import.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from albert.cli import flags
from albert.cli.encoder import Encoder
from albert.cli.fine_tuning_settings import FineTuningSettings
from albert.errors import DataError, FlagError
from albert.formats import known_tasks
from albert.tasks import own_file
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels

PATIENCE = 4  # evaluations, each after a pass over the rows
Report = Callable[[str, str], None]  # takes a choice's name, and its value with the reason


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
        if alone := flags.given_as_typed(values, "dev_file", "dev_share"):
            raise FlagError(f"{alone[0]} goes with --train_file")
        return
    for name in ("data_dir", "task_name", "do_predict"):
        if getattr(values, name):
            raise FlagError(f"--{name} does not go with --train_file")
    flags.refuse_together(values, "dev_file", "dev_share")
    if values.label_list and values.regression:
        raise FlagError("give one of --regression and --label_list")
    if values.do_train and not values.do_eval:
        raise FlagError("--train_file holds rows out to measure with: add --do_eval")


def read_data(values: flags.FlagValues, encoder: Encoder, report: Report) -> FineTuningData:
    """Returns the examples of --train_file, of which a part is held out unless --dev_file is given.
    """
    given = values.text_column, values.text_pair_column, values.label_column
    table, columns = _open(values, "train_file", given)
    rows = own_file.rows_of(table, columns)
    names = [
        None if number is None else table.names[number]
        for number in (columns.text, columns.pair, columns.label)
    ]
    parts = {"train": (table, columns, rows)}
    if values.dev_file:
        asked = [a if a is not None else b for a, b in zip(given, names, strict=True)]
        dev = _open(values, "dev_file", asked, {row[-1] for row in rows})
        parts["dev"] = *dev, own_file.rows_of(*dev)
    labels: tuple[str, ...] = ()
    if values.label_list:
        labels = known_tasks.parse_labels(values.label_list)
    elif not values.regression:
        every = [row for *_, part in parts.values() for row in part]
        labels = tuple(own_file.labels_of(every, table, columns))
    examples = {
        split: own_file.examples_of(*part, labels, encoder.tokenizer.preprocess)
        for split, part in parts.items()
    }
    held_out = values.dev_file
    if not held_out:
        train, dev = own_file.split_off(
            examples["train"], values.dev_share, values.seed, by_label=bool(labels)
        )
        if not dev:
            raise DataError(
                f"{table.path}: too few rows to hold one out of each label: give --dev_file"
            )
        examples, held_out = {"train": train, "dev": dev}, f"{len(dev):,} of {len(rows):,} rows"
    warn_of_labels(values.train_file, [one.label for one in examples["train"]], labels)
    report("file", values.train_file)
    report("columns", ", ".join(filter(None, names)))
    report("held out", held_out)
    if labels:
        report("labels", ", ".join(labels))
    return FineTuningData(
        known_tasks.TSV, examples, labels,
        {"labels": list(labels) or None, "text_pair_column": names[1]},
    )


def _open(
    values: flags.FlagValues, flag: str, columns, labels=()
) -> tuple[own_file.Table, own_file.Columns]:
    """Returns a file's table and what its columns hold; `labels` are known already."""
    path, has_header = getattr(values, flag), flags.given(values, "tsv_header")
    if has_header is None:
        def has_header(rows):
            return own_file.has_header(path, rows, *columns, values.regression, labels)
    elif own_file.is_json(path):
        raise FlagError(f"--tsv_header has no effect on --{flag}={path}: JSON has no header")
    table = own_file.read_table(path, flag, has_header)
    return table, own_file.find_columns(table, *columns)


def suited(
    settings: FineTuningSettings, values: flags.FlagValues, encoder: Encoder,
    data: FineTuningData, report: Report,
) -> FineTuningSettings:
    """Returns the settings with those not given chosen by the sizes of model and data."""
    def choose(name: str, value: Any, why: str) -> Any:
        if flags.given(values, name) is not None:
            value, why = getattr(values, name), "given"
        report(f"--{name}", f"{value:g} ({why})")
        return value

    count, config = len(data.examples["train"]), encoder.config
    texts = [
        " ".join(filter(None, (example.text_a, example.text_b)))
        for examples in data.examples.values() for example in examples
    ]
    lengths = [len(ids) + 3 for ids in encoder.tokenizer.encode_batch(texts)]
    length = row_length(lengths, config.max_position_embeddings)
    settings = dataclasses.replace(
        settings,
        max_seq_length=choose("max_seq_length", length, "99 % of the texts fit"),
        learning_rate=choose("learning_rate", learning_rate(config.hidden_size),
                             f"for a model of width {config.hidden_size}"),
        train_batch_size=choose("train_batch_size", 32 if count >= 2000 else 16,
                                f"for {count:,} rows"),
        early_stopping_patience=choose("early_stopping_patience", PATIENCE,
                                       "evaluations without progress"),
    )
    if flags.given(values, "train_step") is not None:
        return settings
    passes = choose("num_train_epochs", epochs(count), f"for {count:,} rows")
    settings = dataclasses.replace(settings, train_step=None, num_train_epochs=passes)
    settings = settings.with_steps(count)
    steps = settings.train_step
    return dataclasses.replace(
        settings,
        warmup_step=choose("warmup_step", steps // 10, "a tenth of the steps"),
        save_checkpoints_steps=choose(
            "save_checkpoints_steps", max(1, round(steps / passes)), "each epoch"
        ),
    )


def learning_rate(hidden_size: int) -> float:
    """Returns a learning rate that suits models of this width; wider ones need a lower one."""
    for width, rate in ((2048, 1e-5), (768, 3e-5), (256, 1e-4)):
        if hidden_size >= width:
            return rate
    return 3e-4


def epochs(num_rows: int) -> float:
    """Returns the number of passes over the rows: more if they are few."""
    return 3.0 if num_rows >= 5000 else 5.0 if num_rows >= 1000 else 10.0


def row_length(lengths: Sequence[int], limit: int) -> int:
    """Returns the sequence length, a multiple of 16, in which 99 % of the texts fit."""
    wanted = int(np.quantile(np.asarray(lengths), 0.99, method="higher"))
    return min(max(32, -(-wanted // 16) * 16), limit)
