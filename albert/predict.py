"""Answers lines of text with a fine-tuned ALBERT, one JSON object a line.

  python -m albert.predict --model=out --input_file=texts.tsv
  echo "EU rejects German call" | python -m albert.predict --model=ner

The directory tells what it was fine-tuned for: an output directory of run_classifier,
run_race, run_token_classifier or run_squad_v1 and _v2, or Hugging Face's layout;
--task says it where the directory does not. A line is one text, or several separated by
tabs: a pair for a task of pairs; question and passage for question answering;
passage, question and four options for multiple choice.

A classifier answers with `label`, its `probability` and all `probabilities`. One that gives
a text several labels answers with `labels`, those with a probability of 0.5 or more, and all
`probabilities`, each by itself. A regression answers with `value`.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from albert.cli import flags
from albert.data import files
from albert.errors import CheckpointError, FlagError
from albert.formats import model_facts
from albert.inference import predictors
from albert.inference import session as inference
from albert.tasks import conll

log = logging.getLogger("albert")

CLASSIFICATION, REGRESSION = "classification", "regression"
MULTI_LABEL = "multi_label_classification"
TOKENS, QUESTIONS, CHOICE = "token_classification", "question_answering", "multiple_choice"
TASKS = (CLASSIFICATION, MULTI_LABEL, REGRESSION, TOKENS, QUESTIONS, CHOICE)
# What a model was trained for, by its class; of a classifier of texts, by its problem.
_BY_CLASS = {
    "AlbertForSequenceClassification": CLASSIFICATION,
    "AlbertForTokenClassification": TOKENS,
    "AlbertForQuestionAnswering": QUESTIONS,
    "AlbertForBeamQuestionAnswering": QUESTIONS,
    "AlbertForMultipleChoice": CHOICE,
}
_BY_PROBLEM = {
    model_facts.SINGLE_LABEL: CLASSIFICATION, model_facts.MULTI_LABEL: MULTI_LABEL,
    model_facts.REGRESSION: REGRESSION,
}
# Weights that only the heads of SQuAD 2.0 and of 1.1 have.
_OF_BEAM = "answer_class/dense_0/kernel"
_OF_SQUAD = "cls/squad/output_weights"


def define_flags(values: flags.FlagValues) -> None:
    inference.define_flags(values)
    flags.define("enum", values, "task", None,
                 "What the model was fine-tuned for; by default what its directory tells.",
                 enum_values=TASKS)
    flags.define("string", values, "label_list", None,
                 "Names of the labels in the order of their ids, separated by commas or by "
                 "blanks; by default those that the directory tells, else numbers.")
    flags.define("bool", values, "is_tokenized", False,
                 "Words are what is between blanks; else punctuation around them is cut off "
                 "(token_classification).")
    flags.define("string", values, "output_file", None,
                 "Where the answers go; the standard output by default.")


def main(values: flags.FlagValues) -> None:
    inference.check_flags(values)
    lines = inference.read_texts(values.input_file)
    opened = inference.open_model(values)
    predictor = _predictor(values, opened)
    inputs = [predictor.columns(line) for line in lines]
    name = inference.source_name(values.input_file)
    for number, columns in enumerate(inputs, start=1):
        predictor.check(columns, f"{name}:{number}")
    with _writer(values.output_file) as write:
        for answer in _answers(values, predictor, inputs):
            write(json.dumps(answer, ensure_ascii=False))
    what = "words" if isinstance(predictor, predictors.TokenLabeller) else "inputs"
    inference.report_cut(predictor.num_cut, opened, what)


def _answers(
    values: flags.FlagValues, predictor: predictors.Predictor, inputs: Sequence[predictors.Texts]
) -> Iterator[dict[str, Any]]:
    from albert import modeling
    from albert.formats import pretrained
    from albert.model.encoder_options import EncoderOptions
    from albert.training import summaries

    opened = predictor.opened
    model = pretrained.load(
        getattr(modeling, predictor.model_name), opened.path,
        EncoderOptions(engine="graph_loop", needed_outputs_only=True),
        complete=True, **predictor.model_options,
    )
    computer = inference.Computer(
        lambda batch: predictor.compute(model, batch), values.batch_size, opened.max_seq_length
    )
    progress = summaries.Progress("lines", 0, len(inputs), unit="lines")
    for start in range(0, len(inputs), inference.CHUNK):
        chunk = inputs[start : start + inference.CHUNK]
        rows = predictor.rows(chunk)
        outputs: list[list[Any]] = [[None] * len(some) for some in rows]
        places = [(i, j) for i, some in enumerate(rows) for j in range(len(some))]
        for done, (index, found) in enumerate(computer([rows[i][j] for i, j in places])):
            i, j = places[index]
            outputs[i][j] = found
            if values.output_file:
                progress.update(start + done * len(chunk) // len(places))
        progress.clear()
        yield from predictor.answers(chunk, outputs)


@contextlib.contextmanager
def _writer(path: str | None) -> Iterator[Callable[[str], Any]]:
    """Yields the function that takes each line."""
    if path is None:
        yield inference.print_line
        return
    with files.atomic_write(path) as stream:
        yield lambda line: stream.write(line + "\n")


# === Which model it is ===


def _predictor(values: flags.FlagValues, opened: inference.Opened) -> predictors.Predictor:
    """Returns the predictor of --task or of what the directory tells.

    Raises:
      FlagError: neither tells, they differ, or the labels do not fit the model.
    """
    told = _told_task(opened)
    # What kind of classifier it is, not every directory says.
    is_free = told == CLASSIFICATION and not opened.facts.problem_type
    if values.task and told not in (None, values.task) and not (
        is_free and values.task == MULTI_LABEL
    ):
        raise FlagError(f"--task={values.task}: {opened.path} was fine-tuned for {told}")
    task = values.task or told
    if task is None:
        raise FlagError(
            f"{opened.path} does not tell what it was fine-tuned for: give "
            f"--task={'|'.join(TASKS)}"
        )
    if values.is_tokenized and task != TOKENS:
        raise FlagError(f"--is_tokenized has no effect on {task}")
    heads = (_OF_SQUAD, _OF_BEAM) if task == QUESTIONS else ("output_weights",)
    if not any(head in opened.shapes for head in heads):
        raise CheckpointError(f"{opened.path} has no head for {task}: it was not fine-tuned")
    if task == QUESTIONS:
        is_beam = _OF_BEAM in opened.shapes
        return (predictors.DoubtingReader if is_beam else predictors.Reader)(opened)
    if task == CHOICE:
        return predictors.Chooser(opened)
    labels = _labels(values, opened)
    if task == TOKENS:
        return predictors.TokenLabeller(opened, labels, is_tokenized=values.is_tokenized)
    kinds = {MULTI_LABEL: predictors.MultiLabeller, REGRESSION: predictors.Regressor}
    count = opened.facts.num_texts
    columns = {} if count is None else {"least": count, "most": count}
    return kinds.get(task, predictors.Predictor)(opened, labels, **columns)


def _told_task(opened: inference.Opened) -> str | None:
    facts = opened.facts
    if facts.task == "pretraining":
        raise FlagError(
            f"{opened.path} is pretrained, not fine-tuned: fine-tune it, or try albert.fill_mask"
        )
    task = _BY_CLASS.get(facts.architecture)
    if task != CLASSIFICATION:
        return task
    is_one_number = opened.shapes.get("output_weights", [0])[0] == 1
    return _BY_PROBLEM.get(facts.problem_type, REGRESSION if is_one_number else CLASSIFICATION)


def _labels(values: flags.FlagValues, opened: inference.Opened) -> tuple[str, ...]:
    count = opened.shapes["output_weights"][0]
    labels = opened.facts.label_names
    if values.label_list:
        labels = conll.parse_labels(values.label_list, "none")
    labels = labels or tuple(map(str, range(count)))
    if len(labels) != count:
        raise FlagError(
            f"{opened.path} has {count} labels, not {len(labels)} ({' '.join(labels)}): give "
            "--label_list"
        )
    if len(set(labels)) < count:
        raise FlagError(
            f"{opened.path} names a label twice ({' '.join(labels)}): give --label_list"
        )
    return labels


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
