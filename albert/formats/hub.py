"""Reads TF-Hub modules as data, without calling them.

There are two kinds: ours (a TensorFlow 2 SavedModel whose object graph begins with `weights` by released
name) and the original's TF1 format (a name-based bundle of variables). The configuration and the
vocabulary are in `assets`.
"""

import os
import re

from albert.errors import CheckpointError, first_line
from albert.formats import tensor_bundle
from albert.formats.weights import Weights

# A weight's key in the bundle, in which TensorFlow writes ".S" for a slash.
_KEY = re.compile(r"weights/(.+)/\.ATTRIBUTES/VARIABLE_VALUE")


def fetch(handle: str, flag: str) -> str:
    """Returns a module's directory; TF-Hub's cache for an https:// address.

    Raises:
      CheckpointError: it does not exist, cannot be reached, or is not a module.
    """
    directory = handle
    if "://" in handle:
        try:
            import tensorflow_hub

            directory = tensorflow_hub.resolve(handle)
        except (ImportError, OSError, RuntimeError, ValueError) as error:  # no pkg_resources; no network
            raise CheckpointError(f"{flag}: cannot fetch {handle}: {first_line(error)}; "
                                  "download it and pass its directory") from error
    if not os.path.isdir(os.path.join(directory, "variables")):
        raise CheckpointError(f"{flag}: {directory} is not a module directory (it has no variables folder)")
    return directory


def open_weights(directory: str) -> Weights:
    """Returns the tensors of encoder and heads by released name.

    Raises:
      CheckpointError: they are damaged or belong to another kind of module.
    """
    reader = tensor_bundle.BundleReader(os.path.join(directory, "variables", "variables"))
    reader.check_complete()
    names = list(reader.shapes)
    if tensor_bundle.OBJECT_GRAPH not in names:  # in the original's format
        return Weights(directory, reader, {name.removeprefix("module/"): name for name in names})
    keys = {match[1].replace(".S", "/"): match[0] for match in map(_KEY.fullmatch, names) if match}
    if not keys:
        raise CheckpointError(f"{directory} is not a module of this toolkit: it has no named weights")
    return Weights(directory, reader, keys)
