"""Scores SQuAD predictions like the official scripts; prints one JSON object.

  python -m albert.evaluate_squad --dataset_file=dev-v1.1.json --predictions_file=predictions.json
  python -m albert.evaluate_squad --version_2_with_negative --dataset_file=dev-v2.0.json \\
      --predictions_file=predictions.json --null_odds_file=null_odds.json

Predictions are {question id: answer}, "" for none. For 2.0 it prints exact, f1 and
total, over all questions and over those with and without an answer, and the best
thresholds if odds are given.
"""

import json
import logging
from typing import Any

from albert.cli import flags
from albert.errors import DataError, FlagError, some
from albert.storage import files
from albert.tasks.squad import metrics
from albert.tasks.squad.questions import read_answers

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "dataset_file", None, "SQuAD JSON with answers. Required.",
                 use="file")
    flags.define("path", values, "predictions_file", None,
                 "JSON with {question id: answer}. Required.", use="file")
    flags.define("path", values, "null_odds_file", None,
                 "JSON with {question id: odds, or probability, of no answer} (2.0).", use="file")
    flags.define("bool", values, "version_2_with_negative", False,
                 "Score as SQuAD 2.0, where questions may have no answer.")
    flags.define("float", values, "na_prob_thresh", 1.0,
                 "Odds in --null_odds_file above which a question counts as unanswered.")
    flags.define("path", values, "output_file", None, "JSON file for the same object.", use="output")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "dataset_file", "predictions_file")
    if values.null_odds_file and not values.version_2_with_negative:
        raise FlagError("--null_odds_file needs --version_2_with_negative")
    files.refuse_overwriting(
        values.output_file, values.dataset_file, values.predictions_file, values.null_odds_file
    )
    answers = read_answers(files.require_file(values.dataset_file, "dataset_file"))
    _check_answers(values.dataset_file, answers, values.version_2_with_negative)
    predictions = _by_id(values.predictions_file, "predictions_file", str, "a string")
    odds = None
    if values.null_odds_file:
        odds = _by_id(values.null_odds_file, "null_odds_file", (int, float), "a number")
        without = [qid for qid in predictions if qid in answers and qid not in odds]
        if without:
            raise DataError(f"{values.null_odds_file}: no odds for {len(without):,} predicted "
                            f"questions, such as {without[0]!r}")
    if missing := [qid for qid in answers if qid not in predictions]:
        log.warning("%s: no prediction for %s questions, which score 0: %s", values.predictions_file,
                    f"{len(missing):,}", some(missing))
    if values.version_2_with_negative:
        results = metrics.evaluate_v2(answers, predictions, odds, values.na_prob_thresh)
    else:
        results = metrics.evaluate_v1(answers, predictions)
    if values.output_file:
        files.write_json(values.output_file, results)
    print(json.dumps(results, indent=2))


def _check_answers(path: str, answers, with_negative: bool) -> None:
    if unknown := [qid for qid, golds in answers.items() if golds is None]:
        raise DataError(f"{path}: {len(unknown):,} questions have no 'answers', such as "
                        f"{unknown[0]!r}")
    without = [qid for qid, golds in answers.items() if not golds]
    if without and not with_negative:
        raise DataError(f"{path}: {len(without):,} questions have no answer, such as {without[0]!r}: "
                        "add --version_2_with_negative")


def _by_id(path: str, flag: str, kind, name: str) -> dict[str, Any]:
    values = files.read_json_object(files.require_file(path, flag))
    for qid, value in values.items():
        if not isinstance(value, kind) or isinstance(value, bool) or value != value:  # NaN
            raise DataError(f"{path}: {qid!r} must be {name}, got {value!r:.60}")
    return values


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
