"""Cloud storage (`s3://`, `gs://` and all else that fsspec knows): copies inputs in, and outputs out.

The copy of SCHEME://PATH is CACHE/inputs/SCHEME/PATH, and its output is made at CACHE/outputs/SCHEME/PATH,
where the next process finds what a killed one has not copied out. `.cloud.json` in such a directory has
{name: [identity there, [size, time] here]} of its files when they were last equal, so whatever differs
has changed since.
"""

import contextlib
import json
import logging
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from albert.errors import DataError, RunDirBusyError, UserError, first_line
from albert.storage import shipped
from albert.storage.temporary import temporary_dir, this_process

log = logging.getLogger("albert")

_REMOTE = re.compile(r"(?!(?:file|https?)://)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_EXTRAS = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "az": "azure", "hdfs": "hdfs"}
_CHECKPOINT_FILE = re.compile(r"\.(index|meta|safetensors|data-\d{5}-of-\d{5})$")
_SMALL = 64 << 20  # bytes of the largest file that is copied because a checkpoint next to it is
# Files that make others valid: copied out last, removed first.
_MARKERS = (".index", ".manifest.json", "config.json", "saved_model.pb")


# === Addresses ===


def is_remote(path: str | None) -> bool:
    """Whether a path is an address in cloud storage; those of the web belong to TF-Hub modules."""
    return bool(_REMOTE.match(path or ""))


def cache_directory() -> str:
    """Returns the directory of copied and unpacked files: $ALBERT_CACHE or the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.realpath(os.environ.get("ALBERT_CACHE") or os.path.join(base, "albert"))


def as_given(text: str) -> str:
    """Returns a text with addresses, and names of built-in models, instead of local paths."""
    copies = rf"{re.escape(cache_directory())}/(?:inputs|outputs)/([^/\s]+)/"
    return re.sub(copies, r"\1://", text).replace(os.path.join(shipped.FOLDER, ""), "")


@contextlib.contextmanager
def addresses_in_errors() -> Iterator[None]:
    """Shows addresses in error messages instead of local paths."""
    try:
        yield
    except UserError as error:
        error.args = (as_given(str(error)),)
        raise


@contextlib.contextmanager
def open_storage(url: str, verb: str = "read") -> Iterator[tuple[Any, str]]:
    """Yields fsspec's file system of an address, and the path in it. Its packages retry transient errors.

    Raises:
      DataError: an error in the block (names the address).
    """
    scheme = url.partition("://")[0].lower()
    try:
        import fsspec

        # Other processes write there, too, so listings must not be cached.
        yield fsspec.core.url_to_fs(url, use_listings_cache=False)
    except UserError:
        raise
    except ImportError as error:
        install = f"pip install 'albert-keras[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else first_line(error)
        raise DataError(f"{url}: {scheme}:// needs a package that is not installed: {install}") from error
    except Exception as error:  # of whatever type a file system's library raises
        kind = "permission denied: " if isinstance(error, PermissionError) else ""
        if "credential" in f"{type(error).__name__} {error}".lower():
            kind = "no credentials: "
        raise DataError(f"cannot {verb} {url}: {kind}{first_line(error)}") from error


# === Directories ===


class Folder:
    """A directory in cloud storage with its local copy.

    If only an output in it is of interest, `start` is its name, with which the names of its files begin.
    """

    def __init__(self, url: str, tree: str, start: str = ""):
        scheme, _, rest = url.partition("://")
        parts = list(filter(None, rest.split("/")))
        if {".", ".."} & {*parts, start}:
            raise DataError(f"{url}: an address must not contain . or ..")
        self.url, self.start = url, start
        self.path = os.path.join(cache_directory(), tree, scheme.lower(), *parts)
        self._token = ""  # what this process wrote to show that it is the one that writes there

    @contextlib.contextmanager
    def _copying(self, verb: str) -> Iterator[tuple[Any, str, dict[str, Any]]]:
        """Yields the file system, the directory in it, and the content of `.cloud.json`, to be updated."""
        import filelock

        os.makedirs(self.path, exist_ok=True)
        path, state = os.path.join(self.path, ".cloud.json"), {}
        lock = filelock.FileLock(os.path.join(self.path, ".cloud.lock"))
        with lock, open_storage(self.url, verb) as (fs, root):
            with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as stream:
                state = json.load(stream)
            try:
                yield fs, root.rstrip("/"), state
            finally:
                with open(f"{path}.new", "w", encoding="utf-8") as stream:
                    json.dump(state, stream)
                os.replace(f"{path}.new", path)

    def _find(self, fs: Any, root: str) -> list[str]:
        """Returns the names of the files there, but for hidden ones; of an output's, and README.md."""
        infos = fs.find(f"{root}/{self.start}".rstrip("/"), detail=True)
        if self.start:
            infos = {**infos, **fs.find(root, maxdepth=1, detail=True)}
        names = [path.removeprefix(root).strip("/") for path, info in infos.items() if info["type"] == "file"]
        return [name for name in names if "/." not in f"/{name}"
                and (name.startswith(self.start) or name == "README.md")]

    def pull(self, names: Iterable[str] | None = None) -> None:
        """Copies changed files; by default of all, and then removes copies of those removed there."""
        with self._copying("read") as (fs, root, state):
            there = self._find(fs, root) if names is None else list(names)
            if strange := [name for name in there if ".." in name.split("/") or "\\" in name or "\0" in name]:
                raise DataError(f"{self.url}: {strange[0]!r} cannot be a file name here: move it away")

            def fetch(name: str) -> int:
                path, source = os.path.join(self.path, name), f"{root}/{name}"
                if state.get(name, [""])[0] == (identity := fs.ukey(source)) and os.path.exists(path):
                    return 0
                with temporary_dir(path) as folder:
                    fs.get_file(source, copy := os.path.join(folder, "file"))
                    if (size := os.path.getsize(copy)) != fs.size(source):
                        raise DataError(f"{self.url}/{name} was replaced while it was copied: rerun the "
                                        "command")
                    os.replace(copy, path)
                state[name] = [identity, _stamp(path)]
                return size

            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(8) as pool:
                sizes = list(filter(None, pool.map(fetch, there)))
            removed = [name for name in state if name.startswith(self.start) and name not in there]
            for name in removed if names is None else ():
                with contextlib.suppress(FileNotFoundError):
                    if state.pop(name)[1] == _stamp(path := os.path.join(self.path, name)):
                        os.unlink(path)
        if sizes:
            log.info("copied %d file(s) of %s (%.1f MB)", len(sizes), self.url, sum(sizes) / 1e6)

    def push(self) -> None:
        """Copies changed files out, in the order of publication, and removes there those removed here.

        Raises:
          RunDirBusyError: another process has taken the directory over; DataError: cannot copy.
        """
        paths = [os.path.join(parent, name) for parent, _, names in os.walk(self.path) for name in names]
        here = {os.path.relpath(path, self.path): path for path in paths}
        here = {name: path for name, path in here.items() if "/." not in f"/{name}"
                and (name.startswith(self.start) or "/" not in name)}  # of this output, or next to it
        with self._copying("write") as (fs, root, state):
            if self._token and (owner := self._owner(fs, root)) != self._token:
                owner = owner or "another process, which has ended"
                raise RunDirBusyError(f"{self.url} was taken over by {owner}: this one stops, and writes "
                                      "nothing more there")

            def remove(names: Iterable[str]) -> None:
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        fs.rm_file(f"{root}/{name}")
                    del state[name]

            changed = [name for name, path in here.items() if state.get(name, ["", []])[1] != _stamp(path)]
            changed.sort(key=lambda name: (os.stat(here[name]).st_ctime_ns, name.endswith(_MARKERS), name))
            remove([name for name in changed if name in state and name.endswith(_MARKERS)])
            for name in changed:
                stamp = _stamp(here[name])
                fs.put_file(here[name], f"{root}/{name}")
                state[name] = [fs.ukey(f"{root}/{name}"), stamp]
            removed = [name for name in state if name not in here and name.startswith(self.start)]
            remove(sorted(removed, key=lambda name: not name.endswith(_MARKERS)))

    def own(self) -> None:
        """Takes the directory over: a process that has done so before stops before it writes again."""
        if not self._token:
            self._token = f"{this_process()} ({uuid.uuid4().hex})"
            with open_storage(self.url, "write") as (fs, root):
                before = self._owner(fs, root)
                fs.pipe_file(f"{root}/{self._token_name}", self._token.encode())
            if before:
                log.warning("took over %s from %s: if that process is alive, it stops before it writes there "
                            "again", self.url, before)
            self.pull()

    def give_up(self) -> None:
        """Removes the token of this process."""
        with contextlib.suppress(DataError), open_storage(self.url, "write") as (fs, root):
            if self._token and self._owner(fs, root) == self._token:
                fs.rm_file(f"{root}/{self._token_name}")

    @property
    def _token_name(self) -> str:
        return f".{self.start}.owner" if self.start else ".owner"

    def _owner(self, fs: Any, root: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return fs.cat_file(f"{root}/{self._token_name}").decode("utf-8", "replace")
        return ""


def _stamp(path: str) -> list[int]:
    info = os.stat(path)
    return [info.st_size, info.st_mtime_ns]


# === Inputs ===


def local_copy(path: str, flag: str = "path") -> str:
    """Returns the path of a local copy of a remote file, directory or checkpoint; local paths are unchanged.

    A checkpoint is given by its prefix or one of its files; small files next to it are copied, too.

    Raises:
      DataError: it is missing (names the `flag`), or cannot be copied.
    """
    if not is_remote(path):
        return path.removeprefix("file://")
    url = path.rstrip("/")
    folder = Folder(url, "inputs")
    with open_storage(url) as (fs, name):
        if fs.isdir(name):
            folder.pull()
            return folder.path
        prefix = _CHECKPOINT_FILE.sub("", name)
        if prefix == name and fs.isfile(name):
            return _copies_of(fs, url, [name])[0]
        infos = fs.find(name.rpartition("/")[0], maxdepth=1, detail=True)
        of_checkpoint = [name for name in infos if name.startswith(f"{prefix}.")]
        if not of_checkpoint:
            raise DataError(f"{flag}: no such file: {path}")
        small = [name for name, info in infos.items()
                 if not _CHECKPOINT_FILE.search(name) and info["type"] == "file" and info["size"] <= _SMALL]
        _copies_of(fs, url, {*of_checkpoint, *small})
    return folder.path


def local_copies(pattern: str, flag: str, beside: tuple[str, ...] = ()) -> list[str]:
    """Returns copies of the files that match a remote glob, or of a directory.

    Args:
      beside: how the names of files end that don't match, but are copied if they are next to one.

    Raises:
      DataError: there are none, or they cannot be copied.
    """
    with open_storage(pattern, "list") as (fs, name):
        if fs.isdir(name):
            return [local_copy(pattern, flag)]
        infos = fs.glob(name, detail=True).items()
        matches = [path for path, info in infos if info["type"] == "file" and not path.endswith(beside)]
        if not matches:
            raise DataError(f"{flag}: no file matches {pattern}")
        parents = {path.rpartition("/")[0] for path in matches}
        _copies_of(fs, pattern, [path for parent in parents for path in fs.ls(parent, detail=False)
                                 if path.endswith(beside or "\0")])
        return _copies_of(fs, pattern, sorted(matches))


def _copies_of(fs: Any, url: str, paths: Iterable[str]) -> list[str]:
    """Returns the copies of files in the bucket of an address."""
    bucket = "/".join(url.split("/")[:3])
    folder, root = Folder(bucket, "inputs"), fs._strip_protocol(bucket)
    names = [path.removeprefix(root).strip("/") for path in paths]
    folder.pull(names)
    return [os.path.join(folder.path, name) for name in names]


# === Outputs ===

_outputs: list[Folder] = []  # of this process


@contextlib.contextmanager
def output(path: str, is_directory: bool = False) -> Iterator[str]:
    """Yields the local path at which to make an output, which is copied out after the block.

    Args:
      is_directory: whether to continue with the files in it; `own` takes it over.

    Raises:
      UserError: something could not be copied (names where it is).
    """
    if not is_remote(path):
        yield path.removeprefix("file://")
        return
    url = path.rstrip("/")
    parent, _, name = url.rpartition("/")
    folder = Folder(url, "outputs") if is_directory else Folder(parent, "outputs", name)
    _outputs.append(folder)
    try:
        if is_directory:
            folder.pull()
        else:
            folder.own()  # now, since that shows whether it can be written
            folder.push()  # what an earlier process could not
        yield folder.path if is_directory else os.path.join(folder.path, name)
        try:
            folder.push()
        except DataError as error:
            raise UserError(f"{error}; what was not uploaded is in {cache_directory()}/outputs") from error
    finally:
        _outputs.remove(folder)
        folder.give_up()


def own(path: str) -> None:
    """Takes over the directory whose output a local path is, if it is one."""
    for folder in _outputs:
        if folder.path == os.path.abspath(path):
            folder.own()


def push() -> None:
    """Copies out what has changed in the outputs of this process; a failure is logged, and retried later.

    Raises:
      RunDirBusyError: another process has taken a directory over.
    """
    for folder in _outputs:
        try:
            folder.push()
        except DataError as error:
            log.warning("%s; trying again with the next checkpoint", error)
