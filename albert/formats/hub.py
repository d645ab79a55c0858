"""Reads TF-Hub modules as data, without calling them.

There are two kinds: ours (a TensorFlow 2 SavedModel with `weights` by released name) and the
original's TF1 format (a name-based bundle of variables).
"""

import dataclasses
import os

from albert.config import AlbertConfig
from albert.errors import CheckpointError, first_line
from albert.formats import tensor_bundle, tokenizer_files
from albert.formats.tokenizer_files import Vocabulary
from albert.formats.weights import Weights
from albert.records.protobuf import fields
from albert.storage import files
from albert.text import spm_model
from albert.tokenization import TextSettings

# Of our modules, in assets/.
CONFIG_ASSET = "albert_config.json"
TOKENIZATION_ASSET = "tokenization.json"


def is_directory(path: str) -> bool:
    """Whether a directory is a module, not a SavedModel next to our files."""
    is_ours = os.path.isfile(os.path.join(path, "albert_config.json"))
    return os.path.isdir(os.path.join(path, "variables")) and not is_ours


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
        except ImportError as error:  # of pkg_resources
            raise CheckpointError(f"{flag}: tensorflow-hub needs an older setuptools ({error}): "
                                  "pip install 'setuptools<81'") from error
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{flag}: cannot fetch {handle}: {first_line(error)}; "
                "download it and give its directory"
            ) from error
    if not os.path.isdir(os.path.join(directory, "variables")):
        raise CheckpointError(
            f"{flag}: {directory} is not a module directory (it has no variables folder)"
        )
    return directory


def read_assets(directory: str, flag: str) -> tuple[AlbertConfig, Vocabulary]:
    """Returns the metadata in a module's assets.

    Raises:
      CheckpointError: it is no ALBERT; ConfigError, DataError: a malformed file.
    """
    assets = os.path.join(directory, "assets")
    config = os.path.join(assets, CONFIG_ASSET)
    if not os.path.isfile(config):
        raise CheckpointError(
            f"{flag}: {directory} is a SavedModel, but not a TF-Hub module of an ALBERT: no "
            f"{CONFIG_ASSET} in {assets}. Instead of tensorflow/albert_en_base, give albert/albert-base-v2"
        )
    path = os.path.join(assets, TOKENIZATION_ASSET)
    # The released modules are for lower-cased text, but only their graphs say so.
    settings = files.read_json_object(path) if os.path.isfile(path) else {}
    text = tokenizer_files.text_settings(settings, path)
    return AlbertConfig.from_json_file(config), vocabulary_of(directory, text)


def vocabulary_of(directory: str, text: TextSettings) -> Vocabulary:
    """Returns the vocabulary among a module's assets, an empty one if it has none."""
    assets = os.path.join(directory, "assets")
    names = sorted(os.listdir(assets)) if os.path.isdir(assets) else []
    # Next to a SentencePiece model, a .vocab file only lists its tokens.
    spm, vocab = (
        next((os.path.join(assets, n) for n in names if n.endswith(ends)), None)
        for ends in (".model", (".vocab", ".txt"))
    )
    text = dataclasses.replace(text, **spm_model.trained_with(spm))
    return Vocabulary(spm, None if spm else vocab, text)


def open_module_weights(directory: str) -> Weights:
    """Returns the tensors of encoder and heads by released name.

    Raises:
      CheckpointError: they are damaged or belong to another kind of module.
    """
    prefix = os.path.join(directory, "variables", "variables")
    reader = tensor_bundle.BundleReader(prefix)
    reader.check_complete()
    names = list(reader.shapes)
    if tensor_bundle.OBJECT_GRAPH in names:
        keys = _keys_of_weights(reader.read(tensor_bundle.OBJECT_GRAPH).item(), directory)
        if not set(keys.values()) <= set(names):
            raise CheckpointError(f"{directory}: its object graph names missing variables")
    else:
        keys = {name.removeprefix("module/"): name for name in names}
    return Weights(directory, reader, keys)


def _keys_of_weights(object_graph: bytes, origin: str) -> dict[str, str]:
    """Returns {released name: key in the bundle} from the root's `weights` dictionary.

    A variable with several owners has only one key, so keys are looked up in the graph, not derived
    from names.
    """
    try:
        # A `TrackableObjectGraph`: the nodes, and of each its children and attributes.
        nodes = [node for number, node in fields(object_graph) if number == 1]
        root = _children_of(nodes[0])
        owned = _children_of(nodes[root["weights"]]) if "weights" in root else {}
        keys = {name: _key_of(nodes[node]) for name, node in owned.items()}
    except (IndexError, KeyError, ValueError) as error:
        raise CheckpointError(f"{origin}: its object graph is damaged") from error
    if not keys:
        raise CheckpointError(f"{origin} is not a module of this toolkit: it has no named weights")
    return keys


def _children_of(node: bytes) -> dict[str, int]:
    """Returns {local name: number of the node} of a `TrackableObject`."""
    children = [dict(fields(child)) for number, child in fields(node) if number == 1]
    return {child[2].decode(): tensor_bundle.number_of(child, 1) for child in children}


def _key_of(node: bytes) -> str:
    """Returns the bundle's key of a variable, from its first attribute."""
    attributes = [dict(fields(attribute)) for number, attribute in fields(node) if number == 2]
    return attributes[0][3].decode()
