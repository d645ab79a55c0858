"""Finds, writes and checks checkpoints, and initializes models from them. No TensorFlow.

A checkpoint is `<prefix>.index` and `<prefix>.data-*`, in TensorFlow 1's format, like the original's. It
exists if its index does: the index is published last and removed first. The names in it are the
released ones, with `<variable>/adam_m`, `adam_v` and `global_step`. `metadata` has its `<prefix>.json`.
"""

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from albert.config import AlbertConfig
from albert.errors import CheckpointError, some
from albert.formats import tensor_bundle
from albert.formats.weights import UNITS, Weights
from albert.storage import files
from albert.storage.temporary import temporary_dir

log = logging.getLogger("albert")

BEST = "model.ckpt-best"
INDEX = ".index"
_PARTS = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_STEP = re.compile(r"model\.ckpt-(\d+)$")
_COUNTED = re.compile(r"/(attention|ffn)_\d+/")
_SLOT = re.compile(r"/((adam|lamb)_[mv]|momentum|average)$|^global_step$")
_GROUP = re.compile(r"/group_\d+/")
_BLOCK = re.compile(r"bert/encoder/transformer/group_\d+/inner_group_\d+/")


# === Files ===


class MismatchError(CheckpointError):
    """An undamaged checkpoint of something else: no reason to try an older one."""


def exists(prefix: str) -> bool:
    """Whether there is a checkpoint with this prefix."""
    return os.path.isfile(prefix + INDEX)


def prefix_of(path: str) -> str:
    """Returns the prefix of a checkpoint, given it or one of its files."""
    return _PARTS.sub("", path)


def _names_in(directory: str) -> list[str]:
    """Returns the names of a directory's checkpoints, sorted."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return sorted(name.removesuffix(INDEX) for name in names if name.endswith(INDEX))


def files_of(prefix: str) -> list[str]:
    """Returns a checkpoint's files in the order in which to delete them: the index first."""
    paths = [prefix + INDEX, *tensor_bundle.shards(prefix), prefix + ".json"]
    return [path for path in paths if os.path.exists(path)]


def write(
    prefix: str, tensors: Mapping[str, Any], before: Callable[[], None] = lambda: None
) -> None:
    """Publishes a checkpoint.

    Args:
      before: called after writing and before publishing.

    Raises:
      CheckpointError: it could not be written (disk full, for example); nothing is left behind.
    """
    try:
        with temporary_dir(prefix) as scratch:
            inner = os.path.join(scratch, "checkpoint")
            tensor_bundle.write(inner, tensors)
            before()
            files.publish(*((inner + end, prefix + end) for end in tensor_bundle.SUFFIXES))
    except OSError as error:
        raise CheckpointError(f"cannot write {prefix}: {error.strerror or error}") from error


def open_weights(path: str, flag: str = "init_checkpoint") -> Weights:
    """Returns the tensors of a name-based checkpoint of ours or of the original.

    `path` is a prefix, any of its files, or a directory (best, else newest).
    Names of older releases and of fine-tuned TF-Hub modules are mapped to
    the released ones, see `released_names`.

    Raises:
      CheckpointError: absent, of another kind, or damaged.
    """
    prefix = resolve_prefix(path, flag)
    reader = tensor_bundle.BundleReader(prefix)
    names = list(reader.shapes)
    if tensor_bundle.OBJECT_GRAPH in names:
        raise CheckpointError(f"{flag}: {prefix} is an object-based TensorFlow 2 checkpoint; a TF1-style one "
                              "with names such as bert/embeddings/word_embeddings is needed")
    reader.check_complete()
    return Weights(prefix, reader, released_names(names))


def released_names(names: Iterable[str]) -> dict[str, str]:
    """Returns {released name: name in the file}.

    Fine-tuning from a TF-Hub module put `module/` before the encoder's names; older code numbered
    `attention_<d>` and `ffn_<d>`, where releases have a constant 1. Names that would become equal
    stay unchanged.
    """
    mapping: dict[str, str] = {}
    for name in names:
        plain = name.removeprefix("module/")
        released = _COUNTED.sub(r"/\1_1/", plain)
        mapping[plain if released in mapping else released] = name
    return mapping


def resolve_prefix(path: str, flag: str = "init_checkpoint") -> str:
    """Returns the checkpoint prefix that a user's path means.

    Raises:
      CheckpointError: nothing there, or a file that is no checkpoint.
    """
    prefix = prefix_of(path)
    if exists(prefix):
        return prefix
    if os.path.isdir(path):
        if newest := newest_or_best(path):
            return newest
        others = _names_in(path)
        if len(others) == 1:
            return os.path.join(path, others[0])
        detail = f"several ({', '.join(others)}): name one" if others else "no *.index file in it"
        raise CheckpointError(f"{flag}: directory {path} has {detail}")
    if os.path.isfile(path):
        raise CheckpointError(f"{flag}: {path} is not a TensorFlow checkpoint; expected a prefix with "
                              ".index and .data files")
    names = _names_in(os.path.dirname(prefix) or ".")
    hint = f"; there are: {some(names)}" if names else ""
    raise CheckpointError(f"{flag}: no checkpoint at {path}{hint}")


def list_steps(directory: str) -> dict[int, str]:
    """Returns {step: prefix} in ascending order, from the files alone.

    The `checkpoint` state file is not trusted: if it were damaged, the run would start over and
    overwrite its checkpoints.
    """
    steps = [int(m.group(1)) for m in map(_STEP.match, _names_in(directory)) if m]
    return {step: os.path.join(directory, f"model.ckpt-{step}") for step in sorted(steps)}


def newest_or_best(directory: str) -> str | None:
    """Returns the prefix of the best checkpoint, else of the newest, else None."""
    if exists(os.path.join(directory, BEST)):
        return os.path.join(directory, BEST)
    return next(reversed(list_steps(directory).values()), None)


# === What fits ===


def check_architecture(
    run_state: Mapping[str, Any], config: AlbertConfig, origin: str, task: str | None = None
) -> None:
    """Refuses a checkpoint of another architecture or, if given, of another task.

    Raises:
      MismatchError: lists the differences.
    """
    trained = run_state.get("metadata", {}).get("task", task)
    if task is not None and trained != task:
        raise MismatchError(f"{origin} was trained for {trained}, not {task}: use another --output_dir")
    theirs = run_state.get("config")
    if theirs is None:
        return
    # Dropout and initialization may change between runs: they don't affect the shapes.
    free = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
    ours, names = config.to_dict(), [f.name for f in dataclasses.fields(config) if f.name not in free]
    differ = [f"{name}: checkpoint {theirs.get(name)}, config {ours.get(name)}"
              for name in names if theirs.get(name) != ours.get(name)]
    if differ:
        raise MismatchError(f"{origin} has another architecture ({'; '.join(differ)}): use its config, "
                            "or another --output_dir")


def check_sizes(config: AlbertConfig, weights: Weights) -> None:
    """Refuses a config that the weights contradict, before a model of its sizes is built.

    Raises:
      MismatchError: lists the differences.
    """
    hidden, width = config.hidden_size, config.embedding_size
    table, last = "bert/embeddings/", config.num_hidden_layers - 1
    block = "bert/encoder/transformer/group_{}/inner_group_{}/"
    inner = config.inner_group_num - 1
    attention = block.format(config.attention_group(last), inner) + "attention_1/self/query/kernel"
    feed_forward = block.format(config.feed_forward_group(last), inner) + "ffn_1/intermediate/dense/kernel"
    sizes = {
        table + "word_embeddings": (config.vocab_size, width),
        table + "position_embeddings": (config.max_position_embeddings, width),
        table + "token_type_embeddings": (config.type_vocab_size, width),
        attention: (hidden, hidden), feed_forward: (hidden, config.intermediate_size),
    }
    if config.has_embedding_projection:
        sizes["bert/encoder/embedding_hidden_mapping_in/kernel"] = width, hidden
    blocks = {name[: match.end()] for name in weights.shapes if (match := _BLOCK.match(name))}
    absent = [
        f"{name}: not in the checkpoint" for name in (attention, feed_forward)
        if blocks and _BLOCK.match(name)[0] not in blocks
    ]
    if problems := _misfits(sizes, weights) or absent:
        raise MismatchError(f"{weights.origin} does not fit the model: {some(problems)}")


def read_all(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns the named tensors of a checkpoint.

    Raises:
      CheckpointError: one is missing or has another shape, or the file is damaged.
    """
    weights = open_weights(prefix)
    problems = [f"{n}: not in the checkpoint" for n in shapes if n not in weights.shapes]
    problems += _misfits(shapes, weights)
    if problems:
        raise MismatchError(f"{prefix} does not fit the model: {some(problems)}")
    return {name: weights.read(name) for name in shapes}


def _misfits(
    shapes: Mapping[str, tuple[int, ...]], weights: Weights, sources: Mapping[str, str] = {}
) -> list[str]:
    """Returns a line for each weight with another shape; `sources` are names in `weights` that differ."""
    there = {name: weights.shapes.get(sources.get(name, name)) for name in shapes}
    return [
        f"{name}: checkpoint {list(there[name])}, model {list(shape)}"
        for name, shape in shapes.items() if there[name] not in (None, tuple(shape))
    ]


def warm_start(
    shapes: Mapping[str, tuple[int, ...]], weights: Weights, mode: str = "encoder"
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns (tensors to assign, summary) for initializing weights only.

    Heads may be missing, and keep their initial values, but no shape may differ. Of the `bert/`
    variables, depending on the mode:

      encoder  all must be there but the pooler, which Hugging Face's classes lack that do not read it
      group0   the same, and every group takes the weights of group 0
      partial  some must be there
      any      none must be there

    Raises:
      CheckpointError: lists each variable that is missing or has another shape.
    """
    source = {n: _GROUP.sub("/group_0/", n) if mode == "group0" else n for n in shapes}
    matches = {n: theirs for n, theirs in source.items() if theirs in weights.shapes}
    new = [n for n in shapes if n not in matches and n not in UNITS]
    ignored = sorted(set(weights.shapes) - set(matches.values()))
    problems = _misfits(shapes, weights, source)
    encoder = [n for n in shapes if n.startswith("bert/")]
    absent = [n for n in encoder if n not in matches and mode != "any"]
    pooler = [n for n in encoder if n.startswith("bert/pooler/")]
    if pooler and set(pooler) <= set(absent) and absent != encoder:
        log.warning("%s has no pooler: the pooled output is random until it is trained",
                    weights.origin)
        absent = [n for n in absent if n not in pooler]
    if absent and (mode != "partial" or absent == encoder):
        problems += [f"{n} {list(shapes[n])}: not in the checkpoint" for n in absent]
    if not (matches or problems):
        problems = ["it has none of the model's weights"]
    if problems:
        unused = [f"{n} {list(weights.shapes[n])}" for n in ignored if not is_slot(n)]
        raise CheckpointError(f"{weights.origin} does not fit the model: {some(problems)}; "
                              f"unused in the checkpoint: {some(unused or ['nothing'])}")
    if absent:
        log.warning("missing in %s, so initialized randomly: %s", weights.origin, some(absent))
    summary = {"checkpoint": weights.origin, "loaded": list(matches), "new": new, "ignored": ignored}
    return {n: weights.read(theirs) for n, theirs in matches.items()}, summary


def is_slot(name: str) -> bool:
    """Whether a tensor belongs to the optimizer or is the step count, not part of the model."""
    return bool(_SLOT.search(name))


def describe_start(summary: Mapping[str, Any]) -> str:
    """Returns the summary of `warm_start` as one line."""

    def listing(names):
        parts = sorted({"/".join(n.split("/")[:2]) for n in names})
        return f" ({', '.join(parts[:6])}{', ...' if len(parts) > 6 else ''})" if names else ""

    loaded, new = len(summary["loaded"]), summary["new"]
    state = ("/adam_m", "/adam_v", "/momentum", "global_step")  # of an optimizer
    ignored = [name for name in summary["ignored"] if not name.endswith(state)]
    return (
        f"from {summary['checkpoint']}: loaded {loaded} of {loaded + len(new)} variables, "
        f"initialized {len(new)}{listing(new)}, left out {len(ignored)}{listing(ignored)}"
    )
