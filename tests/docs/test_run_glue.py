"""run_glue.sh and its table: nine tasks with one command, and early refusals."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from helpers import REPO, run_here

from albert.errors import DataError
from albert.tasks.glue import TASKS

sys.path.append(str(REPO / "scripts"))
import glue_report  # noqa: E402

SCRIPT = str(REPO / "run_glue.sh")


def run_glue(*arguments, cwd, **environment):
    clean = {k: v for k, v in os.environ.items() if k not in (
        "ALBERT_HUB_MODULE_HANDLE", "INIT_CHECKPOINT", "GLUE_DIR", "ALBERT_ROOT",
    )}
    return subprocess.run(
        ["bash", SCRIPT, *arguments], cwd=cwd, env=clean | environment, capture_output=True,
        text=True, timeout=1700,
    )


def test_what_cannot_work_is_refused_before_anything_is_installed(tmp_path):
    for arguments, environment, message in (
        ([], {}, "set GLUE_DIR to the folder that holds CoLA"),
        ([], {"GLUE_DIR": "/nowhere"}, "GLUE_DIR: no such directory: /nowhere"),
        ([], {"GLUE_DIR": "/tmp"}, "set ALBERT_HUB_MODULE_HANDLE or INIT_CHECKPOINT"),
        ([], {"GLUE_DIR": "/tmp", "INIT_CHECKPOINT": "a", "ALBERT_HUB_MODULE_HANDLE": "b"},
         "set one of ALBERT_HUB_MODULE_HANDLE and INIT_CHECKPOINT"),
        (["SQuAD"], {}, "unknown task SQuAD; there are: cola sst-2"),
        (["--output_dir"], {}, "--output_dir needs a value"),
    ):
        done = run_glue(*arguments, cwd=tmp_path, **environment)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {message}")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(1800)  # minutes of two idle cores
def test_the_smoke_run_trains_all_tasks_and_repeats_none(tmp_path: pathlib.Path):
    arguments = ["--smoke", f"--output_dir={tmp_path}/out"]
    first = run_glue(*arguments, cwd=tmp_path, PYTHON=sys.executable)
    assert first.returncode == 0, first.stdout + first.stderr
    out = tmp_path / "out"
    submitted = {path.name for path in (out / "submission").iterdir()}
    assert submitted == {task.submission for task in TASKS.values() if task.submission}
    for path in (out / "submission").iterdir():
        header, *rows = path.read_text().splitlines()
        assert header == "index\tprediction"
        assert [row.split("\t")[0] for row in rows] == [str(i) for i in range(7)]
    results = json.loads((out / "glue_results.json").read_text())
    assert set(results) == {*glue_report.COLUMNS, "average"}
    assert len(results["MNLI-m/mm"]) == len(results["STS-B"]) == 2
    assert first.stdout.endswith((out / "glue_results.md").read_text())
    again = run_glue(*arguments, cwd=tmp_path, PYTHON=sys.executable)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count(": done already\n") == 12
    other = run_glue(*arguments, "--learning_rate=1", cwd=tmp_path, PYTHON=sys.executable)
    assert other.returncode == 2 and "other settings" in other.stderr


# --- The table ---


def write_results(folder, **results):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "eval_results.json").write_text(json.dumps(results))


def test_a_task_with_two_metrics_counts_once_and_other_results_are_refused(tmp_path):
    with pytest.raises(DataError, match="no <task>/eval_results.json"):
        glue_report.read_scores(str(tmp_path))
    write_results(tmp_path / "cola", eval_accuracy=0.8)
    with pytest.raises(DataError, match="cola/eval_results.json: no matthew_corr in it"):
        glue_report.read_scores(str(tmp_path))
    write_results(tmp_path / "cola", eval_accuracy=0.8, matthew_corr=0.5)
    write_results(tmp_path / "mrpc", eval_accuracy=0.8, f1=0.9)
    write_results(tmp_path / "mnli", eval_accuracy=0.7)
    write_results(tmp_path / "mismnli", eval_accuracy=0.72)
    scores = glue_report.read_scores(str(tmp_path))
    assert glue_report.average(scores) == pytest.approx((50 + 85 + 71) / 3)
    lines = glue_report.table(scores).splitlines()
    assert lines[0].startswith("|  | CoLA | SST-2 | MRPC |")
    assert lines[3] == "| dev | 50.0 | - | 90.0/80.0 | - | - | 70.0/72.0 | - | - | - | 68.7 |"
    assert len({line.count("|") for line in lines}) == 1


def test_several_runs_give_medians_and_deviations(tmp_path, capsys):
    for seed, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7)):
        write_results(tmp_path / f"seed-{seed}/rte", eval_accuracy=accuracy)
    runs = ",".join(str(tmp_path / f"seed-{seed}") for seed in (1, 2, 3))
    assert run_here(glue_report, f"--directory={runs}") == 0
    table = (tmp_path / "glue_results.md").read_text()
    assert capsys.readouterr().out == table
    dev, deviation = [line.split(" | ") for line in table.splitlines()[3:]]
    assert (dev[0], dev[8], dev[-1]) == ("| dev", "70.0", "70.0 |")
    assert (deviation[0], deviation[8], deviation[-1]) == ("| deviation", "20.0", "20.0 |")
    assert json.loads((tmp_path / "glue_results.json").read_text())["RTE"] == [70.0]
    write_results(tmp_path / "seed-3/cola", matthew_corr=1)
    assert run_here(glue_report, f"--directory={runs}") == 2
    assert "not all runs have CoLA" in capsys.readouterr().err
