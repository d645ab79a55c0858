"""Parameters and FLOPs of an architecture, computed from its config without allocating anything.

Legend: V vocabulary, E embedding, H hidden, I intermediate, L applied blocks (layers times inner
groups), S sequence, P predictions in a sequence.
"""

import dataclasses

from albert.config import AlbertConfig


@dataclasses.dataclass(frozen=True)
class Workload:
    """A pretraining run, by the flags of the same names."""

    num_train_steps: int = 125_000
    train_batch_size: int = 4096
    max_seq_length: int = 512  # S
    max_predictions_per_seq: int = 20  # P

    @property
    def tokens_per_batch(self) -> int:
        """Number of tokens in a batch, padding included."""
        return self.train_batch_size * self.max_seq_length


# === Parameters ===


def parameters_by_part(config: AlbertConfig) -> dict[str, int]:
    """Returns {part: parameters} of a pretraining model; shared weights are counted once.

    The masked-LM head has no output matrix: it shares the embedding table.
    """
    e, h, inner = config.embedding_size, config.hidden_size, config.intermediate_size
    attention, feed_forward = weight_sets(config)
    return {
        "word_embeddings": config.vocab_size * e,
        "segment_embeddings": config.type_vocab_size * e,
        "position_embeddings": config.max_position_embeddings * e,
        "embedding_layer_norm": 2 * e,
        "embedding_projection": _dense(e, h) if config.has_embedding_projection else 0,
        "attention": attention * 4 * _dense(h, h),
        "attention_layer_norm": attention * 2 * h,
        "feed_forward": feed_forward * (_dense(h, inner) + _dense(inner, h)),
        "feed_forward_layer_norm": feed_forward * 2 * h,
        "pooler": _dense(h, h),
        "masked_lm": _dense(h, e) + 2 * e + config.vocab_size,
        "sentence_order": _dense(h, 2),
    }


def parameter_count(config: AlbertConfig, with_pooler: bool = True, heads: bool = False) -> int:
    """Returns the number of parameters of the encoder, or of the pretraining model with `heads`."""
    parts = parameters_by_part(config)
    excluded = ["pooler"] * (not with_pooler) + ["masked_lm", "sentence_order"] * (not heads)
    return sum(parts.values()) - sum(parts[name] for name in excluded)


def weight_sets(config: AlbertConfig) -> tuple[int, int]:
    """Returns the number of sets of attention weights, and of feed-forward weights."""
    attention, feed_forward = config.groups_in_use()
    return len(attention) * config.inner_group_num, len(feed_forward) * config.inner_group_num


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


# === Computation ===


def blocks_applied(config: AlbertConfig) -> int:
    """Returns L, the number of blocks that a token passes through."""
    return config.num_hidden_layers * config.inner_group_num


def _projection(config: AlbertConfig) -> int:
    """Returns E H, the size of the embedding projection; 0 if E = H."""
    exists = config.has_embedding_projection
    return config.embedding_size * config.hidden_size if exists else 0


def compute_parameters(config: AlbertConfig) -> int:
    """Returns V E + E H + L (4 H^2 + 2 H I) + H^2: the parameters if no layers shared weights."""
    h = config.hidden_size
    blocks = blocks_applied(config) * (4 * h * h + 2 * h * config.intermediate_size)
    return config.vocab_size * config.embedding_size + _projection(config) + blocks + h * h


def flops_by_part(config: AlbertConfig, workload: Workload) -> dict[str, float]:
    """Returns {part: FLOPs} of a token in the forward pass of pretraining.

    Of a token: 2 E H for the embedding projection; L 8 H^2 for the four products of attention and
    L 4 S H for the scores of S keys and the sum of S values; L 4 H I for the feed-forward network. Of
    a sequence: P (2 H E + 2 E V) for the masked-LM head; 2 H^2 for the pooler and 4 H for the
    sentence-order head. A multiply-add is two FLOPs; only matrix products count, not LayerNorm,
    softmax and activation.
    """
    e, h, length = config.embedding_size, config.hidden_size, workload.max_seq_length
    blocks = blocks_applied(config)
    return {
        "embedding_projection": 2 * _projection(config),
        "attention": blocks * 8 * h * h,
        "attention_scores": blocks * 4 * length * h,
        "feed_forward": blocks * 4 * h * config.intermediate_size,
        "pooler": 2 * h * h / length,
        "masked_lm": workload.max_predictions_per_seq * 2 * e * (h + config.vocab_size) / length,
        "sentence_order": 4 * h / length,
    }


def training_flops(config: AlbertConfig, workload: Workload) -> float:
    """Returns the FLOPs of a token in training: three times those of the forward pass.

    The backward pass has two products for each one, with respect to either factor. What --remat
    computes twice counts once.
    """
    return 3 * sum(flops_by_part(config, workload).values())
