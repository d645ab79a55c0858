"""scripts/quickstart.sh from end to end, on a small text and with fewer steps than its recipes."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
from pydoc_data import topics

import pytest
from helpers import REPO

# Added to the recipes: the last flag wins.
FEWER = {
    "create_pretraining_data": ["--dupe_factor=2", "--eval_dupe_factor=1"],
    "run_pretraining": ["--num_train_steps=20", "--num_warmup_steps=2",
                        "--save_checkpoints_steps=10"],
    "run_classifier": ["--train_step=6", "--warmup_step=1", "--save_checkpoints_steps=3"],
}
STEPS = ["prepare_text", "train_sentencepiece", "create_pretraining_data", "run_pretraining",
         "export_to_tfhub", "run_classifier_checkpoint", "run_classifier_hub",
         "run_classifier_random", "run_classifier_small_en", "report"]


@pytest.fixture
def repository(tmp_path) -> pathlib.Path:
    """A copy of the repository whose .venv is this environment, installed already."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in ("albert", "scripts", "setup.py", "requirements.txt"):
        (folder / name).symlink_to(REPO / name)
    shutil.copytree(REPO / "configs", folder / "configs")
    for name, flags in FEWER.items():
        with open(folder / f"configs/quickstart/{name}.flags", "a") as recipe:
            recipe.write("\n".join(flags) + "\n")
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


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a minute and a half of computing
def test_quickstart_goes_from_a_text_to_a_report_and_repeats_no_step(repository):
    text = repository / "my text.txt"
    # A vocabulary of 2,000 tokens needs about ten thousand words.
    text.write_text("\n\n".join(topics.topics.values()).replace("`", ""), encoding="utf-8")
    done = quickstart(repository, "--input_file", text, "--output_dir", "out")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "installing" not in done.stderr
    assert re.findall(r"^\[(\d+)/10\] (\w+)$", done.stdout, re.M) == [
        (str(i), name) for i, name in enumerate(STEPS, 1)
    ]
    out = repository / "out"
    report = (out / "report.md").read_text()
    for figure in ("masked-LM accuracy", "sentence-order accuracy"):
        assert figure in report
    assert (out / "curves.png").stat().st_size > 5000
    for kind in ("checkpoint", "hub", "random", "small_en"):
        assert "eval_accuracy = " in (out / f"classifier_{kind}/eval_results.txt").read_text()
    # The pretrained weights are the same from the checkpoint and from the module.
    assert (out / "classifier_checkpoint/eval_results.txt").read_text() == (
        out / "classifier_hub/eval_results.txt").read_text()
    trained = (out / "pretrained/metrics.jsonl").read_bytes()
    again = quickstart(repository, "--input_file", text, "--output_dir", "out")
    assert again.returncode == 0, again.stderr
    assert re.findall(r"^\[\d+/10\] (\w+): done already$", again.stdout, re.M) == STEPS[:-1]
    assert (out / "pretrained/metrics.jsonl").read_bytes() == trained
    # Another text for the same folder is refused before anything is computed.
    text.write_text(text.read_text() + "\nOne sentence more.\n")
    other = quickstart(repository, "--input_file", text, "--output_dir", "out")
    assert other.returncode == 2 and "use another --output_dir" in other.stderr
    assert (out / "report.md").read_text() == report
