"""Writes a pretrained or fine-tuned model for other runtimes: LiteRT or ONNX.

  python -m albert.export_model --model_dir=classifier --export_path=classifier.onnx
  python -m albert.export_model --model_dir=out --export_path=encoder.tflite \\
      --max_seq_length=128 --quantize

`--model_dir` is an output directory of this package, a released archive, a directory in Hugging
Face's layout or a TF-Hub module.

A `.tflite` or `.onnx` file holds the model with the head that it was fine-tuned with, or the
encoder of a pretrained model. Inputs are `input_ids`, `input_mask` and `segment_ids`, int32:
[1, max_seq_length] in LiteRT, [B, L] of any size in ONNX; for multiple choice
[1, C, max_seq_length] and [B, C, L] with C choices. Label names are in ONNX's metadata as
`albert_label_names`, in `.tflite` files as `labels.txt`
(`unzip -p classifier.tflite labels.txt`). Before publication, the file's outputs are compared
with the model's.
"""

import dataclasses
import logging
import os

from albert.cli import flags
from albert.errors import CheckpointError, FlagError
from albert.formats import model_card, pretrained
from albert.formats.model_classes import EXPORT_HEADS, MODEL_CLASSES
from albert.formats.pretrained import Pretrained
from albert.inference import onnx_file, onnx_model
from albert.storage import files

log = logging.getLogger("albert")

_TOLERANCE = 1e-4  # of the largest value: other runtimes sum in a different order

_PRETRAINED = {"encoder", "masked_lm"}  # heads that a fine-tuned model may have too


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags, all of them new: the original exports to TensorFlow only."""
    flags.define("path", values, "model_dir", None,
                 f"Model to export: {flags.A_MODEL}. Required.", use="model")
    flags.define("path", values, "export_path", None,
                 "File to write, *.tflite or *.onnx. Required.", use="output")
    flags.define("enum", values, "head", None,
                 "Head of the .tflite or .onnx file. Default: the fine-tuned one; for a pretrained "
                 "model encoder, or masked_lm if it has no pooler.", enum_values=list(EXPORT_HEADS))
    flags.define("integer", values, "max_seq_length", None,
                 "Length of LiteRT's input in tokens. Default: "
                 "as in fine-tuning; of a pretrained model 128, or its maximum if shorter.",
                 lower_bound=1)
    flags.define("bool", values, "quantize", False,
                 "Store the large matrices of .tflite or .onnx as int8 (dynamic range), in a quarter "
                 "of the space.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "model_dir", "export_path")
    suffix = os.path.splitext(values.export_path)[1].lower()
    if suffix not in (".tflite", ".onnx"):
        raise FlagError(f"--export_path={values.export_path}: give a *.tflite or *.onnx file")
    if suffix == ".onnx" and values.max_seq_length is not None:
        raise FlagError("--max_seq_length has no effect on .onnx, which takes any length")
    files.refuse_existing(values.export_path, "export_path")
    source = pretrained.open_path(values.model_dir, "model_dir")
    _export_file(values, source, suffix)


def _export_file(values: flags.FlagValues, source: Pretrained, suffix: str) -> None:
    """Writes a `.tflite` or `.onnx` file and its card."""
    flags.start_tensorflow()
    from albert import modeling
    from albert.export import model_conversion

    trained = _trained_head(source)
    head = values.head or trained
    if source.metadata.architecture and not {head, trained} & _PRETRAINED and head != trained:
        # Their weights may have the same names.
        raise FlagError(f"--head={head}: {values.model_dir} was fine-tuned for {trained}")
    kind = EXPORT_HEADS[head]
    model = pretrained.load(getattr(modeling, kind.name), source, complete=True)
    labels = source.metadata.label_names if head == trained and kind.has_labels else None
    limit = model.config.max_position_embeddings
    length = values.max_seq_length or min(source.metadata.max_seq_length or 128, limit)
    model.config.check_length(length, values.model_dir)
    if suffix == ".onnx":
        content = onnx_model.model_file(kind, source, labels, values.quantize)
        run = onnx_file.opened(content)
    else:
        content = model_conversion.to_tflite(model, kind.outputs, length, values.quantize)
        if labels:
            content = model_conversion.with_labels(content, labels)
        run = model_conversion.run_tflite(content)
    differences = model_conversion.largest_difference(model, kind.outputs, run, length)
    for name, (difference, largest) in differences.items():
        log.info("%s: largest difference from the model %.2g, of values up to %.2g",
                 name, difference, largest)
        if not values.quantize and not difference <= _TOLERANCE * max(largest, 1.0):
            raise CheckpointError(f"{name} of the {suffix} file differs from the model's by "
                                  f"{difference:.2g}; nothing was written: please report this")
    # The card first: a model never lacks one. A card alone, after a kill between the two, is
    # overwritten by the next run.
    name = os.path.basename(values.export_path)
    exact = "large matrices as int8, the rest as float32" if values.quantize else "float32"
    outputs = ", ".join(f"`{output}` (differs by up to {difference:.1g})"
                        for output, (difference, _) in differences.items())
    sizes = ", ".join(map(str, model_conversion.input_shape(model, 1, length)))
    with files.atomic_write(values.export_path, "wb") as stream:
        stream.write(content)
        stream.flush()
        model_card.of_weights(
            f"{values.export_path}.{model_card.NAME}", source.weights(),
            source.config, name=name,
            metadata=dataclasses.replace(source.metadata, architecture=kind.name, label_names=labels),
            note=f"A {suffix[1:]} file, {exact}. Its outputs, compared with the model's on four "
                 f"sequences: {outputs}.",
            usage=model_card.filled(f"{suffix[1:]}.txt", name=name, sizes=sizes),
        )
    log.info("%s: %s, %s bytes", values.export_path, kind.name, f"{len(content):,}")


def _trained_head(source: Pretrained) -> str:
    """Returns the default head of a model's export."""
    kind = MODEL_CLASSES.get(pretrained.class_of(source))
    if kind and kind.task:
        return kind.head
    has_pooler = "bert/pooler/dense/kernel" in source.weights().shapes  # transformers may drop it
    return "encoder" if has_pooler else "masked_lm"


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
