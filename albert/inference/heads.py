"""Which predictor a fine-tuned model needs. No TensorFlow."""

from collections.abc import Sequence

from albert.errors import CheckpointError, FlagError
from albert.formats import model_facts
from albert.inference import predictors
from albert.inference.predictors import Predictor
from albert.inference.session import Session

CLASSIFICATION, REGRESSION = "classification", "regression"
MULTI_LABEL = "multi_label_classification"
TOKENS, QUESTIONS, CHOICE = "token_classification", "question_answering", "multiple_choice"
TASKS = (CLASSIFICATION, MULTI_LABEL, REGRESSION, TOKENS, QUESTIONS, CHOICE)
# What a model was trained for. A classifier of texts can have several kinds of problem.
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
# Weights that only the head of SQuAD 2.0, or only that of 1.1, has.
_OF_BEAM = "answer_class/dense_0/kernel"
_OF_SQUAD = "cls/squad/output_weights"
_HEADS = (_OF_SQUAD, _OF_BEAM, "output_weights")


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
    if task is None and not any(head in shapes for head in _HEADS):
        raise FlagError(
            f"{path} is pretrained, not fine-tuned: fine-tune it, or try albert.fill_mask"
        )
    if task is None:
        raise FlagError(f"{path} does not tell what it was fine-tuned for: {remedy}")
    if is_tokenized and task != TOKENS:
        raise FlagError(f"--is_tokenized has no effect on {task}")
    heads = (_OF_SQUAD, _OF_BEAM) if task == QUESTIONS else ("output_weights",)
    if not any(head in shapes for head in heads):
        raise CheckpointError(f"{path} has no head for {task}: it was not fine-tuned")
    if task == QUESTIONS:
        kind = predictors.DoubtingReader if _OF_BEAM in shapes else predictors.Reader
        return kind(session, task=task)
    if task == CHOICE:
        return predictors.Chooser(session, task=task)
    labels = _label_names(session, labels)
    if task == TOKENS:
        return predictors.TokenLabeller(session, labels, task, is_tokenized=is_tokenized)
    kinds = {MULTI_LABEL: predictors.MultiLabeller, REGRESSION: predictors.Regressor}
    count = facts.num_texts
    columns = {} if count is None else {"least": count, "most": count}
    return kinds.get(task, Predictor)(session, labels, task, **columns)


def known_task(session: Session) -> str | None:
    """Returns the task that the model's directory is for, None if nothing there says it."""
    facts = session.source.facts
    task = _BY_CLASS.get(facts.architecture)
    if task != CLASSIFICATION:
        return task
    is_one_number = session.source.weights().shapes.get("output_weights", [0])[0] == 1
    return _BY_PROBLEM.get(facts.problem_type, REGRESSION if is_one_number else CLASSIFICATION)


def _label_names(session: Session, given: Sequence[str]) -> tuple[str, ...]:
    path, count = session.source.path, session.source.weights().shapes["output_weights"][0]
    labels = tuple(given or session.source.facts.label_names or map(str, range(count)))
    if len(labels) != count:
        raise FlagError(
            f"{path} has {count} labels, not {len(labels)} ({' '.join(labels)}): give "
            "--label_list"
        )
    if len(set(labels)) < count:
        raise FlagError(f"{path} names a label twice ({' '.join(labels)}): give --label_list")
    return labels
