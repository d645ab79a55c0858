"""Fine-tunes ALBERT on RACE, evaluates it and predicts the test questions.

  python -m albert.run_race --data_dir=data --output_dir=out \\
      --init_checkpoint=albert_base/model.ckpt-best \\
      --albert_config_file=albert_base/albert_config.json \\
      --spm_model_file=albert_base/30k-clean.model --do_predict \\
      --max_seq_length=512 --max_qa_length=128 --train_batch_size=32 \\
      --learning_rate=1e-5 --train_step=12000 --warmup_step=1000 --save_checkpoints_steps=100

data/RACE/{train,dev,test}/{middle,high}/ holds the files of the official archive,
or all.txt. Training and evaluation are on unless --nodo_train or --nodo_eval
is given. Accuracy is reported overall and for each level. A batch is one of
questions: four sequences each.
"""

import dataclasses
import logging
import os

from albert.cli import course, fine_tuning, flags
from albert.errors import FlagError
from albert.formats.known_tasks import RACE
from albert.records import feature_cache
from albert.storage import files
from albert.tasks import prediction_files, race
from albert.tasks.choice_metrics import likeliest

log = logging.getLogger("albert")

FEATURE_FLAGS = {"train": "train_file", "dev": "eval_file", "test": "predict_file"}


def define_flags(values: flags.FlagValues) -> None:
    """The original's flags with its defaults, and a few of ours."""
    flags.define("path", values, "data_dir", None,
                 "Folder that holds the folder RACE. Required, unless all feature files are there.",
                 use="file")
    flags.define("enum", values, "task_name", RACE, "The task.", enum_values=[RACE])
    for split, name in FEATURE_FLAGS.items():
        flags.define("path", values, name, None,
                     f"TFRecord file for the {split} data; written if it is absent. By default a "
                     "file in --cached_dir with a checksum in its name.", use="output")
    flags.define("integer", values, "max_qa_length", 128,
                 "Longest question with an option, in tokens; longer ones lose their beginning.",
                 least=1)
    flags.define("bool", values, "high_only", False, "Leave out the level middle.")
    flags.define("bool", values, "middle_only", False, "Leave out the level high.")
    fine_tuning.define_encoder_flags(values)
    flags.define("float", values, "dropout_prob", 0.1,
                 "Dropout on the pooled output (classifier DR of the paper's table 14).",
                 least=0, below=1)
    fine_tuning.define_training_flags(
        values, learning_rate=1e-5, train_step=12000, warmup_step=1000,
        save_checkpoints_steps=100, by_default=True,
    )
    flags.define_alias(values, "classifier_dropout", "dropout_prob")
    flags.define_alias(values, "num_keep_checkpoint", "keep_checkpoint_max")


def _check(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    fine_tuning.check_training_flags(values)
    fine_tuning.check_encoder_flags(values)
    if values.max_qa_length > values.max_seq_length - 3:
        raise FlagError(
            f"--max_qa_length={values.max_qa_length} leaves no place in "
            f"--max_seq_length={values.max_seq_length}: three are of [CLS] and [SEP]"
        )
    if values.high_only and values.middle_only:
        raise FlagError("give one of --high_only and --middle_only")


def _is_taken_as_it_is(path: str | None, data_dir: str | None) -> bool:
    """Whether a feature file is there that is not compared with what it was made from.

    A file of the original tells nothing of that; without --data_dir there is nothing to
    compare any file with.
    """
    is_there = bool(path) and os.path.isfile(path)
    return is_there and (not data_dir or feature_cache.has_no_manifest(path))


def main(values: flags.FlagValues) -> None:
    _check(values)
    levels = [
        level for level in race.LEVELS
        if not (values.high_only and level == "middle" or values.middle_only and level == "high")
    ]
    encoder = fine_tuning.open_encoder(values)
    identity = fine_tuning.identity_of(values, encoder, RACE, num_choices=race.NUM_CHOICES)
    named = {split: getattr(values, flag) for split, flag in FEATURE_FLAGS.items()}
    records, questions = {}, {}
    for split in fine_tuning.wanted_splits(values):
        if split != "test" and _is_taken_as_it_is(named[split], values.data_dir):
            if len(levels) < len(race.LEVELS):
                raise FlagError(
                    f"--{levels[0]}_only has no effect on the features that are in {named[split]}"
                )
            log.info("features from %s", named[split])
            records[split], questions[split] = named[split], []
            continue
        if not values.data_dir:
            raise FlagError(f"--data_dir is required to make --{FEATURE_FLAGS[split]} of")
        questions[split] = race.read_questions(
            values.data_dir, split, encoder.tokenizer, levels
        )
    if questions.get("train"):
        answers = (race.ANSWERS[question.label] for question in questions["train"])
        fine_tuning.warn_of_labels(f"{values.data_dir}/RACE/train", answers, race.ANSWERS)
    for split, some in questions.items():
        records[split] = records.get(split) or race.question_records(
            some, split, fine_tuning.record_keeper(values, encoder), values.max_qa_length,
            named[split],
        )

    fine_tuning.set_steps(values, records)
    flags.start_engine(values)  # takes seconds, so all input is checked before
    from albert.tasks.classification import MultipleChoiceTask

    task = MultipleChoiceTask.of_choices(
        RACE, values.max_seq_length, race.NUM_CHOICES,
        classifier_dropout=values.dropout_prob,
        parts=race.level_sizes(questions.get("dev", [])),
    )

    def predict(trained: course.Trained) -> None:
        some = questions["test"]
        found = trained.predict("test", dataclasses.replace(task, parts=race.level_sizes(some)))
        written = prediction_files.write_test_results(
            values.output_dir, [question.guid for question in some],
            [race.ANSWERS[choice] for choice in likeliest(found.predictions["logits"])],
            found.predictions["probabilities"],
        )
        if some[0].label is not None:
            written.append(_write_results(values.output_dir, found.results, trained.weights))
        trained.tell(written)

    course.Course(
        values, task, encoder, identity, records,
        finish=predict if values.do_predict else None,
    ).go()


def _write_results(directory: str, results: dict, weights) -> str:
    """Publishes the test set's results in the original's form, with the best of the dev set."""
    from albert.training import evaluation, summaries

    best = evaluation.read_best(os.path.dirname(weights.origin))
    summaries.log_results(results, "Predict results")
    path = os.path.join(directory, "predict_results.txt")
    with files.atomic_write(path) as stream:
        stream.write("***** Predict results *****\n")
        stream.writelines(f"{key} = {results[key]}\n" for key in sorted(results))
        if best:
            stream.write(f"best = {best['value']}\n")
    files.write_json(os.path.join(directory, "predict_results.json"), results)
    return path


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
