"""Fine-tunes ALBERT on your labelled texts, or on a task of GLUE, evaluates it and predicts.

A table with a column of texts and one of labels needs three flags:

  python -m albert.run_classifier --train_file=my.csv \\
      --init_checkpoint=albert/albert-base-v2 --output_dir=out

--init_checkpoint is the model to start from: small_en comes with this package, to try things out;
albert/albert-base-v2, which is far better, is downloaded from Hugging Face's hub.

The command finds columns and labels, holds out rows for evaluation, and chooses learning rate,
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

import numpy as np

from albert import engines, finetune
from albert.cli import classifier_report, flags, own_texts
from albert.cli.classifier_report import Rows
from albert.cli.encoder import Encoder, open_encoder
from albert.errors import FlagError, some
from albert.formats import pretrained
from albert.formats.metadata import metadata_at, read_run_state
from albert.formats.tokenizer_files import Vocabulary
from albert.inference import fine_tuned, precision
from albert.inference.session import AnsweringSession
from albert.runtime.seeds import child_seed
from albert.storage import files, locks
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
                 "Weights of labels in the loss; balanced: all count the same, however rare.",
                 enum_values=["none", "balanced"])
    finetune.define_encoder_flags(values)
    finetune.define_classifier_flags(
        values, "Dropout on the pooled output (classifier DR of the paper's table 14)."
    )
    flags.define("path", values, "export_dir", None,
                 "Directory for a SavedModel from token ids to logits.", use="output")
    for name in ("max_seq_length", "optimizer", "learning_rate", "train_batch_size", "num_train_epochs",
                 "warmup_step", "save_checkpoints_steps"):
        values[name].help += " With --train_file, the default suits the sizes of model and file."
    flags.define("float", values, "threshold_to_export", float("nan"),
                 "No effect: the exported model returns logits.")


def main(values: flags.FlagValues) -> None:
    # === Settings ===
    own_texts.check_flags(values)
    if values.export_dir and engines.choose(values) != "tensorflow":
        raise FlagError("--export_dir needs TensorFlow: train without it, then use albert.export_model")
    actions, choices, tested = {}, {}, []
    if values.train_file:
        if not any(values[name].present for name in ("do_train", "do_eval", "do_predict")):
            actions = {"do_train": True, "do_eval": True, "do_predict": bool(values.test_file)}
    elif not (values.data_dir or values.task_name):
        raise FlagError("--train_file is required: a table of your labelled texts; or --task_name and "
                        "--data_dir for a task of GLUE (see --help)")
    else:
        flags.require(values, "data_dir", "task_name", "output_dir")
        if values.task_name.lower() not in glue.TASKS:
            raise FlagError(f"--task_name={values.task_name} is not one of {', '.join(glue.TASKS)}")
    settings = finetune.settings_of(values, **actions)

    # === Model, texts and labels ===
    if values.train_file:
        encoder = open_encoder(values, flags.given(values, "max_seq_length"))
        data, choices = own_texts.read(values, encoder.tokenizer)
        settings, of_settings = own_texts.choose_settings(values, settings, encoder, data)
        choices |= of_settings
        for name, choice in choices.items():
            if name not in ("file", "columns", "texts"):  # which the log has already
                flags.log.info("%s: %s", name, choice)
    else:
        encoder = open_encoder(values, settings.max_seq_length)
        data = glue.read_data(
            glue.TASKS[values.task_name.lower()], values.data_dir, settings.splits,
            encoder.tokenizer.preprocess,
        )

    # === Training, evaluation, prediction ===
    data = dataclasses.replace(data, examples={split: data.examples[split] for split in settings.splits})
    folds = split_in_folds(values, settings, data) if values.cross_validation else []
    task = task_of(values, settings, data)
    result = finetune.run(values, settings, encoder, data, task)  # before the folds, as it may be refused
    validated = cross_validate(values, settings, encoder, data, folds) if folds else None
    if not result:
        return

    # === Export ===
    weights = result.weights
    source = pretrained.Pretrained(
        weights.origin, os.path.dirname(weights.origin), encoder.config, Vocabulary(),
        metadata_at(weights.origin), lambda: weights,
    )
    if settings.export_dir:
        from albert import modeling  # imports TensorFlow
        from albert.export import hub_export

        model = pretrained.load(modeling.AlbertForSequenceClassification, source, complete=True)
        with (
            files.publish_dir(settings.export_dir, hub_export.MAIN_FILE) as scratch,
            hub_export.writing(),
        ):
            model.export(scratch, verbose=False)
        flags.log.info("SavedModel of %s: %s", weights.origin, settings.export_dir)
    if not values.train_file:
        return

    # === Scores of a labelled --test_file ===
    if scored := [i for i, one in enumerate(data.examples.get("test", ())) if one.label is not None]:
        rows = [data.examples["test"][i] for i in scored]
        predictions = {
            name: array[scored] for name, array in result.evaluations["test"].predictions.items()
        } | {"label_ids": np.array([task.id_of(row.label) for row in rows])}
        results = task.score(predictions)
        log_results(results, "Predict results")
        write_results(settings.output_dir, results, "predict_results")
        name = f"{len(rows):,} rows of {os.path.basename(values.test_file)}"
        tested.append(answered(name, task, data.trained_on, rows, predictions))
    if not settings.do_eval:
        return

    # === Report ===
    rows, predictions = data.examples["dev"], result.evaluations["dev"].predictions
    held_out = answered(f"{len(rows):,} held-out rows", task, data.trained_on, rows, predictions)
    measured = [one for one in (held_out, validated, *tested) if one]
    trained = read_run_state(result.weights.origin).get("flags", {})
    for name, choice in choices.items():  # what the model was trained with, whatever is typed now
        used = trained.get(name[2:]) if name.startswith("--") else None
        used = used if isinstance(used, str) or used is None else f"{used:g}"
        if used not in (None, choice.partition(" ")[0]):
            choices[name] = f"{used} (when it was trained)"
    texts, precisions = [tuple(filter(None, (row.text_a, row.text_b))) for row in rows], {}
    if len(rows) >= precision.FEWEST:
        session = AnsweringSession(source, encoder.tokenizer, settings.max_seq_length)
        precisions = precision.compare(fine_tuned.predictor_of(session), texts, seconds=1.0)
    has_pairs = any(len(one) > 1 for one in texts)
    path = classifier_report.write(
        settings.output_dir, list(map(" | ".join, texts)), task.labels, measured,
        predictions["probabilities"], choices,
        is_balanced=trained.get("class_weights") == "balanced", may_validate=bool(task.labels) and not (
            data.has_several or values["cross_validation"].present or values.dev_file),
        precisions=precisions, has_pairs=has_pairs,
    )
    flags.log.info("%s Report: %s. Ask the model: %s",
                   classifier_report.verdict(measured)[1].replace("*", ""), path,
                   classifier_report.command(settings.output_dir, has_pairs))


def task_of(
    values: flags.FlagValues, settings: finetune.Settings, data: FineTuningData
) -> ClassificationTask:
    """Returns the task of the flags and of the data."""
    class_weights: tuple[float, ...] = ()
    if settings.do_train and values.class_weights == "balanced":
        if data.has_several or not data.labels:
            raise FlagError("--class_weights needs one label per text")
        counts = collections.Counter(example.label for example in data.examples["train"])
        if absent := [label for label in data.labels if not counts[label]]:
            raise FlagError(f"--class_weights=balanced: no training row has the label {absent[0]}")
        # With these, all labels count the same.
        class_weights = tuple(counts.total() / (len(counts) * counts[label]) for label in data.labels)
    return ClassificationTask(
        data.task, settings.max_seq_length, data.labels, values.classifier_dropout, class_weights,
        data.settings.get("label_threshold"), data.settings.get("label_mean", 0.0),
        data.settings.get("label_deviation", 1.0),
    )


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


def split_in_folds(
    values: flags.FlagValues, settings: finetune.Settings, data: FineTuningData
) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Returns the training rows and the held-out rows of each fold, by their numbers.

    Each row is held out once. Folds have the same fraction of every label; rows with the same texts
    stay together.
    """
    from sklearn.model_selection import StratifiedGroupKFold  # takes a second

    if data.has_several or not settings.do_train:
        raise FlagError("--cross_validation needs --do_train, and one label per text")
    count, rows = values.cross_validation, [*data.examples["train"], *data.examples["dev"]]
    texts, labels = list(map(table.texts_of, rows)), [row.label for row in rows]
    sizes = collections.Counter(label for label, _ in set(zip(labels, texts, strict=True)))
    if rare := sorted(label for label in sizes if sizes[label] < count):
        message = f"--cross_validation={count}: labels on fewer texts than folds: {some(rare)}"
        if values.class_weights == "balanced" or max(sizes.values()) < count:
            raise FlagError(f"{message}: use fewer folds, or label more texts")
        flags.log.warning("%s; not every fold has them", message)
    splitter = StratifiedGroupKFold(
        count, shuffle=True, random_state=child_seed(values.seed, "folds") % 2**32)
    with warnings.catch_warnings():  # of rare labels, which are named above
        warnings.simplefilter("ignore")
        return list(splitter.split(labels, labels, list(map(repr, texts))))


def cross_validate(
    values: flags.FlagValues, settings: finetune.Settings, encoder: Encoder, data: FineTuningData,
    folds: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> Rows | None:
    """Trains without each fold in turn; returns the held-out rows of all.

    A fold resumes only with the same data, flags and weights.
    """
    rows, parts = [*data.examples["train"], *data.examples["dev"]], []
    weights = glob.glob(glob.escape(encoder.weights.origin) + "*") if encoder.weights else ()
    identity = repr((digest_of(rows), flags.to_dict(values), encoder.tokenizer.sha256,
                     [files.sha256(path) for path in sorted(weights)]))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    folder = f"{locks.work_folder_of(settings.output_dir)}.folds-{digest}"
    for number, (train, dev) in enumerate(folds, 1):
        flags.log.info("fold %d of %d: %s", number, len(folds), folder)
        examples = {"train": [rows[i] for i in train], "dev": [rows[i] for i in dev]}
        share = len(train) / len(data.examples["train"])
        steps = max(1, round(settings.train_step * share))
        # Evaluates the last weights: held-out rows must not choose the checkpoint.
        fold = dataclasses.replace(
            settings, output_dir=os.path.join(folder, str(number)), do_predict=False, export_dir=None,
            train_step=steps, save_checkpoints_steps=steps,
            warmup_step=min(round((settings.warmup_step or 0) * share), steps),
        )
        of_fold = dataclasses.replace(data, examples=examples, is_split=False)
        task = task_of(values, fold, of_fold)
        if result := finetune.run(values, fold, encoder, of_fold, task):
            parts.append(answered("", task, *examples.values(), result.evaluations["dev"].predictions))
    if not parts:  # in a worker that only helps
        return None
    shutil.rmtree(folder)
    return Rows(
        f"{len(rows):,} rows in {len(folds)} folds",
        np.concatenate([part.expected for part in parts]), np.concatenate([part.predicted for part in parts]),
        {name: np.concatenate([part.baselines[name] for part in parts]) for name in parts[0].baselines},
    )


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
