"""Opens, loads and writes a pretrained or fine-tuned ALBERT, in any layout.

No TensorFlow at import, nor until weights are needed.
"""

import dataclasses
import enum
import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError, some
from albert.formats import (
    checkpoints, hf_weights, hub, huggingface, model_card, model_hub, sentence_files, tokenizer_files,
)
from albert.formats.metadata import Metadata, read_run_state, settings_among, write_metadata
from albert.formats.model_classes import (
    ENCODER, LABEL_HEAD, MODEL_CLASSES, class_of_weights, is_labelled, reads_pooler,
)
from albert.formats.tokenizer_files import Vocabulary
from albert.formats.weights import LABEL_HEADS, Weights, in_units
from albert.storage import cloud, files, shipped
from albert.tokenization import FullTokenizer, check_vocabulary

if TYPE_CHECKING:
    import keras

log = logging.getLogger("albert")

CONFIG_FILE = "albert_config.json"


# === Where a model is ===


class Layout(enum.Enum):
    """How a model is laid out in files; the value describes the files."""

    HUGGING_FACE = "config.json with model.safetensors or pytorch_model.bin"
    ALBERT = f"{CONFIG_FILE} with model.ckpt*"  # a released archive, or a run's directory
    HUB_MODULE = "a TF-Hub module"
    CHECKPOINTS = "model.ckpt* alone"
    CHECKPOINT = "the prefix of a checkpoint, or one of its files"


def layout_of(path: str) -> Layout | None:
    """Returns how the model at a local path is laid out; None if there is none."""
    if not os.path.isdir(path):
        is_prefix = checkpoints.exists(checkpoints.prefix_of(path))
        return Layout.CHECKPOINT if is_prefix else None
    if os.path.isfile(os.path.join(path, huggingface.CONFIG_FILE)) and hf_weights.find(path):
        return Layout.HUGGING_FACE
    if os.path.isfile(os.path.join(path, CONFIG_FILE)):
        return Layout.ALBERT
    if os.path.isdir(os.path.join(path, "variables")):
        return Layout.HUB_MODULE
    return Layout.CHECKPOINTS if checkpoints.newest_or_best(path) else None


def locate(path: str, flag: str) -> tuple[str, Layout | None]:
    """Returns the local path of the model that a user's path means, and its layout.

    A path may be a remote address, the name of a built-in model or of one on the hub, or a
    directory that contains one model directory.

    Raises:
      CheckpointError: it is a packed model, or a directory holds two models.
    """
    path = cloud.local_copy(model_hub.local_path(shipped.path_of(path), flag), flag)
    layout = layout_of(path)
    if layout is None and os.path.isdir(path):
        below = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name[0] != "."]
        models = [folder for folder in below if os.path.isdir(folder) and layout_of(folder)]
        if len(models) == 1:
            log.info("%s: using the model in %s", path, models[0])
            path, layout = models[0], layout_of(models[0])
    if layout is Layout.CHECKPOINT:
        path = checkpoints.prefix_of(path)
    if layout is Layout.HUGGING_FACE and (checkpoint := checkpoints.newest_or_best(path)):
        raise CheckpointError(f"{flag}: {path} holds two models, {checkpoint} and Hugging Face's "
                              f"{hf_weights.find(path)}: pass the checkpoint's prefix, or move one elsewhere")
    return path, layout


def _absent(path: str, flag: str, layout: Layout | None) -> CheckpointError:
    """Returns the error for a path without a model and its configuration."""
    if os.path.isfile(path):
        return CheckpointError(f"{flag}: {path} is not a checkpoint")
    if not os.path.isdir(path):
        return CheckpointError(
            f"{flag}: no directory or checkpoint {path!r}. Built-in models: "
            f"{', '.join(shipped.names())}. To download a released one: albert/albert-base-v2"
        )
    if layout is Layout.CHECKPOINTS:
        return CheckpointError(f"{flag}: {path} has checkpoints, but no {CONFIG_FILE}")
    if os.path.isfile(os.path.join(path, huggingface.CONFIG_FILE)):
        return CheckpointError(
            f"{flag}: {path} has a {huggingface.CONFIG_FILE}, but none of "
            f"{', '.join(hf_weights.WEIGHTS_FILES)}. Save a tf_model.h5 again with transformers: "
            "from_pretrained(FOLDER, from_tf=True), then save_pretrained(FOLDER)"
        )
    wanted = Layout.ALBERT, Layout.HUGGING_FACE, Layout.HUB_MODULE
    return CheckpointError(
        f"{flag}: {path} holds neither " + ", nor ".join(layout.value for layout in wanted)
    )


# === Opened models ===


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """An opened model: its metadata and, on demand, its weights."""

    path: str  # as given: a directory, a checkpoint's prefix or a module's address
    directory: str
    config: AlbertConfig
    vocabulary: Vocabulary  # empty if it has none
    metadata: Metadata
    open_weights: Callable[[], Weights]

    @functools.cached_property
    def _weights(self) -> Weights:
        weights = self.open_weights()
        checkpoints.check_sizes(self.config, weights)
        return weights

    def weights(self) -> Weights:
        """Returns the weights, which are opened once; raises a CheckpointError if they do not fit."""
        return self._weights

    def tokenizer(self, *given: Any) -> FullTokenizer | None:
        """Returns the tokenizer of the model's vocabulary or of a `given` one, None without either.

        Args:
          given: the arguments of `Vocabulary.override`, if any.

        Raises:
          DataError: it is damaged, or differs from the config's vocabulary size.
        """
        vocabulary = self.vocabulary.override(*given) if given else self.vocabulary
        if not vocabulary:
            return None
        tokenizer = vocabulary.open()
        check_vocabulary(tokenizer, self.config)
        return tokenizer

    def required_tokenizer(self, *given: Any) -> FullTokenizer:
        """Returns `tokenizer(*given)`; raises a DataError if there is none."""
        if tokenizer := self.tokenizer(*given):
            return tokenizer
        raise DataError(f"{self.directory} has no vocabulary: pass --spm_model_file or --vocab_file")


@cloud.addresses_in_errors()
def open_path(path: str, flag: str = "path") -> Pretrained:
    """Returns the model in a directory of any layout, or at a checkpoint's prefix.

    See `locate` for other paths. `flag` is named in errors.

    Raises:
      CheckpointError: it has none of the layouts; ConfigError, DataError: a malformed file.
    """
    path, layout = locate(path, flag)
    if layout is Layout.HUGGING_FACE:
        return _open_hugging_face(path)
    if layout is Layout.HUB_MODULE:
        return open_module(path, flag)
    if layout is Layout.ALBERT:
        return _open_archive(path, path, flag)
    if layout is not Layout.CHECKPOINT:
        raise _absent(path, flag, layout)
    directory = os.path.dirname(path) or "."
    if os.path.isfile(os.path.join(directory, CONFIG_FILE)):
        return _open_archive(directory, path, flag)
    return dataclasses.replace(
        open_path(directory, flag), path=path, open_weights=lambda: checkpoints.open_weights(path, flag),
    )


def open_named(directory: str, checkpoint_name: str, config_file: str | None) -> Pretrained:
    """Returns the model of the original's flags --albert_directory and --checkpoint_name.

    A directory in another layout holds one model, which needs no name.

    Args:
      config_file: the architecture, if not the directory's.
    """
    prefix = os.path.join(directory, checkpoint_name)
    is_named = os.path.isfile(os.path.join(directory, CONFIG_FILE)) and checkpoints.exists(prefix)
    is_foreign = layout_of(directory) in (Layout.HUGGING_FACE, Layout.HUB_MODULE)
    if is_foreign and not config_file and not is_named:
        return open_path(directory, "albert_directory")
    return _open_archive(directory, prefix, "checkpoint_name", config_file)


def _open_archive(
    directory: str, path: str, flag: str, config_file: str | None = None
) -> Pretrained:
    """Returns the model in an output directory or a released archive.

    Args:
      path: the checkpoint's prefix, or a directory, whose best or newest checkpoint is used.
      config_file: the architecture, if not the directory's.
    """
    try:
        prefix = checkpoints.resolve_prefix(path)
        run_state = read_run_state(prefix)
    except CheckpointError:  # raised again when the weights are needed
        prefix, run_state = path, {}
    config = huggingface.read_config(config_file or os.path.join(directory, CONFIG_FILE))
    checkpoints.check_architecture(run_state, config, prefix)
    metadata = Metadata.from_dict(run_state.get("metadata", {}), prefix)
    return _opened(path, directory, config, metadata, lambda: checkpoints.open_weights(prefix, flag))


def _open_hugging_face(directory: str) -> Pretrained:
    origin = os.path.join(directory, huggingface.CONFIG_FILE)
    values = files.read_json(origin)
    config = huggingface.config_from_theirs(values, origin)
    metadata = huggingface.metadata_from_theirs(values, origin)
    metadata = dataclasses.replace(metadata, **sentence_files.read(directory))
    weights_file = hf_weights.find(directory)
    return _opened(
        directory, directory, config, metadata, lambda: hf_weights.open_weights(weights_file, config)
    )


def _opened(
    path: str, directory: str, config: AlbertConfig, metadata: Metadata, open_weights: Callable[[], Weights],
    assets: str | None = None,
) -> Pretrained:
    """Returns an opened model with the vocabulary of its directory, or of `assets`."""
    vocabulary = tokenizer_files.find(assets or directory, metadata.text)
    if vocabulary:
        metadata = dataclasses.replace(metadata, text=vocabulary.text)
    return Pretrained(path, directory, config, vocabulary, metadata, open_weights)


def open_module(handle: str, flag: str = "albert_hub_module_handle") -> Pretrained:
    """Returns the model of a TF-Hub module in a directory or at an https:// address."""
    directory = hub.fetch(handle, flag)
    assets = os.path.join(directory, "assets")
    config = os.path.join(assets, CONFIG_FILE)
    if not os.path.isfile(config):
        raise CheckpointError(f"{flag}: {directory} is a SavedModel, but not a TF-Hub module of an ALBERT: "
                              f"no {CONFIG_FILE} in {assets}. Instead of tensorflow/albert_en_base, pass "
                              "albert/albert-base-v2")
    return _opened(
        handle, directory, AlbertConfig.from_json_file(config), Metadata(),
        lambda: hub.open_weights(directory), assets,
    )


def open_any_weights(path: str, flag: str = "init_checkpoint") -> Weights:
    """Returns the named tensors of a checkpoint, or of whatever `open_path` accepts.

    A checkpoint needs no files next to it.

    Raises:
      CheckpointError: it does not exist, is of another kind, or damaged.
    """
    path, layout = locate(path, flag)
    if layout in (Layout.HUB_MODULE, Layout.HUGGING_FACE):
        return open_path(path, flag).weights()
    return checkpoints.open_weights(path, flag)


# === Models ===

def class_of(source: Pretrained) -> str:
    """Returns the name of the class with which a model was saved, else that of its weights."""
    return source.metadata.architecture or class_of_weights(source.weights().shapes).name


@cloud.addresses_in_errors()
def load(
    kind: type["keras.Model"],
    source: Pretrained,
    *,
    complete: bool = False,
    label_names: Sequence[str] | None = None,
    ignore_mismatched_sizes: bool = False,
    **options: Any,
) -> "keras.Model":
    """Returns a model of class `kind` with the weights of an opened one.

    Labels of other names than those that the head was trained for get a new head; the same names in
    another order get its rows in that order.

    `options` are arguments of the class, by default those with which it was saved; a classifier's
    `num_labels` is by default the number of `label_names`, else that of the weights. A head that the
    weights lack is initialized randomly, with a warning, or is an error if the model must be
    `complete`. With `ignore_mismatched_sizes` a head of another shape counts as missing.

    Raises:
      CheckpointError: weights are missing or have another shape.
    """
    from albert.model.weights import named_weights

    weights, known = source.weights(), inspect.signature(kind).parameters
    saved_as = MODEL_CLASSES.get(source.metadata.architecture, ENCODER)
    if saved_as.weight == LABEL_HEAD and saved_as.name not in (c.__name__ for c in kind.__mro__):
        weights = weights.without(*LABEL_HEADS)  # of the same name and shape, for something else
    weights = weights.for_labels(source.metadata.label_names, label_names, is_required=complete)
    if label_names is not None and "num_labels" in known:
        options = {"num_labels": len(label_names)} | options
    if "num_labels" not in options and "num_labels" in known:
        if LABEL_HEAD not in weights.shapes:
            raise CheckpointError(f"{source.path} has no classifier yet: pass num_labels")
        options["num_labels"] = weights.shapes[LABEL_HEAD][0]
    is_same = source.metadata.architecture in (None, kind.__name__)
    if is_same:
        options = {name: x for name, x in source.metadata.settings.items() if name in known} | options
    model = kind(source.config, **options)
    new = assign(model, weights, ignore_mismatched_sizes)["new"]
    model.random_pooler = {
        name: weight.numpy() for name, weight in named_weights(model).items()
        if name in new and name.startswith("bert/pooler/")
    }
    # A pooler that the model does not read may be missing.
    has_use = reads_pooler(kind)
    needed = [name for name in new if has_use or not name.startswith("bert/pooler/")]
    if needed and complete:
        raise CheckpointError(f"{source.path} has no trained {some(needed)}: it was trained for "
                              "something else")
    if new:
        log.warning("%s: new, to be trained: %s", cloud.as_given(source.path), some(new))
    # The task belongs to the head, the preprocessing of texts to the encoder.
    metadata = source.metadata if is_same and not needed else Metadata(text=source.metadata.text)
    model.metadata = dataclasses.replace(metadata, architecture=kind.__name__)
    if label_names is not None:
        model.label_names = label_names
    return model


def assign(
    model: "keras.Model", weights: Weights, ignore_mismatched_sizes: bool = False
) -> dict[str, Any]:
    """Assigns the weights of the same names to a model; returns the summary of a warm start.

    The pooler may be missing. With `ignore_mismatched_sizes`, a head may have another shape.

    Raises:
      CheckpointError: another of the encoder's weights is missing, or has another shape.
    """
    from albert.model.weights import named_weights, parameter_shapes

    named, shapes = named_weights(model), parameter_shapes(model)
    misfits = [
        name for name, shape in shapes.items()
        if not name.startswith("bert/") and tuple(weights.shapes.get(name, shape)) != tuple(shape)
    ]
    if misfits and not ignore_mismatched_sizes:
        name = misfits[0]
        raise CheckpointError(f"{weights.origin}: {name} has the shape {list(weights.shapes[name])}, not "
                              f"{list(shapes[name])}: for a new head, pass ignore_mismatched_sizes=True")
    matching = {name: shape for name, shape in shapes.items() if name not in misfits}
    tensors, summary = checkpoints.warm_start(matching, weights)
    summary["new"] += misfits
    for name, value in tensors.items():
        named[name].assign(value)
    return summary


def save(
    model: "keras.Model", path: str, tokenizer: FullTokenizer | None = None, *, is_archive: bool = False,
    max_length: int | None = None, dtype: str = "float32", keeps_pooler: bool = True, note: str = "",
    run_state: Mapping[str, Any] = {},
) -> None:
    """Writes a directory that every command and `load` accept, with its card.

    Args:
      is_archive: whether it is a released archive, not in Hugging Face's layout.
      max_length: of the tokenizer in that layout; by default the model's.
      dtype: of the weights in that layout.
      keeps_pooler: whether to write a pooler that the model does not read, which Hugging Face's
        classes lack.
      note, run_state: see `model_card.write`.

    Raises:
      UserError: the directory holds a run's checkpoints, or it cannot be
        written; an earlier model is then untouched.

    See `model_card.publish_model` for a directory that holds other files.
    """
    if os.path.isdir(path) and checkpoints.newest_or_best(path):
        raise CheckpointError(f"{path} holds checkpoints: save to another directory, since a "
                              "directory holds one model")
    config, tensors, limit = model.config, trained_weights(model), model.config.max_position_embeddings
    settings = dict(model.metadata.settings) | settings_among(model.get_config())
    metadata, ids = dataclasses.replace(model.metadata, settings=settings), {"pad": 0, "cls": 2, "sep": 3}
    if tokenizer is not None:
        check_vocabulary(tokenizer, config)
        ids = {"pad": tokenizer.pad_id, "cls": tokenizer.cls_id, "sep": tokenizer.sep_id}
        metadata = dataclasses.replace(metadata, text=tokenizer.settings)
    main_file = checkpoints.BEST + checkpoints.INDEX if is_archive else hf_weights.WEIGHTS_FILE
    with model_card.publish_model(path, main_file) as scratch:
        main_file = os.path.join(scratch, main_file)
        if tokenizer is not None:
            length = None if is_archive else min(max_length or limit, limit)
            tokenizer_files.write(tokenizer, scratch, length)
        if is_archive:
            with files.atomic_write(os.path.join(scratch, CONFIG_FILE)) as stream:
                stream.write(config.to_json_string())
            prefix = checkpoints.prefix_of(main_file)
            write_metadata(prefix, metadata, config)
            checkpoints.write(prefix, tensors | {"global_step": np.int64(0)})
        else:
            num_labels = model.num_labels if is_labelled(metadata.architecture) else None
            files.write_json(
                os.path.join(scratch, huggingface.CONFIG_FILE),
                huggingface.config_to_theirs(config, metadata, ids, num_labels, dtype),
            )
            if metadata.pooling in sentence_files.SUPPORTED:
                length = min(metadata.max_seq_length or limit, limit)
                sentence_files.write(scratch, metadata.pooling, length, config.hidden_size)
            if not (keeps_pooler or reads_pooler(type(model))):
                tensors = {n: value for n, value in tensors.items() if not n.startswith("bert/pooler/")}
            tensors = {name: value.astype(dtype) for name, value in tensors.items()}
            hf_weights.write(main_file, hf_weights.to_theirs(config, tensors, metadata.architecture))
        kind = MODEL_CLASSES.get(metadata.architecture, ENCODER)
        there = kind.name if kind.is_at_hugging_face else ENCODER.name  # it has classes of the same names
        model_card.write(
            scratch, config, metadata, parameters=model.count_params(),
            note=note if is_archive else f"In transformers, `{there}.from_pretrained` opens it. {note}",
            name=os.path.basename(os.path.abspath(path)), has_tokenizer=tokenizer is not None,
            run_state=run_state,
        )


def trained_weights(model: "keras.Model") -> dict[str, np.ndarray]:
    """Returns a model's weights under the original's names.

    Without a pooler that `load` drew at random and nothing trained, and `in_units`.
    """
    from albert.model.weights import weight_values

    weights, new = weight_values(model), model.random_pooler
    is_new = bool(new) and all(np.array_equal(weights[name], value) for name, value in new.items())
    return in_units({name: value for name, value in weights.items() if not (is_new and name in new)})
