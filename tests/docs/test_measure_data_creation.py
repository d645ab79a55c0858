"""scripts/maintainers/measure_data_creation.py: figures of a real run, and of one that was killed."""

import json
import subprocess
import sys

import pytest
from helpers import REPO, assert_one_clear_line

SCRIPT = str(REPO / "scripts/maintainers/measure_data_creation.py")


@pytest.mark.parametrize("with_text", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_figures_are_those_of_the_command_and_kills_change_no_byte(
    tmp_path, golden_path, with_text
):
    text = [
        f"--input_file={golden_path('pretraining_data/corpus.txt')}",
        f"--spm_model_file={golden_path('spm/30k-clean.model')}",
    ]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--gigabytes=0.0015", f"--output_dir={tmp_path}", "--kills=1",
         *(text if with_text else []), "--", "--max_seq_length=64", "--num_processes=2"],
        capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "data_creation.json").read_text())
    assert 1.5e6 <= found["text_bytes"] < 2.2e6 and found["records"] > 1000
    assert found["most_bytes_of_all_processes"] >= found["most_bytes_of_one_process"] > 1e7
    assert found["records_after_kills"] == "the same bytes" and found["kills"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "data_creation.json", "data_creation.md"
    ]


def test_a_text_without_its_vocabulary_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, f"--output_dir={tmp_path}", "--input_file=x"],
        capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 2
    assert "go together" in assert_one_clear_line(done.stderr)
