"""A hub on this machine: the part of the Hugging Face API that fetching a model needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class FakeHub:
    """Commits of repositories: `files[name][commit]` maps paths to contents.

    `revisions[name]` names commits, `errors` gives an HTTP status and a code of the API for a
    repository, `requests` is what was asked for. The connection breaks once in the middle of each
    file in `breaking`; `continued` names the files of which the rest was asked for.
    """

    url: str = ""
    files: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    revisions: dict[str, dict[str, str]] = field(default_factory=dict)
    errors: dict[str, tuple[int, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    breaking: set[str] = field(default_factory=set)
    continued: list[str] = field(default_factory=list)

    def add(self, name: str, files: Mapping[str, bytes], revision: str = "main") -> str:
        """Add a commit to a repository, to which `revision` leads from now on."""
        commits = self.files.setdefault(name, {})
        commit = hashlib.sha1(f"{name} {len(commits)}".encode()).hexdigest()
        commits[commit] = dict(files)
        self.revisions.setdefault(name, {})[revision] = commit
        return commit

    def add_folder(self, name: str, folder: Path, revision: str = "main") -> str:
        """Add the files of a folder."""
        files = (path for path in folder.rglob("*") if path.is_file())
        contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
        return self.add(name, contents, revision)

    def fetched(self) -> set[str]:
        """The files that were asked for."""
        return {request.split("/resolve/")[1].partition("/")[2] for request in self.requests
                if request.startswith("GET") and "/resolve/" in request}  # fmt: skip


@contextmanager
def serving(hub: FakeHub) -> Iterator[None]:
    """Scope in which the hub answers at `hub.url`."""

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class _Handler(BaseHTTPRequestHandler):
    served: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.served.requests.append(f"{self.command} {path}")
        api, file = _API.fullmatch(path), _FILE.fullmatch(path)
        found = api or file
        name = found[1] if found else ""
        if name in self.served.errors:
            self._fail(*self.served.errors[name])
        elif name not in self.served.files:
            self._fail(401, "RepoNotFound")
        elif api:
            self._describe(name, api[2], api[3] or "main")
        elif file:
            self._send_file(name, file[2], file[3])

    def _commit(self, name: str, revision: str) -> str | None:
        if revision in self.served.files[name]:
            return revision
        return self.served.revisions[name].get(revision)

    def _describe(self, name: str, what: str | None, revision: str) -> None:
        commit = self._commit(name, revision)
        if commit is None:
            self._fail(404, "RevisionNotFound")
            return
        files = self.served.files[name][commit]
        if what == "tree":
            entries = [
                {"type": "file", "path": path, "size": len(data), "oid": _etag(data)}
                for path, data in files.items()
            ]
            self._send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})
            return
        siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
        about = {"id": name, "modelId": name, "sha": commit, "private": False, "siblings": siblings,
                 "tags": [], "downloads": 0, "likes": 0}  # fmt: skip
        self._send(200, json.dumps(about).encode(), {"Content-Type": "application/json"})

    def _send_file(self, name: str, revision: str, path: str) -> None:
        commit = self._commit(name, revision)
        if commit is None:
            self._fail(404, "RevisionNotFound")
        elif path not in self.served.files[name][commit]:
            self._fail(404, "EntryNotFound")
        else:
            data = self.served.files[name][commit][path]
            about = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit}
            wanted = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
            if self.command == "GET" and path in self.served.breaking:
                self.served.breaking.remove(path)
                self._send(200, data[: len(data) // 2], {**about, "Content-Length": f"{len(data)}"})
                self.close_connection = True
            elif self.command == "GET" and wanted:
                self.served.continued.append(path)
                start = int(wanted[1])
                covered = f"bytes {start}-{len(data) - 1}/{len(data)}"
                self._send(206, data[start:], {**about, "Content-Range": covered})
            else:
                self._send(200, data, about)

    def _fail(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _etag(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
