"""Fine-tunes ALBERT on a GLUE task or on your own labelled texts, evaluates it and predicts.

  python -m albert.run_classifier --data_dir=glue --task_name=MNLI --output_dir=out \\
      --init_checkpoint=albert_base/model.ckpt-best \\
      --albert_config_file=albert_base/albert_config.json \\
      --spm_model_file=albert_base/30k-clean.model --do_train --do_eval --do_predict \\
      --max_seq_length=128 --learning_rate=3e-5 --train_step=10000 --warmup_step=1000 \\
      --save_checkpoints_steps=100

With --do_eval every checkpoint is evaluated and the best is kept, which is the one that later
evaluations, predictions and exports use. Rerun the command and it resumes from the newest
checkpoint of --output_dir.

For your own labelled texts in one file, three flags are enough:

  python -m albert.run_classifier --init_checkpoint=albert_base.tar.gz \\
      --train_file=my.csv --output_dir=out

It detects columns and labels, holds out a part for evaluation, and chooses learning rate, length
and epochs by the sizes of model and file, unless flags say otherwise. At the end, out/report.md
says how good the classifier is. --dev_file names a file to evaluate on instead, --test_file one
with texts to label. With fewer than 500 rows to evaluate on, the last weights are kept instead of
the best.
"""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np

from albert.cli import classifier_report, fine_tuning_settings, flags, own_texts
from albert.cli.classifier_report import Folds
from albert.cli.encoder import open_encoder
from albert.cli.fine_tuning import FineTuning, work_directory
from albert.cli.fine_tuning_settings import FineTuningSettings, settings_of
from albert.errors import FlagError
from albert.formats import run_states
from albert.formats.known_tasks import TSV
from albert.storage import files
from albert.tasks import baselines, glue, glue_metrics, own_file
from albert.tasks.glue import Example


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags with its defaults, and a few new ones."""
    flags.define("path", values, "data_dir", None,
                 "Folder with the tasks' folders. Required without --train_file.", use="file")
    flags.define("string", values, "task_name", None,
                 f"One of {', '.join(glue.TASKS)}. Required without --train_file.")
    own_texts.define_flags(values)
    flags.define("enum", values, "class_weights", "none",
                 "balanced: weight the loss so that all labels count the same, however rare.",
                 enum_values=["none", "balanced"])
    fine_tuning_settings.define_encoder_flags(values)
    flags.define("float", values, "classifier_dropout", 0.1,
                 "Dropout on the pooled output (classifier DR of the paper's table 14).",
                 lower_bound=0, below=1)
    flags.define("enum", values, "optimizer", "adamw", "Optimizer.", enum_values=["adamw", "lamb"])
    flags.define("path", values, "export_dir", None,
                 "Directory for a SavedModel that takes serialized tf.Example strings.", use="output")
    flags.define("float", values, "threshold_to_export", float("nan"),
                 "Constant that the exported model returns with its predictions.", may_be_nan=True)
    fine_tuning_settings.define_training_flags(
        values, learning_rate=5e-5, train_step=1000, warmup_step=0, save_checkpoints_steps=1000,
        by_default=False,
    )


def classifier_settings(values: flags.FlagValues) -> FineTuningSettings:
    """Returns the settings of the flags."""
    own_texts.check_flags(values)
    if values["threshold_to_export"].present and not values.export_dir:
        raise FlagError("--threshold_to_export needs --export_dir")
    if not values.train_file:
        flags.require(values, "data_dir", "task_name", "output_dir")
        if values.task_name.lower() not in glue.TASKS:
            raise FlagError(f"--task_name={values.task_name} is not one of {', '.join(glue.TASKS)}")
        return settings_of(values)
    actions = {}
    if not any(values[name].present for name in ("do_train", "do_eval", "do_predict")):
        actions = {"do_train": True, "do_eval": True, "do_predict": bool(values.test_file)}
    return settings_of(values, **actions)


class ClassifierFineTuning(FineTuning):
    """Fine-tunes a classifier or a regression model.

    Args:
      choices: columns, labels and settings of --train_file, for the report.
      train_rows, folds: training data of the TF-IDF baseline, and cross-validation, for the report.
    """

    def __init__(self, values, settings, encoder, data, choices=(), train_rows=(), folds=None):
        super().__init__(values, settings, encoder, data)
        self.choices, self.train_rows, self.folds = choices, train_rows, folds
        self.class_weights: tuple[float, ...] = ()
        self.has_report = bool(choices and data.labels) and settings.do_eval
        if settings.do_train and values.class_weights == "balanced":
            if data.has_several:
                raise FlagError("--class_weights has no effect where a text may have several labels")
            labels = [example.label for example in data.examples["train"]]
            self.class_weights = balanced_weights(labels, data.labels)
        if self.has_report:
            self.uses_weights = True

    def write_records(self, split):
        return glue.example_records(self.data, split, self.keeper)

    def make_task(self):
        from albert.tasks.classification import ClassificationTask

        data, labels = self.data, self.data.labels
        if data.has_several:
            metric = "several_labels"
        elif data.task in glue.TASKS:
            metric = glue.TASKS[data.task].metric
        else:
            metric = "accuracy" if labels else "regression"
        return ClassificationTask(
            data.task, self.settings.max_seq_length, len(labels) or 1, not labels, metric,
            glue_metrics.best_metric(metric), self.values.classifier_dropout, self.class_weights,
            labels if data.task == TSV else (), data.settings.get("label_threshold"),
        )

    def predict(self, result):
        predictions = self.evaluate(result, "test").predictions
        return glue.write_predictions(self.data, predictions, self.settings.output_dir)

    def export(self, model, directory, complete):
        from albert.tasks import serving  # imports TensorFlow

        threshold = self.values.threshold_to_export
        serving.export_classifier(model, directory, self.task, threshold, complete)

    def finish(self, result):
        super().finish(result)
        if not self.has_report:
            return
        rows, predictions = self.data.examples["dev"], self.evaluate(result, "dev").predictions
        settings, labels, train = self.settings, self.data.labels, self.train_rows
        if has_several := self.data.has_several:
            trained = np.array([[label in row.label for label in labels] for row in train])
        else:
            trained = np.array([labels.index(row.label) for row in train])
        tfidf = baselines.tfidf_answers(_texts_of(train), trained, _texts_of(rows))
        shown = settings.output_dir, _texts_of(rows), labels
        if has_several:
            path = classifier_report.write_several(
                *shown, predictions["label_ids"] > 0, predictions["probabilities"],
                self.data.settings["label_threshold"], self.choices,
                None if tfidf is None else tfidf > 0,
            )
        else:
            path = classifier_report.write(
                *shown, predictions["label_ids"], predictions["logits"],
                predictions["probabilities"], self.choices, tfidf,
                1 if settings.keep_last else len(run_states.evaluations(result.run.output_dir)),
                self.folds,
            )
        flags.log.info("report: %s", path)


def cross_validate(values, settings, encoder, data) -> Folds:
    """Trains without each fold in turn, and returns the accuracies on the held-out folds."""
    if data.has_several or not settings.do_train:
        raise FlagError("--cross_validation needs --do_train, and one label per text")
    accuracies, tfidf = [], []
    rows = [*data.examples["train"], *data.examples["dev"]]
    for number, (train, held_out) in enumerate(
        own_file.folds(rows, values.cross_validation, values.seed), 1
    ):
        if not held_out:
            raise FlagError(f"--cross_validation={values.cross_validation}: only {len(rows)} rows")
        folder = os.path.join(work_directory(values), f"fold-{number}")
        flags.log.info("fold %d of %d: %s", number, values.cross_validation, folder)
        # Evaluates the last weights: held-out rows must not choose the checkpoint.
        fold = dataclasses.replace(
            settings, output_dir=folder, do_predict=False, export_dir=None,
            save_checkpoints_steps=settings.train_step,
        )
        examples = {"train": train, "dev": held_out}
        ClassifierFineTuning(
            values, fold, encoder, dataclasses.replace(data, examples=examples, is_split=False)
        ).run()
        results = files.read_json_object(os.path.join(folder, "eval_results.json"))
        accuracies.append(results["eval_accuracy"])
        answers = baselines.tfidf_answers(
            _texts_of(train), [row.label for row in train], _texts_of(held_out)
        )
        if answers is not None:
            tfidf.append(float(np.mean(answers == [row.label for row in held_out])))
    folds = Folds(accuracies, tfidf, len(rows))
    for name, score in folds.rows():
        flags.log.info("%s: %s", name, score)
    return folds


def _texts_of(rows: Sequence[Example]) -> list[str]:
    return [" | ".join(filter(None, (row.text_a, row.text_b))) for row in rows]


def balanced_weights(labels: Sequence[str], known: Sequence[str]) -> tuple[float, ...]:
    """Returns the loss weights of the known labels with which all count the same."""
    if not known:
        raise FlagError("--class_weights has no effect on a regression")
    counts = [labels.count(label) for label in known]
    if 0 in counts:
        raise FlagError(
            f"--class_weights=balanced: no training row has the label {known[counts.index(0)]}"
        )
    return tuple(len(labels) / (len(counts) * count) for count in counts)


def main(values: flags.FlagValues) -> None:
    settings, train_rows, folds = classifier_settings(values), (), None
    if values.train_file:
        encoder = open_encoder(values, flags.given(values, "max_seq_length"))
        texts = own_texts.OwnTexts(values, encoder)
        settings, data, choices = texts.suit(settings), texts.data, texts.choices
        train_rows = data.examples["train"]
        if values.cross_validation:
            folds = cross_validate(values, settings, encoder, data)
        data = dataclasses.replace(
            data, examples={split: data.examples[split] for split in settings.splits}
        )
    else:
        encoder = open_encoder(values, settings.max_seq_length)
        data, choices = glue.read_data(
            glue.TASKS[values.task_name.lower()], values.data_dir, settings.splits,
            encoder.tokenizer.preprocess,
        ), ()
    ClassifierFineTuning(values, settings, encoder, data, choices, train_rows, folds).run()


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
