"""The base class of all models, and the encoder with its pooler (arXiv 1909.11942, section 3.1).

Legend: B batch, L sequence, H hidden, E embedding, N heads, P predictions.
"""

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import albert.model.backend  # noqa: F401, I001  (before Keras)
import keras
import numpy as np
from keras import ops

from albert.config import AlbertConfig
from albert.formats.model_metadata import Metadata
from albert.model import call_arguments, losses
from albert.model.dropout import NO_DROPOUT, Dropout
from albert.model.encoder import AlbertEncoder, Encoded, FactorizedEmbedding
from albert.model.encoder_options import EncoderOptions
from albert.model.layers import dense_layer, precision
from albert.model.keras_methods import KerasMethods, arguments_of
from albert.model.row_layout import layout_of, segments_of

log = logging.getLogger("albert")

# Arguments of transformers' `from_pretrained` that say how PyTorch computes or loads.
_OF_OTHERS = {"attn_implementation", "device_map", "low_cpu_mem_usage", "use_safetensors"}
# Arguments of `call` that are not inputs.
_OPTIONS = ("training", "dropout_seed", "output_hidden_states", "output_attentions")

registered = keras.saving.register_keras_serializable("albert")


class PretrainedModel(KerasMethods):
    """The base class of models, whose weights exist as soon as they are created.

    Args:
      config: the architecture.
      name: the model's name in Keras.
      encoder_options: how the encoder computes, see `albert.modeling.EncoderOptions`.
      dtype: a Keras dtype policy, such as "mixed_bfloat16".
    """

    default_name: str
    reads_all = False  # whether the head reads all tokens, not only `[CLS]` and `_positions`

    def __init__(
        self, config: AlbertConfig, name: str | None = None,
        encoder_options: EncoderOptions = EncoderOptions(), dtype: Any = None,
    ):
        super().__init__(name=name or self.default_name, dtype=dtype)
        if getattr(self, "_remat_mode", None) is not None:
            raise ValueError("albert's models take EncoderOptions(remat=True), no keras.RematScope")
        self.config, self.encoder_options = config, encoder_options
        # Saved with the model: names of labels, how texts are prepared, and more.
        self.metadata = Metadata(architecture=type(self).__name__)
        self.random_pooler = {}  # {name: value} of a pooler that `from_pretrained` drew at random
        # For users' training loops; the trainer passes dropout_seed, a function of the step.
        self.seed_generator = keras.random.SeedGenerator()
        with precision(self.dtype_policy):
            self._make_layers()
        self.build()

    def _make_layers(self) -> None:
        """Creates the layers, whose weights `_add_weights` adds."""
        raise NotImplementedError

    def build(self, input_shape: Any = None) -> None:
        """Adds the weights; they depend on no shape, and exist already if the model was created."""
        if not self.built:
            self._add_weights()

    def _add_weights(self) -> None:
        raise NotImplementedError

    def __call__(
        self, inputs: Any = None, *args: Any, return_dict: bool | None = None, **named: Any
    ) -> Any:
        """Computes the outputs of a batch: `model(ids)`, `model(inputs)` or `model(**inputs)`.

        Args:
          inputs: ids [B, L], or a dict of inputs: arrays, tensors or lists of integers; or a list
            of ids, masks and segments. If there are `labels`, the outputs include the `loss`.
          return_dict: False returns a tuple, as Hugging Face's models do.
          args, named: arguments of `call`; other names are inputs.

        Returns:
          a dict of outputs, which are attributes too. Inputs and outputs have our names and
          Hugging Face's: `attention_mask` is `input_mask`, `token_type_ids` is `segment_ids`.

        Raises:
          ValueError: an input has an unknown name, its lists differ in length, or it has values out
            of range, such as ids beyond the vocabulary.
        """
        options = {name: named.pop(name) for name in _OPTIONS if name in named}
        batch = call_arguments.inputs_of(inputs, named, self.input_rank)
        self.check_inputs(batch)
        outputs = call_arguments.outputs_of(super().__call__(batch, *args, **options))
        if return_dict is False:
            return call_arguments.ModelOutputs(outputs).to_tuple()
        return outputs

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        config, length = self.config, inputs["input_ids"].shape[-1]
        for name, count, what in (
            ("input_ids", config.vocab_size, f"the vocabulary has {config.vocab_size} tokens"),
            ("segment_ids", config.type_vocab_size, f"the model has {config.type_vocab_size} segments"),
            ("position_ids", config.max_position_embeddings,
             f"the model has {config.max_position_embeddings} positions"),
            ("input_mask", 1.1, "masks are 0 or 1"),
            ("masked_lm_positions", length or np.inf, f"sequences have {length} tokens"),
        ):
            call_arguments.check_range(name, inputs.get(name), count, what)
        for name, count in self._label_counts(inputs).items():
            what = f"labels are 0 to {count - 1}, or {losses.IGNORED} to be ignored"
            call_arguments.check_range(name, inputs.get(name), count, what, losses.IGNORED)

    def _label_counts(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """Returns the number of labels of each input whose labels are numbered."""
        return {}

    def of_batch(self, batch: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Returns the outputs of a batch of records, ignoring features that are not inputs."""
        return super().__call__(batch, **options)

    def call(
        self, inputs: Any, training: bool = False, dropout_seed: Any = None,
        output_hidden_states: bool | None = None, output_attentions: bool | None = None,
    ) -> dict[str, Any]:
        """Returns the model's outputs by name; users call the model itself.

        Args:
          inputs: a dict of int32 tensors, by our names.
          training: whether to apply dropout.
          dropout_seed: two integers that alone determine the dropout.
          output_hidden_states: whether to add `hidden_states`, a list of [B, L, H]: the input of
            the first block and the output of each. The default is in `EncoderOptions`.
          output_attentions: whether to add `attentions`, a list of each block's probabilities
            [B, N, L, L]. The default is in `EncoderOptions`.

        Raises:
          ValueError: the model's `EncoderOptions` exclude such an output.
        """
        options, dropout = self.encoder_options, NO_DROPOUT
        if training:
            dropout = Dropout(self.seed_generator.next() if dropout_seed is None else dropout_seed)
        if output_attentions is None:
            output_attentions = options.output_attentions
        if output_hidden_states is None:
            output_hidden_states = options.output_hidden_states
        options.check_outputs(output_hidden_states, output_attentions)
        attentions: list = []
        positions = self._positions(inputs)
        encoded = self._encoder().encode(
            self._encoder_inputs(inputs), dropout, positions,
            self.reads_all and positions is None,
            attentions.append if output_attentions else None,
        )
        outputs = self._outputs(encoded, inputs, dropout)
        loss = self._loss(outputs, inputs)
        if loss is not None:
            outputs = {"loss": loss} | outputs
        if output_hidden_states:
            outputs = encoded.hidden_states() | outputs
        return outputs | ({"attentions": attentions} if output_attentions else {})

    def _encoder_inputs(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the inputs as the encoder takes them."""
        return inputs

    def _positions(self, inputs: Mapping[str, Any]) -> Any:
        """Returns the positions [B, P] that the head reads besides `[CLS]`; None for all."""
        return None

    def _encoder(self) -> "AlbertModel":
        raise NotImplementedError

    def _outputs(self, encoded: Encoded, inputs: Mapping[str, Any], dropout: Dropout) -> dict[str, Any]:
        """Returns the model's outputs, given the hidden states."""
        raise NotImplementedError

    def _loss(self, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """Returns the loss if the inputs have labels, else None; `sample_weight` [B] weighs examples."""
        names = set(self.labels_of.values())
        if "labels" in inputs and "labels" not in names:
            raise ValueError(f"{type(self).__name__} has no loss: it takes no labels")
        if not names or not names <= inputs.keys():
            return None
        return sum(
            self._loss_of(outputs[output], inputs[label], inputs.get("sample_weight"))
            for output, label in self.labels_of.items()
        )

    def _loss_of(self, logits: Any, labels: Any, weights: Any) -> Any:
        """Returns the loss of an output, given its labels and the weight of each example, or None."""
        return losses.of_classes(logits, labels, weights)

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], *, output_hidden_states: bool = False,
        output_attentions: bool = False, revision: str | None = None,
        label_names: Sequence[str] | None = None, id2label: Mapping[Any, str] | None = None,
        ignore_mismatched_sizes: bool = False, **options: Any,
    ) -> "PretrainedModel":
        """Loads a model as one of this class. A head that was not saved gets random weights.

        Args:
          path, revision: as in `albert.from_pretrained`.
          output_hidden_states, output_attentions: defaults of these arguments of a call.
          label_names: the labels of a classifier, in the order of their ids.
          id2label: the same as {id: label}; so is `label2id`, {label: id}.
          ignore_mismatched_sizes: whether to replace a head for another number of labels.
          options: further arguments of the class, such as `num_labels` and `dtype`, which may be
            called `torch_dtype`. `attn_implementation` and its kin have no effect, which is logged.

        Raises:
          CheckpointError: there is no model at the path, or its encoder does not fit.
        """
        from albert.formats import model_hub, pretrained

        for name in _OF_OTHERS & options.keys():
            log.info("%s=%r: no effect", name, options.pop(name))
        if (precision := options.pop("torch_dtype", None)) not in (None, "auto"):
            options["dtype"] = str(precision).removeprefix("torch.")
        if (ids := options.pop("label2id", None)) is not None and id2label is None:
            id2label = {number: name for name, number in ids.items()}
        encoder_options = EncoderOptions(
            output_hidden_states=output_hidden_states, output_attentions=output_attentions
        )
        source = path
        if not isinstance(path, pretrained.Pretrained):
            source = pretrained.open_path(model_hub.with_revision(os.fspath(path), revision))
        if id2label is not None:
            by_id = {int(number): name for number, name in id2label.items()}
            if sorted(by_id) != list(range(len(by_id))):
                raise ValueError(f"id2label must have the ids 0 to {len(by_id) - 1}: {id2label!r}")
            label_names = [by_id[number] for number in range(len(by_id))]
        return pretrained.load(
            cls, source, encoder_options, label_names=label_names,
            ignore_mismatched_sizes=ignore_mismatched_sizes, **options,
        )

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Saves the model to a directory that `from_pretrained` and every command accept."""
        from albert.formats import pretrained

        pretrained.save(self, os.fspath(path))

    def get_input_embeddings(self) -> FactorizedEmbedding:
        """Returns the layer with the tables `word_embeddings` [V, E], and those of segments and positions."""
        return self._encoder().embeddings

    def get_config(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            **{name: self._argument(name) for name in arguments_of(type(self))},
            "name": self.name,
            "trainable": self.trainable,
            "frozen": [path for path, part in self._parts().items() if not part.trainable],
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "encoder_options": dataclasses.asdict(self.encoder_options),
            "metadata": self.metadata.to_dict(),
        }

    def _argument(self, name: str) -> Any:
        if not hasattr(self, name):
            raise NotImplementedError(
                f"{type(self).__name__} takes {name!r}: keep it as an attribute, or override get_config"
            )
        return getattr(self, name)

    def _parts(self) -> dict[str, Any]:
        """Returns {path below the model: layer or weight}, each layer before what is in it."""
        parts = [*self._flatten_layers(include_self=False), *self.weights]
        return {part.path.removeprefix(self.path + "/"): part for part in parts}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        values = dict(config)
        metadata, options = values.pop("metadata", {}), values.pop("encoder_options", {})
        is_trainable, frozen = values.pop("trainable", True), set(values.pop("frozen", ()))
        policy = values.pop("dtype", None)
        values["config"] = AlbertConfig.from_dict(values["config"])
        if isinstance(policy, Mapping):
            policy = keras.dtype_policies.deserialize(policy)
        # The engine depends on the backend, which may have changed.
        options = EncoderOptions.from_dict(options | {"engine": "unrolled"})
        model = cls(**values, dtype=policy, encoder_options=options)
        model.metadata, model.trainable = Metadata.from_dict(metadata, "metadata"), is_trainable
        if frozen or not is_trainable:
            for path, part in model._parts().items():
                part.trainable = path not in frozen
        return model


@registered
class AlbertModel(PretrainedModel):
    """The encoder with its pooler: a vector for each token, and one for the text.

    Inputs are `input_ids` [B, L] and, optionally, `input_mask` (1 for tokens, 0 for padding; by
    default ones), `segment_ids` (0 and 1 for the texts of a pair; by default zeros) and
    `position_ids`. Outputs are `sequence_output` [B, L, H] and `pooled_output` [B, H]; Hugging
    Face's names work too.

    Example:
      >>> tokenizer = albert.AlbertTokenizer.from_pretrained("small_en")
      >>> model = albert.AlbertModel.from_pretrained("small_en")
      >>> inputs = tokenizer(["A text.", "Another, longer one."], padding=True)
      >>> outputs = model(**inputs)
      >>> tuple(outputs.last_hidden_state.shape), tuple(outputs.pooler_output.shape)
      ((2, 7, 384), (2, 384))
    """

    default_name = "bert"
    weight_scope = "bert/"  # within a model with a head, its name

    def _make_layers(self) -> None:
        self.embeddings = FactorizedEmbedding(self.config)
        self.encoder = AlbertEncoder(self.config, self.encoder_options)
        self.pooler = dense_layer(self.config.hidden_size, self.config, "dense", ops.tanh)

    def _add_weights(self) -> None:
        self.embeddings.build()
        self.encoder.build()
        with keras.name_scope("pooler"):
            self.pooler.build((None, self.config.hidden_size))

    def _encoder(self) -> "AlbertModel":
        return self

    def _outputs(self, encoded: Encoded, inputs: Mapping[str, Any], dropout: Dropout):
        pooled = {"pooled_output": encoded.pooled}
        return ({"sequence_output": encoded.sequence} if encoded.states else {}) | pooled

    def encode(
        self, inputs: Mapping[str, Any], dropout: Dropout = NO_DROPOUT, positions: Any = None,
        reads_all: bool = False, collect: Callable | None = None,
    ) -> Encoded:
        """Returns the hidden states that a head needs.

        Args:
          positions: the positions [B, P] that the head reads besides `[CLS]`; by default all.
          reads_all: whether the head reads all tokens.
          collect: see `AlbertEncoder.call`.
        """
        layout = layout_of(inputs)
        words, embedded = self.embeddings(
            ops.convert_to_tensor(inputs["input_ids"]), segments_of(inputs),
            position_ids=layout.position_ids, dropout=dropout,
        )
        is_partial = self.encoder_options.needed_outputs_only and not reads_all
        needed = layout.first_and(positions) if is_partial else None
        states = self.encoder(
            embedded, layout=layout, dropout=dropout, positions=needed, collect=collect,
        )
        last, chosen = states[-1], None
        if needed is not None:
            first, chosen, states = last[:, 0], last[:, 1:], ()
        else:
            first = layout.first(last)
            if positions is not None:
                chosen = layout.at(last, positions)
        return Encoded(layout, words, embedded, states, self.pooler(first), chosen)


class ModelWithHead(PretrainedModel):
    """The encoder, `bert`, with a head."""

    def _make_layers(self) -> None:
        self.bert = AlbertModel(self.config, encoder_options=self.encoder_options)
        self._make_head()

    def _make_head(self) -> None:
        """Creates the layers of the head."""

    def _encoder(self) -> AlbertModel:
        return self.bert
