"""How a pretraining run fits on devices: micro-batch, accumulation, memory, days.

Arithmetic on `model_size`, with three assumptions that a caller can change:
how much memory of a device is usable, how many times its estimate the
activations take, and what part of the peak speed training reaches.
"""

import dataclasses

from albert.config import AlbertConfig
from albert.model import model_size
from albert.model.model_size import Workload

GIB = 1 << 30
SECONDS_OF_A_DAY = 86_400
# The rest is the framework's, the collectives' and lost between allocations.
USABLE_MEMORY = 0.9


@dataclasses.dataclass(frozen=True)
class Device:
    """What one replica computes on."""

    description: str
    memory: float  # bytes
    peak_flops: dict[str, float]  # dense matrix products a second, by --mixed_precision
    utilization: float  # assumed part of the peak that training reaches


def _peaks(full: float, half: float) -> dict[str, float]:
    return {"float32": full, "bfloat16": half, "float16": half}


def _of_tpu(peak: float) -> dict[str, float]:
    # A product of float32 is one pass of bfloat16; the matrix units know no float16.
    return {"float32": peak, "bfloat16": peak}


# Peaks are without structured sparsity, half of what some data sheets print first. TensorFlow
# multiplies float32 as TF32 on these GPUs and in one bfloat16 pass on a TPU. No utilization was
# measured with this toolkit: the GPUs' and the CPU's are cautious guesses for attention that is
# not fused. The TPU's is what the paper's own run implies: xxlarge in 32 hours (table 6), 3.9e21
# FLOPs, is 0.53 of the peak of 512 chips, the most that section 4.1 names.
DEVICES = {
    # NVIDIA H200 data sheet (SXM): 141 GB, 1,979 TFLOPS bfloat16 and 989 TF32 with sparsity.
    "h200": Device("NVIDIA H200 SXM", 141e9, _peaks(494.7e12, 989.4e12), 0.30),
    # NVIDIA A100 data sheet (SXM, 80 GB): 312 TFLOPS bfloat16 and 156 TF32, dense.
    "a100": Device("NVIDIA A100 SXM, 80 GB", 80e9, _peaks(156e12, 312e12), 0.35),
    # Google Cloud's page on TPU v3: 123 TFLOPS bfloat16 and 32 GiB for a chip of two cores.
    "tpu-v3": Device("core of a TPU v3, half a chip", 16 * GIB, _of_tpu(61.5e12), 0.50),
    # Google Cloud's pages on each generation: peaks of bfloat16. What a program may use of a
    # chip's memory is what XLA says.
    "tpu-v4": Device("TPU v4", 30.75 * GIB, _of_tpu(275e12), 0.50),
    "tpu-v5e": Device("TPU v5e", 15.75 * GIB, _of_tpu(197e12), 0.50),
    "tpu-v5p": Device("TPU v5p", 95.74 * GIB, _of_tpu(459e12), 0.50),
    "tpu-v6e": Device("TPU v6e", 31.25 * GIB, _of_tpu(918e12), 0.50),
    # No product but an assumption: 16 cores at 3 GHz, 32 float32 operations a cycle (two AVX2
    # multiply-adds of 8 numbers); half precision is no faster there.
    "cpu": Device("16 cores with AVX2 at 3 GHz, 64 GiB", 64 * GIB, _peaks(1.536e12, 1.536e12),
                  0.30),
}


def activation_factor(remat: bool) -> float:
    """Returns how many times `model_size.activation_bytes` a step took, as measured on a CPU.

    `docs/evidence/performance_diary.md` has the measurements, which this rounds up.
    """
    return 1.5 if remat else 1.3


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one architecture is trained on each of the devices; memory in bytes."""

    fits: bool  # if not, the numbers are those of one sequence at a time
    micro_batch: int  # sequences that a device computes at once
    gradient_accumulation_steps: int
    weights_gradients_and_slots: int
    activations: int  # factor included
    memory: int  # both together
    usable_memory: int
    fits_with_remat: bool  # one sequence at a time, with its own factor
    days: float


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """What a plan takes for granted of a device and its speed."""

    memory: float  # bytes of a device
    usable: float  # part of it
    peak_flops: float  # of a device, a second
    utilization: float  # part of the peak
    activation_factor: float
    remat_activation_factor: float

    @property
    def usable_bytes(self) -> int:
        return int(self.memory * self.usable)


def make_plan(config: AlbertConfig, workload: Workload, assumed: Assumptions) -> Plan:
    """Returns the plan with the largest micro-batch that fits.

    `workload.gradient_accumulation_steps` is the least accumulation that is tried, and
    the batch a multiple of it times `num_devices`. The time is training FLOPs / (devices
    x peak x utilization): an update, evaluation and communication are in the utilization.
    """
    rows = workload.train_batch_size // workload.num_devices
    counts = [
        count for count in range(workload.gradient_accumulation_steps, rows + 1)
        if rows % count == 0
    ]
    for count in counts:
        chosen = dataclasses.replace(workload, gradient_accumulation_steps=count)
        fixed, activations = _memory(config, chosen, assumed)
        if fits := fixed + activations <= assumed.usable_bytes:
            break
    if not fits:
        recomputed, few = _memory(config, dataclasses.replace(chosen, remat=True), assumed)
    tokens = workload.num_train_steps * workload.tokens_per_batch
    speed = workload.num_devices * assumed.peak_flops * assumed.utilization
    return Plan(
        fits=fits,
        micro_batch=chosen.rows_at_once,
        gradient_accumulation_steps=chosen.gradient_accumulation_steps,
        weights_gradients_and_slots=fixed,
        activations=activations,
        memory=fixed + activations,
        usable_memory=assumed.usable_bytes,
        fits_with_remat=fits or recomputed + few <= assumed.usable_bytes,
        days=model_size.training_flops(config, workload) * tokens / speed / SECONDS_OF_A_DAY,
    )


def _memory(config: AlbertConfig, workload: Workload, assumed: Assumptions) -> tuple[int, int]:
    """Returns the bytes that do not depend on the micro-batch, and the activations."""
    told = model_size.memory_bytes(config, workload)
    factor = assumed.remat_activation_factor if workload.remat else assumed.activation_factor
    activations = told.pop("activations")
    return sum(told.values()), round(activations * factor)
