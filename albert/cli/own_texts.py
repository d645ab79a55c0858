"""--train_file of `run_classifier`: labelled texts in one file, and settings that suit them.

No TensorFlow at import.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert import finetune
from albert.cli import flags, table_flags
from albert.cli.classifier_report import ENOUGH_ROWS
from albert.cli.encoder import Encoder
from albert.errors import DataError, FlagError
from albert.tasks.classification import OWN_TABLE
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels
from albert.tasks.table import (
    find_columns, label_name, labels_of, read_examples, split_off, texts_of, with_known_labels,
)
from albert.tokenization import FullTokenizer

# Flags that only --train_file uses.
FLAGS = ("cross_validation", "dev_file", "dev_share", "test_file", "label_list",
         "regression", "label_column", "label_columns", "threshold", *table_flags.NAMES)


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
    table_flags.define_flags(values)


def check_flags(values: flags.FlagValues) -> None:
    """Raises a FlagError for flags that conflict with --train_file, or that require it."""
    table_flags.check_flags(values)
    if not values.train_file:
        if given := flags.given_as_typed(values, *FLAGS):
            raise FlagError(f"{', '.join(given)}: only with --train_file")
        return
    for pair in (
        ("train_file", "data_dir"), ("train_file", "task_name"), ("dev_file", "dev_share"),
        ("label_columns", "label_column"), ("label_columns", "label_list"), ("label_columns", "regression"),
        ("regression", "label_list"), *[("dev_file", "cross_validation")] * bool(values.cross_validation),
    ):
        flags.refuse_together(values, *pair)
    if values.do_predict and not values.test_file:
        raise FlagError("--do_predict needs --test_file if --train_file is given")
    if values.cross_validation == 1 or values.cross_validation and values.regression:
        raise FlagError("--cross_validation needs labels, and at least two folds")
    if values.do_train and not values.do_eval:
        raise FlagError("--train_file holds out rows for evaluation: add --do_eval")


def read(values: flags.FlagValues, tokenizer: FullTokenizer) -> tuple[FineTuningData, dict[str, str]]:
    """Returns the examples of --train_file, with the held-out ones apart, and those of the other files.

    An example of --test_file that is not to be scored has no label. Also returns what the report says
    of files, columns and labels.

    Raises:
      UserError: they cannot be used, or do not fit the flags.
    """
    # === Tables ===
    given = [values.text_column, values.text_pair_column, values.label_column]
    table, is_scored = table_flags.open_table(values, "train_file"), False
    columns = find_columns(table, *given, several=values.label_columns)
    examples = {"train": read_examples(table, columns)}
    names = [None if n is None else table.names[n] for n in (columns.text, columns.pair, columns.label)]
    several = [table.names[n] for n in columns.flags]
    for split in ("dev", "test"):
        if not getattr(values, f"{split}_file"):
            continue
        other, is_dev = table_flags.open_table(values, f"{split}_file"), split == "dev"
        needs_label = is_dev or {*filter(None, names[2:]), *several} <= {*other.names}
        of_split = find_columns(
            other, *(name if one is None else one for one, name in zip(given[:2], names[:2], strict=True)),
            names[2] if needs_label else None, needs_label, several if needs_label else ())
        examples[split] = read_examples(other, of_split, is_complete=is_dev)
        is_scored = needs_label and not is_dev

    # === Labels ===
    labels: tuple[str, ...] = ()
    if values.label_list:
        labels = tuple(map(label_name, flags.parse_labels(values.label_list)))
    elif not values.regression:
        labels = tuple(several or labels_of(values.train_file, examples["train"] + examples.get("dev", [])))
    has_several = isinstance(examples["train"][0].label, tuple)
    if "dev" in examples and isinstance(examples["dev"][0].label, tuple) != has_several:
        raise DataError(f"{values.dev_file}: {'one label' if has_several else 'a list of labels'} per text, "
                        "unlike --train_file")
    if has_several and values.regression:
        raise FlagError("--regression takes one number per text, not lists")
    if flags.given(values, "threshold") and not has_several:
        raise FlagError("--threshold has no effect: every text has one label")
    for split, rows in examples.items():
        examples[split] = with_known_labels(rows, labels, tokenizer.preprocess, is_strict=split != "test")

    # === Held-out rows ===
    rows = examples["train"]
    if values.dev_file:
        of_file, trained = examples["dev"], set(map(texts_of, rows))
        examples["dev"] = [one for one in of_file if texts_of(one) not in trained]
        if not examples["dev"]:
            raise DataError(f"--dev_file={values.dev_file}: --train_file has all its texts, so nothing "
                            "is held out: leave the flag out, or give other rows")
        held_out = values.dev_file
        if copies := len(of_file) - len(examples["dev"]):
            held_out += f" without {copies:,} of {len(of_file):,} rows, which are in the training file too"
            flags.log.warning("%s: left out %s of %s rows, whose texts are in --train_file too",
                              values.dev_file, f"{copies:,}", f"{len(of_file):,}")
    else:
        examples["train"], examples["dev"] = split_off(rows, values.dev_share, values.seed)
        held_out = f"{len(examples['dev']):,} of {len(rows):,} rows"
        if not (examples["train"] and examples["dev"]):
            missing = "left" if examples["dev"] else "held out"
            raise DataError(f"{values.train_file}: none of {len(rows):,} rows is {missing}: give more rows, "
                            "another --dev_share, or --dev_file")

    # === Test rows to score: those with a label, except for those that are trained on ===
    tested, trained = examples.get("test", []), set(map(texts_of, examples["train"]))
    unknown = [one for one in tested if one.label is None or isinstance(one.label, tuple) != has_several]
    copied = [one for one in tested if texts_of(one) in trained]
    for said, left_out in (("have none of the labels", unknown), ("are training rows", copied)):
        if is_scored and left_out:
            flags.log.warning("%s: %s of %s rows %s, the first at %s, and are not scored", values.test_file,
                              f"{len(left_out):,}", f"{len(tested):,}", said, left_out[0].place)
    left_out = {one.guid for one in unknown + copied}
    if tested:
        examples["test"] = [
            dataclasses.replace(one, label=None) if one.guid in left_out else one for one in tested
        ]

    # === The data ===
    trained_labels, held_out_labels = ([one.label for one in examples[split]] for split in ("train", "dev"))
    warn_of_labels(values.train_file, trained_labels, labels, () if values.dev_file else held_out_labels)
    used = {"text_column": columns.text, "text_pair_column": columns.pair}  # by number, if it has no name
    settings = {name: n if n is None else table.names[n] or str(n) for name, n in used.items()}
    if has_several:
        settings["label_threshold"] = values.threshold
    if values.regression:
        mean, deviation = float(np.mean(trained_labels)), float(np.std(trained_labels)) or 1.0
        with np.errstate(over="ignore"):  # records hold 32-bit numbers
            lost = np.abs(np.array(trained_labels, np.float32) - np.array(trained_labels)).max()
        if not lost < 0.01 * deviation:
            raise DataError(f"{values.train_file}: numbers around {mean:g} that differ by {deviation:g} "
                            "cannot be told apart in 32 bits: subtract a number from all, or divide them")
        settings |= {"label_mean": mean, "label_deviation": deviation}
    data = FineTuningData(
        OWN_TABLE, examples, labels, settings, trained_on=examples["train"], is_split=not values.dev_file
    )
    named = ", ".join(filter(None, [*names, *several]))[:300]
    choices = {"file": values.train_file, "columns": named, "held out": held_out}
    return data, choices | ({"labels": ", ".join(labels)[:300]} if labels else {})


# === Settings by the sizes of model and data ===


def choose_settings(
    values: flags.FlagValues, settings: finetune.Settings, encoder: Encoder, data: FineTuningData
) -> tuple[finetune.Settings, dict[str, str]]:
    """Returns the settings, with those that no flag gives chosen by the sizes of model and data.

    Also returns what the report says of them.
    """
    config, tokenizer, choices = encoder.config, encoder.tokenizer, {}
    rows, num_rows = [*data.examples["train"], *data.examples["dev"]], len(data.examples["train"])
    num_held_out, has_pairs = len(rows) - num_rows, any(one.text_b for one in rows[:num_rows])

    def choose(name: str, value: Any, reason: str) -> Any:
        if flags.given(values, name) is not None:
            value, reason = getattr(values, name), "given"
        choices[f"--{name}"] = f"{value if isinstance(value, str) else f'{value:g}'} ({reason})"
        return value

    # === What the model reads of the texts ===
    all_ids = tokenizer.encode_batch([" ".join(filter(None, (one.text_a, one.text_b))) for one in rows])
    if unknown := tokenizer.unknown_tokens():
        choices["texts"] = unknown
    labels: dict[tuple[int, ...], set] = {}
    for ids, one in zip(all_ids, rows, strict=True):
        labels.setdefault(tuple(ids), set()).add(one.label)
    contradictions = sum(len(labels[tuple(ids)]) > 1 for ids in all_ids)
    if contradictions and data.labels:
        choices["contradictions"] = (f"{contradictions:,} of {len(rows):,} rows have the same tokens as "
                                     "another row, and another label")

    # === Length, optimizer, batches ===
    # With [CLS] and one or two [SEP].
    lengths = np.array([len(ids) + 2 + bool(one.text_b) for ids, one in zip(all_ids, rows, strict=True)])
    length = sequence_length(lengths, config.max_position_embeddings)
    suits, optimizer = f"for a model of width {config.hidden_size}", settings.optimizer
    # A rate that the user gives is AdamW's, unless they name another optimizer.
    if not {flags.given(values, name) for name in ("optimizer", "learning_rate")} - {None}:
        optimizer = best_optimizer(config.hidden_size, has_pairs)
    # Among few rows, the best of several evaluations is a matter of luck; the last weights failed on
    # no seed (docs/evidence/results.md).
    keep_last = num_held_out < ENOUGH_ROWS
    settings = dataclasses.replace(
        settings,
        max_seq_length=choose("max_seq_length", length,
                              f"{100 * np.mean(lengths <= length):.0f} % of the texts fit"),
        optimizer=choose("optimizer", optimizer, suits),
        learning_rate=choose("learning_rate", learning_rate(optimizer, config.hidden_size), suits),
        train_batch_size=choose("train_batch_size", 32 if num_rows >= 2000 else 16, f"for {num_rows:,} rows"),
        keep_last=keep_last,
    )
    if keep_last:
        choices["checkpoint"] = f"the last ({num_held_out:,} held-out rows are too few to choose one)"

    # === Steps ===
    if flags.given(values, "train_step") is None:
        num_epochs = choose("num_train_epochs", epochs(num_rows, has_pairs),
                            f"for {num_rows:,} {'pairs' if has_pairs else 'rows'}")
        settings = dataclasses.replace(settings, train_step=None, num_train_epochs=num_epochs)
        settings = settings.with_steps(num_rows)
        per_epoch = max(1, round(settings.train_step / num_epochs))
        settings = dataclasses.replace(
            settings,
            warmup_step=choose("warmup_step", settings.train_step // 10, "a tenth of the steps"),
            save_checkpoints_steps=choose("save_checkpoints_steps", per_epoch, "each epoch"),
        )
    return settings, choices


def best_optimizer(hidden_size: int, has_pairs: bool) -> str:
    """Returns the optimizer that suits models of this width and texts (docs/evidence/results.md)."""
    return "adamw" if has_pairs or hidden_size >= 384 else "lamb"


def learning_rate(optimizer: str, hidden_size: int) -> float:
    """Returns a learning rate that suits models of this width; AdamW needs less for wider ones."""
    if optimizer == "lamb":
        return 2e-3
    for least, rate in ((2048, 1e-5), (768, 3e-5), (384, 5e-5), (256, 1e-4)):
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
