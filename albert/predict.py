"""Answers lines of text with a fine-tuned ALBERT, one JSON object a line.

  python -m albert.predict --model=out --input_file=texts.tsv
  echo "EU rejects German call" | python -m albert.predict --model=ner

The directory tells what it was fine-tuned for: an output directory of run_classifier,
run_race, run_token_classifier or run_squad_v1 and _v2, or Hugging Face's layout;
--task says it where the directory does not. A line is one text, or several separated by
tabs: a pair for a task of pairs; question and passage for question answering;
passage, question and four options for multiple choice.
"""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from albert import files, flags, inference, predictors
from albert.errors import CheckpointError, FlagError
from albert.tasks import conll, glue, race, tsv

log = logging.getLogger("albert")

CLASSIFICATION, REGRESSION = "classification", "regression"
TOKENS, QUESTIONS, CHOICE = "token_classification", "question_answering", "multiple_choice"
TASKS = (CLASSIFICATION, REGRESSION, TOKENS, QUESTIONS, CHOICE)
# What a directory was trained for, by the task's name and by the model's class.
_BY_NAME = {
    **{name: CLASSIFICATION if task.labels else REGRESSION for name, task in glue.TASKS.items()},
    conll.NAME: TOKENS, race.NAME: CHOICE, "squad_v1": QUESTIONS, "squad_v2": QUESTIONS,
}
_BY_CLASS = {
    "AlbertForSequenceClassification": CLASSIFICATION,
    "AlbertForTokenClassification": TOKENS,
    "AlbertForQuestionAnswering": QUESTIONS,
    "AlbertForBeamQuestionAnswering": QUESTIONS,
    "AlbertForMultipleChoice": CHOICE,
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
    inputs = [line.split("\t") if predictor.most > 1 else [line] for line in lines]
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
    from albert import modeling, pretrained, summaries

    opened = predictor.opened
    model = pretrained.load(
        getattr(modeling, predictor.model_name), opened.path, complete=True, in_loop=True,
        **predictor.model_options,
    )
    model.bert.needed_outputs_only = isinstance(model, modeling.HEADS_OF_FEW_PLACES)
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
    if values.task and told and values.task != told:
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
    if task == REGRESSION:
        return predictors.Regressor(opened, **_columns(opened))
    if task == QUESTIONS:
        is_beam = _OF_BEAM in opened.shapes
        return (predictors.DoubtingReader if is_beam else predictors.Reader)(opened)
    if task == CHOICE:
        return predictors.Chooser(opened)
    labels = _labels(values, opened, task)
    if task == TOKENS:
        return predictors.TokenLabeller(opened, labels, is_tokenized=values.is_tokenized)
    return predictors.Predictor(opened, labels, **_columns(opened))


def _told_task(opened: inference.Opened) -> str | None:
    name = opened.trained.get("task")
    if name == "pretraining":
        raise FlagError(
            f"{opened.path} is pretrained, not fine-tuned: fine-tune it, or try albert.fill_mask"
        )
    if name == tsv.NAME:
        return REGRESSION if opened.flags.get("regression") else CLASSIFICATION
    task = _BY_NAME.get(name) or _BY_CLASS.get(opened.trained.get("architecture"))
    is_one_number = opened.shapes.get("output_weights", [0])[0] == 1
    return REGRESSION if task == CLASSIFICATION and is_one_number else task


def _columns(opened: inference.Opened) -> dict[str, int]:
    """Returns how many texts a line of the trained task has, where that is known."""
    name = opened.trained.get("task")
    if name in glue.TASKS:
        has_pair = glue.TASKS[name].test.text_b is not None
    elif name == tsv.NAME:
        has_pair = bool(opened.flags.get("text_pair_column"))
    else:
        return {}
    return {"least": 1 + has_pair, "most": 1 + has_pair}


def _labels(values: flags.FlagValues, opened: inference.Opened, task: str) -> tuple[str, ...]:
    count = opened.shapes["output_weights"][0]
    labels = _told_labels(opened, task)
    if values.label_list:
        labels = conll.parse_labels(values.label_list, "none")
    labels = labels or tuple(map(str, range(count)))
    if len(labels) != count:
        raise FlagError(
            f"{opened.path} has {count} labels, not {len(labels)} ({' '.join(labels)}): give "
            "--label_list"
        )
    return labels


def _told_labels(opened: inference.Opened, task: str) -> tuple[str, ...]:
    name, listed = opened.trained.get("task"), opened.flags.get("label_list")
    if name in glue.TASKS:
        return glue.TASKS[name].labels
    if listed:
        parts = listed.split() if task == TOKENS else listed.split(",")
        return tuple(part.strip() for part in parts)
    path = os.path.join(opened.directory, "config.json")
    theirs = files.read_json_object(path).get("id2label") if os.path.isfile(path) else None
    if not isinstance(theirs, dict):
        return ()
    return tuple(str(theirs.get(str(i), i)) for i in range(len(theirs)))


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
