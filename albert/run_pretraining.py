"""Pretrains ALBERT on records made by albert.create_pretraining_data.

  python -m albert.run_pretraining --input_file='records/train*.tfrecord' \\
      --eval_input_file=records/heldout.tfrecord --output_dir=out \\
      --albert_config_file=configs/albert_base_v2.json --do_train --do_eval

The same command again goes on from the newest checkpoint of --output_dir.
"""

import dataclasses
import logging
import math

from albert import files, flags
from albert.config import AlbertConfig
from albert.errors import FlagError

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    """The original's flags with its defaults, and a few of ours."""
    flags.define("string", values, "albert_config_file", None, "Architecture (JSON). Required.")
    flags.define("string", values, "input_file", None,
                 "Records to train on: comma-separated globs. Required.")
    flags.define("string", values, "eval_input_file", None,
                 "Records to evaluate on; --input_file if absent, as in the original.")
    flags.define("string", values, "init_checkpoint", None,
                 "Checkpoint whose weights (not step or moments) start the training.")
    flags.define("bool", values, "init_from_group0", False,
                 "Start every parameter group from group 0 of --init_checkpoint.")
    flags.define("bool", values, "allow_partial_init", False,
                 "Let encoder weights that --init_checkpoint lacks stay random.")
    flags.define("integer", values, "max_seq_length", 512, "Length L of the records' sequences.")
    flags.define("integer", values, "max_predictions_per_seq", 20, "Masked positions of a record.")
    flags.define("bool", values, "do_train", True, "Train.")
    flags.define("bool", values, "do_eval", False, "Evaluate at each checkpoint and at the end.")
    flags.define("integer", values, "train_batch_size", 4096, "Sequences of a training step.")
    flags.define("integer", values, "eval_batch_size", 64, "Sequences of an evaluation batch.")
    flags.define("integer", values, "max_eval_steps", 100,
                 "Evaluation batches, repeating small data; 0 is one full pass.")
    flags.define("enum", values, "optimizer", "lamb", "Optimizer.", enum_values=["adamw", "lamb"])
    flags.define("float", values, "learning_rate", 0.00176,
                 "Peak rate; see --scale_learning_rate for other batches than 4096.")
    flags.define("bool", values, "scale_learning_rate", False,
                 "Multiply the rate by the square root of train_batch_size / 4096, by which LAMB's "
                 "paper scales it: the given rate is then that of 4096 sequences.")
    flags.define("float", values, "poly_power", 1.0, "Power of the polynomial decay.")
    flags.define("integer", values, "num_train_steps", 125000, "Steps in all.")
    flags.define("integer", values, "num_warmup_steps", 3125, "Steps of linear warm-up.")
    flags.define("integer", values, "start_warmup_step", 0, "Step at which the warm-up begins.")
    flags.define("float", values, "masked_lm_budget", 0.0,
                 "Masking on the fly, which the original's public code lacks too; must be 0.")
    flags.define_packing_flag(values)
    flags.define_run_flags(values, save_checkpoints_steps=5000)
    flags.define_device_flags(values)


def _check(values: flags.FlagValues) -> AlbertConfig:
    flags.require(values, "albert_config_file", "input_file", "output_dir")
    if not (values.do_train or values.do_eval):
        raise FlagError("at least one of --do_train and --do_eval is needed")
    flags.require_positive(
        values, "max_seq_length", "max_predictions_per_seq", "train_batch_size",
        "eval_batch_size", "num_train_steps", "save_checkpoints_steps", "log_steps",
        "iterations_per_loop", "learning_rate",
    )
    if values.masked_lm_budget:
        raise FlagError(
            "--masked_lm_budget: masks are drawn by albert.create_pretraining_data; leave it at 0"
        )
    if values.num_warmup_steps > values.num_train_steps:
        raise FlagError(
            f"--num_warmup_steps={values.num_warmup_steps} exceeds "
            f"--num_train_steps={values.num_train_steps}"
        )
    flags.check_device_flags(values)
    config = AlbertConfig.from_json_file(
        files.require_file(values.albert_config_file, "albert_config_file")
    )
    if values.max_seq_length > config.max_position_embeddings:
        raise FlagError(
            f"--max_seq_length={values.max_seq_length} exceeds max_position_embeddings "
            f"{config.max_position_embeddings} of {values.albert_config_file}"
        )
    return config


def main(values: flags.FlagValues) -> None:
    config = _check(values)
    train_files = files.expand_globs(values.input_file, "input_file")
    eval_files = train_files
    if values.eval_input_file:
        eval_files = files.expand_globs(values.eval_input_file, "eval_input_file")

    flags.import_tensorflow()  # after the flags are known to be good: it takes seconds
    from albert import distribution

    with distribution.scope(values):
        _run(values, config, train_files, eval_files)


def _run(values: flags.FlagValues, config, train_files, eval_files) -> None:
    from albert import checkpoints, distribution, model_card, pretrained, summaries, trainer
    from albert.tasks.pretraining import PretrainingTask

    task = PretrainingTask(values.max_seq_length, values.max_predictions_per_seq)
    run = trainer.RunConfig(**flags.select(values, trainer.RunConfig))
    optimizer = flags.optimizer_config(values)
    if values.scale_learning_rate:
        rate = optimizer.learning_rate * math.sqrt(values.train_batch_size / 4096)
        optimizer = dataclasses.replace(optimizer, learning_rate=rate)
        log.info("learning rate of %d sequences: %.3g", values.train_batch_size, rate)
    init = pretrained.open_weights(values.init_checkpoint) if values.init_checkpoint else None
    results = {}
    if values.do_train:
        results = trainer.train(
            task, config, run, optimizer, train_files,
            eval_files=eval_files if values.do_eval else (),
            init=init,
            warm_start_options=flags.select(values, ("init_from_group0", "allow_partial_init")),
            flags=flags.to_dict(values),
        )
    if values.do_eval and distribution.is_chief():
        results = results or _evaluate(task, config, run, eval_files, init)
        path = summaries.write_results(files.make_dirs(run.output_dir), results)
        log.info("results: %s", path)
    if values.do_train and distribution.is_chief():
        best = checkpoints.newest_or_best(run.output_dir)
        model_card.of_checkpoint(run.output_dir, best, config)
    log.info("done; checkpoints, metrics.jsonl and TensorBoard summaries: %s", run.output_dir)


def _evaluate(task, config, run, eval_files, init):
    """Evaluates the newest checkpoint of output_dir, else --init_checkpoint."""
    from albert import checkpoints, summaries, trainer

    own = list(checkpoints.list_steps(run.output_dir).values())
    if not own and init is None:
        raise FlagError(
            f"--do_eval: no checkpoint in {run.output_dir}, and no --init_checkpoint is given"
        )
    weights = checkpoints.open_weights(own[-1], "output_dir") if own else init
    results = trainer.evaluate(task, config, run, eval_files, weights)
    summaries.log_results(results)
    if own:
        trainer.keep_if_best(task, own[-1], results)
    return results


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
