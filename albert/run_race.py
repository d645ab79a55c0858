"""Fine-tunes ALBERT on RACE, evaluates it and predicts the test questions.

  python -m albert.run_race --data_dir=data --output_dir=out --do_predict \\
      --init_checkpoint=albert/albert-base-v2

data/RACE/{train,dev,test}/{middle,high}/ holds the files of the official archive,
or all.txt. It trains and evaluates unless you pass --nodo_train or --nodo_eval.
Accuracy is reported overall and for each level. Batch sizes count questions, with
one sequence per option. A question has 2 to 26 options; the number may vary within
a file. Answers are letters, starting with A.
"""

import itertools
import logging
import os

from albert import finetune
from albert.cli import flags
from albert.cli.encoder import open_encoder
from albert.errors import FlagError
from albert.tasks import race
from albert.tasks.classification import MultipleChoiceTask
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels
from albert.training.metrics import log_results, write_results

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags with its defaults, and a few new ones."""
    flags.define("path", values, "data_dir", None,
                 "Folder that contains the folder RACE, or train.jsonl and dev.jsonl. Required.",
                 use="file")
    flags.define("enum", values, "task_name", "race", "Task.", enum_values=["race"])
    finetune.define_ignored_flags(values, "train_file", "eval_file", "predict_file")
    flags.define("integer", values, "max_qa_length", 128,
                 "Maximum tokens of a question with an option; longer ones are truncated at the start.",
                 lower_bound=1)
    flags.define("bool", values, "high_only", False, "Use only questions of level high.")
    flags.define("bool", values, "middle_only", False, "Use only questions of level middle.")
    finetune.define_encoder_flags(values)
    flags.define("float", values, "dropout_prob", 0.1,
                 "Dropout on the pooled output (classifier DR of the paper's table 14).",
                 lower_bound=0, below=1)
    finetune.define_training_flags(values, 1e-5, 12000, 1000, save_checkpoints_steps=100, by_default=True)
    flags.define_alias(values, "classifier_dropout", "dropout_prob")
    flags.define_alias(values, "num_keep_checkpoint", "keep_checkpoint_max")


def main(values: flags.FlagValues) -> None:
    # === Settings ===
    if values.max_qa_length > values.max_seq_length - 3:
        raise FlagError(
            f"--max_qa_length={values.max_qa_length} leaves no room in "
            f"--max_seq_length={values.max_seq_length}: [CLS] and [SEP] take three tokens"
        )
    if not values.data_dir and values.train_file:  # the original's README names only this one
        values.data_dir = os.path.dirname(values.train_file) or "."
        log.info("--data_dir=%s, the folder of --train_file", values.data_dir)
    flags.require(values, "data_dir")
    if values.high_only and values.middle_only:
        raise FlagError("pass only one of --high_only and --middle_only")
    settings = finetune.settings_of(values)

    # === Questions ===
    encoder = open_encoder(values, settings.max_seq_length)
    levels = [name for name in race.LEVELS if values[f"{name}_only"].value] or list(race.LEVELS)
    questions = {
        split: race.read_questions(values.data_dir, split, encoder.tokenizer, levels)
        for split in settings.splits
    }
    # A question may have fewer options than others.
    count = race.num_choices_of(itertools.chain.from_iterable(questions.values()))
    letters = tuple(race.ANSWERS[:count])
    if "train" in questions:
        answers = (letters[question.label] for question in questions["train"])
        warn_of_labels(f"{values.data_dir}/RACE/train", answers, letters)

    # === Run ===
    data = FineTuningData("race", questions, settings={"num_choices": count})
    task = MultipleChoiceTask(
        "race", settings.max_seq_length, letters, values.dropout_prob,
        max_qa_length=values.max_qa_length,
    )
    result = finetune.run(values, settings, encoder, data, task)
    if result and settings.do_predict and questions["test"][0].label is not None:
        from albert.training import evaluate

        results = result.evaluations["test"].results
        best = evaluate.read_best(os.path.dirname(result.weights.origin))
        log_results(results, "Predict results")
        write_results(  # in the original's format
            settings.output_dir, results, "predict_results", "***** Predict results *****\n",
            f"best = {best['value']}\n" if best else "",
        )


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
