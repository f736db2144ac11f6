"""A model on a hub: owner/name -> a folder with its files, fetched once and shared with others.

huggingface_hub does the talking: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and proxies count as it
reads them. It keeps files in its own cache (HF_HOME), where other tools find them too. Here it is
chosen which files are needed, all of one commit; what arrived is checked, what failed is worded.
Cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import hashlib
import logging
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import CheckpointError, FetchError, MiniferError, MiniferWarning
from .json_file import read_json, whole_file

# What the readers of a model folder open, the weights apart. Nothing else is asked for.
_SMALL = re.compile(
    r"((generation_|tokenizer_)?config|tokenizer|special_tokens_map)\.json"
    r"|chat_template\.jinja|additional_chat_templates/[\w.+-]+\.jinja"
)
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_COMMIT = re.compile(r"[0-9a-f]{40}")
# Classes of no answer and of a broken one, in every HTTP library that huggingface_hub has used.
_TRANSPORT = re.compile(r"Connect|Timeout|Network|Transport|Protocol|Chunked")
_BROKEN_OFF = re.compile(r"ReadError|RemoteProtocol|Chunked")


def fetch_model(
    repo: str,
    revision: str = "main",
    *,
    offline: bool = False,
    force: bool = False,
    weights: bool = True,
    check: Callable[[Path], object] | None = None,
) -> Path:
    """The folder of one commit of a model; what is not there yet is fetched.

    `force` fetches all of it anew, `weights=False` only the other files. `check` gets the folder
    before the weights are fetched and may raise. Where the hub cannot be reached, the commit that
    was fetched last is taken, with a warning. Raises FetchError, and what `check` raises.
    """
    from huggingface_hub import constants

    named = repo if revision == "main" else f"{repo}@{revision}"
    storage = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    if offline or constants.HF_HUB_OFFLINE:
        found = None if force else cached(storage, revision, weights)
        if found is None:
            why = "HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "offline"
            more = f"{why} forbids to fetch it; with a network: python -m minifer fetch {named}"
            raise FetchError(f"{named} is not, or not whole, in {storage}, and {more}")
        return found

    from huggingface_hub import HfApi

    from . import __version__

    constants.HF_HUB_DISABLE_TELEMETRY = True  # else it tells which programs are installed here
    api = HfApi(library_name="minifer", library_version=__version__)
    try:
        with _hushed():
            snapshot = _list_files(api, repo, revision, storage)
            snapshot.fetch(force, weights, check)
    except MiniferError:
        raise
    except Exception as problem:
        found = None if force or not _unreachable(problem) else cached(storage, revision, weights)
        if found is None:
            raise FetchError(_worded(problem, api, repo, revision, storage)) from problem
        text = f"{api.endpoint} cannot be reached: {named} is taken as it was fetched last"
        warnings.warn(text, MiniferWarning, stacklevel=3)
        return found
    if weights or cached(storage, revision) is None:  # a whole one stays the one to fall back on
        snapshot.remember(revision)
    return snapshot.folder


def cached(storage: Path, revision: str = "main", weights: bool = True) -> Path | None:
    """The folder in the cache that `revision` stood for last, or None where it is not whole."""
    commit, ref = revision, storage / "refs" / revision
    if not _COMMIT.fullmatch(commit) and ref.is_file():
        commit = ref.read_text(encoding="utf-8", errors="replace").strip()
    folder = storage / "snapshots" / commit
    needed = ["config.json"]
    if weights and not (folder / SINGLE).is_file():
        needed += [INDEX, *(shards_of(folder / INDEX) if (folder / INDEX).is_file() else ())]
    whole = _COMMIT.fullmatch(commit) and all((folder / name).is_file() for name in needed)
    return folder if whole else None


def shards_of(index: Path) -> list[str]:
    """The files that model.safetensors.index.json names. Raises CheckpointError."""
    weight_map = read_json(index, CheckpointError).get("weight_map")
    shards = list(weight_map.values()) if isinstance(weight_map, dict) else []
    for shard in shards or [None]:
        if not isinstance(shard, str) or not re.fullmatch(r"[\w.+-]+\.safetensors", shard):
            wanted = "the plain name of a .safetensors file"
            raise CheckpointError(f"{index}: weight_map names {shard!r:.80}, expected {wanted}")
    return sorted(set(shards))


class Snapshot:
    """The files of one commit, as the hub lists them, and the folder they come to."""

    def __init__(self, api: Any, repo: str, commit: str, files: dict[str, Any], storage: Path):
        self.api, self.repo, self.commit, self.files = api, repo, commit, files
        self.storage, self.folder = storage, storage / "snapshots" / commit

    def fetch(self, force: bool, weights: bool, check: Callable[[Path], object] | None) -> None:
        """The small files first: a folder that holds its weights then holds the rest too."""
        if "config.json" not in self.files or (weights and not {SINGLE, INDEX} & set(self.files)):
            raise FetchError(self._what_is_missing())
        for name in filter(_SMALL.fullmatch, sorted(self.files)):
            self._bring(name, force)
        if not weights:
            return
        if check is not None:
            check(self.folder)
        heavy = [SINGLE]
        if SINGLE not in self.files:
            self._bring(INDEX, force)
            heavy = shards_of(self.folder / INDEX)
        for name in heavy:
            if name not in self.files:
                raise FetchError(f"{self.repo}: {INDEX} names {name}, which is not there")
        need = sum(self.files[name].size or 0 for name in heavy if force or not self._whole(name))
        free = shutil.disk_usage(self.folder).free
        if free < need:
            raise FetchError(
                f"{self.storage}: {free / 1e6:,.0f} MB are free, the weights of {self.repo} take "
                f"{need / 1e6:,.0f} MB; set HF_HOME to a folder with that much space"
            )
        for name in heavy:
            self._bring(name, force)

    def remember(self, revision: str) -> None:
        """Note which commit the revision stands for, once all of it is here."""
        ref = self.storage / "refs" / revision
        with suppress(OSError):  # a cache that can only be read is a good one, too
            known = ref.read_text(encoding="utf-8") if ref.is_file() else None
            if self.commit not in (revision, known):
                ref.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(ref) as file:
                    file.write(self.commit)

    def _whole(self, name: str) -> bool:
        path, size = self.folder / name, self.files[name].size
        return path.is_file() and size in (None, path.stat().st_size)

    def _bring(self, name: str, force: bool) -> None:
        """Download one file unless it is here; the library resumes when a connection breaks."""
        if not force and self._whole(name):
            return
        path = self.folder / name
        options = {"revision": self.commit, "force_download": force or path.exists()}
        _patiently(lambda: self.api.hf_hub_download(self.repo, name, **options))
        kind, found, expected = _digest(path, self.files[name])
        if found != expected:
            for copy in (path.resolve(), path):
                copy.unlink(missing_ok=True)
            raise FetchError(
                f"{self.repo}: the {kind} of {name} is {found}, expected is {expected}; the file "
                "is not kept. Try again; a proxy or a mirror (HF_ENDPOINT) may have changed it"
            )

    def _what_is_missing(self) -> str:
        names = sorted(name for name in self.files if not name.startswith("."))
        more = f" and {len(names) - 4} more" if names[4:] else ""
        found = f"it holds {', '.join(names[:4]) or 'nothing'}{more}"
        if "config.json" not in self.files:
            return f"{self.repo} holds no config.json: no model for minifer; {found}"
        if any(name.endswith((".bin", ".pth", ".pt", ".h5", ".msgpack")) for name in names):
            found += "; convert its weights to safetensors, or take a repository that has them"
        return f"{self.repo} holds neither {SINGLE} nor {INDEX}, which minifer reads; {found}"


def _list_files(api: Any, repo: str, revision: str, storage: Path) -> Snapshot:
    """Ask once which commit the revision is and what it holds: files never mix."""
    from huggingface_hub import constants

    options = {"files_metadata": True, "timeout": constants.HF_HUB_ETAG_TIMEOUT}
    info = _patiently(lambda: api.model_info(repo, revision=revision, **options))
    if not _COMMIT.fullmatch(info.sha):
        raise ValueError(f"the commit of {revision} is {info.sha!r:.60}")
    return Snapshot(api, repo, info.sha, {file.rfilename: file for file in info.siblings}, storage)


def _digest(path: Path, entry: Any) -> tuple[str, str, str]:
    """(kind, found, expected): the SHA-256 of a large file, git's SHA-1 of a small one."""
    with open(path, "rb") as file:
        if entry.lfs is not None:
            return "SHA-256", hashlib.file_digest(file, "sha256").hexdigest(), entry.lfs.sha256
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        digest.update(file.read())
        return "git SHA-1", digest.hexdigest(), entry.blob_id or digest.hexdigest()


@contextmanager
def _hushed() -> Iterator[None]:
    """The library draws bars at a terminal only; so shall it speak of its retries."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    if before == logging.WARNING and not (sys.stderr and sys.stderr.isatty()):
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _patiently(call: Callable[[], Any]) -> Any:
    """Three tries where the hub stumbles. The library's own retries are not repeated."""
    for wait in (1.0, 2.0):
        try:
            return call()
        except Exception as problem:
            stumbles = _status(problem) in (408, 429) or _status(problem) >= 500
            if not stumbles and not _BROKEN_OFF.search(_kinds(problem)):
                raise
        time.sleep(wait)
    return call()


def _status(problem: BaseException) -> int:
    return getattr(getattr(problem, "response", None), "status_code", 0)


def _kinds(problem: BaseException) -> str:
    return " ".join(kind.__name__ for kind in type(problem).__mro__)


def _cause(problem: BaseException) -> BaseException:
    """The first of a chain of exceptions that says what happened; the library wraps some."""
    link: BaseException | None = problem
    while link is not None:
        if _status(link) or _TRANSPORT.search(_kinds(link)) or getattr(link, "errno", None):
            return link
        link = link.__cause__ or link.__context__
    return problem


def _unreachable(problem: BaseException) -> bool:
    status, kinds = _status(_cause(problem)), _kinds(_cause(problem))
    return status >= 500 or bool(not status and _TRANSPORT.search(kinds))


def _worded(problem: BaseException, api: Any, repo: str, revision: str, storage: Path) -> str:
    """What went wrong, and what to do about it."""
    hub, cause = api.endpoint, _cause(problem)
    said = f"{type(cause).__name__}: {(str(cause).splitlines() or [''])[0]:.160}"
    if _status(cause):
        return _refused(cause, api, repo, revision)
    kinds = _kinds(cause)
    if "Proxy" in kinds:
        return f"{hub}: the proxy refuses ({said}); see HTTPS_PROXY and NO_PROXY"
    if "Timeout" in kinds:
        more = "HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT give it more seconds"
        return f"{hub} does not answer in time ({said}); try again; {more}"
    if _TRANSPORT.search(kinds):
        more = "--offline takes what was fetched before, HF_ENDPOINT names another hub"
        return f"{hub} cannot be reached, or breaks off ({said}); try again; {more}"
    if getattr(cause, "errno", None):
        where = getattr(cause, "filename", None) or storage
        said = getattr(cause, "strerror", None) or said
        return f"{where}: cannot be written: {said}; HF_HOME names another folder"
    return f"{hub}: what it sends for {repo} is not what a hub should send ({said}); try again"


def _refused(cause: Any, api: Any, repo: str, revision: str) -> str:
    """The hub's own refusals, by their status and X-Error-Code."""
    hub, status, headers = api.endpoint, _status(cause), cause.response.headers
    code, said = headers.get("X-Error-Code"), headers.get("X-Error-Message", "no reason given")
    login = "log in with `hf auth login` or set HF_TOKEN"
    if code == "GatedRepo":
        return f"{repo} is gated: accept its licence at {hub}/{repo}, then {login}"
    if code == "RevisionNotFound":
        return f"{repo} has no revision {revision!r}; {hub}/{repo}/commits/main lists commits"
    if status == 401 and "Invalid credentials" in said:
        login = f"{hub}/settings/tokens makes another, and a public model needs none"
        return f"{hub} refuses your token (of HF_TOKEN or `hf auth login`); {login}"
    if code == "RepoNotFound" or (status in (401, 404) and code is None):
        with suppress(Exception):  # one question more, for a better answer
            return f"{api.dataset_info(repo, timeout=10).id} is a dataset at {hub}, no model"
        return f"{repo}: no such folder here, no such model at {hub}; if it is private, {login}"
    if status >= 500:
        return f"{hub} has a fault of its own ({status}: {said}), asked again, too; try again later"
    more = {429: "wait a few minutes", 407: "see HTTPS_PROXY"}
    hint = more.get(status, "your token may lack a permission")
    return f"{hub} refuses {repo} ({status}: {said}); {hint}"
