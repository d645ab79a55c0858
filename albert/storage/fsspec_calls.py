"""Calls of fsspec: errors become one line with the address.

Transient errors are retried by the file systems' packages (s3fs, gcsfs).
"""

import contextlib
import errno
import importlib.util
import posixpath
import uuid
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from albert.errors import DataError, UserError, first_line

Identity = tuple[int, int]  # (size in bytes, time stamp in ns) of a file
Info = dict[str, Any]  # as fsspec describes a file or directory
Result = TypeVar("Result")

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure",
           "az": "azure", "hdfs": "hdfs"}
_TAGS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "VersionId", "LastModified",
         "last_modified", "mtime", "updated", "modified", "created")


class AbsentError(DataError):
    """There is no such remote file or directory."""


def call(url: str, verb: str, do: Callable[[Any, str], Result]) -> Result:
    """Returns `do(file system, path)`.

    Raises:
      AbsentError: there is no such file; DataError: any other error.
    """
    fs, path = file_system(url)
    try:
        return do(fs, path)
    except UserError:
        raise
    except FileNotFoundError as error:
        require_bucket(url)
        raise AbsentError(f"no such file: {url}") from error
    except Exception as error:  # of whatever type a file system's library raises
        raise DataError(f"cannot {verb} {url}: {_reason(error)}") from error


def file_system(url: str) -> tuple[Any, str]:
    """Returns fsspec's file system of an address or a path, and its name in it.

    Raises:
      DataError: a package or credentials are missing.
    """
    scheme = url.split("://", 1)[0].lower()
    install = f"pip install 'albert-keras[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else ""
    if importlib.util.find_spec("fsspec") is None:
        raise DataError(f"{url}: {scheme}:// needs fsspec: {install or 'pip install fsspec'}")
    import fsspec

    try:
        # Other processes write there, too, so listings must not be cached.
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise DataError(f"{url}: {scheme}:// needs a package that is not installed: "
                        f"{install or first_line(error)}") from error
    except Exception as error:  # of whatever type a file system's library raises
        raise DataError(f"{url}: {_reason(error)}") from error


def require_bucket(url: str) -> None:
    """Raises a DataError if an address is in a bucket that does not exist."""
    scheme, rest = url.split("://", 1)
    bucket = f"{scheme}://{rest.split('/', 1)[0]}"
    if _EXTRAS.get(scheme, "hdfs") != "hdfs":
        fs, path = file_system(bucket)
        try:
            fs.ls(path, detail=False)
        except FileNotFoundError as error:
            raise DataError(f"there is no bucket {bucket}") from error
        except Exception:  # noqa: S110 (files may be readable where the bucket cannot be listed)
            pass


def _reason(error: BaseException) -> str:
    if "Credential" in type(error).__name__ or "credentials" in str(error).lower():
        return f"no credentials ({first_line(error)})"
    if isinstance(error, PermissionError):
        return f"permission denied ({first_line(error)})"
    if getattr(error, "errno", 0) == errno.ENOSPC:
        return f"{error.strerror}; set ALBERT_CACHE to a directory on a larger disk"
    return first_line(error)


# === Information ===


def find_info(url: str) -> Info | None:
    """Returns information on a file or directory; None if it does not exist."""
    with contextlib.suppress(AbsentError):
        return call(url, "read", lambda fs, path: fs.info(path))
    return None


def stamp_of(info: Info) -> Identity:
    """Returns the size of a file, and a hash of its ETag or modification time as a time stamp."""
    tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
    return int(info["size"] or 0), (1 + zlib.crc32(tag.encode()) % 2**31) * 10**9


def list_infos(url: str, do: Callable[[Any, str], dict[str, Info]]) -> dict[str, Info]:
    """Returns {address: information} for the result of `do(file system, path)`; {} if absent."""
    def find(fs, path: str) -> dict[str, Info]:
        # Names lack the scheme, and in some file systems the host.
        key = url.split("://", 1)[1].partition("/")[2].strip("/")
        lead = path.strip("/").removesuffix(key).strip("/")
        root = url.rstrip("/").removesuffix(key).rstrip("/")
        return {
            f"{root}/{name.strip('/').removeprefix(lead).lstrip('/')}": info
            for name, info in do(fs, path).items()
        }

    try:
        infos = call(url, "list", find)
    except AbsentError:
        infos = {}
    if not infos:
        require_bucket(url)
    return infos


# === Writing ===


def upload(path: str, url: str) -> None:
    """Makes the file at an address a copy of a local one, atomically."""
    def put(fs, name: str) -> None:
        if not url.lower().startswith("hdfs:"):
            fs.put_file(path, name)
            return
        # Unlike an object, a file in HDFS can be seen before its last byte is written.
        scratch = f"{name}.tmp-{uuid.uuid4().hex}"
        fs.makedirs(posixpath.dirname(name), exist_ok=True)
        fs.put_file(path, scratch)
        if fs.exists(name):
            fs.rm_file(name)
        fs.mv(scratch, name)

    call(url, "write", put)


def write(url: str, content: bytes) -> None:
    """Writes a small file."""
    call(url, "write", lambda fs, name: fs.pipe_file(name, content))


def delete(url: str) -> None:
    """Removes a file, if it exists."""
    with contextlib.suppress(AbsentError):
        call(url, "remove", lambda fs, name: fs.rm_file(name))
