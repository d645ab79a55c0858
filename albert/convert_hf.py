"""Converts an ALBERT from and to Hugging Face's layout, weights bit for bit.

  python scripts/convert_hf.py --hf_directory=albert-base-v2 --output_dir=albert_base
  python scripts/convert_hf.py --albert_directory=albert_base --output_dir=albert-base-v2

The first reads config.json, model.safetensors and spiece.model, and writes
albert_config.json, model.ckpt-best and 30k-clean.model, as a released archive
has them. The second does the reverse, with tokenizer files for `AutoTokenizer`.
"""

import dataclasses
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

from albert.cli import flags
from albert.data import files
from albert.errors import CheckpointError, FlagError, some  # noqa: E402
from albert.formats import model_card, model_facts, tokenizer_files  # noqa: E402

# Where a name of a weight tells the head; `output_weights` is of several.
_BY_WEIGHT = {
    "cls/seq_relationship/output_weights": "AlbertForPreTraining",
    "cls/predictions/output_bias": "AlbertForMaskedLM",
    "cls/squad/output_weights": "AlbertForQuestionAnswering",
}


def define_flags(values: flags.FlagValues) -> None:
    flags.define("string", values, "hf_directory", None,
                 "Convert from: directory with config.json and model.safetensors.")
    flags.define("string", values, "hf_config_file", None,
                 "Their config.json, if it lies elsewhere.")
    flags.define("string", values, "hf_weights_file", None,
                 "Their weights, if they lie elsewhere; .safetensors, or .npz with their names.")
    flags.define("string", values, "albert_directory", None,
                 "Convert to theirs: directory with albert_config.json and the checkpoint.")
    flags.define("string", values, "albert_config_file", None,
                 "Our architecture, if not albert_directory/albert_config.json.")
    flags.define("string", values, "checkpoint", None,
                 "Our checkpoint, if not the best or newest of albert_directory.")
    flags.define("string", values, "spm_model_file", None,
                 "SentencePiece model, if not the one *.model of the directory.")
    flags.define("string", values, "vocab_file", None,
                 "WordPiece vocabulary, if not the one *vocab*.txt of the directory.")
    flags.define("bool", values, "do_lower_case", True,
                 "Whether the model is of lower-cased text; by default what its directory says, "
                 "else yes.")
    flags.define("string", values, "output_dir", None,
                 "Directory to write; must not exist. Required.")
    flags.define("string", values, "architecture", None,
                 "Class at Hugging Face, as AlbertForMultipleChoice; by default what the weights "
                 "and config say.")
    flags.define("enum", values, "gelu", "auto",
                 "What hidden_act \"gelu\" of their config means: the exact function (erf), as "
                 "their library computes it, or the tanh form of the released models. auto: tanh "
                 "for the released sizes without a fine-tuned head, else erf.",
                 enum_values=["auto", "tanh", "erf"])
    flags.define("string", values, "label_list", None,
                 "Comma-separated names of a classifier's labels; by default those that the "
                 "directory tells.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    theirs = values.hf_directory or values.hf_weights_file
    if bool(theirs) == bool(values.albert_directory or values.checkpoint):
        raise FlagError("give either --hf_directory or --albert_directory")
    if os.path.exists(values.output_dir):
        raise FlagError(f"--output_dir: {values.output_dir} exists; remove it or name another")
    flags.import_tensorflow()
    if theirs:
        _from_theirs(values)
    else:
        _to_theirs(values)


def _from_theirs(values: flags.FlagValues) -> None:
    from albert.formats import checkpoints, pretrained

    source = _open_theirs(values)
    weights = source.weights()
    architecture = _architecture(values, source.facts.architecture, weights)
    model = _build(architecture, source.config, weights)
    tensors, account = _tensors(model, weights)
    vocabulary = _vocabulary(values, source.vocabulary)
    tokenizer = vocabulary.open() if vocabulary else None
    facts = source.facts
    facts = dataclasses.replace(
        facts, architecture=architecture, label_names=_labels(values, facts, model)
    )
    with model_card.publish_model(values.output_dir, checkpoints.BEST + ".index") as scratch:
        pretrained.write(scratch, source.config, tensors, facts, tokenizer, "30k-clean.model")
        if not tokenizer:
            flags.log.warning("no tokenizer in %s: copy its spiece.model by hand", source.directory)
        _write_card(values, scratch, facts, source.config, tensors, source.directory,
                    tokenizer=tokenizer)
    flags.log.info("%s", checkpoints.describe_start(account))
    flags.log.info("%s: %s", architecture, values.output_dir)


def _open_theirs(values: flags.FlagValues):
    from albert.formats import huggingface, pretrained

    if not (values.hf_weights_file or values.hf_config_file):
        if not huggingface.is_directory(values.hf_directory):
            files.require_file(os.path.join(values.hf_directory, "config.json"), "hf_directory")
            huggingface.find_weights(values.hf_directory)
        return pretrained.open_directory(values.hf_directory, "hf_directory", values.gelu)
    directory = values.hf_directory or os.path.dirname(values.hf_weights_file) or "."
    origin = values.hf_config_file or os.path.join(directory, "config.json")
    theirs = files.read_json(files.require_file(origin, "hf_config_file"))
    config = huggingface.config_from_theirs(theirs, origin, values.gelu)
    weights = values.hf_weights_file or huggingface.find_weights(directory)
    if weights.endswith((".bin", ".pt", ".pth", ".pkl")):
        raise CheckpointError(
            f"--hf_weights_file: {weights} is a pickle, which can run any code when it is opened: "
            "it is not read; where you trust it, convert it with transformers' save_pretrained"
        )
    files.require_file(weights, "hf_weights_file")
    return pretrained.Pretrained(
        directory, config, tokenizer_files.find(directory),
        huggingface.facts_from_theirs(theirs, origin),
        lambda: pretrained.open_tensors(weights, config),
    )


def _to_theirs(values: flags.FlagValues) -> None:
    from albert import tokenization
    from albert.config import AlbertConfig
    from albert.formats import checkpoints, hf_tokenizer, huggingface, sidecars

    directory = values.albert_directory or os.path.dirname(values.checkpoint)
    origin = values.albert_config_file or os.path.join(directory, "albert_config.json")
    config = AlbertConfig.from_json_file(files.require_file(origin, "albert_config_file"))
    weights = checkpoints.open_weights(values.checkpoint or directory, "checkpoint")
    sidecar = sidecars.read_sidecar(weights.origin)
    checkpoints.check_architecture(sidecar, config, weights.origin)
    facts = sidecars.facts_of(sidecar)
    known = facts.architecture in huggingface.ARCHITECTURES
    architecture = _architecture(values, facts.architecture if known else None, weights)
    model = _build(architecture, config, weights)
    tensors, account = _tensors(model, weights)
    converted = huggingface.tensors_to_theirs(config, tensors, architecture)
    vocabulary = _vocabulary(values, tokenizer_files.find(directory, facts.text))
    ids = {"pad": 0, "cls": 2, "sep": 3}
    tokenizer = None
    if vocabulary:
        tokenizer = vocabulary.open()
        tokenization.check_vocabulary(tokenizer, config)
        ids = {"pad": tokenizer.pad_id, "cls": tokenizer.cls_id, "sep": tokenizer.sep_id}
    facts = dataclasses.replace(
        facts, architecture=architecture, label_names=_labels(values, facts, model)
    )
    num_labels = model.num_labels if architecture in model_facts.LABELLED else None
    with model_card.publish_model(values.output_dir, huggingface.WEIGHTS_FILE) as scratch:
        files.write_json(
            os.path.join(scratch, huggingface.CONFIG_FILE),
            huggingface.config_to_theirs(config, facts, ids, num_labels),
        )
        huggingface.serialize(converted, os.path.join(scratch, huggingface.WEIGHTS_FILE))
        if tokenizer:
            most = config.max_position_embeddings
            hf_tokenizer.write(tokenizer, scratch, min(vocabulary.max_length or most, most))
        else:
            flags.log.warning("no tokenizer found in %s: none written", directory)
        _write_card(values, scratch, facts, config, tensors, directory, sidecar, tokenizer)
    flags.log.info("%s", checkpoints.describe_start(account))
    flags.log.info("%s: %s", architecture, values.output_dir)


_THEIR_USAGE = """
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = {architecture}.from_pretrained("{name}")
{inputs}
outputs = model(**inputs)
"""


def _write_card(
    values, directory, facts, config, tensors, source, sidecar=None, tokenizer=None,
) -> None:
    """Writes README.md; with a sidecar, of a model that goes to Hugging Face's layout."""
    name = os.path.basename(os.path.abspath(values.output_dir))
    architecture, has_usage = facts.architecture, tokenizer is not None or sidecar is not None
    parts = model_card.of_class(architecture, name, has_usage)
    parts["summary"] += f" Converted from `{os.path.basename(os.path.abspath(source))}`, bit for bit."
    if sidecar is not None:
        inputs = model_card.input_lines(architecture, ', return_tensors="pt", padding=True')
        parts["usage"] = _THEIR_USAGE.format(architecture=architecture, name=name, inputs=inputs)
    model_card.write(
        directory, config=config, tokenizer=tokenizer, label_names=facts.label_names,
        sidecar=sidecar,
        parameters=sum(value.size for value in tensors.values()), **parts,
    )


def _vocabulary(values: flags.FlagValues, found: tokenizer_files.Vocabulary):
    """Returns the vocabulary that was found, or given instead."""
    for flag in ("spm_model_file", "vocab_file"):
        if path := getattr(values, flag):
            files.require_file(path, flag)
    lower = flags.given(values, "do_lower_case")
    return found.override(values.spm_model_file, values.vocab_file, lower)


def _architecture(values: flags.FlagValues, said: str | None, weights) -> str:
    """Returns the class's name: the flag, else what the source says, else what the weights tell."""
    from albert.formats import huggingface

    known = [name for weight, name in _BY_WEIGHT.items() if weight in weights.shapes]
    if "output_weights" in weights.shapes:
        known.append("AlbertForSequenceClassification")
    found = values.architecture or said or (known[0] if known else "AlbertModel")
    if found not in huggingface.ARCHITECTURES:
        raise FlagError(
            f"architecture {found} is not one of {', '.join(huggingface.ARCHITECTURES)}"
        )
    return found


def _build(architecture: str, config, weights):
    """Returns our model of the architecture, its head as wide as the checkpoint's."""
    import keras

    from albert import modeling

    keras.utils.set_random_seed(0)  # what is not in the checkpoint is the same every time
    sizes = {}
    if architecture in ("AlbertForSequenceClassification", "AlbertForTokenClassification"):
        shape = weights.shapes.get("output_weights")
        if shape is None:
            raise CheckpointError(f"{weights.origin} has no classifier (output_weights)")
        sizes["num_labels"] = shape[0]
    return getattr(modeling, architecture)(config, **sizes)


def _tensors(model, weights):
    """Returns (every weight of the model by name, account); only the pooler may be new."""
    from albert import modeling
    from albert.formats import pretrained

    account = pretrained.assign(model, weights)
    absent = [name for name in account["new"] if not name.startswith("bert/pooler/")]
    if absent:
        raise CheckpointError(
            f"{weights.origin} has no {some(absent)}: another --architecture?"
        )
    return {n: w.numpy() for n, w in modeling.named_weights(model).items()}, account


def _labels(values: flags.FlagValues, facts, model) -> tuple[str, ...] | None:
    """Returns the names of a classifier's labels that are given, or known."""
    count = getattr(model, "num_labels", None)
    if count is None or hasattr(model, "num_choices"):
        return None
    labels = tuple(values.label_list.split(",")) if values.label_list else facts.label_names
    if labels and len(labels) != count:
        flag = "--label_list has" if values.label_list else "the directory tells"
        raise FlagError(f"{flag} {len(labels)} labels, the classifier {count}")
    return labels


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
