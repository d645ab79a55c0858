"""Writes a clean TF1-style checkpoint: the model's variables, without the optimizer's.

  python -m albert.export_checkpoints --albert_directory=out --export_path=clean/model.ckpt-best

Names and shapes are exactly those of the original toolkit, with `global_step` 0.
Values are copied bit for bit. A fine-tuned model keeps its head; variables of
neither the encoder nor a head are left out. The model's metadata, such as its
label names, are in `<export_path>.json`.
"""

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError, FlagError, some
from albert.formats import checkpoint_files, checkpoints, model_card, pretrained, run_states
from albert.formats.pretrained import Pretrained
from albert.storage import files

log = logging.getLogger("albert")

# Every head of the original, and the encoder.
_OF_A_MODEL = re.compile(
    r"^(bert|cls|start_logits|end_logits|answer_class)/|^output_(weights|bias)$"
)


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
    directory = os.path.dirname(os.path.abspath(values.export_path))
    for path in (values.export_path, values.export_path + checkpoint_files.INDEX):
        files.refuse_existing(path, "export_path")
    _check_record(values.export_path)
    opened = pretrained.open_named(source, values.checkpoint_name, values.albert_config_file)
    flags.start_engine()
    weights = opened.weights()
    tensors = model_tensors(opened.config, weights)
    files.make_dirs(directory)
    checkpoint_files.write(
        values.export_path, tensors | {"global_step": np.int64(0)},
        before=lambda: _write_metadata(values.export_path, opened, tensors),
    )
    left_out = sorted(set(weights.shapes) - set(tensors))
    log.info("wrote %s: %d variables; left out: %s", values.export_path, len(tensors),
             some(left_out) or "nothing")


def _check_record(prefix: str) -> None:
    """Refuses a prefix whose `<prefix>.json` is a file of another kind."""
    try:
        run_states.read_run_state(prefix)
    except DataError as error:
        raise FlagError(
            f"--export_path: {prefix}.json is a file of another kind; name another"
        ) from error


def _write_metadata(prefix: str, source: Pretrained, tensors: Mapping[str, Any]) -> None:
    """Writes the model's metadata and its card next to the checkpoint."""
    directory = os.path.dirname(os.path.abspath(prefix))
    if source.metadata.architecture:
        record = run_states.of_metadata(source.metadata, source.config)
        files.write_sealed_json(prefix + ".json", record)
    if os.path.realpath(directory) == os.path.realpath(source.directory):
        return  # which has a card already
    model_card.of_weights(
        directory, source.weights(), source.config, metadata=source.metadata,
        usage='import albert\n\nmodel = albert.from_pretrained("FOLDER")  # with its albert_config.json',
        note="Variables under the original toolkit's names, without those of the optimizer.",
        parameters=sum(value.size for value in tensors.values()),
    )


def model_tensors(config: AlbertConfig, weights) -> dict:
    """Returns the variables of encoder and heads; the encoder must be complete and match the config."""
    from albert import modeling

    encoder = modeling.parameter_shapes(modeling.AlbertModel(config))
    checkpoints.warm_start(encoder, weights)
    names = [n for n in weights.shapes if _OF_A_MODEL.match(n) and not checkpoints.is_slot(n)]
    unknown = [n for n in names if n.startswith("bert/") and n not in encoder]
    if unknown:
        raise CheckpointError(f"{weights.origin} has encoder variables that the config does not "
                              f"imply: {some(unknown)}")
    return {name: weights.read(name) for name in sorted(names)}


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
