"""The notebooks are whole, show what they print, and run from top to bottom without Jupyter."""

import json
import os
import re
import subprocess
import sys

import pytest
from helpers import REPO

# In their order: each goes on from the one before.
NAMES = ("tour", "own_labels")
NOTEBOOKS = {
    name: json.loads((REPO / f"docs/notebooks/{name}.ipynb").read_text(encoding="utf-8"))
    for name in NAMES
}


def code_of(name: str) -> list[str]:
    cells = NOTEBOOKS[name]["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_these_are_all():
    assert {path.stem for path in (REPO / "docs/notebooks").iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_plain_python_with_what_it_prints_and_draws(name):
    notebook = NOTEBOOKS[name]
    ids = [cell["id"] for cell in notebook["cells"]]
    assert notebook["nbformat"] == 4 and len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        code = "".join(cell["source"])
        compile(code, cell["id"], "exec")
        kinds = {kind for output in cell["outputs"] for kind in output.get("data", ())}
        told = any(output["output_type"] == "stream" for output in cell["outputs"])
        assert told == bool(re.search(r"^ *print\(", code, re.M)), cell["id"]
        assert ("image/png" in kinds) == ("plt.show()" in code), cell["id"]


@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_are_of_no_machine(name):
    for cell in NOTEBOOKS[name]["cells"]:
        for output in cell.get("outputs", ()):
            assert output["output_type"] != "error" and output.get("name") != "stderr"
            text = "".join(output.get("text", "")) + "".join(
                output.get("data", {}).get("text/plain", "")
            )
            assert not re.search(r"/(home|root|tmp|work|Users)/|Traceback", text), text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_they_run_from_top_to_bottom(tmp_path):
    """With plots written instead of shown, and what they leave checked at the end."""
    environment = os.environ | {
        "PYTHONPATH": str(REPO), "MPLBACKEND": "Agg", "ALBERT_NOTEBOOK_DIR": str(tmp_path / "work"),
    }
    show = (
        "import matplotlib.pyplot as plt\n"
        "def _show():\n"
        "    for number in plt.get_fignums():\n"
        f"        plt.figure(number).savefig(rf'{tmp_path}/{{_cell}}.png')\n"
        "    plt.close('all')\n"
        "plt.show = _show\n"
    )
    for name in NAMES:
        cells = [f"_cell = '{name}-{i}'\n{code}" for i, code in enumerate(code_of(name))]
        script = tmp_path / f"{name}.py"
        script.write_text("\n".join([show, *cells]), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, cwd=tmp_path, capture_output=True,
            text=True, timeout=1700, check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    pictures = sorted(tmp_path.glob("*.png"))
    assert len(pictures) == 2 and all(path.stat().st_size > 5000 for path in pictures)
    results = json.loads((tmp_path / "work/classifier/eval_results.json").read_text())
    assert results["eval_accuracy"] > 0.6  # guessing is 0.5, the sets being balanced
    assert len((tmp_path / "work/answers.jsonl").read_text().splitlines()) == 3
    assert (tmp_path / "work/own_labels/albert_config.json").exists()
