"""Fine-tunes ALBERT on SQuAD 1.1, or with --version_2_with_negative on SQuAD 2.0, and predicts.

  python -m albert.run_squad --version_2_with_negative --albert_hub_module_handle=module \\
      --train_file=train-v2.0.json --predict_file=dev-v2.0.json --output_dir=out \\
      --do_train --do_predict

The same as run_squad_v2 with the flag, and as run_squad_v1 without it.
"""

import dataclasses
import logging

from albert import finetune
from albert.cli import flags
from albert.cli.encoder import open_encoder
from albert.errors import DataError, FlagError
from albert.tasks import squad
from albert.tasks.fine_tuning_data import FineTuningData

log = logging.getLogger("albert")

V2_FLAGS = ("dropout_prob", "end_n_top", "null_score_diff_threshold", "start_n_top")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags of both versions with its defaults, and a few new ones."""
    flags.define("bool", values, "version_2_with_negative", False,
                 "Whether the data are SQuAD 2.0, where some questions have no answer; run_squad_v2 is the "
                 "same as this flag.")
    flags.define("path", values, "train_file", None, "SQuAD JSON to train on.", use="file")
    flags.define("path", values, "predict_file", None,
                 "SQuAD JSON to predict; evaluated if it has answers.", use="file")
    finetune.define_ignored_flags(
        values, "train_feature_file", "predict_feature_file", "predict_feature_left_file"
    )
    finetune.define_encoder_flags(values, max_seq_length=384)
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
    finetune.define_training_flags(values, train_step=None, warmup_step=None)
    flags.define("bool", values, "use_einsum", True, "No effect in TensorFlow 2.")
    flags.define("path", values, "export_dir", None,
                 "No effect on SQuAD: serve a session over HTTP, or use export_model.", use="output")
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


def main(values: flags.FlagValues) -> None:
    """Trains, evaluates and predicts; all input is read before anything is written."""
    # === Settings ===
    with_negative = values.version_2_with_negative
    if not with_negative and (ineffective := flags.given_as_typed(values, *V2_FLAGS)):
        raise FlagError(f"{', '.join(ineffective)}: only with --version_2_with_negative")
    flags.refuse_together(values, "warmup_step", "warmup_proportion")
    do_eval = flags.given(values, "do_eval")
    settings = finetune.settings_of(
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
    for name in ("start_n_top", "end_n_top") if with_negative else ():
        if values[name].value > values.max_seq_length:
            raise FlagError(f"--{name}={values[name].value} exceeds --max_seq_length={values.max_seq_length}")
    if not with_negative and flags.given(values, "pack_rows"):
        raise FlagError("--pack_rows has no effect on SQuAD 1.1, where padding counts")
    encoder, questions = open_encoder(values, settings.max_seq_length), {}
    task = squad.SquadTask(with_negative=with_negative, **flags.select(values, squad.SquadTask))

    # === Questions to train on ===
    if settings.do_train:
        path, found = values.train_file, squad.read_questions(values.train_file, is_training=True)
        train = questions["train"] = [one for one in found if with_negative or one.answers]
        if not train:
            raise DataError(f"{path}: no question has an answer: use run_squad_v2")
        if skipped := len(found) - len(train):
            log.warning("%s: skipped %s of %s questions, which have no answer; run_squad_v2 learns "
                        "from them too", path, f"{skipped:,}", f"{len(found):,}")
        # The original counts questions here, not windows.
        steps, warmup = settings.train_step, settings.warmup_step
        if steps is None:
            steps = int(len(train) / settings.train_batch_size * settings.num_train_epochs)
        if not steps:
            raise FlagError(
                f"--num_train_epochs={settings.num_train_epochs} of {len(train)} questions are less than "
                f"a batch: lower --train_batch_size={settings.train_batch_size}"
            )
        if warmup is None:
            warmup = int(steps * values.warmup_proportion)
        log.info("%s questions: %s steps, %s of them warm-up", f"{len(train):,}", f"{steps:,}", f"{warmup:,}")
        settings = dataclasses.replace(settings, train_step=steps, warmup_step=warmup)

    # === Questions to answer ===
    if settings.do_predict or settings.do_eval:
        path = values.predict_file
        questions["dev"] = squad.read_questions(path, is_training=False)
        if squad.known_answers(questions["dev"], with_negative) is None:
            log.info("%s has questions without answers: no evaluation", path)
            if do_eval:
                raise FlagError(f"--do_eval: {path} has questions without answers, and cannot be evaluated")
            settings = dataclasses.replace(settings, do_eval=False)
        task = task.predicting(questions["dev"], encoder.tokenizer)

    # === Run ===
    finetune.run(values, settings, encoder, FineTuningData(task.name, questions), task)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
