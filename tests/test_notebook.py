"""The tutorial runs from top to bottom, without Jupyter."""

import json
import os
import subprocess
import sys

import pytest
from helpers import REPO

NOTEBOOK = json.loads((REPO / "docs/notebooks/tour.ipynb").read_text(encoding="utf-8"))
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_it_is_a_notebook_of_plain_python_without_outputs():
    assert NOTEBOOK["nbformat"] == 4
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(ids)) == len(ids)
    assert len(CODE) >= 8
    for number, code in enumerate(CODE):
        compile(code, f"cell {number}", "exec")
    for cell in NOTEBOOK["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_runs_from_top_to_bottom(tmp_path):
    """With plots written instead of shown, and what each cell leaves checked at the end."""
    show = (
        "def _show():\n"
        "    for number in plt.get_fignums():\n"
        f"        plt.figure(number).savefig(rf'{tmp_path}/{{_cell}}.png')\n"
        "    plt.close('all')\n"
        "plt.show = _show\n"
    )
    cells = [f"_cell = {number}\n{code}" for number, code in enumerate(CODE)]
    script = tmp_path / "notebook.py"
    script.write_text("\n".join([cells[0], show, *cells[1:]]), encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(REPO), "MPLBACKEND": "Agg", "ALBERT_NOTEBOOK_DIR": str(tmp_path / "work"),
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=tmp_path, capture_output=True,
        text=True, timeout=1700, check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    pictures = sorted(tmp_path.glob("*.png"))
    assert len(pictures) == 3 and all(path.stat().st_size > 5000 for path in pictures)
    results = json.loads((tmp_path / "work/classifier/eval_results.json").read_text())
    assert results["eval_accuracy"] > 0.6  # guessing is 0.5, the sets being balanced
    assert len((tmp_path / "work/answers.jsonl").read_text().splitlines()) == 3
