"""Turns plain text into TFRecord files for run_pretraining.

Input: text, one sentence (or paragraph) a line, a blank line between documents;
it may be packed. Output: shuffled records of masked sentence pairs, each file with a
manifest of its counts and settings beside it.

  python -m albert.create_pretraining_data --input_file=corpus.txt
      --output_file=train.tfrecord --spm_model_file=30k-clean.model
      --max_seq_length=128 --dupe_factor=10

The same flags and the same text give the same bytes, whatever --num_processes
is. The corpus is never held in memory: it is read in blocks of a few
megabytes, and pairs go through temporary files beside the first output. So a
"random document" is one of the same block, not of the whole corpus. The same
command after a kill goes on with what was done. All this is otherwise with
--original_draw_order: see there.

With --runner the same records are made by an Apache Beam pipeline.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from albert import __version__, tokenization
from albert.cli import flags
from albert.data import files, records, text_files, workers
from albert.errors import DataError, FlagError
from albert.pretraining_data import beam_pipeline, original_draws, pair_records
from albert.pretraining_data.documents import (
    SENTENCE_OBJECTIVES,
    Document,
    PairSettings,
    ReadingCounts,
    cut_blocks,
    read_documents,
    with_size,
)
from albert.pretraining_data.masking import MaskingSettings
from albert.pretraining_data.pretraining_buckets import (
    LAYOUT,
    PairFacts,
    Part,
    Recipe,
    Spill,
    Stream,
    ask_to_stop,
    choose_held_out,
    finish_bucket,
    load_pieces,
    load_tokenizer,
    resume,
    spill_block,
)

log = logging.getLogger("albert")

_BLOCK_CHARACTERS = 4 << 20  # text that is tokenised and paired together
_SMALL_WORK = 16 << 20  # bytes of text times passes that one process does soonest
_JOB_FILE = "job.json"
_EXAMPLES = 3  # instances shown in the log
_MOST_LOST = 1 / 3  # share of the tokens; more is worth a warning


def define_flags(values: flags.FlagValues) -> None:
    """The original's flags with its defaults, then what is new."""

    def define(kind: str, name: str, default, text: str, **kwargs) -> None:
        flags.define(kind, values, name, default, text, **kwargs)

    define("string", "input_file", None,
           "Text files (comma-separated globs): UTF-8, or UTF-16 with its mark; as they are, or "
           "packed with gzip, bzip2, xz or zstd. Required.")
    define("string", "output_file", None, "Record files to write (comma-separated). Required.")
    define("string", "vocab_file", None, "WordPiece vocabulary; not needed with spm_model_file.")
    define("string", "spm_model_file", None, "SentencePiece model.")
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
    define("string", "eval_output_file", None, "Record files of held-out documents.")
    define("float", "held_out_fraction", 0.0, "Share of documents for eval_output_file alone.",
           least=0, below=1)
    define("integer", "eval_dupe_factor", 1, "Passes over the held-out documents.", least=1)
    define("bool", "document_break_between_files", True,
           "End the document with the file; if false, only a blank line ends it. With "
           "--original_draw_order, false is the default, as in the original.")
    define("bool", "strict_sentence_order", False,
           "Never pair a lone segment with one of another document.")
    define("bool", "original_draw_order", False,
           "Draw at random where the original does: its records, token for token. One process, "
           "the whole text in memory, and slower.")
    define("integer", "numpy_seed", None,
           "With --original_draw_order, the seed of the n-grams' lengths, which the original "
           "draws from NumPy's generator and does not seed (default: --random_seed).",
           least=0, most=flags.MOST_SEED)
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
    if values.runner:
        beam_pipeline.require_beam(values.runner)
    else:
        flags.refuse_arguments(arguments)
    where = beam_pipeline if values.runner else files
    inputs = files.expand_globs(values.input_file, "input_file", where.find_files)
    streams = _streams(values)
    recipe = _recipe(values)
    _check_paths(inputs, streams)
    tokenizer = load_tokenizer(recipe)
    tokenization.check_special_pieces(tokenizer)
    # Beam's machines find out for themselves how much packed files hold.
    text_bytes = sum(map(where.size_of if values.runner else text_files.size_of_text, inputs))
    if not text_bytes:
        raise DataError(f"--input_file: nothing but empty files: {', '.join(inputs)}")
    if values.runner:
        _make_with_beam(values, arguments, recipe, inputs, streams, text_bytes)
        return
    is_small = text_bytes * values.dupe_factor < _SMALL_WORK or values.original_draw_order
    count = values.num_processes or (1 if is_small else workers.available_cores())
    job = _identity(values, recipe, inputs)
    with workers.preemptible("nothing half-written is left"):
        with (
            _scratch(streams, job) as scratch,
            workers.Workers(count, lambda: ask_to_stop(scratch)) as pool,
        ):
            _Run(values, recipe, inputs, streams, text_bytes, scratch, pool).execute()


def _make_with_beam(
    values: flags.FlagValues,
    arguments: Sequence[str],
    recipe: Recipe,
    inputs: list[str],
    streams: list[Stream],
    text_bytes: int,
) -> None:
    started = time.monotonic()
    _sweep(streams)
    outputs = [path for stream in streams for path in stream.outputs]
    log.info("making records of %.1f MB of text with %s", text_bytes / 1e6, values.runner)
    with (
        workers.preemptible("nothing half-written is left"),
        beam_pipeline.working_directories(outputs) as works,
    ):
        job = beam_pipeline.Job(
            recipe, tuple(inputs), tuple(streams), values.held_out_fraction,
            values.document_break_between_files, _BLOCK_CHARACTERS, _EXAMPLES, works,
        )
        parts, counts = beam_pipeline.run(job, values.runner, arguments)
        _report_reading(counts, len(inputs), values.document_break_between_files)
        for stream in streams:
            _check_outputs(stream, parts[stream.name], counts.documents)
        spec = recipe.feature_spec()
        beam_pipeline.publish(job, parts, {
            path: records.manifest(
                part.blocks, spec,
                _manifest_info(values, recipe, stream, path, counts),
            )
            for stream in streams
            for path, part in zip(stream.outputs, parts[stream.name], strict=True)
        })
        _report_outcome(recipe.pairs, streams, parts, counts, started)


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
            "--mask_across_segments=false": not values.mask_across_segments,
            "--replace_by_span": values.replace_by_span,
            "--nostatic_masks": not values.static_masks,
            f"--sentence_objective={values.sentence_objective}":
                values.sentence_objective in ("both", "none"),
            "--held_out_fraction": values.held_out_fraction,
            "--num_processes": (values.num_processes or 1) > 1,
            "--runner": values.runner is not None,
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
        if beam_pipeline.is_remote(path):
            beam_pipeline.refuse_foreign(path)
        else:
            records.refuse_foreign(path)
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


def _sweep(streams: Iterable[Stream]) -> None:
    """Makes the directories of the outputs, and removes what dead processes left there."""
    for path in (path for stream in streams for path in stream.outputs):
        if not beam_pipeline.is_remote(path):
            directory = files.make_dirs(os.path.dirname(os.path.abspath(path)))
            files.sweep_litter(directory)


def _identity(values: flags.FlagValues, recipe: Recipe, inputs: list[str]) -> str:
    """Returns a digest of all that decides the records."""
    texts = [(path, (stat := os.stat(path)).st_size, stat.st_mtime_ns) for path in inputs]
    told = [_chosen_flags(values), recipe.vocabulary_sha256, texts, __version__, LAYOUT]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def _scratch(streams: list[Stream], job: str) -> Iterator[str]:
    """Yields a directory for temporary files, beside the first output.

    It is a new one, or the one that a killed run of the same job left there.
    """
    path = f"{streams[0].outputs[0]}.work"
    with files.temporary_dir(path, lambda left: _job_of(left) == job) as scratch:
        _sweep(streams)
        if _job_of(scratch) == job:
            log.info("a run was killed here: going on with the %d pieces of work that it had done",
                     resume(scratch))
        files.write_json(os.path.join(scratch, _JOB_FILE), {"job": job})
        yield scratch


def _job_of(scratch: str) -> str | None:
    try:
        return files.read_json_object(os.path.join(scratch, _JOB_FILE)).get("job")
    except DataError:
        return None


@dataclasses.dataclass
class _Run:
    """The work of one command, all flags checked."""

    values: flags.FlagValues
    recipe: Recipe
    inputs: list[str]
    streams: list[Stream]
    text_bytes: int
    scratch: str
    pool: workers.Workers

    def execute(self) -> None:
        """Makes all records, and only then publishes the first file."""
        started, counts = time.monotonic(), ReadingCounts()
        log.info(
            "making records of %.1f MB of text with %d process%s",
            self.text_bytes / 1e6, self.pool.count, "es" if self.pool.count > 1 else "",
        )
        make = self._original_parts if self.values.original_draw_order else self._streamed_parts
        parts = make(counts)
        for stream in self.streams:
            _check_outputs(stream, parts[stream.name], counts.documents)
        _publish(self, parts, counts)
        _report_outcome(self.recipe.pairs, self.streams, parts, counts, started)

    def _streamed_parts(self, counts: ReadingCounts) -> dict[str, list[Part]]:
        """Returns the finished buckets of each stream."""
        spills = self._spill(counts)
        _report_reading(counts, len(self.inputs), self.values.document_break_between_files)
        return {stream.name: self._finish(stream, spills[stream.name]) for stream in self.streams}

    def _original_parts(self, counts: ReadingCounts) -> dict[str, list[Part]]:
        """Returns the instances of `original_draws`, dealt round-robin to a part for each file."""
        tokenizer, (stream,) = load_tokenizer(self.recipe), self.streams
        texts = list(read_documents(
            self.inputs, tokenizer.preprocess, counts, self.values.document_break_between_files
        ))
        _report_reading(counts, len(self.inputs), self.values.document_break_between_files)

        def segments(text: Document) -> list[list[str]]:
            pieces = (tokenizer.tokenize(tokenizer.preprocess(line)) for line in text)
            return [segment for segment in pieces if segment]

        documents = [document for document in map(segments, texts) if document]
        original = original_draws.OriginalRecipe(
            self.recipe.pairs, self.recipe.masking,
            [tokenizer.inv_vocab[i] for i in range(tokenizer.vocab_size)],
            lambda piece: tokenization.is_start_piece(piece, tokenizer.is_spm),
        )
        draws = original_draws.Draws.seeded(self.recipe.random_seed, _numpy_seed(self.values))
        instances = original.create_instances(documents, stream.passes, draws)
        count = len(stream.outputs)
        return {stream.name: [
            original_draws.write_part(
                instances[number::count], self.recipe, tokenizer.convert_tokens_to_ids,
                os.path.join(self.scratch, f"{number}.part"), _EXAMPLES if number == 0 else 0,
            )
            for number in range(count)
        ]}

    def _spill(self, counts: ReadingCounts) -> dict[str, list[Spill]]:
        """Returns the spill files of each stream, in order."""
        spills: dict[str, list[Spill]] = {stream.name: [] for stream in self.streams}
        submitted: list[tuple[str, float]] = []  # (stream, megabytes) of each task
        tasks = self._block_tasks(counts, submitted)
        progress, done = _Progress("pairing", "MB", self.text_bytes / 1e6), 0.0
        for number, spill in enumerate(self.pool.map(spill_block, tasks)):
            name, size = submitted[number]
            spills[name].append(spill)
            done += size
            progress.show(done)
        progress.end()
        return spills

    def _block_tasks(
        self, counts: ReadingCounts, submitted: list[tuple[str, float]]
    ) -> Iterator[tuple]:
        """Yields arguments of `spill_block`; notes each one's stream and size."""
        blocks = -(-self.text_bytes // _BLOCK_CHARACTERS)
        # A small corpus has fewer blocks than there are processes: then the
        # passes over a block are shared out.
        shares = max(1, -(-2 * self.pool.count // blocks)) if self.pool.count > 1 else 1
        for stream, index, block in self._blocks(counts):
            step = -(-stream.passes // min(shares, stream.passes))
            size = sum(len(line.encode()) + 1 for document in block for line in document) / 1e6
            for first in range(0, stream.passes, step):
                passes = range(first, min(first + step, stream.passes))
                name = f"{stream.name}-{index}-{first}-{passes.stop}.spill"
                path = os.path.join(self.scratch, name)
                submitted.append((stream.name, size * len(passes) / stream.passes))
                buckets = stream.buckets(self.text_bytes)
                yield self.recipe, stream.name, index, block, passes, buckets, path

    def _blocks(self, counts: ReadingCounts) -> Iterator[tuple[Stream, int, list[Document]]]:
        """Yields (stream, number of the block in it, documents)."""
        documents = read_documents(
            self.inputs, load_tokenizer(self.recipe).preprocess, counts,
            self.values.document_break_between_files,
        )
        is_held_out = choose_held_out(self.recipe, self.values.held_out_fraction)
        for which, number, block in cut_blocks(
            with_size(documents), _BLOCK_CHARACTERS, is_held_out
        ):
            yield self.streams[which], number, block

    def _finish(self, stream: Stream, spills: list[Spill]) -> list[Part]:
        """Returns the finished buckets of a stream, in order; none if it has no documents."""
        if not spills:
            return []
        buckets = stream.buckets(self.text_bytes)
        tasks = (
            (self.recipe, stream.name, bucket, [spill.section(bucket) for spill in spills],
             os.path.join(self.scratch, f"{stream.name}-{bucket}.part"),
             _EXAMPLES if stream.name == "train" and bucket == 0 else 0)
            for bucket in range(buckets)
        )
        progress, parts = _Progress(f"writing {stream.name}", "buckets", buckets), []
        for part in self.pool.map(finish_bucket, tasks):
            parts.append(part)
            progress.show(len(parts))
        progress.end()
        return parts


def _report_reading(counts: ReadingCounts, num_files: int, breaks: bool) -> None:
    """Says what was odd about the text.

    Args:
      breaks: a file ends its last document.

    Raises:
      DataError: there was no document in it.
    """
    if counts.bad_utf8_lines:
        log.warning("%s of %s lines had invalid UTF-8 (read as U+FFFD)",
                    f"{counts.bad_utf8_lines:,}", f"{counts.lines:,}")
    if counts.cuts:
        log.warning("very long lines were cut at %s places", f"{counts.cuts:,}")
    if not counts.documents:
        raise DataError("--input_file: no documents, only blank lines")
    if counts.documents == 1:
        log.warning("the text is one document (no blank line in it%s): pairs with another "
                    "document's text are of this one too",
                    "" if breaks or num_files == 1 else
                    f", and its {num_files:,} files end none without "
                    "--document_break_between_files")


def _check_outputs(stream: Stream, parts: list[Part], documents: int) -> None:
    total, outputs = sum(part.records for part in parts), len(stream.outputs)
    if not total:
        which = "held out" if stream.name == "eval" else "left to train on"
        raise DataError(
            f"no instances of the {stream.name} documents: nothing is {which} of {documents:,} "
            "documents (see --held_out_fraction)" if stream.share < 1 else
            "no instances: no document has enough text"
        )
    for number, path in enumerate(stream.outputs):
        if not any(part.records for part in parts[number::outputs]):
            raise DataError(f"{path} would be empty: {total:,} instances for {outputs:,} files")


def _publish(run: _Run, parts: dict[str, list[Part]], counts: ReadingCounts) -> None:
    """Writes all outputs and their manifests aside, then gives them their names."""
    outputs = [
        (path, stream, parts[stream.name][number :: len(stream.outputs)])
        for stream in run.streams for number, path in enumerate(stream.outputs)
    ]
    with contextlib.ExitStack() as stack:
        # They get their names in the opposite order: the manifests last. There may be many, so
        # each is closed.
        for path, stream, mine in outputs:
            info = _manifest_info(run.values, run.recipe, stream, path, counts)
            blocks = [block for part in mine for block in part.blocks]
            note = stack.enter_context(files.atomic_write(records.manifest_path(path)))
            note.write(records.manifest_text(blocks, run.recipe.feature_spec(), info))
            note.close()
        for path, _, mine in outputs:
            out = stack.enter_context(files.atomic_write(path, "wb"))
            for part in mine:
                with open(part.path, "rb") as content:
                    shutil.copyfileobj(content, out, 1 << 20)
                os.unlink(part.path)
            out.close()
        for path, *_ in outputs:
            records.remove_manifest(path)


def _report_outcome(
    settings: PairSettings,
    streams: Iterable[Stream],
    parts: dict[str, list[Part]],
    counts: ReadingCounts,
    started: float,
) -> None:
    for text in (text for part in parts["train"] for text in part.examples):
        log.info("an instance:\n%s", text)
    for stream in streams:
        for number, path in enumerate(stream.outputs):
            mine = parts[stream.name][number :: len(stream.outputs)]
            count, size = sum(p.records for p in mine), sum(p.bytes for p in mine)
            log.info("%s: %s instances, %.1f MB", path, f"{count:,}", size / 1e6)
    total = sum(part.records for name in parts for part in parts[name])
    facts = sum((PairFacts(*part.facts) for name in parts for part in parts[name]), PairFacts())
    _report_pairs(settings, total, facts, counts)
    seconds = time.monotonic() - started
    log.info("Wrote %d total instances in %.1f s (%s/s)", total, seconds,
             f"{total / seconds:,.0f}")


def _report_pairs(
    settings: PairSettings, total: int, facts: PairFacts, counts: ReadingCounts
) -> None:
    """Says what the records are like, and what may help where they are not as they should be."""
    share = facts.labelled / total
    if settings.is_swapped_later:
        share += (1 - share) * settings.swaps_of_ordered
    lost = facts.lost / max(1, facts.lost + facts.tokens)
    log.info(
        "%s documents of %s lines; label 1: %.1f %% of the records; cut off or left out: %.1f %% "
        "of the tokens", f"{counts.documents:,}", f"{counts.lines:,}", 100 * share, 100 * lost,
    )
    usual = sum(SENTENCE_OBJECTIVES[settings.sentence_objective])
    if share > (1 + usual) / 2:
        log.warning(
            "%.1f %% of the records have label 1, where %.0f %% would be usual: most are of a "
            "single line, and so B is of another document. One sentence a line helps "
            "(scripts/prepare_text.py), or --strict_sentence_order", 100 * share, 100 * usual,
        )
    if lost > _MOST_LOST:
        log.warning(
            "%.1f %% of the tokens were cut off or left out: lines are too long for "
            "--max_seq_length=%d%s. One sentence a line helps (scripts/prepare_text.py), or a "
            "larger --max_seq_length", 100 * lost, settings.max_seq_length,
            ", or documents are single lines" if settings.strict_sentence_order else "",
        )


def _manifest_info(
    values: flags.FlagValues, recipe: Recipe, stream: Stream, path: str, counts: ReadingCounts
) -> dict:
    tokenizer, beside = load_tokenizer(recipe), os.path.dirname(os.path.abspath(path))
    return {
        "kind": "pretraining",
        "split": stream.name,
        "max_seq_length": recipe.pairs.max_seq_length,
        "max_predictions_per_seq": recipe.masking.max_predictions_per_seq,
        "tokenizer_sha256": tokenizer.sha256,
        **pair_records.manifest_info(load_pieces(recipe).specials, recipe.pairs),
        "documents": counts.documents,
        "shards": [os.path.relpath(os.path.abspath(p), beside) for p in stream.outputs],
        "flags": _chosen_flags(values),
    }


def _chosen_flags(values: flags.FlagValues) -> dict:
    """Returns the flags without what cannot change the records: so manifests compare equal."""
    unimportant = ("num_processes", "runner")
    return {k: v for k, v in flags.to_dict(values).items() if k not in unimportant}


class _Progress:
    """One line that is updated on a terminal; elsewhere a line now and then."""

    def __init__(self, what: str, unit: str, total: float):
        self._what, self._unit, self._total = what, unit, total
        self._on_terminal = sys.stderr.isatty()
        self._started = self._shown = time.monotonic()

    def show(self, done: float) -> None:
        """Says how far the work is, if it is time to."""
        now = time.monotonic()
        if now - self._shown < (0.2 if self._on_terminal else 30):
            return
        self._shown = now
        rate = done / (now - self._started)
        left = (self._total - done) / rate if rate else 0
        line = (f"{self._what}: {done:,.1f} of {self._total:,.1f} {self._unit}, "
                f"{rate:,.1f}/s, {left:,.0f} s left")
        if self._on_terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            log.info("%s", line)

    def end(self) -> None:
        """Clears the line."""
        if self._on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


cli = flags.command(__doc__, define_flags, main, takes_arguments=True)

if __name__ == "__main__":
    cli()
