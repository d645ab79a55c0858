"""report.py and quickstart.sh: figures from files, and one clear error for anything missing."""

import json
import pathlib
import subprocess
import sys

import helpers
import pytest

from albert.errors import DataError
from albert.records.examples import FeatureSpec
from albert.records.records import write_records
from albert.storage.files import write_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts/quickstart"

sys.path.append(str(FOLDER))

import report as quickstart_report  # noqa: E402
import run_files  # noqa: E402

SPEC = FeatureSpec({
    "input_ids": ("int64", 4),
    "masked_lm_ids": ("int64", 3),
    "masked_lm_weights": ("float32", 3),
    "next_sentence_labels": ("int64", 1),
})
RESULTS = {
    "global_step": 40, "loss": 6.1, "masked_lm_accuracy": 0.3, "masked_lm_loss": 5.5,
    "sentence_order_accuracy": 0.6, "sentence_order_loss": 0.6,
}


def make_run(directory: pathlib.Path) -> pathlib.Path:
    """Mimics the output of quickstart.sh, with known figures."""
    write_json(str(directory / "text/stats.json"), {
        "source": "a text", "corpus": {"words": 1234, "sentences": 100, "documents": 10},
    })
    task = directory / "text/classification/SST-2"
    task.mkdir(parents=True)
    (task / "dev.tsv").write_text("sentence\tlabel\na b\t1\nc d\t0\ne f\t1\ng h\t0\n")
    (directory / "records").mkdir()
    write_records(str(directory / "records/heldout.tfrecord"), RECORDS, SPEC, {})
    pretrained = directory / "pretrained"
    write_json(str(pretrained / "eval_results.json"), RESULTS)
    helpers.write_config(pretrained)
    lines = []
    for step in range(10, 41, 10):
        values = {"loss": 8 - step / 20, "masked_lm_accuracy": step / 200,
                  "sentence_order_accuracy": 0.5 + step / 400}
        lines.append({"step": step, "kind": "train", "learning_rate": 0.001,
                      "tokens_per_second": 1000 + step, **values})
        lines.append({"step": step, "kind": "eval", **values})
    (pretrained / "metrics.jsonl").write_text("".join(json.dumps(v) + "\n" for v in lines))
    for name, accuracy in (("checkpoint", 0.8), ("hub", 0.8), ("random", 0.7), ("small_en", 0.85)):
        write_json(str(directory / f"classifier_{name}/eval_results.json"),
                   {"eval_accuracy": accuracy, "eval_loss": 0.5})
    (directory / ".steps").mkdir()
    (directory / ".steps/run_pretraining.seconds").write_text("120\n")
    return directory


RECORDS = [
    {"input_ids": [2, 5, 6, 3], "masked_lm_ids": ids, "masked_lm_weights": weights,
     "next_sentence_labels": [label]}
    # Id 0 is padding: it would be the commonest if its weight were not 0. Of the rest, 7 is 3 of 5.
    for ids, weights, label in (
        ([7, 0, 0], [1, 0, 0], 1), ([7, 300, 0], [1, 1, 0], 1), ([7, 9, 0], [1, 1, 0], 0),
    )
]


@pytest.fixture
def directory(tmp_path) -> pathlib.Path:
    return make_run(tmp_path / "run")


def report(directory: pathlib.Path) -> str:
    assert helpers.run_here(quickstart_report, f"--directory={directory}") == 0
    return (directory / "report.md").read_text(encoding="utf-8")


def test_the_report_has_every_figure_and_the_picture(directory):
    base = quickstart_report.baselines([str(directory / "records/heldout.tfrecord")])
    assert base.commonest_token == pytest.approx(3 / 5)
    assert base.majority_order == pytest.approx(2 / 3)
    assert (base.masked_tokens, base.pairs) == (5, 3)
    text = report(directory)
    for expected in (
        "1,234 words", "1,030 tokens/s",
        "| masked-LM accuracy | 0.3000 | 0.6000 | 0.50 × |",
        "| sentence-order accuracy | 0.6000 | 0.6667 | -6.7 points |",
        "| pretrained checkpoint | 0.8000 | +10.0 points |", "| random weights | 0.7000 |  |",
        "| small_en, pretrained on much English text; by LAMB | 0.8500 | +15.0 points |",
        "(most frequent label 0.500;", "| run_pretraining | 120 |",
    ):
        assert expected in text
    assert (directory / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_says_when_pretraining_did_not_help(directory):
    write_json(str(directory / "classifier_random/eval_results.json"), {"eval_accuracy": 0.9})
    # The standard error of a dev set of four rows swamps every difference.
    assert "says little about its label" in report(directory)
    dev = directory / "text/classification/SST-2/dev.tsv"
    dev.write_text("sentence\tlabel\n" + "a\t0\nb\t1\n" * 500)
    assert "did not help" in report(directory)


def test_a_missing_input_is_one_line_that_names_it(directory, capsys):
    for missing in (
        "pretrained/metrics.jsonl", "pretrained/eval_results.json", "records/heldout.tfrecord",
        "text/stats.json", "classifier_hub/eval_results.json", "pretrained/albert_config.json",
    ):
        content = (directory / missing).read_bytes()
        (directory / missing).unlink()
        assert helpers.run_here(quickstart_report, f"--directory={directory}") == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert missing.rsplit("/", 1)[1].split(".")[0] in said
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
