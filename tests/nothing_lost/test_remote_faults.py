"""Object stores that are slow, fail, disconnect, or are in use: real S3 and Google Cloud servers."""

import pathlib
import random
import signal
import subprocess
import sys
import time

import gcs
import jobs
import numpy as np
import pytest
import s3
from helpers import REPO, assert_one_clear_line, write_pretraining_records

from albert.errors import DataError, RunDirBusyError
from albert.records import batches, data_order, manifests
from albert.records.record_files import RecordFiles
from albert.storage import files, filesystem, fsspec_calls, mirrors
from albert.tasks.pretraining import PretrainingTask

@pytest.fixture(scope="module")
def moto():
    s3.require_moto()
    with s3.server() as port:
        yield port


@pytest.fixture
def proxy(moto, tmp_path, monkeypatch):
    """The proxy through which this test and its processes reach an empty bucket, `bucket`."""
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


def fetch(store, prefix: str, folder: pathlib.Path) -> pathlib.Path:
    """Copies the objects under a prefix to a folder; returns the folder."""
    store.get(f"bucket/{prefix}", str(folder / prefix), recursive=True)
    return folder / prefix


def remote_flags(store, run: jobs.Run, **changes) -> list[str]:
    """Uploads a run's inputs to the bucket; returns the flags that train on them there."""
    for path in run.out.parent.glob("train.tfrecord*"):
        store.put_file(str(path), f"bucket/records/{path.name}")
    remote = {"input_file": "s3://bucket/records/train*", "output_dir": "s3://bucket/run"}
    return [*run.flags, "--do_eval", *(f"--{k}={v}" for k, v in (remote | changes).items())]


def test_records_and_runs_are_the_same_with_errors_and_cuts_and_latency(proxy, tmp_path, whole):
    store = system(proxy)
    flags = remote_flags(store, whole)
    store.put_file(jobs.write_corpus(tmp_path), "bucket/text/corpus.txt")
    store.put_file(jobs.write_vocabulary(tmp_path), "bucket/vocab.txt")
    proxy.latency, proxy.faults = 0.02, 0.1
    assert jobs.create_data(*jobs.data_flags(
        tmp_path, input_file="s3://bucket/text/*.txt", vocab_file="s3://bucket/vocab.txt",
        output_file="s3://bucket/made/out.tfrecord",
    )) == 0
    assert jobs.pretrain(*flags) == 0
    assert proxy.failed > 3
    proxy.latency, proxy.faults = 0, 0
    assert jobs.create_data(*jobs.data_flags(tmp_path)) == 0
    made = fetch(store, "made", tmp_path / "fetched")
    assert (made / "out.tfrecord").read_bytes() == (tmp_path / "out.tfrecord").read_bytes()
    jobs.assert_same_run(fetch(store, "run", tmp_path / "fetched"), whole.out, 23)


def start(*flags: str, command: str = "run_pretraining") -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", f"albert.{command}", *flags], cwd=REPO,
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2, 51, 6))
def test_a_run_that_is_killed_at_any_request_goes_on_to_the_same_end(
    number, proxy, tmp_path, whole, made_once
):
    # All of them are processes, whose sums round the same way.
    def train(folder):
        assert start(*whole.flags, "--do_eval", f"--output_dir={folder}/out").wait() == 0

    local, _ = made_once("pretraining-process", train)
    store, process = system(proxy), None
    flags = remote_flags(store, whole)
    proxy.kill_at(number, lambda: process.pid)
    process = start(*flags)
    process.communicate()
    proxy.before_change = lambda count: None
    assert process.returncode == -9 or process.returncode == 0 and number > 20
    assert number < 50 or process.returncode == 0, "it makes more requests than are tried"
    assert start(*flags).wait() == 0
    jobs.assert_same_run(fetch(store, "run", tmp_path / "fetched"), local / "out", 23)
    assert not [name for name in store.find("bucket/run") if "owner" in name or "tmp" in name]


@pytest.mark.slow
def test_records_whose_making_is_ended_at_any_request_or_moment_have_the_same_bytes(proxy, tmp_path):
    store = system(proxy)
    store.put_file(jobs.write_corpus(tmp_path), "bucket/text/corpus.txt")
    store.pipe_file("bucket/made/notes.txt", b"mine")
    assert jobs.create_data(*jobs.data_flags(tmp_path)) == 0
    names = ["out.tfrecord", "out.tfrecord.vocabulary.txt"]
    plain = {name: (tmp_path / name).read_bytes() for name in names}
    flags = jobs.data_flags(
        tmp_path, input_file="s3://bucket/text/*.txt", output_file="s3://bucket/made/out.tfrecord"
    )
    proxy.latency, proxy.faults, rng, ended = 0.02, 0.1, random.Random(1), 0
    for number in range(10):
        for name in store.find("bucket/made"):
            if "notes" not in name:
                store.rm_file(name)
        process = start(*flags, command="create_pretraining_data")
        if number < 4:
            proxy.kill_at(number, lambda process=process: process.pid)
        else:
            time.sleep(rng.uniform(0.5, 3))
            process.send_signal((signal.SIGTERM, signal.SIGINT, signal.SIGKILL)[number % 3])
        process.communicate()
        ended += process.returncode != 0
        proxy.before_change = lambda count: None
        assert start(*flags, command="create_pretraining_data").wait() == 0
        made = {name.rpartition("/")[2]: store.cat_file(name) for name in store.find("bucket/made")}
        assert set(made) == {*names, "out.tfrecord.manifest.json", "notes.txt"}
        assert {name: made[name] for name in names} == plain and made["notes.txt"] == b"mine"
    assert ended >= 5 and proxy.failed > 3


def test_what_cannot_be_reached_is_one_line(proxy, tmp_path, monkeypatch, capfd):
    def refused(**flag) -> str:
        system(proxy)
        assert jobs.create_data(*jobs.data_flags(tmp_path, **flag)) == 2
        return assert_one_clear_line(capfd.readouterr().err)

    assert "there is no bucket s3://nowhere" in refused(input_file="s3://nowhere/text/*.txt")
    assert "there is no bucket s3://nowhere" in refused(output_file="s3://nowhere/out.tfrecord")
    text = {"input_file": "s3://bucket/text/*.txt"}
    proxy.forbidden = True
    line = refused(**text)
    assert "permission denied" in line and "bucket" in line
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    assert "no credentials" in refused(**text)


def test_remote_records_are_read_in_blocks_and_give_the_same_batches(proxy, tmp_path, monkeypatch):
    for module, name, value in ((data_order, "GROUP_RECORDS", 10), (data_order, "LANES", 4),
                                (manifests, "BATCH", 8), (batches, "CACHE_BYTES", 0)):
        monkeypatch.setattr(module, name, value)
    store = system(proxy)
    for number in range(3):
        path = write_pretraining_records(tmp_path / f"train-{number}.tfrecord", 50)
        for end in ("", ".manifest.json"):
            store.put_file(path + end, f"bucket/records/train-{number}.tfrecord{end}")
    spec = PretrainingTask(12, 3).feature_spec()
    remote = RecordFiles(files.expand_globs("s3://bucket/records/train*", "input_file"))
    local = RecordFiles(sorted(map(str, tmp_path.glob("train-?.tfrecord"))))
    proxy.faults = 0.1
    found, expected = (
        batches.train_batches(source, spec, batch_size=6, vocab_size=40, seed=3)
        for source in (remote.check(spec, 40), local)
    )
    for _ in range(60):  # more than two epochs
        one, other = next(found), next(expected)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert not list((tmp_path / "cache").rglob("train-*"))  # none was downloaded as a file


# --- Google Cloud Storage: the guarantees for S3 hold there too ---


@pytest.fixture
def google(tmp_path, monkeypatch):
    """The proxy through which this test reaches an empty bucket `bucket` of Google Cloud Storage."""
    gcs.require_emulator()
    import gcsfs

    with gcs.server() as port:
        found = s3.Proxy(port)
        for name, value in gcs.environment(found.url, tmp_path / "cache").items():
            monkeypatch.setenv(name, value)
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield found
        found.close()


def test_files_are_written_read_listed_and_removed(google, tmp_path):
    (tmp_path / "a").write_bytes(b"abcdef")
    fsspec_calls.upload(str(tmp_path / "a"), "gs://bucket/x/a.txt")
    fsspec_calls.write("gs://bucket/x/y/b.txt", b"b")
    assert filesystem.read_ranges("gs://bucket/x/a.txt", [(1, 4)]) == [b"bcd"]
    assert list(filesystem.files_below("gs://bucket/x")) == ["a.txt", "y/b.txt"]
    assert filesystem.glob("gs://bucket/x/*.txt") == ["gs://bucket/x/a.txt"]
    with open(filesystem.local_copy("gs://bucket/x/a.txt"), "rb") as stream:
        assert stream.read() == b"abcdef"
    before = filesystem.stamp("gs://bucket/x/a.txt")
    fsspec_calls.write("gs://bucket/x/a.txt", b"ABCDEF")
    assert filesystem.stamp("gs://bucket/x/a.txt") != before
    fsspec_calls.delete("gs://bucket/x/a.txt")
    assert not filesystem.exists("gs://bucket/x/a.txt")
    with pytest.raises(DataError, match="no bucket gs://nowhere"):
        filesystem.glob("gs://nowhere/*")


def test_a_run_resumes_in_a_directory_that_it_takes_over(google, begun, whole):
    for path in whole.out.parent.glob("train.tfrecord*"):
        fsspec_calls.upload(str(path), f"gs://bucket/records/{path.name}")
    for path in begun.out.glob("m*"):
        fsspec_calls.upload(str(path), f"gs://bucket/run/{path.name}")
    with mirrors.uploaded():
        (first, second) = (mirrors.Mirror("gs://bucket/run", folder) for folder in "ab")
        first.own()
        second.own()
        with pytest.raises(RunDirBusyError, match="taken over by pid"):
            first.check_owner()
    remote = ("--input_file=gs://bucket/records/train*", "--output_dir=gs://bucket/run")
    assert jobs.pretrain(*begun.flags, *remote) == 0
    name = "model.ckpt-23.data-00000-of-00001"
    with filesystem.open_read(f"gs://bucket/run/{name}") as stream:
        assert stream.read() == (whole.out / name).read_bytes()
    assert not [name for name in filesystem.files_below("gs://bucket/run") if "owner" in name]
