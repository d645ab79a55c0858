"""Writes a clean TF1-style checkpoint: the model's variables, without the optimizer's.

  python -m albert.export_checkpoints --albert_directory=out --export_path=clean/model.ckpt-best

Names and shapes are exactly those of the original toolkit, with `global_step` 0.
Values are copied bit for bit. A fine-tuned model keeps its head; variables of
neither the encoder nor a head are left out. The model's metadata, such as its
label names, are in `<export_path>.json`.
"""

import os

from albert import engines
from albert.cli import flags
from albert.errors import DataError, FlagError
from albert.export import forms
from albert.formats import checkpoints, pretrained
from albert.formats.metadata import read_run_state
from albert.storage import files


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags, and one for a configuration in another directory."""
    flags.define("path", values, "albert_directory", None,
                 "Directory with albert_config.json and the checkpoint, or one in Hugging Face's "
                 "layout. Required.", use="model")
    flags.define("string", values, "checkpoint_name", "model.ckpt-best", "Checkpoint to export.")
    flags.define("bool", values, "do_lower_case", True, "No effect.")
    flags.define("path", values, "export_path", None,
                 "Prefix of the checkpoint to write. Required.", use="prefix")
    flags.define("path", values, "albert_config_file", None,
                 "Architecture, if not albert_directory/albert_config.json.", use="file")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "albert_directory", "export_path")
    source = values.albert_directory
    if not os.path.isdir(source):
        raise FlagError(f"--albert_directory: no such directory: {source}")
    for path in (values.export_path, values.export_path + checkpoints.INDEX):
        files.refuse_existing(path, "export_path")
    try:
        read_run_state(values.export_path)
    except DataError as error:
        raise FlagError(f"--export_path: {values.export_path}.json is a file of another kind; name "
                        "another") from error
    opened = pretrained.open_named(source, values.checkpoint_name, values.albert_config_file)
    engines.start(engines.choose())
    forms.write_checkpoint(opened, values.export_path)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
