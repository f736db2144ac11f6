"""A small hub on loopback that speaks the protocol of huggingface.co as huggingface_hub uses it.

Two servers, as there: the hub lists files and says where they are, large ones lie on another host.
"""

import hashlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from cli_runs import environment, run
from tiny_model import tiny_tensors, write_json, write_tensors, write_tiny_model

LARGE = (".safetensors", ".bin", ".gguf")


class Asked(NamedTuple):
    """One request: kind is api, dataset, resolve or cdn; file is None where there is none."""

    method: str
    kind: str
    repo: str
    revision: str | None
    file: str | None
    headers: dict


class Hub:
    """Repositories by name. Every request is noted; `faults` holds what goes wrong in one."""

    def __init__(self):
        self.commits = {}  # (repo, revision or commit) -> (commit, {file: bytes})
        self.datasets, self.asked, self.faults = set(), [], {}
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler()) for _ in range(2)]
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.url, self.cdn = (f"http://127.0.0.1:{s.server_port}" for s in self.servers)

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add(self, repo, files, revision="main"):
        """Another commit of a repository -> its id."""
        commit = hashlib.sha1(repr((repo, sorted(files.items()))).encode()).hexdigest()
        for name in (revision, commit):
            self.commits[repo, name] = commit, dict(files)
        return commit

    def add_folder(self, repo, folder, revision="main", **extra):
        """The same, with the files of a folder."""
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        return self.add(repo, files | extra, revision)

    def fault(self, repo, answer, *kinds, times=None):
        """`answer(handler, ask)` to requests of these kinds, the first `times` of them or all."""
        left = [times]

        def answered(handler, ask):
            if ask.kind not in kinds or left[0] == 0:
                return False
            left[0] = left[0] and left[0] - 1
            answer(handler, ask)
            return True

        self.faults[repo] = answered

    def refuse(self, repo, status, code=None, message=None, kind="api", times=None):
        """A fault: the hub says no."""
        self.fault(
            repo, lambda handler, ask: handler.refuse(status, code, message), kind, times=times
        )

    def change(self, repo, file, change):
        """A fault: what comes of one file is not what is listed."""

        def answer(handler, ask):
            handler.answer(self, ask, change(self.content(ask)) if ask.file == file else None)

        self.fault(repo, answer, "resolve", "cdn")

    def content(self, ask):
        """The bytes that a request wants."""
        return self.commits[ask.repo, ask.revision][1][ask.file]

    def add_shards(self, repo, folder, more=(), **extra):
        """The tiny model in two files and their index, which may name `more` {tensor: file}."""
        write_tiny_model(folder)
        (folder / "model.safetensors").unlink()
        tensors = tiny_tensors()
        weight_map = {name: f"model-{'ab'[i < 9]}.safetensors" for i, name in enumerate(tensors)}
        for file in set(weight_map.values()):
            part = {name: tensors[name] for name in tensors if weight_map[name] == file}
            write_tensors(folder / file, part)
        index = {"weight_map": weight_map | dict(more)}
        write_json(folder / "model.safetensors.index.json", index)
        return self.add_folder(repo, folder, **extra)

    def files(self, *kinds, method="GET"):
        """Names of the files that were asked for in a kind of request, in order."""
        return [ask.file for ask in self.asked if ask.kind in kinds and ask.method == method]

    def _handler(hub):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                ask = parse(self.command, self.path, dict(self.headers))
                hub.asked.append(ask)
                fault = hub.faults.get(ask.repo)
                if fault is None or not fault(self, ask):
                    self.answer(hub, ask)

            do_HEAD = do_GET

            def answer(self, hub, ask, content=None):
                """What a hub without a fault says; `content` in place of the file's bytes."""
                found = hub.commits.get((ask.repo, ask.revision))
                if ask.kind == "dataset" and ask.repo in hub.datasets:
                    self.send(200, json.dumps({"id": ask.repo, "sha": "0" * 40, "tags": []}))
                elif found is None:
                    known = any(repo == ask.repo for repo, _ in hub.commits)
                    self.refuse(404, "RevisionNotFound" if known else "RepoNotFound")
                elif ask.kind == "api":
                    self.send(200, json.dumps(listing(ask.repo, *found)))
                elif ask.file not in found[1]:
                    self.refuse(404, "EntryNotFound")
                else:
                    self.file(hub, ask, found[0], content or found[1][ask.file], found[1][ask.file])

            def file(self, hub, ask, commit, content, listed):
                etag = sha256(listed) if ask.file.endswith(LARGE) else git_sha1(listed)
                headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit}
                if ask.file.endswith(LARGE) and ask.kind == "resolve":
                    headers |= {"X-Linked-Size": len(listed), "X-Linked-Etag": f'"{etag}"'}
                    path = f"/cdn/{ask.repo}/{commit}/{ask.file}"
                    return self.send(302, b"", Location=hub.cdn + path, **headers)
                return self.send(200, content, **headers)

            def refuse(self, status, code=None, message=None):
                named = {"X-Error-Code": code, "X-Error-Message": message}
                self.send(status, b"", **{key: text for key, text in named.items() if text})

            def send(self, status, body, part=None, reset=False, **headers):
                """An answer, from where it is wanted, or a part of it and no more."""
                body = body.encode() if isinstance(body, str) else body
                start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
                if start is not None and status == 200:
                    first, size, status = int(start[1]), len(body), 206
                    headers["Content-Range"] = f"bytes {first}-{size - 1}/{size}"
                    body = body[first:]
                self.send_response(status)
                for name, value in {**headers, "Content-Length": len(body)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body if part is None else body[: int(len(body) * part)])
                    self.wfile.flush()
                if reset:  # no polite end
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.connection.close()
                self.close_connection = self.close_connection or part is not None

            def log_message(self, *_):
                pass

        return Handler


def parse(method, path, headers):
    path = urlsplit(path).path
    for kind, pattern in {
        "api": r"/api/models/(?P<repo>[^/]+/[^/]+)/revision/(?P<revision>[^/]+)",
        "dataset": r"/api/datasets/(?P<repo>[^/]+/[^/]+)",
        "resolve": r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)",
        "cdn": r"/cdn/(?P<repo>[^/]+/[^/]+)/(?P<revision>[^/]+)/(?P<file>.+)",
    }.items():
        if match := re.fullmatch(pattern, path):
            found = {key: unquote(text) for key, text in match.groupdict().items()}
            names = (found.get(key) for key in ("repo", "revision", "file"))
            return Asked(method, kind, *names, headers)
    return Asked(method, "other", path, None, None, headers)


def listing(repo, commit, files):
    """What /api/models/{repo}/revision/{revision}?blobs=True says."""
    siblings = []
    for name, content in files.items():
        entry = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
        if name.endswith(LARGE):
            entry["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 134}
        siblings.append(entry)
    flags = {"private": False, "gated": False, "disabled": False, "tags": [], "downloads": 0}
    return {"_id": "0", "id": repo, "modelId": repo, "sha": commit, "siblings": siblings, **flags}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


# ---- what the tests of a hub share ---------------------------------------------------------------

# Waits are not waited for, files come in small pieces, and what comes of each name is told.
CHILD = """
import json, sys, time, warnings
import minifer
from minifer.load import locate
from huggingface_hub import constants
time.sleep = lambda seconds: None
constants.DOWNLOAD_CHUNK_SIZE = 1000
warnings.showwarning = lambda message, *rest: print(f"note: {message}", file=sys.stderr)
def told(name):
    try:
        return eval(WHAT)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
"""


@pytest.fixture
def no_other_hub(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens


@pytest.fixture
def hub(no_other_hub, folder):
    """A hub that holds one model, me/tiny."""
    server = Hub()
    server.add_folder("me/tiny", folder)
    yield server
    server.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    write_json(folder / "generation_config.json", {"eos_token_id": [2]})
    return folder


@pytest.fixture
def ask(hub, tmp_path):
    """Runs a process that is asked for some names -> what it made of each, and its stderr."""

    def run_child(*names, what="str(locate(name))", before="", **env):
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), **env}
        code = f"{CHILD}\nWHAT = {what!r}\n{before}\nprint(json.dumps([told(n) for n in NAMES]))"
        process = subprocess.run(
            [sys.executable, "-c", code.replace("NAMES", repr(names))],
            capture_output=True, encoding="utf-8", timeout=60, env=environment(**env), cwd=tmp_path,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        run_child.err = process.stderr
        found = json.loads(process.stdout)
        return found[0] if len(names) == 1 else found

    return run_child


@pytest.fixture
def command(hub, tmp_path):
    """Runs the command line against the hub."""
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    return lambda *args, **more: run(*args, **env, **more)


@pytest.fixture
def blobs(tmp_path):
    """The files of the cache; a half one may stay to be resumed, under a name nobody opens."""
    found = lambda: tmp_path.glob("home/hub/*/blobs/*")  # noqa: E731
    return lambda: [path.name for path in found() if path.suffix != ".incomplete"]
