"""ALBERT models: the encoder, alone and with each head (arXiv 1909.11942, section 3).

Legend: B batch, L sequence, H hidden, E embedding, V vocabulary, P predictions, C labels or
choices, K and K2 candidates for the first and the last token of an answer.

The path of a weight below its model is its name in a released checkpoint (`named_weights`).
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import albert.model  # noqa: F401, I001  (before Keras)
import keras
from keras import ops

from albert.config import NO_OPTION, AlbertConfig
from albert.errors import CheckpointError
from albert.formats.metadata import PROBLEM_TYPES
from albert.model import answers
from albert.model.dropout import Dropout
from albert.model.encoder import AlbertEncoder, Encoded, EncoderOptions, FactorizedEmbedding
from albert.model.heads import LabelHead, MaskedLmHead, cross_entropy
from albert.model.layers import gelu, get_activation
from albert.model.row_layout import INPUT_NAMES, weighted
from albert.model.weights import named_weights, parameter_shapes
from albert.model_base import AlbertModel, ModelWithHead, PretrainedModel, registered

__all__ = [
    "AlbertConfig", "AlbertEncoder", "AlbertForBeamQuestionAnswering", "AlbertForMaskedLM",
    "AlbertForMultipleChoice", "AlbertForPreTraining", "AlbertForQuestionAnswering",
    "AlbertForSequenceClassification", "AlbertForTokenClassification", "AlbertModel",
    "EncoderOptions", "FactorizedEmbedding", "LabelAccuracy", "cross_entropy", "from_pretrained", "gelu",
    "get_activation", "named_weights", "parameter_shapes",
]

# Of the heads of classifiers, RACE and SQuAD 1.1, whatever the config's initializer_range.
HEAD_INITIALIZER_RANGE = 0.02


@registered
class AlbertForMaskedLM(ModelWithHead):
    """Encoder with the masked-LM head, which predicts the token at each position.

    Inputs are those of `AlbertModel` and, optionally, `masked_lm_positions` [B, P]. The output is
    `prediction_logits`: [B, P, V] at these positions, [B, L, V] without them.

    Example:
      >>> tokenizer = albert.AlbertTokenizer.from_pretrained("small_en")
      >>> model = albert.AlbertForMaskedLM.from_pretrained("small_en")
      >>> inputs = tokenizer(["The boys [MASK] playing in the garden."], return_tensors="np")
      >>> logits = model(**inputs).logits
      >>> tuple(logits.shape)
      (1, 10, 28455)
      >>> position = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
      >>> tokenizer.convert_ids_to_tokens(np.argmax(logits[0, position]))
      'were'
    """

    default_name, head_scope = "albert_for_masked_lm", "cls"
    reads_all = True
    input_names = (*ModelWithHead.input_names, "masked_lm_positions")

    def _make_head(self) -> None:
        self.predictions = MaskedLmHead(self.config)

    def _positions(self, inputs: Mapping[str, Any]):
        positions = inputs.get("masked_lm_positions")
        return None if positions is None else ops.convert_to_tensor(positions)

    def _outputs(self, encoded: Encoded, inputs: Mapping[str, Any], dropout: Dropout):
        hidden = encoded.sequence if encoded.chosen is None else encoded.chosen
        if encoded.chosen is not None and self.encoder_options.weighted_positions_only:
            if "masked_lm_weights" in inputs:
                hidden = weighted(hidden, inputs["masked_lm_weights"])
        return {"prediction_logits": self.predictions(hidden, self.bert.embeddings.word_embeddings)}


@registered
class AlbertForPreTraining(AlbertForMaskedLM):
    """Encoder with the masked-LM and sentence-order heads (sections 3.1 and 3.2).

    Inputs and outputs are those of `AlbertForMaskedLM`, and the output `sop_logits` [B, 2].
    """

    default_name = "albert_for_pretraining"

    def _make_head(self) -> None:
        super()._make_head()
        self.seq_relationship = LabelHead(
            self.config, 2, self.config.initializer_range, name="seq_relationship"
        )

    def _outputs(self, encoded: Encoded, inputs: Mapping[str, Any], dropout: Dropout):
        outputs = super()._outputs(encoded, inputs, dropout)
        return outputs | {"sop_logits": self.seq_relationship(encoded.pooled)}


class _LabelModel(ModelWithHead):
    """Encoder with dropout and a linear layer, `classifier`."""

    def __init__(
        self, config: AlbertConfig, num_labels: int, classifier_dropout: float = 0.1,
        name: str | None = None, encoder_options: EncoderOptions = EncoderOptions(),
        dtype: Any = None,
    ):
        self.num_labels = num_labels
        self.classifier_dropout = classifier_dropout
        super().__init__(config, name, encoder_options, dtype)

    def _make_head(self) -> None:
        self.classifier = LabelHead(self.config, self.num_labels, HEAD_INITIALIZER_RANGE, name="classifier")

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The names of the labels, in the order of their ids; saved with the model."""
        return self.metadata.label_names

    @label_names.setter
    def label_names(self, names: Sequence[str] | None) -> None:
        names = names and tuple(map(str, names))
        if names and len(names) != self.num_labels:
            raise ValueError(f"{len(names)} names of {self.num_labels} labels: {', '.join(names)}")
        self.metadata = dataclasses.replace(self.metadata, label_names=names or None)

    @property
    def problem_type(self) -> str | None:
        """What the outputs mean, one of `metadata.PROBLEM_TYPES`; None if unknown."""
        return self.metadata.problem_type

    @problem_type.setter
    def problem_type(self, name: str | None) -> None:
        if name not in (None, *PROBLEM_TYPES):
            raise ValueError(f"problem_type {name!r} is not one of {', '.join(PROBLEM_TYPES)}")
        self.metadata = dataclasses.replace(self.metadata, problem_type=name)

    def _logits(self, x, dropout: Dropout):
        return self.classifier(dropout(x, self.classifier_dropout))


@registered
class AlbertForSequenceClassification(_LabelModel):
    """Encoder with C logits of a text or a pair of texts; a regression with `num_labels=1`.

    A regression's logit is in the units of its labels: standardized ones are trained with the weights
    `label_mean` and `label_deviation`, 0 and 1 by default.

    Inputs are those of `AlbertModel`, the output is `logits` [B, C]. The loss is that of
    `compile`: `SparseCategoricalCrossentropy(from_logits=True)` for ids [B];
    `BinaryCrossentropy(from_logits=True)` for 0 and 1 [B, C], if several labels can apply to a
    text; "mse" for numbers [B, 1].

    Example:
      >>> texts, labels = ["a fine film", "a great story", "a dull film", "a bad story"], [1, 1, 0, 0]
      >>> tokenizer = albert.AlbertTokenizer.from_pretrained("small_en")
      >>> inputs = tokenizer(texts, padding=True, return_tensors="np")
      >>> model = albert.AlbertForSequenceClassification.from_pretrained(
      ...     "small_en", num_labels=2, label_names=["negative", "positive"])
      >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
      >>> model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
      >>> history = model.fit(inputs, np.array(labels), epochs=20, verbose=0)
      >>> model.save_pretrained("my_classifier")
      >>> tokenizer.save_pretrained("my_classifier")
      >>> session = albert.open_session("my_classifier")
      >>> [answer["label"] for answer in session.classify(["a fine film", "a dull film"])]
      ['positive', 'negative']
    """

    default_name = "albert_for_sequence_classification"

    def _add_weights(self) -> None:
        super()._add_weights()
        if self.num_labels == 1:
            self.label_mean, self.label_deviation = (
                self.add_weight((), initial, "float32", trainable=False, autocast=False, name=name)
                for name, initial in (("label_mean", "zeros"), ("label_deviation", "ones"))
            )

    def _outputs(self, encoded: Encoded, inputs: Mapping[str, Any], dropout: Dropout):
        logits = self._logits(encoded.pooled, dropout)
        if self.num_labels == 1:
            logits = ops.cast(logits, "float32") * self.label_deviation + self.label_mean
        return {"logits": logits}


@registered
class AlbertForTokenClassification(_LabelModel):
    """Encoder with C logits for each token.

    Inputs are those of `AlbertModel`, the output is `logits` [B, L, C].

    Example:
      >>> # Tokens whose label is -100 count neither in the loss nor in the accuracy.
      >>> model = albert.AlbertForTokenClassification.from_pretrained("small_en", num_labels=3)
      >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100)
      >>> model.compile("adam", loss, metrics=[albert.modeling.LabelAccuracy()])
      >>> ids, labels = np.array([[2, 581, 2345, 3]]), np.array([[-100, 1, 2, -100]])
      >>> sorted(model.fit(ids, labels, verbose=0).history)
      ['accuracy', 'loss']
    """

    default_name = "albert_for_token_classification"
    reads_all = True

    def _outputs(self, encoded: Encoded, inputs: Mapping[str, Any], dropout: Dropout):
        return {"logits": self._logits(encoded.sequence, dropout)}


@registered
class AlbertForMultipleChoice(_LabelModel):
    """Encoder with one logit for each of C choices (RACE).

    Inputs are those of `AlbertModel`, but [B, C, L] for any C. The output is `logits` [B, C]. Hidden
    states have B * C sequences.
    """

    default_name = "albert_for_multiple_choice"
    input_axes = ("examples", "choices", "tokens")

    def __init__(
        self, config: AlbertConfig, num_choices: int = 4, classifier_dropout: float = 0.1,
        name: str | None = None, encoder_options: EncoderOptions = EncoderOptions(),
        dtype: Any = None,
    ):
        self.num_choices = num_choices
        super().__init__(config, 1, classifier_dropout, name, encoder_options, dtype)

    def _encoder_inputs(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if "packed_places" in inputs:  # packed choices are separate examples
            return inputs
        names = ("input_ids", *INPUT_NAMES, "position_ids")
        return {name: self._sequences(inputs[name]) for name in names if name in inputs}

    def _outputs(self, encoded: Encoded, inputs: Mapping[str, Any], dropout: Dropout):
        logits = self._logits(encoded.pooled, dropout)  # [B * C, 1]
        shape = inputs["input_ids"].shape
        choices = (shape[1] if len(shape) == 3 else None) or self.num_choices
        logits = ops.reshape(logits, (-1, choices))
        if "packed_mask" in inputs:
            mask = inputs["packed_mask"]
        elif "input_mask" in inputs:
            mask = self._sequences(inputs["input_mask"])
        else:
            return {"logits": logits}
        # Questions may have different numbers of options: one without tokens isn't an option.
        exists = ops.reshape(ops.max(ops.cast(mask, "int32"), axis=-1) > 0, (-1, choices))
        return {"logits": ops.where(exists, logits, ops.cast(NO_OPTION, logits.dtype))}

    def _sequences(self, x):
        x = ops.convert_to_tensor(x)
        length = ops.shape(x)[-1] // (self.num_choices if len(x.shape) == 2 else 1)
        return ops.reshape(x, (-1, length))  # [B * C, L]


@registered
class AlbertForQuestionAnswering(ModelWithHead):
    """Encoder with two logits for each token, to be an answer's first and last one (SQuAD 1.1).

    Inputs are those of `AlbertModel`, outputs `start_logits` and `end_logits` [B, L], without a
    mask.

    Example:
      >>> tokenizer = albert.AlbertTokenizer.from_pretrained("small_en")
      >>> model = albert.AlbertForQuestionAnswering.from_pretrained("small_en")  # a new head
      >>> inputs = tokenizer(["Who sat?"], ["A cat sat on a mat."], return_tensors="np")
      >>> {name: tuple(value.shape) for name, value in model(inputs).items()}
      {'start_logits': (1, 13), 'end_logits': (1, 13)}
    """

    default_name, head_scope = "albert_for_question_answering", "cls"
    reads_all = True

    def _make_head(self) -> None:
        self.squad = LabelHead(self.config, 2, HEAD_INITIALIZER_RANGE, name="squad")

    def _outputs(self, encoded: Encoded, inputs: Mapping[str, Any], dropout: Dropout):
        logits = self.squad(encoded.sequence)  # [B, L, 2]
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


@registered
class AlbertForBeamQuestionAnswering(ModelWithHead):
    """Encoder with a beam search for an answer's first and last token, or none (SQuAD 2.0).

    Inputs are those of `AlbertModel` and, optionally, `p_mask` [B, L], 1 where no answer can be: by
    default all but `[CLS]` and the second segment without its `[SEP]`. Outputs are `cls_logits`
    [B], of having no answer, and either the beam or, given the correct `start_positions` [B],
    `start_log_probs` and `end_log_probs` [B, L]. The beam is `start_top_log_probs` and
    `start_top_index` [B, K], `end_top_log_probs` and `end_top_index` [B, K * K2], start by start;
    sequences with fewer tokens fill it with position 0 and a probability of 0.
    """

    default_name = "albert_for_beam_question_answering"
    reads_all = True
    input_names = (*ModelWithHead.input_names, "p_mask", "start_positions")

    def __init__(
        self, config: AlbertConfig, start_n_top: int = 5, end_n_top: int = 5,
        classifier_dropout: float = 0.1, name: str | None = None,
        encoder_options: EncoderOptions = EncoderOptions(), dtype: Any = None,
    ):
        self.start_n_top = start_n_top
        self.end_n_top = end_n_top
        self.classifier_dropout = classifier_dropout
        super().__init__(config, name, encoder_options, dtype)

    def _make_head(self) -> None:
        self.start_head = answers.SpanStartHead(self.config)
        self.end_head = answers.SpanEndHead(self.config)
        self.answer_class = answers.AnswerClassHead(self.config)

    def _outputs(self, encoded: Encoded, inputs: Mapping[str, Any], dropout: Dropout):
        sequence, impossible = encoded.sequence, answers.p_mask(inputs, encoded.layout)
        start_logits = answers.without(self.start_head(sequence), impossible)
        start_log_probs = ops.log_softmax(start_logits)
        expected = ops.cast(ops.softmax(start_logits), sequence.dtype)[:, None]  # [B, 1, L]
        start_feature = ops.matmul(expected, sequence)[:, 0]  # [B, H]
        outputs = {"cls_logits": self.answer_class(
            start_feature, sequence[:, 0], dropout=dropout, rate=self.classifier_dropout
        )}
        correct_starts = inputs.get("start_positions")
        if correct_starts is not None:
            starts = ops.reshape(ops.convert_to_tensor(correct_starts), (-1, 1))
            ends = answers.end_log_probs(self.end_head, sequence, starts, impossible)[:, 0]
            return outputs | {"start_log_probs": start_log_probs, "end_log_probs": ends}
        widths = self.start_n_top, self.end_n_top
        return outputs | answers.beam(self.end_head, sequence, start_log_probs, impossible, widths)


@registered
class LabelAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """The accuracy over the labels that aren't -100, which a loss with `ignore_class=-100` ignores."""

    def __init__(self, name: str = "accuracy", dtype: Any = None):
        super().__init__(name, dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        counts = ops.cast(ops.not_equal(y_true, -100), self.dtype)
        if sample_weight is not None:
            counts = counts * ops.cast(sample_weight, self.dtype)
        return super().update_state(y_true, y_pred, counts)


def from_pretrained(
    path: str | os.PathLike[str], revision: str | None = None, **options: Any
) -> PretrainedModel:
    """Loads a model as the class that it was saved as.

    Args:
      path: a directory, a checkpoint's prefix, a TF-Hub module, the built-in model "small_en", or
        the name of a model on the Hugging Face Hub, such as "albert/albert-base-v2", which is
        downloaded.
      revision: branch, tag or commit on the Hub; by default "main".
      options: further arguments of `from_pretrained` of the class.

    Raises:
      CheckpointError: there is no model at the path, or albert doesn't have its class.

    Example:
      >>> model = albert.from_pretrained("small_en")
      >>> type(model).__name__, model.count_params()
      ('AlbertForMaskedLM', 15582183)
      >>> model.save_pretrained("my_model")
      >>> encoder = albert.AlbertModel.from_pretrained("my_model")  # without the heads
    """
    from albert.formats import model_hub, pretrained

    source = pretrained.open_path(model_hub.with_revision(os.fspath(path), revision))
    name = pretrained.class_of(source)
    model_class = globals().get(name)
    if not (isinstance(model_class, type) and issubclass(model_class, PretrainedModel)):
        raise CheckpointError(f"{path}: albert has no model class {name}")
    return model_class.from_pretrained(source, **options)
