"""scripts/ablate.py: its grids can be run, and its tables are those of the pages."""

import json
import statistics
import sys

import pytest
from helpers import REPO

from albert import create_pretraining_data, run_pretraining
from albert.cli import flags

sys.path += [str(REPO / "scripts"), str(REPO / "scripts/maintainers")]

import ablate  # noqa: E402
import fine_tuning_gains  # noqa: E402

GRIDS = {path.stem: path for path in sorted((REPO / "configs/ablations").glob("*.json"))}


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_has_flags_that_there_are_and_settings_that_differ(name):
    known = []
    for module in (create_pretraining_data, run_pretraining):
        values = flags.FlagValues()
        module.define_flags(values)
        known.append({*values, "warmup_share", "num_evaluations"})
    grid = ablate.Grid.read(str(GRIDS[name]))
    for setting in grid.settings:
        setting.architecture(30000)
        assert set(setting.data) <= known[0] and set(setting.train) <= known[1]
        assert (setting.paper is not None) == name.startswith("table")
    keys = [json.dumps([each.config, each.data, each.train, each.start]) for each in grid.settings]
    assert len(set(keys)) == len(keys)


def test_the_pages_of_results_have_the_tables_that_the_tools_write():
    evidence = REPO / "docs/evidence"
    pages = "".join((evidence / f"{name}.md").read_text("utf-8") for name in ("results", "ablations"))
    found = json.loads((evidence / "fine_tuning_gains.json").read_text("utf-8"))
    assert fine_tuning_gains.table(found) in pages
    found = json.loads((evidence / "cooccurrence.json").read_text("utf-8"))
    assert ablate.table(ablate.Grid.read(str(GRIDS["cooccurrence"])), found) in pages


def test_the_tables_of_other_pages_have_the_figures_of_their_files():
    def figures(name):
        return json.loads((REPO / f"docs/evidence/{name}.json").read_text("utf-8"))

    def percent(value):
        return f"{100 * value:.1f} %"

    pages = "".join(page.read_text("utf-8") for page in [REPO / "README.md", *(REPO / "docs").rglob("*.md")])
    rows = [" | ".join([vectors, *(f"{value:.3f} ± {error:.3f}" for value, error in scores)])
            for vectors, *scores in (row.values() for row in figures("embeddings")["rows"])]
    rows += [f"{row['passes']} | {percent(row['masked_lm_accuracy'])} ({percent(row['most_frequent_token'])})"
             f" | {percent(row['sentence_order_accuracy'])}" for row in figures("small_texts")["rows"]]
    plan = figures("small_texts")["0.6 MB of Conan Doyle, --hours=0.1"]
    rows += [
        f"{plan['steps']:,} steps, which are {plan['passes']} passes",
        f"tokens | {percent(plan['masked_lm_accuracy'])} | {percent(plan['most_frequent_token'])} |",
        f"order | {percent(plan['sentence_order_accuracy'])} | {percent(plan['most_frequent_order'])} |",
    ]
    student = figures("teacher_sizes")["pretrain_from_text"]
    rows += [f"| {student['stsb_spearman']:.3f} | {figures('embeddings')['teacher']['stsb_spearman']} |",
             f"| {student['teacher_similarity']} | 1 |", f"| {percent(student['masked_lm_accuracy'])} | |"]
    rows += [f"{row['num_hidden_groups']} | {row['embedding_size']} | {row['megabytes_bfloat16']:.0f} MB | "
             f"{row['stsb_spearman']:.3f} | {percent(row['masked_lm_accuracy'])}"
             for row in figures("teacher_sizes")["students"]]
    for result in figures("training_intel")["results"]:
        ours, theirs = result["sides"].values()
        rows.append(f"{result['precision']} | {1 / theirs['ratio']:.2f} | {ours['rate']:,.0f}")
    speeds = [step["speed"] for step in figures("training_intel")["against_0.4"]["steps"]]
    rows += [f"`small_en`, 64 x 64 | {speeds[1]:.2f} | {speeds[0]:.2f} |",
             f"base, 8 x 128 | {speeds[3]:.2f} | {speeds[2]:.2f} |"]
    for result in figures("answers")["results"]:
        (ours, *theirs), count = result["sides"].values(), result.get("length", 1)
        speeds = [f"{1 / side['ratio']:.2f}" for side in theirs]
        cells = result["precision"], *speeds, *("",)[len(speeds) - 1:], f"{ours['rate'] / count:.0f}"
        rows.append(" | ".join(cells).replace("|  |", "| |"))
    rows += [f"| {row['other_labels']} of 872 |" for row in figures("precisions")["rows"][1:3]]
    gain = figures("fine_tuning_gains")["tasks"][0]
    rows.append(f"600 labels | {percent(gain['tfidf'])} | {percent(gain['scores'][0]['mean'])}")
    times = figures("first_answer")["another_text_of_19_tokens_median_ms"].values()
    small_en, base = map(statistics.median, times)
    rows.append(f"one answer | | {small_en:.1f} ms | {base:.0f} ms")
    assert len(rows) == 38 and not [row for row in rows if row not in pages]
