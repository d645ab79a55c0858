"""scripts/ablate.py: its grids can be run, and its tables are those of the pages."""

import dataclasses
import json
import sys

from helpers import REPO

from albert import create_pretraining_data, run_pretraining
from albert.cli import flags, run_flags

sys.path += [str(REPO / "scripts"), str(REPO / "scripts/maintainers")]

import fine_tuning_gains  # noqa: E402
from ablation import report, runs  # noqa: E402
from ablation.grid import Grid  # noqa: E402
from ablation.runs import Result  # noqa: E402

GRIDS = {path.stem: path for path in sorted((REPO / "configs/ablations").glob("*.json"))}
RESULTS = "".join((REPO / f"docs/evidence/{name}.md").read_text("utf-8") for name in ("results", "ablations"))


def test_every_grid_can_be_run_differs_as_it_says_and_is_evaluated_with_its_own_masks(
    golden_path, tmp_path, monkeypatch
):
    tables = {f"table{n}{scale}" for n in (3, 4, 5, 11, 12) for scale in ("", "_paper")}
    assert set(GRIDS) == tables | {
        "masking_share", "ngram", "sentence_order", "packed_rows", "own_text", "one_hour", "cooccurrence",
    }
    called = {}
    monkeypatch.setattr(runs.Work, "_last_checkpoint", staticmethod(lambda folder: folder))
    monkeypatch.setattr(
        runs.Work, "_once", lambda self, _, what, __, given: called.update({what: given}) or True
    )
    known = []
    for module in (run_pretraining, create_pretraining_data):
        values = flags.FlagValues()
        module.define_flags(values)
        known.append(set(values))
    known[0] |= {"warmup_share", "num_evaluations"}
    decisive = {*run_flags.MASKING_FLAGS, "masked_lm_budget", "max_predictions_per_seq",
                "max_seq_length"}
    for name, path in GRIDS.items():
        grid = dataclasses.replace(
            Grid.read(str(path)), evaluations={"nsp": {"sentence_objective": "nsp"}}
        )
        assert grid.primary in grid.metrics
        work = runs.Work(
            grid, ["text"], str(golden_path("spm/30k-clean.model")), str(tmp_path), {}
        )
        seen = []
        for setting in grid.settings:
            setting.architecture(30000)
            assert ";" not in setting.name  # the separator of --settings
            assert set(setting.train) <= known[0] and set(setting.data) <= known[1]
            assert (setting.paper is not None) == name.startswith("table")
            key = (setting.config, setting.data, setting.train, setting.start)
            assert key not in seen
            seen.append(key)
            work._run(setting, 1)
            run, other = (called[f"{setting.name}, seed 1{more}"] for more in ("", ", on nsp"))
            assert {k: v for k, v in run.items() if k in decisive} == {
                k: v for k, v in other.items() if k in decisive
            }


def test_the_pages_of_results_have_the_tables_that_the_tools_write():
    found = json.loads((REPO / "docs/evidence/fine_tuning_gains.json").read_text("utf-8"))
    assert fine_tuning_gains.table(found) in RESULTS
    found = json.loads((REPO / "docs/evidence/cooccurrence.json").read_text("utf-8"))
    results = [Result(**one) for one in found]
    assert report.table(Grid.read(str(GRIDS["cooccurrence"])), results) in RESULTS
