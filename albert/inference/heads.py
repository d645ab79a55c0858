"""Which predictor a fine-tuned model needs. No TensorFlow."""

from collections.abc import Sequence

from albert.errors import CheckpointError, FlagError
from albert.formats import model_facts
from albert.formats.model_classes import (
    CHOICE,
    CLASSIFICATION,
    LABEL_HEAD,
    MODEL_CLASSES,
    QUESTIONS,
    TOKENS,
    class_of_weights,
)
from albert.inference import predictors
from albert.inference.predictors import Predictor
from albert.inference.session import Session

REGRESSION, MULTI_LABEL = "regression", "multi_label_classification"
# What a model was trained for. A classifier of texts can have several kinds of problem.
TASKS = (CLASSIFICATION, MULTI_LABEL, REGRESSION, TOKENS, QUESTIONS, CHOICE)
_BY_PROBLEM = {
    model_facts.SINGLE_LABEL: CLASSIFICATION, model_facts.MULTI_LABEL: MULTI_LABEL,
    model_facts.REGRESSION: REGRESSION,
}


def predictor_of(
    session: Session, task: str | None, labels: Sequence[str] = (), is_tokenized: bool = False,
    remedy: str = "write it anew by save_pretrained of its class",
) -> Predictor:
    """Returns the predictor for a task; by default for the one that the model's directory tells.

    Args:
      labels: names of the labels, if not those that the directory tells.
      is_tokenized: texts are cut into words at blanks only.
      remedy: what a user can do where the directory does not tell the task.

    Raises:
      UserError: the model is only pretrained, the task is unknown or is not the model's, or the
        labels do not fit the model.
    """
    path, facts, shapes = session.source.path, session.source.facts, session.source.weights().shapes
    told = known_task(session)
    # Not every directory tells which kind of classifier it holds.
    is_free = told == CLASSIFICATION and not facts.problem_type
    if task and told not in (None, task) and not (is_free and task == MULTI_LABEL):
        raise FlagError(f"--task={task}: {path} was fine-tuned for {told}")
    task = task or told
    if task is None and not class_of_weights(shapes).task:
        raise FlagError(
            f"{path} is pretrained, not fine-tuned: fine-tune it, or try albert.fill_mask"
        )
    if task is None:
        raise FlagError(f"{path} does not tell what it was fine-tuned for: {remedy}")
    if is_tokenized and task != TOKENS:
        raise FlagError(f"--is_tokenized has no effect on {task}")
    class_task = CLASSIFICATION if task in _BY_PROBLEM.values() else task
    kinds = [kind for kind in MODEL_CLASSES.values() if kind.task == class_task]
    if not any(kind.weight in shapes for kind in kinds):
        raise CheckpointError(f"{path} has no head for {task}: it was not fine-tuned")
    if task == QUESTIONS:
        has_beam = MODEL_CLASSES["AlbertForBeamQuestionAnswering"].weight in shapes
        reader = predictors.DoubtingReader if has_beam else predictors.Reader
        return reader(session, task=task)
    if task == CHOICE:
        return predictors.Chooser(session, task=task)
    labels = _label_names(session, labels)
    if task == TOKENS:
        return predictors.TokenLabeller(session, labels, task, is_tokenized=is_tokenized)
    labellers = {MULTI_LABEL: predictors.MultiLabeller, REGRESSION: predictors.Regressor}
    count = facts.num_texts
    columns = {} if count is None else {"least": count, "most": count}
    return labellers.get(task, Predictor)(session, labels, task, **columns)


def known_task(session: Session) -> str | None:
    """Returns the task that the model's directory is for, None if nothing there says it."""
    facts = session.source.facts
    kind = MODEL_CLASSES.get(facts.architecture)
    if kind is None or kind.task != CLASSIFICATION:
        return kind and kind.task
    is_one_number = session.source.weights().shapes.get(LABEL_HEAD, [0])[0] == 1
    return _BY_PROBLEM.get(facts.problem_type, REGRESSION if is_one_number else CLASSIFICATION)


def _label_names(session: Session, given: Sequence[str]) -> tuple[str, ...]:
    path, count = session.source.path, session.source.weights().shapes[LABEL_HEAD][0]
    labels = tuple(given or session.source.facts.label_names or map(str, range(count)))
    if len(labels) != count:
        raise FlagError(
            f"{path} has {count} labels, not {len(labels)} ({' '.join(labels)}): give "
            "--label_list"
        )
    if len(set(labels)) < count:
        raise FlagError(f"{path} names a label twice ({' '.join(labels)}): give --label_list")
    return labels
