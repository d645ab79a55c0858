"""Reading, listing and copying by path or address."""

import os
import pathlib
import types

import pytest

from albert.errors import DataError
from albert.storage import filesystem, fsspec_calls

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'albert[test]'")


pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture(params=["local", "remote"])
def root(request, tmp_path, memory):
    """A directory with files of the same content: a local one or an address."""
    content = {"a.txt": b"aa", "b.txt": b"b" * 700_000, "deep/c.txt": b"c"}
    (tmp_path / "root/deep").mkdir(parents=True)
    for name, value in content.items():
        (tmp_path / "root" / name).write_bytes(value)
        memory.pipe_file(f"/bucket/root/{name}", value)
    return str(tmp_path / "root") if request.param == "local" else "memory://bucket/root"


def test_paths_and_addresses_are_read_and_listed_alike(root):
    assert filesystem.size(f"{root}/a.txt") == 2
    assert filesystem.exists(f"{root}/a.txt") and not filesystem.exists(f"{root}/none")
    assert filesystem.is_dir(root) and not filesystem.is_dir(f"{root}/a.txt")
    assert filesystem.glob(f"{root}/*.txt") == [f"{root}/a.txt", f"{root}/b.txt"]
    assert filesystem.glob(f"{root}/a.txt") == [f"{root}/a.txt"]
    assert filesystem.glob(f"{root}/none*") == []
    assert list(filesystem.files_below(root)) == ["a.txt", "b.txt", "deep/c.txt"]
    assert filesystem.read_ranges(f"{root}/b.txt", [(0, 2), (699_999, 700_000)]) == [b"bb", b"b"]
    with pytest.raises(DataError, match="of 2 bytes at 1"):
        filesystem.read_ranges(f"{root}/a.txt", [(1, 3)])
    with filesystem.open_read(f"{root}/b.txt") as stream:
        assert stream.read(10) == b"b" * 10
        assert stream.seek(-9, os.SEEK_END) == 699_991
        assert stream.readline() == b"b" * 9 and stream.read() == b""
        stream.seek(5)
        assert stream.read() == b"b" * 699_995


def test_a_change_shows_in_the_identity_and_refreshes_the_copy(memory):
    memory.pipe_file("/bucket/m/v.txt", b"one")
    memory.pipe_file("/bucket/m/deep/b", b"b")
    before = filesystem.identity("memory://bucket/m/v.txt")
    path = filesystem.local_copy("memory://bucket/m/v.txt")
    assert pathlib.Path(path).read_bytes() == b"one" and filesystem.identity(path) == before
    memory.pipe_file("/bucket/m/v.txt", b"two")
    assert filesystem.identity("memory://bucket/m/v.txt") != before
    assert pathlib.Path(filesystem.local_copy("memory://bucket/m/v.txt")).read_bytes() == b"two"
    folder = pathlib.Path(filesystem.local_copy("memory://bucket/m"))
    memory.rm_file("/bucket/m/v.txt")
    assert filesystem.local_copy("memory://bucket/m") == str(folder)
    assert [p.name for p in folder.rglob("*") if p.is_file()] == ["b"]
    assert filesystem.local_copy("file:///x/y") == "/x/y"


def test_absent_files_are_one_line(memory):
    for read in (filesystem.open_read, filesystem.size, filesystem.local_copy):
        with pytest.raises(DataError, match="no such file: memory://bucket/none"):
            read("memory://bucket/none")


def failing(error: Exception, times: int, monkeypatch):
    """Lets fsspec's calls of `info` fail so many times; returns the list of calls."""
    calls = []

    def info(path):
        calls.append(path)
        if len(calls) <= times:
            raise error
        return {"type": "file", "size": 3, "name": path}

    fs = types.SimpleNamespace(info=info)
    monkeypatch.setattr(fsspec_calls, "_file_system", lambda url: (fs, url))
    monkeypatch.setattr(fsspec_calls.time, "sleep", lambda seconds: None)
    return calls


def test_only_transient_errors_are_retried(monkeypatch):
    calls = failing(ConnectionError("reset"), 3, monkeypatch)
    assert filesystem.size("memory://bucket/x") == 3 and len(calls) == 4
    for error, message in (
        (PermissionError("no"), "permission denied"),
        (OSError(28, "No space left on device"), "set ALBERT_CACHE to a directory on a larger disk"),
    ):
        calls = failing(error, 99, monkeypatch)
        with pytest.raises(DataError, match=f"cannot read memory://bucket/x: .*{message}"):
            filesystem.size("memory://bucket/x")
        assert len(calls) == 1
    calls = failing(ConnectionError("reset"), 99, monkeypatch)
    with pytest.raises(DataError, match="cannot read memory://bucket/x: reset"):
        filesystem.size("memory://bucket/x")
    assert len(calls) == 7


def test_globs_keep_the_host(monkeypatch):
    def absent(_):
        raise FileNotFoundError

    for root, path in (("hdfs://host:8020", ""), ("s3://b", "b"),
                       ("abfs://c@a.dfs.core.windows.net", "c")):
        fs = types.SimpleNamespace(
            info=absent, ls=lambda *_, **__: [],
            glob=lambda *_, path=path, **__: {f"{path}/d/x1": {"type": "file"}},
        )
        monkeypatch.setattr(
            fsspec_calls, "_file_system", lambda url, fs=fs, path=path: (fs, f"{path}/d/x*")
        )
        assert filesystem.glob(f"{root}/d/x*") == [f"{root}/d/x1"]
