"""ALBERT models: the encoder, and with each head (arXiv 1909.11942, section 3).

Legend: B batch, L sequence, H hidden, E embedding, V vocabulary, P predictions,
C labels or choices, K and K2 first and last tokens kept.

Every weight's path below its model is its name in a released checkpoint (`named_weights`).
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import albert.model.backend  # noqa: F401, I001  (before Keras)
import keras
from keras import ops

from albert.config import AlbertConfig
from albert.errors import CheckpointError
from albert.formats.model_facts import PROBLEM_TYPES, Facts
from albert.model import answers, quantization
from albert.model.attention import Kept
from albert.model.dropout import NO_DROPOUT, Dropout
from albert.model.encoder import AlbertEncoder, Encoded, FactorizedEmbedding, Pass
from albert.model.encoder_options import Depth, EncoderOptions
from albert.model.heads import LabelHead, MaskedLmHead, cross_entropy, label_logits, label_weights
from albert.model.layers import dense_layer, gelu, get_activation, precision
from albert.model.row_layout import INPUT_NAMES, layout_of, segments_of, weighted
from albert.model.weight_names import named_weights, parameter_shapes

__all__ = [
    "AlbertConfig",
    "AlbertEncoder",
    "AlbertForBeamQuestionAnswering",
    "AlbertForMaskedLM",
    "AlbertForMultipleChoice",
    "AlbertForPreTraining",
    "AlbertForQuestionAnswering",
    "AlbertForSequenceClassification",
    "AlbertForTokenClassification",
    "AlbertModel",
    "EncoderOptions",
    "FactorizedEmbedding",
    "cross_entropy",
    "from_pretrained",
    "gelu",
    "get_activation",
    "named_weights",
    "parameter_shapes",
]

# Of the classifier, RACE and SQuAD 1.1 heads, whatever the config's initializer_range.
HEAD_INITIALIZER_RANGE = 0.02


_registered = keras.saving.register_keras_serializable("albert")


class _BuiltModel(keras.Model):
    """A model that owns all its weights from construction on: they can be restored at once."""

    def __init__(
        self,
        config: AlbertConfig,
        name: str,
        encoder_options: EncoderOptions = EncoderOptions(),
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.encoder_options = encoder_options
        # What goes with it into a directory: names of labels, how texts are prepared, and more.
        self.facts = Facts(architecture=type(self).__name__)
        # For users' own loops; the trainer passes dropout_seed, a function of the step.
        self.seed_generator = keras.random.SeedGenerator()
        with precision(self.dtype_policy):
            self._make_layers()
        self.build()

    def _make_layers(self) -> None:
        """Makes the layers, which `build` builds."""
        raise NotImplementedError

    def call(
        self,
        inputs: Any,
        training: bool = False,
        dropout_seed: Any = None,
        depth: Depth = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> dict[str, Any]:
        """Returns the model's outputs, by name.

        Args:
          inputs: a dict of int tensors, as the tokenizer makes it; or the ids alone.
          training: whether dropout falls; `dropout_seed`, two integers, makes it a function of
            them alone.
          depth: how many layers to apply, if not all.
          output_hidden_states: adds what `Encoded.hidden_states` returns. Of a model that was
            made with `EncoderOptions(output_hidden_states=True)`, the default.
          output_attentions: adds `attentions`: the probabilities of each block, in a list,
            [B, N, L, L] each. Its default is an option too.

        Raises:
          ValueError: these attentions are not there: see `model.attention.Kept`.
        """
        if not isinstance(inputs, Mapping):
            inputs = {"input_ids": inputs}
        dropout, options = NO_DROPOUT, self.encoder_options
        if training:
            dropout = Dropout(self.seed_generator.next() if dropout_seed is None else dropout_seed)
        if output_attentions is None:
            output_attentions = options.output_attentions
        if output_hidden_states is None:
            output_hidden_states = options.output_hidden_states
        kept = Kept(options) if output_attentions else None
        outputs, encoded = self._outputs(inputs, Pass(dropout, depth, kept))
        if output_hidden_states:
            outputs = encoded.hidden_states() | outputs
        return outputs | ({"attentions": kept.probabilities} if kept else {})

    def _outputs(
        self, inputs: Mapping[str, Any], how: Pass
    ) -> tuple[dict[str, Any], Encoded]:
        """Returns what the model is for, and the hidden states that it comes from."""
        raise NotImplementedError

    @classmethod
    def from_pretrained(
        cls, path: str, *, attn_implementation: str = "eager",
        output_hidden_states: bool = False, output_attentions: bool = False, **options: Any,
    ) -> "_BuiltModel":
        """Returns the model of a directory, whoever wrote it (see `albert.formats.pretrained`).

        A released archive, packed or not, one of our output directories, a Hugging Face
        directory, a TF-Hub module, or a checkpoint's prefix; `options`,
        as `num_labels`, are the class's.

        Raises:
          CheckpointError: no such model there, or its encoder does not fit.
          ValueError: no such `attn_implementation`.
        """
        from albert.formats import pretrained

        how = EncoderOptions(
            attn_implementation, output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        return pretrained.load(cls, pretrained.opened(path), how, **options)

    def save_pretrained(self, path: str) -> None:
        """Writes a directory that `from_pretrained` and every command take."""
        from albert.formats import pretrained

        pretrained.save(self, path)

    def get_config(self) -> dict[str, Any]:
        arguments = inspect.signature(type(self)).parameters.keys()
        settings = sorted(arguments - {"config", "name", "encoder_options", "dtype"})
        values = {name: getattr(self, name) for name in settings}
        return {
            "config": self.config.to_dict(),
            **values,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "encoder_options": dataclasses.asdict(self.encoder_options),
            "facts": self.facts.to_dict(),
            "quantized": quantization.quantized_layers(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        values = dict(config)
        facts, options = values.pop("facts", {}), values.pop("encoder_options", {})
        quantized = values.pop("quantized", {})
        is_trainable, policy = values.pop("trainable", True), values.pop("dtype", None)
        values["config"] = AlbertConfig.from_dict(values["config"])
        if isinstance(policy, Mapping):
            policy = keras.dtype_policies.deserialize(policy)
        model = cls(
            **values, dtype=policy,
            # The engine is of the backend, which may be another one now.
            encoder_options=EncoderOptions(**dict(options) | {"engine": "unrolled"}),
        )
        model.facts, model.trainable = Facts.from_dict(facts, "facts"), is_trainable
        quantization.quantize_layers(model, quantized)
        return model


@_registered
class AlbertModel(_BuiltModel):
    """The encoder with its pooler.

    Call it with a dict of int tensors [B, L]: `input_ids`, and optionally
    `input_mask` (default ones) and `segment_ids` (default zeros). Hugging Face's names
    `attention_mask` and `token_type_ids` are taken too. Returns a dict:
    `sequence_output` [B, L, H] and `pooled_output` [B, H].

    With `EncoderOptions.needed_outputs_only`, the last block is computed where a head
    reads it alone, at `[CLS]` and at masked positions, and the output is
    `pooled_output`. Where masked positions may be more than all places
    (`first_and` of the row layout), it is computed at all.
    """

    weight_scope = "bert/"  # within a model with a head, its name

    def __init__(
        self,
        config: AlbertConfig,
        name: str = "bert",
        encoder_options: EncoderOptions = EncoderOptions(),
        dtype: Any = None,
    ):
        super().__init__(config, name, encoder_options, dtype)

    def _make_layers(self) -> None:
        self.embeddings = FactorizedEmbedding(self.config)
        self.encoder = AlbertEncoder(self.config, self.encoder_options)
        self.pooler = dense_layer(self.config.hidden_size, self.config, "dense", ops.tanh)

    def build(self, input_shape=None):
        self.embeddings.build()
        self.encoder.build()
        with keras.name_scope("pooler"):
            self.pooler.build((None, self.config.hidden_size))

    def _outputs(self, inputs: Mapping[str, Any], how: Pass):
        encoded = self.encode(inputs, how)
        pooled = {"pooled_output": encoded.pooled}
        return ({"sequence_output": encoded.sequence} if encoded.states else {}) | pooled, encoded

    def encode(
        self,
        inputs: Mapping[str, Any],
        how: Pass,
        positions: Any = None,
        reads_all: bool = False,
    ) -> Encoded:
        """Returns the hidden states, for a head.

        `positions` [B, P] are those that the head reads beside `[CLS]`, if not all.
        """
        dropout = how.dropout
        layout = layout_of(inputs)
        words, embedded = self.embeddings(
            ops.convert_to_tensor(inputs["input_ids"]), segments_of(inputs),
            position_ids=layout.position_ids, dropout=dropout,
        )
        is_short = self.encoder_options.needed_outputs_only and not reads_all
        places = layout.first_and(positions) if is_short else None
        states = self.encoder(
            embedded, layout=layout, dropout=dropout, places=places, depth=how.depth,
            kept=how.kept,
        )
        last, chosen = states[-1], None
        if places is not None:
            first, chosen, states = last[:, 0], last[:, 1:], ()
        else:
            first = layout.first(last)
            if positions is not None:
                chosen = layout.at(last, positions)
        return Encoded(layout, words, embedded, states, self.pooler(first), chosen)


class _ModelWithHead(_BuiltModel):
    """The encoder, `bert`, and what a class puts on it."""

    default_name: str

    def __init__(
        self,
        config: AlbertConfig,
        name: str | None = None,
        encoder_options: EncoderOptions = EncoderOptions(),
        dtype: Any = None,
    ):
        super().__init__(config, name or self.default_name, encoder_options, dtype)

    def _make_layers(self) -> None:
        self.bert = AlbertModel(self.config, encoder_options=self.encoder_options)
        self._make_head()

    def _make_head(self) -> None:
        """Makes the layers of the head, which `build` builds."""


@_registered
class AlbertForMaskedLM(_ModelWithHead):
    """Encoder with the masked-LM head alone.

    Inputs as `AlbertModel`, and optionally `masked_lm_positions` [B, P]. Returns
    `prediction_logits`: [B, P, V] at the positions, [B, L, V] without them; see also
    `EncoderOptions.weighted_positions_only`.
    """

    default_name = "albert_for_masked_lm"

    def _make_head(self) -> None:
        self.predictions = MaskedLmHead(self.config)

    def build(self, input_shape=None):
        with keras.name_scope("cls"):
            self.predictions.build()

    def _outputs(self, inputs: Mapping[str, Any], how: Pass):
        positions = inputs.get("masked_lm_positions")
        if positions is not None:
            positions = ops.convert_to_tensor(positions)
        encoded = self.bert.encode(inputs, how, positions, reads_all=positions is None)
        hidden, table = encoded.chosen, self.bert.embeddings.word_embeddings
        if positions is None:
            hidden = encoded.sequence
        elif self.encoder_options.weighted_positions_only and "masked_lm_weights" in inputs:
            hidden = weighted(hidden, inputs["masked_lm_weights"])
        return {"prediction_logits": self.predictions(hidden, table)}, encoded


@_registered
class AlbertForPreTraining(AlbertForMaskedLM):
    """Encoder with the masked-LM and sentence-order heads (sections 3.1 and 3.2).

    Inputs as `AlbertForMaskedLM`. Returns `sop_logits` [B, 2] too.
    """

    default_name = "albert_for_pretraining"

    def _make_head(self) -> None:
        super()._make_head()
        self.seq_relationship = LabelHead(
            self.config, 2, self.config.initializer_range, name="seq_relationship"
        )

    def build(self, input_shape=None):
        super().build()
        with keras.name_scope("cls"):
            self.seq_relationship.build()

    def _outputs(self, inputs: Mapping[str, Any], how: Pass):
        outputs, encoded = super()._outputs(inputs, how)
        return outputs | {"sop_logits": self.seq_relationship(encoded.pooled)}, encoded


class _LabelModel(_ModelWithHead):
    """Encoder with a linear layer at the top level, on whose input `classifier_dropout` falls."""

    def __init__(
        self,
        config: AlbertConfig,
        num_labels: int,
        classifier_dropout: float = 0.1,
        name: str | None = None,
        encoder_options: EncoderOptions = EncoderOptions(),
        dtype: Any = None,
    ):
        self.num_labels = num_labels
        self.classifier_dropout = classifier_dropout
        super().__init__(config, name, encoder_options, dtype)

    def build(self, input_shape=None):
        self.output_weights, self.output_bias = label_weights(
            self, self.num_labels, self.config.hidden_size, HEAD_INITIALIZER_RANGE
        )

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of the labels in the order of their ids, which `save_pretrained` keeps."""
        return self.facts.label_names

    @label_names.setter
    def label_names(self, names: Sequence[str] | None) -> None:
        names = names and tuple(map(str, names))
        if names and len(names) != self.num_labels:
            raise ValueError(f"{len(names)} names of {self.num_labels} labels: {', '.join(names)}")
        self.facts = dataclasses.replace(self.facts, label_names=names or None)

    @property
    def problem_type(self) -> str | None:
        """What its numbers mean, one of `model_facts.PROBLEM_TYPES`; None is not said."""
        return self.facts.problem_type

    @problem_type.setter
    def problem_type(self, name: str | None) -> None:
        if name not in (None, *PROBLEM_TYPES):
            raise ValueError(f"problem_type {name!r} is not one of {', '.join(PROBLEM_TYPES)}")
        self.facts = dataclasses.replace(self.facts, problem_type=name)

    def _logits(self, x, dropout: Dropout):
        kept = dropout(x, self.classifier_dropout)
        return label_logits(kept, self.output_weights, self.output_bias)


@_registered
class AlbertForSequenceClassification(_LabelModel):
    """Encoder with C logits from the pooled output: GLUE, and regression with C = 1.

    Inputs as `AlbertModel`. Returns `logits` [B, C].
    """

    default_name = "albert_for_sequence_classification"

    def _outputs(self, inputs: Mapping[str, Any], how: Pass):
        encoded = self.bert.encode(inputs, how)
        return {"logits": self._logits(encoded.pooled, how.dropout)}, encoded


@_registered
class AlbertForTokenClassification(_LabelModel):
    """Encoder with C logits of every token: inputs as `AlbertModel`, `logits` [B, L, C]."""

    default_name = "albert_for_token_classification"

    def _outputs(self, inputs: Mapping[str, Any], how: Pass):
        encoded = self.bert.encode(inputs, how, reads_all=True)
        return {"logits": self._logits(encoded.sequence, how.dropout)}, encoded


@_registered
class AlbertForMultipleChoice(_LabelModel):
    """Encoder with one logit of each of C choices (RACE); its head has one label.

    Inputs are [B, C, L] of any C, or [B, C * L] of `num_choices` as RACE's records hold
    them. Returns `logits` [B, C]; hidden states have B * C rows.
    """

    default_name = "albert_for_multiple_choice"

    def __init__(
        self,
        config: AlbertConfig,
        num_choices: int = 4,
        classifier_dropout: float = 0.1,
        name: str | None = None,
        encoder_options: EncoderOptions = EncoderOptions(),
        dtype: Any = None,
    ):
        self.num_choices = num_choices
        super().__init__(config, 1, classifier_dropout, name, encoder_options, dtype)

    def _outputs(self, inputs: Mapping[str, Any], how: Pass):
        shape = inputs["input_ids"].shape
        choices = (shape[1] if len(shape) == 3 else None) or self.num_choices
        if "packed_places" not in inputs:  # there, each choice is an example of a row
            names = ("input_ids", *INPUT_NAMES)
            inputs = {name: self._rows(inputs[name]) for name in names if name in inputs}
        encoded = self.bert.encode(inputs, how)
        logits = self._logits(encoded.pooled, how.dropout)  # [B * C, 1]
        return {"logits": ops.reshape(logits, (-1, choices))}, encoded

    def _rows(self, x):
        x = ops.convert_to_tensor(x)
        length = ops.shape(x)[-1] // (self.num_choices if len(x.shape) == 2 else 1)
        return ops.reshape(x, (-1, length))  # [B * C, L]


@_registered
class AlbertForQuestionAnswering(_ModelWithHead):
    """Encoder with two logits of each token, the answer's first and last (SQuAD 1.1).

    Inputs as `AlbertModel`. Returns `start_logits` and `end_logits` [B, L]; nothing is masked.
    """

    default_name = "albert_for_question_answering"

    def _make_head(self) -> None:
        self.squad = LabelHead(self.config, 2, HEAD_INITIALIZER_RANGE, name="squad")

    def build(self, input_shape=None):
        with keras.name_scope("cls"):
            self.squad.build()

    def _outputs(self, inputs: Mapping[str, Any], how: Pass):
        encoded = self.bert.encode(inputs, how, reads_all=True)
        logits = self.squad(encoded.sequence)  # [B, L, 2]
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}, encoded


@_registered
class AlbertForBeamQuestionAnswering(_ModelWithHead):
    """Encoder with first tokens, last tokens given the first, and answerability (SQuAD 2.0).

    Inputs as `AlbertModel`, and optionally `p_mask` [B, L], 1 where no answer can be: by
    default all but `[CLS]` and the second segment without its `[SEP]`. With
    the gold `start_positions` [B] among them, returns `start_log_probs` and
    `end_log_probs` [B, L]; without, the beam: `start_top_log_probs` and
    `start_top_index` [B, K], `end_top_log_probs` and `end_top_index` [B, K * K2]
    (those of the first start first; where a row has too few places, `[CLS]` without a
    chance). Always `cls_logits` [B], of having no answer.
    """

    default_name = "albert_for_beam_question_answering"

    def __init__(
        self,
        config: AlbertConfig,
        start_n_top: int = 5,
        end_n_top: int = 5,
        classifier_dropout: float = 0.1,
        name: str | None = None,
        encoder_options: EncoderOptions = EncoderOptions(),
        dtype: Any = None,
    ):
        self.start_n_top = start_n_top
        self.end_n_top = end_n_top
        self.classifier_dropout = classifier_dropout
        super().__init__(config, name, encoder_options, dtype)

    def _make_head(self) -> None:
        self.start_head = answers.SpanStartHead(self.config)
        self.end_head = answers.SpanEndHead(self.config)
        self.answer_class = answers.AnswerClassHead(self.config)

    def build(self, input_shape=None):
        for head in (self.start_head, self.end_head, self.answer_class):
            head.build()

    def _outputs(self, inputs: Mapping[str, Any], how: Pass):
        encoded = self.bert.encode(inputs, how, reads_all=True)
        sequence, impossible = encoded.sequence, answers.p_mask(inputs, encoded.layout)
        start_logits = answers.without(self.start_head(sequence), impossible)
        start_log_probs = ops.log_softmax(start_logits)
        expected = ops.cast(ops.softmax(start_logits), sequence.dtype)[:, None]  # [B, 1, L]
        start_feature = ops.matmul(expected, sequence)[:, 0]  # [B, H]
        of_none = self.answer_class(
            start_feature, sequence[:, 0], dropout=how.dropout, rate=self.classifier_dropout
        )
        outputs = {"cls_logits": of_none}
        gold = inputs.get("start_positions")
        if gold is not None:
            starts = ops.reshape(ops.convert_to_tensor(gold), (-1, 1))
            ends = answers.end_log_probs(self.end_head, sequence, starts, impossible)[:, 0]
            return outputs | {"start_log_probs": start_log_probs, "end_log_probs": ends}, encoded
        widths = self.start_n_top, self.end_n_top
        found = answers.beam(self.end_head, sequence, start_log_probs, impossible, widths)
        return outputs | found, encoded


def from_pretrained(path: str, **options: Any) -> _BuiltModel:
    """Returns the model of a directory, of the class that it was saved as.

    Arguments as of each class's `from_pretrained`.

    Raises:
      CheckpointError: no such model there, or of a class that is not ours.
    """
    from albert.formats import pretrained

    source = pretrained.open_path(path)
    name = pretrained.class_of(source)
    kind = globals().get(name)
    if not (isinstance(kind, type) and issubclass(kind, _BuiltModel)):
        raise CheckpointError(f"{path}: {name} is no class of this toolkit")
    return kind.from_pretrained(source, **options)
