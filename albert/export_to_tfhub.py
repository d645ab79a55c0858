"""Exports a pretrained ALBERT as reusable TensorFlow 2 SavedModels (TF-Hub modules).

  python -m albert.export_to_tfhub --albert_directory=out \\
      --spm_model_file=spm.model --export_path=module

`hub.load(path)` returns an object that is called with `input_word_ids`,
`input_mask` and `input_type_ids` [B, L] and returns `pooled_output`,
`sequence_output`, `encoder_outputs` and `default`; it can be trained with
`training=True`. Its parts `mlm` (called with `masked_lm_positions` too) and
`sop` add `mlm_logits` and `sop_logits`, if the model has these heads. It also has the
original's signatures `tokens`, `sop`, `mlm` and `tokenization_info`.

The module has a model card, README.md.
"""

import logging
import math
import os
import shutil
import tempfile

from albert import tokenization
from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import FlagError
from albert.formats import hub, model_card, pretrained, tokenizer_files
from albert.storage import files

log = logging.getLogger("albert")


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
    path = values.export_path
    files.refuse_existing(path, "export_path")
    source = pretrained.open_named(
        values.albert_directory, values.checkpoint_name, values.albert_config_file
    )
    tokenizer = source.required_tokenizer(*flags.vocabulary_given(values))
    if tokenizer.added.ids:
        raise FlagError(f"the added tokens {', '.join(tokenizer.added.ids):.60} can't be written into a "
                        "TF-Hub module: export an .onnx file")
    flags.start_tensorflow()
    from albert.export import hub_export
    from albert.formats import saved_model

    model, weights = hub_export.load_model(source)
    name = os.path.basename(os.path.abspath(path))
    with (
        tempfile.TemporaryDirectory() as folder,  # the SavedModel keeps the assets' names
        model_card.publish_model(path, saved_model.MAIN_FILE) as scratch,
    ):
        assets = _collect_assets(folder, source.config, tokenizer)
        hub_export.export_module(
            model, weights, assets, scratch, do_lower_case=tokenizer.do_lower_case
        )
        model_card.of_weights(
            scratch, source.weights(), source.config, name=name, metadata=source.metadata,
            tokenizer=tokenizer, parameters=sum(math.prod(one.shape) for one in weights.values()),
            note="A reusable TensorFlow 2 SavedModel: packed ids to vectors.",
            usage=model_card.filled("export_path.txt", name=name),
        )
    log.info("%s (load it with tensorflow_hub.load)", path)


def _collect_assets(
    folder: str, config: AlbertConfig, tokenizer: tokenization.FullTokenizer
) -> list[str]:
    """Writes or copies the module's assets into `folder` and returns their paths."""
    paths = [os.path.join(folder, hub.CONFIG_ASSET), os.path.join(folder, hub.TOKENIZATION_ASSET)]
    with files.atomic_write(paths[0]) as stream:
        stream.write(config.to_json_string())
    files.write_json(paths[1], tokenizer_files.settings_of(tokenizer, None))
    vocabularies = [tokenizer.path]
    # The list of tokens, for people to read; the SentencePiece model contains it too.
    listing = os.path.splitext(tokenizer.path)[0] + ".vocab"
    if tokenizer.is_spm and os.path.isfile(listing):
        vocabularies.insert(0, listing)
    return paths + [shutil.copy(vocabulary, folder) for vocabulary in vocabularies]


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
