"""Records through Apache Beam: the same bytes as the plain command, with any runner.

Tests that run a pipeline are skipped if Beam is not installed; none of them
needs TensorFlow.
"""

import gzip
import os
import random
import subprocess
import sys
import time

import jobs
import pytest
from helpers import REPO, assert_one_clear_line
from helpers import run as run_process

from albert import create_pretraining_data as command
from albert.cli import flags
from albert.errors import DataError
from albert.pretraining_data import job, pipeline

COMMAND = "albert.create_pretraining_data"


def needs_beam():
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed (extra: beam)")


@pytest.fixture
def corpus(tmp_path):
    """A folder with a vocabulary and three texts; documents continue from one file to the next."""
    words, rng = [f"w{i}" for i in range(200)], random.Random(1)
    (tmp_path / "vocab.txt").write_text("\n".join([*jobs.SPECIALS, *words]) + "\n")
    for name in "abc":
        texts = [
            "\n".join(" ".join(rng.choices(words, k=rng.randint(3, 12))).replace("w7 w", "W7. W")
                      for _ in range(rng.randint(1, 9)))
            for _ in range(40)
        ]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(texts) + "\n")
    (tmp_path / "d.txt").write_bytes(b"w3 \xff\xfe w1 w2\n" + b"w3 " * 100 + b"\n" * 30)
    return tmp_path


def arguments(folder, **changes):
    values = {
        "input_file": folder / "?.txt", "vocab_file": folder / "vocab.txt",
        "output_file": f"{folder}/out-0.tfrecord,{folder}/out-1.tfrecord",
        "eval_output_file": folder / "eval.tfrecord", "held_out_fraction": 0.1,
        "max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 11,
    } | changes
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def run(*argv):
    """Runs the command in this process; returns its exit code."""
    return flags.run_command(
        command.__doc__, command.define_flags, command.main, ["command", *map(str, argv)],
        takes_arguments=True,
    )


def outputs(folder):
    """Removes the command's outputs; returns their bytes."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix != ".txt":
            found[path.name] = path.read_bytes()
            path.unlink()
    return found


# --- The same records ---


def test_a_pipeline_gives_the_bytes_of_the_plain_command(corpus, monkeypatch):
    needs_beam()
    monkeypatch.setattr(job, "_BLOCK", (1500, 1500))  # several blocks
    for changes in (
        {"document_break_between_files": False}, {"document_break_between_files": True},
        {"static_masks": False, "max_predictions_per_seq": None, "sentence_objective": "nsp"},
        # A few long documents, which are held out in parts.
        {"document_layout": "files", "split_sentences": True, "full_sequences": True},
        {"document_layout": "files", "held_out_fraction": 0.4},
    ):
        argv = arguments(corpus, **changes)
        assert run(*argv) == 0
        plain = outputs(corpus)
        assert len(plain) == 6
        assert run(*argv, "--runner=DirectRunner") == 0
        assert outputs(corpus) == plain, changes


@pytest.mark.parametrize("options", [
    ["--runner=DirectRunner", "--", "--direct_running_mode=multi_processing", "--direct_num_workers=2"],
    # Beam's own portable job service, in the launching process.
    ["--runner=PortableRunner", "--", "--job_endpoint=embed", "--environment_type=LOOPBACK"],
], ids=["several processes", "portable"])
def test_other_runners_give_the_same_bytes(corpus, options):
    needs_beam()
    assert run(*arguments(corpus)) == 0
    plain = outputs(corpus)
    done = run_process(COMMAND, *arguments(corpus), *options)
    assert done.returncode == 0, done.stderr
    assert "1 of " in done.stderr and "had invalid UTF-8" in done.stderr
    assert outputs(corpus) == plain


@pytest.fixture
def dask_cluster(tmp_path_factory):
    """Yields (scheduler file, its two workers), all separate processes."""
    needs_beam()
    pytest.importorskip("distributed", reason="Dask is not installed (extra: beam-dask)")
    folder = tmp_path_factory.mktemp("dask")
    scheduler_file = folder / "scheduler.json"
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    common = ["--scheduler-file", str(scheduler_file), "--no-dashboard"]

    def begin(module, *more):
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *common, *more], env=environment,
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )

    scheduler = begin("dask_scheduler", "--host=127.0.0.1", "--port=0")
    workers = [
        begin("dask_worker", "--no-nanny", "--nthreads=1", f"--local-directory={folder}")
        for _ in range(2)
    ]
    wait = "import distributed as d; d.Client(scheduler_file={!r}, timeout=100).wait_for_workers(2, 100)"
    subprocess.run(
        [sys.executable, "-c", wait.format(str(scheduler_file))], check=True, stderr=subprocess.DEVNULL
    )
    yield scheduler_file, workers
    for process in [*workers, scheduler]:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_dask_cluster_that_loses_a_worker_gives_the_same_bytes(corpus, dask_cluster):
    scheduler_file, workers = dask_cluster
    argv = arguments(corpus, dupe_factor=100)
    assert run(*argv) == 0
    plain = outputs(corpus)
    process = subprocess.Popen(
        [sys.executable, "-m", COMMAND, *argv,
         "--runner=apache_beam.runners.dask.dask_runner.DaskRunner",
         "--", f"--dask_scheduler_file={scheduler_file}", "--dask_npartitions=4"],
        cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )
    deadline = time.monotonic() + 120
    while not list(corpus.glob(".*.work/*.part")):  # some parts are finished, but not all
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    assert workers[0].poll() is None and process.poll() is None
    workers[0].kill()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert outputs(corpus) == plain


# --- Unsupported requests ---


def test_without_beam_one_line_says_what_to_install(corpus, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    assert run(*arguments(corpus), "--runner=DirectRunner") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "--runner=DirectRunner needs Apache Beam (import of apache_beam" in line
    assert "pip install 'albert-keras[beam]'" in line
    assert not outputs(corpus)


def test_flags_that_do_not_go_together_are_refused(corpus, capsys):
    for changes, more, message in (
        ({}, ["--", "--project=p"], "unexpected argument '--project=p'"),
        ({"runner": "DirectRunner", "num_processes": 2}, [], "--num_processes has no effect with"),
    ):
        assert run(*arguments(corpus, **changes), *more) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert not outputs(corpus)


def test_what_a_pipeline_cannot_do_is_one_line_and_publishes_nothing(corpus, capsys):
    needs_beam()
    (corpus / "blank.text").write_text("\n \n")
    packed = gzip.compress((corpus / "b.txt").read_bytes())[:-9]
    (corpus / "damaged.text").write_bytes(packed)
    beam_runner = ["--runner=DirectRunner"]
    for changes, options, message in (
        ({}, ["--runner=NoSuchRunner"], "--runner=NoSuchRunner"),
        ({}, [*beam_runner, "--", "--direct_num_workers=many"], "direct_num_workers"),
        ({"input_file": "/absent/*.txt"}, beam_runner, "/absent/"),
        ({"input_file": corpus / "damaged.text"}, beam_runner, "damaged or truncated"),
        ({"input_file": corpus / "blank.text"}, beam_runner, "no documents, only blank lines"),
    ):
        assert run(*arguments(corpus, **changes), *options) == 2, options
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert not [path for path in corpus.iterdir() if path.suffix not in (".txt", ".text")]


def test_a_failure_keeps_the_records_of_before(corpus, monkeypatch):
    needs_beam()
    assert run(*arguments(corpus), "--runner=DirectRunner") == 0
    before = {p.name: p.read_bytes() for p in corpus.iterdir()}

    def fail(*_):
        raise DataError("no")

    monkeypatch.setattr(pipeline, "store_part", fail)
    assert run(*arguments(corpus, random_seed=2), "--runner=DirectRunner") == 2
    assert {p.name: p.read_bytes() for p in corpus.iterdir()} == before
