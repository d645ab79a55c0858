"""Messages of a run: how far it is, what is odd about the text, what the records are like."""

import logging
import os
import sys
import time

from albert.errors import DataError
from albert.pretraining_data import pair_records
from albert.pretraining_data.buckets import PairFacts, Part
from albert.pretraining_data.documents import ReadingCounts
from albert.pretraining_data.pairs import SENTENCE_OBJECTIVES, PairSettings
from albert.pretraining_data.recipe import Job, Stream, load_pieces, load_tokenizer

log = logging.getLogger("albert")

_MOST_LOST = 1 / 3  # share of the tokens; more is worth a warning

Parts = dict[str, list[Part]]  # of each stream, by its name; part k goes to output k modulo them


def report_reading(job: Job, counts: ReadingCounts) -> None:
    """Says what was odd about the text.

    Raises:
      DataError: there was no document in it.
    """
    if counts.bad_utf8_lines:
        log.warning("%s of %s lines had invalid UTF-8 (read as U+FFFD)",
                    f"{counts.bad_utf8_lines:,}", f"{counts.lines:,}")
    if counts.cuts:
        log.warning("very long lines were cut at %s places", f"{counts.cuts:,}")
    if counts.cut_documents:
        log.warning("very long documents were cut at %s places, each as if a blank line was there",
                    f"{counts.cut_documents:,}")
    if not counts.documents:
        raise DataError("--input_file: no documents, only blank lines")
    if counts.documents == 1:
        log.warning("the text is one document (no blank line in it%s): pairs with another "
                    "document's text are of this one too",
                    "" if job.break_between_files or len(job.inputs) == 1 else
                    f", and its {len(job.inputs):,} files end none without "
                    "--document_break_between_files")


def check_outputs(job: Job, parts: Parts, documents: int) -> None:
    """Raises a DataError if an output would be empty."""
    for stream in job.streams:
        total = sum(part.records for part in parts[stream.name])
        if not total:
            which = "held out" if stream.name == "eval" else "left to train on"
            raise DataError(
                f"no instances of the {stream.name} documents: nothing is {which} of "
                f"{documents:,} documents (see --held_out_fraction)" if stream.share < 1 else
                "no instances: no document has enough text"
            )
        for path, mine in parts_of_outputs(stream, parts):
            if not any(part.records for part in mine):
                raise DataError(
                    f"{path} would be empty: {total:,} instances for {len(stream.outputs):,} files"
                )


def parts_of_outputs(stream: Stream, parts: Parts) -> list[tuple[str, list[Part]]]:
    """Returns each output of a stream with its parts, in order."""
    count = len(stream.outputs)
    return [(path, parts[stream.name][k::count]) for k, path in enumerate(stream.outputs)]


def report_outcome(job: Job, parts: Parts, counts: ReadingCounts, started: float) -> None:
    """Says what was made, in how much time since `started` of the monotonic clock."""
    for text in (text for part in parts["train"] for text in part.examples):
        log.info("an instance:\n%s", text)
    for stream in job.streams:
        for path, mine in parts_of_outputs(stream, parts):
            count, size = sum(p.records for p in mine), sum(p.bytes for p in mine)
            log.info("%s: %s instances, %.1f MB", path, f"{count:,}", size / 1e6)
    everything = [part for stream in job.streams for part in parts[stream.name]]
    total = sum(part.records for part in everything)
    facts = sum((part.facts for part in everything), PairFacts())
    _report_pairs(job.recipe.pairs, total, PairFacts(*facts), counts)
    seconds = time.monotonic() - started
    log.info("Wrote %d total instances in %.1f s (%s/s)", total, seconds,
             f"{total / seconds:,.0f}")


def _report_pairs(
    settings: PairSettings, total: int, facts: PairFacts, counts: ReadingCounts
) -> None:
    """Says what the records are like, and what may help if they are not as they should be."""
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
            "(albert.prepare_text), or --strict_sentence_order", 100 * share, 100 * usual,
        )
    if lost > _MOST_LOST:
        log.warning(
            "%.1f %% of the tokens were cut off or left out: lines are too long for "
            "--max_seq_length=%d%s. One sentence a line helps (albert.prepare_text), or a "
            "larger --max_seq_length", 100 * lost, settings.max_seq_length,
            ", or documents are single lines" if settings.strict_sentence_order else "",
        )


def manifest_info(job: Job, stream: Stream, path: str, counts: ReadingCounts) -> dict:
    """Returns what the manifest of an output tells beside its counts."""
    recipe, beside = job.recipe, os.path.dirname(os.path.abspath(path))
    return {
        "kind": "pretraining",
        "split": stream.name,
        "max_seq_length": recipe.pairs.max_seq_length,
        "max_predictions_per_seq": recipe.masking.max_predictions_per_seq,
        "tokenizer_sha256": load_tokenizer(recipe).sha256,
        **pair_records.manifest_info(load_pieces(recipe).specials, recipe.pairs),
        "documents": counts.documents,
        "shards": [os.path.relpath(os.path.abspath(p), beside) for p in stream.outputs],
        "flags": job.flags,
    }


class Progress:
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
