"""What an architecture costs, computed from its config: nothing is allocated.

Legend: V vocabulary, E embedding, H hidden, I intermediate, N heads, L blocks
applied (layers times inner groups), S sequence, P predictions of a sequence.
"""

import dataclasses

from albert.config import AlbertConfig

# Values that an optimizer keeps for each parameter, and for those of a kernel.
SLOTS = {"adamw": (2, 2), "lamb": (2, 2), "muon": (2, 1)}
COMPUTE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # of --mixed_precision
# Parts of a group's weights.
_GROUP_PARTS = "attention", "attention_layer_norm", "feed_forward", "feed_forward_layer_norm"
# Parts of `parameters_by_part` that belong together.
_PARTS = {
    "embeddings": (
        "word_embeddings", "segment_embeddings", "position_embeddings", "embedding_layer_norm",
    ),
    "encoder": ("embedding_projection", *_GROUP_PARTS),
    "pooler": ("pooler",),
    "masked_lm": ("masked_lm",),
    "sentence_order": ("sentence_order",),
}


# === Parameters ===


def parameters_by_part(config: AlbertConfig) -> dict[str, int]:
    """Returns {part: parameters} of a pretraining model, every shared weight counted once.

    masked_lm is the transform, its LayerNorm and the output bias: the output
    matrix is the word-embedding table.
    """
    e, h = config.embedding_size, config.hidden_size
    groups = parameters_by_group(config).values()
    return {
        "word_embeddings": config.vocab_size * e,
        "segment_embeddings": config.type_vocab_size * e,
        "position_embeddings": config.max_position_embeddings * e,
        "embedding_layer_norm": 2 * e,
        "embedding_projection": dense(e, h) if config.has_embedding_projection else 0,
        **{part: sum(group[part] for group in groups) for part in _GROUP_PARTS},
        "pooler": dense(h, h),
        "masked_lm": dense(h, e) + 2 * e + config.vocab_size,
        "sentence_order": dense(h, 2),
    }


def parameters_by_group(config: AlbertConfig) -> dict[int, dict[str, int]]:
    """Returns {group: {part: parameters}} of what stands below `group_<group>` in a checkpoint.

    A group that owns only one half of its layers (see `parameter_sharing`) has zeros
    for the other; groups that no layer uses are left out.
    """
    h, inner = config.hidden_size, config.intermediate_size
    attention, feed_forward = config.groups_in_use()
    owners = attention, attention, feed_forward, feed_forward
    of_block = 4 * dense(h, h), 2 * h, dense(h, inner) + dense(inner, h), 2 * h
    return {
        group: {
            part: config.inner_group_num * size if group in owner else 0
            for part, owner, size in zip(_GROUP_PARTS, owners, of_block, strict=True)
        }
        for group in sorted(attention | feed_forward)
    }


def parameter_counts(config: AlbertConfig) -> dict[str, int]:
    """Returns {part: parameters} of a pretraining model, in coarser parts.

    Parts: embeddings, encoder, pooler (together the backbone, `bert/*`),
    masked_lm and sentence_order (the heads, `cls/*`).
    """
    counts = parameters_by_part(config)
    return {part: sum(counts[name] for name in names) for part, names in _PARTS.items()}


def parameter_count(config: AlbertConfig, with_pooler: bool = True, heads: bool = False) -> int:
    """Returns the parameters of the backbone, or of the pretraining model with `heads`."""
    counts = parameter_counts(config)
    parts = ["embeddings", "encoder"] + ["pooler"] * with_pooler
    parts += ["masked_lm", "sentence_order"] * heads
    return sum(counts[part] for part in parts)


def dense(inputs: int, outputs: int) -> int:
    """Returns the parameters of a dense layer: its kernel and its bias."""
    return inputs * outputs + outputs


def weight_sets(config: AlbertConfig) -> tuple[int, int]:
    """Returns how many distinct attention and feed-forward weights there are."""
    attention, feed_forward = config.groups_in_use()
    return len(attention) * config.inner_group_num, len(feed_forward) * config.inner_group_num


# === Computation ===


@dataclasses.dataclass(frozen=True)
class Workload:
    """A pretraining run; the flags of the same names."""

    num_train_steps: int = 125_000
    train_batch_size: int = 4096
    max_seq_length: int = 512  # S
    max_predictions_per_seq: int = 20  # P
    optimizer: str = "lamb"
    mixed_precision: str = "float32"
    remat: bool = False  # blocks are computed again in the backward pass
    gradient_accumulation_steps: int = 1
    num_devices: int = 1

    @property
    def tokens_per_batch(self) -> int:
        """Padding included."""
        return self.train_batch_size * self.max_seq_length

    @property
    def rows_at_once(self) -> int:
        """Sequences that one device holds the activations of."""
        return self.train_batch_size // (self.num_devices * self.gradient_accumulation_steps)


def blocks_applied(config: AlbertConfig) -> int:
    """Returns L: blocks that a token passes through, shared or not."""
    return config.num_hidden_layers * config.inner_group_num


def block_products(config: AlbertConfig) -> int:
    """Returns the kernel weights that one block multiplies a token by: 4 H^2 + 2 H I."""
    h = config.hidden_size
    return 4 * h * h + 2 * h * config.intermediate_size


def kernel_parameters(config: AlbertConfig) -> int:
    """Returns the weights of all matrices of layers, of the projection and of pretraining's heads."""
    e, h = config.embedding_size, config.hidden_size
    attention, feed_forward = map(len, config.groups_in_use())
    of_groups = 4 * h * h * attention + 2 * h * config.intermediate_size * feed_forward
    projection = e * h if config.has_embedding_projection else 0
    return config.inner_group_num * of_groups + projection + h * h + h * e


def compute_parameters(config: AlbertConfig) -> int:
    """Returns V E + E H + L (4 H^2 + 2 H I) + H^2: parameters as if nothing were shared.

    By it a summary of the paper compares costs. E H is left out where E = H: there is
    no such matrix.
    """
    e, h = config.embedding_size, config.hidden_size
    projection = e * h if config.has_embedding_projection else 0
    blocks = blocks_applied(config) * block_products(config)
    return config.vocab_size * e + projection + blocks + h * h


def normalized_cost(parameters: int, workload: Workload) -> int:
    """Returns parameters x steps x tokens of a batch."""
    return parameters * workload.num_train_steps * workload.tokens_per_batch


def block_flops(config: AlbertConfig, length: int) -> int:
    """Returns the forward FLOPs of all blocks for a token: L (2 (4 H^2 + 2 H I) + 4 S H).

    The last term is the scores of S keys and the sum of S values. A multiply-add
    is two FLOPs; only matrix products count (no LayerNorm, softmax, activation).
    """
    attention = 4 * length * config.hidden_size
    return blocks_applied(config) * (2 * block_products(config) + attention)


def forward_flops(config: AlbertConfig, workload: Workload) -> float:
    """Returns the forward FLOPs of a token in pretraining, heads included.

    Beside `block_flops`: 2 E H of the projection and, shared by the S tokens of
    a sequence, P (2 H E + 2 E V) of the masked-LM head and 2 H^2 + 4 H of the
    pooler and the sentence-order head.
    """
    e, h = config.embedding_size, config.hidden_size
    projection = 2 * e * h if config.has_embedding_projection else 0
    masked_lm = workload.max_predictions_per_seq * 2 * e * (h + config.vocab_size)
    once = masked_lm + 2 * h * h + 4 * h
    return (
        block_flops(config, workload.max_seq_length) + projection + once / workload.max_seq_length
    )


def training_flops(config: AlbertConfig, workload: Workload) -> float:
    """Returns the training FLOPs of a token: three times the forward pass.

    Each product has two in the backward pass, for its two factors. With `remat`
    the blocks' forward pass is there once more.
    """
    again = block_flops(config, workload.max_seq_length) if workload.remat else 0
    return 3 * forward_flops(config, workload) + again


# === Memory ===


def block_activations(config: AlbertConfig, length: int, width: int) -> int:
    """Returns the bytes of one block's activations for a token that the backward pass reads.

    With values of w bytes: (8 H + 2 I) w (inputs of the block, of query, key and
    value; these three; inputs of the two output products, of the two LayerNorms
    and of the activation) and N S w of attention probabilities. Where these have
    dropout, N S (w + 1) more (result and mask), and 2 H for the masks of the hidden
    dropout. In half precision N S 4 more: the softmax is in float32.
    With I = 4 H, w = 2 and dropout this is 34 H + 5 N S (arXiv 2205.05198, section
    4.1) and the softmax's. An estimate from below: without a compiler that fuses
    the activation function, several more values of width I are kept.
    """
    h, heads = config.hidden_size, config.num_attention_heads
    values = (8 * h + 2 * config.intermediate_size) * width
    probabilities = width + (4 if width < 4 else 0)
    if config.attention_probs_dropout_prob:
        probabilities += width + 1
    masks = 2 * h if config.hidden_dropout_prob else 0
    return values + masks + heads * length * probabilities


def activation_bytes(config: AlbertConfig, workload: Workload) -> int:
    """Returns the bytes of activations of the rows that one device has at once.

    For each token the blocks' (see `block_activations`; with `remat` each block's
    input and one block's activations) and 2 E w of the embeddings; for each
    prediction (H + 2 E) w and the logits and their log-softmax, V (w + 4).
    """
    width, blocks = COMPUTE_BYTES[workload.mixed_precision], blocks_applied(config)
    e, h, length = config.embedding_size, config.hidden_size, workload.max_seq_length
    block = block_activations(config, length, width)
    encoder = blocks * h * width + block if workload.remat else blocks * block
    prediction = (h + 2 * e) * width + config.vocab_size * (width + 4)
    row = length * (encoder + 2 * e * width) + workload.max_predictions_per_seq * prediction
    return workload.rows_at_once * row


def memory_bytes(config: AlbertConfig, workload: Workload) -> dict[str, int]:
    """Returns {what: bytes} on each device in training.

    Weights, gradients and the optimizer's values are float32, whatever the
    precision of the products; accumulation holds a second set of gradients.
    """
    weights = 4 * parameter_count(config, heads=True)
    gradients = 2 if workload.gradient_accumulation_steps > 1 else 1
    others, of_kernels = SLOTS[workload.optimizer]
    return {
        "weights": weights,
        "gradients": gradients * weights,
        "optimizer_slots": others * weights + (of_kernels - others) * 4 * kernel_parameters(config),
        "activations": activation_bytes(config, workload),
    }
