"""Fine-tunes ALBERT on a GLUE task or on your own labelled texts, evaluates it and predicts.

  python -m albert.run_classifier --data_dir=glue --task_name=MNLI --output_dir=out \\
      --init_checkpoint=albert_base/model.ckpt-best \\
      --albert_config_file=albert_base/albert_config.json \\
      --spm_model_file=albert_base/30k-clean.model --do_train --do_eval --do_predict \\
      --max_seq_length=128 --learning_rate=3e-5 --train_step=10000 --warmup_step=1000 \\
      --save_checkpoints_steps=100

With --do_eval every checkpoint is evaluated and the best is kept; evaluation
alone, prediction and export use it. The same command again goes on from the
newest checkpoint of --output_dir.

--task_name=tsv takes train.tsv, dev.tsv and test.tsv of --data_dir, with
--text_column, --text_pair_column and --label_column (names of the header, or
numbers from 0) and --label_list=a,b,c, or --regression for numbers.

Your own labelled texts in one file need two flags more:

  python -m albert.run_classifier --init_checkpoint=albert_base.tar.gz \\
      --train_file=my.csv --output_dir=out

Columns and labels are found, a part is held out to measure with, and rate, length and epochs
follow from the sizes of model and file. The flags decide otherwise. At the end out/report.md
says how good the classifier is.
"""

import os
from typing import Any

from albert.cli import course, fine_tuning, flags
from albert.data import files
from albert.errors import FlagError
from albert.formats.known_tasks import TSV
from albert.tasks import glue, own_file, tsv

# What only --task_name=tsv looks at.
TSV_FLAGS = ("label_list", "text_column", "text_pair_column", "label_column", "regression")


def define_flags(values: flags.FlagValues) -> None:
    """The original's flags with its defaults, and a few of ours."""
    flags.define("string", values, "data_dir", None,
                 "Folder with the tasks' folders. Required without --train_file.")
    flags.define("string", values, "task_name", None,
                 f"One of {', '.join(glue.TASKS)} and {TSV}. Required without --train_file.")
    flags.define("string", values, "train_file", None,
                 "Your own labelled texts: *.csv, *.tsv or *.jsonl, also packed. Instead of "
                 "--task_name and --data_dir.")
    flags.define("string", values, "dev_file", None,
                 "Labelled texts to measure with; by default a part of --train_file.")
    flags.define("float", values, "dev_share", 0.1,
                 "The part of --train_file that is held out, of each label.", above=0, below=1)
    flags.define("enum", values, "class_weights", "none",
                 "balanced: rows of rare labels count more in the loss, so that all labels count "
                 "the same.", enum_values=["none", "balanced"])
    flags.define("string", values, "label_list", None,
                 "Labels of --task_name=tsv, separated by commas, in the order of their ids. With "
                 "--train_file by default those that occur.")
    flags.define("bool", values, "regression", False,
                 "Whether the labels of --task_name=tsv are numbers.")
    flags.define("string", values, "text_column", None,
                 "Column of the text in --task_name=tsv: its name, or its number from 0.")
    flags.define("string", values, "text_pair_column", None, "Column of the second text, if any.")
    flags.define("string", values, "label_column", None, "Column of the label.")
    flags.define("bool", values, "tsv_header", True,
                 "Whether the files of --task_name=tsv start with the columns' names.")
    fine_tuning.define_encoder_flags(values)
    flags.define("float", values, "classifier_dropout", 0.1,
                 "Dropout on the pooled output (classifier DR of the paper's table 14).",
                 least=0, below=1)
    flags.define("enum", values, "optimizer", "adamw", "Optimizer.", enum_values=["adamw", "lamb"])
    flags.define("string", values, "export_dir", None,
                 "Write a SavedModel that takes serialized tf.Example strings there.")
    flags.define("float", values, "threshold_to_export", float("nan"),
                 "A constant that the exported model returns beside its predictions.",
                 may_be_nan=True)
    fine_tuning.define_training_flags(
        values, learning_rate=5e-5, train_step=1000, warmup_step=0, save_checkpoints_steps=1000,
        by_default=False,
    )


def _check(values: flags.FlagValues) -> None:
    if values.train_file:
        _check_own_file(values)
        return
    flags.require(values, "data_dir", "task_name", "output_dir")
    if values.dev_file:
        raise FlagError("--dev_file goes with --train_file")
    name = values.task_name.lower()
    if name == TSV:
        _check_tsv_flags(values)
    elif name not in glue.TASKS:
        raise FlagError(
            f"--task_name={values.task_name} is not one of {', '.join(glue.TASKS)}, {TSV}"
        )
    else:
        given = [f"--{flag}" for flag in TSV_FLAGS if getattr(values, flag)]
        if given:
            raise FlagError(f"{', '.join(given)}: only --task_name=tsv takes this")
    fine_tuning.check_training_flags(values, "export_dir")
    fine_tuning.check_encoder_flags(values)


def _check_own_file(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    for name in ("data_dir", "task_name", "do_predict"):
        if getattr(values, name):
            raise FlagError(f"--{name} does not go with --train_file")
    # Without a word about it, everything is done.
    if flags.given(values, "do_train") is None and flags.given(values, "do_eval") is None:
        values.do_train = values.do_eval = True
    elif values.do_train and not values.do_eval:
        raise FlagError("--train_file holds rows out to measure with: add --do_eval")
    fine_tuning.check_training_flags(values, "export_dir")
    fine_tuning.check_encoder_flags(values)


def _check_tsv_flags(values: flags.FlagValues) -> None:
    flags.require(values, "text_column")
    if bool(values.label_list) == values.regression:
        raise FlagError("--task_name=tsv needs --label_list=a,b,c or --regression, one of them")
    labels = _label_list(values)
    if values.label_list and (len(labels) < 2 or "" in labels or len(set(labels)) < len(labels)):
        raise FlagError(f"--label_list={values.label_list} is not two or more different labels")
    if (values.do_train or values.do_eval) and values.label_column is None:
        raise FlagError("--label_column is needed for --do_train and --do_eval")


def _label_list(values: flags.FlagValues) -> list[str]:
    return [label.strip() for label in values.label_list.split(",")] if values.label_list else []


def _glue_task(values: flags.FlagValues, splits: list[str]) -> glue.GlueTask:
    name = values.task_name.lower()
    if name in glue.TASKS:
        return glue.TASKS[name]
    return tsv.make_task(
        values.data_dir, splits, labels=_label_list(values), text=values.text_column,
        text_pair=values.text_pair_column, label=values.label_column,
        has_header=values.tsv_header,
    )


def main(values: flags.FlagValues) -> None:
    _check(values)
    told = _use_own_file(values) if values.train_file else []
    splits = fine_tuning.wanted_splits(values)
    glue_task = _glue_task(values, splits)
    for split in splits:
        glue_task.path(values.data_dir, split)
    encoder = fine_tuning.open_encoder(values)
    examples = {
        split: glue.read_examples(glue_task, values.data_dir, split, encoder.tokenizer.preprocess)
        for split in splits
    }
    if values.train_file:
        told += _suit(values, encoder, examples)
    if values.do_train:
        fine_tuning.warn_of_labels(
            glue_task.path(values.data_dir, "train"), (one.label for one in examples["train"]),
            glue_task.labels,
        )
    keeper = fine_tuning.record_keeper(values, encoder)
    records = {
        split: glue.example_records(glue_task, examples[split], values.data_dir, split, keeper)
        for split in splits
    }
    fine_tuning.set_steps(values, records)

    flags.start_engine(values)  # takes seconds, so all input is checked before
    from albert.tasks import classification

    task = classification.ClassificationTask(
        glue_task.name, values.max_seq_length, glue_task.num_labels, glue_task.is_regression,
        glue_task.metric, glue_task.best_metric, values.classifier_dropout,
        _class_weights(values, glue_task, examples.get("train", ())),
    )

    def finish(trained: course.Trained) -> None:
        if values.do_predict:
            predictions = trained.predict("test").predictions
            trained.tell(glue.write_predictions(
                glue_task, examples["test"], predictions, values.output_dir
            ))
        if values.export_dir:
            from albert.tasks import classification_export  # knows TensorFlow

            trained.export(classification_export.export, task, values.threshold_to_export)
        if values.train_file and values.do_eval and not glue_task.is_regression:
            _report(values, glue_task, examples["dev"], trained, told)

    def check(weights) -> None:
        if values.label_list:
            fine_tuning.refuse_other_labels(weights, glue_task.labels, ",")

    course.Course(
        values, task, encoder, records, check,
        finish if values.do_predict or values.export_dir or values.train_file else None,
    ).go()


# === Texts in one file ===


def _use_own_file(values: flags.FlagValues) -> list[tuple[str, str]]:
    """Parts --train_file, and sets the flags as if its parts had been given as --task_name=tsv.

    Returns what was found, for the report.
    """
    table = own_file.read_table(values.train_file, "train_file", values.tsv_header)
    columns = own_file.find_columns(
        table, values.text_column, values.text_pair_column, values.label_column
    )
    train = own_file.rows_of(table, columns)
    if values.dev_file:
        other = own_file.read_table(values.dev_file, "dev_file", values.tsv_header)
        dev = own_file.rows_of(other, own_file.find_columns(
            other, columns.text, columns.pair, columns.label
        ))
        held_out = values.dev_file
    else:
        train, dev = own_file.parted(train, values.dev_share, values.seed, not values.regression)
        held_out = f"{len(dev):,} of {len(train) + len(dev):,} rows"
    if not values.regression and not values.label_list:
        values.label_list = ",".join(own_file.labels_of([*train, *dev], table, columns))
    folder = files.make_dirs(os.path.join(values.output_dir, "own_data"))
    for name, rows in (("train", train), ("dev", dev)):
        own_file.write_rows(os.path.join(folder, f"{name}.tsv"), rows, columns)
    values.task_name, values.data_dir, values.tsv_header = TSV, folder, True
    values.text_column, values.label_column = own_file.TEXT, own_file.LABEL
    values.text_pair_column = own_file.PAIR if columns.pair else None
    _check_tsv_flags(values)
    if flags.given(values, "max_seq_length") is None:
        values.max_seq_length = 4  # until the texts are counted
    named = [columns.text, *([columns.pair] if columns.pair else []), columns.label]
    found = [("file", values.train_file), ("columns", ", ".join(named)), ("held out", held_out)]
    if values.label_list:
        found.append(("labels", values.label_list.replace(",", ", ")))
    for name, value in found:
        flags.log.info("%s: %s", name, value)
    return found


def _suit(values: flags.FlagValues, encoder, examples) -> list[tuple[str, str]]:
    """Sets what the user did not give by the sizes of model and file; returns all of it."""
    config, rows = encoder.config, [row for some in examples.values() for row in some]
    count = len(examples.get("train", ()))

    def choose(name: str, value: Any, why: str) -> tuple[str, str]:
        if flags.given(values, name) is not None:
            return f"--{name}", f"{getattr(values, name)} (given)"
        setattr(values, name, value)
        return f"--{name}", f"{value:g} ({why})"

    texts = [" ".join(filter(None, (row.text_a, row.text_b))) for row in rows]
    lengths = [len(ids) + 3 for ids in encoder.tokenizer.encode_batch(texts)]
    chosen = [
        choose("max_seq_length",
               own_file.row_length(lengths, config.max_position_embeddings),
               "99 % of the texts fit"),
        choose("learning_rate", own_file.learning_rate(config.hidden_size),
               f"for a model of width {config.hidden_size}"),
        choose("train_batch_size", 32 if count >= 2000 else 16, f"for {count:,} rows"),
    ]
    if flags.given(values, "train_step") is None:
        chosen.append(choose("num_train_epochs", own_file.epochs(count), f"for {count:,} rows"))
        steps = fine_tuning.steps_of(values, count) if count else 0
        if steps:
            chosen.append(choose("warmup_step", steps // 10, "a tenth of the steps"))
            per_epoch = max(1, round(steps / values.num_train_epochs))
            chosen.append(choose("save_checkpoints_steps", per_epoch, "each epoch"))
    for name, value in chosen:
        flags.log.info("%s=%s", name, value)
    return chosen


def _class_weights(values: flags.FlagValues, task: glue.GlueTask, rows) -> tuple[float, ...]:
    """Returns the weight of each label in the loss; nothing if all weigh 1."""
    if values.class_weights == "none" or not rows:
        return ()
    if task.is_regression:
        raise FlagError("--class_weights has no effect on a regression")
    counts = [sum(row.label == label for row in rows) for label in task.labels]
    if 0 in counts:
        raise FlagError(
            f"--class_weights=balanced: no training row has the label "
            f"{task.labels[counts.index(0)]}"
        )
    return tuple(len(rows) / (len(counts) * count) for count in counts)


def _report(values: flags.FlagValues, task: glue.GlueTask, rows, trained, told) -> None:
    from albert.cli import classifier_report

    predictions = trained.predict("dev").predictions
    path = classifier_report.write(values.output_dir, classifier_report.HeldOut(
        [" | ".join(filter(None, (row.text_a, row.text_b))) for row in rows], task.labels,
        predictions["label_ids"], predictions["logits"], predictions["probabilities"],
    ), told)
    flags.log.info("report: %s", path)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
