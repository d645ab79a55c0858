"""scripts/quickstart.sh from end to end, on a small text and in less time."""

import os
import pathlib
import re
import subprocess
import sys
from pydoc_data import topics

import pytest
from helpers import REPO

STEPS = ["pretrain_from_text", "export_to_tfhub", "run_classifier"]


@pytest.fixture
def repository(tmp_path) -> pathlib.Path:
    """A copy of the repository whose .venv is this environment, installed already."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in ("albert", "scripts", "configs", "setup.py", "requirements.txt"):
        (folder / name).symlink_to(REPO / name)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    # The stamp that environment.sh writes after installing.
    sums = subprocess.run(
        "cat setup.py requirements.txt | cksum", shell=True, cwd=folder, capture_output=True,
        text=True, check=True,
    ).stdout.strip()
    (folder / ".venv/installed.stamp").write_text(f"{folder} {sums} extras=\n")
    return folder


def quickstart(repository: pathlib.Path, *arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "scripts/quickstart.sh", *map(str, arguments)], cwd=repository, text=True,
        capture_output=True, env=os.environ | {"PYTHONPATH": str(repository)},
    )


def test_each_step_gets_the_settings_and_what_the_steps_before_it_made(repository):
    made = (*(f"out/pretrained/model/model.ckpt-best.{end}" for end in ("index", "data-00000-of-00001")),
            *(f"out/{name}/report.md" for name in ("pretrained", "classifier")))
    (repository / ".venv/bin/python").write_text(
        f'#!/bin/sh\ncase "$1" in -c | -V) exec "{sys.executable}" "$@" ;; esac\necho "$*" >>calls\n'
        + "".join(f"mkdir -p {pathlib.Path(name).parent}; touch {name}\n" for name in made))
    (repository / "my.txt").write_text("A text.\n")
    done = quickstart(repository, "--input_file=my.txt", "--hours=3", "--output_dir=out")
    assert done.returncode == 0, done.stderr
    assert (repository / "calls").read_text().splitlines() == [
        "-m albert.examples train", "-m albert.examples test",
        "-m albert.pretrain_from_text --input_file=my.txt --hours=3 --output_dir=out/pretrained",
        "-m albert.export_to_tfhub --albert_directory=out/pretrained/model --export_path=out/hub_module",
        "-m albert.run_classifier --train_file=out/data/train.csv --test_file=out/data/test.csv "
        "--output_dir=out/classifier --albert_hub_module_handle=out/hub_module",
    ]


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a minute and a half of computing
def test_quickstart_goes_from_a_text_to_reports_and_repeats_no_step(repository):
    text = repository / "my text.txt"
    text.write_text("\n\n".join(topics.topics.values()).replace("`", ""), encoding="utf-8")
    command = ("--input_file", text, "--hours=0.01", "--output_dir", "out")
    done = quickstart(repository, *command)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "installing" not in done.stderr
    assert re.findall(r"^\[(\d+)/3\] (\w+)$", done.stdout, re.M) == [
        (str(i), name) for i, name in enumerate(STEPS, 1)
    ]
    out = repository / "out"
    for kind in ("pretrained", "classifier"):
        assert f"{kind}/report.md:\n| " in done.stdout
    assert "eval_accuracy = " in (out / "classifier/eval_results.txt").read_text()
    trained = (out / "pretrained/model/metrics.jsonl").read_bytes()
    again = quickstart(repository, *command)
    assert again.returncode == 0, again.stderr
    assert re.findall(r"^\[\d+/3\] (\w+): done already$", again.stdout, re.M) == STEPS
    assert (out / "pretrained/model/metrics.jsonl").read_bytes() == trained
    # Another text for the same folder is refused before anything is computed.
    text.write_text(text.read_text() + "\nOne sentence more.\n")
    other = quickstart(repository, *command)
    assert other.returncode == 2 and "use another --output_dir" in other.stderr
    assert (out / "pretrained/model/metrics.jsonl").read_bytes() == trained


def test_shell_scripts_parse():
    for path in [*sorted((REPO / "scripts").glob("*.sh")), REPO / ".ci/run"]:
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
