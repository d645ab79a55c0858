"""Trains a SentencePiece vocabulary with the special tokens of the released ALBERT models.

  python -m albert.train_sentencepiece --input=text/corpus.txt --model_prefix=spm --vocab_size=2000

Writes <model_prefix>.model and <model_prefix>.vocab: <pad> 0, <unk> 1, [CLS] 2, [SEP] 3,
[MASK] 4, then ( ) " - . – £ €, then the learned tokens. Text is preprocessed like the
model's input first. The same text, flags and seed give the same file.
"""

from albert.cli import corpus_flags, flags
from albert.runtime import workers
from albert.storage import files
from albert.text import corpus_files, vocabulary


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "input", None,
                 f"Text, one sentence per line: {corpus_flags.WHERE}. Required.", use="texts")
    corpus_flags.define_flags(values)
    flags.define("path", values, "model_prefix", None,
                 "Output path without .model and .vocab. Required.", use="output")
    flags.define("integer", values, "vocab_size", 30000,
                 f"Number of tokens, including {len(vocabulary.LAYOUT)} special ones.",
                 lower_bound=len(vocabulary.LAYOUT) + 1)
    flags.define("float", values, "character_coverage", 0.99995,
                 "Fraction of the text's characters that get a token; others become <unk>.",
                 lower_bound=0.98, upper_bound=1)
    flags.define("enum", values, "model_type", "unigram", "Segmentation algorithm.",
                 enum_values=["unigram", "bpe"])
    flags.define("bool", values, "do_lower_case", True, "Lower-case the text.")
    flags.define("bool", values, "hard_vocab_limit", True,
                 "Fail if the text is too short for --vocab_size; if false, write fewer tokens.")
    flags.define("bool", values, "keep_accents", False,
                 "Keep accents and other marks (é, ü, ガ, the virama); stored in the model file for "
                 "all later commands.")
    flags.define("string", values, "user_defined_symbols", "",
                 "Additional tokens that are never split (comma-separated), such as [E1],[/E1].")
    flags.define("integer", values, "input_sentence_size", 10_000_000,
                 "Maximum number of sentences to train on; 0: all.", lower_bound=0)
    flags.define("bool", values, "shuffle_input_sentence", True,
                 "Sample these sentences at random instead of taking the first.")
    flags.define("integer", values, "seed", 12345, "Seed of the sample.")
    # Flags of spm_train in the original's README, which can't have other values here.
    for name, number in (("pad_id", 0), ("unk_id", 1), ("bos_id", -1), ("eos_id", -1)):
        flags.define("integer", values, name, number, "As in every ALBERT vocabulary.",
                     lower_bound=number, upper_bound=number)
    flags.define("enum", values, "control_symbols", ",".join(vocabulary.CONTROL_SYMBOLS),
                 "As in every ALBERT vocabulary.", enum_values=[",".join(vocabulary.CONTROL_SYMBOLS)])
    flags.define("bool", values, "logtostderr", True, "No effect: it always does.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "input", "model_prefix")
    paths = corpus_files.find(values.input, "input")
    for ending in (".model", ".vocab"):
        files.refuse_overwriting(values.model_prefix + ending, *paths)
    symbols = dict.fromkeys(filter(None, values.user_defined_symbols.split(",")))
    settings = vocabulary.Settings(**flags.select(values, vocabulary.Settings) | {
        # The original's command names symbols that are always in the vocabulary.
        "user_defined_symbols": tuple(s for s in symbols if s not in vocabulary.LAYOUT),
    })
    # In another process, since the library ends its own without a message if memory runs out.
    with workers.Workers(2, "pass a smaller --input_sentence_size") as pool:
        [model] = pool.map(corpus_flags.train_vocabulary, [(paths, settings, corpus_flags.form_of(values))])
    size = vocabulary.write(values.model_prefix, model)
    flags.log.info("wrote %s.model and .vocab: %s tokens", values.model_prefix, f"{size:,}")


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
