"""Fine-tunes ALBERT on your labelled texts, or on a task of GLUE, evaluates it and predicts.

A table with a column of texts and one of labels needs three flags:

  python -m albert.run_classifier --train_file=my.csv \\
      --init_checkpoint=albert/albert-base-v2 --output_dir=out

--init_checkpoint is the model to start from: small_en comes with this package, to try things out;
albert/albert-base-v2 is downloaded from Hugging Face's hub, and is far better.

The command finds columns and labels, holds out a part for evaluation, and chooses learning rate,
length and epochs by the sizes of model and file, unless flags say otherwise. At the end,
out/report.md and out/report.html say how good the classifier is, and what to do next. --dev_file
names a file to evaluate on instead, --test_file one with texts to label. With fewer than 500 rows
to evaluate on, the last weights are kept instead of the best.

A task of GLUE, with the flags of the original:

  python -m albert.run_classifier --data_dir=glue --task_name=MNLI --output_dir=out \\
      --init_checkpoint=albert/albert-base-v2 --do_train --do_eval --do_predict \\
      --max_seq_length=128 --learning_rate=3e-5 --train_step=10000 --warmup_step=1000

With --do_eval every checkpoint is evaluated and the best is kept, which is the one that later
evaluations, predictions and exports use. Rerun a command and it resumes from the newest checkpoint
of --output_dir.
"""

import collections
import dataclasses
import glob
import hashlib
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert import finetune
from albert.cli import classifier_report, flags, own_texts
from albert.cli.classifier_report import Rows
from albert.cli.encoder import Encoder, open_encoder
from albert.errors import FlagError, some
from albert.formats import model_metadata, pretrained, run_states
from albert.formats.tokenizer_files import Vocabulary
from albert.runtime.seeds import child_seed
from albert.storage import files
from albert.tasks import baselines, glue, table
from albert.tasks.classification import ClassificationTask
from albert.tasks.fine_tuning_data import FineTuningData, digest_of
from albert.tasks.glue import Example
from albert.training.metrics import log_results, write_results


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
    finetune.define_encoder_flags(values)
    finetune.define_classifier_flags(
        values, "Dropout on the pooled output (classifier DR of the paper's table 14)."
    )
    flags.define("path", values, "export_dir", None,
                 "Directory for a SavedModel from token ids to logits.", use="output")
    flags.define("float", values, "threshold_to_export", float("nan"),
                 "No effect: the exported model returns logits.")


def classifier_settings(values: flags.FlagValues) -> finetune.Settings:
    """Returns the settings of the flags."""
    own_texts.check_flags(values)
    if values.export_dir and flags.requested_engine(values) != "tensorflow":
        raise FlagError("--export_dir needs TensorFlow: train without it, then use albert.export_model")
    if not values.train_file:
        if not (values.data_dir or values.task_name):
            raise FlagError("--train_file is required: a table of your labelled texts; or --task_name and "
                            "--data_dir for a task of GLUE (see --help)")
        flags.require(values, "data_dir", "task_name", "output_dir")
        if values.task_name.lower() not in glue.TASKS:
            raise FlagError(f"--task_name={values.task_name} is not one of {', '.join(glue.TASKS)}")
        return finetune.settings_of(values)
    actions = {}
    if not any(values[name].present for name in ("do_train", "do_eval", "do_predict")):
        actions = {"do_train": True, "do_eval": True, "do_predict": bool(values.test_file)}
    return finetune.settings_of(values, **actions)


def task_of(
    values: flags.FlagValues, settings: finetune.Settings, encoder: Encoder, data: FineTuningData
) -> ClassificationTask:
    """Returns the task of the flags and of the data."""
    class_weights: tuple[float, ...] = ()
    if settings.do_train and values.class_weights == "balanced":
        if data.has_several:
            raise FlagError("--class_weights has no effect where a text may have several labels")
        labels = [example.label for example in data.examples["train"]]
        class_weights = balanced_weights(labels, data.labels)
    units = ("label_mean", "label_deviation")  # by which a regression's labels are standardized
    recorded = data.settings
    if units[0] in recorded and not settings.do_train:  # those of a run's own weights
        weights = finetune.weights_to_use(settings.checkpoint, settings.output_dir, encoder.weights)
        is_of_run = weights is not encoder.weights
        recorded = run_states.read_run_state(weights.origin).get("flags", {}) if is_of_run else {}
    return ClassificationTask(
        data.task, settings.max_seq_length, data.labels, values.classifier_dropout, class_weights,
        data.settings.get("label_threshold"),
        **{name: recorded[name] for name in units if name in recorded},
    )


def tune(
    values: flags.FlagValues, settings: finetune.Settings, encoder: Encoder, data: FineTuningData
) -> finetune.Result | None:
    """Trains, evaluates, predicts and exports."""
    task = task_of(values, settings, encoder, data)
    result = finetune.run(values, settings, encoder, data, task)
    if result and settings.export_dir:
        from albert import modeling  # imports TensorFlow
        from albert.formats import saved_model

        weights = result.weights
        if task.untrained_weights:
            weights = weights.in_units(task.label_mean, task.label_deviation)
        metadata, _ = model_metadata.without_units(
            run_states.metadata_of({"task": task.name, "flags": result.recorded}))
        source = pretrained.Pretrained(
            weights.origin, os.path.dirname(weights.origin), encoder.config, Vocabulary(), metadata,
            lambda: weights,
        )
        model = pretrained.load(modeling.AlbertForSequenceClassification, source, complete=True)
        with (
            files.publish_dir(settings.export_dir, saved_model.MAIN_FILE) as scratch,
            saved_model.writing(),
        ):
            model.export(scratch, verbose=False)
        flags.log.info("SavedModel of %s: %s", weights.origin, settings.export_dir)
    return result


def answered(
    name: str, task: ClassificationTask, train_rows: Sequence[Example], rows: Sequence[Example],
    predictions: Mapping[str, np.ndarray],
) -> Rows:
    """Returns rows with the answers to them, and those of the baselines."""
    train, texts = ([(row.text_a, row.text_b) for row in each] for each in (train_rows, rows))
    trained = np.array([task.id_of(row.label) for row in train_rows])
    expected, names = predictions["label_ids"], ("the most frequent label", "TF-IDF with logistic regression")
    tfidf = baselines.tfidf_answers(train, trained, texts)
    if not task.labels:
        names = "the mean", "TF-IDF with ridge regression"
        usual, predicted = trained.mean(), predictions["logits"][:, 0]
    else:
        predicted = predictions["logits"].argmax(-1)
        usual = np.bincount(trained.ravel()).argmax()
    if task.threshold is not None:
        expected, predicted = expected > 0, predictions["probabilities"] >= task.threshold
        usual = np.arange(trained.shape[1]) == trained.sum(0).argmax()
        tfidf = tfidf > 0
    usual = np.repeat(usual[None], len(rows), axis=0)
    return Rows(name, expected, predicted, dict(zip(names, (usual, tfidf), strict=True)))


def cross_validate(
    values: flags.FlagValues, settings: finetune.Settings, encoder: Encoder, data: FineTuningData
) -> Rows | None:
    """Trains without each of --cross_validation folds in turn; returns the held-out rows of all.

    Each row is held out once. Folds have the same fraction of every label; rows with the same texts
    stay together. A fold resumes only with the same data, flags and weights.
    """
    from sklearn.model_selection import StratifiedGroupKFold  # takes a second

    count, rows, parts = values.cross_validation, [*data.examples["train"], *data.examples["dev"]], []
    if data.has_several or not settings.do_train:
        raise FlagError("--cross_validation needs --do_train, and one label per text")
    texts, labels = list(map(table.texts_of, rows)), [row.label for row in rows]
    sizes = collections.Counter(label for label, _ in set(zip(labels, texts, strict=True)))
    if rare := sorted(label for label in sizes if sizes[label] < count):
        message = f"--cross_validation={count}: labels on fewer texts than folds: {some(rare)}"
        if values.class_weights == "balanced" or max(sizes.values()) < count:
            raise FlagError(f"{message}: use fewer folds, or label more texts")
        flags.log.warning("%s; not every fold has them", message)
    weights = sorted(glob.glob(glob.escape(encoder.weights.origin) + "*")) if encoder.weights else ()
    identity = repr((digest_of(rows), flags.to_dict(values), encoder.tokenizer.sha256,
                     [*map(files.sha256, weights)]))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    folder = os.path.join(finetune.work_directory(settings), f"folds-{digest}")
    splitter = StratifiedGroupKFold(
        count, shuffle=True, random_state=child_seed(values.seed, "folds") % 2**32)
    with warnings.catch_warnings():  # of rare labels, which are named above
        warnings.simplefilter("ignore")
        folds = list(splitter.split(labels, labels, list(map(repr, texts))))
    for number, (train, dev) in enumerate(folds, 1):
        flags.log.info("fold %d of %d: %s", number, count, folder)
        examples = {"train": [rows[i] for i in train], "dev": [rows[i] for i in dev]}
        share = len(train) / len(data.examples["train"])
        steps = max(1, round(settings.train_step * share))
        # Evaluates the last weights: held-out rows must not choose the checkpoint.
        fold = dataclasses.replace(
            settings, output_dir=os.path.join(folder, str(number)), do_predict=False, export_dir=None,
            train_step=steps, save_checkpoints_steps=steps,
            warmup_step=min(round((settings.warmup_step or 0) * share), steps),
        )
        result = tune(values, fold, encoder, dataclasses.replace(data, examples=examples, is_split=False))
        if result:
            parts.append(answered(
                "", result.task, *examples.values(), result.evaluations["dev"].predictions))
    if not parts:  # in a worker that only helps
        return None
    shutil.rmtree(folder)
    expected, predicted, *others = (np.concatenate(each) for each in zip(
        *((part.expected, part.predicted, *part.baselines.values()) for part in parts), strict=True))
    name = f"{len(rows):,} rows in {count} folds"
    return Rows(name, expected, predicted, dict(zip(parts[0].baselines, others, strict=True)))


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
    tune(values, settings, encoder, data)


def _tune_on_own_texts(values: flags.FlagValues, settings: finetune.Settings) -> None:
    encoder = open_encoder(values, flags.given(values, "max_seq_length"))
    texts = own_texts.read(values, encoder.tokenizer)
    settings, data = own_texts.choose_settings(values, settings, encoder, texts), texts.data
    validated = cross_validate(values, settings, encoder, data) if values.cross_validation else None
    in_use = {split: data.examples[split] for split in settings.splits}
    result = tune(values, settings, encoder, dataclasses.replace(data, examples=in_use))
    if not result:
        return
    tested = _tested(values, texts, result) if settings.do_predict and texts.test_labels else []
    if not settings.do_eval:
        return
    rows, predictions = data.examples["dev"], result.evaluations["dev"].predictions
    name = f"{len(rows):,} held-out rows"
    held_out = answered(name, result.task, data.examples["train"], rows, predictions)
    write_report(values, texts, result, [held_out, *([validated] if validated else []), *tested])


def as_trained(recorded: Any, choice: str) -> str:
    """Returns the value of a setting and its reason, or the value that the model was trained with."""
    used = recorded if isinstance(recorded, str) or recorded is None else f"{recorded:g}"
    return choice if used in (None, choice.partition(" ")[0]) else f"{used} (when it was trained)"


def _tested(
    values: flags.FlagValues, texts: own_texts.OwnTexts, result: finetune.Result
) -> list[Rows]:
    """Publishes the scores of the rows of --test_file that have labels, and returns them."""
    gold, task, directory = texts.test_labels, result.task, values.output_dir
    scored = [i for i, label in enumerate(gold) if label is not None]
    rows = [dataclasses.replace(texts.data.examples["test"][i], label=gold[i]) for i in scored]
    predictions = {
        name: values[scored] for name, values in result.evaluations["test"].predictions.items()
    }
    predictions["label_ids"] = np.array([task.id_of(row.label) for row in rows])
    results = task.score(predictions)
    log_results(results, "Predict results")
    write_results(directory, results, "predict_results")
    name = f"{len(rows):,} rows of {os.path.basename(values.test_file)}"
    return [answered(name, task, texts.data.examples["train"], rows, predictions)]


def write_report(
    values: flags.FlagValues, texts: own_texts.OwnTexts, result: finetune.Result, rows: Sequence[Rows]
) -> None:
    """Publishes the report of held-out rows, those of a cross-validation, and of a test file."""
    shown = values.output_dir, [
        " | ".join(filter(None, (row.text_a, row.text_b))) for row in texts.data.examples["dev"]
    ]
    labels, trained = result.task.labels, run_states.read_run_state(result.weights.origin).get("flags", {})
    choices = [
        (name, as_trained(trained.get(name[2:]) if name.startswith("--") else None, value))
        for name, value in texts.choices
    ]
    probabilities = result.evaluations["dev"].predictions["probabilities"]
    if not labels:
        path = classifier_report.write_regression(*shown, rows, choices)
    elif result.task.threshold is not None:
        path = classifier_report.write_several(*shown, labels, rows, probabilities, choices)
    else:
        path = classifier_report.write(
            *shown, labels, rows, probabilities, choices, values.class_weights == "balanced",
            not (values["cross_validation"].present or values.dev_file),
        )
    flags.log.info("report: %s", path)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
