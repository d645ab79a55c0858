"""An object store that is late, fails, breaks off, or is in use: a real S3 server of its own."""

import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import REPO, assert_one_clear_line, write_pretraining_records

import jobs, s3

s3.require_moto()


@pytest.fixture(scope="module")
def moto():
    with s3.server() as port:
        yield port


@pytest.fixture
def proxy(moto, tmp_path, monkeypatch):
    """The proxy through which this test, and what it starts, reach an empty bucket `bucket`."""
    found = s3.Proxy(moto)
    for name, value in s3.environment(found.url, tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    store = system(found)
    if store.exists("bucket"):
        store.rm("bucket", recursive=True)
    store.mkdir("bucket")
    yield found
    found.close()


def system(proxy):
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    return s3fs.S3FileSystem(
        use_listings_cache=False, endpoint_url=proxy.url, skip_instance_cache=True
    )


def copied(store, prefix: str, folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder with a copy of what is there."""
    for name in store.find(f"bucket/{prefix}"):
        target = folder / name.removeprefix("bucket/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(store.cat_file(name))
    return folder / prefix


def upload(store, folder: pathlib.Path, pattern: str, prefix: str) -> None:
    for path in folder.glob(pattern):
        store.put_file(str(path), f"bucket/{prefix}{path.name}")


def pretraining(store, folder: pathlib.Path, **changes) -> list[str]:
    """Puts records into the bucket; returns the flags that train on them, into s3://bucket/run."""
    folder.mkdir(exist_ok=True)
    local = dict(flag.lstrip("-").split("=") for flag in jobs.pretraining_flags(folder))
    upload(store, folder, "train.tfrecord*", "records/")
    store.put_file(local["albert_config_file"], "bucket/config.json")
    remote = {
        "albert_config_file": "s3://bucket/config.json", "input_file": "s3://bucket/records/train*",
        "output_dir": "s3://bucket/run",
    }
    return [f"--{name}={value}" for name, value in (local | remote | changes).items()]


def assert_same_run(store, local: pathlib.Path, folder: pathlib.Path, step: int = 23) -> None:
    """The run in the bucket has the weights and the lines of a local one."""
    run = copied(store, "run", folder)
    here, there = (jobs.tensors(place / f"model.ckpt-{step}") for place in (local, run))
    assert set(here) == set(there)
    for name, value in here.items():
        np.testing.assert_array_equal(value, there[name], name)
    lines = [
        [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "tokens_per_second")}
         for line in (place / "metrics.jsonl").read_text().splitlines()]
        for place in (local, run)
    ]
    assert lines[0] == lines[1]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    finished(*jobs.pretraining_flags(folder))
    return folder / "out"


def test_records_and_runs_are_the_same_with_errors_and_cuts_and_latency(proxy, tmp_path, local):
    store = system(proxy)
    text, vocabulary = jobs.write_corpus(tmp_path), jobs.write_vocabulary(tmp_path)
    store.put_file(text, "bucket/text/corpus.txt")
    store.put_file(vocabulary, "bucket/vocab.txt")
    flags = pretraining(store, tmp_path / "records")
    proxy.latency, proxy.faults = 0.02, 0.1
    assert jobs.create_data(*jobs.data_flags(
        tmp_path, input_file="s3://bucket/text/*.txt", vocab_file="s3://bucket/vocab.txt",
        output_file="s3://bucket/made/out.tfrecord",
    )) == 0
    finished(*flags)
    assert proxy.failed > 3
    proxy.latency, proxy.faults = 0, 0
    assert jobs.create_data(*jobs.data_flags(tmp_path)) == 0
    made = copied(store, "made", tmp_path / "fetched")
    assert (made / "out.tfrecord").read_bytes() == (tmp_path / "out.tfrecord").read_bytes()
    assert_same_run(store, local, tmp_path / "fetched")


def started(*flags: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "albert.run_pretraining", *flags, "--do_eval"], cwd=REPO,
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )


def finished(*flags: str) -> None:
    """Runs a pretraining to its end. All of them are processes, whose sums round alike."""
    process = started(*flags)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said


def killed_at(proxy, number: int, flags: list[str]) -> bool:
    """Runs a pretraining that is killed before a request; whether it was."""
    process = None
    proxy.kill_at(number, lambda: process.pid)
    process = started(*flags)
    process.communicate(timeout=300)
    proxy.before_change = lambda count: None
    assert process.returncode in (0, -9)
    return process.returncode == -9


# The changing requests of a run, and a few more: at the last number it has ended.
REQUESTS = 50


@pytest.mark.parametrize(
    "number", [9, *(pytest.param(n, marks=pytest.mark.slow) for n in range(REQUESTS) if n != 9)]
)
def test_a_run_that_is_killed_at_any_request_goes_on_to_the_same_end(
    number, proxy, tmp_path, local
):
    store = system(proxy)
    flags = pretraining(store, tmp_path / "records")
    was_killed = killed_at(proxy, number, flags)
    assert was_killed or number > 20
    assert number < REQUESTS - 1 or not was_killed, "it makes more requests than are tried"
    finished(*flags)
    assert_same_run(store, local, tmp_path / "fetched")
    left = [name for name in store.find("bucket/run") if "lease" in name or "tmp" in name]
    assert not left


def test_a_second_process_on_a_remote_directory_is_refused_and_the_first_ends_well(
    proxy, tmp_path, monkeypatch
):
    store = system(proxy)
    monkeypatch.setenv("ALBERT_LEASE_SECONDS", "6")
    flags = pretraining(store, tmp_path / "records", num_train_steps=10**6)
    first = started(*flags)
    try:
        while not any("lease" in name for name in store.find("bucket/run")):
            assert first.poll() is None
            time.sleep(0.1)
        second = started(*flags)
        _, said = second.communicate(timeout=300)
        assert second.returncode == 2, said
        assert f"output_dir s3://bucket/run is in use by pid {first.pid} on host" in said
        first.terminate()
        _, said = first.communicate(timeout=300)
        assert first.returncode == 143, said
    finally:
        first.kill()
    run = copied(store, "run", tmp_path / "fetched")
    assert "model.ckpt-" in (run / "checkpoint").read_text()
    assert not list(run.glob(".lease*"))


@pytest.mark.parametrize("case, told", [
    ("bucket", "there is no bucket s3://nowhere"),
    ("keys", "no credentials"),
    ("forbidden", "permission denied"),
])
def test_what_cannot_be_reached_is_one_line(case, told, proxy, tmp_path, monkeypatch, capfd):
    given = {"input_file": "s3://bucket/text/*.txt"}
    if case == "bucket":
        given["input_file"] = "s3://nowhere/text/*.txt"
    elif case == "keys":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    else:
        proxy.forbidden = True
    system(proxy)
    assert jobs.create_data(*jobs.data_flags(tmp_path, **given)) == 2
    line = assert_one_clear_line(capfd.readouterr().err)
    assert told in line and given["input_file"].split("/")[2] in line, line


def test_a_bucket_that_is_not_there_is_told_before_anything_is_computed(proxy, tmp_path, capfd):
    started_at = time.monotonic()
    assert jobs.create_data(*jobs.data_flags(
        tmp_path, output_file="s3://nowhere/out.tfrecord"
    )) == 2
    assert "there is no bucket s3://nowhere" in assert_one_clear_line(capfd.readouterr().err)
    assert time.monotonic() - started_at < 10


def test_remote_records_are_read_in_blocks_and_give_the_same_batches(
    proxy, tmp_path, monkeypatch
):
    from albert.records import batches, data_order, records
    from albert.records.record_files import RecordFiles
    from albert.storage import files
    from albert.tasks.pretraining import PretrainingTask

    store = system(proxy)
    monkeypatch.setattr(data_order, "GROUP_RECORDS", 10)
    monkeypatch.setattr(data_order, "LANES", 4)
    monkeypatch.setattr(records, "BATCH", 8)
    monkeypatch.setattr(batches, "CACHE_BYTES", 0)
    for number in range(3):
        write_pretraining_records(tmp_path / f"train-{number}.tfrecord", 50)
    upload(store, tmp_path, "train-*", "records/")
    paths = files.expand_globs("s3://bucket/records/train*", "input_file")
    spec = PretrainingTask(12, 3).feature_spec()
    remote = RecordFiles(paths).check(spec, 40)
    local = RecordFiles(sorted(map(str, tmp_path.glob("train-?.tfrecord"))))
    proxy.faults = 0.1
    found, expected = (
        batches.train_batches(source, spec, batch_size=6, vocab_size=40, seed=3)
        for source in (remote, local)
    )
    for _ in range(60):  # more than two epochs
        one, other = next(found), next(expected)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert not list((tmp_path / "cache").rglob("train-*"))  # none was downloaded as a file
