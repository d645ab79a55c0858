"""Messages of a run: how far it is, what is odd about the text, what the records are like."""

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from albert.errors import DataError
from albert.pretraining_data import pair_records, report_page
from albert.pretraining_data.buckets import PairFacts, Part
from albert.pretraining_data.pairs import SENTENCE_OBJECTIVES, PairSettings
from albert.pretraining_data.recipe import Job, Stream, load_pieces, load_tokenizer
from albert.storage import places
from albert.text.documents import ReadingCounts
from albert.tokenization import identity

log = logging.getLogger("albert")

# What is worth a warning.
_MOST_LOST = 0.25  # share of the tokens
_LEAST_HELD_OUT = 1000  # records; an accuracy of 0.5 is then known to 0.016
_MOST_UNKNOWN = 0.01  # share of the tokens
_LABEL_RANGE = 0.1  # of the share of label 1, around what is usual
_PERCENTILES = (5, 25, 50, 75, 95)

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
    pairs = job.recipe.pairs
    has_random = SENTENCE_OBJECTIVES[pairs.sentence_objective][0] > 0
    if counts.documents == 1 and (has_random or not pairs.strict_sentence_order):
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


@dataclasses.dataclass(frozen=True)
class Report:
    """What the records of a run are like, all sets of outputs together."""

    settings: PairSettings
    documents: int
    sentences: int  # or lines, if they were not split
    lines: int
    records: int
    tokens: int  # in records, without the special ones
    label_1: float  # share of the records
    cut: float  # share of the tokens that was cut off records, or left out
    unknown: float  # share of the tokens in records
    held_out: float  # share of the text, by its tokens; 0 where nothing is to be held out
    held_out_records: int
    lengths: np.ndarray  # int64 [L + 1], how many records have so many tokens

    @classmethod
    def of(
        cls, job: Job, parts: Parts, counts: ReadingCounts,
        lengths_of: Callable[[Part], np.ndarray],
    ) -> "Report":
        """Returns the report of finished parts; `lengths_of` returns what `Tail` tells."""
        settings, everything = job.recipe.pairs, [p for mine in parts.values() for p in mine]
        records = sum(part.records for part in everything)
        held_out = sum(part.records for part in parts.get("eval", ()))
        facts, lengths = PairFacts(), np.zeros(settings.max_seq_length + 1, np.int64)
        for part in everything:
            facts += part.facts
            lengths += lengths_of(part)
        label = facts.labelled / records
        if settings.is_swapped_later:
            label += (1 - label) * settings.swaps_of_ordered
        return cls(
            settings, counts.documents, counts.sentences, counts.lines, records, facts.tokens,
            label, facts.lost / max(1, facts.lost + facts.tokens),
            facts.unknown / max(1, facts.tokens), _held_out(job, parts), held_out, lengths,
        )

    def length_at(self, share: float) -> int:
        """Returns the tokens of the record that is longer than this share of them."""
        return int(np.searchsorted(np.cumsum(self.lengths), share * self.records))

    def told(self) -> dict[str, Any]:
        """Returns what manifests tell."""
        return {
            "documents": self.documents, "sentences": self.sentences, "records": self.records,
            "tokens": self.tokens, "label_1": round(self.label_1, 6),
            "cut_tokens": round(self.cut, 6), "unknown_tokens": round(self.unknown, 6),
            "held_out_tokens": round(self.held_out, 6),
            "length_percentiles": {f"{p}": self.length_at(p / 100) for p in _PERCENTILES},
        }

    def warnings(self) -> Iterator[str]:
        """Yields what is out of the ordinary, and what may help."""
        usual = sum(SENTENCE_OBJECTIVES[self.settings.sentence_objective])
        doubt = _LABEL_RANGE + 1 / self.records**0.5  # few records may differ by chance
        if self.label_1 > usual + doubt:
            yield (
                f"{100 * self.label_1:.1f} % of the records have label 1, where {100 * usual:.0f} "
                "% would be usual: many are of a single line, and so B is of another document. "
                "--strict_sentence_order takes B from the same one; one sentence a line helps too "
                "(--split_sentences)"
            )
        elif self.label_1 < usual - doubt:
            yield (
                f"{100 * self.label_1:.1f} % of the records have label 1, where {100 * usual:.0f} "
                "% would be usual"
            )
        if self.cut > _MOST_LOST:
            lone, fits = self.settings.strict_sentence_order, self.settings.fit_sentences
            yield (
                f"{100 * self.cut:.1f} % of the tokens were cut off or left out: lines are too "
                f"long for --max_seq_length={self.settings.max_seq_length}"
                f"{', or documents are single lines' if lone else ''}. A larger one helps"
                f"{'' if fits else ', --fit_sentences'}, or one sentence a line "
                "(--split_sentences)"
            )
        if self.held_out and self.held_out_records < _LEAST_HELD_OUT:
            yield (
                f"only {self.held_out_records:,} records are held out: an accuracy measured on them "
                f"has a standard error of up to {50 / self.held_out_records**0.5:.1f} points. A "
                "larger --held_out_fraction or --eval_dupe_factor helps"
            )
        if self.unknown > _MOST_UNKNOWN:
            yield (
                f"{100 * self.unknown:.1f} % of the tokens are unknown to the vocabulary: is it of "
                "another language, or of another case? albert.train_sentencepiece makes one of "
                "this text"
            )


def _held_out(job: Job, parts: Parts) -> float:
    """Returns the share of a pass over the text that is held out, by its tokens."""
    size = {
        stream.name: sum(part.facts[1] + part.facts[2] for part in parts[stream.name])
        / stream.passes for stream in job.streams
    }
    return size.get("eval", 0.0) / max(sum(size.values()), 1.0)


def report_outcome(job: Job, parts: Parts, report: Report, started: float) -> None:
    """Says what was made, in how much time since `started` of the monotonic clock."""
    for text in (text for part in parts["train"] for text in part.examples):
        log.info("an instance:\n%s", text)
    for stream in job.streams:
        for path, mine in parts_of_outputs(stream, parts):
            count, size = sum(p.records for p in mine), sum(p.bytes for p in mine)
            log.info("%s: %s instances, %.1f MB", path, f"{count:,}", size / 1e6)
    log.info(
        "%s documents of %s lines; label 1: %.1f %% of the records; cut off or left out: %.1f %% "
        "of the tokens; unknown: %.2f %%%s", f"{report.documents:,}", f"{report.lines:,}",
        100 * report.label_1, 100 * report.cut, 100 * report.unknown,
        f"; held out: {100 * report.held_out:.1f} % of the text" if report.held_out else "",
    )
    log.info("tokens of a record: %s", ", ".join(
        f"{report.length_at(p / 100):,} ({p} % have fewer)" for p in _PERCENTILES
    ))
    for warning in report.warnings():
        log.warning("%s", warning)
    if job.report_dir:
        report_page.write(report.told(), list(report.warnings()), report.lengths, job.report_dir)
    seconds = time.monotonic() - started
    log.info("Wrote %d total instances in %.1f s (%s/s)", report.records, seconds,
             f"{report.records / seconds:,.0f}")


def manifest_info(
    job: Job, stream: Stream, path: str, counts: ReadingCounts, report: Report
) -> dict:
    """Returns what the manifest of an output tells beside its counts."""
    recipe, beside = job.recipe, os.path.dirname(os.path.abspath(path))
    return {
        "kind": "pretraining",
        "split": stream.name,
        "max_seq_length": recipe.pairs.max_seq_length,
        "max_predictions_per_seq": recipe.masking.max_predictions_per_seq,
        # Of the file as it was read: it may have changed meanwhile.
        "tokenizer_sha256": identity(
            recipe.vocabulary_sha256, bool(recipe.spm_model_file), load_tokenizer(recipe).settings
        ),
        "vocabulary": _vocabulary(job, path),
        **pair_records.manifest_info(load_pieces(recipe).specials, recipe.pairs),
        "documents": counts.documents,
        "shards": [os.path.relpath(os.path.abspath(p), beside) for p in stream.outputs],
        "flags": job.flags,
        "report": report.told(),
    }


def _vocabulary(job: Job, path: str) -> dict[str, Any]:
    """Returns where the vocabulary is, as given and seen from the record file, and its settings."""
    def split(path: str) -> tuple[str, str]:
        scheme, _, rest = (path if places.is_remote(path) else
                           places.as_given(os.path.abspath(path))).rpartition("://")
        return scheme, rest

    (scheme, where), (of_records, here) = split(job.recipe.vocabulary), split(path)
    told: dict[str, Any] = {key: job.flags.get(key) for key in ("spm_model_file", "vocab_file")}
    if scheme == of_records:  # both may be moved together
        told["beside"] = os.path.relpath(where, os.path.dirname(here))
    return told | dataclasses.asdict(load_tokenizer(job.recipe).settings)
