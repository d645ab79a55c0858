"""The base class of all models, and the encoder with its pooler (arXiv 1909.11942, section 3.1).

Legend: B batch, L sequence, H hidden, E embedding, N heads, P predictions.
"""

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import albert.model.backend  # noqa: F401, I001  (before Keras)
import keras
import numpy as np
from keras import ops

from albert.config import AlbertConfig
from albert.formats.model_metadata import Metadata
from albert.model import call_arguments, quantization
from albert.model.attention import check_attentions
from albert.model.dropout import NO_DROPOUT, Dropout
from albert.model.encoder import AlbertEncoder, Encoded, FactorizedEmbedding
from albert.model.encoder_options import Depth, EncoderOptions
from albert.model.layers import dense_layer, precision
from albert.model.row_layout import layout_of, segments_of
from albert.model.weight_names import named_weights

# Arguments of `call` that are not inputs.
_OPTIONS = ("training", "dropout_seed", "depth", "output_hidden_states", "output_attentions")

registered = keras.saving.register_keras_serializable("albert")


class PretrainedModel(keras.Model):
    """The base class of models, whose weights exist as soon as they are created.

    Args:
      config: the architecture.
      name: the model's name in Keras.
      encoder_options: how the encoder computes, see `albert.modeling.EncoderOptions`.
      dtype: a Keras dtype policy, such as "mixed_bfloat16".
    """

    input_rank = 2  # [B, L]
    reads_all = False  # whether the head reads all tokens, not only `[CLS]` and `_positions`

    def __init__(
        self, config: AlbertConfig, name: str, encoder_options: EncoderOptions = EncoderOptions(),
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        is_inside = getattr(self, "_remat_mode", None) is not None  # a keras.RematScope
        remat = encoder_options.remat or is_inside
        self.config, self.encoder_options = config, dataclasses.replace(encoder_options, remat=remat)
        # Saved with the model: names of labels, how texts are prepared, and more.
        self.metadata = Metadata(architecture=type(self).__name__)
        # For users' training loops; the trainer passes dropout_seed, a function of the step.
        self.seed_generator = keras.random.SeedGenerator()
        with precision(self.dtype_policy):
            self._make_layers()
        for layer in self._flatten_layers():
            layer._remat_mode = None  # the encoder recomputes its blocks instead
        self.build()

    def _make_layers(self) -> None:
        """Creates the layers, which `build` builds."""
        raise NotImplementedError

    def __call__(self, inputs: Any = None, *args: Any, **named: Any) -> Any:
        """Computes the outputs of a batch: `model(ids)`, `model(inputs)` or `model(**inputs)`.

        Args:
          inputs: ids [B, L], or a dict of inputs: arrays, tensors or lists of integers. If it has
            `labels`, the outputs include the `loss`.
          args, named: arguments of `call`; other names are inputs.

        Returns:
          a dict of outputs, which are attributes too. Inputs and outputs have our names and
          Hugging Face's: `attention_mask` is `input_mask`, `token_type_ids` is `segment_ids`.

        Raises:
          ValueError: an input has an unknown name, or its lists differ in length.
        """
        options = {name: named.pop(name) for name in _OPTIONS if name in named}
        outputs = super().__call__(call_arguments.inputs_of(inputs, named), *args, **options)
        # Keras's losses look for their outputs in plain dicts.
        return outputs if self.run_eagerly else call_arguments.outputs_of(outputs)

    def stateless_call(self, trainable, non_trainable, inputs=None, *args: Any, **options: Any) -> Any:
        """Calls the model with these weights, as JAX's `fit` does; takes inputs as `__call__` does."""
        inputs = call_arguments.inputs_of(inputs, {})
        return super().stateless_call(trainable, non_trainable, inputs, *args, **options)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Returns the loss that the model computed from `labels` in its inputs, if `y` is None."""
        if y is None and isinstance(y_pred, Mapping) and "loss" in y_pred:
            return y_pred["loss"]
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def of_batch(self, batch: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Returns the outputs of a batch of records, ignoring features that are not inputs."""
        return super().__call__(batch, **options)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs' shapes and types, in the model's precision."""
        return _Call(self).compute_output_spec(*args, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> dict[str, Any]:
        """Returns the outputs' shapes, given the shape of the ids or {input: shape}."""
        shapes = input_shape if isinstance(input_shape, Mapping) else {"input_ids": input_shape}
        inputs = {name: keras.KerasTensor(shape, "int32") for name, shape in shapes.items()}
        return keras.tree.map_structure(lambda x: x.shape, self.compute_output_spec(inputs))

    def export(self, filepath: Any, format: str = "tf_saved_model", *, input_signature: Any = None,
               **options: Any) -> None:
        """Exports the model as Keras does; by default with ids, mask and segments of any shape.

        On JAX, which compiles one length, sequences have the model's maximum length.

        Raises:
          ValueError: the format is "litert": Keras's file would not run without TensorFlow.
        """
        if format == "litert":
            raise ValueError("a LiteRT file of Keras would need TensorFlow's own operations: call "
                             "save_pretrained, then python -m albert.export_model --model_dir=MODEL "
                             "--export_path=model.tflite")
        if input_signature is None:
            names = ("input_ids", "input_mask", "segment_ids")
            is_jax = keras.backend.backend() == "jax"
            length = self.config.max_position_embeddings if is_jax else None
            shape = (*(None, getattr(self, "num_choices", None))[: self.input_rank - 1], length)
            input_signature = [{n: keras.InputSpec(shape=shape, dtype="int32") for n in names}]
        super().export(os.fspath(filepath), format, input_signature=input_signature, **options)

    def call(
        self, inputs: Any, training: bool = False, dropout_seed: Any = None, depth: Depth = None,
        output_hidden_states: bool | None = None, output_attentions: bool | None = None,
    ) -> dict[str, Any]:
        """Returns the model's outputs by name; users call the model itself.

        Args:
          inputs: a dict of int32 tensors, by our names.
          training: whether to apply dropout.
          dropout_seed: two integers that alone determine the dropout.
          depth: number of layers to apply; by default all.
          output_hidden_states: whether to add `hidden_states`, a list of [B, L, H]: the input of
            the first block and the output of each. The default is in `EncoderOptions`.
          output_attentions: whether to add `attentions`, a list of each block's probabilities
            [B, N, L, L]. The default is in `EncoderOptions`.

        Raises:
          ValueError: the model's `EncoderOptions` exclude attention probabilities.
        """
        options, dropout = self.encoder_options, NO_DROPOUT
        if training:
            dropout = Dropout(self.seed_generator.next() if dropout_seed is None else dropout_seed)
        if output_attentions is None:
            output_attentions = options.output_attentions
        if output_attentions:
            check_attentions(options)
        if output_hidden_states is None:
            output_hidden_states = options.output_hidden_states
        attentions: list = []
        positions = self._positions(inputs)
        encoded = self._encoder().encode(
            self._encoder_inputs(inputs), dropout, positions,
            self.reads_all and positions is None, depth,
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
        """Returns the loss if the inputs have labels, else None."""
        if "labels" in inputs:
            raise ValueError(f"{type(self).__name__} has no loss: it takes no labels")
        return None

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], *, attn_implementation: str = "eager",
        output_hidden_states: bool = False, output_attentions: bool = False,
        revision: str | None = None, label_names: Sequence[str] | None = None,
        id2label: Mapping[Any, str] | None = None, ignore_mismatched_sizes: bool = False,
        **options: Any,
    ) -> "PretrainedModel":
        """Loads a model as one of this class. A head that was not saved gets random weights.

        Args:
          path, revision: as in `albert.from_pretrained`.
          attn_implementation: "eager", or "fused", which needs less memory.
          output_hidden_states, output_attentions: defaults of these arguments of a call.
          label_names: the labels of a classifier, in the order of their ids.
          id2label: the same as {id: label}.
          ignore_mismatched_sizes: whether to replace a head for another number of labels.
          options: further arguments of the class, such as `num_labels`.

        Raises:
          CheckpointError: there is no model at the path, or its encoder does not fit.
          ValueError: `attn_implementation` is unknown.
        """
        from albert.formats import model_hub, pretrained

        encoder_options = EncoderOptions(
            attn_implementation, output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        source = path
        if not isinstance(path, pretrained.Pretrained):
            source = model_hub.with_revision(os.fspath(path), revision)
        if id2label is not None:
            by_id = {int(number): name for number, name in id2label.items()}
            if sorted(by_id) != list(range(len(by_id))):
                raise ValueError(f"id2label must have the ids 0 to {len(by_id) - 1}: {id2label!r}")
            label_names = [by_id[number] for number in range(len(by_id))]
        return pretrained.load(
            cls, pretrained.opened(source), encoder_options, label_names=label_names,
            ignore_mismatched_sizes=ignore_mismatched_sizes, **options,
        )

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Saves the model to a directory that `from_pretrained` and every command accept."""
        from albert.formats import pretrained

        pretrained.save(self, os.fspath(path))

    def resize_token_embeddings(self, num_tokens: int) -> None:
        """Changes the vocabulary's size. New tokens get random embeddings.

        Compile the model afterwards, since the optimizer's state belongs to the old weights.

        Raises:
          ValueError: the model is quantized, or `num_tokens` is not positive.
        """
        if quantization.quantized_layers(self):
            raise ValueError("a quantized model's vocabulary cannot be resized")
        config = dataclasses.replace(self.config, vocab_size=num_tokens)
        model = type(self).from_config(self.get_config() | {"config": config.to_dict()})
        weights = named_weights(self)
        for name, variable in named_weights(model).items():
            value, new = (ops.convert_to_numpy(w) for w in (weights[name], variable))
            if value.shape != new.shape:
                value = np.concatenate([value[: len(new)], new[len(value) :]])
            variable.assign(value)
        object.__setattr__(self, "__dict__", vars(model))  # `self` becomes the new model

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
            "facts": self.metadata.to_dict(),
            "quantized": quantization.quantized_layers(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        values = dict(config)
        metadata, options = values.pop("facts", {}), values.pop("encoder_options", {})
        quantized = values.pop("quantized", {})
        is_trainable, policy = values.pop("trainable", True), values.pop("dtype", None)
        values["config"] = AlbertConfig.from_dict(values["config"])
        if isinstance(policy, Mapping):
            policy = keras.dtype_policies.deserialize(policy)
        # The engine depends on the backend, which may have changed.
        options = EncoderOptions(**dict(options) | {"engine": "unrolled"})
        model = cls(**values, dtype=policy, encoder_options=options)
        model.metadata, model.trainable = Metadata.from_dict(metadata, "facts"), is_trainable
        quantization.quantize_layers(model, quantized)
        return model


class _Call(keras.Operation):
    """A model's call as an operation that computes its outputs' shapes and types."""

    def __init__(self, model: PretrainedModel):
        super().__init__()
        self.model = model

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


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

    weight_scope = "bert/"  # within a model with a head, its name

    def __init__(
        self, config: AlbertConfig, name: str = "bert",
        encoder_options: EncoderOptions = EncoderOptions(), dtype: Any = None,
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

    def _encoder(self) -> "AlbertModel":
        return self

    def _outputs(self, encoded: Encoded, inputs: Mapping[str, Any], dropout: Dropout):
        pooled = {"pooled_output": encoded.pooled}
        return ({"sequence_output": encoded.sequence} if encoded.states else {}) | pooled

    def encode(
        self, inputs: Mapping[str, Any], dropout: Dropout = NO_DROPOUT, positions: Any = None,
        reads_all: bool = False, depth: Depth = None, collect: Callable | None = None,
    ) -> Encoded:
        """Returns the hidden states that a head needs.

        Args:
          positions: the positions [B, P] that the head reads besides `[CLS]`; by default all.
          reads_all: whether the head reads all tokens.
          depth, collect: see `AlbertEncoder.call`.
        """
        layout = layout_of(inputs)
        words, embedded = self.embeddings(
            ops.convert_to_tensor(inputs["input_ids"]), segments_of(inputs),
            position_ids=layout.position_ids, dropout=dropout,
        )
        is_partial = self.encoder_options.needed_outputs_only and not reads_all
        needed = layout.first_and(positions) if is_partial else None
        states = self.encoder(
            embedded, layout=layout, dropout=dropout, positions=needed, depth=depth,
            collect=collect,
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

    default_name: str

    def __init__(
        self, config: AlbertConfig, name: str | None = None,
        encoder_options: EncoderOptions = EncoderOptions(), dtype: Any = None,
    ):
        super().__init__(config, name or self.default_name, encoder_options, dtype)

    def _make_layers(self) -> None:
        self.bert = AlbertModel(self.config, encoder_options=self.encoder_options)
        self._make_head()

    def _make_head(self) -> None:
        """Creates the layers of the head, which `build` builds."""

    def _encoder(self) -> AlbertModel:
        return self.bert
