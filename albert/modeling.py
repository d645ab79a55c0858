"""ALBERT models: the encoder, and with each head (arXiv 1909.11942, section 3).

Legend: B batch, L sequence, H hidden, E embedding, V vocabulary, P predictions,
C labels or choices, K and K2 first and last tokens kept.

Every weight's path below its model is its name in a released checkpoint (`named_weights`).
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from albert.config import AlbertConfig
from albert.formats.model_facts import PROBLEM_TYPES, Facts
from albert.model import answers
from albert.model.dropout import NO_DROPOUT, Dropout
from albert.model.encoder import AlbertEncoder, Encoded, FactorizedEmbedding
from albert.model.encoder_options import EncoderOptions
from albert.model.heads import LabelHead, MaskedLmHead, cross_entropy, label_logits, label_weights
from albert.model.layers import dense_layer, gelu, get_activation
from albert.model.row_layout import INPUT_NAMES, layout_of, segments_of
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
    "gelu",
    "get_activation",
    "named_weights",
    "parameter_shapes",
]

# Of the classifier, RACE and SQuAD 1.1 heads, whatever the config's initializer_range.
HEAD_INITIALIZER_RANGE = 0.02


class _BuiltModel(keras.Model):
    """A model that owns all its weights from construction on: they can be restored at once."""

    reads_pooler = False  # whether the pooler's weights matter to the outputs of its head

    def __init__(self, config: AlbertConfig, name: str):
        super().__init__(name=name)
        self.config = config
        # What goes with it into a directory: names of labels, how texts are prepared, and more.
        self.facts = Facts(architecture=type(self).__name__)
        # For users' own loops; the trainer passes dropout_seed, a function of the step.
        self.seed_generator = keras.random.SeedGenerator()

    def call(
        self,
        inputs: Mapping[str, Any],
        training: bool = False,
        dropout_seed: Any = None,
        depth: int | None = None,
    ) -> dict[str, Any]:
        """Returns the model's outputs.

        Args:
          training: whether dropout falls; `dropout_seed`, two integers, makes it a function of
            them alone.
          depth: how many layers to apply, if not all.
        """
        dropout = NO_DROPOUT
        if training:
            dropout = Dropout(self.seed_generator.next() if dropout_seed is None else dropout_seed)
        return self._outputs(inputs, dropout, depth)

    @classmethod
    def from_pretrained(
        cls, path: str, *, attn_implementation: str = "eager", **options: Any
    ) -> "_BuiltModel":
        """Returns the model of a directory, whoever wrote it (see `albert.formats.pretrained`).

        A released archive, one of our output directories, a Hugging Face directory, a
        TF-Hub module, or a checkpoint's prefix; `options`, as `num_labels`, are the class's.

        Raises:
          CheckpointError: no such model there, or its encoder does not fit.
          ValueError: no such `attn_implementation`.
        """
        from albert.formats import pretrained

        return pretrained.load(
            cls, pretrained.open_path(path), EncoderOptions(attn_implementation), **options
        )

    def save_pretrained(self, path: str) -> None:
        """Writes a directory that `from_pretrained` and every command take."""
        from albert.formats import pretrained

        pretrained.save(self, path)

    def get_config(self) -> dict[str, Any]:
        arguments = inspect.signature(type(self)).parameters.keys()
        settings = sorted(arguments - {"config", "name", "encoder_options"})
        values = {name: getattr(self, name) for name in settings}
        values |= {"name": self.name, "facts": self.facts.to_dict()}
        return {"config": self.config.to_dict()} | values

    @classmethod
    def from_config(cls, config, custom_objects=None):
        options = dict(config) | {"config": AlbertConfig.from_dict(config["config"])}
        facts = options.pop("facts", {})
        model = cls(**options)
        model.facts = Facts.from_dict(facts, "facts")
        return model


class AlbertModel(_BuiltModel):
    """The encoder with its pooler.

    Call it with a dict of int tensors [B, L]: `input_ids`, and optionally
    `input_mask` (default ones) and `segment_ids` (default zeros). Returns a dict:
    `sequence_output` [B, L, H], `pooled_output` [B, H], `encoder_outputs` (a list of
    [B, L, H], one for each block; a "graph_loop" keeps fewer), `embedding_output`
    [B, L, E] (after LayerNorm) and `word_embedding_output` [B, L, E].

    With `EncoderOptions.needed_outputs_only`, the last block is computed where a head
    reads it alone, at `[CLS]` and at masked positions, and the outputs are
    `pooled_output` and those of the embeddings. Where masked positions may be more
    than all places (`first_and` of the row layout), it is computed at all.
    """

    weight_scope = "bert/"  # within a model with a head, its name
    reads_pooler = True

    def __init__(
        self,
        config: AlbertConfig,
        name: str = "bert",
        encoder_options: EncoderOptions = EncoderOptions(),
    ):
        super().__init__(config, name)
        self.encoder_options = encoder_options
        self.embeddings = FactorizedEmbedding(config)
        self.encoder = AlbertEncoder(config, encoder_options)
        self.pooler = dense_layer(config.hidden_size, config, "dense", ops.tanh)
        self.build()

    def build(self, input_shape=None):
        self.embeddings.build()
        self.encoder.build()
        with keras.name_scope("pooler"):
            self.pooler.build((None, self.config.hidden_size))

    def _outputs(self, inputs: Mapping[str, Any], dropout: Dropout, depth: int | None):
        return self.encode(inputs, dropout, depth).outputs()

    def encode(
        self,
        inputs: Mapping[str, Any],
        dropout: Dropout,
        depth: int | None = None,
        positions: Any = None,
        reads_all: bool = False,
    ) -> Encoded:
        """Returns the hidden states, for a head; with the head's own dropout stream.

        `positions` [B, P] are those that the head reads beside `[CLS]`, if not all.
        """
        layout = layout_of(inputs)
        words, embedded = self.embeddings(
            ops.convert_to_tensor(inputs["input_ids"]), segments_of(inputs),
            position_ids=layout.position_ids, dropout=dropout,
        )
        is_short = self.encoder_options.needed_outputs_only and not reads_all
        places = layout.first_and(positions) if is_short else None
        states = self.encoder(embedded, layout=layout, dropout=dropout, places=places, depth=depth)
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
    ):
        super().__init__(config, name or self.default_name)
        self.bert = AlbertModel(config, encoder_options=encoder_options)
        self._make_head()
        self.build()

    def _make_head(self) -> None:
        """Makes the layers of the head, which `build` builds."""


class AlbertForMaskedLM(_ModelWithHead):
    """Encoder with the masked-LM head alone.

    Inputs as `AlbertModel`, and optionally `masked_lm_positions` [B, P]. Adds
    `prediction_logits`: [B, P, V] at the positions, [B, L, V] without them.
    """

    default_name = "albert_for_masked_lm"

    def _make_head(self) -> None:
        self.predictions = MaskedLmHead(self.config)

    def build(self, input_shape=None):
        with keras.name_scope("cls"):
            self.predictions.build()

    def _outputs(self, inputs: Mapping[str, Any], dropout: Dropout, depth: int | None):
        positions = inputs.get("masked_lm_positions")
        if positions is not None:
            positions = ops.convert_to_tensor(positions)
        encoded = self.bert.encode(inputs, dropout, depth, positions, reads_all=positions is None)
        outputs, table = encoded.outputs(), self.bert.embeddings.word_embeddings
        hidden = outputs["sequence_output"] if positions is None else encoded.chosen
        return outputs | {"prediction_logits": self.predictions(hidden, table)}


class AlbertForPreTraining(AlbertForMaskedLM):
    """Encoder with the masked-LM and sentence-order heads (sections 3.1 and 3.2).

    Inputs as `AlbertForMaskedLM`. Adds to its outputs `sop_logits` [B, 2].
    """

    default_name = "albert_for_pretraining"
    reads_pooler = True

    def _make_head(self) -> None:
        super()._make_head()
        self.seq_relationship = LabelHead(
            self.config, 2, self.config.initializer_range, name="seq_relationship"
        )

    def build(self, input_shape=None):
        super().build()
        with keras.name_scope("cls"):
            self.seq_relationship.build()

    def _outputs(self, inputs: Mapping[str, Any], dropout: Dropout, depth: int | None):
        outputs = super()._outputs(inputs, dropout, depth)
        return outputs | {"sop_logits": self.seq_relationship(outputs["pooled_output"])}


class _LabelModel(_ModelWithHead):
    """Encoder with a linear layer at the top level, on whose input `classifier_dropout` falls."""

    def __init__(
        self,
        config: AlbertConfig,
        num_labels: int,
        classifier_dropout: float = 0.1,
        name: str | None = None,
        encoder_options: EncoderOptions = EncoderOptions(),
    ):
        self.num_labels = num_labels
        self.classifier_dropout = classifier_dropout
        super().__init__(config, name, encoder_options)

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


class AlbertForSequenceClassification(_LabelModel):
    """Encoder with C logits from the pooled output: GLUE, and regression with C = 1.

    Adds `logits` [B, C] to the outputs of `AlbertModel`.
    """

    default_name = "albert_for_sequence_classification"
    reads_pooler = True

    def _outputs(self, inputs: Mapping[str, Any], dropout: Dropout, depth: int | None):
        outputs = self.bert.encode(inputs, dropout, depth).outputs()
        return outputs | {"logits": self._logits(outputs["pooled_output"], dropout)}


class AlbertForTokenClassification(_LabelModel):
    """Encoder with C logits of every token. Adds `logits` [B, L, C]."""

    default_name = "albert_for_token_classification"

    def _outputs(self, inputs: Mapping[str, Any], dropout: Dropout, depth: int | None):
        outputs = self.bert.encode(inputs, dropout, depth, reads_all=True).outputs()
        return outputs | {"logits": self._logits(outputs["sequence_output"], dropout)}


class AlbertForMultipleChoice(_LabelModel):
    """Encoder with one logit of each of C choices (RACE); its head has one label.

    Inputs are [B, C, L] of any C, or [B, C * L] of `num_choices` as RACE's records hold
    them. Returns `logits` [B, C] and the encoder's outputs with B * C rows.
    """

    default_name = "albert_for_multiple_choice"
    reads_pooler = True

    def __init__(
        self,
        config: AlbertConfig,
        num_choices: int = 4,
        classifier_dropout: float = 0.1,
        name: str | None = None,
        encoder_options: EncoderOptions = EncoderOptions(),
    ):
        self.num_choices = num_choices
        super().__init__(config, 1, classifier_dropout, name, encoder_options)

    def _outputs(self, inputs: Mapping[str, Any], dropout: Dropout, depth: int | None):
        shape = inputs["input_ids"].shape
        choices = (shape[1] if len(shape) == 3 else None) or self.num_choices
        if "packed_places" not in inputs:  # there, each choice is an example of a row
            names = ("input_ids", *INPUT_NAMES)
            inputs = {name: self._rows(inputs[name]) for name in names if name in inputs}
        outputs = self.bert.encode(inputs, dropout, depth).outputs()
        logits = self._logits(outputs["pooled_output"], dropout)  # [B * C, 1]
        return outputs | {"logits": ops.reshape(logits, (-1, choices))}

    def _rows(self, x):
        x = ops.convert_to_tensor(x)
        length = ops.shape(x)[-1] // (self.num_choices if len(x.shape) == 2 else 1)
        return ops.reshape(x, (-1, length))  # [B * C, L]


class AlbertForQuestionAnswering(_ModelWithHead):
    """Encoder with two logits of each token, the answer's first and last (SQuAD 1.1).

    Adds `start_logits` and `end_logits` [B, L]; nothing is masked.
    """

    default_name = "albert_for_question_answering"

    def _make_head(self) -> None:
        self.squad = LabelHead(self.config, 2, HEAD_INITIALIZER_RANGE, name="squad")

    def build(self, input_shape=None):
        with keras.name_scope("cls"):
            self.squad.build()

    def _outputs(self, inputs: Mapping[str, Any], dropout: Dropout, depth: int | None):
        outputs = self.bert.encode(inputs, dropout, depth, reads_all=True).outputs()
        logits = self.squad(outputs["sequence_output"])  # [B, L, 2]
        return outputs | {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class AlbertForBeamQuestionAnswering(_ModelWithHead):
    """Encoder with first tokens, last tokens given the first, and answerability (SQuAD 2.0).

    Inputs as `AlbertModel`, and optionally `p_mask` [B, L], 1 where no answer can be: by
    default all but `[CLS]` and the second segment without its `[SEP]`. With
    the gold `start_positions` [B] among them, adds `start_log_probs` and
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
    ):
        self.start_n_top = start_n_top
        self.end_n_top = end_n_top
        self.classifier_dropout = classifier_dropout
        super().__init__(config, name, encoder_options)

    def _make_head(self) -> None:
        self.start_head = answers.SpanStartHead(self.config)
        self.end_head = answers.SpanEndHead(self.config)
        self.answer_class = answers.AnswerClassHead(self.config)

    def build(self, input_shape=None):
        for head in (self.start_head, self.end_head, self.answer_class):
            head.build()

    def _outputs(self, inputs: Mapping[str, Any], dropout: Dropout, depth: int | None):
        encoded = self.bert.encode(inputs, dropout, depth, reads_all=True)
        outputs = encoded.outputs()
        sequence, impossible = outputs["sequence_output"], answers.p_mask(inputs, encoded.layout)
        start_logits = answers.without(self.start_head(sequence), impossible)
        start_log_probs = ops.log_softmax(start_logits)
        expected = ops.cast(ops.softmax(start_logits), sequence.dtype)[:, None]  # [B, 1, L]
        start_feature = ops.matmul(expected, sequence)[:, 0]  # [B, H]
        outputs["cls_logits"] = self.answer_class(
            start_feature, sequence[:, 0], dropout=dropout, rate=self.classifier_dropout
        )
        gold = inputs.get("start_positions")
        if gold is not None:
            starts = ops.reshape(ops.convert_to_tensor(gold), (-1, 1))
            ends = answers.end_log_probs(self.end_head, sequence, starts, impossible)[:, 0]
            return outputs | {"start_log_probs": start_log_probs, "end_log_probs": ends}
        widths = self.start_n_top, self.end_n_top
        return outputs | answers.beam(self.end_head, sequence, start_log_probs, impossible, widths)
