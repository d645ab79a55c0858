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

from albert.cli import course, fine_tuning, flags, own_texts
from albert.errors import FlagError
from albert.formats import known_tasks
from albert.formats.known_tasks import TSV
from albert.tasks import glue, tsv

# What only --task_name=tsv looks at.
TSV_FLAGS = ("label_list", "text_column", "text_pair_column", "label_column", "regression",
             "tsv_header")


def define_flags(values: flags.FlagValues) -> None:
    """The original's flags with its defaults, and a few of ours."""
    flags.define("path", values, "data_dir", None,
                 "Folder with the tasks' folders. Required without --train_file.", use="file")
    flags.define("string", values, "task_name", None,
                 f"One of {', '.join(glue.TASKS)} and {TSV}. Required without --train_file.")
    own_texts.define_flags(values)
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
                 "Whether the files of --task_name=tsv start with the columns' names. Of a "
                 "--train_file this is found out where columns are given by number.")
    fine_tuning.define_encoder_flags(values)
    flags.define("float", values, "classifier_dropout", 0.1,
                 "Dropout on the pooled output (classifier DR of the paper's table 14).",
                 least=0, below=1)
    flags.define("enum", values, "optimizer", "adamw", "Optimizer.", enum_values=["adamw", "lamb"])
    flags.define("path", values, "export_dir", None,
                 "Write a SavedModel that takes serialized tf.Example strings there.", use="output")
    flags.define("float", values, "threshold_to_export", float("nan"),
                 "A constant that the exported model returns beside its predictions.",
                 may_be_nan=True)
    fine_tuning.define_training_flags(
        values, learning_rate=5e-5, train_step=1000, warmup_step=0, save_checkpoints_steps=1000,
        by_default=False,
    )


def _check(values: flags.FlagValues) -> None:
    own_texts.check_flags(values)
    if values.train_file:
        flags.require(values, "output_dir")
    else:
        flags.require(values, "data_dir", "task_name", "output_dir")
        _check_task_flags(values)
    if values["threshold_to_export"].present and not values.export_dir:
        raise FlagError("--threshold_to_export goes with --export_dir")
    fine_tuning.check_training_flags(values, "export_dir")
    fine_tuning.check_encoder_flags(values)


def _check_task_flags(values: flags.FlagValues) -> None:
    name = values.task_name.lower()
    if name == TSV:
        _check_tsv_flags(values)
    elif name not in glue.TASKS:
        raise FlagError(
            f"--task_name={values.task_name} is not one of {', '.join(glue.TASKS)}, {TSV}"
        )
    else:
        given = flags.given_as_typed(values, *TSV_FLAGS)
        if given:
            raise FlagError(f"{', '.join(given)}: only --task_name=tsv takes this")


def _check_tsv_flags(values: flags.FlagValues) -> None:
    flags.require(values, "text_column")
    if bool(values.label_list) == values.regression:
        raise FlagError("--task_name=tsv needs --label_list=a,b,c or --regression, one of them")
    if values.label_list:
        known_tasks.parse_labels(values.label_list)
    if (values.do_train or values.do_eval) and values.label_column is None:
        raise FlagError("--label_column is needed for --do_train and --do_eval")


def _identity(values: flags.FlagValues, encoder: fine_tuning.Encoder):
    name = values.task_name.lower()
    if name in glue.TASKS:
        labels = glue.TASKS[name].labels
    else:
        labels = known_tasks.parse_labels(values.label_list) if values.label_list else ()
    return fine_tuning.identity_of(values, encoder, name, labels=labels)


def _glue_task(values: flags.FlagValues, splits: list[str]) -> glue.GlueTask:
    name = values.task_name.lower()
    if name in glue.TASKS:
        return glue.TASKS[name]
    return tsv.make_task(
        values.data_dir, splits,
        labels=known_tasks.parse_labels(values.label_list) if values.label_list else (),
        text=values.text_column, text_pair=values.text_pair_column, label=values.label_column,
        has_header=values.tsv_header,
    )


def main(values: flags.FlagValues) -> None:
    _check(values)
    own = None
    if values.train_file:
        own = own_texts.OwnTexts(values)
        _check_tsv_flags(values)
    encoder = fine_tuning.open_encoder(values)
    identity = _identity(values, encoder)
    if own:
        own.publish(encoder)
    splits = fine_tuning.wanted_splits(values)
    glue_task = _glue_task(values, splits)
    for split in splits:
        glue_task.path(values.data_dir, split)
    examples = {
        split: glue.read_examples(glue_task, values.data_dir, split, encoder.tokenizer.preprocess)
        for split in splits
    }
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
        glue_task.labels if glue_task.name == TSV else (),
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
        if own and values.do_eval and not glue_task.is_regression:
            _report(values, glue_task, examples["dev"], trained, own.told)

    course.Course(
        values, task, encoder, identity, records,
        finish if values.do_predict or values.export_dir or values.train_file else None,
    ).go()


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
