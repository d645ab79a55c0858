"""A directory with a pretrained or fine-tuned ALBERT, whoever wrote it.

Three layouts are told apart by their files: a released archive or one of our
output directories (`albert_config.json` beside `model.ckpt*`), Hugging Face's
(`config.json` beside `model.safetensors`) and TF-Hub modules (`variables/`
and `assets/`).
"""

import dataclasses
import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from albert import checkpoints, files, hub, huggingface, model_card, modeling
from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError
from albert.layer_loop import LayerLoop

log = logging.getLogger("albert")


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """What a directory says of its model; the weights are opened on demand."""

    directory: str
    config: AlbertConfig
    spm_model_file: str | None  # SentencePiece model, if there is one
    vocab_file: str | None  # WordPiece vocabulary otherwise
    do_lower_case: bool
    weights: Callable[[], checkpoints.Weights]
    architecture: str | None = None  # Hugging Face's name of the model's class, where they say it


def open_path(path: str, flag: str = "path") -> Pretrained:
    """Returns what a directory of any layout holds, or that of a checkpoint's prefix.

    Raises:
      CheckpointError: it is of none of the layouts; ConfigError, DataError: a malformed file.
    """
    if os.path.isdir(path) or not os.path.isfile(path + ".index"):
        return open_directory(path, flag)
    source = open_directory(os.path.dirname(path) or ".", flag)
    return dataclasses.replace(source, weights=lambda: checkpoints.open_weights(path, flag))


def open_directory(path: str, flag: str = "init_checkpoint", gelu: str = "auto") -> Pretrained:
    """Returns what a directory of any of the three layouts holds.

    `gelu`: see `huggingface.config_from_theirs`.

    Raises:
      CheckpointError: it is of none of the layouts; ConfigError, DataError: a malformed file.
    """
    if huggingface.is_directory(path):
        return _hugging_face(path, gelu)
    if os.path.isdir(os.path.join(path, "variables")):
        module = hub.resolve(path)
        return Pretrained(
            path, module.config, module.spm_model_file, module.vocab_file, module.do_lower_case,
            module.weights,
        )
    if os.path.isfile(os.path.join(path, "albert_config.json")):
        return _archive(path, flag)
    if not os.path.isdir(path):
        raise CheckpointError(f"--{flag}: no such directory: {path}")
    raise CheckpointError(
        f"--{flag}: {path} holds neither albert_config.json with model.ckpt*, nor config.json with "
        "model.safetensors, nor a TF-Hub module"
    )


def open_weights(path: str, flag: str = "init_checkpoint") -> checkpoints.Weights:
    """Returns the named tensors of a checkpoint, or of a directory of any of the three layouts.

    Raises:
      CheckpointError: nothing there, of another kind, or damaged.
    """
    is_module = os.path.isdir(os.path.join(path, "variables"))
    if is_module or huggingface.is_directory(path):
        return open_directory(path, flag).weights()
    return checkpoints.open_weights(path, flag)


def _archive(path: str, flag: str) -> Pretrained:
    prefix = checkpoints.newest_or_best(path)
    trained = checkpoints.read_sidecar(prefix).get("flags", {}) if prefix else {}
    return Pretrained(
        path,
        AlbertConfig.from_json_file(os.path.join(path, "albert_config.json")),
        only_file(path, ".model"),
        only_file(path, ".txt", "vocab"),
        trained.get("do_lower_case", True),
        lambda: checkpoints.open_weights(path, flag),
    )


def _hugging_face(path: str, gelu: str) -> Pretrained:
    origin = os.path.join(path, huggingface.CONFIG_FILE)
    values = files.read_json(origin)
    config = huggingface.config_from_theirs(values, origin, gelu)
    settings = os.path.join(path, "tokenizer_config.json")
    tokenizer = files.read_json(settings) if os.path.isfile(settings) else {}
    if not isinstance(tokenizer, dict):
        raise DataError(f"{settings}: expected a JSON object")
    architectures = values.get("architectures") or [None]
    return Pretrained(
        path,
        config,
        only_file(path, ".model"),
        only_file(path, ".txt", "vocab"),
        bool(tokenizer.get("do_lower_case", True)),
        lambda: open_tensors(huggingface.find_weights(path), config),
        architectures[0],
    )


def open_tensors(path: str, config: AlbertConfig) -> checkpoints.Weights:
    """Returns the weights of a .safetensors or .npz file with Hugging Face's names.

    Raises:
      CheckpointError: it is damaged, or not an ALBERT.
    """
    tensors = huggingface.TensorFile(path, config)
    if tensors.ignored:
        log.warning("%s: not weights of an ALBERT, ignored: %s", path,
                    checkpoints.some(sorted(tensors.ignored)))
    names = tensors.get_variable_to_shape_map()
    return checkpoints.Weights(path, tensors, {name: name for name in names})


def load(
    kind: type[keras.Model], path: str, *, complete: bool = False, in_loop: bool = False,
    **options: Any,
) -> keras.Model:
    """Returns a model of class `kind` with the weights of a directory or a checkpoint's prefix.

    `options` go to the class; a classifier's `num_labels` is by default what
    the weights say. A head that the weights lack starts at random values, with
    a warning, or is an error if the model must be `complete`. With `in_loop` its
    encoder has a `LayerLoop`: it is traced sooner, and lists its last states alone.

    Raises:
      CheckpointError: weights are absent or of another shape.
    """
    source = open_path(path)
    weights = source.weights()
    if "num_labels" not in options and issubclass(kind, modeling.LABELLED):
        if "output_weights" not in weights.shapes:
            raise CheckpointError(f"{path} has no classifier yet: give num_labels")
        options["num_labels"] = weights.shapes["output_weights"][0]
    model = kind(source.config, **options)
    if in_loop:
        encoder = getattr(model, "bert", model).encoder
        encoder.layer_loop = LayerLoop(encoder)
    account = assign(model, weights)
    # What the model never reads may be absent.
    needed = [
        name for name in account["new"]
        if issubclass(kind, modeling.POOLED) or not name.startswith("bert/pooler/")
    ]
    if needed and complete:
        raise CheckpointError(
            f"{path} has no trained {checkpoints.some(needed)}: it was not trained for this"
        )
    if account["new"]:
        log.warning("%s: new, to be trained: %s", path, checkpoints.some(account["new"]))
    return model


def assign(model: keras.Model, weights: checkpoints.Weights) -> dict[str, Any]:
    """Gives a model the weights of the same names; returns the account of a warm start.

    The pooler may be absent: Hugging Face's classes that do not read it have none.

    Raises:
      CheckpointError: another of the encoder's weights is absent, or of another shape.
    """
    named = modeling.named_weights(model)
    shapes = modeling.parameter_shapes(model)
    pooler = [n for n in shapes if n.startswith("bert/pooler/") and n not in weights.shapes]
    wanted = {n: shape for n, shape in shapes.items() if n not in pooler}
    tensors, account = checkpoints.warm_start(wanted, weights)
    if pooler:
        log.warning(
            "%s has no pooler: the pooled output is of random weights until it is trained",
            weights.origin,
        )
        account["new"] = [*pooler, *account["new"]]
    for name, value in tensors.items():
        named[name].assign(value)
    return account


def save(model: keras.Model, path: str, tokenizer_files: tuple[str, ...] = ()) -> None:
    """Writes a directory that every command and `load` take: configuration, weights, vocabulary.

    Raises:
      UserError: it cannot be written; what was there before is then untouched.
    """
    tensors = {name: weight.value for name, weight in modeling.named_weights(model).items()}
    with files.atomic_dir(path) as scratch:
        with files.atomic_write(os.path.join(scratch, "albert_config.json")) as stream:
            stream.write(model.config.to_json_string())
        prefix = os.path.join(scratch, checkpoints.BEST)
        files.write_json(
            prefix + ".json",
            {"architecture": type(model).__name__, "config": model.config.to_dict()},
        )
        checkpoints.write_bundle(prefix, tensors | {"global_step": np.int64(0)})
        for source in tokenizer_files:
            shutil.copy(source, scratch)
        model_card.of_checkpoint(
            scratch, prefix, model.config, name=os.path.basename(os.path.abspath(path))
        )


def only_file(path: str, ending: str, part: str = "") -> str | None:
    """Returns the one file of a directory with such a name, if there is exactly one."""
    found = [n for n in sorted(os.listdir(path)) if n.endswith(ending) and part in n]
    return os.path.join(path, found[0]) if len(found) == 1 else None
