"""A training step compiled for TPUs that are not present."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys

import jobs
import pytest
from helpers import NEEDS_JAX, REPO, assert_one_clear_line, run_here

SCRIPTS = REPO / "scripts/maintainers"
# For a step of base, sequences of 512 in bfloat16 on each of four chips, with jax 0.10.2, by libtpu
# version: GiB for 32 sequences besides weights and moments, and the number of micro-batches for 512
# sequences. The first is the version that jax requires. Other versions are treated as the first.
MEASURED = {"0.0.42.1": (4.49, 8), "0.0.52": (3.54, 4)}
NEEDS_COMPILER = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax") is None,
    reason="XLA's compiler for TPUs is not installed (extra: jax-tpu)",
)


def plan(*flags: str):
    command = [sys.executable, SCRIPTS / "compile_plan.py", "--topology=v5e:2x2"]
    flags = ["--albert_config_file=base_v2", "--mixed_precision=bfloat16", *flags]
    return subprocess.run(
        [*command, *flags], capture_output=True, text=True, timeout=800,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPO)},
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@NEEDS_COMPILER
def test_a_step_of_base_needs_no_more_than_it_did_and_one_too_large_says_what_would_fit():
    version = importlib.metadata.version("libtpu")
    temporaries, turns = MEASURED.get(version, MEASURED["0.0.42.1"])
    done = plan("--train_batch_size=128", "--nolargest", "--format=json")
    assert done.returncode == 0, done.stderr
    step = json.loads(done.stdout)
    assert step["rows_at_once"] == 32 and step["fits"]
    assert step["memory_gib"]["temporaries"] <= 1.05 * temporaries
    # Weights and two moments of 11.8 million parameters, in float32.
    assert step["memory_gib"]["weights, moments and batch"] == pytest.approx(0.132, abs=0.005)
    [(kind, exchanged)] = step["exchanges"].items()
    assert (kind, exchanged["count"]) == ("all-reduce", 2)
    assert exchanged["mib"] == pytest.approx(11_813_810 * 4 / 2**20, rel=0.01)  # the gradients
    done = plan("--train_batch_size=2048")
    assert done.returncode == 2
    line = assert_one_clear_line(done.stderr)
    assert "512 sequences at once need " in line and "a device of v5e:2x2 has" in line
    assert " has 15.75 GiB; " in line
    assert line.endswith(f" would fit: --gradient_accumulation_steps={turns}")


@NEEDS_COMPILER
def test_what_cannot_be_compiled_is_refused_in_one_line():
    for flag, message in (
        ("--topology=v5e:3x5", "--topology=v5e:3x5: libtpu knows no such slice; examples: v4:2x2x1"),
        ("--train_batch_size=6", "--train_batch_size=6 cannot be divided by 4 replicas"),
    ):
        done = plan(flag)
        assert done.returncode == 2
        assert message in assert_one_clear_line(done.stderr)


def test_without_the_compiler_the_line_says_what_to_install(monkeypatch, capsys):
    compile_plan = jobs.script("compile_plan")
    monkeypatch.setattr(compile_plan.engines, "is_installed", lambda name: name != "libtpu")
    assert run_here(compile_plan, "--topology=v5e:2x2", "--albert_config_file=base_v2") == 2
    assert "install albert-keras[jax-tpu]" in assert_one_clear_line(capsys.readouterr().err)


@NEEDS_JAX
def test_exchanges_are_counted_with_their_bytes():
    program = """
      %a = (f32[16,8]{1,0}, bf16[4]{0}) all-reduce(%x, %y), replica_groups={}
      %b = f32[2]{0} all-reduce-start(%z)
      %c = f32[2]{0} all-reduce-done(%b)
      ROOT %d = f32[64]{0:T(128)} all-gather(%w), dimensions={0}
    """
    assert jobs.script("step_compiler").collectives_of(program) == {
        "all-gather": {"count": 1, "mib": 64 * 4 / 2**20},
        "all-reduce": {"count": 2, "mib": (16 * 8 * 4 + 4 * 2 + 2 * 4) / 2**20},
    }
