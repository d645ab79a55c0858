"""Pretrains ALBERT on records made by albert.create_pretraining_data.

  python -m albert.run_pretraining --input_file='records/train*.tfrecord' \\
      --eval_input_file=records/heldout.tfrecord --output_dir=out \\
      --albert_config_file=base_v2 --do_train --do_eval

Rerun the command and it resumes from the newest checkpoint of --output_dir.
"""

import dataclasses
import hashlib
import logging
from typing import Any

from albert.cli import earlier_run, flags, pretraining_masks, pretraining_start, run_flags
from albert.config import AlbertConfig
from albert.errors import FlagError
from albert.formats import checkpoints, model_card, pretrained
from albert.formats.pretrained import Pretrained
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.tokenization import FullTokenizer
from albert.training.metrics import log_results, write_results

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags with its defaults, and a few new ones."""
    _define_data_flags(values)
    _define_schedule_flags(values)
    run_flags.define_masking_flags(values)
    run_flags.define_run_flags(values, save_checkpoints_steps=5000)
    run_flags.define_device_flags(values)


def _define_data_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "albert_config_file", None,
                 "Architecture: a JSON file, or the name of a released model, such as base_v2. "
                 "Default: that of the model in --init_checkpoint, else of --output_dir.",
                 use="file")
    flags.define("path", values, "input_file", None,
                 "Records to train on: comma-separated globs. Required.", use="records")
    flags.define("path", values, "eval_input_file", None,
                 "Records to evaluate on. Default: --input_file, as in the original.",
                 use="records")
    flags.define("path", values, "init_checkpoint", None,
                 f"Model to start from, without step and optimizer state: {flags.A_MODEL}.", use="model")
    flags.define("enum", values, "init_embeddings", "random",
                 "Initial token embeddings without --init_checkpoint; cooccurrence: computed from "
                 "the co-occurrence of tokens in --input_file, which takes a minute, saves a fifth "
                 "of 10,000 steps, and needs the vocabulary.",
                 enum_values=["random", "cooccurrence"])
    flags.define("path", values, "teacher", None,
                 "Encoder whose hidden states the model learns to compute, besides masked tokens, on "
                 f"records with its vocabulary or a part of it: {flags.A_MODEL}.", use="model")
    flags.define("bool", values, "init_from_teacher", False,
                 "Start from the weights of --teacher, adapted to the architecture, whose layers "
                 "must have the same sizes.")
    flags.define("bool", values, "init_from_group0", False,
                 "Initialize every parameter group from group 0 of --init_checkpoint.")
    flags.define("bool", values, "allow_partial_init", False,
                 "Allow an --init_checkpoint that lacks encoder weights, which are then random.")
    flags.define("integer", values, "max_seq_length", 512,
                 "Length of the records' sequences in tokens, as in create_pretraining_data.",
                 lower_bound=1)
    flags.define("integer", values, "max_predictions_per_seq", 20,
                 "Maximum masked tokens per sequence, as in create_pretraining_data; by default what "
                 "--masked_lm_budget needs, if given.", lower_bound=1)
    flags.define("bool", values, "do_train", True, "Train.")
    flags.define("bool", values, "do_eval", False,
                 "Evaluate every checkpoint of the training or, without --do_train, the newest of "
                 "--output_dir, else --init_checkpoint.")
    flags.define("integer", values, "train_batch_size", 4096,
                 "Sequences per training step, on all devices together.", lower_bound=1)
    flags.define("integer", values, "eval_batch_size", 64, "Sequences per evaluation batch.",
                 lower_bound=1)
    flags.define("integer", values, "max_eval_steps", 100,
                 "Batches per evaluation, with repetition if data are few; 0: all data once.",
                 lower_bound=0)
    flags.define("float", values, "masked_lm_budget", 0.0,
                 "Fraction of the tokens to mask (0.15 in the paper), drawn each time a record is "
                 "read, for records made with --nostatic_masks; 0: the records hold masks.",
                 lower_bound=0, upper_bound=1)
    flags.define("path", values, "spm_model_file", None,
                 "SentencePiece model of the records, to store in --output_dir. Default: the copy "
                 "next to them.", use="file")
    flags.define("path", values, "vocab_file", None,
                 "WordPiece vocabulary of the records, like --spm_model_file.", use="file")
    flags.define_text_flags(values, "Whether the records are lower-cased. Default: as their "
                            "manifest says, else true.")


def _define_schedule_flags(values: flags.FlagValues) -> None:
    flags.define("enum", values, "optimizer", "lamb",
                 "Optimizer: LAMB, for large batches; Adam with weight decay; or Muon (LAMB with "
                 "orthogonal updates of the layers' matrices).",
                 enum_values=["adamw", "lamb", "muon"])
    flags.define("float", values, "learning_rate", 0.00176,
                 "Peak learning rate, reached after the warm-up; for batches of N sequences, multiply "
                 "it by sqrt(N / 4096).", above=0)
    flags.define("float", values, "poly_power", 1.0,
                 "Power of the learning rate's polynomial decay; 1: linear.", lower_bound=0)
    flags.define("integer", values, "num_decay_steps", 0,
                 "Final steps in which the learning rate decays, after staying at its peak (a run "
                 "stopped before them by --until_step can be extended with more --num_train_steps); "
                 "0: decay from the start, as in the original.", lower_bound=0)
    flags.define("integer", values, "num_train_steps", 125000, "Total number of training steps.",
                 lower_bound=1)
    flags.define("integer", values, "num_warmup_steps", 3125,
                 "Steps in which the learning rate rises from 0 to --learning_rate. With other "
                 "--num_train_steps, the default is as large a part of them.", lower_bound=0)
    flags.define("integer", values, "until_step", 0,
                 "Stop at this step, with the learning rate schedule of --num_train_steps, to resume "
                 "later, for example with longer sequences; 0: train to the end.", lower_bound=0)
    flags.define("integer", values, "start_warmup_step", 0, "Step at which the warm-up begins.",
                 lower_bound=0)


def _check(values: flags.FlagValues) -> None:
    """Raises a FlagError for flags that contradict each other or have no effect."""
    if not (values.do_train or values.do_eval):
        raise FlagError("at least one of --do_train and --do_eval is required")
    if values.init_embeddings != "random" and (values.init_checkpoint or not values.do_train):
        raise FlagError("--init_embeddings needs --do_train, and no --init_checkpoint")
    if values.init_from_teacher and not (values.teacher and values.do_train):
        raise FlagError("--init_from_teacher needs --teacher and --do_train")
    if values.init_from_teacher:
        for name in ("init_checkpoint", "init_embeddings"):
            flags.refuse_together(values, "init_from_teacher", name)
    for name in ("spm_model_file", "vocab_file", *flags.TEXT_FLAGS):
        if values[name].present and not values.do_train:
            raise FlagError(f"--{name} needs --do_train")
    used = {"start_warmup_step": values.start_warmup_step, "num_warmup_steps": warmup_steps(values),
            "num_decay_steps": values.num_decay_steps}
    if sum(used.values()) > values.num_train_steps:
        listed = " + ".join(f"--{name}={steps}" for name, steps in used.items() if steps)
        raise FlagError(f"{listed} exceeds --num_train_steps={values.num_train_steps}")
    run_flags.check_device_flags(values)


def warmup_steps(values: flags.FlagValues) -> int:
    """Returns --num_warmup_steps, by default the same part of the steps as of 125,000."""
    given = flags.given(values, "num_warmup_steps")
    default = values.num_train_steps * values["num_warmup_steps"].default // 125_000
    longest = max(values.num_train_steps - values.num_decay_steps, 0)
    return min(default, longest) if given is None else given


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs that the flags name, read and checked before an engine starts."""

    config: AlbertConfig
    start: Pretrained | None  # --init_checkpoint, if it is more than weights
    teacher: Pretrained | None
    train_files: RecordFiles | None
    eval_files: RecordFiles | None
    task_settings: dict[str, Any]
    identity: earlier_run.Identity
    tokenizer: FullTokenizer | None


def _training_data(values: flags.FlagValues, source: RecordFiles) -> earlier_run.TrainingData:
    content = repr([fingerprint[1:] for fingerprint in source.fingerprints()])
    return earlier_run.TrainingData(
        hashlib.sha256(content.encode()).hexdigest(), source.count,
        {"input_file": flags.to_dict(values)["input_file"]},
    )


def read_inputs(values: flags.FlagValues) -> Inputs:
    """Returns what a run reads."""
    flags.require(values, "input_file", "output_dir")
    _check(values)
    start = pretraining_start.open_start(values)
    teacher = pretrained.open_path(values.teacher, "teacher") if values.teacher else None
    config = pretraining_start.architecture(values, start)
    config.check_length(values.max_seq_length, "the model")
    if teacher:
        teacher.config.check_length(values.max_seq_length, values.teacher)
    pretraining_masks.num_predictions(values)
    train_files = eval_files = RecordFiles.of_flag(values.input_file, "input_file")
    if values.eval_input_file:
        eval_files = RecordFiles.of_flag(values.eval_input_file, "eval_input_file")
    train_files = train_files if values.do_train else None
    eval_files = eval_files if values.do_eval else None
    sources = [source for source in (train_files, eval_files) if source]
    for source in sources:
        source.check_vocabulary(config.vocab_size)
    task_settings = pretraining_masks.task_settings(values, train_files, eval_files)
    identity = earlier_run.Identity(
        "pretraining", sources[0].tokenizer_sha256, seed=values.seed,
        training=_training_data(values, train_files) if train_files else None,
        may_continue_to=min(values.until_step or values.num_train_steps, values.num_train_steps),
    )
    tokenizer = None
    if values.do_train:
        earlier_run.check_directory(values.output_dir, identity)
        tokenizer = pretraining_start.vocabulary(values, config, start, sources)
    return Inputs(
        config, start, teacher, train_files, eval_files, task_settings, identity, tokenizer
    )


def main(values: flags.FlagValues) -> None:
    inputs = read_inputs(values)
    flags.start_engine(values)  # takes seconds, so check the flags first
    from albert.training import loop
    from albert.training.current_engine import current

    with current().scope(values):
        task, run, optimizer = pretraining_settings(values, inputs)
        init, options = _initial_weights(values, inputs, task)
        last = None
        if values.do_train:
            recorded = _recorded(values, inputs, task, optimizer)
            # First, so that the directory of a killed run is complete, too.
            if inputs.tokenizer and current().is_chief:
                pretraining_start.keep_vocabulary(inputs.tokenizer, files.make_dirs(run.output_dir))
            last = loop.train(
                task, inputs.config, run, optimizer, inputs.train_files, eval_files=inputs.eval_files,
                init=init, warm_start_options=options, flags=recorded,
            ).last
        if current().is_chief:
            _finish(values, inputs, task, run, init, last)


def pretraining_settings(values: flags.FlagValues, inputs: Inputs) -> tuple:
    """Returns the PretrainingTask, the RunConfig and the OptimizerConfig."""
    from albert.optimization import OptimizerConfig
    from albert.tasks.pretraining import PretrainingTask
    from albert.training.run import RunConfig

    optimizer = OptimizerConfig(values.optimizer, **flags.select(values, OptimizerConfig) | {
        "num_warmup_steps": warmup_steps(values)
    })
    run = RunConfig(**flags.select(values, RunConfig))
    task_settings = inputs.task_settings
    if inputs.teacher:
        from albert.tasks.teacher import Teacher

        if not inputs.tokenizer:
            raise FlagError("--teacher needs the records' vocabulary: give --vocab_file or "
                            "--spm_model_file")
        teacher = Teacher(inputs.teacher, inputs.tokenizer, values.mixed_precision)
        task_settings |= {"teacher": teacher, "best_metric": "teacher_similarity"}
    return PretrainingTask(**task_settings), run, optimizer


def _initial_weights(values: flags.FlagValues, inputs: Inputs, task) -> tuple:
    """Returns the weights to start from, if any, and the options of taking them."""
    options = flags.select(values, ("init_from_group0", "allow_partial_init"))
    if values.init_embeddings == "cooccurrence":
        return pretraining_start.of_cooccurrence(
            inputs.train_files, task, inputs.tokenizer, inputs.config, values.seed
        ), {"is_part": True}
    if values.init_from_teacher and not checkpoints.newest_or_best(values.output_dir):
        from albert.tasks import teacher

        return teacher.initial_weights(task.teacher, inputs.config, inputs.train_files), {"is_part": True}
    if inputs.start:
        return inputs.start.weights(), options
    is_bare = bool(values.init_checkpoint)  # weights alone
    return pretrained.open_any_weights(values.init_checkpoint) if is_bare else None, options


def _recorded(values: flags.FlagValues, inputs: Inputs, task, optimizer) -> dict[str, Any]:
    """Returns what a run records with each checkpoint."""
    recorded = flags.to_dict(values) | inputs.identity.recorded() | {
        "max_predictions_per_seq": task.max_predictions_per_seq,
        "num_warmup_steps": optimizer.num_warmup_steps,
    }
    if inputs.teacher and inputs.teacher.metadata.pooling:
        recorded["pooling"] = inputs.teacher.metadata.pooling
    return recorded | ({"do_lower_case": inputs.tokenizer.do_lower_case} if inputs.tokenizer else {})


def _finish(values: flags.FlagValues, inputs: Inputs, task, run, init, last) -> None:
    """Writes the results and the model's card."""
    if values.do_eval:
        last = last or _evaluate(task, inputs.config, run, inputs.eval_files, init)
        path = write_results(files.make_dirs(run.output_dir), last.results)
        log.info("results: %s", path)
    if values.do_train:
        weights = checkpoints.open_weights(checkpoints.newest_or_best(run.output_dir))
        model_card.of_weights(run.output_dir, weights, inputs.config, tokenizer=inputs.tokenizer)
    log.info("done; checkpoints, metrics.jsonl and TensorBoard summaries: %s", run.output_dir)


def _evaluate(task, config, run, eval_files, init):
    """Evaluates the newest checkpoint of output_dir, else --init_checkpoint."""
    from albert.training import evaluate

    of_run = list(checkpoints.list_steps(run.output_dir).values())
    if not of_run and init is None:
        raise FlagError(f"--do_eval: no checkpoint in {run.output_dir}: give --init_checkpoint")
    weights = checkpoints.open_weights(of_run[-1], "output_dir") if of_run else init
    result = evaluate.evaluate(task, config, run, eval_files, weights)
    log_results(result.results)
    if of_run:
        evaluate.keep_if_best(task, config, run, eval_files, of_run[-1], result.results)
    return result


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
