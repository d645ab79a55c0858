"""The flags of the fine-tuning commands, and the settings they give. No TensorFlow."""

import dataclasses
import logging
import math
import os
from typing import Any

from albert.cli import flags, run_flags
from albert.errors import FlagError
from albert.storage import locks

log = logging.getLogger("albert")


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
                     "No effect: record files are kept in --cached_dir.")


def define_classifier_flags(values: flags.FlagValues, dropout_help: str) -> None:
    """Defines the flags of the commands for labels, with the original's defaults."""
    flags.define("float", values, "classifier_dropout", 0.1, dropout_help, lower_bound=0, below=1)
    flags.define("enum", values, "optimizer", "adamw", "Optimizer.", enum_values=["adamw", "lamb"])
    define_training_flags(
        values, learning_rate=5e-5, train_step=1000, warmup_step=0, save_checkpoints_steps=1000,
        by_default=False,
    )


def define_training_flags(
    values: flags.FlagValues,
    *,
    learning_rate: float,
    train_step: int | None,
    warmup_step: int | None,
    save_checkpoints_steps: int,
    by_default: bool,
) -> None:
    """Defines actions and training settings; `by_default` is that of --do_train and --do_eval."""
    flags.define("bool", values, "do_train", by_default, "Train on the train file.")
    flags.define("bool", values, "do_eval", by_default, "Evaluate on the dev file.")
    flags.define("bool", values, "do_predict", False, "Predict the test file.")
    flags.define("path", values, "cached_dir", None,
                 "Folder for the record files made from the data, which contain the texts. Default: "
                 ".NAME.work next to an --output_dir NAME.", use="directory")
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


_DECIDED_BY_DATA = (
    "do_train", "do_eval", "max_seq_length", "train_batch_size", "eval_batch_size", "optimizer",
    "learning_rate", "train_step", "num_train_epochs", "warmup_step", "save_checkpoints_steps",
)


@dataclasses.dataclass(frozen=True)
class FineTuningSettings:
    """Settings of a fine-tuning: from the flags, or from the data where no flag is given."""

    output_dir: str
    do_train: bool
    do_eval: bool
    do_predict: bool
    export_dir: str | None
    checkpoint: str | None  # to evaluate, predict with and export instead of the best
    max_seq_length: int | None  # None: the texts decide
    train_batch_size: int
    eval_batch_size: int
    predict_batch_size: int
    optimizer: str
    learning_rate: float
    train_step: int | None  # None: num_train_epochs decides
    num_train_epochs: float | None
    warmup_step: int | None  # None: --warmup_proportion decides
    save_checkpoints_steps: int
    seed: int
    keep_last: bool = False  # held-out rows are too few to choose a checkpoint

    def __post_init__(self):
        if self.train_step is not None and (self.warmup_step or 0) > self.train_step:
            raise FlagError(
                f"--warmup_step={self.warmup_step} exceeds --train_step={self.train_step}"
            )
        if self.checkpoint and self.do_train:
            raise FlagError(
                "--checkpoint has no effect with --do_train; did you mean --init_checkpoint?"
            )

    @property
    def splits(self) -> list[str]:
        """The splits in use, out of train, dev and test."""
        used = {"train": self.do_train, "dev": self.do_eval, "test": self.do_predict}
        return [split for split, is_used in used.items() if is_used]

    def with_steps(self, num_examples: int) -> "FineTuningSettings":
        """Returns the settings with the number of steps of `num_train_epochs`, at least one."""
        if self.train_step is not None:
            return self
        steps = math.ceil(num_examples / self.train_batch_size * self.num_train_epochs)
        return dataclasses.replace(self, train_step=max(1, steps))

    def as_flags(self) -> dict[str, Any]:
        """Returns the values that may come from the data, to record instead of the flags."""
        return {name: getattr(self, name) for name in _DECIDED_BY_DATA}


def settings_of(values: flags.FlagValues, **decided: Any) -> FineTuningSettings:
    """Returns the settings of a command's flags; `decided` overrides flags of the same name."""
    flags.require(values, "output_dir")
    actions = ["do_train", "do_eval", "do_predict"]
    if "export_dir" in values:
        actions.append("export_dir")
    if not any(decided.get(name, getattr(values, name)) for name in actions):
        listed = ", ".join(f"--{name}" for name in actions[:-1])
        raise FlagError(f"at least one of {listed} and --{actions[-1]} is required")
    flags.refuse_together(values, "train_step", "num_train_epochs")
    if values.pad_to_max_seq_length and flags.given(values, "pack_rows"):
        raise FlagError("--pack_rows has no effect with --pad_to_max_seq_length")
    run_flags.check_device_flags(values)
    is_by_epochs = flags.given(values, "num_train_epochs") is not None
    of_flags = {"export_dir": None, "optimizer": "adamw"} | flags.select(values, FineTuningSettings)
    if is_by_epochs:
        of_flags["train_step"] = None
    return FineTuningSettings(**of_flags | decided)


def work_directory(values: flags.FlagValues) -> str:
    """Returns the directory of record files, apart from the model's, since they hold the texts."""
    if values.cached_dir:
        return values.cached_dir
    path = locks.work_folder_of(values.output_dir)
    parent = os.path.dirname(path)
    if os.path.isdir(parent) and not os.access(path if os.path.isdir(path) else parent, os.W_OK):
        raise FlagError(f"cannot write to {path}: name a folder for record files with --cached_dir")
    return path
