"""Commands killed by kill -9 at random moments and run again: as if nothing had happened."""

import dataclasses
import pathlib
import random
import signal
from collections.abc import Callable

import pytest
from helpers import metrics
from invariants import assert_tidy, snapshot

import jobs, mortal

KILLS = 8
# What holds the time, the process or a random number; of a module, the graph and its print.
OF_ITS_OWN = ("events.out.", ".lock", "saved_model.pb", "fingerprint.pb", "metrics.jsonl")


@pytest.fixture(scope="module")
def nursery():
    with mortal.nursery() as made:
        yield made


@dataclasses.dataclass(frozen=True)
class Job:
    """A command that writes below a folder, and what it publishes at once or not at all."""

    module: str
    # (folder of inputs, folder of outputs, a pretraining run) -> flags
    flags: Callable[[pathlib.Path, pathlib.Path, jobs.Run], list[str]]
    wholes: tuple[str, ...] = ()  # what holds these files, if it is there, holds all of its own
    # Of a file: what must be there before it, its card or its records.
    leads: tuple[tuple[str, str], ...] = ()
    refuses_to_overwrite: bool = False


def classifier(folder, out, _):
    return [
        *jobs.classifier_flags(folder, output_dir=out / "run"), "--do_train", "--do_eval",
        "--do_predict", f"--export_dir={out / 'served'}",
    ]


def squad(folder, out, _):
    return [*jobs.squad_flags(folder, output_dir=out / "run"), f"--export_dir={out / 'served'}"]


def race(folder, out, _):
    return jobs.race_flags(folder, output_dir=out / "run")


def data(folder, out, _):
    return jobs.data_flags(folder, output_file=f"{out}/a.tfrecord,{out}/b.tfrecord")


def hub_module(folder, out, run):
    return [
        f"--albert_directory={run.out}", f"--vocab_file={jobs.write_vocabulary(folder)}",
        f"--export_path={out / 'module'}",
    ]


def lite(folder, out, run):
    return [f"--model_dir={run.out}", f"--export_path={out / 'encoder.tflite'}"]


def clean_checkpoint(folder, out, run):
    return [f"--albert_directory={run.out}", f"--export_path={out / 'clean'}"]


def theirs(folder, out, run):
    return [
        f"--albert_directory={run.out}", f"--vocab_file={jobs.write_vocabulary(folder)}",
        f"--output_dir={out / 'theirs'}",
    ]


JOBS = {
    "classifier": Job("albert.run_classifier", classifier, wholes=("served",)),
    "squad": Job("albert.run_squad_v1", squad, wholes=("served",)),
    "race": Job("albert.run_race", race),
    "data creation": Job("albert.create_pretraining_data", data, leads=(
        ("a.tfrecord.manifest.json", "a.tfrecord"), ("b.tfrecord.manifest.json", "b.tfrecord"),
    )),
    "hub module": Job("albert.export_to_tfhub", hub_module, wholes=("module",),
                      refuses_to_overwrite=True),
    "litert": Job("albert.export_model", lite, leads=(("encoder.tflite", "encoder.README.md"),),
                  refuses_to_overwrite=True),
    "clean checkpoint": Job(
        "albert.export_checkpoints", clean_checkpoint,
        leads=(("clean.index", "README.md"), ("clean.index", "clean.data-00000-of-00001")),
        refuses_to_overwrite=True,
    ),
    "conversion": Job("albert.convert_hf", theirs, wholes=("theirs",), refuses_to_overwrite=True),
}
QUICK = ("conversion",)


def content(folder: pathlib.Path) -> dict[str, object]:
    """Returns what every file below a folder says, but for clock and process."""
    found: dict[str, object] = {}
    for path, digest in snapshot(folder).items():
        name = str(pathlib.Path(path).relative_to(folder))
        if name.endswith("metrics.jsonl"):
            found[name] = metrics(pathlib.Path(path).parent)
        elif not any(part in name for part in OF_ITS_OWN):
            found[name] = digest
    return found


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in JOBS]
)
def test_a_command_that_was_killed_and_run_again_leaves_what_it_leaves_undisturbed(
    name, nursery, whole, tmp_path
):
    job, out = JOBS[name], tmp_path / "out"
    inputs = tmp_path / "in"
    for folder in (inputs, out):
        folder.mkdir()
    flags = job.flags(inputs, out, whole)
    sources = snapshot(inputs) | snapshot(whole.out)
    code, operations, stderr = nursery.run(job.module, flags, out)
    assert code == 0 and operations > 3, stderr
    right = content(out)
    out.rename(tmp_path / "right")  # the same flags, which some files repeat
    out.mkdir()
    chosen, before = random.Random(name), {}
    for kill in range(2 if name in QUICK else KILLS):
        # Anywhere; the last kills in the end, where things are published.
        last = chosen.randrange(operations if kill % 2 else max(1, operations // 2), operations + 1)
        code, _, stderr = nursery.run(
            job.module, flags, out, last, delay=chosen.choice([0.0, 0.02])
        )
        is_refused = job.refuses_to_overwrite and "exists" in stderr
        assert code in (0, -signal.SIGKILL) or is_refused, stderr
        assert "Traceback" not in stderr
        for place in job.wholes:
            if (out / place).exists():
                names = {n for n in right if n.startswith(place + "/")}
                assert {n for n in content(out) if n.startswith(place + "/")} == names
                assert all(before.get(n, content(out)[n]) == content(out)[n] for n in names)
        for last_file, first_file in job.leads:
            assert (out / first_file).exists() or not (out / last_file).exists()
        before = content(out)
    code, _, stderr = nursery.run(job.module, flags, out)
    assert code == 0 or job.refuses_to_overwrite and "exists" in stderr, stderr
    assert_tidy(out)
    assert content(out) == right
    assert snapshot(inputs) | snapshot(whole.out) == sources
