"""Turns plain text into TFRecord files for run_pretraining.

Input: text, one sentence a line, a blank line between documents; or in other forms, see
--document_layout and --split_sentences. Output: shuffled records of masked sentence pairs, each file with a
manifest of its counts and settings beside it.

  python -m albert.create_pretraining_data --input_file=corpus.txt
      --output_file=train.tfrecord --spm_model_file=30k-clean.model
      --max_seq_length=128 --dupe_factor=10

The same flags and the same text give the same bytes, whatever --num_processes
is. The corpus is never held in memory: it is read in blocks of a few
megabytes, and pairs go through temporary files beside the first output. So a
"random document" is one of the same block, not of the whole corpus. Whatever
ends a run (Ctrl-C, a kill, a full disk), the same command resumes from its work
folder, `.<output>.work`, which only success removes. All this is otherwise with
--original_draw_order: see there.

With --runner the same records are made by an Apache Beam pipeline.
"""

import dataclasses
import os
import resource
from collections.abc import Sequence

from albert import tokenization
from albert.cli import corpus_flags, flags
from albert.errors import DataError, FlagError
from albert.pretraining_data import beam_files, beam_pipeline, making, shares
from albert.pretraining_data.masking import MaskingSettings
from albert.pretraining_data.pairs import SENTENCE_OBJECTIVES, PairSettings
from albert.pretraining_data.recipe import Job, Recipe, Stream, load_tokenizer
from albert.runtime import workers
from albert.storage import files, places
from albert.text import corpus_files, text_files

_SMALL_WORK = 16 << 20  # bytes of text times passes that one process does soonest


def define_flags(values: flags.FlagValues) -> None:
    """The original's flags with its defaults, then what is new."""

    def define(kind: str, name: str, default, text: str, **kwargs) -> None:
        flags.define(kind, values, name, default, text, **kwargs)

    define("path", "input_file", None,
           f"The text: {corpus_flags.WHERE}. Required.", use="texts", unless="runner")
    corpus_flags.define_flags(values)
    define("bool", "split_sentences", False,
           "Split each line of the text into its sentences: for paragraphs, and for documents of "
           "a single line.")
    define("path", "output_file", None, "Record files to write (comma-separated). Required.",
           use="outputs", unless="runner")
    define("path", "vocab_file", None, "WordPiece vocabulary; not needed with spm_model_file.",
           use="file")
    define("path", "spm_model_file", None, "SentencePiece model.", use="file")
    define("enum", "input_file_mode", "r", "Of no effect: text is read as UTF-8 either way.",
           enum_values=["r", "rb"])
    define("bool", "do_lower_case", True, "Lower-case the text.")
    flags.define_masking_flags(values)
    define("bool", "static_masks", True,
           "Write masked records. If false, they hold pairs without masks, each once, and "
           "run_pretraining --masked_lm_budget draws masks, and swaps A and B, as it reads them.")
    define("bool", "random_next_sentence", False,
           "B may be of a random document (BERT's task); if false, A and B may be swapped.")
    define("enum", "sentence_objective", None,
           "What label 1 of a pair means: A and B swapped (sop, the default), B of a random "
           "document (nsp, as --random_next_sentence), either of them, a quarter each (both), or "
           "nothing (none).", enum_values=list(SENTENCE_OBJECTIVES))
    define("bool", "single_sentences", False,
           "Each line of the text is a row by itself: [CLS] A [SEP]. It goes with "
           "--sentence_objective=none. Rows of single sentences are among the commonest gains of "
           "small models (BabyLM 2023).")
    define("integer", "max_seq_length", 512, "Tokens of a record.", least=5)
    define("integer", "max_predictions_per_seq", 20,
           "Masked tokens of a record at most; 0.15 of 512 tokens would be 77.", least=1)
    define("integer", "random_seed", 12345, "Everything random derives from it.")
    define("integer", "dupe_factor", 40,
           "Passes over the text, each with other pairs and masks. With --nostatic_masks, 1 is "
           "the default.", least=1)
    define("float", "masked_lm_prob", 0.15, "Share of the tokens that is masked.", least=0, most=1)
    define("float", "short_seq_prob", 0.1, "Share of documents cut into shorter records.",
           least=0, most=1)
    define("integer", "num_processes", None, "Processes to use (default: one a core).", least=1)
    define("path", "eval_output_file", None, "Record files of the held-out text.",
           use="outputs", unless="runner")
    define("float", "held_out_fraction", 0.0,
           "Fraction of the text, by size, for eval_output_file alone: documents, drawn by "
           "--random_seed. One that is a noticeable part of the text is cut for it.",
           least=0, below=1)
    define("integer", "eval_dupe_factor", 1, "Passes over the held-out text.", least=1)
    define("bool", "document_break_between_files", True,
           "End the document with the file; if false, only a blank line ends it. With "
           "--original_draw_order, false is the default, as in the original.")
    define("bool", "strict_sentence_order", False,
           "Never pair a lone segment with one of another document: where a segment fills a row "
           "alone, the next one is its B. So all pairs are of one document, and half of them have "
           "label 1.")
    define("bool", "fit_sentences", False,
           "End each pair where a line ends, nearest to --max_seq_length, and not at the first end "
           "beyond it. Far less text is cut off then, and rows are a little shorter.")
    define("bool", "original_draw_order", False,
           "Draw at random where the original does: its records, token for token. One process, "
           "the whole text in memory, and slower.")
    define("integer", "numpy_seed", None,
           "With --original_draw_order, the seed of the n-grams' lengths, which the original "
           "draws from NumPy's generator and does not seed (default: --random_seed).",
           least=0, most=flags.MOST_SEED)
    define("string", "task", None,
           "i/n: make the i-th of n shares of the records, on one of n machines that share the disk "
           "of --output_file. Each is given the same other flags; the last one publishes.")
    define("path", "report_dir", None,
           "Folder for a page about the records, with a picture: report.md, report.json.",
           use="directory")
    define("string", "runner", None,
           "Make the records with Apache Beam: DirectRunner, DataflowRunner, FlinkRunner, "
           "SparkRunner... The runner's own options follow after a `--`.")


def main(values: flags.FlagValues, arguments: Sequence[str] = ()) -> None:
    """Checks everything that can be checked first, then makes and publishes the records."""
    flags.require(values, "input_file", "output_file")
    if not values.static_masks and not values["dupe_factor"].present:
        values.dupe_factor = 1
    if values.original_draw_order and not values["document_break_between_files"].present:
        values.document_break_between_files = False
    if not values.sentence_objective:
        values.sentence_objective = "nsp" if values.random_next_sentence else "sop"
    _check_combinations(values)
    _share(values.task)
    if values.task and any(map(places.tree_of, values.output_file.split(","))):
        raise FlagError(
            "--task needs an --output_file on a disk that the machines share; for other places "
            "--runner divides the work"
        )
    if values.runner:
        beam_pipeline.require_beam(values.runner)
    else:
        flags.refuse_arguments(arguments)
    job = _job(values)
    if values.runner:
        beam_pipeline.make_records(job, values.runner, arguments)
        return
    is_original = values.original_draw_order
    is_small = job.text_bytes * values.dupe_factor < _SMALL_WORK or is_original
    processes = values.num_processes or (1 if is_small else workers.available_cores())
    making.make_records(
        job, processes, _numpy_seed(values) if is_original else None, _share(values.task)
    )


def _share(text: str | None) -> shares.Share:
    try:
        return shares.parse(text) if text else shares.ALL
    except ValueError as error:
        raise FlagError(f"--task={text}: must be i/n, i from 1 to n, such as 2/8") from error


def _job(values: flags.FlagValues) -> Job:
    find = beam_files.find_inputs if values.runner else files.find_files
    inputs = corpus_files.find(values.input_file, "input_file", find)
    streams, recipe = _streams(values), _recipe(values)
    _check_paths(inputs, streams)
    tokenization.check_special_pieces(load_tokenizer(recipe))
    form, reason = corpus_flags.recognise(
        values, inputs, values.document_break_between_files, values.original_draw_order,
        beam_files.open_input if values.runner else text_files.open_raw,
    )
    # Beam's machines find out for themselves how much packed files hold.
    text_bytes = sum(beam_files.size_of_input(path) if values.runner else
                     corpus_files.size_of_text(path, form) for path in inputs)
    if not text_bytes:
        raise DataError(f"--input_file: nothing but empty files: {', '.join(inputs)}")
    flags.log.info("documents: %s", reason)
    # Manifests compare equal: they tell nothing that cannot change the records.
    told = {name: value for name, value in flags.to_dict(values).items()
            if name not in ("num_processes", "runner", "task", "report_dir")}
    return Job(
        recipe, tuple(inputs), tuple(streams), values.held_out_fraction,
        values.document_break_between_files, text_bytes, told, form, values.report_dir,
    )


def _streams(values: flags.FlagValues) -> list[Stream]:
    def split(text: str | None) -> tuple[str, ...]:
        return tuple(filter(None, (part.strip() for part in (text or "").split(","))))

    held_out = values.held_out_fraction
    if bool(values.eval_output_file) != bool(held_out):
        raise FlagError("--eval_output_file and --held_out_fraction go together")
    streams = [Stream("train", split(values.output_file), values.dupe_factor, 1 - held_out)]
    if held_out:
        outputs = split(values.eval_output_file)
        streams.append(Stream("eval", outputs, values.eval_dupe_factor, held_out))
    return streams


def _recipe(values: flags.FlagValues) -> Recipe:
    def settings(kind, **others):
        names = {f.name for f in dataclasses.fields(kind)} - set(others)
        return kind(**flags.select(values, names), **others)

    vocabulary = values.spm_model_file or values.vocab_file
    if not vocabulary:
        raise FlagError("no vocabulary: give --spm_model_file or --vocab_file")
    which = "spm_model_file" if values.spm_model_file else "vocab_file"
    return Recipe(
        pairs=settings(PairSettings, is_swapped_later=not values.static_masks),
        masking=settings(MaskingSettings),
        vocab_file=values.vocab_file,
        spm_model_file=values.spm_model_file,
        vocabulary_sha256=files.sha256(files.require_file(vocabulary, which)),
        do_lower_case=values.do_lower_case,
        random_seed=values.random_seed,
        static_masks=values.static_masks,
    )


def _check_combinations(values: flags.FlagValues) -> None:
    """Raises one FlagError that names every flag that cannot be used with the others."""
    problems = []
    if values.original_draw_order:
        unknown = {
            "--strict_sentence_order": values.strict_sentence_order,
            "--fit_sentences": values.fit_sentences,
            "--mask_across_segments=false": not values.mask_across_segments,
            "--replace_by_span": values.replace_by_span,
            "--single_sentences": values.single_sentences,
            "--mask_token_share": values.mask_token_share != 0.8,
            "--nostatic_masks": not values.static_masks,
            f"--sentence_objective={values.sentence_objective}":
                values.sentence_objective in ("both", "none"),
            "--held_out_fraction": values.held_out_fraction,
            "--num_processes": (values.num_processes or 1) > 1,
            "--runner": values.runner is not None,
            "--task": values.task is not None,
        }
        problems += [
            f"{name} is not of the original: it cannot go with --original_draw_order"
            for name, is_given in unknown.items() if is_given
        ]
        if not 0 <= _numpy_seed(values) <= flags.MOST_SEED:
            problems.append(
                f"NumPy takes no seed {_numpy_seed(values)}: give --numpy_seed from 0 to 2^32 - 1"
            )
    elif values.numpy_seed is not None:
        problems.append("--numpy_seed has no effect without --original_draw_order")
    if values.single_sentences and values.sentence_objective != "none":
        problems.append("--single_sentences needs --sentence_objective=none: there is no B")
    if values.random_next_sentence and values.sentence_objective != "nsp":
        problems.append(
            "--random_next_sentence contradicts --sentence_objective="
            f"{values.sentence_objective}"
        )
    if not values.static_masks:
        problems += [
            f"--{name} has no effect with --nostatic_masks: it is run_pretraining's then"
            for name in (*flags.MASKING_FLAGS, "masked_lm_prob", "max_predictions_per_seq")
            if values[name].present
        ]
    if values.runner and values.task:
        problems.append("--task has no effect with --runner, which divides the work itself")
    if values.runner and values.num_processes:
        problems.append("--num_processes has no effect with --runner, which has options of its own")
    if problems:
        raise FlagError("; ".join(problems))


def _numpy_seed(values: flags.FlagValues) -> int:
    return values.random_seed if values.numpy_seed is None else values.numpy_seed


def _check_paths(inputs: list[str], streams: list[Stream]) -> None:
    outputs = [path for stream in streams for path in stream.outputs]
    for stream in streams:
        if not stream.outputs:
            raise FlagError("--output_file and --eval_output_file need the name of a file")
    seen = {os.path.realpath(path): path for path in inputs}
    for path in outputs:
        if os.path.realpath(path) in seen:
            raise FlagError(f"{path} is given twice, as a file to write and to read or write")
        if os.path.isdir(path):
            raise FlagError(f"{path} is a directory, not a file to write")
        beam_files.refuse_foreign_output(path)
        seen[os.path.realpath(path)] = path
    _allow_open_files(2 * len(outputs) + 100)  # each and its manifest are locked


def _allow_open_files(count: int) -> None:
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if least != resource.RLIM_INFINITY and least < count:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))
        except (ValueError, OSError) as error:
            raise FlagError(
                f"--output_file: {count:,} files would be open; `ulimit -n` allows {most:,}"
            ) from error


cli = flags.command(__doc__, define_flags, main, takes_arguments=True)

if __name__ == "__main__":
    cli()
