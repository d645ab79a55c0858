"""Reading, listing and copying by path or address."""

import os
import pathlib
import types

import pytest

from albert.errors import DataError
from albert.storage import filesystem, fsspec_calls

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'albert[test]'")


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """An empty file system in memory, and an empty cache."""
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


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


def test_streams_of_paths_and_addresses_are_alike(memory, tmp_path):
    content = os.urandom(1 << 20) + b"\nlast line"
    (tmp_path / "x").write_bytes(content)
    memory.pipe_file("/bucket/x", content)
    for path in (str(tmp_path / "x"), "memory://bucket/x"):
        with filesystem.open_read(path) as stream:
            assert stream.read(10) == content[:10]
            assert stream.seek(-9, os.SEEK_END) == len(content) - 9
            assert stream.readline() == b"last line" and stream.read() == b""
            stream.seek(5)
            assert stream.read() == content[5:]


def test_a_change_shows_in_the_identity_and_refreshes_the_copy(memory):
    memory.pipe_file("/bucket/v.txt", b"one")
    before = filesystem.identity("memory://bucket/v.txt")
    path = filesystem.local_copy("memory://bucket/v.txt")
    assert pathlib.Path(path).read_bytes() == b"one" and filesystem.identity(path) == before
    memory.pipe_file("/bucket/v.txt", b"two")
    assert filesystem.identity("memory://bucket/v.txt") != before
    assert pathlib.Path(filesystem.local_copy("memory://bucket/v.txt")).read_bytes() == b"two"


def test_a_copy_of_a_directory_holds_what_is_there_now(memory):
    memory.pipe_file("/bucket/m/a", b"a")
    memory.pipe_file("/bucket/m/deep/b", b"b")
    path = pathlib.Path(filesystem.local_copy("memory://bucket/m"))
    memory.rm_file("/bucket/m/a")
    assert filesystem.local_copy("memory://bucket/m") == str(path)
    assert [p.name for p in path.rglob("*") if p.is_file()] == ["b"]
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


def test_transient_errors_are_retried(monkeypatch):
    calls = failing(ConnectionError("reset"), 3, monkeypatch)
    assert filesystem.size("memory://bucket/x") == 3 and len(calls) == 4


@pytest.mark.parametrize("error, message", [
    (PermissionError("no"), "permission denied"),
    (OSError(28, "No space left on device"), "set ALBERT_CACHE to a directory on a larger disk"),
])
def test_permanent_errors_are_not_retried(error, message, monkeypatch):
    calls = failing(error, 99, monkeypatch)
    with pytest.raises(DataError, match=f"cannot read memory://bucket/x: .*{message}"):
        filesystem.size("memory://bucket/x")
    assert len(calls) == 1


@pytest.mark.parametrize("pattern, path, name, expected", [
    ("hdfs://host:8020/d/x*", "/d/x*", "/d/x1", "hdfs://host:8020/d/x1"),
    ("s3://b/d/x*", "b/d/x*", "b/d/x1", "s3://b/d/x1"),
    ("abfs://c@a.dfs.core.windows.net/d/x*", "c/d/x*", "c/d/x1",
     "abfs://c@a.dfs.core.windows.net/d/x1"),
])
def test_globs_keep_the_host(pattern, path, name, expected, monkeypatch):
    def absent(_):
        raise FileNotFoundError

    fs = types.SimpleNamespace(
        info=absent, ls=lambda *_, **__: [], glob=lambda *_, **__: {name: {"type": "file"}}
    )
    monkeypatch.setattr(fsspec_calls, "_file_system", lambda url: (fs, path))
    assert filesystem.glob(pattern) == [expected]
