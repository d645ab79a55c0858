"""A directory with a pretrained or fine-tuned ALBERT, whoever wrote it.

Three layouts are told apart by their files: a released archive or one of our
output directories (`albert_config.json` beside `model.ckpt*`), Hugging Face's
(`config.json` beside `model.safetensors`) and TF-Hub modules (`variables/`
and `assets/`).
"""

import dataclasses
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from albert.config import AlbertConfig
from albert.data import files
from albert.errors import CheckpointError, some
from albert.formats import (
    checkpoints,
    hub,
    huggingface,
    model_card,
    model_facts,
    sidecars,
    tensor_bundle,
    tokenizer_files,
)
from albert.formats.model_facts import Facts
from albert.formats.tokenizer_files import Vocabulary
from albert.model.encoder_options import EncoderOptions
from albert.model.weight_names import named_weights, parameter_shapes
from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """What a directory says of its model; the weights are opened on demand."""

    directory: str
    config: AlbertConfig
    vocabulary: Vocabulary  # an empty one if it has none
    facts: Facts
    weights: Callable[[], tensor_bundle.Weights]
    # Where the training had its vocabulary, by what lies beside the checkpoint: a stranger may
    # have written it, so it is believed only after a check.
    told_vocabulary: Vocabulary = Vocabulary()


def open_path(path: str, flag: str = "path") -> Pretrained:
    """Returns what a directory of any layout holds, or that of a checkpoint's prefix.

    Raises:
      CheckpointError: it is of none of the layouts; ConfigError, DataError: a malformed file.
    """
    if os.path.isdir(path) or not os.path.isfile(path + ".index"):
        return open_directory(path, flag)
    directory = os.path.dirname(path) or "."
    if os.path.isfile(os.path.join(directory, "albert_config.json")):
        return _archive(directory, path, flag)
    source = open_directory(directory, flag)
    return dataclasses.replace(source, weights=lambda: checkpoints.open_weights(path, flag))


def open_directory(path: str, flag: str = "init_checkpoint", gelu: str = "auto") -> Pretrained:
    """Returns what a directory of any of the three layouts holds, or the best of several runs.

    `gelu`: see `huggingface.config_from_theirs`.

    Raises:
      CheckpointError: it is of none of the layouts; ConfigError, DataError: a malformed file.
    """
    if huggingface.is_directory(path):
        return _hugging_face(path, gelu)
    if _is_module(path):
        module = hub.resolve(path)
        facts = Facts("AlbertForPreTraining", text=module.vocabulary.text)
        return Pretrained(path, module.config, module.vocabulary, facts, module.weights)
    if os.path.isfile(os.path.join(path, "albert_config.json")):
        return _archive(path, _prefix(path), flag)
    if not os.path.isdir(path):
        raise CheckpointError(f"--{flag}: no such directory: {path}")
    run = checkpoints.best_run(path, flag)
    if run:
        return open_directory(run, flag, gelu)
    raise CheckpointError(
        f"--{flag}: {path} holds neither albert_config.json with model.ckpt*, nor config.json with "
        "model.safetensors, nor a TF-Hub module"
    )


def _is_module(path: str) -> bool:
    # A SavedModel may have been written into a run's directory, which stays one.
    is_ours = os.path.isfile(os.path.join(path, "albert_config.json"))
    return os.path.isdir(os.path.join(path, "variables")) and not is_ours


def open_weights(path: str, flag: str = "init_checkpoint") -> tensor_bundle.Weights:
    """Returns the named tensors of a checkpoint, or of a directory of any of the three layouts.

    Raises:
      CheckpointError: nothing there, of another kind, or damaged.
    """
    if _is_module(path) or huggingface.is_directory(path):
        return open_directory(path, flag).weights()
    return checkpoints.open_weights(path, flag)


def _prefix(directory: str) -> str | None:
    """Returns the checkpoint that a directory means, if it has one."""
    try:
        return checkpoints.resolve_prefix(directory)
    except CheckpointError:  # told when the weights are wanted
        return None


def _archive(path: str, prefix: str | None, flag: str) -> Pretrained:
    sidecar = sidecars.read_sidecar(prefix) if prefix else {}
    facts, told = sidecars.facts_of(sidecar), sidecar.get("flags", {})
    vocabulary = tokenizer_files.find(path, facts.text)
    return Pretrained(
        path,
        AlbertConfig.from_json_file(os.path.join(path, "albert_config.json")),
        vocabulary,
        dataclasses.replace(facts, text=vocabulary.text if vocabulary else facts.text),
        lambda: checkpoints.open_weights(prefix or path, flag),
        Vocabulary(told.get("spm_model_file"), told.get("vocab_file"), vocabulary.text),
    )


def _hugging_face(path: str, gelu: str) -> Pretrained:
    origin = os.path.join(path, huggingface.CONFIG_FILE)
    values = files.read_json(origin)
    config = huggingface.config_from_theirs(values, origin, gelu)
    facts, vocabulary = huggingface.facts_from_theirs(values, origin), tokenizer_files.find(path)
    return Pretrained(
        path,
        config,
        vocabulary,
        dataclasses.replace(facts, text=vocabulary.text if vocabulary else None),
        lambda: open_tensors(huggingface.find_weights(path), config),
    )


def open_tensors(path: str, config: AlbertConfig) -> tensor_bundle.Weights:
    """Returns the weights of a .safetensors or .npz file with Hugging Face's names.

    Raises:
      CheckpointError: it is damaged, or not an ALBERT.
    """
    tensors = huggingface.TensorFile(path, config)
    if tensors.ignored:
        log.warning("%s: not weights of an ALBERT, ignored: %s", path,
                    some(sorted(tensors.ignored)))
    names = tensors.get_variable_to_shape_map()
    return tensor_bundle.Weights(path, tensors, {name: name for name in names})


def load(
    kind: type[keras.Model],
    path: str,
    encoder_options: EncoderOptions = EncoderOptions(),
    *,
    complete: bool = False,
    **options: Any,
) -> keras.Model:
    """Returns a model of class `kind` with the weights of a directory or a checkpoint's prefix.

    `options` go to the class; by default they are those that it was saved with, and a
    classifier's `num_labels` is what the weights say. A head that the weights lack starts
    at random values, with a warning, or is an error if the model must be `complete`.

    Raises:
      CheckpointError: weights are absent or of another shape.
    """
    source = open_path(path)
    weights = source.weights()
    if "num_labels" not in options and "num_labels" in inspect.signature(kind).parameters:
        if "output_weights" not in weights.shapes:
            raise CheckpointError(f"{path} has no classifier yet: give num_labels")
        options["num_labels"] = weights.shapes["output_weights"][0]
    is_same = source.facts.architecture in (None, kind.__name__)
    if is_same:
        options = _saved_options(kind, source.facts.settings) | options
    model = kind(source.config, encoder_options=encoder_options, **options)
    account = assign(model, weights)
    # What the model never reads may be absent.
    needed = [
        name for name in account["new"]
        if kind.reads_pooler or not name.startswith("bert/pooler/")
    ]
    if needed and complete:
        raise CheckpointError(
            f"{path} has no trained {some(needed)}: it was not trained for this"
        )
    if account["new"]:
        log.warning("%s: new, to be trained: %s", path, some(account["new"]))
    # What it was trained for is of its head; how texts are prepared, of its encoder.
    facts = source.facts if is_same and not needed else Facts(text=source.facts.text)
    model.facts = dataclasses.replace(facts, architecture=kind.__name__)
    return model


def _saved_options(kind: type[keras.Model], settings: Mapping[str, float]) -> dict[str, float]:
    """Returns the settings that a class takes as arguments."""
    known = inspect.signature(kind.__init__).parameters
    return {name: value for name, value in settings.items() if name in known}


def assign(model: keras.Model, weights: tensor_bundle.Weights) -> dict[str, Any]:
    """Gives a model the weights of the same names; returns the account of a warm start.

    The pooler may be absent: Hugging Face's classes that do not read it have none.

    Raises:
      CheckpointError: another of the encoder's weights is absent, or of another shape.
    """
    named, shapes = named_weights(model), parameter_shapes(model)
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


def save(model: keras.Model, path: str, tokenizer: FullTokenizer | None = None) -> None:
    """Writes a directory that every command and `load` take: configuration, weights, vocabulary.

    Raises:
      UserError: it cannot be written; what was there before is then untouched.

    See `model_card.publish_model` for a directory that holds other files.
    """
    tensors = {name: weight.value for name, weight in named_weights(model).items()}
    with model_card.publish_model(path, checkpoints.BEST + ".index") as scratch:
        prefix = write(scratch, model.config, tensors, facts_of(model), tokenizer)
        model_card.of_checkpoint(
            scratch, prefix, model.config, name=os.path.basename(os.path.abspath(path)),
            tokenizer=tokenizer,
        )


def facts_of(model: keras.Model) -> Facts:
    """Returns what is known of a model, with what its class was built with."""
    settings = dict(model.facts.settings) | model_facts.pick(model.get_config())
    return dataclasses.replace(model.facts, settings=settings)


def write(
    directory: str,
    config: AlbertConfig,
    tensors: Mapping[str, Any],
    facts: Facts,
    tokenizer: FullTokenizer | None = None,
    spm_name: str | None = None,
) -> str:
    """Writes all that a directory of ours holds but its card; returns the checkpoint's prefix.

    `spm_name` is what a SentencePiece model is called there, if not as it is.
    """
    with files.atomic_write(os.path.join(directory, "albert_config.json")) as stream:
        stream.write(config.to_json_string())
    if tokenizer is not None:
        tokenizer_files.write(tokenizer, directory, spm_name=spm_name)
        facts = dataclasses.replace(facts, text=tokenizer.settings)
    prefix = os.path.join(directory, checkpoints.BEST)
    files.write_json(prefix + ".json", sidecars.of_facts(facts, config))
    tensor_bundle.write(prefix, dict(tensors) | {"global_step": np.int64(0)})
    return prefix
