"""Turns text into TFRecord files for run_pretraining.

Input: text with one sentence per line and a blank line between documents, or in other layouts; see
--document_layout and --split_sentences. Output: shuffled records of masked sentence pairs, and a
manifest next to each file with its counts and settings.

  python -m albert.create_pretraining_data --input_file=corpus.txt \\
      --output_file=train.tfrecord --spm_model_file=30k-clean.model \\
      --max_seq_length=128 --dupe_factor=10

The same flags and text give the same bytes, whatever --num_processes is. The corpus is streamed in
blocks of a few megabytes, whose records are shuffled and which readers mix; a "random document" comes
from the same block. However a run ends (Ctrl-C, a kill, a full disk), rerun the command and it resumes
from its work folder, `.<output>.work`, which is removed on success.

With --runner, an Apache Beam pipeline makes the same records on many machines.
"""

import collections
import functools
import itertools
import os
from collections.abc import Sequence

from albert import tokenization
from albert.cli import corpus_flags, flags, run_flags
from albert.errors import DataError, FlagError
from albert.formats.tokenizer_files import Vocabulary
from albert.pretraining_data import pipeline
from albert.pretraining_data.job import Job, Recipe, load_tokenizer
from albert.pretraining_data.masking import MaskingSettings
from albert.pretraining_data.pairs import SENTENCE_OBJECTIVES, PairSettings
from albert.records import manifests
from albert.runtime import workers
from albert.storage import cloud, files
from albert.text import corpus_files
from albert.text.cleaning import LostMarks
from albert.text.documents import ReadingCounts, read_documents, size_of_text

_SMALL_WORK = 16 << 20  # bytes of text times passes; one process is fastest up to here


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags with its defaults, then new ones."""
    def define(kind: str, name: str, *args, **kwargs) -> None:
        flags.define(kind, values, name, *args, **kwargs)

    define("path", "input_file", None, f"Text: {corpus_flags.WHERE}. Required.", use="texts")
    corpus_flags.define_flags(values)
    define("path", "output_file", None, "Record files to write (comma-separated). Required.", use="outputs")
    flags.define_vocabulary_flags(values)
    define("enum", "input_file_mode", "r", "No effect: text is read as UTF-8.", enum_values=["r", "rb"])
    run_flags.define_masking_flags(values)
    define("bool", "do_permutation", False, "No effect: tokens are masked, never permuted.")
    define("bool", "static_masks", True,
           "Write masked records; if false, records hold each pair once, without masks, and "
           "run_pretraining --masked_lm_budget masks them, and swaps A and B, as it reads them.")
    define("bool", "random_next_sentence", False,
           "Take B from a random document (BERT's task); if false, swap A and B.")
    define("enum", "sentence_objective", None,
           "Meaning of label 1: A and B swapped (sop, the default), B from a random document (nsp, like "
           "--random_next_sentence), or nothing (none).", enum_values=list(SENTENCE_OBJECTIVES))
    define("bool", "single_sentences", False,
           "Make each line a separate sequence, [CLS] A [SEP], which often helps small models (BabyLM "
           "2023); needs --sentence_objective=none.")
    define("integer", "max_seq_length", 512, "Maximum sequence length in tokens.", lower_bound=5)
    define("integer", "max_predictions_per_seq", 20,
           "Maximum masked tokens per record (0.15 of 512 tokens would be 77).", lower_bound=1)
    define("integer", "random_seed", 12345, "Seed of all random numbers.")
    define("integer", "dupe_factor", 40,
           "Passes over the text, each with other pairs and masks; with --nostatic_masks, 1 by "
           "default.", lower_bound=1)
    define("float", "masked_lm_prob", 0.15, "Fraction of tokens to mask.", lower_bound=0, upper_bound=1)
    define("float", "short_seq_prob", 0.1, "Fraction of documents with shorter records.",
           lower_bound=0, upper_bound=1)
    define("integer", "num_processes", None, "Number of processes (default: one per core).", lower_bound=1)
    define("path", "eval_output_file", None, "Record files for held-out text (comma-separated).",
           use="outputs")
    define("float", "held_out_fraction", 0.0,
           "Fraction of the text to hold out for --eval_output_file, in random documents (very long "
           "ones are divided).", lower_bound=0, below=1)
    define("integer", "eval_dupe_factor", 1, "Passes over the held-out text.", lower_bound=1)
    define("bool", "document_break_between_files", True,
           "End documents with their file; if false, only a blank line ends them, as in the original.")
    define("bool", "strict_sentence_order", False,
           "Never pair a lone segment with another document, but with the segment that follows it, so "
           "that half of the pairs have label 1.")
    define("bool", "full_sequences", False,
           "Cut documents into sequences of --max_seq_length tokens wherever a sentence ends, so that no "
           "text is lost.")
    define("string", "runner", None,
           "Apache Beam runner to use (DirectRunner, DataflowRunner, FlinkRunner, SparkRunner, ...); "
           "its options follow after a `--`.")


def main(values: flags.FlagValues, arguments: Sequence[str] = ()) -> None:
    """Checks everything it can, then makes and publishes the records."""
    if values.runner:
        from albert.pretraining_data import beam

        job = job_of(values)
        beam.require_beam(values.runner)
        make_parts = functools.partial(beam.make_parts, runner=values.runner, arguments=arguments)
    else:
        flags.refuse_arguments(arguments)
        job = job_of(values)
        is_small = job.text_bytes * job.passes["train"] < _SMALL_WORK
        processes = values.num_processes or (1 if is_small else workers.available_cores())
        make_parts = functools.partial(pipeline.make_parts, processes=processes)
    pipeline.make_records(job, make_parts)


def job_of(values: flags.FlagValues) -> Job:
    """Returns the job of the flags, with the defaults that depend on other flags or on the text."""

    # === Flags ===

    flags.require(values, "input_file", "output_file")
    objective = values.sentence_objective or ("nsp" if values.random_next_sentence else "sop")
    problems = []
    if values.single_sentences and objective != "none":
        problems.append("--single_sentences needs --sentence_objective=none: there is no B")
    if values.full_sequences and (values.single_sentences or objective not in ("sop", "none")):
        problems.append("--full_sequences needs --sentence_objective=sop or none, and no "
                        "--single_sentences")
    if values.random_next_sentence and objective != "nsp":
        problems.append(f"--random_next_sentence contradicts --sentence_objective={objective}")
    if not values.static_masks:
        problems += [
            f"--{name} has no effect with --nostatic_masks: pass it to run_pretraining"
            for name in (*run_flags.MASKING_FLAGS, "masked_lm_prob", "max_predictions_per_seq")
            if values[name].present
        ]
    if values.runner and values.num_processes:
        problems.append("--num_processes has no effect with --runner, which has its own options")
    for name in ("input_file", "output_file", "eval_output_file"):
        if values.runner and "://" in (flags.as_typed(values, name) or ""):
            problems.append(f"--{name}: with --runner, a path that all machines reach: mount the bucket")
    if bool(values.eval_output_file) != bool(values.held_out_fraction):
        problems.append("--eval_output_file and --held_out_fraction go together")
    if problems:
        raise FlagError("; ".join(problems))
    passes = 1 if not (values.static_masks or values["dupe_factor"].present) else values.dupe_factor

    # === Vocabulary ===

    vocabulary = values.spm_model_file or values.vocab_file
    if not vocabulary:
        raise FlagError("no vocabulary: pass --spm_model_file or --vocab_file")
    files.require_file(vocabulary, "spm_model_file" if values.spm_model_file else "vocab_file")
    text = Vocabulary().override(
        values.spm_model_file, values.vocab_file, flags.text_settings(values)
    ).text
    form = corpus_flags.form_of(values)

    recipe = Recipe(
        pairs=PairSettings(**flags.select(values, PairSettings) | {
            "is_swapped_later": not values.static_masks, "sentence_objective": objective}),
        masking=MaskingSettings(**flags.select(values, MaskingSettings)),
        vocab_file=values.vocab_file,
        spm_model_file=values.spm_model_file,
        vocabulary_sha256=files.sha256(vocabulary),
        text=text,
        random_seed=values.random_seed,
        static_masks=values.static_masks,
        language=form.language,
    )
    tokenizer = load_tokenizer(recipe)
    tokenization.check_special_pieces(tokenizer)

    # === Inputs and outputs ===

    inputs = corpus_files.find(values.input_file, "input_file")
    outputs = {
        split: tuple(filter(None, map(str.strip, paths.split(","))))
        for split, paths in (("train", values.output_file), ("eval", values.eval_output_file)) if paths
    }
    if not all(outputs.values()):
        raise FlagError("--output_file and --eval_output_file must name files")

    def identity(path: str) -> str:
        return cloud.as_given(os.path.realpath(path))

    seen = set(map(identity, inputs))
    for path in itertools.chain.from_iterable(outputs.values()):
        if identity(path) in seen:
            raise FlagError(f"{path} is given twice, as an output and as another input or output")
        if os.path.isdir(path):
            raise FlagError(f"{path} is a directory, not a file to write")
        manifests.refuse_foreign(path)
        seen.add(identity(path))

    # === Text ===

    marks, characters = LostMarks(), collections.Counter[str]()
    documents = read_documents(inputs, str, ReadingCounts(), form=form)
    for line in itertools.chain.from_iterable(documents):
        characters.update(tokenizer.preprocess(line))
        if not marks.add(line):
            break
    if values.spm_model_file and not text.keep_accents:
        marks.warn(", ".join(inputs))
    text_bytes = sum(size_of_text(path, form) for path in inputs)
    if not text_bytes:
        raise DataError(f"--input_file: all files are empty: {', '.join(inputs)}")
    known = set(" ").union(*tokenizer.inv_vocab.values())
    unknown = " ".join(char for char, _ in characters.most_common() if char not in known)[:9]

    # Without flags that cannot change the records, so that manifests compare equal.
    decided = {"sentence_objective": objective, "dupe_factor": passes}
    decided |= {name: getattr(text, name) for name in flags.TEXT_FLAGS}
    recorded = {name: value for name, value in (flags.to_dict(values) | decided).items()
                if name not in ("num_processes", "runner")}
    return Job(
        recipe, tuple(inputs), outputs, {"train": passes, "eval": values.eval_dupe_factor},
        values.held_out_fraction, values.document_break_between_files, text_bytes, recorded, form, unknown,
    )


cli = flags.command(__doc__, define_flags, main, takes_arguments=True)

if __name__ == "__main__":
    cli()
