"""FLOPs and parameters of an architecture, computed from its config without allocating anything.

Legend: V vocabulary, E embedding, H hidden, I intermediate, L applied blocks (layers times inner
groups), S sequence, P predictions in a sequence.
"""

from albert.config import AlbertConfig


def compute_parameters(config: AlbertConfig) -> int:
    """Returns V E + E H + L (4 H^2 + 2 H I) + H^2: the parameters if no layers shared weights.

    There is no E H without a projection of the embeddings (E = H).
    """
    e, h = config.embedding_size, config.hidden_size
    blocks = config.num_hidden_layers * config.inner_group_num
    projection = e * h if config.has_embedding_projection else 0
    return (config.vocab_size * e + projection + h * h
            + blocks * (4 * h * h + 2 * h * config.intermediate_size))


def training_flops(config: AlbertConfig, length: int, predictions: int) -> float:
    """Returns the FLOPs of a token in pretraining: three times those of the forward pass.

    Forward, of a token: 2 E H for the projection of the embeddings; L (8 H^2 + 4 S H + 4 H I) for the
    four products of attention, its scores and sums over S tokens, and the feed-forward network. Of a
    sequence: P (2 H E + 2 E V) for the masked-LM head, 2 H^2 for the pooler and 4 H for the
    sentence-order head. A multiply-add is two FLOPs; only matrix products count. The backward pass has
    two for each one, with respect to either factor. What --remat computes twice counts once.

    Args:
      length: S, tokens in a sequence.
      predictions: P, masked tokens in a sequence.
    """
    e, h = config.embedding_size, config.hidden_size
    blocks = config.num_hidden_layers * config.inner_group_num
    of_token = blocks * 4 * h * (2 * h + length + config.intermediate_size)
    if config.has_embedding_projection:
        of_token += 2 * e * h
    of_sequence = predictions * 2 * e * (h + config.vocab_size) + 2 * h * h + 4 * h
    return 3 * (of_token + of_sequence / length)
