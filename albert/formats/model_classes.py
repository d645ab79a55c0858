"""The registry of the model classes of `albert.modeling`. No Keras.

Export, prediction, ONNX, model cards, Hugging Face's layout and `from_pretrained` use it.
"""

import dataclasses
from collections.abc import Iterable

CLASSIFICATION, TOKENS = "classification", "token_classification"
QUESTIONS, CHOICE = "question_answering", "multiple_choice"
LABEL_HEAD = "output_weights"  # of three classes: metadata say which


@dataclasses.dataclass(frozen=True)
class ModelClass:
    """One class of `albert.modeling`."""

    name: str  # also at Hugging Face, if it `is_at_hugging_face`
    outputs: tuple[str, ...]  # to export; the model card shows the first
    gives: str  # in the model card: "An ALBERT that gives ..."
    head: str | None = None  # value of export_model's --head
    weight: str | None = None  # a checkpoint with this weight has this head
    task: str | None = None  # of `predict`; None for pretrained models
    has_labels: bool = False  # whether its outputs have names
    reads_pooler: bool = False  # otherwise Hugging Face's class has no pooler
    is_at_hugging_face: bool = True


_ALL = (
    ModelClass(
        "AlbertModel", ("pooled_output", "sequence_output"),
        "embeddings of a text and of each of its tokens", head="encoder", reads_pooler=True,
    ),
    ModelClass(
        "AlbertForPreTraining", ("sop_logits", "prediction_logits"),
        "predictions of masked tokens, and the order of two segments",
        weight="cls/seq_relationship/output_weights", reads_pooler=True,
    ),
    ModelClass(
        "AlbertForMaskedLM", ("prediction_logits",), "predictions of masked tokens",
        head="masked_lm", weight="cls/predictions/output_bias",
    ),
    ModelClass(
        "AlbertForSequenceClassification", ("logits",),
        "scores of labels, or a number, for a text or a pair of texts",
        head="sequence_classification", weight=LABEL_HEAD, task=CLASSIFICATION,
        has_labels=True, reads_pooler=True,
    ),
    ModelClass(
        "AlbertForTokenClassification", ("logits",), "scores of labels for every token of a text",
        head="token_classification", weight=LABEL_HEAD, task=TOKENS,
        has_labels=True,
    ),
    ModelClass(
        "AlbertForMultipleChoice", ("logits",), "a score for each of several choices",
        head="multiple_choice", weight=LABEL_HEAD, task=CHOICE,
        reads_pooler=True,
    ),
    ModelClass(
        "AlbertForQuestionAnswering", ("start_logits", "end_logits"),
        "scores of the first and the last token of an answer in a text",
        head="question_answering", weight="cls/squad/output_weights", task=QUESTIONS,
    ),
    ModelClass(
        "AlbertForBeamQuestionAnswering",
        ("cls_logits", "start_top_log_probs", "start_top_index", "end_top_log_probs",
         "end_top_index"),
        "the likeliest answers in a text, and whether there is none",
        head="beam_question_answering", weight="answer_class/dense_0/kernel", task=QUESTIONS,
        is_at_hugging_face=False,
    ),
)
MODEL_CLASSES = {one.name: one for one in _ALL}
ENCODER = MODEL_CLASSES["AlbertModel"]
EXPORT_HEADS = {one.head: one for one in _ALL if one.head}


def class_of_weights(names: Iterable[str]) -> ModelClass:
    """Returns the class of the head among a checkpoint's weights, else the encoder's.

    Fine-tuned heads have priority over those of pretraining. Of the three classes that share
    `output_weights` it is sequence classification.
    """
    names = set(names)
    fine_tuned_first = sorted(_ALL, key=lambda one: one.task is None)
    return next((one for one in fine_tuned_first if one.weight in names), ENCODER)


def is_labelled(name: str | None) -> bool:
    """Whether the outputs of this class have names."""
    return name in MODEL_CLASSES and MODEL_CLASSES[name].has_labels


def reads_pooler(kind: type) -> bool:
    """Whether the outputs of a class, or of a user's subclass, depend on the pooler."""
    names = (base.__name__ for base in kind.__mro__)
    return next(MODEL_CLASSES[name].reads_pooler for name in names if name in MODEL_CLASSES)
