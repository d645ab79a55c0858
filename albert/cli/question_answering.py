"""Shared code of `run_squad`, `run_squad_v1` and `run_squad_v2`.

No TensorFlow at import: a command checks its input before loading it.
"""

import dataclasses
import logging

from albert.cli import fine_tuning_settings, flags
from albert.cli.encoder import open_encoder
from albert.cli.fine_tuning import FineTuning
from albert.cli.fine_tuning_settings import FineTuningSettings, settings_of
from albert.errors import DataError, FlagError
from albert.tasks.fine_tuning_data import FineTuningData
from albert.tasks.squad.questions import SquadExample, read_answers, read_examples
from albert.tasks.squad.task import SquadV1Task, SquadV2Task

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags of both versions with its defaults, and a few new ones."""
    flags.define("path", values, "train_file", None, "SQuAD JSON to train on.", use="file")
    flags.define("path", values, "predict_file", None,
                 "SQuAD JSON to predict; evaluated if it has answers.", use="file")
    fine_tuning_settings.define_ignored_flags(
        values, "train_feature_file", "predict_feature_file", "predict_feature_left_file"
    )
    fine_tuning_settings.define_encoder_flags(values, max_seq_length=384)
    flags.define("integer", values, "doc_stride", 128,
                 "Stride in tokens between the windows that a long passage is split into.",
                 lower_bound=1)
    flags.define("integer", values, "max_query_length", 64,
                 "Maximum question length in tokens; longer ones are truncated.", lower_bound=1)
    flags.define("float", values, "num_train_epochs", 3.0, "Epochs over the training questions.",
                 above=0)
    flags.define("float", values, "warmup_proportion", 0.1,
                 "Fraction of the training steps in which the learning rate warms up.",
                 lower_bound=0, upper_bound=1)
    flags.define("integer", values, "n_best_size", 20, "Answers to keep for each question.",
                 lower_bound=1)
    flags.define("integer", values, "max_answer_length", 30, "Maximum answer length in tokens.",
                 lower_bound=1)
    fine_tuning_settings.define_training_flags(
        values, learning_rate=5e-5, train_step=None, warmup_step=None,
        save_checkpoints_steps=1000, by_default=False,
    )


def define_v1_flags(values: flags.FlagValues) -> None:
    """Defines the flags of version 1.1 only."""
    flags.define("bool", values, "use_einsum", True, "No effect in TensorFlow 2.")
    flags.define("path", values, "export_dir", None,
                 "No effect on SQuAD: serve a session over HTTP, or use export_model.", use="output")


V2_FLAGS = ("dropout_prob", "end_n_top", "null_score_diff_threshold", "start_n_top")


def define_v2_flags(values: flags.FlagValues) -> None:
    """Defines the flags of version 2.0 only."""
    flags.define("integer", values, "start_n_top", 5,
                 "Beam size for the first token of an answer.", lower_bound=1)
    flags.define("integer", values, "end_n_top", 5,
                 "Beam size for the last token, per first token.", lower_bound=1)
    flags.define("float", values, "dropout_prob", 0.1, "Dropout in the answerability head.",
                 lower_bound=0, below=1)
    flags.define("float", values, "null_score_diff_threshold", None,
                 "Null odds above which a question has no answer. Default: that with the best F1 on "
                 "--predict_file; if its answers are unknown, that of the checkpoint's evaluation, "
                 "else 0.")


def squad_settings(values: flags.FlagValues) -> FineTuningSettings:
    """Returns the settings that the flags give."""
    flags.require(values, "output_dir")
    flags.refuse_together(values, "warmup_step", "warmup_proportion")
    do_eval = flags.given(values, "do_eval")
    settings = settings_of(
        values, export_dir=None,
        do_eval=values.do_predict if do_eval is None else do_eval,  # if there are answers
        eval_batch_size=flags.given(values, "eval_batch_size") or values.predict_batch_size,
    )
    if settings.do_train:
        flags.require(values, "train_file")
    if settings.do_predict or settings.do_eval:
        flags.require(values, "predict_file")
    if values.max_seq_length <= values.max_query_length + 3:
        raise FlagError(
            f"--max_seq_length={values.max_seq_length} must be greater than "
            f"--max_query_length={values.max_query_length} + 3, or no tokens are left for passages"
        )
    for name in ("start_n_top", "end_n_top"):
        if name in values and values[name].value > values.max_seq_length:
            raise FlagError(f"--{name}={values[name].value} exceeds "
                            f"--max_seq_length={values.max_seq_length}")
    return settings


def run(values: flags.FlagValues, with_negative: bool) -> None:
    """Trains, evaluates and predicts; all input is read before anything is written."""
    settings = squad_settings(values)
    if not with_negative and flags.given(values, "pack_rows"):
        raise FlagError("--pack_rows has no effect on SQuAD 1.1, where padding counts")
    encoder = open_encoder(values, settings.max_seq_length)
    examples, answers = {}, None
    if settings.do_train:
        examples["train"] = read_examples(values.train_file, True)
        if not with_negative:
            examples["train"] = _answered(examples["train"], values.train_file)
        settings = _with_steps(settings, len(examples["train"]), values.warmup_proportion)
    if settings.do_predict or settings.do_eval:
        path = values.predict_file
        examples["dev"] = read_examples(path, False)
        answers = read_answers(path)
        if None in answers.values() or not (with_negative or all(answers.values())):
            answers = None
            log.info("%s has questions without answers: no evaluation", path)
            if flags.given(values, "do_eval"):
                raise FlagError(
                    f"--do_eval: {path} has questions without answers, and cannot be evaluated"
                )
            settings = dataclasses.replace(settings, do_eval=False)
    kind = SquadV2Task if with_negative else SquadV1Task
    task = kind(**flags.select(values, kind))
    if "dev" in examples:
        task = task.predicting(examples["dev"], answers, encoder.tokenizer)
    FineTuning(values, settings, encoder, FineTuningData(task.name, examples), task).run()


def _answered(examples: list[SquadExample], path: str) -> list[SquadExample]:
    """Returns the questions that have an answer; logs how many don't."""
    answered = [example for example in examples if not example.is_impossible]
    if not answered:
        raise DataError(f"{path}: no question has an answer: use run_squad_v2")
    if len(answered) < len(examples):
        log.warning("%s: skipped %s of %s questions, which have no answer; run_squad_v2 learns from "
                    "them too", path, f"{len(examples) - len(answered):,}", f"{len(examples):,}")
    return answered


def _with_steps(
    settings: FineTuningSettings, num_examples: int, warmup_proportion: float
) -> FineTuningSettings:
    """Returns the settings with the numbers of training and warm-up steps.

    The original counts questions here, not windows.
    """
    steps, warmup = settings.train_step, settings.warmup_step
    if steps is None:
        steps = int(num_examples / settings.train_batch_size * settings.num_train_epochs)
        if not steps:
            raise FlagError(
                f"--num_train_epochs={settings.num_train_epochs} of {num_examples} questions are "
                f"less than a batch: lower --train_batch_size={settings.train_batch_size}"
            )
    if warmup is None:
        warmup = int(steps * warmup_proportion)
    log.info("%s questions: %s steps, %s of them warm-up",
             f"{num_examples:,}", f"{steps:,}", f"{warmup:,}")
    return dataclasses.replace(settings, train_step=steps, warmup_step=warmup)
