"""The ALBERT encoder and its heads as Keras 3 layers (arXiv 1909.11942, section 3).

Legend: B batch, L sequence, H hidden, E embedding, N heads, D = H / N, I
intermediate, V vocabulary, P predictions, C labels.

Every weight's path below its model is its name in a released checkpoint, for
example `bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/kernel`:
`named_weights` lists them. The scopes `attention_1`, `ffn_1` and the place of
the LayerNorms are the released ones, odd as they look.

Only Keras is imported here, so the same model runs on any of its backends;
precision, compilation and distribution are switched on from outside.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from albert.config import AlbertConfig

__all__ = [
    "AlbertConfig",
    "AlbertEncoder",
    "AlbertForPreTraining",
    "AlbertForSequenceClassification",
    "AlbertModel",
    "FactorizedEmbedding",
    "gelu",
    "get_activation",
    "named_weights",
]

# tf.contrib's layer_norm, which the released models were trained with.
LAYER_NORM_EPSILON = 1e-12
# Added to the scores of masked keys. Not -inf: a row without any unmasked key
# must become a plain softmax, as in the released models.
MASK_ADDER = -10000.0
# Of the classifier and RACE heads, whatever the config's initializer_range.
HEAD_INITIALIZER_RANGE = 0.02


def gelu(x):
    """Returns the tanh form of the Gaussian error linear unit, the released models' form."""
    return ops.gelu(x, approximate=True)


def get_activation(name):
    """Returns the function of an activation's name; None, "" and "linear" are the identity."""
    if not isinstance(name, str) and name is not None:
        return name
    table = {"gelu": gelu, "relu": ops.relu, "tanh": ops.tanh, "linear": None, "": None}
    key = (name or "").lower()
    if key not in table:
        raise ValueError(f"Unsupported activation: {name}")
    return table[key]


def _initializer(stddev: float) -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=stddev)


def _layer_norm(name: str) -> keras.layers.LayerNormalization:
    return keras.layers.LayerNormalization(epsilon=LAYER_NORM_EPSILON, name=name)


def _dense(units: int, config: AlbertConfig, name: str, activation=None) -> keras.layers.Dense:
    return keras.layers.Dense(
        units,
        activation=activation,
        kernel_initializer=_initializer(config.initializer_range),
        name=name,
    )


class _StepSeeds(keras.random.SeedGenerator):
    """A generator without state: the n-th seed is a function of the given one and n.

    Keras draws seeds only from a SeedGenerator; the ordinary one keeps its
    state in a variable, which a checkpoint would have to carry and which may
    not change inside a compiled loop.
    """

    def __init__(self, seed):  # the parent's would create the variable
        self._seed = seed
        self._count = 0

    def next(self, ordered=True):
        self._count += 1
        return self._seed + ops.convert_to_tensor([self._count * 1000003, 0], self._seed.dtype)


class Dropout:
    """The dropout of one forward pass; without a generator it is the identity."""

    def __init__(self, seeds: keras.random.SeedGenerator | None = None):
        self._seeds = seeds

    def __call__(self, x, rate: float):
        if self._seeds is None or not rate:
            return x
        return keras.random.dropout(x, rate, seed=self._seeds)


_NO_DROPOUT = Dropout()


class FactorizedEmbedding(keras.layers.Layer):
    """Word, segment and position embeddings of width E, summed and normalised (section 3.1).

    The second factor, E to H, is the encoder's `embedding_hidden_mapping_in`.
    """

    def __init__(self, config: AlbertConfig, name: str = "embeddings"):
        super().__init__(name=name)
        self.config = config
        self.layer_norm = _layer_norm("LayerNorm")

    def build(self, input_shape=None):
        config = self.config

        def table(name, rows):
            # Rows are cast after the look-up: casting the table costs V x E each step.
            return self.add_weight(
                shape=(rows, config.embedding_size),
                initializer=_initializer(config.initializer_range),
                autocast=False,
                name=name,
            )

        self.word_embeddings = table("word_embeddings", config.vocab_size)
        self.token_type_embeddings = table("token_type_embeddings", config.type_vocab_size)
        self.position_embeddings = table("position_embeddings", config.max_position_embeddings)
        self.layer_norm.build((None, None, config.embedding_size))

    def call(self, input_ids, segment_ids, dropout: Dropout = _NO_DROPOUT):
        words = ops.take(self.word_embeddings, input_ids, axis=0)  # [B, L, E]
        length = ops.shape(input_ids)[1]
        x = words + ops.take(self.token_type_embeddings, segment_ids, axis=0)
        x = x + self.position_embeddings[:length]
        x = self.layer_norm(ops.cast(x, self.compute_dtype))
        return words, dropout(x, self.config.hidden_dropout_prob)


class _Attention(keras.layers.Layer):
    """Multi-head self-attention with its output projection (no residual)."""

    def __init__(self, config: AlbertConfig):
        super().__init__(name="attention_1")
        self.config = config
        self.query = _dense(config.hidden_size, config, "query")
        self.key = _dense(config.hidden_size, config, "key")
        self.value = _dense(config.hidden_size, config, "value")
        self.projection = _dense(config.hidden_size, config, "dense")

    def build(self, input_shape=None):
        shape = (None, None, self.config.hidden_size)
        with keras.name_scope("self"):
            self.query.build(shape)
            self.key.build(shape)
            self.value.build(shape)
        with keras.name_scope("output"):
            self.projection.build(shape)

    def _heads(self, x):
        heads = (-1, ops.shape(x)[1], self.config.num_attention_heads, self.config.head_size)
        return ops.transpose(ops.reshape(x, heads), (0, 2, 1, 3))  # [B, N, L, D]

    def call(self, hidden, mask_adder, dropout: Dropout = _NO_DROPOUT):
        query = self._heads(self.query(hidden) * (1.0 / math.sqrt(self.config.head_size)))
        key, value = self._heads(self.key(hidden)), self._heads(self.value(hidden))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) + mask_adder  # [B, N, L, L]
        # Half precision is too coarse to sum hundreds of probabilities in.
        probs = ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), self.compute_dtype)
        probs = dropout(probs, self.config.attention_probs_dropout_prob)
        context = ops.transpose(ops.matmul(probs, value), (0, 2, 1, 3))  # [B, L, N, D]
        context = ops.reshape(context, (-1, ops.shape(hidden)[1], self.config.hidden_size))
        return dropout(self.projection(context), self.config.hidden_dropout_prob)


class _FeedForward(keras.layers.Layer):
    """H to I to H with the config's activation between (no residual)."""

    def __init__(self, config: AlbertConfig):
        super().__init__(name="ffn_1")
        self.config = config
        self.inner = _dense(
            config.intermediate_size, config, "dense", get_activation(config.hidden_act)
        )
        self.outer = _dense(config.hidden_size, config, "dense")

    def build(self, input_shape=None):
        with keras.name_scope("intermediate"):
            self.inner.build((None, None, self.config.hidden_size))
            with keras.name_scope("output"):
                self.outer.build((None, None, self.config.intermediate_size))

    def call(self, hidden, dropout: Dropout = _NO_DROPOUT):
        return dropout(self.outer(self.inner(hidden)), self.config.hidden_dropout_prob)


class AlbertBlock(keras.layers.Layer):
    """One post-LayerNorm transformer block: attention, then feed-forward."""

    def __init__(self, config: AlbertConfig, name: str):
        super().__init__(name=name)
        self.config = config
        self.attention = _Attention(config)
        self.attention_norm = _layer_norm("LayerNorm")
        self.feed_forward = _FeedForward(config)
        self.feed_forward_norm = _layer_norm("LayerNorm_1")

    def build(self, input_shape=None):
        shape = (None, None, self.config.hidden_size)
        for layer in (
            self.attention,
            self.attention_norm,
            self.feed_forward,
            self.feed_forward_norm,
        ):
            layer.build(shape)

    def call(self, hidden, mask_adder, dropout: Dropout = _NO_DROPOUT):
        attended = self.attention(hidden, mask_adder, dropout=dropout)
        hidden = self.attention_norm(attended + hidden)
        return self.feed_forward_norm(self.feed_forward(hidden, dropout=dropout) + hidden)


class AlbertEncoder(keras.layers.Layer):
    """Cross-layer parameter sharing (section 3.1): few blocks, applied many times."""

    def __init__(self, config: AlbertConfig, name: str = "encoder"):
        super().__init__(name=name)
        self.config = config
        self.embedding_projection = None
        if config.has_embedding_projection:
            self.embedding_projection = _dense(
                config.hidden_size, config, "embedding_hidden_mapping_in"
            )
        self.groups = [
            [AlbertBlock(config, f"inner_group_{j}") for j in range(config.inner_group_num)]
            for _ in range(config.num_hidden_groups)
        ]

    def build(self, input_shape=None):
        if self.embedding_projection is not None:
            self.embedding_projection.build((None, None, self.config.embedding_size))
        with keras.name_scope("transformer"):
            for g, blocks in enumerate(self.groups):
                with keras.name_scope(f"group_{g}"):
                    for block in blocks:
                        block.build()

    def call(self, embedded, mask_adder, dropout: Dropout = _NO_DROPOUT):
        hidden = embedded
        if self.embedding_projection is not None:
            hidden = self.embedding_projection(hidden)  # [B, L, H]
        outputs = []
        for layer in range(self.config.num_hidden_layers):
            for block in self.groups[self.config.group_of_layer(layer)]:
                hidden = block(hidden, mask_adder, dropout=dropout)
                outputs.append(hidden)
        return outputs


class _BuiltModel(keras.Model):
    """A model that owns all its weights from construction on.

    Restoring into a model that is built later would silently restore nothing.
    """

    def __init__(self, config: AlbertConfig, name: str):
        super().__init__(name=name)
        self.config = config
        # For users' own loops; the trainer passes dropout_seed, a function of the step.
        self.seed_generator = keras.random.SeedGenerator()

    def _dropout(self, training: bool, dropout_seed) -> Dropout:
        if not training:
            return _NO_DROPOUT
        if dropout_seed is None:
            return Dropout(self.seed_generator)
        return Dropout(_StepSeeds(dropout_seed))

    def get_config(self) -> dict[str, Any]:
        return {"config": self.config.to_dict(), "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        architecture = AlbertConfig.from_dict(config["config"])
        return cls(**(dict(config) | {"config": architecture}))


class AlbertModel(_BuiltModel):
    """The encoder with its pooler.

    Call it with a dict of int tensors [B, L]: `input_ids`, and optionally
    `input_mask` (default ones) and `segment_ids` (default zeros). Returns a dict:
    `sequence_output` [B, L, H], `pooled_output` [B, H], `encoder_outputs` (one
    [B, L, H] for each block applied), `embedding_output` [B, L, E] (after
    LayerNorm) and `word_embedding_output` [B, L, E].

    `training=True` switches dropout on; `dropout_seed`, two integers, makes it a
    function of them alone.
    """

    def __init__(self, config: AlbertConfig, name: str = "bert"):
        super().__init__(config, name)
        self.embeddings = FactorizedEmbedding(config)
        self.encoder = AlbertEncoder(config)
        self.pooler = _dense(config.hidden_size, config, "dense", ops.tanh)
        self.build()

    def build(self, input_shape=None):
        self.embeddings.build()
        self.encoder.build()
        with keras.name_scope("pooler"):
            self.pooler.build((None, self.config.hidden_size))

    def call(self, inputs: Mapping[str, Any], training=False, dropout_seed=None):
        return self.encode(inputs, self._dropout(training, dropout_seed))

    def encode(self, inputs: Mapping[str, Any], dropout: Dropout):
        """Returns what a call returns, with a head's own dropout stream."""
        input_ids = ops.convert_to_tensor(inputs["input_ids"])
        mask, segments = inputs.get("input_mask"), inputs.get("segment_ids")
        mask = ops.ones_like(input_ids) if mask is None else mask
        segments = ops.zeros_like(input_ids) if segments is None else segments
        words, embedded = self.embeddings(input_ids, segments, dropout=dropout)
        # Per key, the same for every query and head: [B, 1, 1, L].
        mask = ops.cast(mask, self.compute_dtype)[:, None, None, :]
        outputs = self.encoder(embedded, (1.0 - mask) * MASK_ADDER, dropout=dropout)
        return {
            "word_embedding_output": words,
            "embedding_output": embedded,
            "encoder_outputs": outputs,
            "sequence_output": outputs[-1],
            "pooled_output": self.pooler(outputs[-1][:, 0]),
        }


class MaskedLmHead(keras.layers.Layer):
    """Vocabulary logits through the transposed word table (`cls/predictions`)."""

    def __init__(self, config: AlbertConfig, name: str = "predictions"):
        super().__init__(name=name)
        self.config = config
        self.dense = _dense(
            config.embedding_size, config, "dense", get_activation(config.hidden_act)
        )
        self.layer_norm = _layer_norm("LayerNorm")

    def build(self, input_shape=None):
        with keras.name_scope("transform"):
            self.dense.build((None, None, self.config.hidden_size))
            self.layer_norm.build((None, None, self.config.embedding_size))
        self.output_bias = self.add_weight(
            shape=(self.config.vocab_size,), initializer="zeros", name="output_bias"
        )

    def call(self, hidden, word_embeddings):
        x = self.layer_norm(self.dense(hidden))  # [B, P, E]
        table = ops.cast(word_embeddings, self.compute_dtype)
        return ops.matmul(x, ops.transpose(table)) + self.output_bias  # [B, P, V]


class SentenceOrderHead(keras.layers.Layer):
    """Two logits from the pooled output (`cls/seq_relationship`): in order, swapped."""

    def __init__(self, config: AlbertConfig, name: str = "seq_relationship"):
        super().__init__(name=name)
        self.config = config

    def build(self, input_shape=None):
        self.output_weights, self.output_bias = _label_weights(
            self, 2, self.config.hidden_size, self.config.initializer_range
        )

    def call(self, pooled):
        return ops.matmul(pooled, ops.transpose(self.output_weights)) + self.output_bias


def _label_weights(layer: keras.layers.Layer, labels: int, width: int, stddev: float):
    """Adds the released heads' `output_weights` [C, H] and `output_bias` [C]."""
    weights = layer.add_weight(
        shape=(labels, width), initializer=_initializer(stddev), name="output_weights"
    )
    return weights, layer.add_weight(shape=(labels,), initializer="zeros", name="output_bias")


def gather_positions(sequence, positions):
    """Returns the rows [B, P, H] of `sequence` [B, L, H] at `positions` [B, P]."""
    batch, length, width = ops.shape(sequence)
    offsets = ops.arange(batch, dtype=positions.dtype)[:, None] * length
    rows = ops.take(ops.reshape(sequence, (-1, width)), ops.reshape(positions + offsets, (-1,)), axis=0)
    return ops.reshape(rows, (batch, ops.shape(positions)[1], width))


class AlbertForPreTraining(_BuiltModel):
    """Encoder with the masked-LM and sentence-order heads (sections 3.1 and 3.2).

    Inputs as `AlbertModel`, and `masked_lm_positions` [B, P]. Adds to its outputs
    `masked_lm_logits` [B, P, V] and `sentence_order_logits` [B, 2].
    """

    def __init__(self, config: AlbertConfig, name: str = "albert_for_pretraining"):
        super().__init__(config, name)
        self.bert = AlbertModel(config)
        self.predictions = MaskedLmHead(config)
        self.seq_relationship = SentenceOrderHead(config)
        self.build()

    def build(self, input_shape=None):
        with keras.name_scope("cls"):
            self.predictions.build()
            self.seq_relationship.build()

    def call(self, inputs: Mapping[str, Any], training=False, dropout_seed=None):
        outputs = self.bert.encode(inputs, self._dropout(training, dropout_seed))
        hidden = gather_positions(outputs["sequence_output"], inputs["masked_lm_positions"])
        table = self.bert.embeddings.word_embeddings
        outputs["masked_lm_logits"] = self.predictions(hidden, table)
        outputs["sentence_order_logits"] = self.seq_relationship(outputs["pooled_output"])
        return outputs


class AlbertForSequenceClassification(_BuiltModel):
    """Encoder with C logits from the pooled output: GLUE, and regression with C = 1.

    Adds `logits` [B, C] to the outputs of `AlbertModel`. `classifier_dropout`
    falls on the pooled output in training.
    """

    def __init__(
        self,
        config: AlbertConfig,
        num_labels: int,
        classifier_dropout: float = 0.1,
        name: str = "albert_for_sequence_classification",
    ):
        super().__init__(config, name)
        self.num_labels = num_labels
        self.classifier_dropout = classifier_dropout
        self.bert = AlbertModel(config)
        self.build()

    def build(self, input_shape=None):
        self.output_weights, self.output_bias = _label_weights(
            self, self.num_labels, self.config.hidden_size, HEAD_INITIALIZER_RANGE
        )

    def call(self, inputs: Mapping[str, Any], training=False, dropout_seed=None):
        dropout = self._dropout(training, dropout_seed)
        outputs = self.bert.encode(inputs, dropout)
        pooled = dropout(outputs["pooled_output"], self.classifier_dropout)
        outputs["logits"] = (
            ops.matmul(pooled, ops.transpose(self.output_weights)) + self.output_bias
        )
        return outputs

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_labels": self.num_labels,
            "classifier_dropout": self.classifier_dropout,
        }


def named_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns {name in a released checkpoint: weight} for every trainable weight."""
    keep = model.name + "/" if isinstance(model, AlbertModel) else ""
    return {
        keep + weight.path.removeprefix(model.path + "/"): weight
        for weight in model.trainable_weights
    }


def cross_entropy(logits: Any, labels: Any):
    """Returns -log softmax(logits)[label] in float32, shape of `labels`."""
    return keras.losses.sparse_categorical_crossentropy(
        labels, ops.cast(logits, "float32"), from_logits=True
    )


def parameter_shapes(model: keras.Model) -> dict[str, Sequence[int]]:
    """Returns {checkpoint name: shape}."""
    return {name: tuple(weight.shape) for name, weight in named_weights(model).items()}
