"""How a command starts: flags, logging, exit codes. TensorFlow comes when it is asked for.

A command module has `define_flags(values)`, `main(values)` and
`cli = flags.command(__doc__, define_flags, main)`. Flags live in a
`FlagValues` of the command's own, so that several commands can be used in
one process and none of them reads global state.
"""

import dataclasses
import difflib
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from select import POLLERR, POLLOUT, poll

from absl import flags as absl_flags

from albert import engines
from albert.cli import remote_paths
from albert.cli.engine_start import import_tensorflow as import_tensorflow
from albert.cli.engine_start import set_environment, start
from albert.errors import (
    FlagError,
    Preempted,
    TrainingDivergedError,
    UserError,
    WorkerLostError,
)
from albert.storage import filesystem, shipped

FlagValues = absl_flags.FlagValues
log = logging.getLogger("albert")

MOST_SEED = 2**32 - 1  # of NumPy and Keras


def define(kind: str, values: FlagValues, name: str, default, help: str, **kwargs) -> None:
    """Defines one flag: kind is string, path, integer, float, bool, enum or list.

    Numbers can have a range: `least` and `most` belong to it, `above` and `below` do not.
    A path has a `use`, see `remote_paths`; it is the command's own matter with a flag `unless`.
    """
    if kind == "path":
        use, unless = kwargs.pop("use"), kwargs.pop("unless", None)
        assert use in remote_paths.USES, use
        define("string", values, name, default, help, **kwargs)
        values[name].use, values[name].unless = use, unless
        return
    if kind in _NUMBERS:
        parser, serializer = _Number(kind, name=name, **kwargs), absl_flags.ArgumentSerializer()
        absl_flags.DEFINE(parser, name, default, help, values, serializer)
        return
    getattr(absl_flags, f"DEFINE_{kind}")(
        name, default, help=help, flag_values=values, **kwargs
    )


_NUMBERS = {
    "integer": ("whole number", absl_flags.IntegerParser()),
    "float": ("number", absl_flags.FloatParser()),
}


class _Number(absl_flags.ArgumentParser):
    """Reads a number of a range, which is finite, or any number."""

    def __init__(
        self, kind: str, *, name: str, least=None, most=None, above=None, below=None,
        may_be_nan: bool = False,
    ):
        # absl shares a parser among flags, unless it is made with keywords.
        self.name, self.problem = name, ""  # of what was read last
        self.kind, self._parser = _NUMBERS[kind]
        self.least, self.most, self.above, self.below = least, most, above, below
        self.may_be_nan = may_be_nan

    @property
    def range(self) -> str:
        """The range in words, empty for any number."""
        if self.least is not None and self.most is not None:
            return f"from {self.least} to {self.most}"
        words = {
            "at least": self.least, "above": self.above, "at most": self.most, "below": self.below
        }
        return ", ".join(f"{word} {end}" for word, end in words.items() if end is not None)

    def flag_type(self) -> str:
        return self.kind

    def parse(self, argument):
        """Returns the number, or None; what is wrong is told with all other flags' problems."""
        try:
            value = self._parser.convert(argument)
        except (TypeError, ValueError):
            value = None
        is_good = value is not None and self._holds(value)
        wanted = ", ".join(filter(None, (f"must be a {self.kind}", self.range)))
        self.problem = "" if is_good else f"--{self.name}={argument}: {wanted}"
        return value

    def _holds(self, value) -> bool:
        if value != value:
            return self.may_be_nan
        return (
            (not self.range or math.isfinite(value))
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


def define_alias(values: FlagValues, name: str, original: str) -> None:
    """Defines a second name of a flag."""
    absl_flags.DEFINE_alias(name, original, flag_values=values)


# How the original reached a TPU: over the network, by its name.
_OLD_TPU_FLAGS = ("tpu_name", "tpu_zone", "gcp_project", "master", "num_tpu_cores")


def define_device_flags(values: FlagValues) -> None:
    """The accelerator flags of the original, and how the step is compiled."""
    define(
        "enum", values, "engine", None,
        "What computes: TensorFlow, or JAX, which runs on TPUs too. By default what the "
        "environment variable KERAS_BACKEND says, else TensorFlow where it is installed.",
        enum_values=list(engines.ENGINES),
    )
    define(
        "enum", values, "distribution_strategy", None,
        "Devices to use: one, all of this machine, or those of several machines, which TF_CONFIG "
        "lists (JAX finds those of a TPU slice by itself). By default what there is.",
        enum_values=["one_device", "mirrored", "multi_worker"],
    )
    define("integer", values, "num_gpus", None,
           "GPUs of each machine to use; all if absent, 0 for none.", least=0)
    define("integer", values, "num_virtual_devices", 0,
           "Split the CPU into so many devices, to try out training on several.", least=0)
    define("bool", values, "use_tpu", False,
           "Run on the TPUs of this machine, with --engine=jax. An error if there are none.")
    for name in _OLD_TPU_FLAGS[:-1]:
        define("string", values, name, None, "The original's. It has no effect: see --use_tpu.")
    define("integer", values, "num_tpu_cores", 8,
           "The original's. It has no effect: all TPU cores are used.", least=1)
    define("bool", values, "use_xla", None,
           "Compile the training step with XLA; by default on GPUs, and not on CPUs, where only "
           "small models of rows of one length gain. JAX always compiles.")
    define_step_flags(values)


def define_step_flags(values: FlagValues) -> None:
    """How a training step is computed, on whatever device."""
    define("integer", values, "gradient_accumulation_steps", 1,
           "Parts that each device cuts its rows of a batch into, one after another, to save "
           "memory; the result is the same.", least=1)
    define(
        "enum", values, "attn_implementation", "eager",
        "eager: plain products. fused: the device's kernel, or blocks of queries whose scores are "
        "computed again in the backward pass; a little less memory, the same result.",
        enum_values=["eager", "fused"],
    )
    define("bool", values, "remat", False,
           "Compute each layer again in the backward pass instead of keeping its activations.")
    define("bool", values, "shard_moments", False,
           "Keep a part of the optimizer's moments on each device instead of all on every device, "
           "which large models need. With JAX only; the result is the same.")
    define("bool", values, "per_replica_loss", False,
           "Divide each replica's loss by its own weights and average, as the original does, "
           "instead of by those of the whole batch.")
    define(
        "enum", values, "mixed_precision", "float32",
        "Precision of the matrix products; weights stay float32.",
        enum_values=["float32", "bfloat16", "float16"],
    )


def define_run_flags(values: FlagValues, *, save_checkpoints_steps: int) -> None:
    """What every training command shares about its run."""
    define("path", values, "output_dir", None, "Where checkpoints and results go. Required.",
           use="directory")
    define("integer", values, "save_checkpoints_steps", save_checkpoints_steps,
           "Steps between checkpoints.", least=1)
    define("integer", values, "keep_checkpoint_max", 5,
           "Newest checkpoints to keep, beside the best.", least=0)
    define("integer", values, "iterations_per_loop", 1000,
           "Most training steps in one call into TensorFlow or JAX.", least=1)
    define("bool", values, "skip_loss_spikes", False,
           "Skip the update where the loss is above mean + 6 standard deviations of the last 128.")
    define("integer", values, "log_steps", 100, "Steps between lines of metrics.", least=1)
    define("integer", values, "seed", 12345, "Seed of all random numbers.",
           least=0, most=MOST_SEED)


def define_packing_flag(values: FlagValues) -> None:
    """How rows that are mostly padding are computed."""
    define("bool", values, "pack_rows", True,
           "Where rows are mostly padding, put several examples into one row; they do not see each "
           "other. Off for SQuAD 1.1, where padding counts.")


# The flags of `define_masking_flags`.
MASKING_FLAGS = (
    "do_whole_word_mask", "do_permutation", "favor_shorter_ngram", "ngram",
    "mask_across_segments", "replace_by_span", "mask_token_share",
)


def define_masking_flags(values: FlagValues) -> None:
    """What is masked, wherever masks are drawn; see `masking.MaskingSettings`."""
    from albert.pretraining_data.masking import MAX_NGRAM

    define("bool", values, "do_whole_word_mask", True, "Mask whole words instead of pieces.")
    define("bool", values, "do_permutation", False, "Also let as many tokens again swap places.")
    define("bool", values, "favor_shorter_ngram", True,
           "n-grams with p(n) ~ 1/n; if false, reversed.")
    define("integer", values, "ngram", 3, "Most words masked together.",
           least=1, most=MAX_NGRAM)
    define("bool", values, "mask_across_segments", True,
           "Let words and n-grams reach over [SEP], as in the original.")
    define("bool", values, "replace_by_span", False,
           "Draw for each n-gram, not for each of its tokens, whether [MASK] (80 %), a random "
           "piece (10 %) or the piece itself stands there.")
    define("float", values, "mask_token_share", 0.8,
           "Share of the chosen tokens that become [MASK]; of the others half stay, and half become "
           "a random piece. 1: all become [MASK], which did no worse for BERT-large (Wettig et al. "
           "2023). Such a model is measured fairly where held-out records have 1 too.",
           least=0, most=1)


def check_device_flags(values: FlagValues) -> None:
    """Refuses device flags that contradict each other; what is there, TensorFlow tells later.

    Raises:
      FlagError: names the flags.
    """
    strategy = values.distribution_strategy
    if old := [f"--{name}" for name in _OLD_TPU_FLAGS if values[name].present]:
        log.warning(
            "%s: no effect. A TPU is no longer reached by its name: start the command on the TPU "
            "machine itself, with --use_tpu (docs/guides/accelerators.md)", ", ".join(old),
        )
    if values.use_tpu and values.engine == "tensorflow":
        raise FlagError("--use_tpu needs --engine=jax: TensorFlow does not run on TPUs any more")
    if values.use_tpu and values.num_virtual_devices > 1:
        raise FlagError("--num_virtual_devices splits the CPU: leave it out with --use_tpu")
    if values.num_virtual_devices > 1 and strategy == "one_device":
        raise FlagError(f"--num_virtual_devices has no effect with {strategy}")
    engine = wanted_engine(values)
    if engine != "jax" and values.shard_moments:
        raise FlagError("--shard_moments needs --engine=jax")
    if engine == "jax" and values.use_xla is False:
        raise FlagError("--nouse_xla has no effect: JAX always compiles. Leave it out, or use "
                        "--engine=tensorflow")


def wanted_engine(values: FlagValues | None = None) -> str:
    """Returns the engine that the flags, else the environment, ask for.

    Raises:
      FlagError: there is no such engine, or it is not installed.
    """
    told = values and (values.engine or ("jax" if values.use_tpu else None))
    engine = told or os.environ.get("KERAS_BACKEND") or engines.default_engine()
    origin = f"--engine={engine}" if told else f"KERAS_BACKEND={engine}"
    engines.require(engine, origin)
    return engine


def start_engine(values: FlagValues | None = None) -> None:
    """Imports the wanted engine, which takes seconds, and Keras with it.

    Raises:
      FlagError: it is not installed, or this process has Keras with another one.
    """
    start(wanted_engine(values))


def start_tensorflow() -> None:
    """Imports TensorFlow, and Keras with it, for what JAX cannot do.

    Raises:
      FlagError: it is not installed, this process has Keras with JAX, or KERAS_BACKEND is wrong.
    """
    wanted_engine()
    engines.require("tensorflow", "this command needs TensorFlow")
    start("tensorflow")


def start_compiler() -> None:
    """Imports JAX to compile for devices that are not there; it computes on the CPU.

    Raises:
      FlagError: it is not installed, or this process has Keras with TensorFlow.
    """
    if not engines.is_installed("jax"):
        raise FlagError("JAX is not installed: install albert[jax-tpu]")
    os.environ["JAX_PLATFORMS"] = "cpu"
    start("jax")


def given(values: FlagValues, name: str):
    """Returns a flag's value if the user gave it, else None, whatever its default is."""
    return values[name].value if values[name].present else None


def given_as_typed(values: FlagValues, *names: str) -> list[str]:
    """Returns those of the flags that the user gave, as `--name` or `--noname`; not empty ones."""
    found = [name for name in names if values[name].present and values[name].value not in ("", None)]
    return [f"--{'no' * (values[name].value is False)}{name}" for name in found]


def refuse_together(values: FlagValues, *names: str) -> None:
    """Raises a FlagError if the user gave several of these flags, one of which would win."""
    if len(several := given_as_typed(values, *names)) > 1:
        raise FlagError(f"give one of {' and '.join(several)}")


def require(values: FlagValues, *names: str) -> None:
    """Raises one FlagError that names every missing flag."""
    missing = [f"--{name}" for name in names if getattr(values, name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise FlagError(f"{', '.join(missing)} {verb} required (see --help)")


def to_dict(values: FlagValues) -> dict:
    """Returns {flag name: value} of a command, as kept beside its results."""
    def value_of(flag):
        return getattr(flag, "given", flag.value)

    return {name: value_of(values[name]) for name in sorted(values) if name not in _SPECIAL}


def select(values: FlagValues, names) -> dict:
    """Returns the values of the named flags, or of those that a dataclass has fields for."""
    if dataclasses.is_dataclass(names):
        names = [field.name for field in dataclasses.fields(names) if field.name in values]
    return {name: getattr(values, name) for name in names}


def optimizer_config(values: FlagValues):
    """Returns the OptimizerConfig of a command with the pretraining flags' names."""
    from albert.optimization import OptimizerConfig

    return OptimizerConfig(name=values.optimizer, **select(values, OptimizerConfig))


_SPECIAL = ("help", "helpshort", "helpfull", "flagfile", "undefok", "verbosity")


def parse(define_flags: Callable[[FlagValues], None], argv: Sequence[str]) -> FlagValues:
    """Returns the command's flags; argv[0] is the program's name.

    Raises:
      FlagError: unknown flag (with the nearest name), bad value, or a stray argument.
    """
    values, rest = parse_with_arguments(define_flags, argv)
    refuse_arguments(rest)
    return values


def refuse_arguments(arguments: Sequence[str]) -> None:
    """Raises a FlagError if there are arguments that are no flags."""
    if arguments:
        raise FlagError(f"unexpected argument {arguments[0]!r}: flags are written --name=value")


def parse_with_arguments(
    define_flags: Callable[[FlagValues], None], argv: Sequence[str]
) -> tuple[FlagValues, list[str]]:
    """Returns the command's flags, and the arguments that are none.

    The name of a model that comes with this package has become its directory, or its vocabulary.

    Raises:
      FlagError: unknown flag (with the nearest name), or bad values (all of the numbers).
    """
    values = FlagValues()
    define_flags(values)
    try:
        rest = values([_with_local_file(argument) for argument in argv])[1:]
    except absl_flags.UnrecognizedFlagError as error:
        near = difflib.get_close_matches(error.flagname, list(values), n=1)
        hint = f"; did you mean --{near[0]}?" if near else " (see --help)"
        raise FlagError(f"unknown flag --{error.flagname}{hint}") from error
    except absl_flags.Error as error:
        raise FlagError(" ".join(str(error).removeprefix("flag ").split())) from error
    problems = {getattr(values[name].parser, "problem", "") for name in values} - {""}
    if problems:
        raise FlagError("; ".join(sorted(problems)))
    for name, flag in ((name, values[name]) for name in values):
        if flag.value and getattr(flag, "use", None) == "model":
            flag.value = shipped.path_of(flag.value)
        elif flag.value and name.endswith("spm_model_file"):
            flag.value = shipped.vocabulary_of(flag.value)
    return values, rest


def _with_local_file(argument: str) -> str:
    """Returns an argument; if it is `--flagfile=` and a remote file, with the path of a copy."""
    name, equals, value = argument.partition("=")
    if name.lstrip("-") != "flagfile" or not filesystem.is_remote(value):
        return argument
    return name + equals + filesystem.local_copy(value, "flagfile")


def _help_text(doc: str, define_flags: Callable[[FlagValues], None]) -> str:
    values = FlagValues()
    define_flags(values)
    lines = [doc.strip(), "", "Flags:"]
    for name in sorted(values):
        flag = values[name]
        if isinstance(flag, absl_flags.BooleanFlag):
            name = f"[no]{name}"
        choices = "|".join(getattr(flag.parser, "enum_values", ()))
        kinds = choices or getattr(flag.parser, "range", "")
        text = flag.help.removeprefix(f"<{choices}>: ")  # absl has put it there
        default = "" if flag.default is None else f" (default: {flag.default!r})"
        lines.append(f"  --{name}{f' <{kinds}>' if kinds else ''}: {text}{default}")
    lines.append("  --flagfile: File with one flag a line; lines starting with # are comments.")
    return "\n".join(lines)


class _Formatter(logging.Formatter):
    """Names remote files as the user did."""

    def format(self, record: logging.LogRecord) -> str:
        return filesystem.as_given(super().format(record))


def set_up_logging() -> None:
    """Sends the toolkit's log lines to stderr, and quietens TensorFlow's start-up."""
    set_environment()
    # Anew for each command, because the process's stderr may have been replaced since.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Formatter("%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S")
    )
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    root = logging.getLogger()
    if not root.handlers:
        # Without a handler of the root, a message of TensorFlow's sets up one for all messages:
        # ours would be there twice.
        logging.lastResort.addFilter(lambda record: record.name != log.name)
        root.addHandler(logging.lastResort)


def _is_stdout_closed() -> bool:
    """Whether nobody reads the standard output any more, as after `| head`."""
    pipe = poll()
    pipe.register(1, POLLOUT)
    if not any(events & POLLERR for _, events in pipe.poll(0)):
        return False
    # What is still buffered must not fail once more at the end of the process.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def run_command(
    doc: str,
    define_flags: Callable[[FlagValues], None],
    main: Callable[..., None],
    argv: Sequence[str] | None = None,
    takes_arguments: bool = False,
) -> int:
    """Runs `main` on the parsed flags and returns the exit code (see `errors`).

    With `takes_arguments`, `main` gets the arguments that are no flags too.
    """
    argv = sys.argv if argv is None else argv
    wants_help = bool({"--help", "-help", "-h", "--helpshort", "--helpfull"} & set(argv[1:]))
    set_up_logging()
    try:
        if wants_help:
            print(_help_text(doc, define_flags))
        else:
            values, arguments = parse_with_arguments(define_flags, argv)
            if not takes_arguments:
                refuse_arguments(arguments)
            with remote_paths.local_paths(values):
                main(*([values, arguments] if takes_arguments else [values]))
        sys.stdout.flush()
        return 0
    except (UserError, TrainingDivergedError, WorkerLostError) as error:
        print(f"error: {filesystem.as_given(str(error))}", file=sys.stderr)
        return error.exit_code
    except Preempted as error:
        log.info("%s", error)
        return error.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_stdout_closed():
            if wants_help:
                return 0
            print("error: the standard output was closed before the end", file=sys.stderr)
            return 2
        # A file the user named, or the disk under it; anything else is our bug.
        if error.filename is None:
            traceback.print_exc()
            return 1
        print(f"error: {filesystem.as_given(str(error.filename))}: {error.strerror}", file=sys.stderr)
        return 2


def command(doc, define_flags, main, takes_arguments: bool = False) -> Callable[[], None]:
    """Returns the console entry point of a command module."""

    def cli(argv: Sequence[str] | None = None) -> None:
        sys.exit(run_command(doc, define_flags, main, argv, takes_arguments))

    return cli
