"""report.py and quickstart.sh: figures from files, and one clear error for anything missing."""

import json
import pathlib
import subprocess
import sys

import helpers
import pytest

from albert.errors import DataError
from albert.storage.files import write_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts/quickstart"

sys.path.append(str(FOLDER))

import report as quickstart_report  # noqa: E402
import run_files  # noqa: E402

RESULTS = {
    "masked_lm_accuracy": 0.3, "masked_lm_accuracy_baseline": 0.0625,
    "sentence_order_accuracy": 0.6, "sentence_order_accuracy_baseline": 0.5,
}


def make_run(directory: pathlib.Path) -> pathlib.Path:
    """Mimics the output of quickstart.sh, with known figures."""
    write_json(str(directory / "text/stats.json"), {
        "source": "a text", "corpus": {"words": 1234, "sentences": 100, "documents": 10},
    })
    task = directory / "text/classification/SST-2"
    task.mkdir(parents=True)
    (task / "dev.tsv").write_text("sentence\tlabel\n" + "a\t0\nb\t1\n" * 500)
    model = directory / "pretrained/model"
    write_json(str(model / "eval_results.json"), RESULTS)
    lines = []
    for step in range(10, 41, 10):
        values = {"loss": 8 - step / 20, "masked_lm_accuracy": step / 200,
                  "sentence_order_accuracy": 0.5 + step / 400}
        lines.append({"step": step, "kind": "train", "learning_rate": 0.001, **values})
        lines.append({"step": step, "kind": "eval", **values})
    (model / "metrics.jsonl").write_text("".join(json.dumps(v) + "\n" for v in lines))
    for name, accuracy in (("hub", 0.8), ("random", 0.7), ("small_en", 0.85)):
        write_json(str(directory / f"classifier_{name}/eval_results.json"),
                   {"eval_accuracy": accuracy, "eval_loss": 0.5})
    return directory


@pytest.fixture
def directory(tmp_path) -> pathlib.Path:
    return make_run(tmp_path / "run")


def report(directory: pathlib.Path) -> str:
    assert helpers.run_here(quickstart_report, f"--directory={directory}") == 0
    return (directory / "report.md").read_text(encoding="utf-8")


def test_the_report_has_every_figure_and_the_picture(directory):
    text = report(directory)
    for expected in (
        "1,234 words", "| masked tokens | 0.300 | 0.062 |", "| sentence order | 0.600 | 0.500 |",
        "as a TF-Hub module | 0.800 | +10.0 points |", "| random weights | 0.700 |  |",
        "| 0.850 | +15.0 points |", "standard error 1.6 points",
    ):
        assert expected in text
    assert "No clear gain" not in text
    assert (directory / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_says_when_pretraining_did_not_help(directory):
    write_json(str(directory / "classifier_random/eval_results.json"), {"eval_accuracy": 0.79})
    assert "No clear gain from pretraining" in report(directory)


def test_a_missing_input_is_one_line_that_names_it(directory, capsys):
    for missing in (
        "pretrained/model/metrics.jsonl", "pretrained/model/eval_results.json",
        "text/stats.json", "text/classification/SST-2/dev.tsv", "classifier_hub/eval_results.json",
    ):
        content = (directory / missing).read_bytes()
        (directory / missing).unlink()
        assert helpers.run_here(quickstart_report, f"--directory={directory}") == 2
        message = capsys.readouterr().err
        assert len(message.splitlines()) == 1
        assert missing.rsplit("/", 1)[1].split(".")[0] in message
        assert not (directory / "report.md").exists()
        (directory / missing).write_bytes(content)


def test_a_damaged_line_of_metrics_is_named_and_a_torn_last_one_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "kind": "train", "loss": 2}\n{"step": 2, "ki')
    assert [line["step"] for line in run_files.read_metrics(str(path))["train"]] == [1]
    path.write_text('{"step": 1, "kind": "train"}\n[1]\n{"step": 2, "kind": "train"}\n')
    with pytest.raises(DataError, match=r"metrics.jsonl:2"):
        run_files.read_metrics(str(path))


# === quickstart.sh: refusals before any installation ===


def quickstart(*arguments: str, cwd: pathlib.Path, **environment: str):
    return subprocess.run(
        ["bash", str(ROOT / "scripts/quickstart.sh"), *arguments], cwd=cwd, capture_output=True,
        text=True, check=False, env={"PATH": "/usr/bin:/bin", **environment},
    )


def test_quickstart_refuses_bad_arguments_in_one_line_and_helps(tmp_path):
    (tmp_path / "empty.txt").touch()
    for arguments, message in (
        (["--input_file", "absent.txt"], "no such file: absent.txt"),
        (["--input_file=empty.txt"], "empty.txt is empty"),
        (["--imput_file", "x"], "unknown argument --imput_file"),
        (["--output_dir"], "--output_dir needs a value"),
    ):
        result = quickstart(*arguments, cwd=tmp_path)
        assert result.returncode == 2
        assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
        assert message in result.stderr
        assert [p.name for p in tmp_path.iterdir()] == ["empty.txt"]
    result = quickstart("--help", cwd=ROOT)
    assert result.returncode == 0 and "--input_file my_text.txt" in result.stdout


def test_an_unsuitable_python_is_refused_in_one_line(tmp_path):
    old = tmp_path / "oldpython"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.1 && exit 0\nexit 1\n')
    old.chmod(0o755)
    script = f'source "{ROOT}/scripts/environment.sh"; find_python'
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(old)},
    )
    assert result.returncode == 2
    assert "is Python 3.9.1; Python 3.10 to 3.13 is needed" in result.stderr


def test_shell_scripts_parse():
    for path in [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci/run"]:
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
