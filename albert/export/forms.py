"""Writes an opened model in another form, with its card. Imports an engine only where it is needed."""

import dataclasses
import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from albert.errors import CheckpointError, FlagError, some
from albert.formats import checkpoints, model_card, pretrained, tokenizer_files, tokenizer_json
from albert.formats.metadata import MULTI_LABEL, Metadata, read_run_state, write_metadata
from albert.formats.model_classes import (
    CHOICE, ENCODER, EXPORT_HEADS, MODEL_CLASSES, QUESTIONS, TOKENS, is_labelled,
)
from albert.formats.pretrained import Pretrained
from albert.formats.weights import UNITS
from albert.storage import files
from albert.tokenization import FullTokenizer

if TYPE_CHECKING:
    import keras

log = logging.getLogger("albert")

_PRETRAINED = {"encoder", "masked_lm"}  # heads that a fine-tuned model may have too
_TOLERANCE = 1e-4  # of the largest value: other runtimes sum in a different order


# === Directories ===


def write_directory(
    source: Pretrained, path: str, tokenizer: FullTokenizer | None, *, is_archive: bool,
    label_names: Sequence[str] | None = None, dtype: str = "float32", origin: str = "",
) -> None:
    """Publishes a released archive, or a directory in Hugging Face's layout.

    A class that is not albert's becomes its encoder.

    Args:
      dtype: of the weights in Hugging Face's layout.
      origin: the model's name, for the card.
    """
    architecture = pretrained.class_of(source)
    if architecture not in MODEL_CLASSES:
        log.warning("albert has no %s: writing the encoder alone", architecture)
        architecture = ENCODER.name
    elif not (is_archive or MODEL_CLASSES[architecture].is_at_hugging_face):
        # Their question-answering class scores last tokens regardless of the first, so no weights
        # make it compute the same.
        log.warning("Hugging Face has no %s: transformers opens its encoder alone", architecture)
    if label_names and not is_labelled(architecture):
        raise FlagError(f"--label_list has no effect on {architecture}")
    model = _model_of(source, architecture, label_names)
    precision = "bit for bit" if dtype == "float32" else f"in {dtype}"
    pretrained.save(
        model, path, tokenizer, is_archive=is_archive, note=f"Converted from `{origin}`, {precision}.",
        run_state={} if is_archive else read_run_state(source.weights().origin),
        max_length=source.vocabulary.max_length, dtype=dtype,
        keeps_pooler=not MODEL_CLASSES[architecture].is_at_hugging_face,
    )
    log.info("wrote %s: %s", path, architecture)


def _model_of(
    source: Pretrained, architecture: str, label_names: Sequence[str] | None = None
) -> "keras.Model":
    """Returns the model of a class, else the encoder, whose pooler alone may be missing."""
    import keras

    from albert import modeling

    keras.utils.set_random_seed(0)  # for a reproducible pooler if the checkpoint has none
    kind = getattr(modeling, architecture, modeling.AlbertModel)
    return pretrained.load(kind, source, complete=kind is not modeling.AlbertModel, label_names=label_names)


# === Checkpoints ===


def write_checkpoint(source: Pretrained, prefix: str) -> None:
    """Publishes the model's variables under the original's names, and its metadata next to them."""
    model, weights = _model_of(source, pretrained.class_of(source)), source.weights()
    tensors, directory = pretrained.trained_weights(model), os.path.dirname(os.path.abspath(prefix))
    left_out = sorted(set(weights.shapes) - {*tensors, *UNITS})
    if lost := [name for name in left_out if name.startswith("bert/") and not checkpoints.is_slot(name)]:
        raise CheckpointError(f"{weights.origin} has encoder variables that the config does not "
                              f"imply: {some(lost)}")

    def write_the_rest() -> None:
        write_metadata(prefix, model.metadata, source.config)
        if os.path.realpath(directory) == os.path.realpath(source.directory):
            return  # which has a card already
        model_card.of_weights(
            directory, weights, source.config, metadata=model.metadata,
            usage='import albert\n\nmodel = albert.from_pretrained("FOLDER")  # with its albert_config.json',
            note="Variables under the original toolkit's names, without those of the optimizer.",
        )

    files.make_dirs(directory)
    checkpoints.write(prefix, tensors | {"global_step": np.int64(0)}, before=write_the_rest)
    log.info("wrote %s: %d variables; left out: %s", prefix, len(tensors), some(left_out) or "nothing")


# === TF-Hub modules ===


def write_hub_module(source: Pretrained, path: str, tokenizer: FullTokenizer) -> None:
    """Publishes a TF-Hub module."""
    from albert.export import hub_export

    model, weights = hub_export.load_model(source)
    name = os.path.basename(os.path.abspath(path))
    # The list of tokens, for people to read; the SentencePiece model contains it too.
    listing = os.path.splitext(tokenizer.path)[0] + ".vocab"
    vocabularies = [listing] * (tokenizer.is_spm and os.path.isfile(listing)) + [tokenizer.path]
    with (
        tempfile.TemporaryDirectory() as folder,  # the SavedModel keeps the assets' names
        model_card.publish_model(path, hub_export.MAIN_FILE) as scratch,
    ):
        config, settings = (
            os.path.join(folder, name) for name in (pretrained.CONFIG_FILE, tokenizer_files.SETTINGS_FILE))
        with files.atomic_write(config) as stream:
            stream.write(source.config.to_json_string())
        files.write_json(settings, tokenizer_files.settings_of(tokenizer, None))
        assets = [config, settings, *(shutil.copy(vocabulary, folder) for vocabulary in vocabularies)]
        hub_export.export_module(model, weights, assets, scratch, do_lower_case=tokenizer.do_lower_case)
        model_card.of_weights(
            scratch, source.weights(), source.config, name=name, metadata=source.metadata,
            parameters=sum(math.prod(one.shape) for one in weights.values()),
            note="A reusable TensorFlow 2 SavedModel: token ids to vectors.",
            usage=model_card.filled("hub_module.txt", name=name),
        )
    log.info("wrote %s (load it with tensorflow_hub.load, or as a keras.layers.TFSMLayer)", path)


# === LiteRT and ONNX ===


def write_file(
    source: Pretrained, path: str, form: str, head: str | None = None, length: int | None = None,
    quantize: bool = False,
) -> None:
    """Publishes a file whose outputs were compared with the model's, its card and its tokenizer.

    Args:
      form: "tflite" or "onnx".
      head: one of `EXPORT_HEADS`, by default the one that was trained.
      length: of LiteRT's input, in tokens.
      quantize: whether large matrices are int8.
    """
    from albert import modeling
    from albert.export import model_conversion
    from albert.inference import onnx_graph, onnx_model

    trained = _trained_head(source)
    head = head or trained
    if source.metadata.architecture and not {head, trained} & _PRETRAINED and head != trained:
        # Their weights may have the same names.
        raise FlagError(f"--head={head}: {source.path} was fine-tuned for {trained}")
    kind = EXPORT_HEADS[head]
    model = pretrained.load(getattr(modeling, kind.name), source, complete=True)
    labels = source.metadata.label_names if head == trained and kind.has_labels else None
    limit = model.config.max_position_embeddings
    length = length or min(source.metadata.max_seq_length or 128, limit)
    model.config.check_length(length, source.path)
    if form == "onnx":
        content = onnx_model.model_file(kind, source, labels, quantize)
        run = onnx_graph.opened(content)
    else:
        content = model_conversion.to_tflite(model, kind.outputs, length, quantize)
        content = model_conversion.with_labels(content, labels) if labels else content
        run = model_conversion.run_tflite(content)
    differences = model_conversion.largest_difference(model, kind.outputs, run, length)
    for name, (difference, largest) in differences.items():
        log.info("%s: largest difference from the model %.2g, of values up to %.2g",
                 name, difference, largest)
        if not quantize and not difference <= _TOLERANCE * max(largest, 1.0):
            raise CheckpointError(f"{name} of the .{form} file differs from the model's by "
                                  f"{difference:.2g}; nothing was written")
    name, tokenizer = os.path.basename(path), source.tokenizer()
    fast = tokenizer_json.contents(tokenizer, length) if tokenizer and form == "onnx" else None
    metadata = dataclasses.replace(source.metadata, architecture=kind.name, label_names=labels)
    precision = "large matrices as int8, the rest as float32" if quantize else "float32"
    outputs = ", ".join(f"`{output}` (differs by up to {difference:.1g})"
                        for output, (difference, _) in differences.items())
    if fast:
        count = source.weights().shapes.get("output_weights", [0])[0]
        usage = _onnx_usage(name, metadata, count)
    else:
        sizes = ", ".join(map(str, model_conversion.input_shape(model, 1, length)))
        usage = model_card.filled(f"{form}.txt", name=name, sizes=sizes)
    # The rest first: a model never lacks it. What a kill between them left is overwritten.
    with files.atomic_write(path, "wb") as stream:
        stream.write(content)
        stream.flush()
        if fast:
            files.write_json(f"{path}.{tokenizer_files.FAST_FILE}", fast)
        model_card.of_weights(
            f"{path}.{model_card.NAME}", source.weights(), source.config, name=name, usage=usage,
            metadata=metadata, note=f"{name} has {precision}. Its outputs, compared with the model's "
            f"on four sequences: {outputs}.",
        )
    log.info("wrote %s: %s, %s bytes", path, kind.name, f"{len(content):,}")


def _trained_head(source: Pretrained) -> str:
    """Returns the default head of a model's export."""
    kind = MODEL_CLASSES.get(pretrained.class_of(source))
    if kind and kind.task:
        return kind.head
    has_pooler = "bert/pooler/dense/kernel" in source.weights().shapes  # transformers may drop it
    return "encoder" if has_pooler else "masked_lm"


def _onnx_usage(name: str, metadata: Metadata, num_labels: int) -> str:
    """Returns code that answers texts with an ONNX file, onnxruntime and tokenizers alone."""
    kind, texts, value = MODEL_CLASSES[metadata.architecture], '["A text."]', "value"
    labels = json.dumps(metadata.label_names or [*map(str, range(num_labels))], ensure_ascii=False)
    shown = "[output.shape for output in outputs]"
    if kind.task == CHOICE:
        texts = '[("A text.", "A question? One end."), ("A text.", "A question? Another end.")]'
        value, shown = "[value]", "outputs[0].argmax(-1)"
    elif kind.task == QUESTIONS:
        texts = '[("A question?", "A text.")]'
    elif kind.task == TOKENS:
        shown = f"[[{labels}[i] for i in row] for row in outputs[0].argmax(-1)]"
    elif kind.task and metadata.problem_type == MULTI_LABEL:
        threshold = metadata.settings.get("label_threshold", 0.5)
        logit = round(math.log(threshold / (1 - threshold)), 6) if threshold else -math.inf
        shown = f"[[label for label, x in zip({labels}, row) if x >= {logit}] for row in outputs[0]]"
    elif kind.task and num_labels > 1:
        shown = f"[{labels}[i] for i in outputs[0].argmax(-1)]"
    if metadata.num_texts == 2:
        texts = '[("A text.", "Another text.")]'
    return model_card.filled("onnx_texts.txt", name=name, texts=texts, value=value, shown=shown)
