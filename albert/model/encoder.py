"""ALBERT's encoder in Keras 3: factorized embeddings and shared layers (section 3.1).

Legend: B batch, L sequence, H hidden, E embedding, N heads, D = H / N, I intermediate, V vocabulary;
R sequences of M tokens (see `row_layout`), which are B and L unless several examples are packed
in a sequence.

Weights have the names of released checkpoints, including odd ones such as `attention_1` and `ffn_1`.
The layers run on any backend of Keras; callers choose precision, compilation and distribution.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from albert.config import AlbertConfig
from albert.model import layer_loop
from albert.model.attention import attend, probabilities
from albert.model.dropout import NO_DROPOUT, Dropout
from albert.model.encoder_options import EncoderOptions
from albert.model.layers import (
    activated, added_and_normalized, dense_layer, get_activation, layer_norm, product, times,
    truncated_normal,
)
from albert.model.row_layout import RowLayout, mask_of


@keras.saving.register_keras_serializable("albert")
class FactorizedEmbedding(keras.layers.Layer):
    """Token, segment and position embeddings of width E, summed and normalized (section 3.1).

    The encoder's `embedding_hidden_mapping_in` projects them to width H.
    """

    def __init__(self, config: AlbertConfig, name: str = "embeddings"):
        super().__init__(name=name)
        self.config = config
        self.layer_norm = layer_norm("LayerNorm")

    def build(self, input_shape=None):
        if self.built:
            return
        config = self.config

        def table(name, rows):
            # Rows are cast after the look-up: casting the table would cost V x E in each step.
            return self.add_weight(
                shape=(rows, config.embedding_size), autocast=False, name=name,
                initializer=truncated_normal(config.initializer_range),
            )

        self.word_embeddings = table("word_embeddings", config.vocab_size)
        self.token_type_embeddings = table("token_type_embeddings", config.type_vocab_size)
        self.position_embeddings = table("position_embeddings", config.max_position_embeddings)
        self.layer_norm.build((None, None, config.embedding_size))

    def get_config(self):
        return {"config": self.config.to_dict(), "name": self.name}

    @classmethod
    def from_config(cls, config):
        return cls(AlbertConfig.from_dict(config["config"]), config["name"])

    def call(self, input_ids, segment_ids, position_ids=None, dropout: Dropout = NO_DROPOUT):
        words = ops.take(self.word_embeddings, input_ids, axis=0)  # [B, L, E]
        x = words + ops.take(self.token_type_embeddings, segment_ids, axis=0)
        x = x + self._positions(ops.shape(input_ids)[1], position_ids)
        x = self.layer_norm(ops.cast(x, self.compute_dtype))
        return words, dropout(x, self.config.hidden_dropout_prob)

    def _positions(self, length: int, position_ids):
        """Returns [L, E], or [R, M, E] for the given positions of packed sequences."""
        limit = self.config.max_position_embeddings
        if position_ids is not None:
            return ops.take(self.position_embeddings, position_ids, axis=0)
        if isinstance(length, int) and length > limit:
            raise ValueError(f"sequences have {length} tokens, the model reads at most {limit}: "
                             "truncate them, as the tokenizer does")
        if not (isinstance(length, int) or ops.is_tensor(length)):
            # In JAX, the length is symbolic, and a slice would have another one.
            return ops.take(self.position_embeddings, ops.arange(length), axis=0)
        return self.position_embeddings[:length]


class _Attention(keras.layers.Layer):
    """Multi-head self-attention; `AlbertBlock` applies its output projection."""

    def __init__(self, config: AlbertConfig):
        super().__init__(name="attention_1")
        self.config = config
        self.query = dense_layer(config.hidden_size, config, "query")
        self.key = dense_layer(config.hidden_size, config, "key")
        self.value = dense_layer(config.hidden_size, config, "value")
        self.projection = dense_layer(config.hidden_size, config, "dense")

    def build(self, input_shape=None):
        shape = (None, None, self.config.hidden_size)
        with keras.name_scope("self"):
            for layer in (self.query, self.key, self.value):
                layer.build(shape)
        with keras.name_scope("output"):
            self.projection.build(shape)

    def _heads(self, x):
        heads = (-1, ops.shape(x)[1], self.config.num_attention_heads, self.config.head_size)
        return ops.transpose(ops.reshape(x, heads), (0, 2, 1, 3))  # [B, N, L, D]

    def call(
        self, hidden, mask, dropout: Dropout = NO_DROPOUT, collect: Callable | None = None
    ):
        """Returns the heads' mean values, joined: [R, M, H]."""
        return self._attend(hidden, self.key(hidden), self.value(hidden), mask, dropout, collect)

    def at(self, hidden, queries, layout: RowLayout, dropout: Dropout = NO_DROPOUT):
        """Like `call`, but only for the hidden states `queries` [B, K, H] of each example."""
        key, value = layout.every(self.key(hidden)), layout.every(self.value(hidden))
        mask = mask_of(layout.key_mask(), self.compute_dtype)
        return self._attend(queries, key, value, mask, dropout)

    def _attend(
        self, queries, key, value, mask, dropout: Dropout, collect: Callable | None = None
    ):
        query = self._heads(times(self.query(queries), 1.0 / math.sqrt(self.config.head_size)))
        if collect is not None:
            collect(probabilities(query, self._heads(key), mask))
        rate = self.config.attention_probs_dropout_prob
        context = attend(  # [B, N, L, D]
            query, self._heads(key), self._heads(value), mask, dropout, rate
        )
        context = ops.transpose(context, (0, 2, 1, 3))
        return ops.reshape(context, (-1, ops.shape(queries)[1], self.config.hidden_size))


class _FeedForward(keras.layers.Layer):
    """The feed-forward network from H to I to H; `AlbertBlock` applies its second matrix."""

    def __init__(self, config: AlbertConfig):
        super().__init__(name="ffn_1")
        self.config = config
        self.inner = dense_layer(
            config.intermediate_size, config, "dense", get_activation(config.hidden_act)
        )
        self.outer = dense_layer(config.hidden_size, config, "dense")

    def build(self, input_shape=None):
        with keras.name_scope("intermediate"):
            self.inner.build((None, None, self.config.hidden_size))
            with keras.name_scope("output"):
                self.outer.build((None, None, self.config.intermediate_size))

    def call(self, hidden):
        """Returns the activations [R, M, I]."""
        inner = product(hidden, self.inner)
        return activated(inner, self.inner.bias, self.inner.activation)


class AlbertBlock(keras.layers.Layer):
    """One post-LayerNorm transformer block: attention, then feed-forward.

    If only one of these halves is shared (`parameter_sharing`), a layer uses the halves of two blocks.
    """

    def __init__(
        self, config: AlbertConfig, name: str, has_attention: bool, has_feed_forward: bool
    ):
        super().__init__(name=name)
        self.config = config
        if has_attention:
            self.attention = _Attention(config)
            self.attention_norm = layer_norm("LayerNorm")
        if has_feed_forward:
            self.feed_forward = _FeedForward(config)
            self.feed_forward_norm = layer_norm("LayerNorm_1")

    def build(self, input_shape=None):
        for name in ("attention", "attention_norm", "feed_forward", "feed_forward_norm"):
            if hasattr(self, name):
                getattr(self, name).build((None, None, self.config.hidden_size))

    def attend(
        self, hidden, layout: RowLayout, mask, dropout: Dropout, positions=None,
        collect: Callable | None = None,
    ):
        """Returns LayerNorm(hidden + attention(hidden)), [R, M, H], or at `positions` [B, K, H]."""
        if positions is None:
            queries, context = hidden, self.attention(hidden, mask, dropout=dropout, collect=collect)
        else:
            queries = layout.at(hidden, positions)
            context = self.attention.at(hidden, queries, layout, dropout)
        return self._joined(
            context, self.attention.projection, queries, self.attention_norm, dropout
        )

    def transform(self, hidden, dropout: Dropout):
        """Returns LayerNorm(hidden + feed_forward(hidden)), [R, M, H]."""
        inner = self.feed_forward(hidden)
        return self._joined(inner, self.feed_forward.outer, hidden, self.feed_forward_norm, dropout)

    def _joined(self, x, dense, residual, norm, dropout: Dropout):
        """Returns LayerNorm(dropout(dense(x)) + residual)."""
        return added_and_normalized(
            product(x, dense), dense.bias, residual, norm, dropout,
            self.config.hidden_dropout_prob,
        )


@keras.saving.register_keras_serializable("albert")
class AlbertEncoder(keras.layers.Layer):
    """Layers that share their parameters (section 3.1): a few blocks, applied many times."""

    def __init__(
        self, config: AlbertConfig, options: EncoderOptions = EncoderOptions(),
        name: str = "encoder",
    ):
        super().__init__(name=name)
        self.config = config
        self.options = options
        self.embedding_projection = None
        if config.has_embedding_projection:
            self.embedding_projection = dense_layer(
                config.hidden_size, config, "embedding_hidden_mapping_in"
            )
        # As in the original, groups that no layer uses have no weights.
        attention, feed_forward = config.groups_in_use()
        self.groups = [
            [
                AlbertBlock(config, f"inner_group_{j}", g in attention, g in feed_forward)
                for j in range(config.inner_group_num)
            ]
            for g in range(max(attention | feed_forward) + 1)
        ]

    def build(self, input_shape=None):
        if self.built:
            return
        if self.embedding_projection is not None:
            self.embedding_projection.build((None, None, self.config.embedding_size))
        with keras.name_scope("transformer"):
            for g, blocks in enumerate(self.groups):
                with keras.name_scope(f"group_{g}"):
                    for block in blocks:
                        block.build()

    def get_config(self):
        options = dataclasses.asdict(self.options)
        return {"config": self.config.to_dict(), "options": options, "name": self.name}

    @classmethod
    def from_config(cls, config):
        options = EncoderOptions.from_dict(config["options"])
        return cls(AlbertConfig.from_dict(config["config"]), options, config["name"])

    def call(
        self, embedded, layout: RowLayout, dropout: Dropout = NO_DROPOUT, positions=None,
        collect: Callable | None = None,
    ):
        """Returns the hidden states [R, M, H] before the first block and after each one.

        Layers in a loop give only those after the last one.

        Args:
          positions: positions [B, K] that a head reads; the last states are only those, [B, K, H].
          collect: a function that is called with each block's attention probabilities [B, N, L, L].
        """
        hidden = embedded
        if self.embedding_projection is not None:
            hidden = self.embedding_projection(hidden)
        states = [hidden]
        mask = mask_of(layout.row_mask(), self.compute_dtype)
        depth, blocks = self.config.num_hidden_layers, self.config.inner_group_num

        def block(hidden, layer, j, number, positions=None):
            """The j-th block of a layer; `number` is the layer's own, or a tensor in a loop."""
            # Made here, so that a second computation in the backward pass draws the same.
            drawn = dropout.of_block(number * blocks + j)
            attending, transforming = self._halves(layer, j)
            hidden = attending.attend(hidden, layout, mask, drawn, positions, collect)
            return transforming.transform(hidden, drawn)

        for layer, count in self._runs(positions is not None):
            if count > 1:
                hidden = self._repeat(block, hidden, layer, count)
                states.append(hidden)
                continue
            for j in range(blocks):
                is_end = (layer, j) == (depth - 1, blocks - 1)
                apply = functools.partial(
                    block, layer=layer, j=j, number=layer, positions=positions if is_end else None
                )
                if self.options.remat:
                    apply = keras.remat(apply)
                hidden = apply(hidden)
                states.append(hidden)
        return states

    def _halves(self, layer: int, j: int) -> tuple[AlbertBlock, AlbertBlock]:
        """Returns the blocks with the attention and the feed-forward network of a layer's j-th block."""
        attention = self.groups[self.config.attention_group(layer)]
        return attention[j], self.groups[self.config.feed_forward_group(layer)][j]

    def _runs(self, ends_alone: bool) -> Iterator[tuple[int, int]]:
        """Yields the first of several equal layers and their number, which is 1 outside of loops."""
        config, depth = self.config, self.config.num_hidden_layers
        kinds: list = [(config.attention_group(i), config.feed_forward_group(i)) for i in range(depth)]
        if self.options.engine == "unrolled":
            kinds = list(range(depth))
        elif ends_alone:  # the last one computes less than the others
            kinds[-1] = None
        first = 0
        for _, equal in itertools.groupby(kinds):
            count = len(list(equal))
            yield first, count
            first += count

    def _repeat(self, block, hidden, layer: int, count: int):
        """Returns the states after `count` layers that share their weights, in one loop."""

        def apply(hidden, number):
            for j in range(self.config.inner_group_num):
                hidden = block(hidden, layer, j, number)
            return hidden

        halves = (half for j in range(self.config.inner_group_num) for half in self._halves(layer, j))
        weights = list({id(w): w for half in halves for w in half.weights}.values())
        return layer_loop.repeat(apply, hidden, layer, count, weights, self.options.remat)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The encoder's results for a batch."""

    layout: RowLayout
    words: Any  # [R, M, E]
    embedded: Any  # [R, M, E]
    # [R, M, H] before the first block and after each one; none if the last one is partial.
    states: Sequence[Any]
    pooled: Any  # [B, H]
    chosen: Any  # [B, P, H], the last hidden states at the requested positions, if any

    @property
    def sequence(self):
        """The last hidden states of each example: [B, L, H]."""
        return self.layout.every(self.states[-1])

    def hidden_states(self) -> dict[str, Any]:
        """Returns all hidden states of each example.

        These are `word_embedding_output` and `embedding_output` (after LayerNorm) [B, L, E],
        `encoder_outputs`, a list of the output [B, L, H] of each block (in a loop, of the last one),
        `hidden_states`, which starts with the input of the first block, `sequence_output`, the last
        of them, and `pooled_output` [B, H].
        """
        every = self.layout.every
        outputs = {
            "word_embedding_output": every(self.words),
            "embedding_output": every(self.embedded),
            "pooled_output": self.pooled,
        }
        if self.states:
            outputs["hidden_states"] = [every(state) for state in self.states]
            outputs["encoder_outputs"] = outputs["hidden_states"][1:]
            outputs["sequence_output"] = outputs["hidden_states"][-1]
        return outputs
