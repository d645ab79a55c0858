"""A local Google Cloud Storage server."""

import contextlib
import os
from collections.abc import Iterator

import pytest

import s3

REASON = "gcsfs or gcp-storage-emulator is not installed (extra: gcs-test)"


def require_emulator() -> None:
    for module in ("gcsfs", "gcp_storage_emulator"):
        pytest.importorskip(module, reason=REASON)


_SERVE = """
from gcp_storage_emulator.server import create_server

server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
server.start()
print(server._api._httpd.server_port, flush=True)
"""


@contextlib.contextmanager
def server() -> Iterator[int]:
    """Yields the port of a server with one empty bucket, `bucket`."""
    with s3.process(_SERVE) as port:
        yield port


def environment(url: str, cache: os.PathLike) -> dict[str, str]:
    """Returns the environment variables that point a process to a server."""
    return {"STORAGE_EMULATOR_HOST": url, "ALBERT_CACHE": str(cache)}
