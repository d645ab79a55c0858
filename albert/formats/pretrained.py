"""A directory with a pretrained or fine-tuned ALBERT, whoever wrote it: opened, loaded, written.

`layouts` says which kind of model a path is. No TensorFlow at import, and none before weights are
wanted.
"""

import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.config import AlbertConfig
from albert.errors import CheckpointError, some
from albert.formats import (
    checkpoint_files,
    checkpoints,
    hub,
    huggingface,
    layouts,
    model_card,
    model_metadata,
    run_states,
    tf_models,
    tokenizer_files,
)
from albert.formats.layouts import Layout
from albert.formats.model_classes import LABEL_HEAD, class_of_weights, reads_pooler
from albert.formats.model_metadata import Metadata
from albert.formats.tokenizer_files import Vocabulary
from albert.formats.weights import Weights
from albert.storage import files, filesystem
from albert.tokenization import FullTokenizer, check_vocabulary

if TYPE_CHECKING:
    import keras

    from albert.model.encoder_options import EncoderOptions

log = logging.getLogger("albert")


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """An opened model: its metadata and, on demand, its weights."""

    path: str  # as it was given: a directory, a checkpoint's prefix or a module's address
    directory: str
    config: AlbertConfig
    vocabulary: Vocabulary  # an empty one if it has none
    metadata: Metadata
    weights: Callable[[], Weights]  # opened once; a CheckpointError if it cannot be

    def __post_init__(self):
        object.__setattr__(self, "weights", functools.cache(self.weights))

    def tokenizer(self, *given: Any) -> FullTokenizer | None:
        """Returns the tokenizer of the model's vocabulary or of a `given` one, None if it has none.

        Args:
          given: the arguments of `Vocabulary.override`, if any.

        Raises:
          DataError: it is damaged, or not of the config's vocabulary size.
        """
        vocabulary = self.vocabulary.override(*given) if given else self.vocabulary
        if not vocabulary:
            return None
        tokenizer = vocabulary.open()
        check_vocabulary(tokenizer, self.config)
        return tokenizer


@filesystem.addresses_in_errors()
def open_path(path: str, flag: str = "path", gelu: str = "auto") -> Pretrained:
    """Returns what a directory of any of the layouts holds, or that of a checkpoint's prefix.

    See `layouts.locate` for what else a path may be. `flag` is named in errors; `gelu`: see
    `huggingface.config_from_theirs`.

    Raises:
      CheckpointError: it is of none of the layouts; ConfigError, DataError: a malformed file.
    """
    path, layout = layouts.locate(path, flag)
    match layout:
        case Layout.HUGGING_FACE:
            return open_hugging_face(path, gelu=gelu)
        case Layout.HUB_MODULE:
            return open_module(path, flag)
        case Layout.ALBERT:
            return open_archive(path, path, flag)
        case Layout.CHECKPOINT:
            directory = os.path.dirname(path) or "."
            if os.path.isfile(os.path.join(directory, layouts.CONFIG_FILE)):
                return open_archive(directory, path, flag)
            return dataclasses.replace(
                open_path(directory, flag), path=path,
                weights=lambda: checkpoints.open_weights(path, flag),
            )
    raise layouts.absent(path, flag, layout)


def opened(model: "str | Pretrained") -> Pretrained:
    """Returns what a path holds, or what was opened already."""
    return model if isinstance(model, Pretrained) else open_path(model)


def open_archive(
    directory: str, path: str, flag: str, config_file: str | None = None
) -> Pretrained:
    """Returns an output directory of ours or a released archive.

    Args:
      path: the checkpoint's prefix, or the directory whose best or newest it is.
      config_file: the architecture, if not the directory's own.
    """
    try:
        prefix = checkpoints.resolve_prefix(path)
        run_state = run_states.read_run_state(prefix)
    except CheckpointError:  # raised again when the weights are wanted
        prefix, run_state = path, {}
    metadata = run_states.metadata_of(run_state)
    if (threshold := run_states.null_threshold(prefix, run_state)) is not None:
        settings = {**metadata.settings, "null_score_diff_threshold": threshold}
        metadata = dataclasses.replace(metadata, settings=settings)
    vocabulary = tokenizer_files.find(directory, metadata.text)
    return Pretrained(
        path,
        directory,
        AlbertConfig.from_flag(config_file or os.path.join(directory, "albert_config.json")),
        vocabulary,
        dataclasses.replace(metadata, text=vocabulary.text if vocabulary else metadata.text),
        lambda: checkpoints.open_weights(prefix, flag),
    )


def open_hugging_face(
    directory: str, config_file: str | None = None, weights_file: str | None = None,
    gelu: str = "auto",
) -> Pretrained:
    """Returns a directory of Hugging Face's layout, or what lies in two files of theirs."""
    origin = config_file or os.path.join(directory, huggingface.CONFIG_FILE)
    values = files.read_json(origin)
    config = huggingface.config_from_theirs(values, origin, gelu)
    metadata = huggingface.metadata_from_theirs(values, origin)
    vocabulary = tokenizer_files.find(directory)
    return Pretrained(
        directory,
        directory,
        config,
        vocabulary,
        dataclasses.replace(metadata, text=vocabulary.text if vocabulary else None),
        lambda: open_tensors(weights_file or huggingface.find_weights(directory), config),
    )


def open_module(handle: str, flag: str = "albert_hub_module_handle") -> Pretrained:
    """Returns a TF-Hub module in a directory or at an https:// address."""
    directory = hub.fetch(handle, flag)
    if hub.is_foreign(directory) and tf_models.is_directory(directory):
        config, vocabulary = tf_models.read_config(directory), tf_models.vocabulary(directory)
        metadata = Metadata("AlbertModel", text=vocabulary.text if vocabulary else None)
        return Pretrained(
            handle, directory, config, vocabulary, metadata,
            lambda: tf_models.open_weights(directory),
        )
    config, vocabulary = hub.read_assets(directory, flag)
    metadata = Metadata("AlbertForPreTraining", text=vocabulary.text)
    return Pretrained(
        handle, directory, config, vocabulary, metadata, lambda: hub.open_module_weights(directory)
    )


def open_any_weights(path: str, flag: str = "init_checkpoint") -> Weights:
    """Returns the named tensors of a checkpoint, or of whatever `open_path` takes.

    Beside a checkpoint nothing else need lie.

    Raises:
      CheckpointError: nothing there, of another kind, or damaged.
    """
    path, layout = layouts.locate(path, flag)
    if layout in (Layout.HUB_MODULE, Layout.HUGGING_FACE):
        return open_path(path, flag).weights()
    return checkpoints.open_weights(path, flag)


def open_tensors(path: str, config: AlbertConfig) -> Weights:
    """Returns the weights of a .safetensors or .npz file with Hugging Face's names.

    Raises:
      CheckpointError: it is damaged, or not an ALBERT.
    """
    tensors = huggingface.TensorFile(path, config)
    if tensors.ignored:
        log.warning("%s: not weights of an ALBERT, ignored: %s", path,
                    some(sorted(tensors.ignored)))
    return Weights(path, tensors, list(tensors.shapes))


# === Models ===

def class_of(source: Pretrained) -> str:
    """Returns the name of the class that a model was saved as, else the one of its weights."""
    return source.metadata.architecture or class_of_weights(source.weights().shapes).name


@filesystem.addresses_in_errors()
def load(
    kind: type["keras.Model"],
    source: Pretrained,
    encoder_options: "EncoderOptions | None" = None,
    *,
    complete: bool = False,
    **options: Any,
) -> "keras.Model":
    """Returns a model of class `kind` with the weights of what was opened.

    `options` go to the class; by default they are those that it was saved with, and a
    classifier's `num_labels` is what the weights say. A head that the weights lack starts
    at random values, with a warning, or is an error if the model must be `complete`.

    Raises:
      CheckpointError: weights are absent or of another shape.
    """
    weights, known = source.weights(), inspect.signature(kind).parameters
    if "num_labels" not in options and "num_labels" in known:
        if LABEL_HEAD not in weights.shapes:
            raise CheckpointError(f"{source.path} has no classifier yet: give num_labels")
        options["num_labels"] = weights.shapes[LABEL_HEAD][0]
    is_same = source.metadata.architecture in (None, kind.__name__)
    if is_same:
        saved = source.metadata.settings
        options = {name: value for name, value in saved.items() if name in known} | options
    if encoder_options is not None:
        options["encoder_options"] = encoder_options
    model = kind(source.config, **options)
    new = assign(model, weights)["new"]
    # What the model never reads may be absent.
    has_use = reads_pooler(kind)
    needed = [name for name in new if has_use or not name.startswith("bert/pooler/")]
    if needed and complete:
        raise CheckpointError(
            f"{source.path} has no trained {some(needed)}: it was not trained for this"
        )
    if new:
        log.warning("%s: new, to be trained: %s", source.path, some(new))
    # What it was trained for is of its head; how texts are prepared, of its encoder.
    metadata = source.metadata if is_same and not needed else Metadata(text=source.metadata.text)
    model.metadata = dataclasses.replace(metadata, architecture=kind.__name__)
    return model


def assign(model: "keras.Model", weights: Weights) -> dict[str, Any]:
    """Gives a model the weights of the same names; returns the account of a warm start.

    The pooler may be absent.

    Raises:
      CheckpointError: another of the encoder's weights is absent, or of another shape.
    """
    from albert.model.weight_names import named_weights, parameter_shapes

    named, shapes = named_weights(model), parameter_shapes(model)
    tensors, account = checkpoints.warm_start(shapes, weights, may_lack_pooler=True)
    for name, value in tensors.items():
        named[name].assign(value)
    return account


def save(model: "keras.Model", path: str, tokenizer: FullTokenizer | None = None) -> None:
    """Writes a directory that every command and `load` take: configuration, weights, vocabulary.

    Raises:
      UserError: the model is quantized, or it cannot be written; what was there before is then
        untouched.

    See `model_card.publish_model` for a directory that holds other files.
    """
    from albert.model.quantization import quantized_layers
    from albert.model.weight_names import named_weights

    if quantized_layers(model):
        raise CheckpointError(
            f"{path}: this directory would hold float weights, and the model is quantized: save it "
            "by model.save('NAME.keras'), or save_pretrained before quantize"
        )
    tensors = {name: weight.value for name, weight in named_weights(model).items()}
    with model_card.publish_model(path, checkpoints.BEST + checkpoint_files.INDEX) as scratch:
        settings = dict(model.metadata.settings) | model_metadata.pick(model.get_config())
        metadata = dataclasses.replace(model.metadata, settings=settings)
        prefix = write(scratch, model.config, tensors, metadata, tokenizer)
        model_card.of_weights(
            scratch, checkpoints.open_weights(prefix), model.config,
            name=os.path.basename(os.path.abspath(path)), tokenizer=tokenizer,
        )


def write(
    directory: str,
    config: AlbertConfig,
    tensors: Mapping[str, Any],
    metadata: Metadata,
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
        metadata = dataclasses.replace(metadata, text=tokenizer.settings)
    prefix = os.path.join(directory, checkpoints.BEST)
    files.write_json(prefix + ".json", run_states.of_metadata(metadata, config))
    checkpoint_files.write(prefix, dict(tensors) | {"global_step": np.int64(0)})
    return prefix
