"""keras-hub's ALBERT backbone, and how its variables map to those of a released checkpoint.

Imports nothing from the project. `config` is the content of albert_config.json.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import keras_hub


def make_backbone(config: Mapping[str, Any]) -> keras.Model:
    return keras_hub.models.AlbertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        embedding_dim=config["embedding_size"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        num_groups=config["num_hidden_groups"],
        num_inner_repetitions=config["inner_group_num"],
        max_sequence_length=config["max_position_embeddings"],
        num_segments=config["type_vocab_size"],
        dropout=config["hidden_dropout_prob"],
    )


def of_layer(name: str, layer: keras.layers.Layer) -> Iterator[tuple[str, keras.Variable]]:
    """Yields (name in a checkpoint, variable) of a Dense or LayerNormalization."""
    is_norm = isinstance(layer, keras.layers.LayerNormalization)
    yield f"{name}/{'gamma' if is_norm else 'kernel'}", layer.gamma if is_norm else layer.kernel
    yield f"{name}/{'beta' if is_norm else 'bias'}", layer.beta if is_norm else layer.bias


def of_backbone(
    config: Mapping[str, Any], backbone: keras.Model
) -> Iterator[tuple[str, keras.Variable]]:
    """Yields (name in a checkpoint, variable); both hold the same elements in the same order."""
    yield "bert/embeddings/word_embeddings", backbone.token_embedding.embeddings
    yield "bert/embeddings/token_type_embeddings", backbone.segment_embedding.embeddings
    yield "bert/embeddings/position_embeddings", backbone.position_embedding.position_embeddings
    scope = "bert/encoder/"
    layers = {
        "bert/embeddings/LayerNorm": backbone.embeddings_layer_norm,
        scope + "embedding_hidden_mapping_in": backbone.embeddings_projection,
        "bert/pooler/dense": backbone.pooled_dense,
    }
    for g in range(config["num_hidden_groups"]):
        for j in range(config["inner_group_num"]):
            block = backbone.transformer_layers[g][j]
            inner = f"{scope}transformer/group_{g}/inner_group_{j}/"
            attention = block._self_attention_layer
            layers |= {
                inner + "attention_1/self/query": attention._query_dense,
                inner + "attention_1/self/key": attention._key_dense,
                inner + "attention_1/self/value": attention._value_dense,
                inner + "attention_1/output/dense": attention._output_dense,
                inner + "LayerNorm": block._self_attention_layer_norm,
                inner + "ffn_1/intermediate/dense": block._feedforward_intermediate_dense,
                inner + "ffn_1/intermediate/output/dense": block._feedforward_output_dense,
                inner + "LayerNorm_1": block._feedforward_layer_norm,
            }
    for name, layer in layers.items():
        yield from of_layer(name, layer)
