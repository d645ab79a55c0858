"""The cost of an architecture, computed from its config without allocating anything.

Legend: V vocabulary, E embedding, H hidden, I intermediate, N heads, L applied blocks (layers times
inner groups), S sequence, P predictions in a sequence, w bytes of a value.
"""

import dataclasses
from typing import Any

from albert.config import AlbertConfig

GIB = 1 << 30
OPTIMIZERS = ("adamw", "lamb", "muon")
COMPUTE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # of --mixed_precision
USABLE_MEMORY = 0.9  # the rest is for the framework, collectives, and gaps between allocations
# Measured activations of a step on a CPU, as a multiple of `activation_bytes`, rounded up
# (docs/evidence/performance_diary.md); the second with --remat.
ACTIVATION_FACTORS = 1.3, 1.5


@dataclasses.dataclass(frozen=True)
class Workload:
    """A pretraining run, by the flags of the same names."""

    num_train_steps: int = 125_000
    train_batch_size: int = 4096
    max_seq_length: int = 512  # S
    max_predictions_per_seq: int = 20  # P
    optimizer: str = "lamb"
    mixed_precision: str = "float32"
    remat: bool = False  # whether the backward pass recomputes blocks
    gradient_accumulation_steps: int = 1
    num_devices: int = 1

    @property
    def tokens_per_batch(self) -> int:
        """Number of tokens in a batch, padding included."""
        return self.train_batch_size * self.max_seq_length

    @property
    def rows_at_once(self) -> int:
        """Number of sequences whose activations one device stores."""
        return self.train_batch_size // (self.num_devices * self.gradient_accumulation_steps)


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


def block_flops(config: AlbertConfig, length: int) -> int:
    """Returns the FLOPs of all blocks for a token in the forward pass: L (8 H^2 + 4 H I + 4 S H).

    The last term is for the scores of S keys and the sum of S values. A multiply-add is two FLOPs;
    only matrix products count, not LayerNorm, softmax and activation.
    """
    h = config.hidden_size
    return blocks_applied(config) * (8 * h * h + 4 * h * config.intermediate_size + 4 * length * h)


def forward_flops(config: AlbertConfig, workload: Workload) -> float:
    """Returns the FLOPs of a token in the forward pass of pretraining, heads included.

    To `block_flops` it adds 2 E H for the projection, and for each sequence P (2 H E + 2 E V) for
    the masked-LM head and 2 H^2 + 4 H for the pooler and the sentence-order head.
    """
    e, h, length = config.embedding_size, config.hidden_size, workload.max_seq_length
    heads = workload.max_predictions_per_seq * 2 * e * (h + config.vocab_size) + 2 * h * h + 4 * h
    return block_flops(config, length) + 2 * _projection(config) + heads / length


def training_flops(config: AlbertConfig, workload: Workload) -> float:
    """Returns the FLOPs of a token in training: three times those of the forward pass.

    The backward pass has two products for each one, with respect to either factor. With `remat`,
    the blocks' forward pass is computed twice.
    """
    recomputed = block_flops(config, workload.max_seq_length) if workload.remat else 0
    return 3 * forward_flops(config, workload) + recomputed


# === Memory ===


def activation_bytes(config: AlbertConfig, workload: Workload) -> int:
    """Returns the bytes of activations that the backward pass reads on one device: a lower bound.

    For each token, a block takes (8 H + 2 I) w for the inputs of products, LayerNorms and the
    activation, N S w for attention probabilities, N S (w + 1) and 2 H for dropout of these and of
    hidden states, and 4 N S for the softmax in half precision. With I = 4 H, w = 2 and dropout, this
    is 34 H + 5 N S (arXiv 2205.05198, section 4.1) and the softmax. With `remat`, only the inputs of
    blocks and the activations of one block are stored. Embeddings add 2 E w for each token, the
    masked-LM head (H + 2 E) w + V (w + 4) for each prediction. Activation functions that aren't
    fused take more.
    """
    width, length = COMPUTE_BYTES[workload.mixed_precision], workload.max_seq_length
    e, h, blocks = config.embedding_size, config.hidden_size, blocks_applied(config)
    probabilities = width + (4 if width < 4 else 0)
    if config.attention_probs_dropout_prob:
        probabilities += width + 1
    block = (8 * h + 2 * config.intermediate_size) * width
    block += config.num_attention_heads * length * probabilities
    block += 2 * h if config.hidden_dropout_prob else 0
    encoder = blocks * h * width + block if workload.remat else blocks * block
    prediction = (h + 2 * e) * width + config.vocab_size * (width + 4)
    row = length * (encoder + 2 * e * width) + workload.max_predictions_per_seq * prediction
    return workload.rows_at_once * row


def memory_bytes(config: AlbertConfig, workload: Workload) -> dict[str, int]:
    """Returns {part: bytes} on each device in training, with activations as measured.

    Weights, gradients and the optimizer's two moments are float32 in any precision. Accumulation
    needs a second set of gradients. Muon has only one moment for a matrix.
    """
    weights = 4 * parameter_count(config, heads=True)
    gradients = 2 if workload.gradient_accumulation_steps > 1 else 1
    slots = 2 * weights
    if workload.optimizer == "muon":
        h, (attention, feed_forward) = config.hidden_size, weight_sets(config)
        layers = 4 * h * h * attention + 2 * h * config.intermediate_size * feed_forward
        slots -= 4 * (layers + _projection(config) + h * h + h * config.embedding_size)
    activations = ACTIVATION_FACTORS[workload.remat] * activation_bytes(config, workload)
    return {"weights": weights, "gradients": gradients * weights, "optimizer_slots": slots,
            "activations": round(activations)}


# === Plans ===


@dataclasses.dataclass(frozen=True)
class Device:
    """The hardware of one replica. Peaks are for dense matrix products."""

    description: str
    memory_gib: float
    float32_tflops: float  # 1e12 FLOPs per second; TF32 on GPUs, one bfloat16 pass on TPUs
    half_tflops: float  # bfloat16 and float16
    utilization: float  # assumed fraction of the peak in training

    def tflops(self, precision: str) -> float:
        """Returns the peak in a --mixed_precision, in 1e12 FLOPs per second."""
        return self.float32_tflops if precision == "float32" else self.half_tflops


# Peaks are from data sheets, without structured sparsity; memory of TPUs is the part that XLA can use.
# Utilization wasn't measured: for GPUs and CPUs it is a cautious estimate without fused attention, for
# TPUs it follows from the paper: xxlarge in 32 hours (table 6), 3.9e21 FLOPs, is 0.53 of the peak of
# 512 chips, the largest number in section 4.1.
DEVICES = {
    "h200": Device("NVIDIA H200 SXM", 141e9 / GIB, 494.7, 989.4, 0.30),
    "a100": Device("NVIDIA A100 SXM, 80 GB", 80e9 / GIB, 156, 312, 0.35),
    "tpu-v3": Device("core of a TPU v3, half a chip", 16, 61.5, 61.5, 0.5),
    "tpu-v4": Device("TPU v4", 30.75, 275, 275, 0.5),
    "tpu-v5e": Device("TPU v5e", 15.75, 197, 197, 0.5),
    "tpu-v5p": Device("TPU v5p", 95.74, 459, 459, 0.5),
    "tpu-v6e": Device("TPU v6e", 31.25, 918, 918, 0.5),
    # Two AVX2 multiply-adds of 8 numbers per cycle; half precision isn't faster.
    "cpu": Device("16 cores with AVX2 at 3 GHz, 64 GiB", 64, 1.536, 1.536, 0.30),
}


def make_plan(config: AlbertConfig, workload: Workload, device: Device) -> dict[str, Any]:
    """Returns the largest micro-batch that fits a device, its memory, and the duration in days.

    `workload.gradient_accumulation_steps` is the minimum. If nothing fits, the plan is for one
    sequence at a time. The time is training FLOPs / (devices x peak x utilization); the utilization
    includes updates, evaluations and communication.
    """
    usable = int(USABLE_MEMORY * device.memory_gib * GIB)
    rows = workload.train_batch_size // workload.num_devices
    for count in range(workload.gradient_accumulation_steps, rows + 1):
        if rows % count:
            continue
        chosen = dataclasses.replace(workload, gradient_accumulation_steps=count)
        needed = sum(memory_bytes(config, chosen).values())
        if needed <= usable:
            break
    flops = training_flops(config, workload) * workload.num_train_steps * workload.tokens_per_batch
    peak = workload.num_devices * device.tflops(workload.mixed_precision) * 1e12
    return {
        "fits": needed <= usable,
        "micro_batch": chosen.rows_at_once,
        "gradient_accumulation_steps": chosen.gradient_accumulation_steps,
        "memory_bytes": needed,
        "usable_memory_bytes": usable,
        "days": flops / (peak * device.utilization) / 86_400,
    }
