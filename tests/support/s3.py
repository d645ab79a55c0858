"""A local S3 server, and a proxy in front of it that is slow, disconnects or fails.

The server is moto's, in a separate process. The proxy forwards one request per connection.
"""

import contextlib
import os
import random
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

_ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>{}</Message></Error>"


# Servers choose a free port and print it, so that no other process can take it first.
_SERVE = """
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def server() -> Iterator[int]:
    """Yields the port of an empty server."""
    with process(_SERVE) as port:
        yield port


@contextlib.contextmanager
def process(code: str) -> Iterator[int]:
    """Yields the port that a server prints once it listens, while its process is alive."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            port = process.stdout.readline()
            assert port, "the server ended"
            yield int(port)
        finally:
            process.kill()


def environment(url: str, cache: os.PathLike) -> dict[str, str]:
    """Returns the environment variables that point a process to a server."""
    return {
        "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        "ALBERT_CACHE": str(cache),
    }


class Proxy:
    """A proxy in front of a server. Its attributes can be changed at any time.

    Attributes:
      latency: seconds before each answer.
      faults: fraction of the requests that fail: half with an error 500, half are cut off.
      forbidden: whether every request gets a 403.
    """

    def __init__(self, port: int):
        self.latency, self.faults, self.forbidden = 0.0, 0.0, False
        self.requests = self.failed = 0
        self._upstream, self._rng, self._lock = port, random.Random(0), threading.Lock()
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    outer._handle(self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, client: socket.socket) -> None:
        request = _read_request(client)
        if not request:
            return
        with self._lock:
            self.requests += 1
            is_faulty = self._rng.random() < self.faults
            is_error = self._rng.random() < 0.5
            self.failed += is_faulty
        time.sleep(self.latency)
        if self.forbidden:
            client.sendall(answer(request, 403, "AccessDenied", "Access Denied"))
            return
        if is_faulty and is_error:
            client.sendall(answer(request, 500, "InternalError", "We encountered an error."))
            return
        answered = self._asked(request)
        if is_faulty:  # the request arrived, but its response is lost
            answered = answered[: len(answered) // 2]
        client.sendall(answered)

    def _asked(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self._upstream)) as upstream:
            upstream.sendall(request)
            parts = []
            while part := upstream.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)


def _read_request(client: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = client.recv(1 << 16)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    fields = {k.strip().lower(): v.strip() for k, _, v in (x.partition(b":") for x in lines[1:])}
    if fields.get(b"expect"):
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        lines = [line for line in lines if not line.lower().startswith(b"expect:")]
    left = int(fields.get(b"content-length", 0)) - len(body)
    while left > 0:
        part = client.recv(min(left, 1 << 20))
        if not part:
            return b""
        body += part
        left -= len(part)
    return b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body


def answer(request: bytes, status: int, code: str, message: str) -> bytes:
    body = b"" if request.startswith(b"HEAD") else _ERROR.format(code, message).encode()
    return (
        f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
