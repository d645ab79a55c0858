"""Writes docs/reference/commands.md, python.md and configuration.md from the code itself.

  python scripts/maintainers/reference.py

A test fails if they are out of date, another one if an example in python.md doesn't print its output.
"""

import collections
import dataclasses
import importlib
import inspect
import operator
import pathlib
import re
import runpy
import sys
import textwrap
import unittest.mock

from absl import flags as absl_flags

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))  # this checkout, whatever is installed
FOLDER = REPO / "docs/reference"
FROM = "This page is generated from the code by `scripts/maintainers/reference.py`."
# What most programs need, below `albert`: the docstring of each has an example.
NAMES = (
    "open_session", "from_pretrained", "AlbertTokenizer", "AlbertConfig", "AlbertModel",
    "AlbertForSequenceClassification", "AlbertForQuestionAnswering", "AlbertForMaskedLM",
    "optimization.create_optimizer",
)
# {name: how an instance is called here, its class, methods that follow in full}.
METHODS = {
    "open_session": ("session", "AnsweringSession", (
        "classify", "answer", "choose", "tag", "fill_mask", "embed",
    )),
    "AlbertTokenizer": (
        "tokenizer", "AlbertTokenizer", ("__call__", "from_pretrained", "pad", "add_tokens"),
    ),
}
SECTIONS = {  # of the other names, a line each; `help` says more
    "Other models": (
        "AlbertForPreTraining", "AlbertForTokenClassification", "AlbertForMultipleChoice",
        "AlbertForBeamQuestionAnswering",
    ),
    "A metric": ("modeling.LabelAccuracy",),
    "Data": ("pretraining_dataset",),
    "Optimizers": (
        "optimization.Lamb", "optimization.AdamWeightDecay", "optimization.Muon",
        "optimization.WarmupPolynomialDecay", "optimization.OptimizerConfig",
    ),
    "Tokenization as in the original": (
        "tokenization.FullTokenizer", "tokenization.preprocess_text",
    ),
}
TABLES = {  # other methods, a line each
    "AlbertTokenizer": (
        "tokenize", "encode", "decode", "batch_decode", "convert_tokens_to_ids",
        "convert_ids_to_tokens", "get_vocab", "save_pretrained", "build_inputs_with_special_tokens",
    ),
    "AlbertConfig": (
        "released", "from_json_file", "from_dict", "to_dict", "to_json_string", "with_dropout",
        "head_size",
    ),
}
INTRODUCTION = """Most programs need no more than nine names:

{names}

The examples run as they are, with albert alone: the model `small_en` is included. They assume

    import albert
    import keras
    import numpy as np

`help(albert.open_session)` and the like print what this page says, and more. Models are Keras 3 models:
`compile`, `fit`, `predict`, `export` and `.keras` files are Keras's own."""
CALLS = """## Which way to call a model

| call | compiles | use it |
|---|---|---|
| `model(x)` | never | to train with your own loop, inspect a model, or read a few texts |
| `model.predict(x)`, `model.predict_on_batch(x)` | for each new length | for large arrays of one length; for one batch |
| `tf.function(model)(x)`, `jax.jit` of it | as these do | to call a model often with batches that you make yourself |
| `albert.open_session(path)` | never: onnxruntime reads a graph | to get answers from texts |

Threads may share sessions."""


def _indented(text: str) -> str:
    """Turns docstring lines indented by two or more into Markdown code."""
    lines, code = [], False
    for line in text.strip().splitlines():
        is_code = bool(re.match(r" {2,}\S", line)) or code and not line.strip()
        if is_code and not code and lines and lines[-1].strip():
            lines.append("")
        lines.append(f"  {line}" if is_code and line.strip() and not line.startswith("    ") else line)
        code = is_code
    return "\n".join(lines)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- commands.md ---

MODEL_FLAGS = {  # those whose value is a model
    "model": "the model that answers",
    "init_checkpoint": "weights to start from; its configuration and vocabulary are found next to them",
    "albert_config_file": "an architecture alone, with random weights: `base_v2`, `small_en` or a file",
    "albert_hub_module_handle": "a TF-Hub module to start from",
    "start_from": "the model to start from",
    "model_dir": "the model to export",
    "albert_directory": "the model to export or convert, a run's directory or the original's layout",
    "hf_directory": "a model in Hugging Face's layout to convert",
}


def command_names() -> list[str]:
    with unittest.mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(REPO / "setup.py"))
    scripts = setup.call_args.kwargs["entry_points"]["console_scripts"]
    return sorted(re.search(r"= albert\.(\w+):", line)[1] for line in scripts)


def _range(flag) -> str:
    ends = [getattr(flag.parser, name, None) for name in ("lower_bound", "upper_bound")]
    shown = [flag.parser.syntactic_help] if ends != [None, None] else []
    # Of the ends that are not in the range.
    ours = "must be a finite number"
    shown += [one.message[len(ours):] for one in flag.validators if one.message.startswith(ours)]
    return ", ".join(text.strip() for text in shown if text.strip())


def _flag_line(name: str, flag) -> str:
    if isinstance(flag, absl_flags.BooleanFlag):
        name = f"[no]{name}"
    choices = getattr(flag.parser, "enum_values", ())
    kind = ", ".join(f"`{choice}`" for choice in choices) or _range(flag)
    text = flag.help.removeprefix(f"<{'|'.join(choices)}>: ")
    default = "" if flag.default is None else f"`{flag.default}`"
    return " | ".join(["| `--" + name + "`", kind, default, text.replace("|", "\\|") + " |"])


def _flag_lines(command: str) -> dict[str, str]:
    """Returns {flag: its line in a table} of a command."""
    values = absl_flags.FlagValues()
    importlib.import_module(f"albert.{command}").define_flags(values)
    return {flag: _flag_line(flag, values[flag]) for flag in sorted(values)}


def _shared(lines: dict[str, dict[str, str]]) -> dict[str, str]:
    """Returns {flag: line} of the flags that several commands describe in the same way."""
    counts = collections.Counter(item for own in lines.values() for item in own.items())
    return {flag: line for (flag, line), count in reversed(counts.most_common()) if count > 1}


def _flag_table(lines) -> str:
    return "\n".join(["| flag | values | default | |", "|---|---|---|---|", *lines])


def _model_flags(lines: dict[str, dict[str, str]]) -> str:
    rows = [
        f"| `--{flag}` | {meaning} | {', '.join(name for name in lines if flag in lines[name])} |"
        for flag, meaning in MODEL_FLAGS.items()
    ]
    return "\n".join(["| flag | meaning | commands |", "|---|---|---|", *rows])


def _without_effect(lines: dict[str, dict[str, str]]) -> str:
    """Takes the flags that have no effect out of `lines`, and returns a table of them."""
    commands = collections.defaultdict(list)
    for name, own in lines.items():
        for flag in [flag for flag, line in own.items() if " | No effect" in line]:
            reason = own.pop(flag).rpartition(" | No effect")[2].strip(" |.").removeprefix(": ")
            commands[f"`--{flag}`", reason].append(name)
    rows = collections.defaultdict(list)
    for (flag, reason), names in commands.items():
        rows[reason, ", ".join(names)].append(flag)
    return "\n".join(["| flags | commands | why |", "|---|---|---|", *(
        f"| {', '.join(flags)} | {names} | {reason} |" for (reason, names), flags in rows.items())])


def commands() -> str:
    lines = {name: _flag_lines(name) for name in command_names()}
    without_effect = _without_effect(lines)
    shared = _shared(lines)
    parts = [
        "# Commands", FROM,
        "Run each as `python -m albert.NAME` or, with dashes, `albert-NAME`. `--help` prints all flags of a "
        "command. `--flagfile=FILE` reads flags from a file, one per line; lines that start with `#` are "
        "comments. [Exit codes](exit_codes.md) are the same everywhere.",
        ", ".join(f"[{name}](#{_anchor(name)})" for name in lines),
        "## Flags that name a model",
        "The value is a directory, an archive, a checkpoint's prefix, a name on the hub or `small_en`, "
        "unless the table says otherwise ([released models](../guides/released_models.md)).",
        _model_flags(lines),
        "## Shared flags", "Several commands have these; each lists its own below.",
        _flag_table(shared[flag] for flag in sorted(shared)),
    ]
    for name, own in lines.items():
        text = importlib.import_module(f"albert.{name}").__doc__
        alone = [line for flag, line in own.items() if shared.get(flag) != line]
        others = [f"`--{flag}`" for flag, line in own.items() if shared.get(flag) == line]
        parts += [f"## {name}", _indented(text)]
        parts += [_flag_table(alone)] if alone else []
        parts += [f"[Shared flags](#shared-flags): {', '.join(others)}"] if others else []
    parts += ["## Flags without effect", "Accepted because the original has them.", without_effect]
    return "\n\n".join(parts) + "\n"


# --- python.md ---


def _object(name: str):
    return operator.attrgetter(name)(importlib.import_module("albert"))


def _doc(what) -> str:
    """Returns the object's own docstring; an inherited one is not about it."""
    return inspect.cleandoc(what.__doc__ or "")


def _summary(what) -> str:
    """Returns the first paragraph of a docstring, for a table."""
    return " ".join(_doc(what).partition("\n\n")[0].split()).replace("|", "\\|")


def _call(name: str, function) -> str:
    """Returns how a function or class is called, without types."""
    signature = inspect.signature(function)
    parameters = [
        p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    return name + re.sub(r"EncoderOptions\(.*?\)", "EncoderOptions()", text.replace("<factory>", "{}"))


def _markdown(doc: str) -> str:
    """Returns a docstring with its arguments and errors as lists, and its example as code."""
    body, *sections = re.split(r"^(Args|Returns|Raises|Example):\n", doc, flags=re.M)
    parts = [re.sub(r"docs/reference/(\w+)\.md", r"[\1](\1.md)", _indented(body))]
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        text = textwrap.dedent(text).strip()
        if title == "Example":
            parts.append(f"```pycon\n{text}\n```")
        elif title == "Returns":
            parts.append(f"Returns {text}")
        else:
            items = re.sub(r"^(\S[^:\n]*):", r"* `\1`:", text, flags=re.M)
            parts.append(f"{title}:\n{items}")
    return "\n\n".join(filter(None, parts))


def _method(instance: str, owner: type, name: str) -> list[str]:
    method = getattr(owner, name)
    # A class method is called on the class.
    prefix = owner.__name__ if inspect.ismethod(method) else instance
    head = _call(prefix if name == "__call__" else f"{prefix}.{name}", method)
    return [f"**`{head}`**", _markdown(_doc(method))]


def _table(owner: type, names: tuple[str, ...]) -> str:
    rows = []
    for name in names:
        value = getattr(owner, name)
        head = name if isinstance(value, property) else _call(name, value)
        rows.append(f"| `{head}` | {_summary(value)} |")
    return "\n".join(["| more | |", "|---|---|", *rows])


def _entry(name: str) -> list[str]:
    what, short = _object(name), name.rpartition(".")[2]
    lines = textwrap.wrap(_call(f"albert.{name}", what), 96, subsequent_indent="    ")
    parts = [f"### {short}", textwrap.indent("\n".join(lines), "    "), _markdown(_doc(what))]
    instance, owner, methods = METHODS.get(short, ("", short, ()))
    if owner != short:
        parts.append(_markdown(_doc(_object(owner))))
    for method in methods:
        parts += _method(instance, _object(owner), method)
    return parts + ([_table(what, TABLES[short])] if short in TABLES else [])


def _errors() -> str:
    errors = importlib.import_module("albert.errors")
    kinds = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    rows = [
        f"| `{kind.__name__}` | {getattr(kind, 'exit_code', '128 + signal')} | {_summary(kind)} |"
        for kind in kinds
    ]
    return "\n".join(["| `albert.errors` | exit code | meaning |", "|---|---|---|", *rows])


def python() -> str:
    names = [
        f"| [`{name}`](#{name.rpartition('.')[2].lower()}) | {_summary(_object(name))} |"
        for name in NAMES
    ]
    table = "\n".join(["| `albert` | what it does |", "|---|---|", *names])
    parts = ["# Python interface", FROM, INTRODUCTION.format(names=table), "## Ten names"]
    for name in NAMES:
        parts += _entry(name)
    model = _object("modeling.PretrainedModel")
    parts += [CALLS, "## What all models have in common", _markdown(_doc(model))]
    for method in ("__call__", "call", "from_pretrained", "save_pretrained"):
        parts += _method("model", model, method)
    for title, names in SECTIONS.items():
        rows = [f"| `{_call(f'albert.{name}', _object(name))}` | {_summary(_object(name))} |" for name in names]
        parts += [f"## {title}", "\n".join(["| call | |", "|---|---|", *rows])]
    parts += ["## Errors", _errors()]
    return "\n\n".join(filter(None, parts)) + "\n"


# --- configuration.md ---


def configuration() -> str:
    from albert.config import AlbertConfig

    source = inspect.getsource(AlbertConfig)
    rows = []
    for field in dataclasses.fields(AlbertConfig):
        if field.name == "extra":
            continue
        comment = re.search(rf"^    {field.name}:[^#\n]*(?:#\s*(.*))?$", source, re.M)[1]
        if comment is None:
            comment = re.search(rf"# (.*)\n    {field.name}:", source)[1]
        default = "required" if field.default is dataclasses.MISSING else f"`{field.default}`"
        rows.append(f"| `{field.name}` | {default} | {comment} |")
    return "\n\n".join([
        "# Configuration keys", FROM,
        "`albert_config.json` describes the architecture. `configs/` has those of the eight released models and "
        "of small ones; `--albert_config_file=base_v2` needs no path. Unknown keys are kept, with a warning.",
        "\n".join(["| key | default | meaning |", "|---|---|---|", *rows]),
    ]) + "\n"


PAGES = {"commands.md": commands, "python.md": python, "configuration.md": configuration}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
