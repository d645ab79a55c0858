"""Another objective of pretraining is a `Task`: the example of CONTRIBUTING.md, on both engines."""

import pathlib

import electra
import jobs
import pytest
from helpers import NEEDS_JAX, REPO, metrics, run, write_config, write_pretraining_records

import albert

EXAMPLE = pathlib.Path(electra.__file__)


def train(folder, out, engine: str, steps: int) -> pathlib.Path:
    """Trains the example for some of its 60 steps, or resumes it."""
    config = write_config(folder, num_hidden_layers=1, initializer_range=0.3)
    records = write_pretraining_records(folder / "train.tfrecord", least=5)
    if engine == "tensorflow":
        electra.train(records, config, str(out), str(steps))
    else:
        environment = {"PYTHONPATH": f"{REPO}:{EXAMPLE.parent}", "KERAS_BACKEND": "jax"}
        done = run("electra", records, config, str(out), str(steps), cwd=folder, env=environment)
        assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("engine", ["tensorflow", pytest.param("jax", marks=[NEEDS_JAX, pytest.mark.slow])])
def test_the_example_of_another_objective_learns_and_resumes_to_the_same_bits(engine, tmp_path):
    whole = train(tmp_path, tmp_path / "whole", engine, 60)
    first, *_, last = [line for line in metrics(whole) if line["kind"] == "train"]
    assert last["masked_lm_loss"] < first["masked_lm_loss"] - 0.5
    [evaluated] = [line for line in metrics(whole) if line["kind"] == "eval"]
    assert evaluated["replaced_accuracy"] > 0.9
    # What it saves is a model for everybody else.
    model = albert.from_pretrained(str(whole))
    assert type(model).__name__ == "AlbertForPreTraining"
    train(tmp_path, tmp_path / "halves", engine, 7)
    halves = train(tmp_path, tmp_path / "halves", engine, 60)
    ours, theirs = (jobs.tensors(folder / "model.ckpt-60") for folder in (halves, whole))
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_the_example_is_as_short_as_the_page_says():
    text = EXAMPLE.read_text("utf-8")
    lines = text[text.index("class Electra("):text.index("def train(")].splitlines()
    assert len([line for line in lines if line.strip()]) <= 80
