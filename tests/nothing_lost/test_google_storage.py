"""Google's storage, by an emulator of its own process: what is promised of S3 holds there too."""

import threading

import pytest

from albert.errors import DataError, RunDirBusyError
from albert.storage import filesystem, fsspec_calls, locks
import gcs, jobs

gcs.require_emulator()


@pytest.fixture
def proxy(tmp_path, monkeypatch):
    """The proxy through which this test reaches an empty bucket `bucket`."""
    import gcsfs

    with gcs.server() as port:
        found = gcs.Proxy(port)
        for name, value in gcs.environment(found.url, tmp_path / "cache").items():
            monkeypatch.setenv(name, value)
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield found
        found.close()


def test_files_are_written_read_listed_and_removed(proxy, tmp_path):
    (tmp_path / "a").write_bytes(b"abcdef")
    fsspec_calls.upload(str(tmp_path / "a"), "gs://bucket/x/a.txt")
    fsspec_calls.write("gs://bucket/x/y/b.txt", b"b")
    assert filesystem.read_ranges("gs://bucket/x/a.txt", [(1, 4)]) == [b"bcd"]
    assert list(filesystem.files_below("gs://bucket/x")) == ["a.txt", "y/b.txt"]
    assert filesystem.glob("gs://bucket/x/*.txt") == ["gs://bucket/x/a.txt"]
    with open(filesystem.local_copy("gs://bucket/x/a.txt"), "rb") as stream:
        assert stream.read() == b"abcdef"
    before = filesystem.identity("gs://bucket/x/a.txt")
    fsspec_calls.write("gs://bucket/x/a.txt", b"ABCDEF")
    assert filesystem.identity("gs://bucket/x/a.txt") != before
    fsspec_calls.delete("gs://bucket/x/a.txt")
    assert not filesystem.exists("gs://bucket/x/a.txt")
    with pytest.raises(DataError, match="no bucket gs://nowhere"):
        filesystem.glob("gs://nowhere/*")


def test_of_many_that_create_an_object_one_does(proxy):
    made = []

    def create(number: int) -> None:
        made.append(fsspec_calls.create("gs://bucket/run/.lease", b"%d" % number))

    threads = [threading.Thread(target=create, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True] and proxy.refused >= 7


def test_a_directory_that_another_process_renews_is_refused(proxy, monkeypatch):
    monkeypatch.setenv("ALBERT_LEASE_SECONDS", "3")
    with locks._lease("gs://bucket/run"):
        monkeypatch.setattr(locks, "_machine", lambda: "another machine")
        with pytest.raises(RunDirBusyError, match="in use by pid"):
            with locks._lease("gs://bucket/run"):
                pass
    assert not filesystem.files_below("gs://bucket/run")


def test_a_run_trains_stops_and_goes_on(proxy, tmp_path):
    given = dict(flag.lstrip("-").split("=") for flag in jobs.pretraining_flags(tmp_path))
    for path in tmp_path.glob("train.tfrecord*"):
        fsspec_calls.upload(str(path), f"gs://bucket/records/{path.name}")
    given |= {"input_file": "gs://bucket/records/train*", "output_dir": "gs://bucket/run"}
    flags = [f"--{name}={value}" for name, value in given.items()]
    assert jobs.pretrain(*flags, "--until_step=10") == 0
    assert jobs.pretrain(*flags) == 0
    assert jobs.pretrain(*jobs.pretraining_flags(tmp_path)) == 0
    with filesystem.open_read("gs://bucket/run/model.ckpt-23.data-00000-of-00001") as stream:
        assert stream.read() == (tmp_path / "out/model.ckpt-23.data-00000-of-00001").read_bytes()
    assert not [name for name in filesystem.files_below("gs://bucket/run") if "lease" in name]
