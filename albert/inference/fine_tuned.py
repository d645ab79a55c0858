"""Chooses the predictor for a fine-tuned model. No TensorFlow."""

from collections.abc import Sequence
from typing import Any

from albert.errors import CheckpointError, FlagError, some
from albert.formats.metadata import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from albert.formats.model_classes import LABEL_HEAD, MODEL_CLASSES, class_of_weights
from albert.inference.predictors import (
    ChoicePredictor, MultiLabelClassifier, Regressor, TaskPredictor, TextClassifier, TokenClassifier,
)
from albert.inference.question_answering import BeamQuestionAnswerer, QuestionAnswerer

_PREDICTORS = {kind.task: kind for kind in (
    TextClassifier, MultiLabelClassifier, Regressor, TokenClassifier, QuestionAnswerer,
    ChoicePredictor,
)}
TASKS = tuple(_PREDICTORS)
_TASK_OF_PROBLEM = {
    SINGLE_LABEL: TextClassifier.task,
    MULTI_LABEL: MultiLabelClassifier.task,
    REGRESSION: Regressor.task,
}


def predictor_of(
    session: Any, task: str | None, labels: Sequence[str] = (), is_tokenized: bool = False,
    remedy: str = "save it again with save_pretrained of its class",
) -> TaskPredictor:
    """Returns the predictor for a task, by default for the one that the model was saved with.

    Args:
      labels: names of the labels, by default those saved with the model.
      is_tokenized: whether texts are split into words only at blanks.
      remedy: what users can do if the model was saved without a task, for the error.

    Raises:
      UserError: the model is only pretrained, the task is unknown or not the model's, or the
        labels do not fit the model.
    """
    task = _task(session, task, remedy)
    if is_tokenized and task != TokenClassifier.task:
        raise FlagError(f"--is_tokenized has no effect on {task}")
    kind, shapes = _PREDICTORS[task], session.source.weights().shapes
    kinds = [BeamQuestionAnswerer, kind] if kind is QuestionAnswerer else [kind]
    kind = next((k for k in kinds if MODEL_CLASSES[k.class_name].weight in shapes), None)
    if not kind:
        raise CheckpointError(
            f"{session.source.path} has no head for {task}: it was not fine-tuned"
        )
    if task == QuestionAnswerer.task:
        return kind(session)
    if task == ChoicePredictor.task:
        return ChoicePredictor(session)
    labels = _label_names(session, labels)
    if task == TokenClassifier.task:
        return TokenClassifier(session, labels, is_tokenized=is_tokenized)
    count = session.source.metadata.num_texts
    return kind(session, labels, count or 1, count or 2)


def known_task(session: Any) -> str | None:
    """Returns the task that the model was saved with, if any."""
    metadata = session.source.metadata
    kind = MODEL_CLASSES.get(metadata.architecture)
    task = kind and kind.task
    if task != TextClassifier.task:
        return task
    is_one_number = session.source.weights().shapes.get(LABEL_HEAD, [0])[0] == 1
    default = Regressor.task if is_one_number else task
    return _TASK_OF_PROBLEM.get(metadata.problem_type, default)


def _task(session: Any, task: str | None, remedy: str) -> str:
    path, known = session.source.path, known_task(session)
    # Not every directory says which kind of classifier it holds.
    is_free = known == TextClassifier.task and not session.source.metadata.problem_type
    if task and known not in (None, task) and not (is_free and task == MultiLabelClassifier.task):
        raise FlagError(f"task={task}: {path} was fine-tuned for {known}")
    if task or known:
        return task or known
    if not class_of_weights(session.source.weights().shapes).task:
        raise FlagError(
            f"{path} is pretrained, not fine-tuned: fine-tune it, or try albert.fill_mask"
        )
    raise FlagError(f"{path} does not say what it was fine-tuned for: {remedy}")


def _label_names(session: Any, given: Sequence[str]) -> tuple[str, ...]:
    path, count = session.source.path, session.source.weights().shapes[LABEL_HEAD][0]
    known = session.source.metadata.label_names or tuple(map(str, range(count)))
    # Labels that are their own ids may get names.
    are_ids = known in (tuple(map(str, range(count))), tuple(f"LABEL_{i}" for i in range(count)))
    labels = tuple(given or known)
    if len(labels) != count:
        raise FlagError(
            f"{path} has {count} labels, not {len(labels)} ({some(labels)}): give --label_list"
        )
    if len(set(labels)) < count:
        raise FlagError(f"{path} names a label twice ({some(labels)}): give --label_list")
    if not are_ids and {*labels} != {*known}:
        raise FlagError(f"{path} was trained for the labels {some(known)}, not {some(labels)}: leave "
                        "--label_list out")
    return labels if are_ids else known
