"""Exports a pretrained ALBERT as reusable TensorFlow 2 SavedModels (TF-Hub modules).

  python -m albert.export_to_tfhub --albert_directory=out \\
      --spm_model_file=spm.model --export_path=module

`hub.load(path)` returns an object that is called with `input_word_ids`,
`input_mask` and `input_type_ids` [B, L] and returns `pooled_output`,
`sequence_output`, `encoder_outputs` and `default`; it can be trained with
`training=True`. Its parts `mlm` (called with `masked_lm_positions` too) and
`sop` add `mlm_logits` and `sop_logits`, if the model has these heads. It also has the
original's signatures `tokens`, `sop`, `mlm` and `tokenization_info`. In a Keras 3 model, it is
`keras.layers.TFSMLayer(path)`.

The module has a model card, README.md.
"""

import os

from albert import engines
from albert.cli import flags
from albert.errors import FlagError
from albert.export import forms
from albert.formats import pretrained
from albert.storage import files


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags, and one for a configuration elsewhere."""
    flags.define("path", values, "albert_directory", None,
                 "Directory with albert_config.json, checkpoint and vocabulary, or one in Hugging "
                 "Face's layout, or a module. Required.", use="model")
    flags.define("string", values, "checkpoint_name", "model.ckpt-best", "Checkpoint to export.")
    flags.define_vocabulary_flags(values)
    flags.define("bool", values, "use_einsum", True, "No effect in TensorFlow 2.")
    flags.define("path", values, "export_path", None, "Directory to write. Required.", use="output")
    flags.define("path", values, "albert_config_file", None,
                 "Architecture, if not albert_directory/albert_config.json.", use="file")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "albert_directory", "export_path")
    if not os.path.isdir(values.albert_directory):
        raise FlagError(f"--albert_directory: no such directory: {values.albert_directory}")
    files.refuse_existing(values.export_path, "export_path")
    source = pretrained.open_named(
        values.albert_directory, values.checkpoint_name, values.albert_config_file
    )
    tokenizer = source.required_tokenizer(*flags.vocabulary_given(values))
    if tokenizer.added.ids:
        raise FlagError(f"the added tokens {', '.join(tokenizer.added.ids):.60} can't be written into a "
                        "TF-Hub module: export an .onnx file")
    engines.require("tensorflow", "this command needs TensorFlow")
    engines.start("tensorflow")
    forms.write_hub_module(source, values.export_path, tokenizer)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
