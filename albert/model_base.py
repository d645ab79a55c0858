"""The base class of all models, and the encoder with its pooler (arXiv 1909.11942, section 3.1).

Legend: B batch, L sequence, H hidden, E embedding, N heads, P predictions.
"""

import contextlib
import dataclasses
import inspect
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import albert.model  # noqa: F401, I001  (before Keras)
import keras
import numpy as np
from keras import ops

from albert.config import AlbertConfig
from albert.formats.metadata import Metadata
from albert.model.dropout import NO_DROPOUT, Dropout
from albert.model.encoder import AlbertEncoder, Encoded, EncoderOptions, FactorizedEmbedding
from albert.model.layers import dense_layer, precision
from albert.model.row_layout import layout_of, segments_of
from albert.model.weights import lora_layers
from albert.records import packing
from albert.runtime.named_dict import NamedDict, trees_for_jax
from albert.text.encodings import OURS

log = logging.getLogger("albert")

# Arguments of transformers' `from_pretrained` that say how PyTorch computes or loads.
_OF_OTHERS = {"attn_implementation", "device_map", "low_cpu_mem_usage", "use_safetensors"}
# Arguments of `call` that are not inputs.
_OPTIONS = ("training", "dropout_seed", "output_hidden_states")
_LABELS = ("labels", "label_ids", "start_positions", "end_positions", "sentence_order_label",
           "next_sentence_label", "next_sentence_labels", "masked_lm_ids")

registered = keras.saving.register_keras_serializable("albert")


class ModelOutputs(NamedDict):
    """The outputs of a call, by our names or Hugging Face's: `outputs["logits"]`, `outputs.logits`."""

    also = {
        "last_hidden_state": "sequence_output", "pooler_output": "pooled_output",
        "logits": "prediction_logits",
    }


if keras.backend.backend() == "jax":
    trees_for_jax()


class PretrainedModel(keras.Model):
    """The base class of models, whose weights exist as soon as they are created.

    Where a model is saved or copied, LoRA (`enable_lora` of a layer) is merged into the weights.

    Args:
      config: the architecture.
      name: the model's name in Keras.
      encoder_options: how the encoder computes, see `albert.modeling.EncoderOptions`.
      dtype: a Keras dtype policy, such as "mixed_bfloat16".
    """

    default_name: str | None = None  # None: a new one of Keras's
    input_names: tuple[str, ...] = ("input_ids", "input_mask", "segment_ids", "position_ids")
    input_axes: tuple[str, ...] = ("examples", "tokens")
    reads_all = False  # whether the head reads all tokens, not only `[CLS]` and `_positions`

    def __init__(
        self, config: AlbertConfig, name: str | None = None,
        encoder_options: EncoderOptions = EncoderOptions(), dtype: Any = None,
    ):
        super().__init__(name=name or self.default_name, dtype=dtype)
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

    # === Calls ===

    def __call__(self, inputs: Any = None, *args: Any, **named: Any) -> ModelOutputs:
        """Computes the outputs of a batch: `model(ids)`, `model(inputs)` or `model(**inputs)`.

        Args:
          inputs: ids [B, L], or a dict of inputs: arrays, tensors or lists of numbers.
          args, named: arguments of `call`; other names are inputs.

        Returns:
          a dict of outputs, which are attributes too. Inputs and outputs have our names and
          Hugging Face's: `attention_mask` is `input_mask`, `token_type_ids` is `segment_ids`.

        Raises:
          ValueError: an input has an unknown name or another number of dimensions, or an array of
            NumPy or a list has ids, segments or positions that the model lacks. Those in tensors
            aren't checked: numbers are truncated to integers, and negative ones count from the end
            of a table.
        """
        options = {name: named.pop(name) for name in _OPTIONS if name in named}
        return ModelOutputs(super().__call__(self.inputs_of(inputs, **named), *args, **options))

    def inputs_of(self, inputs: Any, **named: Any) -> dict[str, Any]:
        """Returns the inputs of a call by our names, lists as arrays; see `__call__`."""
        given = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
        batch: dict[str, Any] = {}
        for name, value in [*given.items(), *named.items()]:
            ours = OURS.get(name, name)
            if value is None or ours == "offset_mapping":  # of the tokenizer
                continue
            if ours in _LABELS and ours not in self.input_names:
                raise ValueError(f"{name}: labels are no inputs: compile(loss=...), then fit(x, y)")
            if ours not in (*self.input_names, *packing.OF_ROWS, *packing.OF_EXAMPLES):
                known = ", ".join([*self.input_names, *OURS])
                raise ValueError(f"unknown input {name!r}; known are {known}")
            if ours in batch:
                raise ValueError(f"{ours} is given twice")
            batch[ours] = self._checked(ours, value)
        shape = getattr(batch.get("input_ids"), "shape", ())
        if len(shape) != len(self.input_axes):
            raise ValueError(f"input_ids must be [{', '.join(self.input_axes)}], got {list(shape)}")
        return batch

    def _checked(self, name: str, value: Any) -> Any:
        """Returns an input, a list as an array, floating-point ids as integers."""
        if isinstance(value, list | tuple):
            try:
                value = np.asarray(value)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name}: its lists have several lengths: pad them, as the tokenizer "
                                 "does with padding=True") from error
        dtype = str(getattr(value, "dtype", ""))
        if isinstance(value, str) or "str" in dtype or dtype == "object" or dtype.startswith("<U"):
            raise ValueError(f"{name}: texts: a model reads the ids of tokens, so call it with "
                             "tokenizer(texts, padding=True, return_tensors=\"np\")")
        count = {
            "input_ids": self.config.vocab_size, "segment_ids": self.config.type_vocab_size,
            "position_ids": self.config.max_position_embeddings,
        }.get(name)
        if count is None:
            return value
        if isinstance(value, np.ndarray):
            is_wrong = (value < 0) | (value >= count) | (value % 1 != 0)
            if np.any(is_wrong):
                raise ValueError(f"{name} has {value[is_wrong][0]}: the model has 0 to {count - 1}")
        # Like Keras's Embedding, accepts floats, which a distributed `fit` passes.
        return ops.cast(value, "int32") if "float" in dtype else value

    def predict(self, x: Any, *args: Any, **options: Any) -> Any:
        """Returns the outputs of many batches, as Keras does; texts are refused as in a call."""
        return super().predict(self._checked("x", x), *args, **options)

    # The outputs of a batch of records, some of whose features aren't inputs, in a plain dict.
    of_batch = keras.Model.__call__

    def call(
        self, inputs: Any, training: bool = False, dropout_seed: Any = None,
        output_hidden_states: bool = False,
    ) -> dict[str, Any]:
        """Returns the model's outputs by name; users call the model itself.

        Args:
          inputs: a dict of int32 tensors, by our names.
          training: whether to apply dropout.
          dropout_seed: two integers that alone determine the dropout.
          output_hidden_states: whether to add `hidden_states`, a list of [B, L, H]: the input of
            the first block and the output of each; `encoder_outputs`, the same without the first;
            `word_embedding_output` and `embedding_output` (after LayerNorm) [B, L, E]; and the
            outputs of `AlbertModel`.
        """
        bert, dropout = self._encoder(), NO_DROPOUT
        if training:
            dropout = Dropout(self.seed_generator.next() if dropout_seed is None else dropout_seed)
        # --- Embeddings ---
        of_encoder, positions = self._encoder_inputs(inputs), self._positions(inputs)
        layout = layout_of(of_encoder)
        words, embedded = bert.embeddings(
            ops.convert_to_tensor(of_encoder["input_ids"]), segments_of(of_encoder),
            position_ids=layout.position_ids, dropout=dropout,
        )
        # --- Layers, the last one for the positions that the head reads ---
        needed = None
        if self.encoder_options.needed_outputs_only and not output_hidden_states:
            if positions is not None or not self.reads_all:
                needed = layout.first_and(positions)
        *others, last = bert.encoder(
            embedded, layout=layout, dropout=dropout, positions=needed,
            has_all_states=output_hidden_states,
        )
        # --- Pooler and head ---
        if needed is not None:
            encoded = Encoded(layout, None, bert.pooler(last[:, 0]), last[:, 1:])
        else:
            chosen = None if positions is None else layout.at(last, positions)
            encoded = Encoded(layout, last, bert.pooler(layout.first(last)), chosen)
        outputs = self._outputs(encoded, inputs, dropout)
        if not output_hidden_states:
            return outputs
        states = [layout.every(state) for state in (*others, last)]
        return {
            "word_embedding_output": layout.every(words), "embedding_output": layout.every(embedded),
            "hidden_states": states, "encoder_outputs": states[1:], "sequence_output": states[-1],
            "pooled_output": encoded.pooled,
        } | outputs

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

    # === Keras's methods that don't know inputs and outputs by name ===

    def stateless_call(self, trainable, non_trainable, inputs=None, *args: Any, **options: Any) -> Any:
        """Calls the model with these weights, as JAX's `fit` does; takes inputs as `__call__` does."""
        return super().stateless_call(
            trainable, non_trainable, self.inputs_of(inputs), *args, **options
        )

    def make_train_function(self, force: bool = False):
        """Builds the optimizer first: if the step made its variables, TensorFlow would trace it twice."""
        if self.optimizer and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Returns the loss of `compile`, which finds outputs in plain dicts alone."""
        return super().compute_loss(x, y, dict(y_pred), sample_weight, training)

    def save(self, filepath: Any, *args: Any, **options: Any) -> None:
        """Saves the model as Keras does, in a `.keras` file.

        Raises:
          ValueError: the file is HDF5, from which Keras could not load the model.
        """
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(f"{filepath}: HDF5 holds weights alone: save a file that ends in .keras, or "
                             "save_weights(\"NAME.weights.h5\")")
        super().save(filepath, *args, **options)

    def export(self, filepath: Any, format: str = "tf_saved_model", *, input_signature: Any = None,
               **options: Any) -> None:
        """Exports the model as Keras does; by default with ids, mask and segments of any shape.

        On JAX, which compiles one length, sequences have the model's maximum length.
        """
        if input_signature is None:
            is_jax = keras.backend.backend() == "jax"
            length = self.config.max_position_embeddings if is_jax else None
            shape = (*(None, getattr(self, "num_choices", None))[: len(self.input_axes) - 1], length)
            input_signature = [{name: keras.InputSpec(shape=shape, dtype="int32", name=name)
                                for name in ("input_ids", "input_mask", "segment_ids")}]
        super().export(os.fspath(filepath), format, input_signature=input_signature, **options)

    # === Files ===

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], *, revision: str | None = None,
        label_names: Sequence[str] | None = None, id2label: Mapping[Any, str] | None = None,
        ignore_mismatched_sizes: bool = False, **options: Any,
    ) -> "PretrainedModel":
        """Loads a model as one of this class. A head that was not saved gets random weights.

        Args:
          path, revision: as in `albert.from_pretrained`.
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
        source = path
        if not isinstance(path, pretrained.Pretrained):
            source = pretrained.open_path(model_hub.with_revision(os.fspath(path), revision))
        if id2label is not None:
            by_id = {int(number): name for number, name in id2label.items()}
            if sorted(by_id) != list(range(len(by_id))):
                raise ValueError(f"id2label must have the ids 0 to {len(by_id) - 1}: {id2label!r}")
            label_names = [by_id[number] for number in range(len(by_id))]
        return pretrained.load(
            cls, source, label_names=label_names, ignore_mismatched_sizes=ignore_mismatched_sizes,
            **options,
        )

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Saves the model to a directory that `from_pretrained` and every command accept."""
        from albert.formats import pretrained

        pretrained.save(self, os.fspath(path))

    def get_input_embeddings(self) -> FactorizedEmbedding:
        """Returns the layer with the tables `word_embeddings` [V, E], and those of segments and positions."""
        return self._encoder().embeddings

    def get_config(self) -> dict[str, Any]:
        # Enabling LoRA froze these kernels, not the user.
        kernels = {id(layer._kernel): layer for layer in lora_layers(self)}
        frozen = [path for path, part in self._parts().items()
                  if not kernels.get(id(part), part).trainable]
        return {
            "config": self.config.to_dict(),
            **{name: self._argument(name) for name in arguments_of(type(self))},
            "name": self.name,
            "frozen": frozen,
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
        parts = [*self._flatten_layers(), *self.weights]
        return {part.path.removeprefix(self.path).lstrip("/"): part for part in parts}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        values = dict(config)
        metadata, frozen = values.pop("metadata"), set(values.pop("frozen"))
        values["config"] = AlbertConfig.from_dict(values["config"])
        values["encoder_options"] = EncoderOptions(**values["encoder_options"])
        if isinstance(values["dtype"], Mapping):
            values["dtype"] = keras.dtype_policies.deserialize(values["dtype"])
        model = cls(**values)
        model.metadata = Metadata.from_dict(metadata, "metadata")
        for path, part in model._parts().items() if frozen else ():
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
        return pooled if encoded.last is None else {"sequence_output": encoded.sequence} | pooled


class ModelWithHead(PretrainedModel):
    """The encoder, `bert`, with a head."""

    head_scope: str | None = None  # of the head's weights in released checkpoints

    def _make_layers(self) -> None:
        self.bert = AlbertModel(self.config, "bert", self.encoder_options)
        self._make_head()

    def _make_head(self) -> None:
        """Creates the layers of the head."""

    def _add_weights(self) -> None:
        with keras.name_scope(self.head_scope) if self.head_scope else contextlib.nullcontext():
            for layer in self.layers:
                if not layer.built:
                    layer.build()

    def _encoder(self) -> AlbertModel:
        return self.bert


def arguments_of(kind: type[PretrainedModel]) -> list[str]:
    """Returns the arguments of a class besides those of all models, also those that it passes on."""
    names: set[str] = set()
    for parent in kind.__mro__:
        parameters = inspect.signature(parent.__init__).parameters.values()
        names |= {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        if not any(p.kind == p.VAR_KEYWORD for p in parameters):
            break
    return sorted(names - {"self", "config", "name", "encoder_options", "dtype"})
