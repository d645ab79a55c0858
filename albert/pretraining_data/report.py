"""Statistics of the text and the records, for the log and the manifests."""

import logging
from collections.abc import Mapping
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


def summary_of(
    settings: PairSettings, counts: ReadingCounts, total: Mapping[str, int]
) -> dict[str, Any]:
    """Returns statistics of all records of a run, for manifests.

    Args:
      total: see `instances.statistics_of`.
    """
    label_1 = total["label_1"] / total["records"]
    if settings.is_swapped_later:
        label_1 += (1 - label_1) * settings.swap_prob
    return {
        "documents": counts.documents,
        "records": total["records"],
        "tokens": total["tokens"],
        "label_1": round(label_1, 6),  # fraction of the records, after later swaps
        # Fraction of the tokens that are in no record.
        "cut_tokens": round(total["lost"] / max(1, total["lost"] + total["tokens"]), 6),
        "unknown_tokens": round(total["unknown"] / max(1, total["tokens"]), 6),
    }


def log_summary(job: Job, counts: ReadingCounts, summary: Mapping[str, Any]) -> None:
    """Logs the statistics, and a warning with a remedy for each that is unusual."""
    log.info("%s documents of %s lines; label 1: %.1f %% of the records; truncated or left out: "
             "%.1f %% of the tokens; unknown: %.2f %%", f"{counts.documents:,}", f"{counts.lines:,}",
             *(100 * summary[name] for name in ("label_1", "cut_tokens", "unknown_tokens")))
    settings = job.recipe.pairs
    label_1, expected = summary["label_1"], sum(SENTENCE_OBJECTIVES[settings.sentence_objective])
    if abs(label_1 - expected) > _LABEL_RANGE + 1 / summary["records"] ** 0.5:
        message = (f"{100 * label_1:.1f} % of the records have label 1; {100 * expected:.0f} % are "
                   "expected")
        # Documents of a hundred sequences, each of which holds at least two lines.
        is_long = (counts.bytes > 400 * settings.max_seq_length * counts.documents
                   and counts.bytes < 2 * settings.max_seq_length * counts.lines)
        if label_1 > expected and is_long and settings.short_seq_prob:
            message += (f". The documents are long, and some (--short_seq_prob={settings.short_seq_prob:g}) "
                        "become many short sequences of a single line: use --short_seq_prob=0")
        elif label_1 > expected:
            strict = "" if settings.strict_sentence_order else "--strict_sentence_order, or "
            message += (". Many sequences hold a single line, so that B comes from elsewhere: use "
                        f"{strict}one sentence per line (--split_sentences)")
        log.warning("%s", message)
    if summary["cut_tokens"] > _MAX_LOST:
        lone = ", or documents are single lines" if settings.strict_sentence_order else ""
        full = "" if settings.full_sequences else ", --full_sequences"
        log.warning("%.1f %% of the tokens were truncated or left out: lines are too long for "
                    "--max_seq_length=%d%s. Use a larger one%s, or one sentence per line "
                    "(--split_sentences)",
                    100 * summary["cut_tokens"], settings.max_seq_length, lone, full)
    if summary["unknown_tokens"] > _MAX_UNKNOWN:
        characters = f" (most often {job.unknown_characters})" if job.unknown_characters else ""
        log.warning("%.1f %% of the tokens are unknown to the vocabulary%s. Replace these characters, "
                    "or train a vocabulary on this text with albert.train_sentencepiece",
                    100 * summary["unknown_tokens"], characters)
