"""Converts a model from Hugging Face's layout to ours or back, weights bit for bit."""

import dataclasses
import logging
import os
from typing import Any

import keras
import numpy as np

from albert import modeling, tokenization
from albert.errors import CheckpointError, FlagError, some
from albert.formats import (
    checkpoint_files,
    checkpoints,
    hf_tokenizer,
    huggingface,
    model_card,
    pretrained,
    run_states,
    tokenizer_files,
)
from albert.formats.known_tasks import split_labels
from albert.formats.model_classes import (
    AT_HUGGING_FACE,
    ENCODER,
    LABEL_HEAD,
    MODEL_CLASSES,
    class_of_weights,
    is_labelled,
)
from albert.formats.pretrained import Pretrained
from albert.formats.weights import Weights
from albert.storage import files
from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

_THEIR_USAGE = """
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = {architecture}.from_pretrained("{name}")
{inputs}
outputs = model(**inputs)
"""


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The flags of `convert_hf`; None if not given."""

    output_dir: str
    hf_directory: str | None = None
    hf_config_file: str | None = None
    hf_weights_file: str | None = None
    albert_directory: str | None = None
    albert_config_file: str | None = None
    checkpoint: str | None = None
    spm_model_file: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    architecture: str | None = None
    gelu: str = "auto"
    label_list: str | None = None
    dtype: str = "float32"  # of weights that are written in their layout

    @property
    def is_from_theirs(self) -> bool:
        return bool(self.hf_directory or self.hf_weights_file)


def convert(flags: Conversion) -> None:
    """Converts a model; `output_dir` appears complete or not at all.

    Raises:
      UserError: a file is missing, malformed or of another model.
    """
    is_ours = not flags.is_from_theirs
    source = _open_ours(flags) if is_ours else _open_theirs(flags)
    weights = source.weights()
    architecture = flags.architecture or _architecture(source, weights, is_ours)
    if architecture not in AT_HUGGING_FACE:
        raise FlagError(f"architecture {architecture} is not one of {', '.join(AT_HUGGING_FACE)}")
    model, account = _load(architecture, source, weights)
    tensors = {
        name: weight.numpy().astype(flags.dtype)
        for name, weight in modeling.named_weights(model).items()
    }
    vocabulary = _vocabulary(flags, source)
    tokenizer = vocabulary.open() if vocabulary else None
    if tokenizer is None:
        log.warning("no tokenizer in %s: none written", source.directory)
    metadata = dataclasses.replace(
        source.metadata, architecture=architecture,
        label_names=_labels(flags.label_list, source, model),
    )
    source = dataclasses.replace(source, metadata=metadata, vocabulary=vocabulary)
    main_file = huggingface.WEIGHTS_FILE if is_ours else checkpoints.BEST + checkpoint_files.INDEX
    with model_card.publish_model(flags.output_dir, main_file) as scratch:
        if is_ours:
            _write_theirs(scratch, source, model, tensors, tokenizer)
        else:
            pretrained.write(
                scratch, source.config, tensors, metadata, tokenizer, "30k-clean.model"
            )
        _write_card(flags, scratch, source, tensors, tokenizer)
    log.info("%s", checkpoints.describe_start(account))
    log.info("%s: %s", architecture, flags.output_dir)


def _open_theirs(flags: Conversion) -> Pretrained:
    if not (flags.hf_weights_file or flags.hf_config_file):
        if not huggingface.is_directory(flags.hf_directory):
            files.require_file(os.path.join(flags.hf_directory, "config.json"), "hf_directory")
            huggingface.find_weights(flags.hf_directory)
        return pretrained.open_path(flags.hf_directory, "hf_directory", flags.gelu)
    directory = flags.hf_directory or os.path.dirname(flags.hf_weights_file) or "."
    config_file = flags.hf_config_file or os.path.join(directory, "config.json")
    files.require_file(config_file, "hf_config_file")
    weights = flags.hf_weights_file or huggingface.find_weights(directory)
    if weights.endswith((".bin", ".pt", ".pth", ".pkl")):
        raise CheckpointError(
            f"--hf_weights_file: {weights} is a pickle, which can run any code when it is "
            "opened: it is not read; where you trust it, convert it with transformers' "
            "save_pretrained"
        )
    files.require_file(weights, "hf_weights_file")
    return pretrained.open_hugging_face(directory, config_file, weights, flags.gelu)


def _open_ours(flags: Conversion) -> Pretrained:
    directory = flags.albert_directory or os.path.dirname(flags.checkpoint)
    source = pretrained.open_archive(
        directory, flags.checkpoint or directory, "checkpoint",
        flags.albert_config_file or os.path.join(directory, "albert_config.json"),
    )
    origin = source.weights().origin
    checkpoints.check_architecture(run_states.read_run_state(origin), source.config, origin)
    return source


def _architecture(source: Pretrained, weights: Weights, is_ours: bool) -> str:
    """Returns the class that the source names, else that of its weights."""
    named = source.metadata.architecture
    if named and not (is_ours and named not in AT_HUGGING_FACE):
        return named
    by_weight = class_of_weights(weights.shapes)
    return (by_weight if by_weight.is_at_hugging_face else ENCODER).name


def _load(
    architecture: str, source: Pretrained, weights: Weights
) -> tuple[keras.Model, dict[str, Any]]:
    """Returns our model, its head as wide as the checkpoint's, and which weights were assigned."""
    keras.utils.set_random_seed(0)  # a pooler that is not in the checkpoint is reproducible
    sizes = {}
    if is_labelled(architecture):
        shape = weights.shapes.get(LABEL_HEAD)
        if shape is None:
            raise CheckpointError(f"{weights.origin} has no classifier ({LABEL_HEAD})")
        sizes["num_labels"] = shape[0]
    model = getattr(modeling, architecture)(source.config, **sizes)
    account = pretrained.assign(model, weights)
    absent = [name for name in account["new"] if not name.startswith("bert/pooler/")]
    if absent:
        raise CheckpointError(f"{weights.origin} has no {some(absent)}: another --architecture?")
    return model, account


def _vocabulary(flags: Conversion, source: Pretrained) -> tokenizer_files.Vocabulary:
    """Returns the vocabulary of the flags, or the source's."""
    for name in ("spm_model_file", "vocab_file"):
        if path := getattr(flags, name):
            files.require_file(path, name)
    return source.vocabulary.override(flags.spm_model_file, flags.vocab_file, flags.do_lower_case)


def _labels(given: str | None, source: Pretrained, model: keras.Model) -> tuple[str, ...] | None:
    """Returns the names of a classifier's labels, from --label_list or the source."""
    count = getattr(model, "num_labels", None)
    if count is None or hasattr(model, "num_choices"):
        return None
    labels = split_labels(given) if given else source.metadata.label_names
    if labels and len(labels) != count:
        whose = "--label_list" if given else "the directory"
        raise FlagError(f"{whose} has {len(labels)} labels, the classifier {count}")
    return labels


def _write_theirs(
    scratch: str, source: Pretrained, model: keras.Model, tensors: dict[str, np.ndarray],
    tokenizer: FullTokenizer | None,
) -> None:
    config, ids = source.config, {"pad": 0, "cls": 2, "sep": 3}
    if tokenizer:
        tokenization.check_vocabulary(tokenizer, config)
        ids = {"pad": tokenizer.pad_id, "cls": tokenizer.cls_id, "sep": tokenizer.sep_id}
        limit = config.max_position_embeddings
        hf_tokenizer.write(tokenizer, scratch, min(source.vocabulary.max_length or limit, limit))
    architecture = source.metadata.architecture
    num_labels = model.num_labels if is_labelled(architecture) else None
    files.write_json(
        os.path.join(scratch, huggingface.CONFIG_FILE),
        huggingface.config_to_theirs(config, source.metadata, ids, num_labels),
    )
    converted = huggingface.tensors_to_theirs(config, tensors, architecture)
    huggingface.serialize(converted, os.path.join(scratch, huggingface.WEIGHTS_FILE))


def _write_card(
    flags: Conversion, scratch: str, source: Pretrained, tensors: dict[str, np.ndarray],
    tokenizer: FullTokenizer | None,
) -> None:
    name = os.path.basename(os.path.abspath(flags.output_dir))
    architecture = source.metadata.architecture
    is_ours = not flags.is_from_theirs
    parts = model_card.of_class(architecture, name, tokenizer is not None or is_ours)
    origin = os.path.basename(os.path.abspath(source.directory))
    precision = "bit for bit" if flags.dtype == "float32" else f"in {flags.dtype}"
    parts["summary"] += f" Converted from `{origin}`, {precision}."
    if is_ours:
        inputs = model_card.input_lines(
            MODEL_CLASSES[architecture], ', return_tensors="pt", padding=True'
        )
        parts["usage"] = _THEIR_USAGE.format(architecture=architecture, name=name, inputs=inputs)
    model_card.write(
        scratch, config=source.config, tokenizer=tokenizer,
        label_names=source.metadata.label_names,
        run_state=run_states.read_run_state(source.weights().origin) if is_ours else None,
        parameters=sum(value.size for value in tensors.values()), **parts,
    )
