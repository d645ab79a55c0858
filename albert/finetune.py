"""Fine-tuning, from the flags to checkpoints, results and predictions; the commands bring data and task.

No TensorFlow at import: a command checks all its input before loading it.
"""

import dataclasses
import logging
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from albert import engines
from albert.cli import earlier_run, flags, run_flags
from albert.cli.encoder import Encoder
from albert.errors import FlagError
from albert.formats import checkpoints, model_card, pretrained, tokenizer_files
from albert.formats.metadata import read_run_state
from albert.records.record_files import RecordsInMemory
from albert.storage import cloud, files
from albert.tasks import fine_tuning_data
from albert.tasks.fine_tuning_data import FineTuningData
from albert.training.metrics import log_results, write_results

if TYPE_CHECKING:
    from albert.formats.weights import Weights
    from albert.tasks.task import Task
    from albert.training.evaluate import Evaluation

log = logging.getLogger("albert")

_FLAGS_OF_DATA = (
    "train_file", "data_dir", "task_name", "dev_file", "dev_share", "seed", "text_column",
    "text_pair_column", "label_column", "high_only", "middle_only",
)


# === Flags ===


def define_encoder_flags(values: flags.FlagValues, max_seq_length: int = 512) -> None:
    """Defines where architecture, vocabulary and weights come from."""
    flags.define("path", values, "albert_config_file", None,
                 "Architecture: a JSON file, or the name of a released model, such as base_v2.",
                 use="file")
    flags.define_vocabulary_flags(values)
    flags.define("path", values, "init_checkpoint", None,
                 f"Model to start from: {flags.A_MODEL}.", use="model")
    flags.define("path", values, "albert_hub_module_handle", None,
                 "TF-Hub module to take architecture, vocabulary and initial weights from.",
                 use="model")
    flags.define("path", values, "checkpoint", None,
                 "Fine-tuned checkpoint to evaluate, predict with or export. Default: the best in "
                 "--output_dir, else the newest, else --init_checkpoint.", use="model")
    flags.define("integer", values, "max_seq_length", max_seq_length,
                 "Maximum input length in tokens, with [CLS] and [SEP]; longer inputs are truncated.",
                 lower_bound=4)
    flags.define("float", values, "albert_dropout", None,
                 "Both dropout rates of the encoder (ALBERT DR in the paper's table 14). Default: as "
                 "in its configuration.", lower_bound=0, below=1)


def define_ignored_flags(values: flags.FlagValues, *names: str) -> None:
    """Defines the original's flags for record files."""
    for name in names:
        flags.define("string", values, name, None,
                     "No effect: features are kept in memory.")


def define_classifier_flags(values: flags.FlagValues, dropout_help: str) -> None:
    """Defines the flags of the commands for labels, with the original's defaults."""
    flags.define("float", values, "classifier_dropout", 0.1, dropout_help, lower_bound=0, below=1)
    flags.define("enum", values, "optimizer", "adamw", "Optimizer.", enum_values=["adamw", "lamb"])
    define_training_flags(values)


def define_training_flags(
    values: flags.FlagValues, learning_rate: float = 5e-5, train_step: int | None = 1000,
    warmup_step: int | None = 0, save_checkpoints_steps: int = 1000, by_default: bool = False,
) -> None:
    """Defines actions and training settings; `by_default` is that of --do_train and --do_eval."""
    flags.define("bool", values, "do_train", by_default, "Train on the train file.")
    flags.define("bool", values, "do_eval", by_default, "Evaluate on the dev file.")
    flags.define("bool", values, "do_predict", False, "Predict the test file.")
    flags.define("string", values, "cached_dir", None, "No effect: features are kept in memory.")
    flags.define("integer", values, "train_batch_size", 32, "Examples per training step.",
                 lower_bound=1)
    flags.define("integer", values, "eval_batch_size", 8, "Examples per evaluation batch.",
                 lower_bound=1)
    flags.define("integer", values, "predict_batch_size", 8, "Examples per prediction batch.",
                 lower_bound=1)
    flags.define("float", values, "learning_rate", learning_rate,
                 "Peak learning rate; it decays to 0.", above=0)
    flags.define("integer", values, "train_step", train_step, "Total number of training steps.",
                 lower_bound=1)
    if "num_train_epochs" not in values:  # the SQuAD commands define the original's
        flags.define("float", values, "num_train_epochs", None,
                     "Epochs over the training data, instead of --train_step.", above=0)
    flags.define("integer", values, "warmup_step", warmup_step,
                 "Warm-up steps, in which the learning rate rises to its peak.", lower_bound=0)
    flags.define("bool", values, "pad_to_max_seq_length", False,
                 "Compute everything that the original computes: pad sequences to --max_seq_length, "
                 "and run the last layer on all tokens even if only [CLS] is read. Slower; results "
                 "differ only in the random numbers of dropout.")
    flags.define("bool", values, "freeze_encoder", False, "Train only the task's head.")
    run_flags.define_run_flags(values, save_checkpoints_steps=save_checkpoints_steps)
    run_flags.define_device_flags(values)


# === Settings ===


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a fine-tuning that its data may decide on instead of flags, as recorded."""

    output_dir: str
    do_train: bool
    do_eval: bool
    do_predict: bool
    checkpoint: str | None  # to evaluate, predict with and export instead of the best
    max_seq_length: int | None  # None: the texts decide
    train_batch_size: int
    eval_batch_size: int
    predict_batch_size: int
    learning_rate: float
    train_step: int | None  # None: num_train_epochs decides
    num_train_epochs: float | None
    warmup_step: int | None  # None: --warmup_proportion decides
    save_checkpoints_steps: int
    optimizer: str = "adamw"
    export_dir: str | None = None
    keep_last: bool = False  # held-out rows are too few to choose a checkpoint

    def __post_init__(self):
        if self.train_step is not None and (self.warmup_step or 0) > self.train_step:
            raise FlagError(f"--warmup_step={self.warmup_step} exceeds --train_step={self.train_step}")
        if self.checkpoint and self.do_train:
            raise FlagError("--checkpoint has no effect with --do_train; did you mean --init_checkpoint?")

    @property
    def splits(self) -> list[str]:
        """The splits in use, out of train, dev and test."""
        used = {"train": self.do_train, "dev": self.do_eval, "test": self.do_predict}
        return [split for split, is_used in used.items() if is_used]

    def with_steps(self, num_examples: int) -> "Settings":
        """Returns the settings with the number of steps of `num_train_epochs`, at least one."""
        if self.train_step is not None:
            return self
        steps = math.ceil(num_examples / self.train_batch_size * self.num_train_epochs)
        log.info("%s examples, %s steps", f"{num_examples:,}", f"{max(1, steps):,}")
        return dataclasses.replace(self, train_step=max(1, steps))


def settings_of(values: flags.FlagValues, **decided: Any) -> Settings:
    """Returns the settings of a command's flags; `decided` overrides flags of the same name."""
    flags.require(values, "output_dir")
    actions = [name for name in ("do_train", "do_eval", "do_predict", "export_dir") if name in values]
    if not any(decided.get(name, getattr(values, name)) for name in actions):
        listed = ", ".join(f"--{name}" for name in actions[:-1])
        raise FlagError(f"at least one of {listed} and --{actions[-1]} is required")
    flags.refuse_together(values, "train_step", "num_train_epochs")
    if values.pad_to_max_seq_length and flags.given(values, "pack_rows"):
        raise FlagError("--pack_rows has no effect with --pad_to_max_seq_length")
    run_flags.check_device_flags(values)
    if flags.given(values, "num_train_epochs") is not None:
        decided["train_step"] = None
    return Settings(**flags.select(values, Settings) | decided)


# === The run ===


@dataclasses.dataclass(frozen=True)
class Result:
    """Weights to predict with or to export, and their evaluations in this process."""

    weights: "Weights"
    evaluations: "Mapping[str, Evaluation]"  # of dev and test, or those of them that were asked for


def run(
    values: flags.FlagValues, settings: Settings, encoder: Encoder, data: FineTuningData, task: "Task"
) -> Result | None:
    """Trains, evaluates and predicts, as the settings say.

    Returns None if only training was asked for, and in all processes of a distributed run but one.
    """
    # === What must not change between two runs ===
    config, tokenizer = encoder.config, encoder.tokenizer
    task, directory = task.scoring(data.examples.get("dev", ())), settings.output_dir
    # What the data decided replaces the flag.
    recorded = flags.to_dict(values) | {
        name: value for name, value in vars(settings).items()
        if name not in values or value != values[name].value
    } | dict(data.settings)
    training, trained_on = None, data.examples.get("train")
    if settings.do_eval:  # on rows that must not have been trained on
        trained_on = trained_on or data.trained_on
    if trained_on:
        training = {
            "sha256": fine_tuning_data.digest_of(trained_on), "examples": len(trained_on),
            "flags": {name: recorded[name] for name in _FLAGS_OF_DATA if name in recorded},
        }
    conditions = {
        "task": data.task,
        "number of labels": ("several" if data.has_several else "one") if data.labels else None,
        "label_list": data.labels if data.labels is None else list(data.labels),
        "do_lower_case": tokenizer.do_lower_case, "number of options": data.settings.get("num_choices"),
        "vocabulary or tokenizer setting": tokenizer.sha256, "seed": values.seed, "training data": training,
    }
    if settings.do_train:
        earlier_run.check_directory(directory, config, conditions)
        fine_tuning_data.warn_of_copies(data.examples)
    elif settings.checkpoint and pretrained.layout_of(directory):
        origin = os.path.abspath(weights_to_use(settings.checkpoint, directory).origin)
        if not os.path.samefile(os.path.dirname(origin), directory):
            raise FlagError(f"--output_dir={directory} holds another model or run: use another directory")

    # === Records ===
    sources, unreadable = {}, {}
    for split, examples in data.examples.items():
        sources[split] = fine_tuning_data.make_records(task, split, examples, tokenizer)
        log.info("%s: %s sequences", split, f"{sources[split].count:,}")
        if unknown := tokenizer.unknown_tokens():
            unreadable[split] = unknown
    if unreadable:
        log.warning("%s: %s", ", ".join(unreadable), next(iter(unreadable.values())))
    if settings.do_train:
        settings = settings.with_steps(sources["train"].count)
        recorded["train_step"] = settings.train_step

    engines.start(engines.choose(values))  # takes seconds, so check all input first
    from albert.optimization import OptimizerConfig
    from albert.training import evaluate, loop
    from albert.training.run import RunConfig, current

    engine, evaluated, evaluations = current(), {}, {}
    run_config = RunConfig(**flags.select(values, RunConfig) | {
        name: value for name, value in vars(settings).items() if name in RunConfig.__dataclass_fields__
    } | {"num_train_steps": settings.train_step})
    files.make_dirs(directory)
    with engine.scope(values):
        # === Training ===
        if settings.do_train:
            initial = encoder.weights
            if initial:
                initial = initial.without(*task.untrained_weights)
                initial = initial.for_labels(encoder.trained_labels, data.labels)
            evaluated = loop.train(
                task, config, run_config,
                OptimizerConfig(
                    settings.optimizer, settings.learning_rate, settings.train_step, settings.warmup_step
                ),
                sources["train"],
                eval_files=sources["dev"] if settings.do_eval else None,
                init=initial,
                flags=recorded | {
                    "output_dir": cloud.as_given(directory), "do_lower_case": tokenizer.do_lower_case,
                    "conditions": conditions,
                },
            )
        if not engine.is_chief:
            return None  # the chief does the rest
        if settings.do_train:
            tokenizer_files.write(tokenizer, directory)
        _write_card(encoder, directory)
        if not (settings.do_eval or settings.do_predict or settings.export_dir):
            log.info("done; checkpoints, metrics.jsonl and TensorBoard summaries: %s", directory)
            return None

        # === Evaluation ===
        weights = weights_to_use(settings.checkpoint, directory, encoder.weights)
        earlier_run.check(weights.origin, conditions, is_split=data.is_split)
        if settings.do_eval:
            evaluation = evaluated.get(read_run_state(weights.origin).get("step"))
            if evaluation is None:
                evaluation = _evaluate(task, config, run_config, sources["dev"], weights)
            path = write_results(directory, evaluation.results)
            log.info("results of %s: %s", weights.origin, path)
            evaluations["dev"] = evaluation
            # Another checkpoint may be the best now.
            weights = weights_to_use(settings.checkpoint, directory, encoder.weights)
            _write_card(encoder, directory)  # with the results

        # === Prediction ===
        if settings.do_predict:
            split = "test" if "test" in sources else "dev"
            examples = data.examples[split]
            if split not in evaluations:
                evaluations[split] = evaluate.evaluate(
                    task.scoring(examples), config,
                    dataclasses.replace(run_config, eval_batch_size=settings.predict_batch_size),
                    sources[split], weights,
                )
            written = task.write_predictions(
                examples, evaluations[split].predictions, directory, weights.origin
            )
            log.info("predicted with %s: %s", weights.origin, ", ".join(written))
        return Result(weights, evaluations)


def _evaluate(
    task: "Task", config: Any, run_config: Any, source: RecordsInMemory, weights: "Weights"
) -> "Evaluation":
    """Evaluates a checkpoint; if it is the best, but on other rows, looks for the best on these."""
    from albert.training import evaluate

    directory = run_config.output_dir
    result = evaluate.evaluate(task, config, run_config, source, weights)
    log_results(result.results)
    prefix, best = os.path.join(directory, checkpoints.BEST), evaluate.read_best(directory)
    if weights.origin != prefix or not best:
        return result
    changed = evaluate.differences(best, task, source)
    evaluate.keep_if_best(task, run_config, source, prefix, result.results)
    others = checkpoints.list_steps(directory) if changed and not run_config.keep_last else {}
    others.pop(best["step"], None)
    for other in others.values():
        found = evaluate.evaluate(task, config, run_config, source, checkpoints.open_weights(other))
        if evaluate.keep_if_best(task, run_config, source, other, found.results):
            result = found
    return result


def _write_card(encoder: Encoder, directory: str) -> None:
    if newest := checkpoints.newest_or_best(directory):
        model_card.of_weights(
            directory, checkpoints.open_weights(newest), encoder.config, has_tokenizer=True
        )


def weights_to_use(
    checkpoint: str | None, directory: str, init: "Weights | None" = None
) -> "Weights":
    """Returns --checkpoint, else the best of a run's directory, else its newest, else `init`."""
    if checkpoint:
        return pretrained.open_any_weights(checkpoint, "checkpoint")
    if newest := checkpoints.newest_or_best(directory):
        return checkpoints.open_weights(newest, "output_dir")
    if init is None:
        raise FlagError(f"no checkpoint in {directory}: train first (--do_train) or pass --checkpoint")
    return init
