"""The tables of predictions: the original's two, and the one for GLUE's server. No TensorFlow."""

import os
import re
from collections.abc import Iterable, Sequence

import numpy as np

from albert.storage import files


def write_answers(path: str, rows: Iterable[tuple[str, str]]) -> str:
    """Publishes a header and a line of index and answer for each row; returns the path."""
    with files.atomic_write(path) as stream:
        stream.write("index\tprediction\n")
        stream.writelines(f"{_cell(index)}\t{_cell(answer)}\n" for index, answer in rows)
    return path


def _cell(text: str) -> str:
    """Returns a text as one cell of a table: tabs and line ends in it become blanks."""
    plain = re.sub(r"[\t\r\n]", " ", text)
    return plain.encode("utf-8", "replace").decode("utf-8")


def write_test_results(
    directory: str, guids: Sequence[str], answers: Sequence[str], probabilities: np.ndarray
) -> list[str]:
    """Publishes `test_results.tsv` and `submit_results.tsv` and returns their paths.

    The first has a line of tab-separated probabilities [N, C] for each row (for
    regression the value), the second a header and each row's index and answer.
    """
    if not len(probabilities) == len(guids) == len(answers):
        raise ValueError(f"{len(probabilities)} predictions for {len(guids)} examples")
    results = os.path.join(directory, "test_results.tsv")
    with files.atomic_write(results) as stream:
        stream.writelines("\t".join(map(str, row)) + "\n" for row in probabilities)
    submit = os.path.join(directory, "submit_results.tsv")
    return [results, write_answers(submit, zip(guids, answers, strict=True))]
