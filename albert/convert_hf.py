"""Converts an ALBERT from and to Hugging Face's layout, weights bit for bit.

  python -m albert.convert_hf --hf_directory=albert-base-v2 --output_dir=albert_base
  python -m albert.convert_hf --albert_directory=albert_base --output_dir=albert-base-v2

The first reads config.json, model.safetensors and spiece.model, and writes
albert_config.json, model.ckpt-best and 30k-clean.model, as a released archive
has them. The second does the reverse, with tokenizer files for `AutoTokenizer`.
"""


from albert.cli import flags
from albert.errors import FlagError
from albert.storage import files

DTYPES = "float32", "float16"


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "hf_directory", None,
                 "Convert from: directory with config.json and model.safetensors.", use="model")
    flags.define("path", values, "hf_config_file", None,
                 "Their config.json, if it lies elsewhere.", use="file")
    flags.define("path", values, "hf_weights_file", None,
                 "Their weights, if they lie elsewhere; .safetensors, or .npz with their names.",
                 use="model")
    flags.define("path", values, "albert_directory", None,
                 "Convert to theirs: directory with albert_config.json and the checkpoint.",
                 use="model")
    flags.define("path", values, "albert_config_file", None,
                 "Our architecture, if not albert_directory/albert_config.json.", use="file")
    flags.define("path", values, "checkpoint", None,
                 "Our checkpoint, if not the best or newest of albert_directory.", use="model")
    flags.define("path", values, "spm_model_file", None,
                 "SentencePiece model, if not the one *.model of the directory.", use="file")
    flags.define("path", values, "vocab_file", None,
                 "WordPiece vocabulary, if not the one *vocab*.txt of the directory.", use="file")
    flags.define("bool", values, "do_lower_case", True,
                 "Whether the model is of lower-cased text; by default what its directory says, "
                 "else yes.")
    flags.define("path", values, "output_dir", None,
                 "Directory to write; must not exist. Required.", use="output")
    flags.define("string", values, "architecture", None,
                 "Class at Hugging Face, as AlbertForMultipleChoice; by default what the weights "
                 "and config say.")
    flags.define("enum", values, "gelu", "auto",
                 "What hidden_act \"gelu\" of their config means: the exact function (erf), as "
                 "their library computes it, or the tanh form of the released models. auto: tanh "
                 "for the released sizes without a fine-tuned head, else erf.",
                 enum_values=["auto", "tanh", "erf"])
    flags.define("enum", values, "dtype", "float32",
                 "Precision of the weights that are written in their layout. float16 halves the "
                 "file.", enum_values=list(DTYPES))
    flags.define("string", values, "label_list", None,
                 "Comma-separated names of a classifier's labels; by default those of the "
                 "directory.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    theirs = values.hf_directory or values.hf_weights_file
    if bool(theirs) == bool(values.albert_directory or values.checkpoint):
        raise FlagError("give either --hf_directory or --albert_directory")
    if values.dtype != "float32" and theirs:
        raise FlagError("--dtype goes with --albert_directory: our checkpoints are of float32")
    files.refuse_existing(values.output_dir, "output_dir")
    flags.start_engine()
    from albert.export import hf_conversion

    given = flags.select(values, hf_conversion.Conversion)
    given["do_lower_case"] = flags.given(values, "do_lower_case")
    hf_conversion.Conversion(**given).run()


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
