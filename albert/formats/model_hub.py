"""Downloads released models: by name from a hub, or (with `archives`) from an https:// address.

The hub is Hugging Face's, or that of $HF_ENDPOINT; its library has a cache, and respects
$HF_HUB_OFFLINE, $HF_HOME and $HF_TOKEN. No TensorFlow.
"""

import glob
import logging
import os
import re
import sys

from albert.errors import CheckpointError, first_line
from albert.formats import (
    archives, checkpoint_files, huggingface, sentence_files, tokenizer_files,
)
from albert.storage import files, shipped

log = logging.getLogger("albert")

_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
_ARCHIVE = re.compile(r"https?://[^?#]+\.(tar\.gz|tgz|tar)", re.IGNORECASE)
_RERUN = "Rerun the command to resume the download"


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
    """Downloads the model of a name or an address and returns its folder; other paths are unchanged.

    Args:
      with_weights: whether more than the tokenizer is needed.

    Raises:
      CheckpointError: it does not exist, may not be read, or cannot be reached.
    """
    if is_name(path):
        return _download(path, flag, with_weights)
    if _ARCHIVE.fullmatch(path):
        return archives.downloaded(path, flag)
    return path


# === By name ===


def _download(path: str, flag: str, with_weights: bool) -> str:
    name, revision = _NAME.fullmatch(path).groups()
    try:
        from huggingface_hub import constants, errors, utils
    except ImportError as error:
        raise CheckpointError(f"{flag}: no directory {path!r} here; to download a model of this name: "
                              "pip install huggingface_hub") from error
    if not sys.stderr.isatty():
        utils.disable_progress_bars()
    try:
        directory = _snapshot(name, revision, with_weights)
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{flag}: {name} has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{flag}: no directory {path!r} here, and no model {name!r} that you may read at "
            f"{constants.ENDPOINT} (a private or gated one needs HF_TOKEN). Built-in models: "
            f"{', '.join(shipped.names())}. Of the hub, for example: albert/albert-base-v2"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} can't be reached"
        raise CheckpointError(f"{flag}: no directory {path!r} here, and no complete model of this name in "
                              f"the cache ({why}). Built-in models: {', '.join(shipped.names())}") from error
    except errors.EntryNotFoundError as error:
        raise CheckpointError(
            f"{flag}: {name} at {constants.ENDPOINT} has no {huggingface.CONFIG_FILE}"
        ) from error
    except Exception as error:
        is_of_http = type(error).__module__.startswith("httpx")  # httpx or httpx2, by their version
        if not is_of_http and not isinstance(
            error, OSError | errors.HfHubHTTPError | errors.HFValidationError
        ):
            raise
        raise CheckpointError(f"{flag}: the download of {name} from {constants.ENDPOINT} was cut: "
                              f"{first_line(error)}. {_RERUN}") from error
    if with_weights:
        log.info("%s: commit %s in %s", name, os.path.basename(directory)[:12], directory)
    return directory


def _snapshot(name: str, revision: str | None, with_weights: bool) -> str:
    """Returns the folder of a model's files, of which those that the cache lacks are downloaded."""
    from huggingface_hub import errors, hf_hub_download, snapshot_download

    options = {"revision": revision, "local_files_only": not _answers(name, revision)}
    small = [huggingface.CONFIG_FILE, *tokenizer_files.NAMES, *sentence_files.NAMES]
    directory = snapshot_download(name, allow_patterns=small, **options)
    config = os.path.join(directory, huggingface.CONFIG_FILE)
    if not os.path.isfile(config):
        raise errors.EntryNotFoundError(huggingface.CONFIG_FILE)
    if not with_weights:
        return directory
    huggingface.check_kind(files.read_json(config), f"{name}/{huggingface.CONFIG_FILE}")
    options["revision"] = os.path.basename(directory)  # all files must be from one commit
    for weights in huggingface.WEIGHTS_FILES:
        try:  # in this thread, which Ctrl-C interrupts
            return os.path.dirname(hf_hub_download(name, weights, **options))
        except errors.EntryNotFoundError as error:
            is_cut = isinstance(error, errors.LocalEntryNotFoundError)
            if is_cut and not options["local_files_only"]:
                raise
    raise CheckpointError(f"{name} has no readable weights: none of "
                          f"{', '.join(huggingface.WEIGHTS_FILES)}")


def _answers(name: str, revision: str | None) -> bool:
    """Whether the hub answers within $HF_HUB_ETAG_TIMEOUT; `snapshot_download` has no time limit."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        HfApi().repo_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # whatever else it answers, the download reports it better
        kinds = {kind.__name__ for kind in type(error).__mro__}
        return not kinds & {"ConnectError", "TimeoutException"}
    return True
