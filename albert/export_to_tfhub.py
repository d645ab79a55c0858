"""Exports a pretrained ALBERT as reusable TensorFlow 2 SavedModels (TF-Hub modules).

  python -m albert.export_to_tfhub --albert_directory=out \\
      --spm_model_file=spm.model --export_path=module

`hub.load(path)` returns an object that is called with `input_word_ids`,
`input_mask` and `input_type_ids` [B, L] and returns `pooled_output`,
`sequence_output`, `encoder_outputs` and `default`; it can be trained with
`training=True`. Its parts `mlm` (called with `masked_lm_positions` too) and
`sop` add `mlm_logits` and `sop_logits`. It also has the original's signatures
`tokens`, `sop`, `mlm` and `tokenization_info`.

With tensorflow-text, --export_preprocessor_path writes a module from texts to
these inputs (`tokenize`, `bert_pack_inputs`). Each module has a model card, README.md.
"""

import contextlib
import logging
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

PATHS = ("export_path", "export_preprocessor_path")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags, and new ones for other layouts and modules that take texts."""
    flags.define("path", values, "albert_directory", None,
                 "Directory with albert_config.json, checkpoint and vocabulary, or one in Hugging "
                 "Face's layout, or a module. Required.", use="model")
    flags.define("string", values, "checkpoint_name", "model.ckpt-best", "Checkpoint to export.")
    flags.define_vocabulary_flags(values)
    flags.define("bool", values, "use_einsum", True, "No effect in TensorFlow 2.")
    flags.define("path", values, "export_path", None,
                 "Directory for the encoder. One of the two paths is required.", use="output")
    flags.define("path", values, "export_preprocessor_path", None,
                 "Directory for the encoder's preprocessing (needs tensorflow-text).", use="output")
    flags.define("integer", values, "max_seq_length", None,
                 "Default length of packed texts in tokens, for the preprocessing. Default: 128, or the "
                 "model's maximum if shorter.",
                 lower_bound=3)
    flags.define("path", values, "albert_config_file", None,
                 "Architecture, if not albert_directory/albert_config.json.", use="file")


def _check(values: flags.FlagValues) -> dict[str, str]:
    """Returns {flag: directory to write}."""
    flags.require(values, "albert_directory")
    paths = {name: getattr(values, name) for name in PATHS if getattr(values, name)}
    if not paths:
        raise FlagError(f"one of --{', --'.join(PATHS)} is required (see --help)")
    if not os.path.isdir(values.albert_directory):
        raise FlagError(f"--albert_directory: no such directory: {values.albert_directory}")
    for name, path in paths.items():
        files.refuse_existing(path, name)
    if len({os.path.abspath(path) for path in paths.values()}) < len(paths):
        raise FlagError(f"--{' and --'.join(paths)} must be different directories")
    return paths


def main(values: flags.FlagValues) -> None:
    paths = _check(values)
    source = pretrained.open_named(
        values.albert_directory, values.checkpoint_name, values.albert_config_file
    )
    config = source.config
    config.check_length(values.max_seq_length, values.albert_directory)
    # The default of TF-Hub's preprocessing modules.
    seq_length = values.max_seq_length or min(128, config.max_position_embeddings)
    tokenizer = source.required_tokenizer(*flags.vocabulary_given(values))
    flags.start_tensorflow()
    from albert.export import hub_export, text_graph
    from albert.formats import saved_model

    text_graph.refuse_added_tokens(tokenizer)
    if set(paths) != {"export_path"}:
        text_graph.import_tensorflow_text()
    model = hub_export.load_model(source)
    with contextlib.ExitStack() as stack:
        # The SavedModel keeps the assets under these names.
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        scratch = {
            name: stack.enter_context(model_card.publish_model(path, saved_model.MAIN_FILE))
            for name, path in paths.items()
        }
        assets = _collect_assets(folder, config, tokenizer)
        if "export_path" in scratch:
            hub_export.export_module(
                model, assets, scratch["export_path"], do_lower_case=tokenizer.do_lower_case
            )
        if "export_preprocessor_path" in scratch:
            hub_export.export_preprocessor(
                tokenizer, config, assets, scratch["export_preprocessor_path"], seq_length
            )
        names = {name: os.path.basename(os.path.abspath(path)) for name, path in paths.items()}
        for name, directory in scratch.items():
            has_weights = name != "export_preprocessor_path"
            model_card.of_weights(
                directory, source.weights(), config, name=names[name], note=_SUMMARIES[name],
                metadata=source.metadata, tokenizer=tokenizer, parameters=model.count_params() if has_weights else None,
                usage=model_card.filled(f"{name}.txt", name=names[name]),
            )
    for name, path in paths.items():
        log.info("%s: %s (load it with tensorflow_hub.load)", _SUMMARIES[name], path)


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


_SUMMARIES = {
    "export_path": "A reusable TensorFlow 2 SavedModel: packed ids to vectors.",
    "export_preprocessor_path": "A TensorFlow 2 SavedModel: texts to the inputs of the encoder.",
}


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
