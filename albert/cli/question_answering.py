"""What `run_squad`, `run_squad_v1` and `run_squad_v2` share: everything but their task.

No TensorFlow at import; a command has checked its input before it is loaded.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert.cli import course, fine_tuning, flags
from albert.errors import FlagError
from albert.storage import files
from albert.tasks.squad import decode as squad_decode
from albert.tasks.squad import metrics
from albert.tasks.squad import records as squad_records
from albert.tasks.squad.features import Window, has_answers, read_dataset, read_examples

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    """The original's flags of both versions with its defaults, and a few of ours."""
    flags.define("path", values, "train_file", None, "SQuAD JSON to train on.", use="file")
    flags.define("path", values, "predict_file", None,
                 "SQuAD JSON to predict; evaluated if it has answers.", use="file")
    flags.define("path", values, "train_feature_file", None,
                 "TFRecord file for the windows of --train_file; written if it is absent. By "
                 "default a file in --cached_dir with a checksum in its name.", use="output")
    flags.define("path", values, "predict_feature_file", None, "The same for --predict_file.",
                 use="output")
    flags.define("path", values, "predict_feature_left_file", None,
                 "Has no effect. The original keeps data there that is computed again here.",
                 use="output")
    fine_tuning.define_encoder_flags(values, max_seq_length=384)
    flags.define("integer", values, "doc_stride", 128,
                 "A long passage is cut into windows; so many tokens lie between their starts.",
                 least=1)
    flags.define("integer", values, "max_query_length", 64,
                 "Longest question, in tokens; longer ones are cut.", least=1)
    flags.define("float", values, "num_train_epochs", 3.0, "Passes over the training questions.",
                 above=0)
    flags.define("float", values, "warmup_proportion", 0.1,
                 "Share of the training steps in which the learning rate rises.", least=0, most=1)
    flags.define("integer", values, "n_best_size", 20, "Answers to keep for each question.",
                 least=1)
    flags.define("integer", values, "max_answer_length", 30, "Longest answer, in tokens.", least=1)
    fine_tuning.define_training_flags(
        values, learning_rate=5e-5, train_step=None, warmup_step=None,
        save_checkpoints_steps=1000, by_default=False,
    )


V2_FLAGS = ("start_n_top", "end_n_top", "dropout_prob", "null_score_diff_threshold")


def define_v1_flags(values: flags.FlagValues) -> None:
    """Defines the flags of version 1.1 only."""
    flags.define("bool", values, "use_einsum", True, "Has no effect in TensorFlow 2.")
    flags.define("path", values, "export_dir", None,
                 "Write a SavedModel with start_logits and end_logits there.", use="output")


def define_v2_flags(values: flags.FlagValues) -> None:
    """Defines the flags of version 2.0 only."""
    flags.define("integer", values, "start_n_top", 5, "First tokens of an answer to try.", least=1)
    flags.define("integer", values, "end_n_top", 5, "Last tokens to try for each first one.",
                 least=1)
    flags.define("float", values, "dropout_prob", 0.1, "Dropout in the answerability head.",
                 least=0, below=1)
    flags.define("float", values, "null_score_diff_threshold", None,
                 "Null odds above which a question has no answer. By default the one with the "
                 "best F1 on --predict_file; if that has no answers, the one that the checkpoint's "
                 "own evaluation found, else 0.")


def check_flags(values: flags.FlagValues) -> None:
    """Raises a FlagError for flags that are missing or contradict each other."""
    flags.require(values, "output_dir")
    if not values["do_eval"].present:
        values.do_eval = values.do_predict  # as far as there are answers
    flags.refuse_together(values, "warmup_step", "warmup_proportion")
    others = ["export_dir"] if "export_dir" in values else []
    fine_tuning.check_training_flags(values, *others)
    fine_tuning.check_encoder_flags(values)
    if values.do_train:
        flags.require(values, "train_file")
    if values.do_predict or values.do_eval:
        flags.require(values, "predict_file")
    if values.max_seq_length <= values.max_query_length + 3:
        raise FlagError(
            f"--max_seq_length={values.max_seq_length} must be greater than "
            f"--max_query_length={values.max_query_length} + 3, or there is no place for passages"
        )
    for name in ("start_n_top", "end_n_top"):
        if name in values and getattr(values, name) > values.max_seq_length:
            raise FlagError(
                f"--{name}={getattr(values, name)} exceeds "
                f"--max_seq_length={values.max_seq_length}"
            )


class Version1:
    """SQuAD 1.1: its task, and from a model's outputs to answers; every question has one.

    `examples` are the questions to predict, `windows` their rows; `dataset` is the file with
    its answers, None where it has none.
    """

    task_name = "squad_v1"
    with_negative = False  # whether a question may have no answer

    def __init__(self, values: flags.FlagValues):
        self.values = values
        self.dataset: Any = None
        self.windows: list[Window] = []
        if values.do_predict or values.do_eval:
            path = values.predict_file
            self.examples = read_examples(path, False)
            if has_answers(path, self.with_negative):
                self.dataset = read_dataset(path)
            else:
                log.info("%s has questions without answers: no evaluation", path)

    def make_task(self):
        """Returns the task, whose evaluations are scored where answers are known."""
        from albert.tasks.squad.task import SquadV1Task

        return SquadV1Task(self.values.max_seq_length, self.score if self.dataset else None)

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the official numbers of a model's outputs [windows, ...]."""
        return self.evaluate(self.decode(predictions))[0]

    def decode(self, predictions: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the content of each prediction file by its name."""
        results = {
            int(i): (start, end)
            for i, start, end in zip(
                predictions["unique_ids"], predictions["start_logits"],
                predictions["end_logits"], strict=True,
            )
        }
        answers, nbest = squad_decode.decode_v1(
            self.examples, self.windows, results, n_best_size=self.values.n_best_size,
            max_answer_length=self.values.max_answer_length,
        )
        return {"predictions.json": answers, "nbest_predictions.json": nbest}

    def evaluate(self, decoded: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns (results, files to keep), answers being known."""
        return metrics.evaluate_v1(self.dataset, decoded["predictions.json"]), decoded

    def settle(self, decoded: dict[str, Any], origin: str) -> dict[str, Any]:
        """Returns the files to keep, no answers being known; `origin` is that of the weights."""
        return decoded


class Version2(Version1):
    """SQuAD 2.0: a question may have no answer in its passage."""

    task_name = "squad_v2"
    with_negative = True

    def make_task(self):
        from albert.tasks.squad.task import SquadV2Task

        options = flags.select(self.values, ("start_n_top", "end_n_top", "dropout_prob"))
        scorer = self.score if self.dataset else None
        return SquadV2Task(self.values.max_seq_length, scorer, **options)

    def decode(self, predictions):
        names = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index",
                 "cls_logits")
        results = {
            int(unique_id): {name: predictions[name][row] for name in names}
            for row, unique_id in enumerate(predictions["unique_ids"])
        }
        names = ("n_best_size", "max_answer_length", "start_n_top", "end_n_top")
        answers, nbest, null_odds = squad_decode.decode_v2(
            self.examples, self.windows, results, **flags.select(self.values, names)
        )
        return {
            "predictions.json": answers, "nbest_predictions.json": nbest,
            "null_odds.json": null_odds,
        }

    def evaluate(self, decoded):
        # The threshold with the best F1 decides what is left unanswered, unless one is given.
        results, answers = squad_decode.evaluate_with_threshold(
            self.dataset, decoded["predictions.json"], decoded["null_odds.json"],
            threshold=self.values.null_score_diff_threshold,
        )
        return results, decoded | {"predictions.json": answers}

    def settle(self, decoded, origin):
        threshold = self.values.null_score_diff_threshold
        if threshold is None:
            threshold = _known_threshold(origin)
        answers = squad_decode.with_threshold(
            decoded["predictions.json"], decoded["null_odds.json"], threshold
        )
        return decoded | {"predictions.json": answers}


def _known_threshold(origin: str) -> float:
    """Returns the null threshold that a checkpoint's own evaluation found, else 0.

    At 0 the model holds an answer and none for equally likely.
    """
    from albert.formats import sidecars

    threshold = sidecars.null_threshold(origin, sidecars.read_sidecar(origin))
    if threshold is None:
        log.info("null threshold 0: there is no evaluation of %s", origin)
        return 0.0
    log.info("null threshold %s, of %s", threshold, origin)
    return threshold


def run(values: flags.FlagValues, version: type[Version1]) -> None:
    """Trains, evaluates and predicts, all flags checked."""
    if version is Version1 and flags.given(values, "pack_rows"):
        raise FlagError("--pack_rows has no effect on SQuAD 1.1, where padding counts")
    encoder = fine_tuning.open_encoder(values)
    identity = fine_tuning.identity_of(values, encoder, version.task_name)
    windows = squad_records.WindowKeeper(
        encoder.tokenizer, values.max_seq_length, fine_tuning.work_directory(values),
        values.doc_stride, values.max_query_length,
    )
    # All input is read before anything is written.
    records: dict[str, str] = {}
    if values.do_train:
        examples = read_examples(values.train_file, True)
        # The original counts questions here, not windows.
        _set_steps(values, len(examples))
    predicted = version(values)
    if values.do_train:
        records["train"] = windows.training_records(
            examples, values.train_file, values.train_feature_file
        )
    if values.do_predict or values.do_eval:
        records["dev"], predicted.windows = windows.prediction_records(
            predicted.examples, values.predict_file, values.predict_feature_file
        )
        # Checkpoints can be evaluated only if the answers are known.
        if not predicted.dataset:
            _refuse_evaluation(values)
            values.do_eval = False
        if not values["eval_batch_size"].present:
            values.eval_batch_size = values.predict_batch_size

    flags.start_engine(values)  # takes seconds, so all input is checked before
    export_dir = "export_dir" in values and values.export_dir

    def finish(trained: course.Trained) -> None:
        if values.do_predict:
            _predict(trained, predicted)
        if export_dir:
            from albert.tasks.squad import export as squad_export

            trained.export(squad_export.export, values.max_seq_length)

    course.Course(
        values, predicted.make_task(), encoder, identity, records,
        finish=finish if values.do_predict or export_dir else None,
    ).go()


def _refuse_evaluation(values: flags.FlagValues) -> None:
    """Raises a FlagError for flags that ask for an evaluation, there being no answers."""
    asked = [
        f"--{name}" for name in ("do_eval", "early_stopping_patience")
        if values[name].present and getattr(values, name)
    ]
    if asked:
        raise FlagError(
            f"{', '.join(asked)}: {values.predict_file} has questions without answers, and "
            "cannot be evaluated"
        )


def _set_steps(values: flags.FlagValues, num_examples: int) -> None:
    if values.train_step is None:
        values.train_step = int(num_examples / values.train_batch_size * values.num_train_epochs)
        if not values.train_step:
            raise FlagError(
                f"{num_examples} questions make no step of --train_batch_size="
                f"{values.train_batch_size} in --num_train_epochs={values.num_train_epochs}"
            )
    if values.warmup_step is None:
        values.warmup_step = int(values.train_step * values.warmup_proportion)
    fine_tuning.check_warmup(values)
    log.info("%s questions: %s steps, %s of them to warm up",
             f"{num_examples:,}", f"{values.train_step:,}", f"{values.warmup_step:,}")


def _predict(trained: course.Trained, version: Version1) -> None:
    found = trained.evaluation
    if not found:
        found = trained.predict("dev", dataclasses.replace(trained.course.task, scorer=None))
    decoded = version.decode(found.predictions)
    if version.dataset:
        decoded = version.evaluate(decoded)[1]
    else:
        decoded = version.settle(decoded, trained.weights.origin)
    written = []
    for name, value in decoded.items():
        written.append(os.path.join(version.values.output_dir, name))
        with files.atomic_write(written[-1]) as stream:
            stream.write(squad_decode.to_json(value))
    trained.tell(written)
