"""Checkpoints in the original's own format: names, shapes and files.

A checkpoint is `model.ckpt-<step>.index` and `.data-00000-of-00001`, a tensor
bundle whose names are the released ones, with `<variable>/adam_m`, `adam_v`
and `global_step`, so a checkpoint of the original is one of ours.
`model.ckpt-<step>.json` beside it holds what tensors cannot: architecture,
flags, data position and running averages. The index is renamed into place
last; without it nothing counts as a checkpoint.
"""

import contextlib
import dataclasses
import difflib
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert.config import AlbertConfig
from albert.data import files
from albert.errors import CheckpointError, first_line
from albert.formats.sidecars import read_sidecar

log = logging.getLogger("albert")

BEST = "model.ckpt-best"
_STEP = re.compile(r"model\.ckpt-(\d+)\.index$")
_BESIDE_INDEX = re.compile(r"model\.ckpt-(\d+)\.(?:json|data-\d{5}-of-\d{5})$")
_PARTS = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
# What a damaged bundle raises: truncated data is an IndexError of the binding.
_UNREADABLE = (tf.errors.OpError, IndexError, ValueError, RuntimeError)
_FOREIGN = (".h5", ".keras", ".pkl", ".pickle", ".bin", ".pt", ".pth", ".npz", ".safetensors")
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")
_COUNTED = re.compile(r"/(attention|ffn)_\d+/")
# Models that are not of this toolkit's architecture, by a scope that only they have.
_OTHER_LAYOUTS = {
    "bert/encoder/layer_shared/": (
        "of the third-party albert_zh layout (one layer `bert/encoder/layer_shared`, word "
        "embeddings multiplied by `word_embeddings_2` before the sum): another architecture than "
        "ALBERT's, whose weights cannot give its results; Google's own Chinese models are "
        "albert_base_zh to albert_xxlarge_zh"
    ),
    "bert/encoder/layer_0/": (
        "a BERT (layers `bert/encoder/layer_0`, `layer_1` ... with weights of their own), not an "
        "ALBERT"
    ),
}


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
                f"{self.origin}: cannot read {name}: {first_line(error)}"
            ) from error


def open_bundle(prefix: str):
    """Returns TensorFlow's reader of a tensor bundle.

    Raises:
      CheckpointError: not a tensor bundle, or damaged.
    """
    try:
        return tf.train.load_checkpoint(prefix)
    except _UNREADABLE as error:
        raise CheckpointError(
            f"{prefix} is not a readable checkpoint: {first_line(error)}"
        ) from error


def check_whole(prefix: str, reader) -> None:
    """Refuses data files that are shorter than their tensors, those that nobody reads included.

    Raises:
      CheckpointError: names what cannot be read.
    """
    shapes, kinds = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    sizes = {
        name: math.prod(shapes[name]) * kind.size
        for name, kind in kinds.items() if kind.is_numpy_compatible and kind != tf.string
    }
    needed, found = sum(sizes.values()), sum(map(files.size_of, _shards(prefix)))
    if found >= needed:
        return
    # What claims to be larger than the files is not even tried.
    lost = [n for n, size in sorted(sizes.items()) if size > found or not _is_readable(reader, n)]
    raise CheckpointError(
        f"{prefix} is cut short: its data files have {found:,} bytes, its tensors {needed:,}; "
        f"cannot be read: {some(lost)}; copy it anew"
    )


def _is_readable(reader, name: str) -> bool:
    try:
        reader.get_tensor(name)
    except _UNREADABLE:
        return False
    return True


def open_weights(path: str, flag: str = "init_checkpoint") -> Weights:
    """Returns the tensors of a name-based checkpoint of ours or of the original.

    `path` is a prefix, any of its files, or a directory (best, else newest).
    Names of older releases and of fine-tuned TF-Hub modules are made the
    released ones, see `released_names`.

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
    for scope, kind in _OTHER_LAYOUTS.items():
        if any(scope in name for name in names):
            raise CheckpointError(f"--{flag}: {prefix} is {kind}")
    missing = _missing_shards(prefix)
    if missing:
        raise CheckpointError(
            f"--{flag}: {prefix}.index is there, but not {', '.join(missing)}: "
            "a checkpoint is complete with all of its files only"
        )
    check_whole(prefix, reader)
    return Weights(prefix, reader, released_names(names))


def released_names(names: Iterable[str]) -> dict[str, str]:
    """Returns {released name: name in the file}.

    Fine-tuning from a TF-Hub module put `module/` before the encoder's names;
    older code counted `attention_<d>` and `ffn_<d>`, where releases have a
    constant 1. Two that would become one keep their own names.
    """
    found: dict[str, str] = {}
    for name in names:
        plain = name.removeprefix("module/")
        released = _COUNTED.sub(r"/\1_1/", plain)
        found[plain if released in found else released] = name
    return found


def resolve_prefix(path: str, flag: str = "init_checkpoint") -> str:
    """Returns the checkpoint prefix that a user's path means.

    Raises:
      CheckpointError: nothing there, or a file that is no checkpoint.
    """
    prefix = _PARTS.sub("", path)
    if os.path.isfile(prefix + ".index"):
        return prefix
    if os.path.isdir(path):
        found = newest_or_best(path)
        if found:
            return found
        run = best_run(path, flag)
        if run:
            return resolve_prefix(run, flag)
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


def _missing_shards(prefix: str) -> list[str]:
    """Returns the names of the data files that belong to a checkpoint and are not there."""
    base = os.path.basename(prefix)
    numbers = [_SHARD.search(path) for path in _shards(prefix)]
    counts = {int(m[2]) for m in numbers if m}
    there = {(int(m[1]), int(m[2])) for m in numbers if m}
    if not counts:
        return [f"{base}.data-00000-of-00001"]
    # A whole set is enough, whatever else lies beside it.
    sets = [[i for i in range(n) if (i, n) not in there] for n in sorted(counts)]
    if not all(sets):
        return []
    count = max(counts)
    return [f"{base}.data-{i:05d}-of-{count:05d}" for i in sets[-1]]


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


# The folder of one of the runs of --num_runs, with its seed.
RUN_FOLDER = "seed-{}"


def best_run(directory: str, flag: str) -> str | None:
    """Returns the folder of the best of several runs; None if there are no runs in the directory.

    Raises:
      CheckpointError: none of them is known as the best.
    """
    runs = {
        name for name in os.listdir(directory)
        if re.fullmatch(RUN_FOLDER.format(r"\d+"), name)
        and os.path.isdir(os.path.join(directory, name))
    }
    if not runs:
        return None
    path = os.path.join(directory, "eval_results.json")
    results = files.read_json_object(path) if os.path.isfile(path) else {}
    best = RUN_FOLDER.format(results.get("best_seed"))
    if best not in runs:
        raise CheckpointError(
            f"--{flag}: {directory} has the runs {', '.join(sorted(runs))}, none of which is known "
            "as the best: name one"
        )
    log.info("%s: the best run, %s", directory, best)
    return os.path.join(directory, best)


def save(
    directory: str, step: int, tensors: Mapping[str, Any], sidecar: Mapping[str, Any], keep: int
) -> str:
    """Publishes `model.ckpt-<step>` and deletes all but the newest `keep`; returns its prefix.

    Raises:
      CheckpointError: it could not be written; the earlier ones are untouched.
    """
    prefix = os.path.join(directory, f"model.ckpt-{step}")
    try:
        files.write_sealed_json(prefix + ".json", {"step": step, **sidecar})
        write_bundle(prefix, tensors)
    except files.UserError as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(prefix + ".json")
        raise CheckpointError(str(error)) from error
    kept = list(list_steps(directory).values())[-max(keep, 1) :] if keep > 0 else None
    for old in list_steps(directory).values():
        if kept is not None and old not in kept:
            delete(old)
    if kept is not None:
        _sweep_orphans(directory, step)
    _write_state_file(directory)
    return prefix


def write_bundle(
    prefix: str, tensors: Mapping[str, Any], before: Callable[[], None] = lambda: None
) -> None:
    """Publishes a tensor bundle; its index appears last.

    `before` is called when all is written and nothing is published yet.

    Raises:
      CheckpointError: it could not be written (disk full, say); nothing is left behind.
    """
    try:
        with files.temporary_dir(prefix) as scratch:
            _write_bundle(prefix, os.path.join(scratch, "bundle"), tensors, before)
    except (tf.errors.OpError, OSError) as error:
        raise CheckpointError(
            f"cannot write {prefix}: {first_line(error)}; is the disk full?"
        ) from error


def _write_bundle(
    prefix: str, inner: str, tensors: Mapping[str, Any], before: Callable[[], None]
) -> None:
    tf.raw_ops.SaveV2(
        prefix=inner,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.convert_to_tensor(t) for t in tensors.values()],
    )
    suffixes = (".data-00000-of-00001", ".index")
    for suffix in suffixes:
        with open(inner + suffix, "rb") as stream:
            os.fsync(stream.fileno())
    before()
    for suffix in suffixes:
        os.replace(inner + suffix, prefix + suffix)
    files.fsync_dir(os.path.dirname(os.path.abspath(prefix)))


def delete(prefix: str) -> None:
    """Removes a checkpoint, its index first so that it never looks whole."""
    for path in [prefix + ".index", *_shards(prefix), prefix + ".json"]:
        if os.path.exists(path):
            os.unlink(path)


def _sweep_orphans(directory: str, newest: int) -> None:
    """Removes what a crash between two steps of `save` or `delete` left of earlier checkpoints."""
    whole = list_steps(directory)
    for name in os.listdir(directory):
        match = _BESIDE_INDEX.match(name)
        if match and int(match[1]) < newest and int(match[1]) not in whole:
            os.unlink(os.path.join(directory, name))


def set_aside(prefix: str) -> None:
    """Renames a damaged checkpoint's files to `*.corrupt`."""
    for path in [prefix + ".index", *_shards(prefix), prefix + ".json"]:
        if os.path.exists(path):
            os.replace(path, path + ".corrupt")


def publish_best(prefix: str) -> str:
    """Copies a checkpoint to `model.ckpt-best`, telling so in the original's words."""
    best = os.path.join(os.path.dirname(prefix), BEST)
    sources = [*_shards(prefix), prefix + ".json", prefix + ".index"]
    targets = {s: best + s.removeprefix(prefix) for s in sources if os.path.exists(s)}
    try:
        with contextlib.ExitStack() as stack:
            temporaries = {
                target: stack.enter_context(files.temporary_file(target))
                for target in targets.values()
            }
            for source, target in targets.items():
                _copy_synced(source, temporaries[target])
            # Without an index there is no best; with one, all of it belongs together.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(best + ".index")
            for source, target in targets.items():
                os.replace(temporaries[target], target)
                log.info("saved %s to %s", source, target)
            files.fsync_dir(os.path.dirname(os.path.abspath(best)))
    except OSError as error:
        raise CheckpointError(f"cannot write {best} ({error.strerror or error})") from error
    return best


def _copy_synced(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    with open(target, "rb") as stream:
        os.fsync(stream.fileno())


def _write_state_file(directory: str) -> None:
    """Writes TensorFlow's `checkpoint` file, for other tools."""
    names = [os.path.basename(p) for p in list_steps(directory).values()]
    with files.atomic_write(os.path.join(directory, "checkpoint")) as stream:
        stream.write(f'model_checkpoint_path: "{names[-1]}"\n')
        for name in names:
            stream.write(f'all_model_checkpoint_paths: "{name}"\n')


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
    ours = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    keys = [k for k in ours if k != "extra" and k not in free]
    theirs = {"parameter_sharing": "all", **theirs}
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
        raise MismatchError(f"{prefix} does not fit the model: {some(problems)}")
    return {name: weights.read(name) for name in shapes}


def some(items: list[str], most: int = 6) -> str:
    """Returns the first few items in one line, and how many more there are."""
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def read_newest(
    directory: str,
    shapes: Mapping[str, tuple[int, ...]],
    config: AlbertConfig,
    task: str,
    may_set_aside: bool = True,
) -> tuple[str, dict[str, np.ndarray], dict[str, Any]] | None:
    """Returns (prefix, tensors, sidecar) of the newest sound checkpoint, or None if there is none.

    Damaged ones are passed over with a warning and, if this process may, set aside.

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
            if may_set_aside:
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
    unused = sorted(n for n in set(weights.shapes) - {source[n] for n in loaded} if not is_slot(n))
    if not (loaded or problems):
        problems = ["it has none of the model's weights"]
    if problems:
        theirs = [f"{n} {list(weights.shapes[n])}" for n in unused] or ["nothing"]
        raise CheckpointError(
            f"{weights.origin} does not fit the model: {some(problems)}; "
            f"unused in the checkpoint: {some(theirs)}"
        )
    if absent:
        log.warning("left at random values, absent from %s: %s", weights.origin, some(absent))
    ignored = sorted(set(weights.shapes) - {source[n] for n in loaded})
    account = {"checkpoint": weights.origin, "loaded": loaded, "new": new, "ignored": ignored}
    return {n: weights.read(source[n]) for n in loaded}, account


_GROUP = re.compile(r"/group_\d+/")
_SLOT = re.compile(r"/(adam|lamb)_[mv]$|^global_step$")


def is_slot(name: str) -> bool:
    """Whether a tensor is of the optimizer or the step count, and not of the model."""
    return bool(_SLOT.search(name))


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
