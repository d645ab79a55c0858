"""Statistics of the text and the records, for the log and the manifests."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from albert.errors import DataError
from albert.pretraining_data.job import Job
from albert.pretraining_data.pairs import SENTENCE_OBJECTIVES, PairSettings
from albert.text.documents import ReadingCounts

log = logging.getLogger("albert")

# When to warn.
_MAX_LOST = 0.25  # fraction of the tokens
_MAX_UNKNOWN = 0.01  # fraction of the tokens
_LABEL_RANGE = 0.1  # of the fraction of label 1 around the expected one


def report_reading(job: Job, counts: ReadingCounts) -> None:
    """Logs unusual properties of the text.

    Raises:
      DataError: it has no documents.
    """
    counts.warn()
    if counts.cuts:
        log.warning("very long lines were divided at %s positions", f"{counts.cuts:,}")
    if counts.cut_documents:
        log.warning("very long documents were divided at %s positions, as if by a blank line",
                    f"{counts.cut_documents:,}")
    if not counts.documents:
        raise DataError("--input_file: no documents, only blank lines")
    pairs = job.recipe.pairs
    takes_random = SENTENCE_OBJECTIVES[pairs.sentence_objective][0] > 0
    if counts.documents == 1 and (takes_random or not pairs.strict_sentence_order):
        log.warning("the text is one document (no blank line in it%s), so B always comes from the same "
                    "document", "" if job.break_between_files or len(job.inputs) == 1 else
                    f", and its {len(job.inputs):,} files do not end documents without "
                    "--document_break_between_files")


@dataclasses.dataclass(frozen=True)
class Report:
    """Statistics of all records of a run."""

    settings: PairSettings
    unknown_characters: str
    counts: ReadingCounts
    total: Mapping[str, int]  # see `instances.statistics_of`

    @property
    def label_1(self) -> float:
        """Fraction of records with label 1, after later swaps."""
        label = self.total["label_1"] / self.total["records"]
        if self.settings.is_swapped_later:
            label += (1 - label) * self.settings.swap_prob
        return label

    @property
    def lost(self) -> float:
        """Fraction of tokens that are in no record."""
        return self.total["lost"] / max(1, self.total["lost"] + self.total["tokens"])

    @property
    def unknown(self) -> float:
        """Fraction of the tokens in records that are unknown."""
        return self.total["unknown"] / max(1, self.total["tokens"])

    def to_json(self) -> dict[str, Any]:
        """Returns the values for manifests."""
        return {
            "documents": self.counts.documents, "records": self.total["records"],
            "tokens": self.total["tokens"], "label_1": round(self.label_1, 6),
            "cut_tokens": round(self.lost, 6), "unknown_tokens": round(self.unknown, 6),
        }

    def log(self) -> None:
        """Logs the statistics, and a warning for each that is unusual."""
        log.info("%s documents of %s lines; label 1: %.1f %% of the records; truncated or left out: "
                 "%.1f %% of the tokens; unknown: %.2f %%", f"{self.counts.documents:,}",
                 f"{self.counts.lines:,}", 100 * self.label_1, 100 * self.lost, 100 * self.unknown)
        for warning in self.warnings():
            log.warning("%s", warning)

    def warnings(self) -> Iterator[str]:
        """Yields unusual values, each with a remedy."""
        expected = sum(SENTENCE_OBJECTIVES[self.settings.sentence_objective])
        tolerance = _LABEL_RANGE + 1 / self.total["records"] ** 0.5
        if abs(self.label_1 - expected) > tolerance:
            message = (f"{100 * self.label_1:.1f} % of the records have label 1; "
                       f"{100 * expected:.0f} % are expected")
            if self.label_1 > expected:
                strict = "" if self.settings.strict_sentence_order else "--strict_sentence_order, or "
                message += (
                    f". Many sequences hold a single line, so that B comes from elsewhere: use {strict}one "
                    "sentence per line (--split_sentences), and for long documents --short_seq_prob=0"
                )
            yield message
        if self.lost > _MAX_LOST:
            lone = ", or documents are single lines" if self.settings.strict_sentence_order else ""
            fit = "" if self.settings.fit_sentences else ", --fit_sentences"
            yield (
                f"{100 * self.lost:.1f} % of the tokens were truncated or left out: lines are too "
                f"long for --max_seq_length={self.settings.max_seq_length}{lone}. Use a larger one"
                f"{fit}, or one sentence per line (--split_sentences)"
            )
        if self.unknown > _MAX_UNKNOWN:
            characters = f" (most often {self.unknown_characters})" if self.unknown_characters else ""
            yield (
                f"{100 * self.unknown:.1f} % of the tokens are unknown to the vocabulary{characters}. "
                "Replace these characters, or train a vocabulary on this text with "
                "albert.train_sentencepiece"
            )
