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
import math
import os
import time
from collections.abc import Sequence

import numpy as np

from albert.cli import classifier_report, fine_tuning_settings, flags, own_texts
from albert.cli.classifier_report import Rows
from albert.cli.encoder import open_encoder
from albert.cli.fine_tuning import FineTuning, weights_to_use, work_directory
from albert.cli.fine_tuning_settings import FineTuningSettings, settings_of
from albert.errors import FlagError
from albert.formats import checkpoints, run_states
from albert.formats.known_tasks import TSV
from albert.formats.weights import REGRESSION_HEAD
from albert.inference import fine_tuned
from albert.inference.session import Session
from albert.tasks import baselines, glue, glue_metrics, own_file
from albert.tasks.glue import Example
from albert.training import summaries


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
                 "Directory for a SavedModel from texts to labels (needs tensorflow-text), as "
                 "export_model writes it.", use="output")
    flags.define("float", values, "threshold_to_export", float("nan"),
                 "No effect.", may_be_nan=True)
    fine_tuning_settings.define_training_flags(
        values, learning_rate=5e-5, train_step=1000, warmup_step=0, save_checkpoints_steps=1000,
        by_default=False,
    )


def classifier_settings(values: flags.FlagValues) -> FineTuningSettings:
    """Returns the settings of the flags."""
    own_texts.check_flags(values)
    if values.export_dir and flags.requested_engine(values) != "tensorflow":
        raise FlagError("--export_dir needs TensorFlow: train without it, then use albert.export_model")
    if values["threshold_to_export"].present:
        flags.log.warning("--threshold_to_export: no effect, the exported model returns probabilities")
    if not values.train_file:
        if not (values.data_dir or values.task_name):
            raise FlagError("--train_file is required: a table of your labelled texts; or --task_name and "
                            "--data_dir for a task of GLUE (see --help)")
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
      texts: --train_file, for the report.
      train_rows: training data of the report's baselines.
    """

    def __init__(self, values, settings, encoder, data, texts=None, train_rows=()):
        super().__init__(values, settings, encoder, data)
        self.texts, self.train_rows = texts, train_rows
        self.class_weights: tuple[float, ...] = ()
        self.held_out: Rows | None = None  # with the answers, once they were evaluated
        self.tested: list[Rows] = []
        self.training_seconds = 0.0  # of a training that this process made from its start
        if settings.do_train and values.class_weights == "balanced":
            if data.has_several:
                raise FlagError("--class_weights has no effect where a text may have several labels")
            labels = [example.label for example in data.examples["train"]]
            self.class_weights = balanced_weights(labels, data.labels)
        if texts and settings.do_eval:
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
            **self._units(),
        )

    def _units(self) -> dict[str, float]:
        """Returns mean and deviation by which the labels of a regression are standardized."""
        names, recorded = ("label_mean", "label_deviation"), self.data.settings
        if names[0] not in recorded:
            return {}
        if not self.settings.do_train:  # those of the weights, if they are a run's own
            weights = weights_to_use(
                self.settings.checkpoint, self.settings.output_dir, self.encoder.weights
            )
            is_of_run = weights is not self.encoder.weights
            recorded = run_states.read_run_state(weights.origin).get("flags", {}) if is_of_run else {}
        return {name: recorded[name] for name in names if name in recorded}

    def initial_weights(self):
        # A regression's head gives values in the units of its own labels.
        weights = super().initial_weights()
        if weights and "label_mean" in self.data.settings:
            return weights.without(*REGRESSION_HEAD)
        return weights

    def _train(self, run):
        is_new, start = not checkpoints.newest_or_best(run.output_dir), time.monotonic()
        evaluated = super()._train(run)
        self.training_seconds = is_new * (time.monotonic() - start)
        return evaluated

    def predict(self, result):
        predictions, directory = self.evaluate(result, "test").predictions, self.settings.output_dir
        written = glue.write_predictions(self.data, predictions, directory)
        gold = self.texts.test_labels if self.texts else None
        if gold:
            scored = [i for i, label in enumerate(gold) if label is not None]
            rows = [dataclasses.replace(self.data.examples["test"][i], label=gold[i]) for i in scored]
            predictions = {name: values[scored] for name, values in predictions.items()}
            predictions["label_ids"] = np.array([self._answer_of(row) for row in rows])
            name = f"{len(rows):,} rows of {os.path.basename(self.values.test_file)}"
            self.tested = [self._rows(name, rows, predictions)]
            results = self.task.score(predictions)
            summaries.log_results(results, "Predict results")
            written.append(summaries.write_results(directory, results, "predict_results"))
        return written

    def export(self, result, directory):
        from albert.export import text_models  # imports TensorFlow

        if units := self._units():
            result = dataclasses.replace(result, weights=result.weights.in_units(**units))
        session = Session.of(
            self.opened(result), self.encoder.tokenizer, self.settings.max_seq_length, batch_size=1
        )
        text_models.export(fine_tuned.predictor_of(session, None, self.data.labels or ()), directory)

    def finish(self, result):
        super().finish(result)
        if not (self.texts and self.settings.do_eval):
            return
        rows, predictions = self.data.examples["dev"], self.evaluate(result, "dev").predictions
        self.held_out = self._rows(f"{len(rows):,} held-out rows", rows, predictions)
        self.probabilities = predictions["probabilities"]
        self.num_evaluations = 1 if self.settings.keep_last else len(
            run_states.evaluations(result.run.output_dir))
        self.write_report()

    def write_report(self, validated: Rows | None = None) -> None:
        """Publishes the report, with the rows of a cross-validation if there was one."""
        rows = [self.held_out, *([validated] if validated else []), *self.tested]
        shown = self.settings.output_dir, _texts_of(self.data.examples["dev"])
        labels, choices = self.data.labels, self.texts.choices
        if not labels:
            path = classifier_report.write_regression(*shown, rows, choices)
        elif self.data.has_several:
            path = classifier_report.write_several(*shown, labels, rows, self.probabilities, choices)
        else:
            path = classifier_report.write(
                *shown, labels, rows, self.probabilities, choices, self.num_evaluations,
                self.values.class_weights == "balanced",
            )
        flags.log.info("report: %s", path)

    def _rows(self, name: str, rows: Sequence[Example], predictions) -> Rows:
        """Returns rows with the answers to them, and those of the baselines."""
        train, texts = _texts_of(self.train_rows), _texts_of(rows)
        trained = np.array([self._answer_of(row) for row in self.train_rows])
        expected = predictions["label_ids"]
        if not self.data.labels:
            usual, predicted = trained.mean(), predictions["logits"][:, 0]
            tfidf = baselines.tfidf_values(train, trained, texts)
        else:
            tfidf = baselines.tfidf_answers(train, trained, texts)
            predicted = predictions["logits"].argmax(-1)
            usual = np.bincount(trained.ravel()).argmax()
        if self.data.has_several:
            expected, predicted = expected > 0, predictions["probabilities"] >= self.task.threshold
            usual = np.arange(trained.shape[1]) == trained.sum(0).argmax()
            tfidf = None if tfidf is None else tfidf > 0
        return Rows(name, expected, predicted, np.repeat(usual[None], len(rows), axis=0), tfidf)

    def _answer_of(self, row: Example):
        """Returns the id of a row's label, whether it has each label, or its value."""
        labels = self.data.labels
        if self.data.has_several:
            return [label in row.label for label in labels]
        return labels.index(row.label) if labels else row.label


def cross_validate(
    values, settings, encoder, data, texts, count: int, seconds: float = math.inf
) -> Rows:
    """Trains without each of `count` folds in turn, and returns the held-out rows of the folds.

    A fold is left out if with it they would probably take more than `seconds`; the first is not.
    """
    if data.has_several or not settings.do_train:
        raise FlagError("--cross_validation needs --do_train, and one label per text")
    rows, parts, start = [*data.examples["train"], *data.examples["dev"]], [], time.monotonic()
    _check_folds(rows, count, values.class_weights == "balanced")
    for number, (train, held_out) in enumerate(own_file.folds(rows, count, values.seed), 1):
        folder, passed = _fold_folder(values, number, count), time.monotonic() - start
        if number > 1 and passed * number / (number - 1) > seconds and not os.path.isdir(folder):
            break
        flags.log.info("fold %d of %d: %s", number, count, folder)
        share = len(train) / len(data.examples["train"])
        steps = max(1, round(settings.train_step * share))
        # Evaluates the last weights: held-out rows must not choose the checkpoint.
        fold = dataclasses.replace(
            settings, output_dir=folder, do_predict=False, export_dir=None,
            train_step=steps, save_checkpoints_steps=steps,
            warmup_step=min(round((settings.warmup_step or 0) * share), steps),
        )
        tuning = FoldFineTuning(
            values, fold, encoder,
            dataclasses.replace(data, examples={"train": train, "dev": held_out}, is_split=False),
            texts, train,
        )
        tuning.run()
        parts.append(tuning.held_out)
    size = sum(map(len, parts))
    validated = Rows.joined(f"{size:,} rows in {len(parts)} of {count} folds", parts)
    flags.log.info("accuracy on %s: %.3f", validated.name,
                   np.mean(validated.predicted == validated.expected))
    return validated


def _fold_folder(values: flags.FlagValues, number: int, count: int) -> str:
    return os.path.join(work_directory(values), f"fold-{number}-of-{count}")


def _check_folds(rows: Sequence[Example], count: int, is_balanced: bool) -> None:
    """Warns of labels that are too rare for the folds, or refuses what would end in one of them."""
    if len(rows) < count:
        raise FlagError(f"--cross_validation={count}: only {len(rows)} rows")
    texts: dict[str, set] = {}
    for row in rows:
        texts.setdefault(row.label, set()).add(own_file.texts_of(row))
    rare = {label: len(found) for label, found in texts.items() if len(found) < count}
    for label, found in sorted(rare.items()):
        flags.log.warning("--cross_validation=%d: label %s has only %d texts, so not every fold has it",
                          count, label, found)
    if is_balanced and 1 in rare.values():
        raise FlagError(f"--cross_validation={count} with --class_weights=balanced: a label has only "
                        "one text, without which it cannot be trained; label more, or leave one out")


class FoldFineTuning(ClassifierFineTuning):
    """Fine-tunes for a fold of a cross-validation, without a report."""

    def write_report(self, validated=None):
        pass


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
    settings = classifier_settings(values)
    if values.train_file:
        return _tune_on_own_texts(values, settings)
    encoder = open_encoder(values, settings.max_seq_length)
    data = glue.read_data(
        glue.TASKS[values.task_name.lower()], values.data_dir, settings.splits,
        encoder.tokenizer.preprocess,
    )
    ClassifierFineTuning(values, settings, encoder, data).run()


def _tune_on_own_texts(values: flags.FlagValues, settings: FineTuningSettings) -> None:
    encoder = open_encoder(values, flags.given(values, "max_seq_length"))
    texts = own_texts.OwnTexts(values, encoder)
    settings, data = texts.suit(settings), texts.data
    validated, everything = None, (values, settings, encoder, data, texts)
    if values.cross_validation:
        validated = cross_validate(*everything, values.cross_validation)
    in_use = {split: data.examples[split] for split in settings.splits}
    tuning = ClassifierFineTuning(
        values, settings, encoder, dataclasses.replace(data, examples=in_use), texts,
        data.examples["train"],
    )
    tuning.run()
    if not tuning.held_out:
        return
    if flags.given(values, "cross_validation") is None and _is_worth_folds(tuning):
        flags.log.info("%s are too few for a verdict: cross-validating for at most %.0f s, the time of "
                       "the training; --cross_validation=0 turns this off", tuning.held_out.name,
                       tuning.training_seconds)
        validated = cross_validate(*everything, 2, tuning.training_seconds)
    if validated:
        tuning.write_report(validated)


def _is_worth_folds(tuning: ClassifierFineTuning) -> bool:
    """Whether folds can lead to a verdict, at a cost below that of this process's training."""
    values, data = tuning.values, tuning.data
    if not data.labels or data.has_several or values.dev_file or not tuning.settings.do_train:
        return False
    rows, labels = max([tuning.held_out, *tuning.tested], key=len), [x.label for x in tuning.train_rows]
    return (
        classifier_report.is_undecided(rows) and tuning.engine.num_workers == 1
        and min(map(labels.count, data.labels)) > 1
        and (tuning.training_seconds > 0 or os.path.isdir(_fold_folder(values, 1, 2)))
    )


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
