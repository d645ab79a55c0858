"""scripts/ablate.py: grids that can be run, gone on with, and told honestly."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import jobs
from helpers import REPO, assert_one_clear_line, run_here

from albert import create_pretraining_data, modeling, run_pretraining
from albert.cli import flags, run_flags
from albert.config import AlbertConfig
from albert.formats import pretrained
from albert.storage import shipped
from albert.text import vocabulary
from albert.tokenization import FullTokenizer

sys.path.append(str(REPO / "scripts"))

import run_files  # noqa: E402
from ablation import report, runs  # noqa: E402
from ablation.grid import Grid  # noqa: E402
from ablation.runs import Result  # noqa: E402

GRIDS = sorted((REPO / "configs/ablations").glob("*.json"))


def known(define_flags):
    values = flags.FlagValues()
    define_flags(values)
    return set(values)


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_every_grid_can_be_run_and_differs_as_it_says(path):
    grid = Grid.read(str(path))
    shares = {"warmup_share", "num_evaluations", "depth_shares"}
    train = known(run_pretraining.define_flags) | shares
    data = known(create_pretraining_data.define_flags)
    seen = []
    for setting in grid.settings:
        setting.architecture(30000)
        assert ";" not in setting.name  # which --settings has between names
        for part in (setting, *setting.stages):
            assert set(part.train) <= train and set(part.data) <= data
        assert (setting.paper is not None) == path.stem.startswith("table")
        seen.append((setting.config, setting.data, setting.train, setting.stages))
    assert all(one != two for i, one in enumerate(seen) for two in seen[:i])
    assert {"primary", "metrics"} <= {f.name for f in dataclasses.fields(grid)}
    assert grid.primary in grid.metrics


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_every_evaluation_of_a_run_masks_as_the_run_does(path, tmp_path, monkeypatch):
    """The columns of a table compare accuracies on inputs that are masked alike."""
    grid = Grid.read(str(path))
    grid = dataclasses.replace(grid, evaluations={"nsp": {"sentence_objective": "nsp"}})
    called = {}

    def once(self, folder, what, module, given):
        called[what] = given
        return True

    monkeypatch.setattr(runs.Work, "_once", once)
    monkeypatch.setattr(runs.Work, "_last_checkpoint", staticmethod(lambda folder: folder))
    work = runs.Work(grid, ["text"], shipped.vocabulary_of("small_en"), None, str(tmp_path), {}, {})
    for setting in grid.settings:
        work._run(setting, 1)
        what = f"{setting.name}, seed 1"
        run, other = called[what], called[f"{what}, on nsp"]
        decisive = {*run_flags.MASKING_FLAGS, "masked_lm_budget", "last_masked_lm_budget",
                    "max_predictions_per_seq", "max_seq_length"}
        assert {k: v for k, v in run.items() if k in decisive} == {
            k: v for k, v in other.items() if k in decisive
        }


def test_the_architecture_may_be_like_one_with_a_name():
    [setting, *_] = Grid.read(str(REPO / "configs/ablations/own_text.json")).settings
    known = AlbertConfig.from_flag("small_en")
    assert setting.architecture(500) == dataclasses.replace(known, vocab_size=500)
    deeper = dataclasses.replace(setting, config={"like": "small_en", "num_hidden_layers": 5})
    assert deeper.architecture(500) == dataclasses.replace(
        known, vocab_size=500, num_hidden_layers=5)


def test_there_is_a_grid_of_each_table_at_both_scales_and_of_each_part_of_the_recipe():
    names = {path.stem for path in GRIDS}
    tables = {f"table{n}{scale}" for n in (3, 4, 5, 11, 12) for scale in ("", "_paper")}
    recipe = {"masking_share", "ngram", "replacement", "sentence_order", "packed_rows"}
    assert names == tables | recipe | {
        "learning_per_hour", "length_curriculum", "own_text", "one_hour"
    }


@pytest.mark.parametrize("change,said", [
    ({"settings": {"a": {"paper": 1, "colour": 2}}}, "setting a: unknown colour"),
    ({"settings": {"a": {"start": "b"}, "b": {}}}, "setting a starts from b"),
    ({"settings": {"a": {}, "b": {"start": "a", "model": "m"}}}, "give one of start and model"),
    ({"titel": "x"}, "missing or unknown: titel"),
    ({"tokens": 0}, "tokens must be a whole number"),
    ({"settings": []}, "settings must be an object"),
    ({"settings": {"a": {"stages": {}}}}, "a.stages must be a list"),
    ({"settings": {"a": {"stages": [{}]}}}, "stages[0]: until must be a share"),
    ({"settings": {"a": {"stages": [{"until": 0.5}, {"until": 0.4}]}}}, "stages[1]: until must"),
    ({"settings": {"a": {"stages": [{"until": 0.5, "x": 1}]}}}, "stages[0]: unknown x"),
    ({"settings": {"a": {"stages": [{"until": 0.5, "data": {"max_seq_length": 8}}]}}},
     "max_seq_length x train_batch_size must be as afterwards"),
])
def test_a_grid_that_cannot_be_used_is_told_by_its_key(tmp_path, change, said):
    values = json.loads((REPO / "configs/ablations/table4.json").read_text()) | change
    (tmp_path / "grid.json").write_text(json.dumps(values))
    result = ablate(tmp_path, grid=tmp_path / "grid.json", spm="none")
    assert result.returncode == 2
    assert said in assert_one_clear_line(result.stderr)


def results_of(values):
    """Results of settings a, b... with these losses of the seeds."""
    return [
        Result(name, seed, {"masked_lm_loss": loss}, {}, [], 10, 1.0)
        for name, losses in zip("abc", values, strict=False) for seed, loss in enumerate(losses)
    ]


def grid_of(papers):
    settings = {name: {"paper": paper} for name, paper in zip("abc", papers, strict=False)}
    values = json.loads((REPO / "configs/ablations/table4.json").read_text())
    return values | {"settings": settings, "metrics": ["masked_lm_loss", "unmeasured"],
                     "seeds": [0, 1]}


@pytest.mark.parametrize("losses,where", [
    (([3.0, 3.1], [2.0, 2.1]), "as in the paper: 1 (b > a)"),
    (([2.0, 2.1], [3.0, 3.1]), "the other way round: 1 (b > a)"),
    (([2.0, 3.1], [2.1, 3.0]), "within the error: 1 (b > a)"),
    (([2.0], [3.0]), "within the error: 1 (b > a)"),
])
def test_the_order_is_judged_against_the_spread_of_the_seeds(tmp_path, losses, where):
    (tmp_path / "grid.json").write_text(json.dumps(grid_of((80.0, 81.0))))
    grid = Grid.read(str(tmp_path / "grid.json"))
    report.write(grid, results_of(losses), str(tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert f"- {where}" in text
    assert "unmeasured" not in text  # no column for what no run has
    mean = np.mean(losses[0])
    assert f"| a | 10 | {mean:.4g}" in text
    assert len(json.loads((tmp_path / "results.json").read_text())) == sum(map(len, losses))


def test_runs_that_are_missing_are_told(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps(grid_of((80.0, 81.0))))
    grid = Grid.read(str(tmp_path / "grid.json"))
    report.write(grid, results_of(([3.0, 3.1], [2.0])), str(tmp_path))
    assert "runs missing: b (1)" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("step,minutes", [(0, 0.0), (50, 0.5), (100, 1.0), (250, 4.0), (300, 5.0)])
def test_the_time_of_an_evaluation_is_between_the_log_lines_around_it(step, minutes):
    # The second line twice: the run was stopped after it, and went on from the first.
    lines = [{"step": 100, "seconds": 60.0}, {"step": 200, "seconds": 60.0},
             {"step": 200, "seconds": 60.0}, {"step": 300, "seconds": 120.0}]
    assert runs.minutes_to(lines, step) == minutes


@pytest.mark.parametrize("goal,minutes", [(3.0, 2.0), (2.5, 3.0), (5.0, 1.0), (0.5, None)])
def test_the_time_to_a_value_is_between_the_points_of_the_curve(goal, minutes):
    curve = [{"minutes": m, "masked_lm_loss": x} for m, x in ((1, 4.0), (2, 3.0), (4, 2.0))]
    assert report.time_to(curve, "masked_lm_loss", goal, rises=False) == minutes
    upward = [{"minutes": p["minutes"], "accuracy": -p["masked_lm_loss"]} for p in curve]
    assert report.time_to(upward, "accuracy", -goal, rises=True) == minutes


def test_over_minutes_the_report_tells_who_reaches_the_first_ones_end_and_when(tmp_path):
    values = grid_of((80.0, 81.0)) | {"over": "minutes", "primary": "pairs_accuracy",
                                      "metrics": ["pairs_accuracy", "masked_lm_loss"]}
    (tmp_path / "grid.json").write_text(json.dumps(values))
    grid = Grid.read(str(tmp_path / "grid.json"))

    def result(name, seed, losses):
        curve = [{"minutes": 1.0 + i, "tokens": i, "masked_lm_loss": x, "pairs_accuracy": 1 / x}
                 for i, x in enumerate(losses)]
        last = {name: curve[-1][name] for name in ("masked_lm_loss", "pairs_accuracy")}
        return Result(name, seed, last, {}, curve, 10, 3.0)

    results = [result("a", 0, [5, 4, 3.2]), result("a", 1, [5, 4, 2.8]),
               result("b", 0, [4, 3, 2]), result("b", 1, [3, 2, 1])]
    report.write(grid, results, str(tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert "Minutes to a masked lm loss of 3, with which a ends" in text
    assert "| a | 3.0, 3.0 | 3.0 | 1.00 |" in text
    assert "| b | 2.0, 1.0 | 1.5 | 0.50 |" in text
    assert text.count("## Minutes to") == 2
    assert "Minutes to a pairs accuracy of 0.3348, with which a ends" in text


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no way to bind cores here")
def test_parallel_runs_have_cores_of_their_own():
    all_of_them = os.sched_getaffinity(0)
    if len(all_of_them) < 2:
        pytest.skip("one core")
    told = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
    together = threading.Barrier(2)

    def cores_of_a_command(_):
        together.wait()  # each thread has one
        return set(map(int, subprocess.run(told, capture_output=True).stdout.split()))

    with ThreadPoolExecutor(2, initializer=runs.own_cores(2)) as pool:
        one, two = pool.map(cores_of_a_command, range(2))
    assert one and two and not one & two and one | two <= all_of_them
    assert os.sched_getaffinity(0) == all_of_them
    assert runs.own_cores(1) is None and runs.own_cores(len(all_of_them) + 1) is None


# --- Whole grids ---


def ablate(folder, *more, grid, spm):
    return subprocess.run(
        [sys.executable, REPO / "scripts/ablate.py", f"--grid={grid}",
         f"--input_file={folder / 'corpus.txt'}", f"--spm_model_file={spm}",
         f"--output_dir={folder / 'out'}", *more],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(REPO)}, capture_output=True, text=True,
        timeout=500,
    )


@pytest.fixture
def tiny(tmp_path):
    """A corpus, its vocabulary and a grid of two depths, the second from the first."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 4)) for _ in range(60)]
    texts = ["\n".join(" ".join(rng.choice(words, 8)) for _ in range(8)) for _ in range(60)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts) + "\n")
    for name, size in (("spm", 80), ("other", 60)):
        settings = vocabulary.Settings(vocab_size=size)
        vocabulary.publish(
            str(tmp_path / name), vocabulary.train([str(tmp_path / "corpus.txt")], settings)
        )
    tokenizer = FullTokenizer(None, spm_model_file=str(tmp_path / "other.model"))
    known = AlbertConfig(
        vocab_size=60, embedding_size=8, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=16, max_position_embeddings=16,
    )
    pretrained.save(modeling.AlbertForPreTraining(known), str(tmp_path / "known"), tokenizer)
    (tmp_path / "grid.json").write_text(json.dumps({
        "title": "Depth", "about": "Tiny.", "paper_measure": "none", "primary": "masked_lm_loss",
        "metrics": ["masked_lm_loss", "nsp/sentence_order_accuracy"], "seeds": [1],
        "tokens": 16 * 8 * 6, "evaluations": {"nsp": {"sentence_objective": "nsp"}},
        "config": {"embedding_size": 8, "hidden_size": 16, "num_attention_heads": 2,
                   "intermediate_size": 16, "max_position_embeddings": 16},
        "data": {"max_seq_length": 16, "static_masks": False, "held_out_fraction": 0.2},
        "train": {"train_batch_size": 8, "eval_batch_size": 8, "max_eval_steps": 2,
                  "learning_rate": 0.01, "max_predictions_per_seq": 3, "masked_lm_budget": 0.2,
                  "num_evaluations": 2, "log_steps": 2},
        "settings": {"one": {"config": {"num_hidden_layers": 1}, "paper": 1},
                     "two": {"config": {"num_hidden_layers": 2}, "paper": 2, "start": "one",
                             "train": {"depth_shares": {"1": 0.5}}},
                     "from a model": {"config": {"num_hidden_layers": 1}, "paper": 4,
                                      "model": str(tmp_path / "known")},
                     "short first": {"config": {"num_hidden_layers": 1}, "paper": 3, "stages": [{
                         "until": 0.5, "data": {"max_seq_length": 8},
                         "train": {"train_batch_size": 16, "max_predictions_per_seq": 2}}]}},
    }))
    return tmp_path


@pytest.mark.slow
def test_a_grid_runs_is_gone_on_with_and_refuses_other_settings(tiny):
    options = dict(grid=tiny / "grid.json", spm=tiny / "spm.model")
    assert ablate(tiny, "--max_minutes=0.0001", **options).returncode == 0
    assert not (tiny / "out/results.json").exists() or \
        json.loads((tiny / "out/results.json").read_text()) == []
    result = ablate(tiny, **options)
    assert result.returncode == 0, result.stderr
    found = json.loads((tiny / "out/results.json").read_text())
    assert [one["setting"] for one in found] == ["one", "two", "from a model", "short first"]
    assert all(0 < one["metrics"]["masked_lm_loss"] < 7 for one in found)
    assert all(0 <= one["others"]["nsp"]["sentence_order_accuracy"] <= 1 for one in found)
    assert (tiny / "out/curves.png").stat().st_size > 5000
    started = (tiny / "out/runs/two/1/model/warm_start.json").read_text()
    assert "attention_1" in started
    # With the pieces of the grid.
    started = json.loads((tiny / "out/runs/from_a_model/1/model/warm_start.json").read_text())
    assert not started["new"] and "starts" in started["checkpoint"]
    grown = json.loads((tiny / "out/runs/two/1/command.json").read_text())
    assert grown["flags"]["depth_schedule"] == "1:3"
    # Half of the steps on short rows, the other half, evaluated, on those of the grid.
    staged = tiny / "out/runs/short_first/1"
    told = [json.loads((staged / f"{x}command.json").read_text()) for x in ("stage-1/", "")]
    assert [one["flags"]["max_seq_length"] for one in told] == [8, 16]
    seconds = sum(one["seconds"] for one in told)
    assert found[-1]["minutes"] == pytest.approx(seconds / 60)
    lines = [json.loads(x) for x in (staged / "model/metrics.jsonl").read_text().splitlines()]
    steps = [(line["kind"], line["step"]) for line in lines]
    trained, evaluated = ([step for kind, step in steps if kind == k] for k in ("train", "eval"))
    assert trained == [2, 3, 4, 6] and evaluated == [3, 6]
    # What is done is not done again; what is missing is.
    kept = (tiny / "out/runs/one/1/model/metrics.jsonl").stat().st_mtime_ns
    shutil.rmtree(tiny / "out/runs/two")
    assert ablate(tiny, **options).returncode == 0
    assert (tiny / "out/runs/one/1/model/metrics.jsonl").stat().st_mtime_ns == kept
    assert len(json.loads((tiny / "out/results.json").read_text())) == 4
    other = ablate(tiny, "--tokens=1000", **options)
    assert other.returncode == 2
    assert "use another --output_dir" in assert_one_clear_line(other.stderr)


@pytest.mark.slow
def test_with_pairs_every_evaluation_of_a_run_tells_which_sentences_it_prefers(tiny):
    words = (tiny / "corpus.txt").read_text().split()
    with open(tiny / "pairs.jsonl", "w", encoding="utf-8") as stream:
        for good, bad in zip(words[:6], words[6:12], strict=True):
            stream.write(json.dumps({"sentence_good": good, "sentence_bad": bad, "UID": "a"}) + "\n")
    grid = json.loads((tiny / "grid.json").read_text())
    grid |= {"settings": {"short first": grid["settings"]["short first"]}, "evaluations": {},
             "metrics": ["masked_lm_loss", "pairs_accuracy"]}
    (tiny / "grid.json").write_text(json.dumps(grid))
    options = dict(grid=tiny / "grid.json", spm=tiny / "spm.model")
    alone = ablate(tiny, "--eval_pairs_per_paradigm=5", **options)
    assert alone.returncode == 2
    assert "goes with --eval_pairs" in assert_one_clear_line(alone.stderr)
    result = ablate(tiny, f"--eval_pairs={tiny / 'pairs.jsonl'}", **options)
    assert result.returncode == 0, result.stderr
    [found] = json.loads((tiny / "out/results.json").read_text())
    assert 0 <= found["metrics"]["pairs_accuracy"] <= 1
    assert all("pairs_accuracy" in point for point in found["curve"])
    assert "pairs accuracy" in (tiny / "out/report.md").read_text()


@pytest.mark.slow
def test_with_glue_dir_every_run_is_fine_tuned_on_the_grids_tasks_too(tiny):
    assert run_here(jobs.script("make_glue_smoke"), f"--output_dir={tiny / 'smoke'}") == 0
    grid = json.loads((tiny / "grid.json").read_text())
    probe = {"task_name": "sst-2", "train_step": 2, "warmup_step": 0, "train_batch_size": 4,
             "save_checkpoints_steps": 2, "max_seq_length": 12}
    grid |= {"settings": {"one": grid["settings"]["one"]}, "evaluations": {},
             "probes": {"sst-2": probe}, "metrics": ["masked_lm_loss", "sst-2/eval_accuracy"]}
    (tiny / "grid.json").write_text(json.dumps(grid))
    options = dict(grid=tiny / "grid.json", spm=tiny / "spm.model")
    absent = ablate(tiny, f"--glue_dir={tiny / 'absent'}", **options)
    assert absent.returncode == 2
    assert "--glue_dir: no such directory" in assert_one_clear_line(absent.stderr)
    result = ablate(tiny, f"--glue_dir={tiny / 'smoke/glue'}", **options)
    assert result.returncode == 0, result.stderr
    [found] = json.loads((tiny / "out/results.json").read_text())
    said = run_files.read_results(str(tiny / "out/runs/one/1/probe-sst-2/model"))
    assert found["others"]["sst-2"]["eval_accuracy"] == said["eval_accuracy"]
    assert "sst-2/eval accuracy" in (tiny / "out/report.md").read_text()
    # It starts from what was pretrained.
    started = tiny / "out/runs/one/1/probe-sst-2/model/warm_start.json"
    assert "bert/embeddings/word_embeddings" in started.read_text()
