"""TF-Hub modules: what they hold, read as data. A module is never called here.

Two kinds are read: ours (a TensorFlow 2 SavedModel with `weights` by released
name) and the original's TF1 format (a name-based bundle of variables).
"""

import os
from typing import TYPE_CHECKING

from albert.config import AlbertConfig
from albert.data import files
from albert.errors import CheckpointError, first_line
from albert.formats import tokenizer_files
from albert.formats.tokenizer_files import Vocabulary

if TYPE_CHECKING:
    from albert.formats.tensor_bundle import Weights

# Of our modules, in assets/.
CONFIG_ASSET = "albert_config.json"
TOKENIZATION_ASSET = "tokenization.json"


def is_directory(path: str) -> bool:
    """Whether a directory is a module; one with a SavedModel beside our own files is not."""
    is_ours = os.path.isfile(os.path.join(path, "albert_config.json"))
    return os.path.isdir(os.path.join(path, "variables")) and not is_ours


def fetch(handle: str, flag: str) -> str:
    """Returns a module's directory, that of an https:// address by way of TF-Hub's cache.

    Raises:
      CheckpointError: not there, not reachable, or no module.
    """
    directory = handle
    if "://" in handle:
        import tensorflow_hub

        try:
            directory = tensorflow_hub.resolve(handle)
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"--{flag}: cannot fetch {handle}: {first_line(error)}; "
                "download it and give its directory"
            ) from error
    if not os.path.isdir(os.path.join(directory, "variables")):
        raise CheckpointError(
            f"--{flag}: {directory} is not a module directory (it has no variables folder)"
        )
    return directory


def read_assets(directory: str, flag: str) -> tuple[AlbertConfig, Vocabulary]:
    """Returns what a module's assets say.

    Raises:
      CheckpointError: it is no ALBERT; ConfigError, DataError: a malformed file.
    """
    assets = os.path.join(directory, "assets")
    config = os.path.join(assets, CONFIG_ASSET)
    if not os.path.isfile(config):
        raise CheckpointError(f"--{flag}: no {CONFIG_ASSET} in {assets}")
    names = sorted(os.listdir(assets))
    path = os.path.join(assets, TOKENIZATION_ASSET)
    # The released modules are of lower-cased models and say so in a graph only.
    settings = files.read_json_object(path) if os.path.isfile(path) else {}
    spm = next((os.path.join(assets, n) for n in names if n.endswith(".model")), None)
    # Beside a SentencePiece model a .vocab file is only a listing of its pieces.
    vocab = next((os.path.join(assets, n) for n in names if n.endswith((".vocab", ".txt"))), None)
    text = tokenizer_files.text_settings(settings, path)
    return AlbertConfig.from_json_file(config), Vocabulary(spm, None if spm else vocab, text)


def open_module_weights(directory: str) -> "Weights":
    """Returns the encoder's and heads' tensors by released name.

    Raises:
      CheckpointError: they are damaged or of another kind of module.
    """
    from albert.formats import tensor_bundle

    prefix = os.path.join(directory, "variables", "variables")
    reader = tensor_bundle.open_reader(prefix)
    tensor_bundle.check_whole(prefix, reader)
    names = list(reader.get_variable_to_shape_map())
    if tensor_bundle.OBJECT_GRAPH in names:
        graph = tensor_bundle.Weights(prefix, reader, names).read(tensor_bundle.OBJECT_GRAPH)
        keys = _keys_of_weights(graph, directory)
        if not set(keys.values()) <= set(names):
            raise CheckpointError(f"{directory}: its object graph names absent variables")
    else:
        keys = {name.removeprefix("module/"): name for name in names}
    return tensor_bundle.Weights(directory, reader, keys)


def _keys_of_weights(object_graph: bytes, origin: str) -> dict[str, str]:
    """Returns {released name: key in the bundle} from the root's `weights` dictionary.

    A variable with several owners has one key only, so the keys are found by
    walking the graph, not by guessing their names.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    try:
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(object_graph)
        children = {child.local_name: child.node_id for child in graph.nodes[0].children}
        weights = graph.nodes[children["weights"]].children if "weights" in children else None
        keys = weights and {
            child.local_name: graph.nodes[child.node_id].attributes[0].checkpoint_key
            for child in weights
        }
    except (DecodeError, IndexError, TypeError) as error:
        raise CheckpointError(f"{origin}: its object graph is damaged") from error
    if not keys:
        raise CheckpointError(f"{origin} is not a module of this toolkit: it has no named weights")
    return keys
