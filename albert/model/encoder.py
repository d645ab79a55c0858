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
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from albert.config import AlbertConfig
from albert.model import layer_loop
from albert.model.attention import attend
from albert.model.dropout import NO_DROPOUT, Dropout
from albert.model.layers import (
    activated, added_and_normalized, dense_layer, get_activation, layer_norm, truncated_normal,
)
from albert.model.row_layout import RowLayout, mask_of


@dataclasses.dataclass(frozen=True)
class EncoderOptions:
    """How an encoder computes; results differ only by the order of sums."""

    has_loop: bool = False  # apply equal layers in one loop of the compiled graph, see `layer_loop`
    remat: bool = False  # recompute each layer in the backward pass, to save memory
    # Compute the last block only at the positions that the head reads.
    needed_outputs_only: bool = False
    # Compute masked-LM logits [K, V] only of the K positions whose `masked_lm_weights` aren't 0,
    # instead of [B, P, V]. K depends on the batch, which compilers of static shapes don't support.
    weighted_positions_only: bool = False


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
    """Multi-head self-attention and its residual connection: LayerNorm(x + attention(x))."""

    def __init__(self, config: AlbertConfig):
        super().__init__(name="attention_1")
        self.config = config
        self.query = dense_layer(config.hidden_size, config, "query")
        self.key = dense_layer(config.hidden_size, config, "key")
        self.value = dense_layer(config.hidden_size, config, "value")
        self.projection = dense_layer(config.hidden_size, config, "dense")
        self.norm = layer_norm("LayerNorm")  # `AlbertBlock` builds it

    def build(self, input_shape=None):
        shape = (None, None, self.config.hidden_size)
        with keras.name_scope("self"):
            for layer in (self.query, self.key, self.value):
                layer.build(shape)
        with keras.name_scope("output"):
            self.projection.build(shape)

    def call(
        self, hidden, layout: RowLayout, adder, dropout: Dropout = NO_DROPOUT, positions=None
    ):
        """Returns the new hidden states [R, M, H], or only those at `positions`: [B, K, H].

        Args:
          hidden: [R, M, H].
          adder: is added to the scores, [R, 1, 1 or M, M]; see `row_layout.mask_of`.
          positions: [B, K] in each example.
        """
        config, queries, key, value = self.config, hidden, self.key(hidden), self.value(hidden)
        if positions is not None:
            queries = layout.at(hidden, positions)
            key, value = layout.every(key), layout.every(value)
            adder = mask_of(layout.mask[:, None, None, :], self.compute_dtype)  # [B, 1, 1, L]
        query = self._heads(self.query(queries) * config.head_size**-0.5)
        context = attend(  # [B, N, K, D]
            query, self._heads(key), self._heads(value), adder, dropout,
            config.attention_probs_dropout_prob,
        )
        context = ops.transpose(context, (0, 2, 1, 3))
        context = ops.reshape(context, (-1, ops.shape(queries)[1], config.hidden_size))
        return added_and_normalized(
            ops.matmul(context, self.projection.kernel), self.projection.bias, queries, self.norm,
            dropout, config.hidden_dropout_prob,
        )

    def _heads(self, x):
        heads = (-1, ops.shape(x)[1], self.config.num_attention_heads, self.config.head_size)
        return ops.transpose(ops.reshape(x, heads), (0, 2, 1, 3))  # [B, N, L, D]


class _FeedForward(keras.layers.Layer):
    """The feed-forward network from H to I to H: LayerNorm(x + outer(activation(inner(x))))."""

    def __init__(self, config: AlbertConfig):
        super().__init__(name="ffn_1")
        self.config = config
        self.inner = dense_layer(
            config.intermediate_size, config, "dense", get_activation(config.hidden_act)
        )
        self.outer = dense_layer(config.hidden_size, config, "dense")
        self.norm = layer_norm("LayerNorm_1")  # `AlbertBlock` builds it

    def build(self, input_shape=None):
        with keras.name_scope("intermediate"):
            self.inner.build((None, None, self.config.hidden_size))
            with keras.name_scope("output"):
                self.outer.build((None, None, self.config.intermediate_size))

    def call(self, hidden, dropout: Dropout = NO_DROPOUT):
        """Returns the new hidden states [R, M, H]."""
        inner = activated(  # [R, M, I]
            ops.matmul(hidden, self.inner.kernel), self.inner.bias, self.inner.activation
        )
        return added_and_normalized(
            ops.matmul(inner, self.outer.kernel), self.outer.bias, hidden, self.norm, dropout,
            self.config.hidden_dropout_prob,
        )


class AlbertBlock(keras.layers.Layer):
    """One post-LayerNorm transformer block: attention, then feed-forward.

    If only one of these halves is shared (`parameter_sharing`), a layer uses the halves of two
    blocks, and `AlbertEncoder` calls the halves.
    """

    def __init__(
        self, config: AlbertConfig, name: str, has_attention: bool, has_feed_forward: bool
    ):
        super().__init__(name=name)
        self.config = config
        self.attention = _Attention(config) if has_attention else None
        self.feed_forward = _FeedForward(config) if has_feed_forward else None

    def build(self, input_shape=None):
        for half in (self.attention, self.feed_forward):
            if half is not None:
                half.build()
                half.norm.build((None, None, self.config.hidden_size))


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
        options = EncoderOptions(**config["options"])
        return cls(AlbertConfig.from_dict(config["config"]), options, config["name"])

    def call(
        self, embedded, layout: RowLayout, dropout: Dropout = NO_DROPOUT, positions=None,
        has_all_states: bool = False,
    ):
        """Returns a list of hidden states [R, M, H], of which the last are those after all layers.

        Args:
          embedded: [R, M, E].
          positions: positions [B, K] that a head reads; the last states are only those, [B, K, H].
          has_all_states: whether the list has the input of the first block and the output of each;
            then nothing is in a loop or recomputed.
        """
        config, hidden = self.config, embedded
        if self.embedding_projection is not None:
            hidden = self.embedding_projection(hidden)
        states = [hidden]
        adder = mask_of(layout.row_mask(), self.compute_dtype)
        depth, blocks = config.num_hidden_layers, config.inner_group_num

        def layer(hidden, number, first, positions=None):
            """Layer `number`, a tensor in a loop, with the weights of layer `first`."""
            for j in range(blocks):
                # Made here, so that a second computation in the backward pass draws the same.
                drawn = dropout.of_block(number * blocks + j)
                attention, feed_forward = self._halves(first, j)
                hidden = attention(
                    hidden, layout=layout, adder=adder, dropout=drawn,
                    positions=positions if j == blocks - 1 else None,
                )
                hidden = feed_forward(hidden, dropout=drawn)
                if has_all_states:
                    states.append(hidden)
            return hidden

        has_loop = self.options.has_loop and not has_all_states
        remat = self.options.remat and not has_all_states
        for first, count in self._runs(has_loop, positions is not None):
            if count > 1:
                halves = (half for j in range(blocks) for half in self._halves(first, j))
                weights = {id(w): w for half in halves for w in half.weights}
                hidden = layer_loop.repeat(
                    functools.partial(layer, first=first), hidden, first, count,
                    list(weights.values()), remat,
                )
                continue
            apply = functools.partial(
                layer, number=first, first=first, positions=positions if first == depth - 1 else None
            )
            hidden = (keras.remat(apply) if remat else apply)(hidden)
        return states if has_all_states else [hidden]

    def _halves(self, layer: int, j: int) -> tuple[_Attention, _FeedForward]:
        """Returns the attention and the feed-forward network of a layer's j-th block."""
        attention = self.groups[self.config.attention_group(layer)][j].attention
        return attention, self.groups[self.config.feed_forward_group(layer)][j].feed_forward

    def _runs(self, has_loop: bool, ends_alone: bool) -> Iterator[tuple[int, int]]:
        """Yields the first of several equal layers and their number, which is 1 outside of loops.

        Args:
          ends_alone: whether the last layer computes less than the others.
        """
        config, last = self.config, self.config.num_hidden_layers - 1

        def kind(i):
            groups = config.attention_group(i), config.feed_forward_group(i)
            return (*groups, ends_alone and i == last) if has_loop else i

        for _, equal in itertools.groupby(range(last + 1), kind):
            first, *others = equal
            yield first, 1 + len(others)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The encoder's results for a batch."""

    layout: RowLayout
    last: Any  # the last hidden states [R, M, H]; None if only some were computed
    pooled: Any  # [B, H]
    chosen: Any  # [B, P, H], the last hidden states at the requested positions, if any

    @property
    def sequence(self):
        """The last hidden states of each example: [B, L, H]."""
        return self.layout.every(self.last)
