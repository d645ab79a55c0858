"""Converts a model from or to Hugging Face's layout, bit for bit; from there also a BERT.

  python -m albert.convert_hf --hf_directory=albert-base-v2 --output_dir=albert_base
  python -m albert.convert_hf --albert_directory=albert_base --output_dir=albert-base-v2

The first command reads config.json, model.safetensors and spiece.model, and writes
albert_config.json, model.ckpt-best and the vocabulary, as in a released archive.
The second does the reverse, and adds tokenizer files for `AutoTokenizer`.
"""

import os
from typing import TYPE_CHECKING

from albert.cli import flags
from albert.errors import FlagError, some
from albert.formats import (
    checkpoint_files,
    checkpoints,
    huggingface,
    model_card,
    model_metadata,
    pretrained,
    run_states,
)
from albert.formats.known_tasks import split_labels
from albert.formats.model_classes import CHOICE, ENCODER, MODEL_CLASSES
from albert.storage import files

if TYPE_CHECKING:
    import keras

def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "hf_directory", None,
                 "Directory in Hugging Face's layout, to convert from it.", use="model")
    flags.define("path", values, "albert_directory", None,
                 "Model in any other layout, or a checkpoint's prefix, to convert to theirs.",
                 use="model")
    flags.define_vocabulary_flags(values)
    flags.define("path", values, "output_dir", None,
                 "Directory to write; must not exist. Required.", use="output")
    flags.define("enum", values, "dtype", "float32",
                 "Precision of the weights in their layout; float16 halves the file.",
                 enum_values=["float32", "float16"])
    flags.define("string", values, "label_list", None,
                 "Comma-separated label names of a classifier. Default: those of the directory.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    if bool(values.hf_directory) == bool(values.albert_directory):
        raise FlagError("give either --hf_directory or --albert_directory")
    if values.dtype != "float32" and values.hf_directory:
        raise FlagError("--dtype needs --albert_directory: checkpoints are float32")
    files.refuse_existing(values.output_dir, "output_dir")
    which = "hf_directory" if values.hf_directory else "albert_directory"
    source = pretrained.open_path(getattr(values, which), which)
    tokenizer = source.tokenizer(*flags.vocabulary_given(values))
    flags.start_engine()
    model = _load(values, source)
    if tokenizer is None:
        flags.log.warning("no tokenizer in %s: none written", source.directory)
    main_file = huggingface.WEIGHTS_FILE
    if values.hf_directory:
        main_file = checkpoints.BEST + checkpoint_files.INDEX
    with model_card.publish_model(values.output_dir, main_file) as scratch:
        if values.hf_directory:
            pretrained.write_archive(scratch, model, tokenizer)
        else:
            pretrained.write(
                scratch, model, tokenizer, source.vocabulary.max_length, values.dtype,
                keeps_pooler=False,
            )
        model_card.write(
            scratch, model.config, model_metadata.of_model(model), tokenizer=tokenizer,
            parameters=model.count_params(), **_card(values, source, model),
        )
    flags.log.info("%s: %s", model.metadata.architecture, values.output_dir)


def _load(values: flags.FlagValues, source: pretrained.Pretrained) -> "keras.Model":
    """Returns the model of the class that the source names, or its weights."""
    import keras

    from albert import modeling

    architecture = pretrained.class_of(source)
    if architecture not in MODEL_CLASSES or not MODEL_CLASSES[architecture].is_at_hugging_face:
        # Their question-answering class scores last tokens regardless of the first, so no weights
        # make it compute the same.
        heads = {name.split("/")[0] for name in source.weights().shapes} - {"bert", "global_step"}
        flags.log.warning("Hugging Face has no %s: writing the encoder alone, without %s",
                          architecture, some(sorted(heads)))
        architecture = ENCODER.name
    keras.utils.set_random_seed(0)  # for a reproducible pooler if the checkpoint has none
    # Only for the bare encoder may the pooler be absent.
    is_complete = architecture != ENCODER.name
    model = pretrained.load(getattr(modeling, architecture), source, complete=is_complete)
    if values.label_list:
        try:
            model.label_names = split_labels(values.label_list)
        except (AttributeError, ValueError) as error:
            raise FlagError(f"--label_list={values.label_list}: {error}") from error
    return model


def _card(values: flags.FlagValues, source: pretrained.Pretrained, model: "keras.Model") -> dict:
    """Returns the parts of the card that a conversion determines."""
    name = os.path.basename(os.path.abspath(values.output_dir))
    typed = flags.as_typed(values, "hf_directory" if values.hf_directory else "albert_directory")
    origin = os.path.basename(os.path.abspath(typed)) if os.path.exists(typed) else typed
    precision = "bit for bit" if values.dtype == "float32" else f"in {values.dtype}"
    parts = {"name": name, "note": f"Converted from `{origin}`, {precision}."}
    if values.albert_directory:
        kind = MODEL_CLASSES[model.metadata.architecture]
        of_one = "{name: rows[None] for name, rows in inputs.items()}"  # one question
        parts["usage"] = model_card.filled(
            "transformers.txt", architecture=kind.name, name=name, texts=kind.example,
            inputs=of_one if kind.task == CHOICE else "inputs",
        )
        parts["run_state"] = run_states.read_run_state(source.weights().origin)
    return parts


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
