"""Exports a pretrained ALBERT as a reusable TensorFlow 2 SavedModel (a TF-Hub module).

  python -m albert.export_to_tfhub --albert_directory=out \\
      --spm_model_file=spm.model --export_path=module

`hub.load(path)` gives an object that is called with `input_word_ids`,
`input_mask` and `input_type_ids` [B, L] and returns `pooled_output`,
`sequence_output`, `encoder_outputs` and `default`; it trains with
`training=True`. The original's signatures `tokens`, `sop`, `mlm` and
`tokenization_info` are there too.
"""

import logging
import os
import shutil
import tempfile

from albert import files, flags, tokenization
from albert.config import AlbertConfig
from albert.errors import FlagError

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    """The original's flags, and ours for files that lie elsewhere."""
    flags.define("string", values, "albert_directory", None,
                 "Directory with albert_config.json, the checkpoint and the vocabulary. Required.")
    flags.define("string", values, "checkpoint_name", "model.ckpt-best", "Checkpoint to export.")
    flags.define("bool", values, "do_lower_case", True, "Whether the model is of lower-cased text.")
    flags.define("bool", values, "use_einsum", True, "Accepted, and of no effect in TensorFlow 2.")
    flags.define("string", values, "export_path", None, "Directory to write. Required.")
    flags.define("string", values, "albert_config_file", None,
                 "Architecture, if not albert_directory/albert_config.json.")
    flags.define("string", values, "spm_model_file", None,
                 "SentencePiece model, if not the one *.model in albert_directory.")
    flags.define("string", values, "vocab_file", None,
                 "Vocabulary; needed for WordPiece models only.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "albert_directory", "export_path")
    source = values.albert_directory
    if not os.path.isdir(source):
        raise FlagError(f"--albert_directory: no such directory: {source}")
    if os.path.exists(values.export_path):
        raise FlagError(f"--export_path: {values.export_path} exists; remove it or name another")
    config_file = values.albert_config_file or os.path.join(source, "albert_config.json")
    config = AlbertConfig.from_json_file(files.require_file(config_file, "albert_config_file"))
    spm = values.spm_model_file
    if not spm and not values.vocab_file:
        found = sorted(n for n in os.listdir(source) if n.endswith(".model"))
        if len(found) != 1:
            raise FlagError(f"--spm_model_file is needed: {source} has {len(found)} *.model files")
        spm = os.path.join(source, found[0])
    tokenizer = tokenization.FullTokenizer(values.vocab_file, values.do_lower_case, spm)
    tokenization.check_vocabulary(tokenizer, config)

    flags.import_tensorflow()
    from albert import checkpoints
    from albert.hub_export import export_module

    weights = checkpoints.open_weights(
        os.path.join(source, values.checkpoint_name), "checkpoint_name"
    )
    # The SavedModel keeps the assets under the names that they have here.
    with files.atomic_dir(values.export_path) as scratch, tempfile.TemporaryDirectory() as folder:
        assets = _collect_assets(folder, config, spm, values)
        export_module(config, weights, assets, scratch, do_lower_case=values.do_lower_case)
    log.info("module: %s (load it with tensorflow_hub.load)", values.export_path)


def _collect_assets(folder: str, config: AlbertConfig, spm: str | None, values) -> list[str]:
    """Writes or copies the module's assets into `folder` and returns their paths."""
    from albert import hub

    paths = [os.path.join(folder, hub.CONFIG_ASSET), os.path.join(folder, hub.TOKENIZATION_ASSET)]
    with files.atomic_write(paths[0]) as stream:
        stream.write(config.to_json_string())
    files.write_json(paths[1], {"do_lower_case": values.do_lower_case})
    for source in (spm, values.vocab_file):
        if source:
            paths.append(shutil.copy(source, folder))
    return paths


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
