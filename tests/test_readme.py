"""The README's examples run as they stand, in their order."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from pydoc_data import topics

import apart
import pytest
from helpers import REPO

from faults.mortal import nursery

TEXT = (REPO / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```(bash|python)\n(.*?)```", TEXT, flags=re.DOTALL)
# Enough to see that a command works; the last flag wins.
SMALLER = {
    "train_sentencepiece": ["--vocab_size=500"],
    "create_pretraining_data": ["--dupe_factor=2"],
    "run_pretraining": ["--num_train_steps=4", "--num_warmup_steps=1", "--max_eval_steps=2",
                        "--save_checkpoints_steps=4", "--train_batch_size=8"],
    "run_classifier": ["--train_step=4", "--warmup_step=1", "--save_checkpoints_steps=4"],
    "run_squad": ["--train_step=2", "--warmup_step=1", "--save_checkpoints_steps=2"],
    "run_token_classifier": ["--train_step=4", "--warmup_step=1", "--save_checkpoints_steps=4"],
    "run_race": ["--train_step=2", "--warmup_step=1", "--save_checkpoints_steps=2"],
}
# Examples with these words need an extra package, which is not everywhere.
EXTRAS = {"tensorflow_text": ("export_preprocessor_path", "tensorflow_text")}
PASSAGE = {
    "article": "A cat sat on a mat.", "questions": ["Who sat? _ did."],
    "options": [["A cat", "A dog", "A mat", "Nobody"]], "answers": ["A"], "id": "1.txt",
}

QUESTIONS = {
    "context": PASSAGE["article"],
    "qas": [
        {"id": "1", "question": "Who sat?", "answers": [{"text": "A cat", "answer_start": 0}]},
        {"id": "2", "question": "Who ran?", "answers": [], "is_impossible": True},
    ],
}


@pytest.fixture
def workshop(tmp_path):
    """A folder with the repository's scripts and configs, a text, RACE and SQuAD."""
    # Prose that every machine with Python has.
    documents = [
        "\n".join(line for line in topics.topics[name].splitlines() if line.endswith((".", ",")))
        for name in sorted(topics.topics)[:40]
    ]
    text = "\n\n".join(documents).replace("`", "")
    (tmp_path / "my_text.txt").write_text(text, encoding="utf-8")
    for split in ("train", "dev", "test"):
        for level in ("middle", "high"):
            folder = tmp_path / "data" / "RACE" / split / level
            folder.mkdir(parents=True)
            (folder / "1.txt").write_text(json.dumps(PASSAGE), encoding="utf-8")
    folder = tmp_path / "data" / "squad"
    folder.mkdir()
    paragraphs = [
        QUESTIONS | {"qas": [qa | {"id": f"{qa['id']}-{i}"} for qa in QUESTIONS["qas"]]}
        for i in range(8)
    ]
    for name in ("train", "dev"):
        text = json.dumps({"data": [{"paragraphs": paragraphs}]})
        (folder / f"{name}-v2.0.json").write_text(text)
    folder = tmp_path / "data" / "ner"
    folder.mkdir()
    for name in ("train", "dev", "test"):
        (folder / f"{name}.txt").write_text("Ada B-PER\nLovelace I-PER\nwrites O\n. O\n\n" * 8)
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


def test_every_fenced_block_is_an_example():
    assert TEXT.count("```") == 2 * len(EXAMPLES) > 30
    for words in EXTRAS.values():
        assert all(any(word in code for _, code in EXAMPLES) for word in words)


@pytest.mark.timeout(1500)  # two dozen processes: a minute or two on an idle machine
@pytest.mark.parametrize("with_extras", [
    pytest.param(False, id="those that need no extra package"),
    pytest.param(True, id="all of them", marks=pytest.mark.slow),
])
def test_every_example_runs(with_extras, workshop: pathlib.Path):
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    if with_extras:
        apart.needs(*EXTRAS, extra="text")
    with nursery() as commands:  # which load TensorFlow together
        for kind, code in EXAMPLES:
            if not with_extras and any(w in code for words in EXTRAS.values() for w in words):
                continue
            if kind == "python":
                result = subprocess.run(
                    [sys.executable, "-c", code], cwd=workshop, env=environment,
                    capture_output=True, text=True, timeout=300,
                )
                status, said = result.returncode, result.stderr
            else:
                arguments = shlex.split(code.replace("\\\n", " "))
                python, option, module, *given = arguments
                assert (python, option) == ("python", "-m")
                status, _, said = commands.run(
                    module, [*given, *smaller(arguments)], workshop, cwd=workshop
                )
            assert status == 0, f"{code}\n{said[-3000:]}"
    results = (workshop / "work/classifier/eval_results.txt").read_text()
    assert "eval_accuracy = " in results
    assert (workshop / "work/classifier/submit_results.tsv").stat().st_size
    assert "num_runs = 3" in (workshop / "work/own/eval_results.txt").read_text()
    assert "eval_accuracy_high = " in (workshop / "work/race/predict_results.txt").read_text()


def test_both_commands_come_first_and_exist():
    first, second = TEXT.index("bash scripts/quickstart.sh"), TEXT.index("bash scripts/test.sh")
    assert first < second < TEXT.index("## Each step")
    assert (REPO / "scripts/quickstart.sh").exists() and (REPO / "scripts/test.sh").exists()


def test_every_maintainers_tool_is_told_with_its_command():
    folder = REPO / "scripts/maintainers"
    told = (folder / "README.md").read_text(encoding="utf-8")
    for path in folder.glob("*.py"):
        assert f"| `{path.name}` |" in told and f"scripts/maintainers/{path.name}" in told


def test_no_number_is_left_to_fill_in():
    assert "QUICKSTART_TABLE" not in TEXT
