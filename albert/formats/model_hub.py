"""Downloads released models: by name from a hub, or an archive at an https:// address.

The hub is Hugging Face's, or that of $HF_ENDPOINT; its library has a cache, and respects
$HF_HUB_OFFLINE, $HF_HOME and $HF_TOKEN. No TensorFlow.
"""

import glob
import http.client
import logging
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import filelock

from albert.errors import CheckpointError, first_line
from albert.formats import archives, checkpoint_files, huggingface, tokenizer_files
from albert.runtime.progress import Progress
from albert.storage import files, filesystem, shipped

log = logging.getLogger("albert")

_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
_ARCHIVE = re.compile(r"https?://[^?#]+\.(tar\.gz|tgz|tar)", re.IGNORECASE)
_ATTEMPTS = 5
_TIMEOUT = 30  # seconds without a byte
_CHUNK = 1 << 20  # bytes
_RERUN = "Rerun the command to resume the download"
_FIRST_ANSWER = 3  # seconds until a hub counts as out of reach, if the cache has nothing of the model


def is_model(path: str) -> bool:
    """Whether a path means a model with configuration and vocabulary, local or remote."""
    is_local = archives.is_archive(path) or os.path.isdir(shipped.path_of(path))
    return is_local or is_name(path) or bool(_ARCHIVE.fullmatch(path))


def is_name(path: str) -> bool:
    """Whether a path means a model of the hub: `owner/name` or `owner/name@revision`.

    A local path, or one that looks like a checkpoint next to local ones, is not a name.
    """
    if not _NAME.fullmatch(path) or path.endswith(archives.ENDINGS) or os.path.lexists(path):
        return False
    neighbours = os.path.join(glob.escape(os.path.dirname(path)), f"*{checkpoint_files.INDEX}")
    return "ckpt" not in path and not glob.glob(neighbours)


def with_revision(path: str, revision: str | None) -> str:
    """Returns the name of a model of the hub at a branch, a tag or a commit.

    Raises:
      CheckpointError: the path is not the name of a model of the hub.
    """
    if revision is None:
        return path
    if not is_name(path) or "@" in path:
        raise CheckpointError(f"revision={revision!r}: {path} is not the name of a model of the hub")
    return f"{path}@{revision}"


def local_path(path: str, flag: str = "path", with_weights: bool = True) -> str:
    """Downloads the model of a name or an address and returns its path; other paths are unchanged.

    Args:
      with_weights: whether more than the tokenizer is needed.

    Raises:
      CheckpointError: it does not exist, may not be read, or cannot be reached.
    """
    if is_name(path):
        return _download(path, flag, with_weights)
    if _ARCHIVE.fullmatch(path):
        return _download_archive(path, flag)
    return path


# === By name ===


def _download(path: str, flag: str, with_weights: bool) -> str:
    name, revision = _NAME.fullmatch(path).groups()
    try:
        from huggingface_hub import constants, errors, utils
    except ImportError as error:
        raise CheckpointError(f"--{flag}: no directory {path!r} here; to download a model of this name: "
                              "pip install huggingface_hub") from error
    if not sys.stderr.isatty():
        utils.disable_progress_bars()
    start = time.monotonic()
    try:
        paths = list(_files(name, revision, with_weights))
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"--{flag}: {name} has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"--{flag}: no directory {path!r} here, and no model {name!r} that you may read at "
            f"{constants.ENDPOINT} (a private or gated one needs HF_TOKEN). Built-in models: "
            f"{', '.join(shipped.names())}. Of the hub, for example: albert/albert-base-v2"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        is_offline = constants.HF_HUB_OFFLINE
        why = "HF_HUB_OFFLINE is set" if is_offline else f"{constants.ENDPOINT} can't be reached"
        raise CheckpointError(f"--{flag}: no directory {path!r} here, and no complete model of this "
                              f"name in the cache ({why})") from error
    except errors.EntryNotFoundError as error:
        raise CheckpointError(
            f"--{flag}: {name} at {constants.ENDPOINT} has no {huggingface.CONFIG_FILE}"
        ) from error
    except (OSError, errors.HfHubHTTPError, errors.HFValidationError) as error:
        raise CheckpointError(f"--{flag}: cannot download {name} from {constants.ENDPOINT}: "
                              f"{first_line(error)}. {_RERUN}") from error
    directory = os.path.dirname(paths[0])
    if with_weights:
        size = sum(map(os.path.getsize, paths)) / 1e6
        log.info("%s: %d files, %.1f MB, at commit %s (%.0f s)", name, len(paths), size,
                 os.path.basename(directory)[:12], time.monotonic() - start)
    return directory


def _files(name: str, revision: str | None, with_weights: bool) -> Iterator[str]:
    """Yields the local paths of a model's files, each downloaded unless it is in the cache."""
    from huggingface_hub import constants, errors, hf_hub_download, try_to_load_from_cache

    known = try_to_load_from_cache(name, huggingface.CONFIG_FILE, revision=revision)
    if known is None and not constants.HF_HUB_OFFLINE:
        _require_answer(name, revision)
    config = hf_hub_download(name, huggingface.CONFIG_FILE, revision=revision)
    yield config
    if with_weights:  # before downloading them
        huggingface.check_kind(files.read_json(config), f"{name}/{huggingface.CONFIG_FILE}")
    commit = os.path.basename(os.path.dirname(config))  # all files must be from one commit

    def get(file: str) -> str | None:
        cached = try_to_load_from_cache(name, file, revision=commit)
        if cached is not None:  # a path, or a mark that the commit has no such file
            return cached if isinstance(cached, str) else None
        try:
            return hf_hub_download(name, file, revision=commit)
        except errors.LocalEntryNotFoundError:  # missing, or the hub can't be reached
            if constants.HF_HUB_OFFLINE:
                return None
            raise
        except errors.EntryNotFoundError:
            return None

    yield from filter(None, map(get, tokenizer_files.NAMES))
    if not with_weights:
        return
    weights = next(filter(None, map(get, huggingface.WEIGHTS_FILES)), None)
    if weights is None:
        raise CheckpointError(f"{name} has no readable weights: none of "
                              f"{', '.join(huggingface.WEIGHTS_FILES)}")
    yield weights
    if weights.endswith(".json"):
        for shard in sorted(set(files.read_json_object(weights).get("weight_map", {}).values())):
            if (path := get(shard)) is None:
                raise CheckpointError(f"{name}: shard {shard} is missing")
            yield path


def _require_answer(name: str, revision: str | None) -> None:
    """Raises a LocalEntryNotFoundError if the hub is out of reach; the library would try for minutes."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

    wait = constants.HF_HUB_ETAG_TIMEOUT  # the user's, or the default
    wait = _FIRST_ANSWER if wait == constants.DEFAULT_ETAG_TIMEOUT else wait
    for pause in (0.5, None):  # a second chance for a connection that is just coming up
        try:
            get_hf_file_metadata(hf_hub_url(name, huggingface.CONFIG_FILE, revision=revision), timeout=wait)
        except Exception as error:  # of httpx or httpx2, by the library's version
            kinds = {kind.__name__ for kind in type(error).__mro__}
            if "ConnectError" in kinds and pause:
                time.sleep(pause)
                continue
            if kinds & {"ConnectError", "TimeoutException"}:
                raise errors.LocalEntryNotFoundError(str(error)) from error
        return  # whatever the answer, the download reports it better


# === By address ===


def _download_archive(url: str, flag: str) -> str:
    """Returns a packed model's copy in the cache, updated when the original changes."""
    target = filesystem.path_in_cache(url, "downloads")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with filelock.FileLock(f"{target}.lock"):
        for attempt in range(_ATTEMPTS):
            try:
                _fetch(url, target)
                return target
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise CheckpointError(f"--{flag}: {url}: {error.code} {error.reason}") from error
                problem = error
            except (OSError, http.client.HTTPException) as error:
                problem = error
            time.sleep(min(0.5 * 2**attempt, 8))
    reason = first_line(getattr(problem, "reason", None) or problem)
    if os.path.exists(target):
        log.warning("%s cannot be reached (%s): using the earlier download", url, reason)
        return target
    raise CheckpointError(f"--{flag}: cannot download {url}: {reason}. {_RERUN}") from problem


def _fetch(url: str, target: str) -> None:
    """Downloads a file unless the copy is current; resumes an interrupted download."""
    part, known = f"{target}.part", f"{target}.json"
    tags = files.read_json_object(known) if os.path.isfile(known) else {}
    begun = os.path.getsize(part) if os.path.isfile(part) and tags.get("part") else 0
    request = urllib.request.Request(url)
    if begun:
        request.add_header("Range", f"bytes={begun}-")
        request.add_header("If-Range", tags["part"])
    elif os.path.exists(target) and tags.get("whole"):
        request.add_header("If-None-Match", tags["whole"])
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.NOT_MODIFIED:
            return
        if begun and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            files.write_json(known, {**tags, "part": None})  # it was already complete: start over
            raise ConnectionError(f"the file has fewer than {begun:,} bytes") from error
        raise
    with answer:
        begun = begun if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        tag = answer.headers.get("ETag")
        files.write_json(known, {"whole": tags.get("whole"), "part": tag})
        length = answer.headers.get("Content-Length")
        total = begun + int(length) if length else None
        _receive(answer, part, begun, total, os.path.basename(target))
    os.replace(part, target)
    files.write_json(known, {"whole": tag, "part": None})


def _receive(answer, part: str, begun: int, total: int | None, name: str) -> None:
    progress = Progress(f"downloaded {name}", total and total / 1e6, "MB", begun / 1e6)
    with open(part, "r+b" if begun else "wb") as stream:
        stream.seek(begun)
        while chunk := answer.read(_CHUNK):
            stream.write(chunk)
            progress.update(stream.tell() / 1e6)
        progress.clear()
        if total is not None and stream.tell() != total:
            raise ConnectionError(f"got {stream.tell():,} of {total:,} bytes")
