"""Writes docs/reference/commands.md, python.md and configuration.md from the code itself.

  python scripts/maintainers/reference.py

A test fails if they are out of date.
"""

import dataclasses
import importlib
import inspect
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
PUBLIC = {
    "albert": (
        "AlbertConfig", "AlbertTokenizer", "AlbertModel", "AlbertForPreTraining",
        "AlbertForMaskedLM", "AlbertForSequenceClassification", "AlbertForTokenClassification",
        "AlbertForMultipleChoice", "AlbertForQuestionAnswering", "AlbertForBeamQuestionAnswering",
        "HubLayer", "from_pretrained", "compiled", "open_session", "AnsweringSession",
    ),
    "albert.optimization": (
        "Lamb", "AdamWeightDecay", "WarmupPolynomialDecay", "OptimizerConfig", "create_optimizer",
    ),
    "albert.tokenization": (
        "FullTokenizer", "BasicTokenizer", "WordpieceTokenizer", "preprocess_text",
    ),
    "albert.errors": None,  # all
}
# Measured by `call_costs.py`.
CALLS = """## Which way to call a model

| way | compiles | use it |
|---|---|---|
| `model(x)` | never | to train with your own loop, inspect a model, or read a few texts |
| `albert.compiled(model)(x)` | once; with JAX once for each shape | to call a model often with rows that you make yourself |
| `model.predict(x)` | for each new length, where Keras chooses XLA | for large arrays of one length |
| `albert.open_session(path)` | once for each method; with JAX once for each of a few lengths | to get answers from texts |

What each costs when a classifier of base size reads one text at a time, of ten lengths from 5 to 40 tokens, relative to
the compiled call (`scripts/maintainers/call_costs.py`; TensorFlow, two cores of an AMD EPYC with AVX-512):

| way | first call | nine other lengths, first calls | later calls |
|---|---|---|---|
| `model(x)` | 0.19 | 5.33 | 4.78 |
| `albert.compiled(model)(x)` | 1.00 | 1.00 | 1.00 |
| `model.predict(x)` | 0.62 | 6.54 | 2.29 |
| `session.classify(text)` | 0.50 | 1.00 | 0.96 |

Threads may share compiled calls and sessions.
"""
FROM = "This page is made from the code by `scripts/maintainers/reference.py`."


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


def command_names() -> list[str]:
    with unittest.mock.patch("setuptools.setup") as said:
        runpy.run_path(str(REPO / "setup.py"))
    scripts = said.call_args.kwargs["entry_points"]["console_scripts"]
    return sorted(re.search(r"= albert\.(\w+):", line)[1] for line in scripts)


def _flag_line(name: str, flag) -> str:
    if isinstance(flag, absl_flags.BooleanFlag):
        name = f"[no]{name}"
    choices = getattr(flag.parser, "enum_values", ())
    kind = ", ".join(f"`{choice}`" for choice in choices) or getattr(flag.parser, "range", "")
    text = flag.help.removeprefix(f"<{'|'.join(choices)}>: ")
    default = "" if flag.default is None else f"`{flag.default}`"
    return " | ".join(["| `--" + name + "`", kind, default, text.replace("|", "\\|") + " |"])


def commands() -> str:
    names = command_names()
    parts = [
        "# Commands", FROM,
        "Each is `python -m albert.NAME` or, with dashes, `albert-NAME`. `--help` says what stands "
        "here. `--flagfile=FILE` reads flags from a file, one a line; lines that begin with `#` are "
        "comments. [Exit codes](exit_codes.md) are the same everywhere.",
        "\n".join(f"* [{name}](#{_anchor(name)})" for name in names),
    ]
    for name in names:
        module = importlib.import_module(f"albert.{name}")
        values = absl_flags.FlagValues()
        module.define_flags(values)
        rows = [_flag_line(flag, values[flag]) for flag in sorted(values)]
        table = ["| flag | values | default | |", "|---|---|---|---|", *rows]
        parts += [f"## {name}", _indented(module.__doc__), "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def _signature(name: str, what) -> str:
    try:
        text = str(inspect.signature(what))
    except ValueError:
        text = "(...)"
    return re.sub(r"<[\w.]+ object at 0x\w+>|<class '([\w.]+)'>", r"\1", f"{name}{text}")


def _doc(what) -> str:
    """Returns the object's own docstring; an inherited one is not about it."""
    return inspect.cleandoc(what.__doc__ or "")


def _methods(owner) -> list[tuple[str, object]]:
    if not inspect.isclass(owner):
        return []
    own = [base for base in owner.__mro__ if base.__module__.startswith("albert")]
    found = {}
    for base in reversed(own):
        found |= {
            name: value for name, value in vars(base).items()
            if not name.startswith("_") and isinstance(
                value, (type(lambda: 0), classmethod, staticmethod, property)
            )
        }
    return [(name, getattr(owner, name)) for name in sorted(found)]


def python() -> str:
    parts = ["# Python interface", FROM, CALLS]
    for place, names in PUBLIC.items():
        module = importlib.import_module(place)
        if names is None:
            names = [n for n, v in vars(module).items() if inspect.isclass(v)]
        parts.append(f"## {place}")
        for name in names:
            what = getattr(module, name)
            parts += [f"### {name}", textwrap.indent(_signature(name, what), "    "),
                      _indented(_doc(what))]
            for method, value in _methods(what):
                said = _doc(value)
                if not said or method in ("get_config", "call", "build"):
                    continue
                head = method if isinstance(value, property) else _signature(method, value)
                parts += [f"**`{head}`**", _indented(said)]
    return "\n\n".join(part for part in parts if part) + "\n"


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
        "`albert_config.json` holds the architecture. The eight released files and small ones are in "
        "`configs/`; `--albert_config_file=base_v2` names a released one without a path. A key that "
        "is not known is kept and told in a warning.",
        "\n".join(["| key | default | meaning |", "|---|---|---|", *rows]),
    ]) + "\n"


PAGES = {"commands.md": commands, "python.md": python, "configuration.md": configuration}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
