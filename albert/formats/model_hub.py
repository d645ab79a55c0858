"""Downloads released models by name, from Hugging Face's hub or that of $HF_ENDPOINT.

Its library has a cache, and respects $HF_HUB_OFFLINE, $HF_HOME and $HF_TOKEN. No TensorFlow.
"""

import fnmatch
import glob
import logging
import os
import re
import sys

from albert.errors import CheckpointError, first_line
from albert.formats import checkpoints, hf_weights, huggingface, sentence_files, tokenizer_files
from albert.storage import files, shipped

log = logging.getLogger("albert")

_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
_PACKED = re.compile(r"(?:https?://[^?#]+|.*)\.(tar\.gz|tgz|tar)", re.IGNORECASE)


def is_model(path: str) -> bool:
    """Whether a path means a model with configuration and vocabulary, local or of the hub."""
    return os.path.isdir(shipped.path_of(path)) or is_name(path)


def is_name(path: str) -> bool:
    """Whether a path means a model of the hub: `owner/name` or `owner/name@revision`.

    A local path, or one that looks like a checkpoint next to local ones, is not a name.
    """
    if not _NAME.fullmatch(path) or _PACKED.fullmatch(path) or os.path.lexists(path):
        return False
    neighbours = os.path.join(glob.escape(os.path.dirname(path)), f"*{checkpoints.INDEX}")
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
    """Downloads the model of a name and returns its folder; other paths are unchanged.

    Args:
      with_weights: whether more than the tokenizer is needed.

    Raises:
      CheckpointError: it does not exist, may not be read, or cannot be reached; or the path is a
        packed model.
    """
    if _PACKED.fullmatch(path) and not os.path.isdir(path):
        raise CheckpointError(f"{flag}: {path} is a packed model: unpack it (tar -xzf FILE) and pass its "
                              "folder, or pass a name of the hub, such as albert/albert-base-v2")
    if not is_name(path):
        return path
    from huggingface_hub import constants, errors, utils

    if not sys.stderr.isatty():
        utils.disable_progress_bars()
    name, revision = _NAME.fullmatch(path).groups()
    absent = f"{flag}: no directory {path!r} here, and no"
    others = f"Built-in models: {', '.join(shipped.names())}"
    try:
        folder = _download(name, revision, with_weights)
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{flag}: {name} has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{absent} model {name!r} that you may read at {constants.ENDPOINT} (a private or gated one "
            f"needs HF_TOKEN). {others}. Of the hub, for example: albert/albert-base-v2"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        is_offline = constants.HF_HUB_OFFLINE
        why = "HF_HUB_OFFLINE is set" if is_offline else f"{constants.ENDPOINT} can't be reached"
        raise CheckpointError(
            f"{absent} complete model of this name in the cache ({why}). {others}"
        ) from error
    except errors.EntryNotFoundError as error:
        raise CheckpointError(
            f"{flag}: {name} at {constants.ENDPOINT} has no {huggingface.CONFIG_FILE}"
        ) from error
    except Exception as error:
        if not _is_of_network(error):
            raise
        raise CheckpointError(f"{flag}: the download of {name} from {constants.ENDPOINT} was cut: "
                              f"{first_line(error)}. Rerun the command to resume the download") from error
    if with_weights:
        log.info("%s: commit %s in %s", name, os.path.basename(folder)[:12], folder)
    return folder


def _download(name: str, revision: str | None, with_weights: bool) -> str:
    """Returns the folder of a model's files, of which those that the cache lacks are downloaded.

    One after the other and in this thread, so that Ctrl-C ends it at once. A hub that does not answer
    the first request within $HF_HUB_ETAG_TIMEOUT is not asked again: its library has no time limit.
    """
    from huggingface_hub import HfApi, constants, errors, hf_hub_download

    info = None
    try:
        if not constants.HF_HUB_OFFLINE:
            info = HfApi().model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:
        is_absent = isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError)
        if is_absent or not _is_of_network(error):
            raise
    config = hf_hub_download(
        name, huggingface.CONFIG_FILE, revision=revision, local_files_only=info is None
    )
    folder = os.path.dirname(config)
    commit = os.path.basename(folder)  # all files must be from one
    if info is None:
        if with_weights and not hf_weights.find(folder):
            raise errors.LocalEntryNotFoundError(name)
        return folder
    listed = [file.rfilename for file in info.siblings]
    wanted = [*tokenizer_files.NAMES, *sentence_files.NAMES]
    if with_weights:
        huggingface.check_kind(files.read_json(config), f"{name}/{huggingface.CONFIG_FILE}")
        weights = [file for file in hf_weights.WEIGHTS_FILES if file in listed]
        if not weights:
            raise CheckpointError(f"{name} has no readable weights: none of "
                                  f"{', '.join(hf_weights.WEIGHTS_FILES)}")
        wanted += [hf_weights.SHARDS] * (weights[0] == hf_weights.INDEX_FILE) + weights[:1]
    for pattern in wanted:
        for file in fnmatch.filter(listed, pattern):
            hf_hub_download(name, file, revision=commit)
    return folder


def _is_of_network(error: Exception) -> bool:
    """Whether the hub could not be reached, or answered with an error."""
    from huggingface_hub import errors

    is_of_http = type(error).__module__.startswith("httpx")  # httpx or httpx2, by their version
    return is_of_http or isinstance(error, OSError | errors.HfHubHTTPError | errors.HFValidationError)
