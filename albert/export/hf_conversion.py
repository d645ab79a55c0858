"""A model goes from Hugging Face's layout to ours or back, weights bit for bit."""

import dataclasses
import logging
import os
from typing import Any

import keras

from albert import modeling, tokenization
from albert.config import AlbertConfig
from albert.errors import CheckpointError, FlagError, some
from albert.formats import (
    checkpoint_files,
    checkpoints,
    hf_tokenizer,
    huggingface,
    model_card,
    model_classes,
    pretrained,
    sidecars,
    tokenizer_files,
)
from albert.formats.known_tasks import split_labels
from albert.formats.model_classes import (
    AT_HUGGING_FACE,
    LABEL_HEAD,
    MODEL_CLASSES,
    class_of_weights,
    is_labelled,
)
from albert.formats.pretrained import Pretrained
from albert.formats.weights import Weights
from albert.storage import files

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
    """What is converted, and what is known of it beside what its directory says.

    The fields are the flags of `convert_hf`; None is not given.
    """

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

    def run(self) -> None:
        """Converts; `output_dir` appears whole or not at all.

        Raises:
          UserError: a file is missing, malformed or of another model.
        """
        source, sidecar = (
            (self._open_theirs(), None) if self.is_from_theirs else self._open_ours()
        )
        weights = source.weights()
        architecture = self._architecture(source, weights)
        model = _build(architecture, source.config, weights)
        tensors, account = _tensors(model, weights)
        tensors = {name: value.astype(self.dtype) for name, value in tensors.items()}
        vocabulary = self._vocabulary(source)
        tokenizer = vocabulary.open() if vocabulary else None
        if tokenizer is None:
            log.warning("no tokenizer in %s: none written", source.directory)
        facts = dataclasses.replace(
            source.facts, architecture=architecture, label_names=self._labels(source, model)
        )
        source = dataclasses.replace(source, facts=facts, vocabulary=vocabulary)
        write, last = (
            (_write_ours, checkpoints.BEST + checkpoint_files.INDEX) if self.is_from_theirs
            else (_write_theirs, huggingface.WEIGHTS_FILE)
        )
        with model_card.publish_model(self.output_dir, last) as scratch:
            write(scratch, source, model, tensors, tokenizer)
            self._write_card(scratch, source, tensors, sidecar, tokenizer)
        log.info("%s", checkpoints.describe_start(account))
        log.info("%s: %s", architecture, self.output_dir)

    def _open_theirs(self) -> Pretrained:
        if not (self.hf_weights_file or self.hf_config_file):
            if not huggingface.is_directory(self.hf_directory):
                files.require_file(os.path.join(self.hf_directory, "config.json"), "hf_directory")
                huggingface.find_weights(self.hf_directory)
            return pretrained.open_path(self.hf_directory, "hf_directory", self.gelu)
        directory = self.hf_directory or os.path.dirname(self.hf_weights_file) or "."
        origin = self.hf_config_file or os.path.join(directory, "config.json")
        files.require_file(origin, "hf_config_file")
        weights = self.hf_weights_file or huggingface.find_weights(directory)
        if weights.endswith((".bin", ".pt", ".pth", ".pkl")):
            raise CheckpointError(
                f"--hf_weights_file: {weights} is a pickle, which can run any code when it is "
                "opened: it is not read; where you trust it, convert it with transformers' "
                "save_pretrained"
            )
        files.require_file(weights, "hf_weights_file")
        return pretrained.open_hugging_face(directory, origin, weights, self.gelu)

    def _open_ours(self) -> tuple[Pretrained, dict[str, Any]]:
        """Returns the model, and what lies beside its checkpoint."""
        directory = self.albert_directory or os.path.dirname(self.checkpoint)
        origin = self.albert_config_file or os.path.join(directory, "albert_config.json")
        source = pretrained.open_archive(
            directory, self.checkpoint or directory, "checkpoint", origin
        )
        weights = source.weights()
        sidecar = sidecars.read_sidecar(weights.origin)
        checkpoints.check_architecture(sidecar, source.config, weights.origin)
        return source, sidecar

    def _vocabulary(self, source: Pretrained) -> tokenizer_files.Vocabulary:
        """Returns the vocabulary that was found, or given instead."""
        for flag in ("spm_model_file", "vocab_file"):
            if path := getattr(self, flag):
                files.require_file(path, flag)
        return source.vocabulary.override(
            self.spm_model_file, self.vocab_file, self.do_lower_case
        )

    def _architecture(self, source: Pretrained, weights: Weights) -> str:
        """Returns the class: the flag, else what the source says, else what the weights tell."""
        known = source.facts.architecture
        if not self.is_from_theirs and known not in AT_HUGGING_FACE:
            known = None
        of_weights = class_of_weights(weights.shapes)
        if not of_weights.is_at_hugging_face:
            of_weights = model_classes.ENCODER
        name = self.architecture or known or of_weights.name
        if name not in AT_HUGGING_FACE:
            raise FlagError(f"architecture {name} is not one of {', '.join(AT_HUGGING_FACE)}")
        return name

    def _labels(self, source: Pretrained, model: keras.Model) -> tuple[str, ...] | None:
        """Returns the names of a classifier's labels that are given, or known."""
        count = getattr(model, "num_labels", None)
        if count is None or hasattr(model, "num_choices"):
            return None
        given = self.label_list
        labels = split_labels(given) if given else source.facts.label_names
        if labels and len(labels) != count:
            whose = "--label_list has" if given else "the directory tells"
            raise FlagError(f"{whose} {len(labels)} labels, the classifier {count}")
        return labels

    def _write_card(self, directory, source, tensors, sidecar, tokenizer) -> None:
        name = os.path.basename(os.path.abspath(self.output_dir))
        architecture = source.facts.architecture
        has_usage = tokenizer is not None or not self.is_from_theirs
        parts = model_card.of_class(architecture, name, has_usage)
        origin = os.path.basename(os.path.abspath(source.directory))
        exactly = "bit for bit" if self.dtype == "float32" else f"in {self.dtype}"
        parts["summary"] += f" Converted from `{origin}`, {exactly}."
        if not self.is_from_theirs:
            inputs = model_card.input_lines(
                MODEL_CLASSES[architecture], ', return_tensors="pt", padding=True'
            )
            parts["usage"] = _THEIR_USAGE.format(
                architecture=architecture, name=name, inputs=inputs
            )
        model_card.write(
            directory, config=source.config, tokenizer=tokenizer,
            label_names=source.facts.label_names, sidecar=sidecar,
            parameters=sum(value.size for value in tensors.values()), **parts,
        )


def _write_ours(scratch, source: Pretrained, model, tensors, tokenizer) -> None:
    pretrained.write(scratch, source.config, tensors, source.facts, tokenizer, "30k-clean.model")


def _write_theirs(scratch, source: Pretrained, model, tensors, tokenizer) -> None:
    config, ids = source.config, {"pad": 0, "cls": 2, "sep": 3}
    if tokenizer:
        tokenization.check_vocabulary(tokenizer, config)
        ids = {"pad": tokenizer.pad_id, "cls": tokenizer.cls_id, "sep": tokenizer.sep_id}
        most = config.max_position_embeddings
        hf_tokenizer.write(tokenizer, scratch, min(source.vocabulary.max_length or most, most))
    architecture = source.facts.architecture
    num_labels = model.num_labels if is_labelled(architecture) else None
    files.write_json(
        os.path.join(scratch, huggingface.CONFIG_FILE),
        huggingface.config_to_theirs(config, source.facts, ids, num_labels),
    )
    converted = huggingface.tensors_to_theirs(config, tensors, architecture)
    huggingface.serialize(converted, os.path.join(scratch, huggingface.WEIGHTS_FILE))


def _build(architecture: str, config: AlbertConfig, weights: Weights) -> keras.Model:
    """Returns our model of the architecture, its head as wide as the checkpoint's."""
    keras.utils.set_random_seed(0)  # what is not in the checkpoint is the same every time
    sizes = {}
    if is_labelled(architecture):
        shape = weights.shapes.get(LABEL_HEAD)
        if shape is None:
            raise CheckpointError(f"{weights.origin} has no classifier ({LABEL_HEAD})")
        sizes["num_labels"] = shape[0]
    return getattr(modeling, architecture)(config, **sizes)


def _tensors(model: keras.Model, weights: Weights):
    """Returns (every weight of the model by name, account); only the pooler may be new."""
    account = pretrained.assign(model, weights)
    absent = [name for name in account["new"] if not name.startswith("bert/pooler/")]
    if absent:
        raise CheckpointError(
            f"{weights.origin} has no {some(absent)}: another --architecture?"
        )
    return {n: w.numpy() for n, w in modeling.named_weights(model).items()}, account
