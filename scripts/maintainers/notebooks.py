"""Runs the notebooks in docs/notebooks and saves their output in them.

  pip install nbclient ipykernel
  python scripts/maintainers/notebooks.py

Each runs in a separate temporary folder.
"""

import os
import pathlib
import sys
import tempfile

import nbformat
from nbclient import NotebookClient

REPO = pathlib.Path(__file__).resolve().parents[2]
NAMES = ("tour", "own_labels")


def main() -> None:
    os.environ |= {"PYTHONPATH": str(REPO), "TF_CPP_MIN_LOG_LEVEL": "3"}
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            path = REPO / f"docs/notebooks/{name}.ipynb"
            notebook = nbformat.read(path, as_version=4)
            NotebookClient(
                notebook, timeout=1800, resources={"metadata": {"path": folder}}
            ).execute()
            for cell in notebook.cells:
                # Times and library messages depend on the machine.
                cell.metadata.clear()
                if cell.cell_type == "code":
                    cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            notebook.metadata.pop("widgets", None)
            nbformat.write(notebook, path)
            print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
