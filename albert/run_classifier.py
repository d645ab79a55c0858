"""Fine-tunes ALBERT on a GLUE task, evaluates it and predicts with it.

  python -m albert.run_classifier --data_dir=glue --task_name=MNLI --output_dir=out \\
      --init_checkpoint=albert_base/model.ckpt-best \\
      --albert_config_file=albert_base/albert_config.json \\
      --spm_model_file=albert_base/30k-clean.model --do_train --do_eval --do_predict \\
      --max_seq_length=128 --learning_rate=3e-5 --train_step=10000 --warmup_step=1000 \\
      --save_checkpoints_steps=100

With --do_eval every checkpoint is evaluated and the best is kept; evaluation
alone, prediction and export use it. The same command again goes on from the
newest checkpoint of --output_dir.
"""

import dataclasses
import logging

from albert import fine_tuning, flags
from albert.errors import FlagError
from albert.tasks import glue

log = logging.getLogger("albert")

TASKS = {
    "ax": glue.AX,
    "cola": glue.COLA,
    "mismnli": glue.MISMNLI,
    "mnli": glue.MNLI,
    "mrpc": glue.MRPC,
    "qnli": glue.QNLI,
    "qqp": glue.QQP,
    "rte": glue.RTE,
    "sst-2": glue.SST_2,
    "sts-b": glue.STS_B,
    "wnli": glue.WNLI,
}


def define_flags(values: flags.FlagValues) -> None:
    """The original's flags with its defaults, and a few of ours."""
    flags.define("string", values, "data_dir", None, "Folder with the tasks' folders. Required.")
    flags.define("string", values, "task_name", None, f"One of {', '.join(TASKS)}. Required.")
    fine_tuning.define_encoder_flags(values)
    flags.define("string", values, "cached_dir", None,
                 "Where feature files are kept; --output_dir if absent.")
    flags.define("bool", values, "do_train", False, "Train on the train file.")
    flags.define("bool", values, "do_eval", False, "Evaluate on the dev file.")
    flags.define("bool", values, "do_predict", False, "Predict the test file.")
    flags.define("integer", values, "train_batch_size", 32, "Sequences of a training step.")
    flags.define("integer", values, "eval_batch_size", 8, "Sequences of an evaluation batch.")
    flags.define("integer", values, "predict_batch_size", 8, "Sequences of a prediction batch.")
    flags.define("enum", values, "optimizer", "adamw", "Optimizer.", enum_values=["adamw", "lamb"])
    flags.define("float", values, "learning_rate", 5e-5, "Peak rate; it decays to 0.")
    flags.define("integer", values, "train_step", 1000, "Training steps in all.")
    flags.define("integer", values, "warmup_step", 0, "Steps of linear warm-up.")
    flags.define("string", values, "export_dir", None,
                 "Write a SavedModel that takes serialized tf.Example strings there.")
    flags.define("float", values, "threshold_to_export", float("nan"),
                 "Constant to export beside the predictions.")
    flags.define_run_flags(values, save_checkpoints_steps=1000)
    flags.define_device_flags(values)


def _check(values: flags.FlagValues) -> glue.GlueTask:
    flags.require(values, "data_dir", "task_name", "output_dir")
    name = values.task_name.lower()
    if name not in TASKS:
        raise FlagError(f"--task_name={values.task_name} is not one of {', '.join(TASKS)}")
    if not (values.do_train or values.do_eval or values.do_predict or values.export_dir):
        raise FlagError(
            "at least one of --do_train, --do_eval, --do_predict and --export_dir is needed"
        )
    fine_tuning.check_encoder_flags(values)
    flags.require_positive(
        values, "train_batch_size", "eval_batch_size", "predict_batch_size", "train_step",
        "save_checkpoints_steps", "log_steps", "iterations_per_loop", "learning_rate",
    )
    if not 0 <= values.warmup_step <= values.train_step:
        raise FlagError(
            f"--warmup_step={values.warmup_step} is not within 0 ... "
            f"--train_step={values.train_step}"
        )
    flags.check_device_flags(values)
    return TASKS[name]


def main(values: flags.FlagValues) -> None:
    glue_task = _check(values)
    wanted = {"train": values.do_train, "dev": values.do_eval, "test": values.do_predict}
    splits = [split for split, is_wanted in wanted.items() if is_wanted]
    for split in splits:
        glue_task.path(values.data_dir, split)
    config, tokenizer, module = fine_tuning.open_encoder(values)
    records = {
        split: glue.feature_file(
            glue_task, values.data_dir, split, tokenizer, values.max_seq_length,
            values.cached_dir or values.output_dir,
        )
        for split in splits
    }

    flags.import_tensorflow()  # after all input is known to be good: it takes seconds
    run = _run_config(values)
    task = _task(glue_task, values.max_seq_length)
    init = fine_tuning.initial_weights(values, module)
    results = _train(values, task, config, run, records, init) if values.do_train else {}
    if not (values.do_eval or values.do_predict or values.export_dir):
        log.info("done; checkpoints, metrics.jsonl and TensorBoard summaries: %s", run.output_dir)
        return
    weights = fine_tuning.finished_weights(values, init)
    if values.do_eval:
        fine_tuning.evaluate(task, config, run, records["dev"], weights, results)
    if values.do_predict:
        _predict(values, glue_task, task, config, run, records["test"], weights)
    if values.export_dir:
        _export(values, task, config, run, weights)


def _run_config(values: flags.FlagValues):
    from albert import trainer

    return trainer.RunConfig(
        **flags.select(values, trainer.RunConfig), num_train_steps=values.train_step
    )


def _task(task: glue.GlueTask, max_seq_length: int):
    from albert.tasks.classification import ClassificationTask

    return ClassificationTask(
        task.name, max_seq_length, task.num_labels, task.is_regression, task.metric,
        task.best_metric,
    )


def _train(values, task, config, run, records, init) -> dict:
    """Trains, and returns the results of the last evaluation made on the way."""
    from albert import trainer
    from albert.optimization import OptimizerConfig

    optimizer = OptimizerConfig(
        values.optimizer, values.learning_rate, values.train_step, values.warmup_step
    )
    eval_files = [records["dev"]] if values.do_eval else []
    return trainer.train(
        task, config, run, optimizer, [records["train"]],
        eval_files=eval_files, init=init, flags=flags.to_dict(values),
    )


def _predict(values, glue_task, task, config, run, path, weights) -> None:
    from albert import trainer

    run = dataclasses.replace(run, eval_batch_size=values.predict_batch_size)
    predictions = trainer.predict(task, config, run, [path], weights)
    examples = glue.read_examples(glue_task, values.data_dir, "test")
    written = glue.write_predictions(glue_task, examples, predictions, run.output_dir)
    log.info("predictions of %s: %s", weights.origin, ", ".join(written))


def _export(values, task, config, run, weights) -> None:
    from albert import trainer
    from albert.tasks import classification

    model, _ = trainer.load_model(task, config, run, weights)
    classification.export(task, model, values.export_dir, values.threshold_to_export)
    log.info("SavedModel of %s: %s", weights.origin, values.export_dir)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
