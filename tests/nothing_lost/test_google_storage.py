"""Google's storage, by an emulator of its own process: what is promised of S3 holds there too."""

import threading

import gcs
import jobs
import pytest

from albert.errors import DataError, RunDirBusyError
from albert.storage import filesystem, fsspec_calls, locks

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


def test_a_run_resumes_in_a_directory_that_is_its_own(proxy, begun, whole, tmp_path, monkeypatch):
    for path in whole.out.parent.glob("train.tfrecord*"):
        fsspec_calls.upload(str(path), f"gs://bucket/records/{path.name}")
    for path in begun.out.glob("m*"):
        fsspec_calls.upload(str(path), f"gs://bucket/run/{path.name}")
    monkeypatch.setenv("ALBERT_LEASE_SECONDS", "3")
    with locks._lease("gs://bucket/run"), monkeypatch.context() as patch:
        patch.setattr(locks, "_machine", lambda: "another machine")
        with pytest.raises(RunDirBusyError, match="in use by pid"), locks._lease("gs://bucket/run"):
            pass
    remote = ("--input_file=gs://bucket/records/train*", "--output_dir=gs://bucket/run")
    assert jobs.pretrain(*begun.flags, *remote) == 0
    name = "model.ckpt-23.data-00000-of-00001"
    with filesystem.open_read(f"gs://bucket/run/{name}") as stream:
        assert stream.read() == (whole.out / name).read_bytes()
    assert not [name for name in filesystem.files_below("gs://bucket/run") if "lease" in name]
