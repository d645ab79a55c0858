"""Google's storage, by an emulator of its own process: what is promised of S3 holds there too."""

import threading

import pytest

from albert.errors import DataError, RunDirBusyError
from albert.storage import filesystem, lease, opening, work
from faults import gcs, jobs

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
    filesystem.upload(str(tmp_path / "a"), "gs://bucket/x/a.txt")
    filesystem.write("gs://bucket/x/y/b.txt", b"b")
    assert opening.read_ranges("gs://bucket/x/a.txt", [(1, 4), (5, 6)]) == [b"bcd", b"f"]
    assert list(filesystem.list_tree("gs://bucket/x")) == ["a.txt", "y/b.txt"]
    [entry] = filesystem.match("gs://bucket/x/*.txt")
    filesystem.download(entry, str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"abcdef"
    before = entry.stamp
    filesystem.write("gs://bucket/x/a.txt", b"ABCDEF")
    assert filesystem.entry_of("gs://bucket/x/a.txt").stamp != before
    filesystem.remove("gs://bucket/x/a.txt")
    assert filesystem.entry_of("gs://bucket/x/a.txt") is None
    with pytest.raises(DataError, match="no bucket gs://nowhere"):
        filesystem.match("gs://nowhere/*")


def test_of_many_that_create_an_object_one_does(proxy):
    made = []

    def create(number: int) -> None:
        made.append(filesystem.create("gs://bucket/run/.lease-1", b"%d" % number))

    threads = [threading.Thread(target=create, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True] and proxy.refused >= 7


def test_a_directory_that_another_process_renews_is_refused(proxy, monkeypatch):
    monkeypatch.setenv("ALBERT_LEASE_SECONDS", "3")
    with lease.held("gs://bucket/run"):
        monkeypatch.setattr(work, "boot_id", lambda: "another machine")
        with pytest.raises(RunDirBusyError, match="in use by pid"):
            with lease.held("gs://bucket/run"):
                pass
    assert not filesystem.list_tree("gs://bucket/run")


def test_a_run_trains_stops_and_goes_on(proxy, tmp_path):
    given = dict(flag.lstrip("-").split("=") for flag in jobs.pretraining_flags(tmp_path))
    for path in tmp_path.glob("train.tfrecord*"):
        filesystem.upload(str(path), f"gs://bucket/records/{path.name}")
    given |= {"input_file": "gs://bucket/records/train*", "output_dir": "gs://bucket/run"}
    flags = [f"--{name}={value}" for name, value in given.items()]
    assert jobs.pretrain(*flags, "--until_step=10") == 0
    assert jobs.pretrain(*flags) == 0
    assert jobs.pretrain(*jobs.pretraining_flags(tmp_path)) == 0
    index = filesystem.read("gs://bucket/run/model.ckpt-23.data-00000-of-00001")
    assert index == (tmp_path / "out/model.ckpt-23.data-00000-of-00001").read_bytes()
    assert not [name for name in filesystem.list_tree("gs://bucket/run") if "lease" in name]
