"""Writes docs/reference/commands.md and configuration.md from the code itself.

  python scripts/maintainers/reference.py

A test fails if they are out of date.
"""

import collections
import dataclasses
import importlib
import inspect
import pathlib
import re
import runpy
import sys
import unittest.mock

from absl import flags as absl_flags

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))  # this checkout, whatever is installed
FOLDER = REPO / "docs/reference"
FROM = "<!-- Generated from the code by scripts/maintainers/reference.py. -->"


def _code(text: str) -> str:
    """Shows flags as code: a site makes a dash of two hyphens."""
    return re.sub(r"(?<![`\w-])--\w+(=\w+)?", r"`\g<0>`", text)


def _indented(text: str) -> str:
    """Turns docstring lines indented by two or more into Markdown code."""
    lines, code = [], False
    for line in text.strip().splitlines():
        is_code = bool(re.match(r" {2,}\S", line)) or code and not line.strip()
        if is_code and not code and lines and lines[-1].strip():
            lines.append("")
        if not is_code:
            line = _code(line)
        elif re.match(r" {2,3}\S", line):
            line = f"  {line}"
        lines.append(line)
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
    text = _code(flag.help.removeprefix(f"<{'|'.join(choices)}>: "))
    notes = "; ".join(filter(None, [kind, "" if flag.default in (None, "") else f"default `{flag.default}`"]))
    if notes and not text.startswith("No effect"):
        text += f" *{notes}*"
    return f"| `--{name}` | " + text.replace("|", "\\|") + " |"


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
    return "\n".join(["| flag | meaning |", "|---|---|", *lines])


def _model_flags(lines: dict[str, dict[str, str]]) -> str:
    rows = [
        f"| `--{flag}` | {meaning} ({', '.join(name for name in lines if flag in lines[name])}) |"
        for flag, meaning in MODEL_FLAGS.items()
    ]
    return _flag_table(rows)


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
        "Run each as `python -m albert.NAME` or, with dashes, `albert-NAME`. `python -m albert` lists "
        "them. `--help` prints all flags of a command, `--version` the version. `--flagfile=FILE` reads "
        "flags from a file, one per line; lines that start with `#` are comments. "
        "[Exit codes](exit_codes.md) are the same everywhere.",
        ", ".join(f"[{name}](#{_anchor(name)})" for name in lines),
        "## Flags that name a model",
        "The value is a directory, a checkpoint's prefix, a name on the hub or `small_en`, "
        "unless the table says otherwise ([what can be opened](../start/old_checkpoints.md#what-can-be-opened)).",
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


PAGES = {"commands.md": commands, "configuration.md": configuration}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
