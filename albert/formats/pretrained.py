"""A directory with a pretrained or fine-tuned ALBERT, whoever wrote it: opened, loaded, written.

`layouts` decides which kind of model a path is. No TensorFlow at import, nor until weights are
needed.
"""

import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Callable, Sequence
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
from albert.formats.model_classes import LABEL_HEAD, class_of_weights, is_labelled, reads_pooler
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

    path: str  # as given: a directory, a checkpoint's prefix or a module's address
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
    """Opens the model at a path, unless it is opened already."""
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
    config = AlbertConfig.from_flag(config_file or os.path.join(directory, layouts.CONFIG_FILE))
    checkpoints.check_architecture(run_state, config, prefix)
    return Pretrained(
        path,
        directory,
        config,
        vocabulary,
        dataclasses.replace(metadata, text=vocabulary.text if vocabulary else metadata.text),
        lambda: checkpoints.open_weights(prefix, flag),
    )


def open_named(directory: str, checkpoint_name: str, config_file: str | None) -> Pretrained:
    """Returns the model of the original's flags --albert_directory and --checkpoint_name.

    A directory in another layout holds one model, so that it needs no name.

    Args:
      config_file: the architecture, if not the directory's own.
    """
    prefix = os.path.join(directory, checkpoint_name)
    is_named = os.path.isfile(os.path.join(directory, layouts.CONFIG_FILE)) and (
        checkpoint_files.exists(prefix)
    )
    is_foreign = layouts.layout_of(directory) in (Layout.HUGGING_FACE, Layout.HUB_MODULE)
    if is_foreign and not config_file and not is_named:
        return open_path(directory, "albert_directory")
    return open_archive(directory, prefix, "checkpoint_name", config_file)


def open_hugging_face(directory: str, gelu: str = "auto") -> Pretrained:
    """Returns a directory of Hugging Face's layout."""
    origin = os.path.join(directory, huggingface.CONFIG_FILE)
    values = files.read_json(origin)
    config = huggingface.config_from_theirs(values, origin, gelu)
    metadata = huggingface.metadata_from_theirs(values, origin)
    vocabulary = tokenizer_files.find(directory, metadata.text)
    return Pretrained(
        directory,
        directory,
        config,
        vocabulary,
        dataclasses.replace(metadata, text=vocabulary.text if vocabulary else metadata.text),
        lambda: open_tensors(huggingface.find_weights(directory), config),
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

    A checkpoint needs no other files next to it.

    Raises:
      CheckpointError: nothing there, of another kind, or damaged.
    """
    path, layout = layouts.locate(path, flag)
    if layout in (Layout.HUB_MODULE, Layout.HUGGING_FACE):
        return open_path(path, flag).weights()
    return checkpoints.open_weights(path, flag)


def open_tensors(path: str, config: AlbertConfig) -> Weights:
    """Returns the weights of a file with Hugging Face's names.

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
    label_names: Sequence[str] | None = None,
    ignore_mismatched_sizes: bool = False,
    **options: Any,
) -> "keras.Model":
    """Returns a model of class `kind` with the weights of an opened one.

    `options` go to the class; by default they are those that it was saved with, and a
    classifier's `num_labels` is the number of `label_names`, else what the weights say. A head
    that the weights lack starts at random values, with a warning, or is an error if the model
    must be `complete`. With `ignore_mismatched_sizes` a head of another shape counts as missing.

    Raises:
      CheckpointError: weights are absent or of another shape.
    """
    weights, known = source.weights(), inspect.signature(kind).parameters
    if label_names is not None and "num_labels" in known:
        options = {"num_labels": len(label_names)} | options
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
    new = assign(model, weights, ignore_mismatched_sizes)["new"]
    # What the model never reads may be absent.
    has_use = reads_pooler(kind)
    needed = [name for name in new if has_use or not name.startswith("bert/pooler/")]
    if needed and complete:
        raise CheckpointError(
            f"{source.path} has no trained {some(needed)}: it was not trained for this"
        )
    if new:
        log.warning("%s: new, to be trained: %s", source.path, some(new))
    # The task belongs to the head; the preparation of texts belongs to the encoder.
    metadata = source.metadata if is_same and not needed else Metadata(text=source.metadata.text)
    model.metadata = dataclasses.replace(metadata, architecture=kind.__name__)
    if label_names is not None:
        model.label_names = label_names
    return model


def assign(
    model: "keras.Model", weights: Weights, ignore_mismatched_sizes: bool = False
) -> dict[str, Any]:
    """Gives a model the weights of the same names; returns the summary of a warm start.

    The pooler may be absent, and a head that may be ignored may have another shape.

    Raises:
      CheckpointError: another of the encoder's weights is absent, or of another shape.
    """
    from albert.model.weight_names import named_weights, parameter_shapes

    named, shapes = named_weights(model), parameter_shapes(model)
    misfits = [
        name for name, shape in shapes.items()
        if not name.startswith("bert/") and tuple(weights.shapes.get(name, shape)) != tuple(shape)
    ]
    if misfits and not ignore_mismatched_sizes:
        name = misfits[0]
        raise CheckpointError(
            f"{weights.origin}: {name} is {list(weights.shapes[name])}, not {list(shapes[name])}: "
            "another head. ignore_mismatched_sizes=True starts a new one"
        )
    wanted = {name: shape for name, shape in shapes.items() if name not in misfits}
    tensors, account = checkpoints.warm_start(wanted, weights, may_lack_pooler=True)
    account["new"] += misfits
    for name, value in tensors.items():
        named[name].assign(value)
    return account


def save(model: "keras.Model", path: str, tokenizer: FullTokenizer | None = None) -> None:
    """Writes a directory that every command, `load` and transformers accept.

    Raises:
      UserError: the model is quantized, the directory holds a run's checkpoints, or it cannot be
        written; an earlier model is then untouched.

    See `model_card.publish_model` for a directory that holds other files.
    """
    from albert.model.quantization import quantized_layers

    if quantized_layers(model):
        raise CheckpointError(
            f"{path}: this directory would hold float weights, and the model is quantized: save it "
            "by model.save('NAME.keras'), or save_pretrained before quantize"
        )
    if os.path.isdir(path) and checkpoints.list_steps(path):
        raise CheckpointError(
            f"{path} holds the checkpoints of a run, which would be a second model there: save to "
            "another directory"
        )
    older = checkpoints.BEST + checkpoint_files.INDEX  # how 0.2 saved models
    with model_card.publish_model(path, huggingface.WEIGHTS_FILE, older) as scratch:
        write(scratch, model, tokenizer)
        model_card.of_model(scratch, model, tokenizer, os.path.basename(os.path.abspath(path)))


def write(
    directory: str, model: "keras.Model", tokenizer: FullTokenizer | None = None,
    max_length: int | None = None, dtype: str = "float32", keeps_pooler: bool = True,
) -> None:
    """Writes everything in a model's directory except its card, in Hugging Face's layout.

    Args:
      max_length: of the tokenizer; by default the model's.
      dtype: of the weights.
      keeps_pooler: whether a pooler that the model does not read is written; Hugging Face's
        classes have none.
    """
    from albert.model.weight_names import named_weights

    config, ids = model.config, {"pad": 0, "cls": 2, "sep": 3}
    settings = dict(model.metadata.settings) | model_metadata.pick(model.get_config())
    metadata = dataclasses.replace(model.metadata, settings=settings)
    if tokenizer is not None:
        check_vocabulary(tokenizer, config)
        ids = {"pad": tokenizer.pad_id, "cls": tokenizer.cls_id, "sep": tokenizer.sep_id}
        limit = config.max_position_embeddings
        tokenizer_files.write(tokenizer, directory, min(max_length or limit, limit))
        metadata = dataclasses.replace(metadata, text=tokenizer.settings)
    num_labels = model.num_labels if is_labelled(metadata.architecture) else None
    files.write_json(
        os.path.join(directory, huggingface.CONFIG_FILE),
        huggingface.config_to_theirs(config, metadata, ids, num_labels, dtype),
    )
    drops_pooler = not (keeps_pooler or reads_pooler(type(model)))
    tensors = {
        name: weight.numpy().astype(dtype) for name, weight in named_weights(model).items()
        if not (drops_pooler and name.startswith("bert/pooler/"))
    }
    huggingface.serialize(
        huggingface.tensors_to_theirs(config, tensors, metadata.architecture),
        os.path.join(directory, huggingface.WEIGHTS_FILE),
    )


def write_archive(
    directory: str, model: "keras.Model", tokenizer: FullTokenizer | None = None
) -> None:
    """Writes a released archive, with the metadata next to the checkpoint."""
    from albert.model.weight_names import named_weights

    with files.atomic_write(os.path.join(directory, layouts.CONFIG_FILE)) as stream:
        stream.write(model.config.to_json_string())
    metadata = model.metadata
    if tokenizer is not None:
        tokenizer_files.write(tokenizer, directory)
        metadata = dataclasses.replace(metadata, text=tokenizer.settings)
    prefix = os.path.join(directory, checkpoints.BEST)
    files.write_json(prefix + ".json", run_states.of_metadata(metadata, model.config))
    tensors = {name: weight.value for name, weight in named_weights(model).items()}
    checkpoint_files.write(prefix, tensors | {"global_step": np.int64(0)})
