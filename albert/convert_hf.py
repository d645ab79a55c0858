"""Converts a model from or to Hugging Face's layout, bit for bit; from there also a BERT.

  python -m albert.convert_hf --hf_directory=albert-base-v2 --output_dir=albert_base
  python -m albert.convert_hf --albert_directory=albert_base --output_dir=albert-base-v2

The first command reads config.json, model.safetensors and spiece.model, and writes
albert_config.json, model.ckpt-best and the vocabulary, as in a released archive.
The second does the reverse, and adds tokenizer files for `AutoTokenizer`.
"""

import os

from albert import engines
from albert.cli import flags
from albert.errors import FlagError
from albert.export import forms
from albert.formats import pretrained
from albert.storage import files


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "hf_directory", None,
                 "Directory in Hugging Face's layout, to convert from it.", use="model")
    flags.define("path", values, "albert_directory", None,
                 "Model in another layout, or a checkpoint's prefix, to convert to Hugging Face's.",
                 use="model")
    flags.define_vocabulary_flags(values)
    flags.define("path", values, "output_dir", None,
                 "Directory to write; must not exist. Required.", use="output")
    flags.define("enum", values, "dtype", "float32",
                 "Precision of the weights in Hugging Face's layout; float16 halves the file.",
                 enum_values=["float32", "float16"])
    flags.define("string", values, "label_list", None,
                 "Comma-separated label names of a classifier. Default: those of the directory.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    if bool(values.hf_directory) == bool(values.albert_directory):
        raise FlagError("pass either --hf_directory or --albert_directory")
    if values.dtype != "float32" and values.hf_directory:
        raise FlagError("--dtype needs --albert_directory: checkpoints are float32")
    files.refuse_existing(values.output_dir, "output_dir")
    which = "hf_directory" if values.hf_directory else "albert_directory"
    source = pretrained.open_path(getattr(values, which), which)
    tokenizer = source.tokenizer(*flags.vocabulary_given(values))
    if tokenizer is None:
        flags.log.warning("no tokenizer in %s: none written", source.directory)
    engines.start(engines.choose())
    typed = flags.as_typed(values, which)
    forms.write_directory(
        source, values.output_dir, tokenizer, is_archive=bool(values.hf_directory), dtype=values.dtype,
        label_names=flags.parse_labels(values.label_list) if values.label_list else None,
        origin=os.path.basename(os.path.abspath(typed)) if os.path.exists(typed) else typed,
    )


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
