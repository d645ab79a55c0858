"""The README's examples run as they stand, in their order."""

import os
import pathlib
import re
import shlex
import subprocess
import sys
from pydoc_data import topics

import pytest
from helpers import REPO

TEXT = (REPO / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```(bash|python)\n(.*?)```", TEXT, flags=re.DOTALL)
# Enough to see that a command works; the last flag wins.
SMALLER = {
    "train_sentencepiece": ["--vocab_size=500"],
    "create_pretraining_data": ["--dupe_factor=2"],
    "run_pretraining": ["--num_train_steps=4", "--num_warmup_steps=1", "--max_eval_steps=2",
                        "--save_checkpoints_steps=4", "--train_batch_size=8"],
    "run_classifier": ["--train_step=4", "--warmup_step=1", "--save_checkpoints_steps=4"],
}

@pytest.fixture
def workshop(tmp_path):
    """A folder with the repository's scripts and configs, and a text."""
    # Prose that every machine with Python has.
    documents = [
        "\n".join(line for line in topics.topics[name].splitlines() if line.endswith((".", ",")))
        for name in sorted(topics.topics)[:40]
    ]
    text = "\n\n".join(documents).replace("`", "")
    (tmp_path / "my_text.txt").write_text(text, encoding="utf-8")
    for name in ("scripts", "configs"):
        os.symlink(REPO / name, tmp_path / name)
    # The configuration of the README, with the vocabulary of so small a text.
    (tmp_path / "configs").unlink()
    (tmp_path / "configs").mkdir()
    for source in (REPO / "configs").glob("*.json"):
        text = source.read_text().replace('"vocab_size": 2000', '"vocab_size": 500')
        (tmp_path / "configs" / source.name).write_text(text)
    return tmp_path


def smaller(arguments: list[str]) -> list[str]:
    return next((v for k, v in SMALLER.items() if k in " ".join(arguments[:3])), [])


def test_every_example_runs(workshop: pathlib.Path):
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    assert sum(kind == "bash" for kind, _ in EXAMPLES) >= 8
    for kind, code in EXAMPLES:
        if kind == "python":
            command = [sys.executable, "-c", code]
        else:
            arguments = shlex.split(code.replace("\\\n", " "))
            command = [sys.executable, *arguments[1:], *smaller(arguments)]
        result = subprocess.run(
            command, cwd=workshop, env=environment, capture_output=True, text=True, timeout=300
        )
        assert result.returncode == 0, f"{code}\n{result.stderr[-3000:]}"
    results = (workshop / "work/classifier/eval_results.txt").read_text()
    assert "eval_accuracy = " in results
    assert (workshop / "work/classifier/submit_results.tsv").stat().st_size


def test_both_commands_come_first_and_exist():
    first, second = TEXT.index("bash scripts/quickstart.sh"), TEXT.index("bash scripts/test.sh")
    assert first < second < TEXT.index("## Each step")
    assert (REPO / "scripts/quickstart.sh").exists() and (REPO / "scripts/test.sh").exists()


def test_no_number_is_left_to_fill_in():
    assert "QUICKSTART_TABLE" not in TEXT
