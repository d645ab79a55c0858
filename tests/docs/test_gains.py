"""The maintainers' tools that measure what small_en gains: samples, sums and tables."""

import json
import sys

import pytest
from helpers import REPO

sys.path.append(str(REPO / "scripts"))

from ablation import report  # noqa: E402
from ablation.grid import Grid  # noqa: E402
from ablation.runs import Result  # noqa: E402


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.syspath_prepend(str(REPO / "scripts/maintainers"))


@pytest.fixture
def glue(tmp_path):
    """Small files in GLUE's layout, every row of its own."""
    columns = {
        "SST-2": "sentence\tlabel", "QNLI": "index\tquestion\tsentence\tlabel",
        "MRPC": "\ufeffQuality\t#1 ID", "STS-B": "index\tscore",
    }
    for task, head in columns.items():
        folder = tmp_path / "glue" / task
        folder.mkdir(parents=True)
        for name, count in (("train", 60), ("dev", 1200 if task == "QNLI" else 40)):
            label = [str(i % 4 // 3) for i in range(count)]  # three of four are 0
            first = head.split("\t")[0].endswith("Quality")
            rows = [f"{x}\t{name} {i}" if first else f"{name} {i}\t" + "\t".join(
                [*["w"] * (head.count("\t") - 1), x]) for i, x in enumerate(label)]
            (folder / f"{name}.tsv").write_text("\n".join([head, *rows]) + "\n", "utf-8")
    return tmp_path / "glue"


def lines(path):
    return path.read_text("utf-8").splitlines()


@pytest.mark.parametrize("task", ["SST-2", "QNLI", "MRPC", "STS-B"])
def test_a_sample_is_drawn_once_and_holds_its_dev_rows_out(glue, tmp_path, task):
    import fine_tuning_gains as gains

    for name in ("one", "two"):
        assert gains.sample(glue, tmp_path / name, task, 50) == 50
    for name in ("train.tsv", "dev.tsv"):
        assert lines(tmp_path / "one" / task / name) == lines(tmp_path / "two" / task / name)
    head, *train = lines(tmp_path / "one" / task / "train.tsv")
    _, *dev = lines(tmp_path / "one" / task / "dev.tsv")
    assert head == lines(glue / task / "dev.tsv")[0].lstrip("\ufeff")
    assert len(set(train)) == 50 and not set(train) & set(dev)
    assert len(dev) == (gains.HELD_OUT if task == "QNLI" else 40)
    share = gains.commonest(tmp_path / "one", task)
    assert share == (0 if task == "STS-B" else pytest.approx(0.75, abs=0.03))
    # Of few rows all are taken.
    assert gains.sample(glue, tmp_path / "all", task, 10_000) == (200 if task == "QNLI" else 60)


def test_the_table_has_means_with_their_errors(tmp_path):
    import fine_tuning_gains as gains

    found = gains.summary([0.7, 0.8, 0.9])
    assert found["mean"] == pytest.approx(0.8)
    assert found["error"] == pytest.approx(0.1 / 3**0.5)
    gains.write({"model": "small_en", "tasks": [{
        "task": "SST-2", "metric": "eval_accuracy", "rows": 5000, "commonest": 0.51,
        "pretrained": found, "random": gains.summary([0.6, 0.6, 0.6]),
    }]}, tmp_path)
    [row] = [line for line in lines(tmp_path / "results.md") if "SST-2" in line]
    assert row == "| SST-2 | eval accuracy | 5,000 | 0.800 ± 0.058 | 0.600 ± 0.000 | +0.200 | 0.510 |"


def test_the_share_is_of_the_tokens_to_the_loss_that_random_weights_end_with():
    import own_text_gains as gains

    def curve(*losses):
        return [
            {"step": 10 * i, "tokens": 100 * i, "minutes": i, "masked_lm_loss": loss,
             "masked_lm_accuracy": 0.1}
            for i, loss in enumerate(losses, 1)
        ]

    found = gains.told([
        {"setting": gains.RANDOM, "curve": curve(8, 7, 6, 5)},
        {"setting": "from small_en", "curve": curve(6, 4)},
        {"setting": "from small_en, a fifth", "curve": curve(6)},
    ], 2.0)
    assert found["goal"] == 5
    assert found["share_of_the_tokens"] == {
        "from small_en": 150 / 400, "from small_en, a fifth": None,
    }
    assert [one["loss_of_a_word"] for one in found["curves"][gains.RANDOM]] == [16, 14, 12, 10]


@pytest.mark.parametrize("tool", [
    name for name in ("fine_tuning_gains", "own_text_gains")
    if f"{name}.py" in (REPO / "docs/evidence/results.md").read_text("utf-8")
])
def test_the_page_of_results_has_the_tables_that_the_tools_write(tool):
    module = __import__(tool)
    found = json.loads((REPO / f"docs/evidence/{module.EVIDENCE}").read_text("utf-8"))
    assert module.table(found) in (REPO / "docs/evidence/results.md").read_text("utf-8")


@pytest.mark.parametrize("evidence", ["quarter_hour", "one_hour"])
def test_the_page_of_results_has_the_tables_of_the_grid_of_an_hour(evidence):
    grid = Grid.read(str(REPO / "configs/ablations/one_hour.json"))
    found = json.loads((REPO / f"docs/evidence/{evidence}.json").read_text("utf-8"))
    results = [Result(**one) for one in found]
    measured = {one.setting for one in results}
    grid = grid.narrowed([s.name for s in grid.settings if s.name in measured], None, None)
    assert report.table(grid, results) in (REPO / "docs/evidence/results.md").read_text("utf-8")
