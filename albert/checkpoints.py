"""Checkpoints in the original's own format: names, shapes and files.

A checkpoint is `model.ckpt-<step>.index` and `.data-00000-of-00001`, a tensor
bundle whose names are the released ones, with `<variable>/adam_m`, `adam_v`
and `global_step`, so a checkpoint of the original is one of ours.
`model.ckpt-<step>.json` beside it holds what tensors cannot: architecture,
flags, data position and running averages. The index is renamed into place
last; without it nothing counts as a checkpoint.
"""

import difflib
import logging
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert import files
from albert.config import AlbertConfig
from albert.errors import CheckpointError

log = logging.getLogger("albert")

BEST = "model.ckpt-best"
_STEP = re.compile(r"model\.ckpt-(\d+)\.index$")
_PARTS = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
# What a damaged bundle raises: truncated data is an IndexError of the binding.
_UNREADABLE = (tf.errors.OpError, IndexError, ValueError, RuntimeError)
_FOREIGN = (".h5", ".keras", ".pkl", ".pickle", ".bin", ".pt", ".pth", ".npz", ".safetensors")
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


class MismatchError(CheckpointError):
    """A sound checkpoint of something else; unlike damage, never a reason to look further."""


class Weights:
    """The named tensors of one checkpoint, read on demand."""

    def __init__(self, origin: str, reader, keys: Mapping[str, str]):
        self.origin = origin
        self._reader = reader
        self._keys = dict(keys)  # name -> key in the bundle
        shapes = reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shapes[key]) for name, key in self._keys.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor.

        Raises:
          CheckpointError: the file is damaged (the bundle's checksums are verified).
        """
        try:
            return self._reader.get_tensor(self._keys[name])
        except _UNREADABLE as error:
            raise CheckpointError(
                f"{self.origin}: cannot read {name}: {_first_line(error)}"
            ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def open_bundle(prefix: str):
    """Returns TensorFlow's reader of a tensor bundle.

    Raises:
      CheckpointError: not a tensor bundle, or damaged.
    """
    try:
        return tf.train.load_checkpoint(prefix)
    except _UNREADABLE as error:
        raise CheckpointError(f"{prefix} is not a readable checkpoint: {_first_line(error)}") from error


def open_weights(path: str, flag: str = "init_checkpoint") -> Weights:
    """Returns the tensors of a name-based checkpoint of ours or of the original.

    `path` is a prefix, any of its files, or a directory (best, else newest).
    A `module/` prefix, as fine-tuning from a TF-Hub module left it, is dropped.

    Raises:
      CheckpointError: absent (with the nearest names), of another kind, or damaged.
    """
    prefix = resolve_prefix(path, flag)
    reader = open_bundle(prefix)
    names = list(reader.get_variable_to_shape_map())
    if OBJECT_GRAPH in names:
        raise CheckpointError(
            f"--{flag}: {prefix} is an object-based TensorFlow 2 checkpoint; a TF1-style one "
            "with names such as bert/embeddings/word_embeddings is needed"
        )
    return Weights(prefix, reader, {name.removeprefix("module/"): name for name in names})


def resolve_prefix(path: str, flag: str = "init_checkpoint") -> str:
    """Returns the checkpoint prefix that a user's path means.

    Raises:
      CheckpointError: nothing there, or a file that is no checkpoint.
    """
    prefix = _PARTS.sub("", path)
    if os.path.isfile(prefix + ".index"):
        if not os.path.isfile(prefix + ".data-00000-of-00001") and not _shards(prefix):
            raise CheckpointError(f"--{flag}: {prefix}.index has no .data file beside it")
        return prefix
    if os.path.isdir(path):
        found = newest_or_best(path)
        if found:
            return found
        others = sorted(n[: -len(".index")] for n in os.listdir(path) if n.endswith(".index"))
        if len(others) == 1:
            return os.path.join(path, others[0])
        detail = f"several ({', '.join(others)}): name one" if others else "no *.index file in it"
        raise CheckpointError(f"--{flag}: directory {path} has {detail}")
    if os.path.isfile(path):
        kind = " (pickled or foreign files are never opened)" if path.endswith(_FOREIGN) else ""
        raise CheckpointError(
            f"--{flag}: {path} is not a TensorFlow checkpoint; expected a prefix with "
            f".index and .data files{kind}"
        )
    folder = os.path.dirname(prefix) or "."
    near: list[str] = []
    if os.path.isdir(folder):
        names = [n[: -len(".index")] for n in os.listdir(folder) if n.endswith(".index")]
        near = difflib.get_close_matches(os.path.basename(prefix), names, n=3, cutoff=0.3)
    hint = f"; there are: {', '.join(near)}" if near else ""
    raise CheckpointError(f"--{flag}: no checkpoint at {path}{hint}")


def _shards(prefix: str) -> list[str]:
    folder, base = os.path.split(prefix)
    names = os.listdir(folder or ".")
    return [os.path.join(folder, n) for n in names if n.startswith(base + ".data-")]


def list_steps(directory: str) -> dict[int, str]:
    """Returns {step: prefix} in ascending order, from the files alone.

    The `checkpoint` state file is never believed: when it is damaged, trusting
    it means starting over and overwriting what is there.
    """
    if not os.path.isdir(directory):
        return {}
    steps = [int(m.group(1)) for m in map(_STEP.match, os.listdir(directory)) if m]
    return {step: os.path.join(directory, f"model.ckpt-{step}") for step in sorted(steps)}


def newest_or_best(directory: str) -> str | None:
    """Returns the prefix of the best checkpoint, else of the newest, else None."""
    if os.path.isfile(os.path.join(directory, BEST + ".index")):
        return os.path.join(directory, BEST)
    return next(reversed(list_steps(directory).values()), None)


def save(
    directory: str, step: int, tensors: Mapping[str, Any], sidecar: Mapping[str, Any], keep: int
) -> str:
    """Publishes `model.ckpt-<step>` and deletes all but the newest `keep`; returns its prefix.

    Raises:
      CheckpointError: it could not be written; the earlier ones are untouched.
    """
    prefix = os.path.join(directory, f"model.ckpt-{step}")
    with_json = {"step": step, **sidecar}
    files.write_json(prefix + ".json", with_json)
    write_bundle(prefix, tensors)
    kept = list(list_steps(directory).values())[-max(keep, 1) :] if keep > 0 else None
    for old in list_steps(directory).values():
        if kept is not None and old not in kept:
            delete(old)
    _write_state_file(directory)
    return prefix


def write_bundle(prefix: str, tensors: Mapping[str, Any]) -> None:
    """Publishes a tensor bundle; its index appears last.

    Raises:
      CheckpointError: it could not be written (disk full, say); nothing is left behind.
    """
    scratch = f"{prefix}.tmp-{os.getpid()}"
    try:
        os.makedirs(scratch, exist_ok=True)
        inner = os.path.join(scratch, "bundle")
        tf.raw_ops.SaveV2(
            prefix=inner,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=[tf.convert_to_tensor(t) for t in tensors.values()],
        )
        for suffix in (".data-00000-of-00001", ".index"):
            with open(inner + suffix, "rb") as stream:
                os.fsync(stream.fileno())
            os.replace(inner + suffix, prefix + suffix)
        files.fsync_dir(os.path.dirname(os.path.abspath(prefix)))
    except (tf.errors.OpError, OSError) as error:
        reason = getattr(error, "message", None) or error
        raise CheckpointError(f"cannot write {prefix}: {reason}; is the disk full?") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def delete(prefix: str) -> None:
    """Removes a checkpoint, its index first so that it never looks whole."""
    for path in [prefix + ".index", *_shards(prefix), prefix + ".json"]:
        if os.path.exists(path):
            os.unlink(path)


def set_aside(prefix: str) -> None:
    """Renames a damaged checkpoint's files to `*.corrupt`."""
    for path in [prefix + ".index", *_shards(prefix), prefix + ".json"]:
        if os.path.exists(path):
            os.replace(path, path + ".corrupt")


def publish_best(prefix: str) -> str:
    """Copies a checkpoint to `model.ckpt-best`, telling so in the original's words."""
    best = os.path.join(os.path.dirname(prefix), BEST)
    for source in [*_shards(prefix), prefix + ".json", prefix + ".index"]:
        if not os.path.exists(source):
            continue
        target = best + source.removeprefix(prefix)
        temporary = f"{target}.tmp-{os.getpid()}"
        shutil.copyfile(source, temporary)
        os.replace(temporary, target)
        log.info("saved %s to %s", source, target)
    return best


def _write_state_file(directory: str) -> None:
    """Writes TensorFlow's `checkpoint` file, for other tools."""
    names = [os.path.basename(p) for p in list_steps(directory).values()]
    with files.atomic_write(os.path.join(directory, "checkpoint")) as stream:
        stream.write(f'model_checkpoint_path: "{names[-1]}"\n')
        for name in names:
            stream.write(f'all_model_checkpoint_paths: "{name}"\n')


def read_sidecar(prefix: str) -> dict[str, Any]:
    """Returns `<prefix>.json`; empty for a checkpoint of the original toolkit."""
    path = prefix + ".json"
    return files.read_json(path) if os.path.exists(path) else {}


def check_architecture(
    sidecar: Mapping[str, Any], config: AlbertConfig, origin: str, task: str | None = None
) -> None:
    """Refuses a checkpoint of another architecture or, if given, of another task.

    Raises:
      MismatchError: lists each differing key with both values.
    """
    if task is not None and sidecar.get("task", task) != task:
        raise MismatchError(
            f"{origin} is of task {sidecar['task']}, not {task}: use another --output_dir"
        )
    theirs = sidecar.get("config")
    if theirs is None:
        return
    # Dropout and initialisation may change between runs; no weight depends on them.
    free = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
    ours = config.to_dict()
    keys = [f for f in AlbertConfig.__dataclass_fields__ if f != "extra" and f not in free]
    differ = [
        f"{k}: checkpoint {theirs.get(k)}, config {ours[k]}"
        for k in keys
        if theirs.get(k) != ours[k]
    ]
    if differ:
        raise MismatchError(
            f"{origin} is of another architecture ({'; '.join(differ)}): "
            "use its config, or another --output_dir"
        )


def read_all(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns exactly the named tensors of a checkpoint.

    Raises:
      CheckpointError: one is absent, has another shape, or the file is damaged.
    """
    weights = open_weights(prefix)
    problems = [f"{n}: not in the checkpoint" for n in shapes if n not in weights.shapes]
    problems += [
        f"{n}: checkpoint {list(weights.shapes[n])}, model {list(shape)}"
        for n, shape in shapes.items()
        if n in weights.shapes and weights.shapes[n] != tuple(shape)
    ]
    if problems:
        raise MismatchError(f"{prefix} does not fit the model: {_some(problems)}")
    return {name: weights.read(name) for name in shapes}


def _some(items: list[str], most: int = 6) -> str:
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def read_newest(
    directory: str, shapes: Mapping[str, tuple[int, ...]], config: AlbertConfig, task: str
) -> tuple[str, dict[str, np.ndarray], dict[str, Any]] | None:
    """Returns (prefix, tensors, sidecar) of the newest sound checkpoint, or None if there is none.

    Damaged ones are set aside with a warning.

    Raises:
      CheckpointError: another architecture, or every checkpoint is damaged.
    """
    prefixes = list(reversed(list_steps(directory).values()))
    damaged: list[tuple[str, Exception]] = []
    for prefix in prefixes:
        try:
            sidecar = read_sidecar(prefix)
            check_architecture(sidecar, config, prefix, task)
            found = prefix, read_all(prefix, shapes), sidecar
        except MismatchError:
            raise
        except (CheckpointError, files.DataError) as error:
            damaged.append((prefix, error))
            continue
        for bad, reason in damaged:
            log.warning("%s unreadable (%s), using %s", bad, reason, prefix)
            set_aside(bad)
        return found
    if damaged:
        raise CheckpointError(
            f"no checkpoint in {directory} is readable (newest: {damaged[0][1]}); "
            "move them away to start over"
        )
    return None


def warm_start(
    shapes: Mapping[str, tuple[int, ...]],
    weights: Weights,
    *,
    init_from_group0: bool = False,
    allow_partial_init: bool = False,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns (tensors to assign, account) for weights-only initialisation.

    Heads may be absent from the checkpoint (they stay new); a `bert/` variable
    may not, and no shape may differ. With `init_from_group0`, every group takes
    the weights of group 0.

    Raises:
      CheckpointError: lists each variable that is absent or of another shape.
    """
    source = {n: _GROUP.sub("/group_0/", n) if init_from_group0 else n for n in shapes}
    new = [n for n in shapes if source[n] not in weights.shapes]
    loaded = [n for n in shapes if source[n] in weights.shapes]
    problems = [
        f"{n}: checkpoint {list(weights.shapes[source[n]])}, model {list(shapes[n])}"
        for n in loaded
        if weights.shapes[source[n]] != tuple(shapes[n])
    ]
    absent = [n for n in new if n.startswith("bert/")]
    if absent and (not allow_partial_init or len(absent) == _count_encoder(shapes)):
        problems += [f"{n} {list(shapes[n])}: not in the checkpoint" for n in absent]
    if problems:
        raise CheckpointError(f"{weights.origin} does not fit the model: {_some(problems)}")
    if absent:
        log.warning("left at random values, absent from %s: %s", weights.origin, _some(absent))
    ignored = sorted(set(weights.shapes) - {source[n] for n in loaded})
    account = {"checkpoint": weights.origin, "loaded": loaded, "new": new, "ignored": ignored}
    return {n: weights.read(source[n]) for n in loaded}, account


_GROUP = re.compile(r"/group_\d+/")


def _count_encoder(shapes: Mapping[str, Any]) -> int:
    return sum(n.startswith("bert/") for n in shapes)


def describe(account: Mapping[str, Any]) -> str:
    """Returns the account of a warm start in one line."""

    def listing(names):
        shown = sorted({n.rsplit("/", 1)[-1] for n in names})
        return f" ({', '.join(shown[:6])}{', ...' if len(shown) > 6 else ''})" if names else ""

    new, ignored = account["new"], account["ignored"]
    return (
        f"from {account['checkpoint']}: loaded {len(account['loaded'])}, "
        f"new {len(new)}{listing(new)}, ignored {len(ignored)}{listing(ignored)}"
    )
