"""A local stand-in for Hugging Face's hub, and for any file server."""

import contextlib
import hashlib
import http.server
import json
import pathlib
import threading
from collections.abc import Iterator


LARGE = 1 << 20  # bytes


class Hub(http.server.ThreadingHTTPServer):
    """Serves `folder`/owner/name/revision/file like the hub, and `folder`/files as they are.

    `requests` lists each (method, path) so far. `private` models require the token "secret". Only half
    of each of the next `cuts` files is sent. `broken` answers everything with 503. While `goes_on` is
    cleared, a large file stops in the middle, which sets `has_stopped`.
    """

    def __init__(self, folder: pathlib.Path):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.requests, self.private = folder, [], set()
        self.cuts, self.broken = 0, False
        self.goes_on, self.has_stopped = threading.Event(), threading.Event()
        self.goes_on.set()
        self.address = f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def _fail(self, status: int, code: str, commit: str | None = None) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        if commit:
            self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self) -> None:
        hub: Hub = self.server
        hub.requests.append((self.command, self.path))
        parts = self.path.partition("?")[0].strip("/").split("/")
        if hub.broken:
            return self._fail(503, "Unavailable")
        if parts[:2] == ["api", "models"]:
            return self._answer_api(*parts[2:])
        if len(parts) > 4 and parts[2] == "resolve":
            owner, name, _, revision, *below = parts
            if (folder := self._folder_of(owner, name, revision)) is None:
                return None
            path, commit = folder.joinpath(*below), commit_of(folder)
        else:
            path, commit = hub.folder / "files" / "/".join(parts), None
        if not path.is_file():
            return self._fail(404, "EntryNotFound", commit)
        self._send(path.read_bytes(), commit)

    def _folder_of(self, owner: str, name: str, revision: str) -> pathlib.Path | None:
        """Returns the folder of a model's revision, or None after refusing the request."""
        model = self.server.folder / owner / name
        is_allowed = f"{owner}/{name}" not in self.server.private
        if not is_allowed and self.headers.get("Authorization") != "Bearer secret":
            return self._fail(401, "RepoNotFound")
        if not model.is_dir():
            return self._fail(404, "RepoNotFound")
        commits = {commit_of(folder): folder for folder in model.iterdir()}
        folder = commits.get(revision, model / revision)
        return folder if folder.is_dir() else self._fail(404, "RevisionNotFound")

    def _answer_api(self, owner: str, name: str, what: str = "revision", revision: str = "main") -> None:
        """Answers what a revision's commit is, and which files it has."""
        if (folder := self._folder_of(owner, name, revision)) is None:
            return
        files = {
            str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()
        }
        answer = [
            {"type": "file", "path": name, "size": path.stat().st_size,
             "oid": hashlib.sha256(path.read_bytes()).hexdigest()} for name, path in files.items()
        ] if what == "tree" else {
            "id": f"{owner}/{name}", "sha": commit_of(folder), "private": False, "tags": [],
            "siblings": [{"rfilename": name} for name in files],
        }
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send(self, content: bytes, commit: str | None) -> None:
        tag, start = f'"{hashlib.sha256(content).hexdigest()}"', 0
        if self.headers.get("If-None-Match") == tag:
            return self._fail(304, "NotModified")
        if wanted := self.headers.get("Range"):
            if self.headers.get("If-Range", tag) == tag:
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
        if start and start >= len(content):
            return self._fail(416, "RangeNotSatisfiable")
        rest = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", tag)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(rest)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if commit:
            self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.server.cuts > 0 and len(rest) > 1000:
            self.server.cuts -= 1
            self.wfile.write(rest[: len(rest) // 2])
            self.close_connection = True
            self.connection.close()
            return
        half = len(rest) // 2
        self.wfile.write(rest[:half])
        if len(rest) > LARGE and not self.server.goes_on.is_set():
            self.server.has_stopped.set()
            self.server.goes_on.wait(100)
        with contextlib.suppress(ConnectionError):  # of a client that was stopped
            self.wfile.write(rest[half:])


def commit_of(folder: pathlib.Path) -> str:
    """Returns the commit of a revision's folder, derived from its name."""
    return hashlib.sha1(folder.name.encode()).hexdigest()


@contextlib.contextmanager
def serving(folder: pathlib.Path) -> Iterator[Hub]:
    """Serves a folder until the end of the block."""
    with Hub(folder) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
