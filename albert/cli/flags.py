"""How a command starts: flags, logging, exit codes. No TensorFlow.

A command module has `define_flags(values)`, `main(values)` and
`cli = flags.command(__doc__, define_flags, main)`. Each command has its own
`FlagValues`, so that one process can use several commands and none of them
reads global state.
"""

import csv
import dataclasses
import logging
import math
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from select import POLLERR, POLLOUT, poll

from absl import flags as absl_flags

import albert
from albert import engines
from albert.cli import remote_paths
from albert.errors import (
    FlagError, Preempted, TrainingDivergedError, UserError, WorkerLostError, first_line,
)
from albert.storage import cloud, shipped

FlagValues = absl_flags.FlagValues
log = logging.getLogger("albert")

_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|OOM when allocating|[Oo]ut of memory")
_MEMORY = re.compile(r"(Used|OOM when|[Oo]ut of memory|[Tt]otal memory)[^\n]{0,150}")  # how much is missing
_LONGEST_MESSAGE = 2_000  # characters of an error
MAX_SEED = 2**32 - 1  # of NumPy and Keras
A_MODEL = ("small_en, a name on Hugging Face's hub such as albert/albert-base-v2, a model's directory, or "
           "a checkpoint")

# Groups of flags in --help, by the module that defines them; the others are those of the command.
_GROUPS = {
    "albert.cli.own_texts": "Data", "albert.cli.table_flags": "Data", "albert.cli.corpus_flags": "Data",
    "albert.finetune": "Model and training", "albert.cli.run_flags": "Checkpoints and machine",
}
absl_flags.disclaim_key_flags()  # what calls `define` defines the flag


def define(kind: str, values: FlagValues, name: str, default, help: str, **kwargs) -> None:
    """Defines one flag: kind is string, path, integer, float, bool, enum or list.

    Numbers can have limits: `lower_bound` and `upper_bound`, which are in the range, `above` and
    `below`, which are not. Those with a limit are finite. A path has a `use` (see `remote_paths`).
    """
    above, below = kwargs.pop("above", None), kwargs.pop("below", None)
    use = kwargs.pop("use", None)
    absl_kind = f"DEFINE_{'string' if kind == 'path' else kind}"
    getattr(absl_flags, absl_kind)(name, default, help=help, flag_values=values, **kwargs)
    if kind == "path":
        assert use in remote_paths.USES
        values[name].use = use
    if kind == "float" and (above, below, kwargs) != (None, None, {}):
        limits = {"above": above, "below": below}
        words = " and ".join(f"{word} {limit}" for word, limit in limits.items() if limit is not None)
        low, high = -math.inf if above is None else above, math.inf if below is None else below
        absl_flags.register_validator(
            name, lambda value: value is None or low < value < high,
            f"must be a finite number {words}".strip(), values,
        )


def define_alias(values: FlagValues, name: str, original: str) -> None:
    """Defines a second name for a flag."""
    absl_flags.DEFINE_alias(name, original, flag_values=values)


TEXT_FLAGS = ("do_lower_case", "keep_accents")


def define_text_flags(values: FlagValues, lower_help: str) -> None:
    """Defines how texts are preprocessed where the vocabulary does not specify it."""
    define("bool", values, "do_lower_case", True, lower_help)
    define("bool", values, "keep_accents", None,
           "Keep accents and other marks (é, ü, ガ, the virama); for SentencePiece. Default: as the "
           "vocabulary says, else false.")


def define_vocabulary_flags(values: FlagValues) -> None:
    """Defines where the vocabulary is, and how texts are preprocessed for it."""
    define("path", values, "spm_model_file", None,
           "SentencePiece model. Default: that of the model's directory, if there is one.", use="file")
    define("path", values, "vocab_file", None,
           "WordPiece vocabulary, if there is no SentencePiece model.", use="file")
    define_text_flags(values, "Lower-case texts, unless the vocabulary says otherwise.")


def text_settings(values: FlagValues) -> dict[str, bool]:
    """Returns the settings of `TEXT_FLAGS` that the user gave."""
    return {name: values[name].value for name in TEXT_FLAGS if given(values, name) is not None}


def vocabulary_given(values: FlagValues) -> tuple[str | None, str | None, dict[str, bool]]:
    """Returns the flags of `define_vocabulary_flags` as `Vocabulary.override` takes them."""
    return values.spm_model_file, values.vocab_file, text_settings(values)


def given(values: FlagValues, name: str):
    """Returns a flag's value if the user gave it, else None."""
    return values[name].value if values[name].present else None


def given_as_typed(values: FlagValues, *names: str) -> list[str]:
    """Returns the nonempty flags that the user gave, as `--name` or `--noname`."""
    return [
        f"--{'no' * (values[name].value is False)}{name}" for name in names
        if values[name].present and values[name].value not in ("", None)
    ]


def refuse_together(values: FlagValues, *names: str) -> None:
    """Raises a FlagError if the user gave several of these flags."""
    if len(several := given_as_typed(values, *names)) > 1:
        raise FlagError(f"pass only one of {' and '.join(several)}")


def require(values: FlagValues, *names: str) -> None:
    """Raises one FlagError that names every missing flag."""
    if missing := [f"--{name}" for name in names if getattr(values, name) is None]:
        verb = "is" if len(missing) == 1 else "are"
        raise FlagError(f"{', '.join(missing)} {verb} required (see --help)")


def to_dict(values: FlagValues) -> dict:
    """Returns {flag name: value} of a command, as recorded with its results."""
    return {name: as_typed(values, name) for name in sorted(values) if name not in _SPECIAL}


def as_typed(values: FlagValues, name: str):
    """Returns a flag's value before a name or an address in it was replaced by a path."""
    return getattr(values[name], "given", values[name].value)


def select(values: FlagValues, names) -> dict:
    """Returns the values of the named flags, or of those that a dataclass has fields for."""
    if dataclasses.is_dataclass(names):
        names = [field.name for field in dataclasses.fields(names) if field.name in values]
    return {name: getattr(values, name) for name in names}


_SPECIAL = ("help", "helpshort", "helpfull", "flagfile", "undefok", "verbosity")


def parse_labels(text: str, of_words: bool = False) -> tuple[str, ...]:
    """Returns the labels of a --label_list: separated by commas or, for labels of words, by blanks.

    A label that contains a comma is quoted. A lone comma between blanks is a label of words, as in
    the Penn Treebank.

    Raises:
      FlagError: fewer than two, or one twice.
    """
    labels = text.split()
    if not of_words or len(labels) < 2 or any("," in label for label in labels if label != ","):
        labels = next(csv.reader([text], skipinitialspace=True), []) if '"' in text else text.split(",")
        labels = [label.strip() for label in labels]
    if len(labels) < 2 or "" in labels or len(set(labels)) < len(labels):
        raise FlagError(f"--label_list={text} is not two or more different labels")
    return tuple(labels)


def parse(define_flags: Callable[[FlagValues], None], argv: Sequence[str]) -> FlagValues:
    """Returns the command's flags; argv[0] is the program's name."""
    values, rest = parse_with_arguments(define_flags, argv)
    refuse_arguments(rest)
    return values


def refuse_arguments(arguments: Sequence[str]) -> None:
    """Raises a FlagError if there are arguments that aren't flags."""
    if arguments:
        raise FlagError(f"unexpected argument {arguments[0]!r}: flags are written --name=value")


def parse_with_arguments(
    define_flags: Callable[[FlagValues], None], argv: Sequence[str]
) -> tuple[FlagValues, list[str]]:
    """Returns the command's flags, and the remaining arguments.

    Names of models that come with this package are replaced by their directory or vocabulary.
    """
    values = FlagValues()
    define_flags(values)
    try:
        rest = values([_with_local_file(argument) for argument in argv])[1:]
    except absl_flags.Error as error:
        raise FlagError(" ".join(str(error).removeprefix("flag ").split())) from error
    for name in values:
        flag = values[name]
        if flag.value and getattr(flag, "use", None):  # a shell expands no ~ after =
            flag.value = ",".join(map(os.path.expanduser, flag.value.split(",")))
        if flag.value and getattr(flag, "use", None) == "model":
            remote_paths.replace(flag, shipped.path_of(flag.value))
        elif flag.value and name.endswith("vocab_file"):
            remote_paths.replace(flag, shipped.vocabulary_of(flag.value))
    _warn_of_ignored(values)
    return values, rest


def _warn_of_ignored(values: FlagValues) -> None:
    """Logs which flags without effect the user gave, with the reason that their help gives."""
    reasons: dict[str, list[str]] = {}
    for name in values:
        if values[name].help.startswith("No effect"):
            reasons.setdefault(values[name].help, []).extend(given_as_typed(values, name))
    for reason, names in reasons.items():
        if names:
            log.warning("%s: n%s", ", ".join(names), reason[1:])


def _with_local_file(argument: str) -> str:
    """Returns an argument as it is, but `--flagfile=` of a remote file with the path of a copy."""
    name, equals, value = argument.partition("=")
    if name.lstrip("-") != "flagfile" or not cloud.is_remote(value):
        return argument
    return name + equals + cloud.local_copy(value, "--flagfile")


class _Formatter(logging.Formatter):
    """Shows the addresses of remote files instead of the paths of their copies."""

    def format(self, record: logging.LogRecord) -> str:
        return cloud.as_given(super().format(record))


def set_up_logging() -> None:
    """Sends the toolkit's log lines to stderr, and silences TensorFlow, but for its first six lines.

    It writes those while its libraries are loaded, before it reads any setting.
    """
    engines.set_environment()
    # For each command, because the process's stderr may have been replaced since.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S"))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    root = logging.getLogger()
    if not root.handlers:
        # Without a root handler, the first TensorFlow message installs one for all messages, and
        # ours would appear twice.
        logging.lastResort.addFilter(lambda record: record.name != log.name)
        root.addHandler(logging.lastResort)


def _is_stdout_closed() -> bool:
    """Whether the standard output's reader has ended, as `| head` does."""
    pipe = poll()
    pipe.register(1, POLLOUT)
    if not any(events & POLLERR for _, events in pipe.poll(0)):
        return False
    # Buffered output must not fail a second time when the process ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def help_text(doc: str, values: FlagValues) -> str:
    """Returns a command's docstring, and its flags in groups, those that it mentions first."""
    for name in values:
        group = _GROUPS.get(values.find_module_defining_flag(name), "This command")
        if re.search(rf"--(no)?{name}\b", doc):
            group = "Usually needed"
        elif "No effect" in values[name].help:
            group = "Without effect"
        values.register_key_flag_for_module(group, values[name])
        # A long list of values is wrapped at blanks, not within a word.
        values[name].help = re.sub(r" ?\| ?", " | ", values[name].help)
    groups = "Usually needed", "This command", *dict.fromkeys(_GROUPS.values()), "Without effect"
    # Examples are not wrapped.
    lines = [line if line.startswith(" ") else absl_flags.text_wrap(line)
             for line in absl_flags.doc_to_help(doc).splitlines()]
    return "\n".join([*lines, *filter(None, map(values.module_help, groups)),
                      "\n--flagfile=FILE reads flags from a file, one per line; --version: the version."])


def run_command(
    doc: str,
    define_flags: Callable[[FlagValues], None],
    main: Callable[..., None],
    argv: Sequence[str] | None = None,
    takes_arguments: bool = False,
) -> int:
    """Runs `main` on the parsed flags and returns the exit code (see `errors`).

    With `takes_arguments`, `main` also gets the arguments that aren't flags.
    """
    argv, values = sys.argv if argv is None else argv, FlagValues()
    if "--version" in argv[1:]:
        print(f"albert {albert.__version__}")
        return 0
    wants_help = bool({"--help", "-help", "-h", "--helpshort", "--helpfull"} & set(argv[1:]))
    set_up_logging()
    if hasattr(sys.stdout, "reconfigure"):  # else a replacement by a test or a notebook
        sys.stdout.reconfigure(encoding="utf-8")  # as texts are read, whatever the locale
    try:
        if signal.getsignal(signal.SIGINT) is albert.end_at_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if wants_help:
            define_flags(values)
            print(help_text(doc, values))
        else:
            values, arguments = parse_with_arguments(define_flags, argv)
            if not takes_arguments:
                refuse_arguments(arguments)
            with remote_paths.local_paths(values):
                main(*([values, arguments] if takes_arguments else [values]))
        sys.stdout.flush()
        return 0
    except (UserError, TrainingDivergedError, WorkerLostError) as error:
        message = cloud.as_given(str(error))
        if len(message) > _LONGEST_MESSAGE:  # it quotes a file
            message = f"{message[:_LONGEST_MESSAGE]} ..."
        # In Python, an error begins with the name of the argument; here, that is a flag.
        if message.replace("=", ":").partition(":")[0] in values:
            message = f"--{message}"
        print(f"error: {message}", file=sys.stderr)
        return error.exit_code
    except Preempted as error:
        log.info("%s", error)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped by SIGINT", file=sys.stderr)
        return 130  # the shell's convention, as in Preempted
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_stdout_closed():
            if wants_help:
                return 0
            print("error: the standard output was closed early", file=sys.stderr)
            return 2
        # A file the user named, or the disk under it; anything else is our bug.
        if error.filename is None:
            traceback.print_exc()
            return 1
        print(f"error: {cloud.as_given(str(error.filename))}: {error.strerror}", file=sys.stderr)
        return 2
    except Exception as error:
        # TensorFlow's and JAX's error for a device without enough memory, and NumPy's.
        if not isinstance(error, MemoryError) and not _OUT_OF_MEMORY.search(str(error)):
            raise
        size = _MEMORY.search(str(error))
        print(f"error: the step does not fit the device ({size[0] if size else first_line(error)}): raise "
              "--gradient_accumulation_steps, or use a smaller batch, --remat or "
              "--mixed_precision=bfloat16", file=sys.stderr)
        return 2


def command(doc, define_flags, main, takes_arguments: bool = False) -> Callable[[], None]:
    """Returns the console entry point of a command module."""

    def cli(argv: Sequence[str] | None = None) -> None:
        sys.exit(run_command(doc, define_flags, main, argv, takes_arguments))

    return cli
