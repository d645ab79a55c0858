"""TF-Hub modules: what they hold, read as data. A module is never called here.

Two kinds are read: ours (a TensorFlow 2 SavedModel with `weights` by released
name) and the original's TF1 format (a name-based bundle of variables).
"""

import dataclasses
import os
from typing import Any

from albert.config import AlbertConfig
from albert.data import files
from albert.errors import CheckpointError
from albert.formats import tensor_bundle, tokenizer_files
from albert.formats.tokenizer_files import Vocabulary
from albert.tokenization import FullTokenizer

# Of our modules, in assets/.
CONFIG_ASSET = "albert_config.json"
TOKENIZATION_ASSET = "tokenization.json"


@dataclasses.dataclass(frozen=True)
class Module:
    """A module's directory and what its assets say."""

    directory: str
    config: AlbertConfig
    vocabulary: Vocabulary

    def weights(self) -> tensor_bundle.Weights:
        """Returns the encoder's and heads' tensors by released name.

        Raises:
          CheckpointError: they are damaged or of another kind of module.
        """
        prefix = os.path.join(self.directory, "variables", "variables")
        reader = tensor_bundle.open_reader(prefix)
        tensor_bundle.check_whole(prefix, reader)
        names = list(reader.get_variable_to_shape_map())
        everything = tensor_bundle.Weights(prefix, reader, {name: name for name in names})
        if tensor_bundle.OBJECT_GRAPH in names:
            keys = _keys_of_weights(everything.read(tensor_bundle.OBJECT_GRAPH), self.directory)
            if not set(keys.values()) <= set(names):
                raise CheckpointError(f"{self.directory}: its object graph names absent variables")
        else:
            keys = {name.removeprefix("module/"): name for name in names}
        return tensor_bundle.Weights(self.directory, reader, keys)


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


def resolve(handle: str) -> Module:
    """Returns the module at a local directory, or at an https:// address through TF-Hub's cache.

    Raises:
      CheckpointError: not there, not reachable, or not an ALBERT module.
    """
    directory = handle
    if "://" in handle:
        import tensorflow_hub

        try:
            directory = tensorflow_hub.resolve(handle)
        except (OSError, RuntimeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise CheckpointError(
                f"--albert_hub_module_handle: cannot fetch {handle}: {reason}; "
                "download it and give its directory"
            ) from error
    if not os.path.isdir(os.path.join(directory, "variables")):
        raise CheckpointError(
            f"--albert_hub_module_handle: {directory} is not a module directory "
            "(it has no variables folder)"
        )
    assets = os.path.join(directory, "assets")
    config = os.path.join(assets, CONFIG_ASSET)
    if not os.path.isfile(config):
        raise CheckpointError(f"--albert_hub_module_handle: no {CONFIG_ASSET} in {assets}")
    names = sorted(os.listdir(assets))
    path = os.path.join(assets, TOKENIZATION_ASSET)
    # The released modules are of lower-cased models and say so in a graph only.
    settings = files.read_json_object(path) if os.path.isfile(path) else {}
    spm = next((os.path.join(assets, n) for n in names if n.endswith(".model")), None)
    # Beside a SentencePiece model a .vocab file is only a listing of its pieces.
    vocab = next((os.path.join(assets, n) for n in names if n.endswith((".vocab", ".txt"))), None)
    text = tokenizer_files.text_settings(settings, path)
    return Module(
        directory, AlbertConfig.from_json_file(config),
        Vocabulary(spm, None if spm else vocab, text),
    )


def tokenization_asset(tokenizer: FullTokenizer) -> dict[str, Any]:
    """Returns what a module's `tokenization.json` says."""
    return tokenizer_files.describe(tokenizer, None)
