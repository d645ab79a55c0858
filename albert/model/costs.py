"""What an architecture costs, computed from its config; nothing is allocated.

Legend: V vocabulary, E embedding, H hidden, I intermediate, N heads, L blocks applied (layers times
inner groups), S sequence, P predictions of a sequence, w bytes of a value.
"""

import dataclasses

from albert.config import AlbertConfig

GIB = 1 << 30
# Values that an optimizer keeps for each parameter, and for those of a kernel.
SLOTS = {"adamw": (2, 2), "lamb": (2, 2), "muon": (2, 1)}
COMPUTE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # of --mixed_precision
USABLE_MEMORY = 0.9  # the rest is the framework's, the collectives' and lost between allocations
# What a step took on a CPU, as a multiple of `activation_bytes`, rounded up
# (docs/evidence/performance_diary.md); the second with --remat.
ACTIVATION_FACTORS = 1.3, 1.5
# Parts of `parameters_by_part` that belong together.
_PARTS = {
    "embeddings": (
        "word_embeddings", "segment_embeddings", "position_embeddings", "embedding_layer_norm",
    ),
    "encoder": (
        "embedding_projection", "attention", "attention_layer_norm", "feed_forward",
        "feed_forward_layer_norm",
    ),
    "pooler": ("pooler",),
    "masked_lm": ("masked_lm",),
    "sentence_order": ("sentence_order",),
}


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
        """Number of positions, padding included."""
        return self.train_batch_size * self.max_seq_length

    @property
    def rows_at_once(self) -> int:
        """Sequences whose activations one device holds."""
        return self.train_batch_size // (self.num_devices * self.gradient_accumulation_steps)


# === Parameters ===


def parameters_by_part(config: AlbertConfig) -> dict[str, int]:
    """Returns {part: parameters} of a pretraining model; shared weights are counted once.

    masked_lm is the transform, its LayerNorm and the output bias: the output matrix is the
    word-embedding table.
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


def parameter_counts(config: AlbertConfig) -> dict[str, int]:
    """Returns {part: parameters} of a pretraining model in coarser parts.

    embeddings, encoder and pooler are the backbone (`bert/*`), masked_lm and sentence_order the
    heads (`cls/*`).
    """
    parts = parameters_by_part(config)
    return {name: sum(parts[part] for part in some) for name, some in _PARTS.items()}


def parameter_count(config: AlbertConfig, with_pooler: bool = True, heads: bool = False) -> int:
    """Returns the parameters of the backbone, or of the pretraining model with `heads`."""
    counts = parameter_counts(config)
    parts = ["embeddings", "encoder"] + ["pooler"] * with_pooler
    parts += ["masked_lm", "sentence_order"] * heads
    return sum(counts[part] for part in parts)


def weight_sets(config: AlbertConfig) -> tuple[int, int]:
    """Returns how many distinct attention and feed-forward weights there are."""
    attention, feed_forward = config.groups_in_use()
    return len(attention) * config.inner_group_num, len(feed_forward) * config.inner_group_num


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _kernel_parameters(config: AlbertConfig) -> int:
    """Returns the weights of all matrices: of layers, of the projection and of the heads."""
    e, h = config.embedding_size, config.hidden_size
    attention, feed_forward = weight_sets(config)
    layers = 4 * h * h * attention + 2 * h * config.intermediate_size * feed_forward
    return layers + (e * h if config.has_embedding_projection else 0) + h * h + h * e


# === Computation ===


def blocks_applied(config: AlbertConfig) -> int:
    """Returns L: the blocks that a token passes through, shared or not."""
    return config.num_hidden_layers * config.inner_group_num


def compute_parameters(config: AlbertConfig) -> int:
    """Returns V E + E H + L (4 H^2 + 2 H I) + H^2: parameters as if nothing were shared.

    E H is left out where E = H: there is no such matrix.
    """
    e, h = config.embedding_size, config.hidden_size
    projection = e * h if config.has_embedding_projection else 0
    blocks = blocks_applied(config) * (4 * h * h + 2 * h * config.intermediate_size)
    return config.vocab_size * e + projection + blocks + h * h


def normalized_cost(parameters: int, workload: Workload) -> int:
    """Returns parameters x steps x tokens of a batch."""
    return parameters * workload.num_train_steps * workload.tokens_per_batch


def block_flops(config: AlbertConfig, length: int) -> int:
    """Returns the forward FLOPs of all blocks for a token: L (8 H^2 + 4 H I + 4 S H).

    The last term is the scores of S keys and the sum of S values. A multiply-add is two FLOPs; only
    matrix products count (no LayerNorm, softmax, activation).
    """
    h = config.hidden_size
    return blocks_applied(config) * (8 * h * h + 4 * h * config.intermediate_size + 4 * length * h)


def forward_flops(config: AlbertConfig, workload: Workload) -> float:
    """Returns the forward FLOPs of a token in pretraining, heads included.

    Besides `block_flops`: 2 E H of the projection, and for each sequence P (2 H E + 2 E V) of the
    masked-LM head and 2 H^2 + 4 H of the pooler and the sentence-order head.
    """
    e, h, length = config.embedding_size, config.hidden_size, workload.max_seq_length
    projection = 2 * e * h if config.has_embedding_projection else 0
    masked_lm = workload.max_predictions_per_seq * 2 * e * (h + config.vocab_size)
    return block_flops(config, length) + projection + (masked_lm + 2 * h * h + 4 * h) / length


def training_flops(config: AlbertConfig, workload: Workload) -> float:
    """Returns the training FLOPs of a token: three times the forward pass.

    Each product has two in the backward pass, one for each factor. With `remat` the blocks' forward
    pass is computed twice.
    """
    again = block_flops(config, workload.max_seq_length) if workload.remat else 0
    return 3 * forward_flops(config, workload) + again


# === Memory ===


def block_activations(config: AlbertConfig, length: int, width: int) -> int:
    """Returns the bytes of one block's activations for a token that the backward pass reads.

    (8 H + 2 I) w for the inputs of products, LayerNorms and the activation; N S w for attention
    probabilities; N S (w + 1) and 2 H where these and hidden states have dropout; N S 4 for the
    softmax in half precision. With I = 4 H, w = 2 and dropout this is 34 H + 5 N S (arXiv 2205.05198,
    section 4.1) and the softmax's. A lower bound: an activation function that is not fused keeps
    more.
    """
    h, heads = config.hidden_size, config.num_attention_heads
    values = (8 * h + 2 * config.intermediate_size) * width
    probabilities = width + (4 if width < 4 else 0)
    if config.attention_probs_dropout_prob:
        probabilities += width + 1
    masks = 2 * h if config.hidden_dropout_prob else 0
    return values + masks + heads * length * probabilities


def activation_bytes(config: AlbertConfig, workload: Workload) -> int:
    """Returns the bytes of activations of the rows that one device computes at once.

    For each token the blocks' (with `remat` each block's input, and one block's activations) and
    2 E w of the embeddings; for each prediction (H + 2 E) w, and V (w + 4) for the logits and their
    log-softmax.
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

    Weights, gradients and the optimizer's values are float32, whatever the precision of the
    products; accumulation holds a second set of gradients.
    """
    weights = 4 * parameter_count(config, heads=True)
    gradients = 2 if workload.gradient_accumulation_steps > 1 else 1
    others, of_kernels = SLOTS[workload.optimizer]
    slots = others * weights + (of_kernels - others) * 4 * _kernel_parameters(config)
    return {
        "weights": weights, "gradients": gradients * weights, "optimizer_slots": slots,
        "activations": activation_bytes(config, workload),
    }


# === Plans ===


@dataclasses.dataclass(frozen=True)
class Device:
    """What one replica computes on."""

    description: str
    memory: float  # bytes
    peak_flops: dict[str, float]  # dense matrix products a second, by --mixed_precision
    utilization: float  # fraction of the peak that training is assumed to reach


def _tpu(name: str, memory: float, peak: float) -> Device:
    # A product in float32 is one pass of bfloat16; the matrix units have no float16.
    return Device(name, memory * GIB, {"float32": peak, "bfloat16": peak}, 0.5)


def _other(name: str, memory: float, full: float, half: float, utilization: float) -> Device:
    return Device(name, memory, {"float32": full, "bfloat16": half, "float16": half}, utilization)


# Peaks of the data sheets without structured sparsity; float32 as TF32 on GPUs. No utilization was
# measured: those of GPUs and CPU are cautious estimates for attention that isn't fused. That of TPUs
# is what the paper's run implies: xxlarge in 32 hours (table 6), 3.9e21 FLOPs, is 0.53 of the peak
# of 512 chips, the most that section 4.1 names.
DEVICES = {
    "h200": _other("NVIDIA H200 SXM", 141e9, 494.7e12, 989.4e12, 0.30),
    "a100": _other("NVIDIA A100 SXM, 80 GB", 80e9, 156e12, 312e12, 0.35),
    "tpu-v3": _tpu("core of a TPU v3, half a chip", 16, 61.5e12),
    "tpu-v4": _tpu("TPU v4", 30.75, 275e12),
    "tpu-v5e": _tpu("TPU v5e", 15.75, 197e12),
    "tpu-v5p": _tpu("TPU v5p", 95.74, 459e12),
    "tpu-v6e": _tpu("TPU v6e", 31.25, 918e12),
    # Two AVX2 multiply-adds of 8 numbers a cycle; half precision is no faster.
    "cpu": _other("16 cores with AVX2 at 3 GHz, 64 GiB", 64 * GIB, 1.536e12, 1.536e12, 0.30),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one architecture is trained on each of the devices; memory in bytes."""

    fits: bool  # if not, the numbers are those of one sequence at a time
    micro_batch: int  # sequences that a device computes at once
    gradient_accumulation_steps: int
    weights_gradients_and_slots: int
    activations: int  # `ACTIVATION_FACTORS` included
    memory: int  # both together
    usable_memory: int
    days: float


def make_plan(config: AlbertConfig, workload: Workload, device: Device) -> Plan:
    """Returns the plan with the largest micro-batch that fits a device.

    `workload.gradient_accumulation_steps` is the least accumulation that is tried. The time is
    training FLOPs / (devices x peak x utilization); updates, evaluations and communication are part
    of the utilization.
    """
    usable = int(USABLE_MEMORY * device.memory)
    rows = workload.train_batch_size // workload.num_devices
    for count in range(workload.gradient_accumulation_steps, rows + 1):
        if rows % count:
            continue
        chosen = dataclasses.replace(workload, gradient_accumulation_steps=count)
        memory = memory_bytes(config, chosen)
        activations = round(memory.pop("activations") * ACTIVATION_FACTORS[workload.remat])
        fixed = sum(memory.values())
        if fixed + activations <= usable:
            break
    flops = training_flops(config, workload) * workload.num_train_steps * workload.tokens_per_batch
    speed = workload.num_devices * device.utilization * device.peak_flops[workload.mixed_precision]
    return Plan(
        fits=fixed + activations <= usable,
        micro_batch=chosen.rows_at_once,
        gradient_accumulation_steps=chosen.gradient_accumulation_steps,
        weights_gradients_and_slots=fixed,
        activations=activations,
        memory=fixed + activations,
        usable_memory=usable,
        days=flops / speed / 86_400,
    )
