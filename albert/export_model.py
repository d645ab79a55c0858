"""Writes a pretrained or fine-tuned model for other runtimes: LiteRT or ONNX.

  python -m albert.export_model --model_dir=classifier --export_path=classifier.onnx
  python -m albert.export_model --model_dir=out --export_path=encoder.tflite \\
      --max_seq_length=128 --quantize

`--model_dir` is an output directory of this package, an unpacked released model, a directory in Hugging
Face's layout or a TF-Hub module.

A `.tflite` or `.onnx` file holds the model with the head that it was fine-tuned with, or the
encoder of a pretrained model. Inputs are `input_ids`, `input_mask` and `segment_ids`, int32:
[1, max_seq_length] in LiteRT, [B, L] up to the model's maximum in ONNX; for multiple choice
[1, C, max_seq_length] and [B, C, L] with C choices. Label names are in ONNX's metadata as
`albert_label_names`, in `.tflite` files as `labels.txt`
(`unzip -p classifier.tflite labels.txt`). Next to an `.onnx` file are its tokenizer,
`NAME.onnx.tokenizer.json`, and a card with code that answers texts. Before publication, the file's
outputs are compared with the model's.
"""

import os

from albert import engines
from albert.cli import flags
from albert.errors import FlagError
from albert.export import forms
from albert.formats import pretrained
from albert.formats.model_classes import EXPORT_HEADS
from albert.storage import files


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
        raise FlagError(f"--export_path={values.export_path}: name a *.tflite or *.onnx file")
    if suffix == ".onnx" and values.max_seq_length is not None:
        raise FlagError("--max_seq_length has no effect on .onnx, which takes any length")
    files.refuse_existing(values.export_path, "export_path")
    source = pretrained.open_path(values.model_dir, "model_dir")
    engines.require("tensorflow", "this command needs TensorFlow")
    engines.start("tensorflow")
    forms.write_file(
        source, values.export_path, suffix[1:], values.head, values.max_seq_length, values.quantize
    )


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
