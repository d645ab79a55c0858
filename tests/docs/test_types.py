"""Type hints for users who type-check: names resolve, and type errors are found."""

import ast
import importlib.util
import subprocess
import sys

import pytest
from helpers import REPO

import albert

PROGRAM = """
from pathlib import Path
import numpy as np
import albert

def labels(path: Path, texts: list[str]) -> list[str]:
    session = albert.open_session(path, batch_size=8)
    return [answer["label"] for answer in session.classify(texts)]

def train(path: Path, texts: list[str], answers: list[int]) -> None:
    tokenizer = albert.AlbertTokenizer.from_pretrained(path, keep_accents=True)
    model = albert.from_pretrained(path, num_labels=2)
    inputs = tokenizer(texts, padding=True, return_tensors="np")
    model.compile("adam")
    model.fit(dict(inputs), np.array(answers), epochs=1)
    model.save_pretrained(path / "new")

print(albert.AlbertConfig.released("base_v2").hidden_size, labels(Path("model"), ["A text."]))
"""
TYPOS = {"batch_size": "batchsize", "classify": "clasify", "from_pretrained(path, k": "load(path, k",
         "hidden_size": "hiden_size"}


def test_the_names_with_types_are_those_of_the_package():
    tree = ast.parse((REPO / "albert/__init__.pyi").read_text())
    names = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom)
             for alias in node.names}
    assert names == set(dir(albert)) - {"__version__"}
    for name in names:
        getattr(albert, name)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_a_program_passes_strictly_and_each_typo_is_found(tmp_path):
    def problems(source: str) -> list[str]:
        (tmp_path / "program.py").write_text(source)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "program.py"], cwd=tmp_path,
            capture_output=True, text=True,
        )
        return [line for line in done.stdout.splitlines() if line.startswith("program.py:")]

    assert not problems(PROGRAM)
    for right, wrong in TYPOS.items():
        assert wrong.partition("(")[0] in problems(PROGRAM.replace(right, wrong))[0]
