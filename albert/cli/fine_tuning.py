"""What the fine-tuning commands share before they train: flags, the encoder, labels, records.

No TensorFlow at import; a command has checked its input before it is loaded.
"""

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert.cli import earlier_run, flags
from albert.config import AlbertConfig
from albert.errors import FlagError
from albert.formats import archives
from albert.formats.tokenizer_files import Vocabulary
from albert.records.record_files import RecordFiles
from albert.storage import files, locks
from albert.tasks.record_keeper import RecordKeeper

if TYPE_CHECKING:
    from albert.formats.weights import Weights
    from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

FROM_HUB = "from_tf_hub"  # what the original's commands give as --spm_model_file with a module


def define_encoder_flags(values: flags.FlagValues, max_seq_length: int = 512) -> None:
    """Where architecture, vocabulary and weights come from."""
    flags.define("path", values, "albert_config_file", None,
                 "Architecture: a JSON file, or a released one's name, as base_v2.", use="file")
    flags.define("path", values, "spm_model_file", None, "SentencePiece model of the encoder.",
                 use="file")
    flags.define("path", values, "vocab_file", None,
                 "WordPiece vocabulary, for an encoder without SentencePiece model.", use="file")
    flags.define("bool", values, "do_lower_case", True,
                 "Put texts in lower case; by default what the encoder's directory says, else "
                 "yes.")
    flags.define("path", values, "init_checkpoint", None,
                 "Checkpoint whose weights (not step or moments) start the training.", use="model")
    flags.define("path", values, "albert_hub_module_handle", None,
                 "TF-Hub module that gives architecture, vocabulary and first weights.",
                 use="model")
    flags.define("path", values, "checkpoint", None,
                 "Fine-tuned checkpoint to evaluate, predict with or export; by default the best "
                 "of --output_dir, else its newest, else --init_checkpoint.", use="model")
    flags.define("integer", values, "max_seq_length", max_seq_length,
                 "Longest input, in tokens with [CLS] and [SEP]; longer ones are cut.", least=4)
    flags.define("float", values, "albert_dropout", None,
                 "Both dropout rates of the encoder (ALBERT DR of the paper's table 14); those of "
                 "its configuration if absent.", least=0, below=1)


def warn_of_labels(path: str, labels: Iterable[str], known: Sequence[str]) -> None:
    """Warns if all labels of the training data are equal, or if a known label never occurs."""
    there = set(labels)
    if len(there) == 1:
        log.warning("%s: every label is %s: there is nothing to learn", path, *there)
    elif absent := [label for label in known if label not in there]:
        log.warning("%s: no example has the label %s", path, ", ".join(absent))


def define_training_flags(
    values: flags.FlagValues,
    *,
    learning_rate: float,
    train_step: int | None,
    warmup_step: int | None,
    save_checkpoints_steps: int,
    by_default: bool,
) -> None:
    """What is done, how it is trained, and how often.

    With `by_default`, --do_train and --do_eval are on unless they are switched off.
    """
    flags.define("bool", values, "do_train", by_default, "Train on the train file.")
    flags.define("bool", values, "do_eval", by_default, "Evaluate on the dev file.")
    flags.define("bool", values, "do_predict", False, "Predict the test file.")
    flags.define("path", values, "cached_dir", None,
                 "Folder for the record files that are made of the data, which hold the texts; by "
                 "default .NAME.work beside an --output_dir of this NAME.",
                 use="directory")
    flags.define("integer", values, "train_batch_size", 32, "Examples of a training step.", least=1)
    flags.define("integer", values, "eval_batch_size", 8, "Examples of an evaluation batch.",
                 least=1)
    flags.define("integer", values, "predict_batch_size", 8, "Examples of a prediction batch.",
                 least=1)
    flags.define("float", values, "learning_rate", learning_rate,
                 "Highest learning rate; it decays to 0.", above=0)
    flags.define("integer", values, "train_step", train_step, "Training steps in all.", least=1)
    if "num_train_epochs" not in values:  # SQuAD's commands have one of the original's
        flags.define("float", values, "num_train_epochs", None,
                     "Passes over the training data, instead of --train_step.", above=0)
    flags.define("integer", values, "warmup_step", warmup_step,
                 "Steps in which the rate rises to --learning_rate.", least=0)
    flags.define_packing_flag(values)
    flags.define("bool", values, "pad_to_max_seq_length", False,
                 "Do all the work that the original does: rows padded to --max_seq_length, and the "
                 "last layer at every token where only [CLS] is read. Slower; results differ only "
                 "in what dropout draws.")
    flags.define("bool", values, "freeze_encoder", False,
                 "Train only the task's own layer, and leave the encoder as it is.")
    flags.define("integer", values, "num_runs", 1,
                 "Number of runs, with the seeds --seed, --seed + 1 and so on, each in a folder of "
                 "--output_dir. The median and the spread are reported; the best run predicts.",
                 least=1)
    flags.define("integer", values, "early_stopping_patience", 0,
                 "End the training after so many evaluations without improvement; 0: never.",
                 least=0)
    flags.define_run_flags(values, save_checkpoints_steps=save_checkpoints_steps)
    flags.define_device_flags(values)


def check_training_flags(values: flags.FlagValues, *others: str) -> None:
    """Raises a FlagError for flags that contradict each other, or if nothing is to be done.

    `others` are flags of the command that are something to do too.
    """
    actions = ("do_train", "do_eval", "do_predict", *others)
    if not any(getattr(values, name) for name in actions):
        listed = ", ".join(f"--{name}" for name in actions[:-1])
        raise FlagError(f"at least one of {listed} and --{actions[-1]} is needed")
    flags.refuse_together(values, "train_step", "num_train_epochs")
    by_epochs = flags.given(values, "num_train_epochs") is not None
    if values.pad_to_max_seq_length and flags.given(values, "pack_rows"):
        raise FlagError("--pack_rows has no effect with --pad_to_max_seq_length")
    if values.train_step is not None and not by_epochs:  # else it is known when the data is
        check_warmup(values)
    if values.seed + values.num_runs - 1 > flags.MOST_SEED:
        raise FlagError(
            f"--seed={values.seed}: the last of --num_runs={values.num_runs} would be above "
            f"{flags.MOST_SEED}"
        )
    if values.early_stopping_patience and values.do_train and not values.do_eval:
        raise FlagError("--early_stopping_patience needs --do_eval beside --do_train")
    if values.num_runs > 1 and values.checkpoint:
        raise FlagError("--checkpoint is of one run: leave out --num_runs")
    flags.check_device_flags(values)


def steps_of(values: flags.FlagValues, num_examples: int) -> int:
    """Returns the steps that --num_train_epochs takes, at least one."""
    steps = num_examples / values.train_batch_size * values.num_train_epochs
    return max(1, math.ceil(steps))


def set_steps(values: flags.FlagValues, records: Mapping[str, str]) -> None:
    """Sets --train_step by --num_train_epochs, if that is given.

    Args:
      records: the record files of the wanted splits.

    Raises:
      FlagError: the warm-up is longer than the training.
    """
    if values.num_train_epochs is None or not values.do_train:
        return
    num_examples = RecordFiles([records["train"]]).count
    values.train_step = steps_of(values, num_examples)
    log.info("%s examples, %s steps", f"{num_examples:,}", f"{values.train_step:,}")
    check_warmup(values)


def check_warmup(values: flags.FlagValues) -> None:
    """Raises a FlagError for a warm-up that is longer than the training."""
    if (values.warmup_step or 0) > values.train_step:
        raise FlagError(
            f"--warmup_step={values.warmup_step} exceeds --train_step={values.train_step}"
        )


def check_encoder_flags(values: flags.FlagValues) -> None:
    """Raises a FlagError for encoder flags that are missing or contradict each other."""
    if not values.albert_hub_module_handle:
        # A directory may say what the flags do not.
        says_more = archives.is_whole(values.init_checkpoint or "")
        if not (values.albert_config_file or says_more):
            raise FlagError(
                "--albert_config_file or --albert_hub_module_handle is needed (or the directory of "
                "a model as --init_checkpoint)"
            )
        if not (values.spm_model_file or values.vocab_file or says_more):
            raise FlagError("--spm_model_file is required (or --vocab_file for WordPiece)")
    elif values.init_checkpoint:
        raise FlagError("give one of --init_checkpoint and --albert_hub_module_handle")
    _warn_of_ineffective_flags(values)
    if values.checkpoint and values.do_train:
        raise FlagError(
            "--checkpoint has no effect with --do_train; did you mean --init_checkpoint?"
        )


def _warn_of_ineffective_flags(values: flags.FlagValues) -> None:
    """Warns of flags of the original's commands that another flag overrides."""
    names = ("albert_config_file", "spm_model_file", "vocab_file")
    if values.albert_hub_module_handle:
        given = [name for name in names if getattr(values, name) != FROM_HUB]
        ineffective = flags.given_as_typed(values, *given)
        if ineffective:
            log.warning("%s: no effect beside --albert_hub_module_handle, which has its own",
                        ", ".join(ineffective))
    elif values.spm_model_file and values.vocab_file:
        log.warning("--vocab_file: no effect beside --spm_model_file")


def wanted_splits(values: flags.FlagValues) -> list[str]:
    """Returns those of train, dev and test that the flags ask for."""
    wanted = {"train": values.do_train, "dev": values.do_eval, "test": values.do_predict}
    return [split for split, is_wanted in wanted.items() if is_wanted]


@dataclasses.dataclass(frozen=True)
class Encoder:
    """What a fine-tuning starts from. Its parts fit each other."""

    config: AlbertConfig
    tokenizer: "FullTokenizer"
    source: Any = None  # the opened module or directory that the flags name, if they name one
    init_checkpoint: str | None = None

    @functools.cached_property
    def weights(self) -> Any:
        """The first weights: of what was opened, or --init_checkpoint; None for random ones."""
        from albert.formats import pretrained

        if self.source is not None:
            return self.source.weights()
        return pretrained.open_any_weights(self.init_checkpoint) if self.init_checkpoint else None


def record_keeper(values: flags.FlagValues, encoder: Encoder) -> RecordKeeper:
    """Returns the keeper of a run's record files."""
    return RecordKeeper(encoder.tokenizer, values.max_seq_length, work_directory(values))


def work_directory(values: flags.FlagValues) -> str:
    """Returns where a run keeps what it makes of the user's texts: not in the model's directory.

    Raises:
      FlagError: it can't be made, and --cached_dir is not given.
    """
    if values.cached_dir:
        return values.cached_dir
    path = locks.work_folder_of(values.output_dir)
    parent = os.path.dirname(path)
    if os.path.isdir(parent) and not os.access(path if os.path.isdir(path) else parent, os.W_OK):
        raise FlagError(f"cannot write to {path}: give --cached_dir, a folder for record files")
    return path


def open_encoder(values: flags.FlagValues) -> Encoder:
    """Opens the encoder that the flags name.

    Raises:
      UserError: a file is missing or malformed, the vocabulary is of another
        size than the config's, or --max_seq_length exceeds its positions.
    """
    from albert import tokenization
    from albert.formats import pretrained

    source, given = None, (values.spm_model_file, values.vocab_file)
    if values.albert_hub_module_handle:
        flags.import_tensorflow()  # which fetches an address
        origin = values.albert_hub_module_handle
        source = pretrained.open_module(origin)
        config, vocabulary = source.config, source.vocabulary
        asked = flags.given(values, "do_lower_case")
        if asked not in (None, vocabulary.text.do_lower_case):
            log.warning("--do_lower_case=%s: no effect, the module's vocabulary decides it", asked)
    elif values.albert_config_file and any(given):
        origin = values.albert_config_file
        config = AlbertConfig.from_flag(origin)
        text = tokenization.TextSettings(values.do_lower_case)
        vocabulary = Vocabulary(text=text).override(*given, None)
        flag = "spm_model_file" if values.spm_model_file else "vocab_file"
        files.require_file(getattr(values, flag), flag)
    else:
        origin = values.init_checkpoint
        source = pretrained.open_path(origin, "init_checkpoint")
        config = source.config
        if values.albert_config_file:
            config = AlbertConfig.from_flag(values.albert_config_file)
        vocabulary = source.vocabulary.override(*given, flags.given(values, "do_lower_case"))
        if not vocabulary:
            raise FlagError(f"{origin} has no vocabulary: give --spm_model_file or --vocab_file")
        log.info("architecture and vocabulary of %s", origin)
    if values.max_seq_length > config.max_position_embeddings:
        raise FlagError(
            f"--max_seq_length={values.max_seq_length} exceeds max_position_embeddings "
            f"{config.max_position_embeddings} of {origin}"
        )
    tokenizer = vocabulary.open()
    tokenization.check_vocabulary(tokenizer, config)
    if values.albert_dropout is not None:
        config = config.with_dropout(values.albert_dropout)
    return Encoder(config, tokenizer, source, values.init_checkpoint)


def finished_weights(values: flags.FlagValues, init, directory: str) -> "Weights":
    """Returns what to evaluate: --checkpoint, else the best, the newest, --init_checkpoint."""
    from albert.formats import checkpoints

    if values.checkpoint:
        return checkpoints.open_weights(values.checkpoint, "checkpoint")
    own = checkpoints.newest_or_best(directory)
    if own:
        return checkpoints.open_weights(own, "output_dir")
    if init is None:
        raise FlagError(
            f"no checkpoint in {directory}: train first (--do_train) or give --checkpoint"
        )
    return init


def identity_of(
    values: flags.FlagValues, encoder: Encoder, task: str, **meaning: Any
) -> earlier_run.Identity:
    """Returns what a run's ids mean, after it has checked that training won't resume another run.

    Args:
      meaning: `labels` or `num_choices`, see `earlier_run.Identity`.

    Raises:
      FlagError: training would resume a run whose ids mean other things, or overwrite a model.
    """
    tokenizer = encoder.tokenizer
    identity = earlier_run.Identity(task, tokenizer.sha256, tokenizer.do_lower_case, **meaning)
    if values.do_train:
        for directory in run_directories(values).values():
            earlier_run.check_directory(directory, identity)
    return identity


def run_directories(values: flags.FlagValues) -> dict[int, str]:
    """Returns {seed: directory} of the runs to be made: --output_dir, or folders in it."""
    if values.num_runs == 1:
        return {values.seed: values.output_dir}
    from albert.formats import checkpoints

    return {
        seed: os.path.join(values.output_dir, checkpoints.RUN_FOLDER.format(seed))
        for seed in range(values.seed, values.seed + values.num_runs)
    }
