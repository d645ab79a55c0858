"""A benchmark compares equal work only, by turns, and says how fast each side was."""

import json
import subprocess
import sys

import pytest
from helpers import REPO, write_config

from albert.errors import DataError, UserError

sys.path.insert(0, str(REPO / "scripts"))

from benchmarks import turns  # noqa: E402

PROGRAM = """
import sys, time
sys.path.insert(0, {folder!r})
import serve

def prepare(spec):
    if spec.get("fails"):
        raise MemoryError("no room")
    print("libraries may print")
    def turn():
        time.sleep(spec["seconds"])
        with open(spec["log"], "a") as stream:
            stream.write(spec["name"])
    return turn, {{"loss": spec["loss"]}}

serve.serve(prepare)
"""


@pytest.fixture
def side(tmp_path):
    program = tmp_path / "side.py"
    program.write_text(PROGRAM.format(folder=turns.FOLDER))

    def make(name, **spec):
        spec = {"name": name, "seconds": 0.01, "loss": [1.0, 2.0], "log": str(tmp_path / "log")} | spec
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
    with pytest.raises(UserError, match="b ended: MemoryError: no room"):
        turns.compare([side("a"), side("b", fails=True)], str(tmp_path / "w"), rounds=1, tolerance=0)


def test_an_unknown_benchmark_is_refused_with_the_known_ones():
    command = [sys.executable, str(REPO / "scripts/benchmark.py"), "speed"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the first argument is one of attention, pretrain_step")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "pretrain_step", "inference"])
def test_each_benchmark_of_a_model_runs(name, tmp_path):
    config = write_config(tmp_path, vocab_size=60, max_position_embeddings=64)
    done = subprocess.run(
        [sys.executable, str(REPO / "scripts/benchmark.py"), name, "--rounds=1",
         f"--albert_config_file={config}", "--batch_sizes=2", "--lengths=48",
         f"--output_dir={tmp_path}", "--precisions=float32,bfloat16"],
        capture_output=True, text=True, timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / f"{name}.json").read_text())["results"]
    assert {r["precision"] for r in results} == {"float32", "bfloat16"}
    assert (tmp_path / f"{name}.md").read_text().count("\n| ") >= 4
