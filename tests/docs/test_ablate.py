"""scripts/ablate.py and the tools built on it: grids run, resume, and are reported honestly."""

import dataclasses
import json
import random
import shutil
import sys

import pytest
from helpers import REPO, assert_one_clear_line, program

from albert import create_pretraining_data, modeling, run_pretraining
from albert.cli import flags, run_flags
from albert.config import AlbertConfig
from albert.errors import UserError
from albert.formats import pretrained
from albert.text import vocabulary
from albert.tokenization import FullTokenizer

sys.path += [str(REPO / "scripts"), str(REPO / "scripts/maintainers")]

import fine_tuning_gains  # noqa: E402
from ablation import report, runs  # noqa: E402
from ablation.grid import Grid  # noqa: E402
from ablation.runs import Result  # noqa: E402

GRIDS = {path.stem: path for path in sorted((REPO / "configs/ablations").glob("*.json"))}
RESULTS = (REPO / "docs/evidence/results.md").read_text("utf-8")


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


def test_a_grid_that_cannot_be_used_is_told_by_its_key(tmp_path):
    whole = json.loads(GRIDS["table4"].read_text())
    for change, said in (
        ({"settings": {"a": {"paper": 1, "colour": 2}}}, "setting a: unknown colour"),
        ({"settings": {"a": {"start": "b"}, "b": {}}}, "setting a starts from b"),
        ({"settings": {"a": {}, "b": {"start": "a", "model": "m"}}}, "give one of start and model"),
        ({"titel": "x"}, "missing or unknown: titel"),
        ({"tokens": 0}, "tokens must be a whole number"),
    ):
        (tmp_path / "grid.json").write_text(json.dumps(whole | change))
        with pytest.raises(UserError, match=said):
            Grid.read(str(tmp_path / "grid.json"))


def test_the_report_judges_the_order_against_the_spread_of_the_seeds(tmp_path):
    grid = json.loads(GRIDS["table4"].read_text()) | {
        "settings": {"a": {"paper": 80.0}, "b": {"paper": 81.0}}, "seeds": [0, 1],
        "primary": "masked_lm_loss", "metrics": ["masked_lm_loss", "unmeasured"],
    }
    (tmp_path / "grid.json").write_text(json.dumps(grid))

    def told(**losses):
        report.write(Grid.read(str(tmp_path / "grid.json")), [
            Result(name, seed, {"masked_lm_loss": curve[-1]}, {}, [
                {"minutes": 1.0 + i, "tokens": i, "masked_lm_loss": loss}
                for i, loss in enumerate(curve)
            ], 10, 3.0) for name, curves in losses.items() for seed, curve in enumerate(curves)
        ], str(tmp_path))
        return (tmp_path / "report.md").read_text()

    text = told(a=[[5, 4, 3.2], [5, 4, 2.8]], b=[[4, 3, 2], [3, 2, 1]])
    assert "- as in the paper: 1 (b > a)" in text and "unmeasured" not in text
    assert "- the other way round: 1 (b > a)" in told(a=[[2], [2.1]], b=[[3], [3.1]])
    assert "- within the error: 1 (b > a)" in told(a=[[2], [3.1]], b=[[2.1], [3]])
    assert "runs missing: b (1)" in told(a=[[3], [3.1]], b=[[2]])
    # The second line occurs twice: the run was stopped after it, and resumed from the first.
    lines = [{"step": 100, "seconds": 60.0}, {"step": 200, "seconds": 60.0},
             {"step": 200, "seconds": 60.0}, {"step": 300, "seconds": 120.0}]
    assert [runs.minutes_to(lines, step) for step in (0, 50, 100, 250)] == [0, 0.5, 1, 4]


def ablate(folder, *more, **grid):
    """Runs a grid of one-layer models for 6 steps of 128 tokens each."""
    (folder / "grid.json").write_text(json.dumps({
        "title": "Depth", "about": "Tiny.", "paper_measure": "none", "primary": "masked_lm_loss",
        "metrics": ["masked_lm_loss"], "seeds": [1], "tokens": 16 * 8 * 6,
        "config": {"embedding_size": 8, "hidden_size": 16, "num_attention_heads": 2,
                   "intermediate_size": 16, "max_position_embeddings": 16, "num_hidden_layers": 1},
        "data": {"max_seq_length": 16, "static_masks": False, "held_out_fraction": 0.2},
        "train": {"train_batch_size": 8, "eval_batch_size": 8, "max_eval_steps": 2,
                  "learning_rate": 0.01, "max_predictions_per_seq": 3, "masked_lm_budget": 0.2,
                  "num_evaluations": 2, "log_steps": 2},
    } | grid))
    return program(
        REPO / "scripts/ablate.py", f"--grid={folder / 'grid.json'}",
        f"--input_file={folder / 'corpus.txt'}", f"--spm_model_file={folder / 'spm.model'}",
        f"--output_dir={folder / 'out'}", *more,
    )


@pytest.fixture
def corpus(tmp_path):
    """A corpus with its vocabulary, and a model with another vocabulary."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=4)) for _ in range(60)]
    texts = ["\n".join(" ".join(rng.choices(words, k=8)) for _ in range(8)) for _ in range(60)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    for name, size in (("spm", 80), ("other", 60)):
        content = vocabulary.train(
            [str(tmp_path / "corpus.txt")], vocabulary.Settings(vocab_size=size)
        )
        vocabulary.write(str(tmp_path / name), content)
    tokenizer = FullTokenizer(None, spm_model_file=str(tmp_path / "other.model"))
    config = AlbertConfig(
        vocab_size=60, embedding_size=8, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=16, max_position_embeddings=16,
    )
    pretrained.save(modeling.AlbertForPreTraining(config), str(tmp_path / "known"), tokenizer)
    return tmp_path


@pytest.mark.slow
def test_a_grid_runs_is_gone_on_with_and_refuses_other_settings(corpus):
    settings = {
        "one": {"paper": 1},
        "two": {"config": {"num_hidden_layers": 2}, "paper": 2, "start": "one"},
        "from a model": {"paper": 4, "model": str(corpus / "known")},
    }
    grid = {
        "settings": settings, "evaluations": {"nsp": {"sentence_objective": "nsp"}},
        "metrics": ["masked_lm_loss"],
    }
    assert ablate(corpus, "--max_minutes=0.0001", **grid).returncode == 0
    result = ablate(corpus, **grid)
    assert result.returncode == 0, result.stderr
    out = corpus / "out"
    found = json.loads((out / "results.json").read_text())
    assert [one["setting"] for one in found] == list(settings)
    for one in found:
        assert 0 < one["metrics"]["masked_lm_loss"] < 7
        assert 0 <= one["others"]["nsp"]["sentence_order_accuracy"] <= 1
        assert [point["tokens"] for point in one["curve"]] == [16 * 8 * 3, 16 * 8 * 6]
    assert "attention_1" in (out / "runs/two/1/model/warm_start.json").read_text()
    # With the grid's vocabulary.
    started = json.loads((out / "runs/from_a_model/1/model/warm_start.json").read_text())
    assert not started["new"] and "starts" in started["checkpoint"]
    # Finished runs are not repeated; missing ones are made.
    kept = (out / "runs/one/1/model/metrics.jsonl").stat().st_mtime_ns
    shutil.rmtree(out / "runs/two")
    assert ablate(corpus, **grid).returncode == 0
    assert (out / "runs/one/1/model/metrics.jsonl").stat().st_mtime_ns == kept
    assert len(json.loads((out / "results.json").read_text())) == 3
    other = ablate(corpus, "--tokens=1000", **grid)
    assert other.returncode == 2
    assert "use another --output_dir" in assert_one_clear_line(other.stderr)


# --- The gains of small_en ---


def test_the_page_of_results_has_the_tables_that_the_tools_write():
    for evidence in fine_tuning_gains.EVIDENCE:
        found = json.loads((REPO / f"docs/evidence/{evidence}").read_text("utf-8"))
        assert fine_tuning_gains.table(found) in RESULTS
    found = json.loads((REPO / "docs/evidence/cooccurrence.json").read_text("utf-8"))
    results = [Result(**one) for one in found]
    assert report.table(Grid.read(str(GRIDS["cooccurrence"])), results) in RESULTS
