"""A local Google Cloud Storage server, and a proxy in front of it that supports conditions."""

import contextlib
import json
import os
import re
import threading
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


class Proxy(s3.Proxy):
    """Adds a feature that the emulator lacks: `ifGenerationMatch=0` creates only a new object."""

    def __init__(self, port: int):
        super().__init__(port)
        self._condition = threading.Lock()
        self.refused = 0

    def _asked(self, request: bytes) -> bytes:
        line, _, body = request.partition(b"\r\n")
        if b"ifGenerationMatch=0" not in line:
            return super()._asked(request)
        bucket = re.search(rb"/b/([^/]+)/o", line)[1]
        name = json.loads(re.search(rb"\n(\{.*\})\n", body)[1])["name"]
        path = b"/storage/v1/b/%s/o/%s" % (bucket, name.replace("/", "%2F").encode())
        with self._condition:
            found = super()._asked(
                b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path
            )
            if b" 200 " not in found.split(b"\r\n", 1)[0]:
                return super()._asked(request)
        self.refused += 1
        return s3.answer(request, 412, "conditionNotMet", "At least one condition did not hold.")
