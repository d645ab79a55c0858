"""Every number that a flag takes has its range, told in --help and held before anything is done."""

import importlib
import math
import re
import subprocess
import sys

import pytest
from helpers import REPO, assert_one_clear_line

from albert.cli import flags
import jobs

HAS_FLAGS = re.compile(r"^def define_flags\(", re.MULTILINE)
IS_COMMAND = re.compile(r"^cli = flags\.command\(|^def main\(values: flags\.FlagValues", re.M)
COMMANDS = sorted(
    str(path.relative_to(REPO)) for folder in ("albert", "scripts/maintainers")
    for path in (REPO / folder).glob("*.py")
    if HAS_FLAGS.search(text := path.read_text("utf-8")) and IS_COMMAND.search(text)
)
# Thresholds, and seeds that become text or bits of any length.
ANY_NUMBER = {"na_prob_thresh", "null_score_diff_threshold", "random_seed", "threshold_to_export"}
SEEDS_AS_TEXT = {"albert/prepare_text.py", "albert/train_sentencepiece.py"}


def load(path):
    folder, name = path.removesuffix(".py").rsplit("/", 1)
    return importlib.import_module(f"albert.{name}") if folder == "albert" else jobs.script(name)


def numbers(define_flags):
    values = flags.FlagValues()
    define_flags(values)
    found = {name: values[name] for name in values}
    return {n: f for n, f in found.items() if f.parser.flag_type() in ("int", "float")}


def takes_any(path, name):
    return name in ANY_NUMBER or name == "seed" and path in SEEDS_AS_TEXT


END = re.compile(r"(from|to|at least|above|at most|below) (\S+?)(?:,|$| )")


def ends(flag):
    """Returns the first numbers within the range that --help tells, and those just outside it."""
    is_whole = flag.parser.flag_type() == "int"

    def beside(end, way):
        return end + way if is_whole else math.nextafter(end, way * math.inf)

    within, outside = [], ["", "x", "1e", "nan", "None"]
    for word, text in END.findall(flag.parser.range):
        end = int(text) if is_whole else float(text)
        way = -1 if word in ("from", "at least", "above") else 1
        is_open = word in ("above", "below")
        within.append(beside(end, -way) if is_open else end)
        outside.append(end if is_open else beside(end, way))
    return within, outside if not flag.parser.range else [*outside, "inf", "-inf"]


def test_the_commands_are_found():
    assert len(COMMANDS) > 20 and "albert/run_pretraining.py" in COMMANDS


@pytest.mark.parametrize("path", COMMANDS)
def test_every_number_has_a_range_or_may_be_any(path):
    for name, flag in numbers(load(path).define_flags).items():
        assert bool(flag.parser.range) != takes_any(path, name), name


@pytest.mark.parametrize("path", COMMANDS)
def test_a_number_outside_its_range_is_one_clear_line_before_anything_is_done(path, capsys):
    module, done = load(path), []

    def main(*_):
        done.append(True)

    for name, flag in numbers(module.define_flags).items():
        within, outside = ends(flag)
        for value in outside:
            if value == "nan" and name == "threshold_to_export":
                continue
            argv = ["command", f"--{name}={value}"]
            assert flags.run_command("", module.define_flags, main, argv) == 2, argv
            line = assert_one_clear_line(capsys.readouterr().err)
            said = re.match(r"error: --(\w+)=(.*): must be a (whole )?number", line)
            assert said[1] == name or flag.help == f"Alias for --{said[1]}."
            assert said[2] == str(value) or float(said[2]) == float(value)
            assert line.endswith(flag.parser.range or "number")
        for value in within:
            argv = ["command", f"--{name}={value}"]
            assert flags.run_command("", module.define_flags, main, argv) == 0, argv
            done.remove(True)
    assert not done


@pytest.mark.parametrize("path", COMMANDS)
def test_help_tells_every_range_and_every_choice_once(path, capsys):
    module = load(path)
    assert flags.run_command(module.__doc__ or "", module.define_flags, None, ["x", "--help"]) == 0
    text = capsys.readouterr().out
    for name, flag in numbers(module.define_flags).items():
        if flag.parser.range:
            assert f"--{name} <{flag.parser.range}>: " in text
    assert not re.search(r"<([^<>]+)>: <\1>", text)


def test_tensorflow_is_not_imported_to_refuse_a_number():
    code = "import sys; from albert import run_pretraining as r; sys.argv[1:] = ['--seed=-1']\n" \
           "try: r.cli()\nfinally: print('tensorflow' in sys.modules)"
    assert subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=False
    ).stdout == "False\n"


@pytest.mark.parametrize(("arguments", "message"), [
    (["--seed=4294967295", "--num_runs=2"], "the last of --num_runs=2 would be above 4294967295"),
    (["--warmup_step=5"], "--warmup_step=5 exceeds --train_step=4"),
])
def test_what_follows_from_the_data_is_checked_too(arguments, message, tmp_path, capsys):
    assert jobs.squad(*jobs.squad_flags(tmp_path), *arguments) == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), flags.MOST_SEED])
def test_the_first_and_the_last_seed_train(seed, tmp_path):
    job = jobs.pretraining_flags(tmp_path, seed=seed, num_train_steps=2, num_warmup_steps=0)
    assert jobs.pretrain(*job, "--do_eval") == 0
