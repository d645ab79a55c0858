"""A benchmark compares equal work only, by turns, and says how fast each side was."""

import json
import os
import subprocess
import sys
import types

import apart
import pytest
from helpers import NEEDS_JAX, REPO, assert_one_clear_line, write_config

from albert.errors import DataError, FlagError, UserError

sys.path.insert(0, str(REPO / "scripts/maintainers"))

from benchmarks import model_work, turns  # noqa: E402

PROGRAM = """
import os, sys, time
sys.path.insert(0, {folder!r})
import serve

def prepare(spec):
    if spec.get("fails"):
        raise MemoryError("no room")
    turns = []
    print("libraries may print")
    def turn():
        turns.append(1)
        if len(turns) > spec.get("dies_after", 99):
            os.kill(os.getpid(), 9)
        time.sleep(spec["seconds"])
        with open(spec["log"], "a") as stream:
            stream.write(spec["name"])
    return turn, {{"loss": spec["loss"]}} | spec.get("more", {{}})

serve.serve(prepare)
"""


@pytest.fixture
def side(tmp_path):
    program = tmp_path / "side.py"
    program.write_text(PROGRAM.format(folder=turns.FOLDER))

    def make(name, **spec):
        defaults = {"seconds": 0.01, "loss": [1.0, 2.0], "log": str(tmp_path / "log")}
        spec = {"name": name} | defaults | spec
        return turns.Side(name, str(program), spec)

    return make


def test_sides_take_turns_and_the_ratio_is_of_their_medians(side, tmp_path):
    sides = [side("a"), side("b", seconds=0.1, loss=[1.0, 2.0001])]
    results = turns.compare(sides, str(tmp_path / "work"), rounds=3, tolerance=1e-3, work=10)
    assert (tmp_path / "log").read_text() == "ab" + "ababab"  # one to warm up
    assert results["a"]["ratio"] == 1.0 and results["b"]["ratio"] < 0.5
    assert results["b"]["median_seconds"] >= 0.1
    assert results["b"]["rate"] == pytest.approx(10 / results["b"]["median_seconds"])
    assert results["b"]["largest_difference"] == pytest.approx(5e-5, rel=1e-2)
    assert results["a"]["peak_bytes"] > 1 << 20


def test_unequal_work_is_not_timed(side, tmp_path):
    sides = [side("a"), side("b", loss=[1.0, 2.1])]
    with pytest.raises(DataError, match="b computes something else than a: differs by 0.05"):
        turns.compare(sides, str(tmp_path / "work"), rounds=3, tolerance=1e-3)
    assert (tmp_path / "log").read_text() == "ab"


def test_a_side_that_fails_is_named_with_its_last_line(side, tmp_path):
    sides = [side("a"), side("b", fails=True)]
    with pytest.raises(UserError, match="b ended: MemoryError: no room"):
        turns.compare(sides, str(tmp_path / "w"), rounds=1, tolerance=0)


def test_a_side_that_is_killed_is_one_clear_line(side, tmp_path):
    for dies_after in (1, 2):
        sides = [side("a"), side("b", dies_after=dies_after)]
        with pytest.raises(UserError, match="b ended: it was killed; is there enough memory"):
            turns.compare(sides, str(tmp_path / "w"), rounds=3, tolerance=0)


def test_sides_too_large_together_are_measured_one_after_another(side, tmp_path):
    sides = [side("a"), side("b")]
    results = turns.compare(
        sides, str(tmp_path / "w"), rounds=2, tolerance=1e-3, at_once=False
    )
    assert (tmp_path / "log").read_text() == "aaabbb"
    assert set(results) == {"a", "b"}
    with pytest.raises(DataError, match="c computes something else"):
        turns.compare([*sides, side("c", loss=[9.0])], str(tmp_path / "w"), rounds=1,
                      tolerance=1e-3, at_once=False)


def test_an_unknown_benchmark_is_refused_with_the_known_ones():
    command = [sys.executable, str(REPO / "scripts/maintainers/benchmark.py"), "speed"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the first argument is one of attention, pretrain_step")


def benchmark(name, folder, *more, timeout=900, env=None):
    """Runs a benchmark of a tiny model for one round; returns its results and its table."""
    config = write_config(folder, vocab_size=60, max_position_embeddings=64)
    done = subprocess.run(
        [sys.executable, str(REPO / "scripts/maintainers/benchmark.py"), name, "--rounds=1",
         f"--albert_config_file={config}", f"--output_dir={folder}", *more],
        capture_output=True, text=True, timeout=timeout, env=os.environ | (env or {}),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    table = (folder / f"{name}.md").read_text()
    return json.loads((folder / f"{name}.json").read_text())["results"], table


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "pretrain_step", "inference", "memory"])
def test_each_benchmark_of_a_model_runs(name, tmp_path):
    results, table = benchmark(
        name, tmp_path, "--batch_sizes=2", "--lengths=48", "--precisions=float32,bfloat16"
    )
    assert {r["precision"] for r in results} == {"float32", "bfloat16"}
    assert table.count("\n| ") >= 4
    if name == "inference":
        assert "ours, constant weights" in results[0]["sides"]
    if name == "memory":
        assert set(results[0]["sides"]) >= {"ours", "ours, remat", "ours, accumulation"}


@pytest.mark.slow
def test_int8_tells_its_time_and_what_it_changes(tmp_path, golden_path):
    for package in ("tf2onnx", "onnxruntime"):
        pytest.importorskip(package, reason="the [onnx] extra is not installed")
    (tmp_path / "large").mkdir()
    config = write_config(tmp_path / "large", vocab_size=30000)
    texts = tmp_path / "dev.tsv"
    texts.write_text("sentence\tlabel\n" + "a fine film\t1\nit rains\t0\n" * 4)
    results, table = benchmark(
        "int8", tmp_path, "--lengths=16", f"--glue_file={texts}",
        f"--spm_model_file={golden_path('spm/30k-clean.model')}",
        f"--albert_config_file={config}",
    )
    assert len(results["sides"]) == 5 and "8 texts" in table
    for name, one in results["sides"].items():
        assert 0 <= one["accuracy"] <= 1
        assert (one["largest_logit_difference"] > 1e-6) == name.endswith("int8")


@pytest.mark.slow
@NEEDS_JAX
@pytest.mark.parametrize("name", ["pretrain_step", "inference"])
def test_a_benchmark_on_jax_needs_no_tensorflow(name, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('not here')\n")
    results, table = benchmark(
        name, tmp_path, "--engine=jax", "--batch_sizes=2", "--lengths=48",
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert {*results[0]["sides"]} == {"ours", "ours, fused"} and "ours, fused" in table


@pytest.mark.slow
def test_the_cost_of_each_thing_that_grows_is_told_and_drawn(tmp_path, golden_path):
    curves, _ = benchmark(
        "scaling", tmp_path, "--batch_sizes=2,4", "--lengths=32,48", "--layers=1,2",
        "--corpus_bytes=20000,40000", *texts(golden_path),
    )
    assert {k: [p["value"] for p in v] for k, v in curves.items()} == {
        "length": [32, 48], "batch": [2, 4], "layers": [1, 2], "corpus": [20000, 40000],
    }
    # Twice the layers is nearly twice the work of a token; twice the batch is none more.
    assert curves["layers"][1]["work"] > 1.5 * curves["layers"][0]["work"]
    assert curves["batch"][1]["work"] == curves["batch"][0]["work"]
    assert (tmp_path / "scaling.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.slow
def test_a_start_is_timed_part_by_part(tmp_path):
    results, _ = benchmark("startup", tmp_path, "--batch_sizes=2", "--lengths=48")
    assert set(results) == {"ours", "ours, XLA", "the original's graph"}
    for one in results.values():
        assert set(one["parts"]) == {"import", "build", "first step"}
        assert sum(one["parts"].values()) <= one["median_seconds"]
        assert min(one["parts"].values()) > 0


def texts(golden_path):
    return (f"--input_file={golden_path('pretraining_data/corpus.txt')}",
            f"--spm_model_file={golden_path('spm/30k-clean.model')}")


def test_the_ids_of_both_tokenizers_are_compared(tmp_path, golden_path):
    apart.needs("tokenizers", extra="interop")
    (tmp_path / "bin").mkdir()  # this interpreter, as that of an environment with the peers
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    results, table = benchmark(
        "tokenize", tmp_path, f"--peers_env={tmp_path}", "--corpus_bytes=30000", *texts(golden_path)
    )
    assert results["tokenizers"]["largest_difference"] == 0
    assert results["ours"]["rate"] > 0 and "identical ids" in table


@pytest.mark.slow
def test_records_of_the_plain_recipe_are_those_of_the_original_draws(tmp_path, golden_path):
    results, _ = benchmark(
        "make_records", tmp_path, "--corpus_bytes=60000", "--lengths=64", *texts(golden_path)
    )
    assert set(results) == {"plain Python", "ours", "ours, --original_draw_order"}
    assert len({one["instances"] for one in results.values()}) == 1
    # Every record, and not only the statistics: compared in its order.
    plain, drawn = results["plain Python"], results["ours, --original_draw_order"]
    assert drawn["largest_difference"] == plain["largest_difference"] == 0
    assert plain["instances"] == drawn["instances"] > 100
    assert 0 < results["ours"]["largest_difference"] <= 0.1


@pytest.mark.slow
def test_cores_for_the_accelerators_follow_from_the_rate_and_the_arithmetic(tmp_path):
    [result], table = benchmark(
        "input_pipeline", tmp_path, "--batch_sizes=8", "--lengths=48", "--examples=40",
        "--accelerators=2", "--utilization=0.5",
    )
    wanted = 2 * 989.4e12 * 0.5 / result["flops_per_token"]
    assert result["tokens_per_second_wanted"] == pytest.approx(wanted)
    assert result["cores"] == pytest.approx(wanted / (result["sides"]["ours"]["rate"] * 48))
    assert "2 accelerators x 989.4 TFLOP/s x 0.5" in table
    for side in ("record by record", "ours, from 20 files"):
        assert result["sides"][side]["largest_difference"] == 0
    on_the_fly = result["sides"]["masks on the fly, to masks in the records"]
    assert on_the_fly["largest_difference"] == 0 < on_the_fly["ratio"]


def test_a_bad_number_is_one_clear_line(tmp_path):
    command = [sys.executable, str(REPO / "scripts/maintainers/benchmark.py"), "input_pipeline",
               f"--output_dir={tmp_path}"]
    for flag, message in (
        ("--lengths=0", "--lengths must be above zero: 0"),
        ("--precisions=float8", "--precisions: float8 is not among float32, bfloat16"),
        ("--utilization=2", "--utilization=2: must be a number, above 0, at most 1"),
    ):
        done = subprocess.run([*command, flag], capture_output=True, text=True)
        assert done.returncode == 2 and message in assert_one_clear_line(done.stderr)


def test_an_epoch_on_other_texts_for_each_side_is_refused(tmp_path, golden_path):
    texts = tmp_path / "texts.tsv"
    texts.write_text("sentence\tlabel\n" + "a good one\t1\n" * 7)
    done = subprocess.run(
        [sys.executable, str(REPO / "scripts/maintainers/benchmark.py"), "finetune", "--batch_sizes=2",
         f"--glue_file={texts}", f"--output_dir={tmp_path}",
         f"--spm_model_file={golden_path('spm/30k-clean.model')}"],
        capture_output=True, text=True,
    )
    assert done.returncode == 2
    assert "7 texts are not whole batches of 2" in assert_one_clear_line(done.stderr)


def test_of_a_models_sides_those_named_are_timed_alone():
    values = types.SimpleNamespace(peers_env=None, device="cpu", engine="jax", sides=None)
    ours = {"ours, packed": {}, "ours, padded": {}, "ours": {}}

    def chosen(sides):
        values.sides = sides
        found = model_work.model_sides(values, {"ours": "m", "theirs": None}, {}, ours, {})
        return [side.name for side in found]

    assert chosen(None) == [*ours]
    assert chosen("ours; ours, packed") == ["ours, packed", "ours"]
    with pytest.raises(FlagError, match="--sides: no theirs; there are ours, packed; ours"):
        chosen("theirs")


def test_sides_of_different_work_are_timed_without_comparison(side, tmp_path):
    sides = [side("a"), side("b", seconds=0.05, loss=[9.0])]
    results = turns.compare(
        sides, str(tmp_path / "work"), rounds=1, tolerance=None, work=[10, 100]
    )
    assert results["b"]["largest_difference"] is None
    assert results["b"]["rate"] == pytest.approx(100 / results["b"]["median_seconds"])


def test_each_kind_of_output_has_its_tolerance(side, tmp_path):
    sides = [side("a"), side("b", loss=[1.0, 2.1])]
    for tolerance in ({"loss": 0.1}, {"loss": 0.01}):
        work = (sides, str(tmp_path / "work"))
        if tolerance["loss"] == 0.1:
            turns.compare(*work, rounds=1, tolerance=tolerance)
        else:
            with pytest.raises(DataError, match="of the largest value in loss"):
                turns.compare(*work, rounds=1, tolerance=tolerance)
    longer = [side("a"), side("b", loss=[1.0, 2.0, 3.0])]
    with pytest.raises(DataError, match="differs by inf"):
        turns.compare(longer, str(tmp_path / "more"), rounds=1, tolerance=1.0)


def test_a_mean_of_draws_may_differ_as_chance_lets_it(side, tmp_path):
    def mean(value, error):
        return {"statistics/swapped": value, "chance/swapped": error}

    def compare(other, error):
        sides = [side("a", more=mean(0.5, 0.01)), side("b", more=mean(other, error))]
        return turns.compare(sides, str(tmp_path / "w"), rounds=1, tolerance={"loss": 0.0})

    assert compare(0.53, 0.01)["b"]["largest_difference"] == pytest.approx(0.06)
    compare(0.6, 0.03)  # the other one's mean is of fewer draws
    for other in (0.6, 0.4):
        with pytest.raises(DataError, match="of the largest value in statistics/swapped"):
            compare(other, 0.01)


@pytest.mark.slow
def test_training_from_an_object_store_is_timed_beside_training_from_a_disk(tmp_path):
    for module in ("moto", "s3fs"):
        pytest.importorskip(module, reason="moto or s3fs is not installed (extra: remote-test)")
    results, table = benchmark(
        "remote", tmp_path, "--batch_sizes=4", "--lengths=48", "--examples=64", "--latency=20",
    )
    assert set(results) == {"disk", "S3, 20 ms"} and "S3, 20 ms" in table
    for one in results.values():  # which gave the same losses
        parts = one["parts"]
        assert 0 < parts["waiting"] < parts["steps"] < parts["loop"] < one["most_seconds"]
    assert results["S3, 20 ms"]["largest_difference"] == 0


@pytest.mark.slow
def test_the_idle_share_of_a_step_is_told_for_records_and_masks_on_the_fly(tmp_path):
    [result], table = benchmark(
        "idle", tmp_path, "--batch_sizes=4", "--lengths=48", "--examples=16",
    )
    assert set(result["sides"]) == {"rows at hand", "records", "masks on the fly"}
    for one in result["sides"].values():
        assert 0 < one["parts"]["waiting"] < one["parts"]["steps"] < one["most_seconds"]
    assert "waiting for rows" in table
