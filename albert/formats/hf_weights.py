"""Hugging Face's weights under our names, and ours under theirs.

Their kernels are [out, in], ours [in, out]. Their names begin with `albert.` in models with a head, but
not in the bare encoder. They have no head for SQuAD 2.0, so its weights keep our names. Their BERT is an
ALBERT in which each layer is a group.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping

import numpy as np
import safetensors

from albert.config import AlbertConfig
from albert.errors import CheckpointError, some
from albert.formats.weights import Weights, as_floats
from albert.storage import files

log = logging.getLogger("albert")

# Files with weights, in order of preference.
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"  # of weights in several files, `SHARDS`
WEIGHTS_FILES = (WEIGHTS_FILE, INDEX_FILE, "pytorch_model.bin")
SHARDS = "model-*.safetensors"

Shapes = dict[str, tuple[int, ...]]
Read = Callable[[str], np.ndarray]


# === Names ===

# Copies of other tensors, and buffers that hold no weight.
_TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
_BUFFERS = ("albert.embeddings.position_ids", "albert.embeddings.token_type_ids")
_MAPPING = "bert/encoder/embedding_hidden_mapping_in/"  # exists there even if E = H
# A group's number and that of a layer within it, or "{}" in the names below.
_BLOCK = "bert/encoder/transformer/group_{}/inner_group_{}/"
_THEIR_BLOCK = "albert.encoder.albert_layer_groups.{}.albert_layers.{}."
_NUMBERS = re.compile(r"(?<=group_)\d+|(?<=groups\.)\d+|(?<=layers\.)\d+")
_DENSE = {"kernel": "weight", "bias": "bias"}
_NORM = {"gamma": "weight", "beta": "bias"}
_LOGITS = {"output_weights": "weight", "output_bias": "bias"}
_TABLES = {
    name: f"{name}.weight"
    for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")
}


def _names(*scopes: tuple[str, str, Mapping[str, str]]) -> dict[str, str]:
    """Returns {our name: theirs}."""
    return {
        ours + leaf: theirs + their_leaf
        for ours, theirs, leaves in scopes for leaf, their_leaf in leaves.items()
    }


_ATTENTION = _names(
    (_BLOCK + "attention_1/self/query/", _THEIR_BLOCK + "attention.query.", _DENSE),
    (_BLOCK + "attention_1/self/key/", _THEIR_BLOCK + "attention.key.", _DENSE),
    (_BLOCK + "attention_1/self/value/", _THEIR_BLOCK + "attention.value.", _DENSE),
    (_BLOCK + "attention_1/output/dense/", _THEIR_BLOCK + "attention.dense.", _DENSE),
    (_BLOCK + "LayerNorm/", _THEIR_BLOCK + "attention.LayerNorm.", _NORM),
)
_THEIRS = _ATTENTION | _names(
    (_BLOCK + "ffn_1/intermediate/dense/", _THEIR_BLOCK + "ffn.", _DENSE),
    (_BLOCK + "ffn_1/intermediate/output/dense/", _THEIR_BLOCK + "ffn_output.", _DENSE),
    (_BLOCK + "LayerNorm_1/", _THEIR_BLOCK + "full_layer_layer_norm.", _NORM),
    ("bert/embeddings/", "albert.embeddings.", _TABLES),
    ("bert/embeddings/LayerNorm/", "albert.embeddings.LayerNorm.", _NORM),
    (_MAPPING, "albert.encoder.embedding_hidden_mapping_in.", _DENSE),
    ("bert/pooler/dense/", "albert.pooler.", _DENSE),
    ("cls/predictions/", "predictions.", {"output_bias": "bias"}),
    ("cls/predictions/transform/dense/", "predictions.dense.", _DENSE),
    ("cls/predictions/transform/LayerNorm/", "predictions.LayerNorm.", _NORM),
    ("cls/seq_relationship/", "sop_classifier.classifier.", _LOGITS),
    ("cls/squad/", "qa_outputs.", _LOGITS),
    ("", "classifier.", _LOGITS),
)
_OURS = {theirs: ours for ours, theirs in _THEIRS.items()}
# What other names for theirs there are: of PyTorch's wrappers, of BERT, of old files, of the bare encoder.
_ALSO = (
    (r"module\.", ""),
    (r"bert\.", "albert."),
    (r"((?:albert\.)?encoder)\.layer\.(\d+)\.", r"\1.albert_layer_groups.\2.albert_layers.0."),
    (r"(.*\.attention)\.(?:self|output)\.", r"\1."),
    (r"(.*)\.intermediate\.dense\.", r"\1.ffn."),
    (r"(.*\.albert_layers\.0)\.output\.dense\.", r"\1.ffn_output."),
    (r"(.*\.albert_layers\.0)\.output\.LayerNorm\.", r"\1.full_layer_layer_norm."),
    (r"((?:albert\.)?pooler)\.dense\.", r"\1."),
    (r"cls\.(predictions\.)(?:transform\.)?", r"\1"),
    (r"cls\.seq_relationship\.", "sop_classifier.classifier."),
    (r"(.*\.)gamma$", r"\1weight"),
    (r"(.*\.)beta$", r"\1bias"),
    (r"(embeddings|encoder|pooler)\.", r"albert.\1."),
)


def _usual_name(name: str) -> str:
    """Returns the name in their ALBERT with a head of a tensor in any of their files."""
    for pattern, replacement in _ALSO:
        name = re.sub("^" + pattern, replacement, name)
    return name


# === Groups ===


def their_group(layer: int, layers: int, groups: int) -> int:
    """Returns a layer's group in their library, which in rare cases differs from the original's."""
    return int(layer / (layers / groups))


def groups_there(config: AlbertConfig) -> int:
    """Returns the number of groups with which their layers have the same weights as ours."""
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    is_alike = config.parameter_sharing == "all" and all(
        config.group_of_layer(i) == their_group(i, layers, groups) for i in range(layers)
    )
    return groups if is_alike else layers


def _pairs(config: AlbertConfig, groups: int) -> dict[bool, list[tuple[int, int]]]:
    """Returns (our group, theirs) of each layer, if both have that many: of attention (True) and the rest."""
    layers = config.num_hidden_layers
    return {
        is_attention: [(owner(layer), their_group(layer, layers, groups)) for layer in range(layers)]
        for is_attention, owner in ((True, config.attention_group), (False, config.feed_forward_group))
    }


# === Writing ===


def to_theirs(
    config: AlbertConfig, tensors: Mapping[str, np.ndarray], architecture: str
) -> dict[str, np.ndarray]:
    """Returns {their name: array} of our named weights, for their class `architecture`.

    Weights of a head that they lack keep their names, and are ignored by their library.
    """
    tensors, theirs, pairs = dict(tensors), {}, _pairs(config, groups_there(config))
    if not config.has_embedding_projection:  # which theirs always has
        tensors[_MAPPING + "kernel"] = np.eye(config.hidden_size, dtype=np.float32)
        tensors[_MAPPING + "bias"] = np.zeros(config.hidden_size, np.float32)
    for name, value in tensors.items():
        form, numbers = _NUMBERS.sub("{}", name), _NUMBERS.findall(name)
        groups = {there for ours, there in pairs[form in _ATTENTION] if numbers[:1] == [str(ours)]}
        for group in groups if numbers else {0}:
            target = _THEIRS.get(form, name).format(group, *numbers[1:])
            if architecture == "AlbertModel":
                target = target.removeprefix("albert.")
            theirs[target] = np.ascontiguousarray(value.T if name.endswith("/kernel") else value)
    return dict(sorted(theirs.items()))


def write(path: str, theirs: Mapping[str, np.ndarray]) -> None:
    """Writes a safetensors file, with the `format: pt` that transformers requires."""
    from safetensors.numpy import save

    with files.atomic_write(path, "wb") as stream:
        stream.write(save(dict(theirs), metadata={"format": "pt"}))


# === Reading ===


def find(directory: str) -> str | None:
    """Returns the file with a directory's weights, if there is one."""
    paths = (os.path.join(directory, name) for name in WEIGHTS_FILES)
    return next(filter(os.path.isfile, paths), None)


def open_weights(path: str, config: AlbertConfig) -> Weights:
    """Returns the weights of a file with their names.

    Raises:
      CheckpointError: it is damaged, or neither an ALBERT nor a BERT.
    """
    return Weights(path, _Reader(path, config))


class _Reader:
    """Their tensors under our names, read on demand, in our orientation and float32."""

    def __init__(self, path: str, config: AlbertConfig):
        self._path = path
        shapes, self._read = open_tensors(path)
        named = {_usual_name(name): name for name in shapes}
        first = f"albert.encoder.albert_layer_groups.{config.num_hidden_groups}."
        has_more = any(name.startswith(first) for name in named)  # a group for each layer
        pairs = _pairs(config, config.num_hidden_layers if has_more else config.num_hidden_groups)
        # Each of our groups has the weights of its first layer.
        sources = {is_attention: dict(reversed(pairs[is_attention])) for is_attention in pairs}
        self._keys, ignored = {}, []
        for name, key in named.items():
            ours, numbers = _OURS.get(_NUMBERS.sub("{}", name)), _NUMBERS.findall(name)
            if ours and "{" not in name:
                of_theirs = sources[ours in _ATTENTION].items()
                groups = [group for group, there in of_theirs if numbers[:1] == [str(there)]]
                for group in groups if numbers else [0]:
                    self._keys[ours.format(group, *numbers[1:])] = key
            elif "/" in name and not name.startswith("bert/"):  # of a head that they lack
                self._keys[name] = key
            elif name not in (*_TIED, *_BUFFERS):
                ignored.append(name)
        if ignored:
            log.warning("%s: ignored tensors that no ALBERT has: %s", path, some(sorted(ignored)))
        self._check_ties(named)
        if not config.has_embedding_projection:
            self._drop_identity()
        if not any(name.startswith("bert/") for name in self._keys):
            names = ", ".join(sorted(shapes)[:3])
            raise CheckpointError(f"{path} holds no ALBERT encoder (its tensors: {names} ...)")
        self.shapes = {
            name: shapes[key][::-1] if name.endswith("/kernel") else shapes[key]
            for name, key in self._keys.items()
        }

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor by our name, float32."""
        value = as_floats(self._read(self._keys[name]), f"{self._path}: {self._keys[name]}")
        return np.ascontiguousarray(value.T) if name.endswith("/kernel") else value

    def _check_ties(self, there: Mapping[str, str]) -> None:
        for copy, original in _TIED.items():
            if copy in there and original not in there:  # as in old files
                self._keys[_OURS[original]] = there[copy]
            elif copy in there and not np.array_equal(*map(self._read, (there[copy], there[original]))):
                raise CheckpointError(f"{self._path}: {copy} is not a copy of {original}; an ALBERT with "
                                      "a separate output matrix is not supported")

    def _drop_identity(self) -> None:
        """Drops their projection if E = H; we have none then, so it must be the identity."""
        for name in [name for name in self._keys if name.startswith(_MAPPING)]:
            value = self.read(name)
            if not np.array_equal(value, np.eye(*value.shape) if value.ndim == 2 else 0 * value):
                raise CheckpointError(
                    f"{self._path}: embedding_hidden_mapping_in must be the identity, as embedding_size "
                    "equals hidden_size, where the original has none"
                )
            del self._keys[name]


def open_tensors(path: str) -> tuple[Shapes, Read]:
    """Returns ({name: shape}, read) of a .safetensors or .bin file, or of the index of several.

    Raises:
      CheckpointError: it is damaged.
    """
    import ml_dtypes  # noqa: F401  (makes bfloat16 a NumPy type; only here: it takes long to import)

    if path.endswith(".json"):
        return _open_shards(path)
    if path.endswith(".bin"):
        path = _converted(path)
    try:
        stream = safetensors.safe_open(path, framework="np")
        shapes = {n: tuple(stream.get_slice(n).get_shape()) for n in stream.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error

    def read(name: str) -> np.ndarray:
        try:
            return stream.get_tensor(name)
        except (TypeError, AttributeError, safetensors.SafetensorError) as error:  # as for float8
            raise CheckpointError(f"{path}: cannot read {name}: {error}") from error

    return shapes, read


def _open_shards(index: str) -> tuple[Shapes, Read]:
    shards = files.read_json_object(index).get("weight_map")
    names = set(shards.values()) if isinstance(shards, dict) else {None}
    if not all(isinstance(name, str) and os.path.basename(name) == name for name in names):
        raise CheckpointError(f"{index}: weight_map must name the file of each tensor")
    shapes: Shapes = {}
    read_of: dict[str, Read] = {}
    for name in sorted(names):
        found, read = open_tensors(os.path.join(os.path.dirname(index), name))
        shapes |= found
        read_of |= dict.fromkeys(found, read)
    return shapes, lambda name: read_of[name](name)


# The error prints it, to be run elsewhere. weights_only builds tensors and nothing else; that of earlier
# versions can be made to corrupt memory (CVE-2026-24747).
_CONVERT = (
    "import sys, torch; from safetensors.torch import save_file; source, target = sys.argv[1:]; "
    "assert torch.__version__ >= (2, 10), 'PyTorch is older than 2.10'; "
    "save_file({name: value.clone().contiguous() for name, value in "
    "torch.load(source, map_location='cpu', weights_only=True).items()}, target)"
)


def _converted(path: str) -> str:
    """Returns the safetensors file of a `pytorch_model.bin`, made once by PyTorch in another process.

    Raises:
      CheckpointError: PyTorch is not installed; the file is damaged, or holds anything but tensors.
    """

    import subprocess

    def convert(target: str) -> None:
        ran = subprocess.run(
            [sys.executable, "-c", _CONVERT, path, target], stdin=subprocess.DEVNULL,
            capture_output=True, encoding="utf-8", errors="replace",
        )
        if ran.returncode:
            # The last error is the unpickler's; the text around it advises to run the file's code.
            errors = [line for line in ran.stderr.splitlines() if "rror: " in line]
            reason = [f"PyTorch ended with {ran.returncode}", *errors][-1]
            reason = reason.partition(" was not an allowed global")[0]
            raise CheckpointError(
                f"cannot read {path}: {reason}: convert it with PyTorch 2.10 or later: "
                f'python -c "{_CONVERT}" pytorch_model.bin model.safetensors'
            )

    return files.cached(files.sha256(path), WEIGHTS_FILE, convert)
