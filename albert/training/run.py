"""A run: its settings, its model and optimizer, and how it resumes."""

import dataclasses
import functools
import logging
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from albert import modeling
from albert.config import AlbertConfig
from albert.errors import FlagError, some
from albert.model.encoder import EncoderOptions
from albert.model.layers import precision
from albert.optimization import OptimizerConfig, create_optimizer
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles
from albert.runtime.workers import bfloat16_gain
from albert.storage import files
from albert.tasks.task import Task
from albert.training.engine import Engine

log = logging.getLogger("albert")

# XLA compiles each batch shape: packed batches have at most this many different sizes. Of large
# batches, sizes are multiples of twice the square root of the examples: their spread grows like the
# root, so that two or three occur, with less padding.
_XLA_BATCH_SIZES = 8
# If at least this fraction of positions are tokens, trimming and packing cost more than they save.
_FULL_ENOUGH = 0.8
# Flags that decide on the weights: in a run that is complete, none of them may change.
_TRAINING = {
    "learning_rate", "optimizer", "poly_power", "num_decay_steps", "num_train_steps", "train_step",
    "num_warmup_steps", "warmup_step", "start_warmup_step", "train_batch_size", "classifier_dropout",
    "albert_dropout", "dropout_prob", "class_weights", "freeze_encoder", "init_checkpoint",
    "albert_hub_module_handle", "init_embeddings", "max_seq_length", "masked_lm_budget", "teacher",
    "init_from_teacher", "do_whole_word_mask", "favor_shorter_ngram", "ngram", "mask_token_share",
}


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The settings of a run, apart from the task. Values come from flags, or suit the data."""

    output_dir: str
    num_train_steps: int = 1000  # the step at which training is done
    until_step: int = 0  # end at this step, with the schedules of num_train_steps; 0: at the end
    train_batch_size: int = 32  # sequences of a step
    eval_batch_size: int = 8  # sequences of an evaluation or prediction batch
    save_checkpoints_steps: int = 1000  # steps between checkpoints
    keep_checkpoint_max: int = 5  # newest checkpoints kept; 0 keeps all
    log_steps: int = 100  # steps between lines of metrics
    seed: int = 12345  # everything random derives from it
    max_eval_steps: int = 0  # evaluation batches; 0 is one full pass
    use_xla: bool | None = None  # compile the step; None: on a GPU
    mixed_precision: str = "float32"  # of the matrix products
    gradient_accumulation_steps: int = 1  # micro-batches per device and step
    input_processes: int = 1  # processes that make training batches
    remat: bool = False  # recompute layers in the backward pass instead of keeping activations
    freeze_encoder: bool = False  # train the head only
    pad_to_max_seq_length: bool = False  # sequences of full length, even if a batch needs less
    pack_rows: bool = False  # several short examples in a sequence
    keep_last: bool = False  # model.ckpt-best is the last checkpoint evaluated, whatever its metric

    @property
    def last_step(self) -> int:
        """The step at which this process ends."""
        return min(self.until_step or self.num_train_steps, self.num_train_steps)

    def is_due(self, step: int) -> bool:
        """Whether this step gets a checkpoint and an evaluation."""
        return step > 0 and (step % self.save_checkpoints_steps == 0 or step == self.last_step)


@functools.cache
def current() -> Engine:
    """Returns the engine of Keras's backend; there is one, because it knows which devices were chosen."""
    if keras.backend.backend() == "jax":
        from albert.training.jax_engine import JaxEngine

        return JaxEngine()
    from albert.training.tf_engine import TensorFlowEngine

    return TensorFlowEngine()


def build_model(task: Task, config: AlbertConfig, run: RunConfig) -> keras.Model:
    """Returns the task's model, initialised from the seed, in the run's precision."""
    engine = current()
    keras.utils.set_random_seed(run.seed)
    is_compiled = bool(run.use_xla) or engine.always_compiles
    has_loop = not run.use_xla
    if engine.always_compiles:
        # An H100 takes a quarter less time for unrolled layers, and compiles them as fast.
        has_loop = run.remat or not engine.has_accelerator or engine.device_name.startswith("TPU")
    options = EncoderOptions(
        has_loop=has_loop,
        remat=run.remat,
        # With --pad_to_max_seq_length, everything is computed, as in the original.
        needed_outputs_only=not run.pad_to_max_seq_length,
        weighted_positions_only=not (run.pad_to_max_seq_length or is_compiled),
    )
    policy = run.mixed_precision
    # Only while it is built: Keras's global policy stays the user's.
    with precision(policy if policy == "float32" else f"mixed_{policy}"):
        return task.build_model(config, encoder_options=options)


def row_options(
    run: RunConfig, spec: FeatureSpec, source: RecordFiles, examples: int, is_shared: bool = False
) -> dict[str, Any]:
    """Returns the arguments `is_cut` and `packed_rows` of `records.batches` for a run's batches.

    Args:
      examples: those that a replica computes at once.
      is_shared: whether each replica reads a separate part of a batch.
    """
    if run.pad_to_max_seq_length or not spec.row_length:
        return {"is_cut": False}
    ids = source.read_block(0, spec, 1 << 31)["input_ids"]  # records are in random order
    if np.count_nonzero(ids) >= _FULL_ENOUGH * ids.size:
        return {"is_cut": False}
    engine = current()
    if not run.pack_rows:
        # One program for all devices needs sequences of one length, but parts would differ.
        return {"is_cut": not (is_shared and engine.always_compiles)}
    if not (run.use_xla or engine.always_compiles):
        return {"is_cut": True, "packed_rows": 1}
    # XLA compiles each shape, so sequences have one length, and batches few different sizes.
    multiple = min(examples / _XLA_BATCH_SIZES, 2 * math.sqrt(examples))
    return {"is_cut": False, "packed_rows": math.ceil(multiple)}


# === Model and optimizer ===


class TrainState:
    """Model, optimizer and step, each under its name in a checkpoint."""

    def __init__(
        self, task: Task, config: AlbertConfig, run: RunConfig, optimizer: OptimizerConfig
    ):
        self.model = build_model(task, config, run)
        self.weights, self.constants = modeling.named_weights(self.model), task.constants
        self.trained = {
            name: weight for name, weight in self.weights.items()
            if weight.trainable and not (run.freeze_encoder and name.startswith("bert/"))
        }
        self.optimizer = create_optimizer(optimizer)
        # All variables must exist before a checkpoint is restored.
        self.optimizer.build(list(self.trained.values()))
        self.slots = self.optimizer.named_slots(self.trained)
        # Loss scale of half precision, whose gradients would underflow.
        scale = 2.0**15 if run.mixed_precision == "float16" else 1.0
        # No weight, and the same on every replica.
        self.loss_scale = keras.Variable(
            np.array([scale, 0.0], np.float32), trainable=False, autocast=False,
            aggregation="only_first_replica",
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables of a step; it changes them, except for the task's constants."""
        own = *self.model.variables, *self.optimizer.variables, self.loss_scale
        return [*own, *self.constants]

    @property
    def step(self) -> int:
        return int(ops.convert_to_numpy(self.optimizer.iterations))

    @property
    def named(self) -> dict[str, Any]:
        """The variables of a checkpoint without `global_step`: weights and moments."""
        return self.weights | self.slots

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(v.shape) for name, v in self.named.items()} | {"global_step": ()}

    def tensors(self) -> dict[str, np.ndarray]:
        """Returns the content of a checkpoint."""
        values = {name: variable.numpy() for name, variable in self.named.items()}
        return values | {"global_step": np.int64(self.step)}

    def assign(self, tensors: Mapping[str, np.ndarray]) -> None:
        named = self.named | {"global_step": self.optimizer.iterations}
        for name, value in tensors.items():
            named[name].assign(value)


# === Start ===


def restore(
    state: TrainState, run: RunConfig, tensors: Mapping[str, np.ndarray], run_state: Mapping[str, Any],
    flags: Mapping[str, Any],
) -> None:
    """Restores a checkpoint, and warns of the flags that changed since.

    Raises:
      FlagError: the run is complete, and a flag that decides on its weights changed.
    """
    state.assign(tensors)
    step, before = state.step, run_state.get("flags", {})
    if not run_state:  # a checkpoint of the original toolkit, or its JSON file was lost
        log.warning("no model.ckpt-%d.json: computing the data position from the step", step)
    # In other precisions the scale is 1, with which float16 cannot start.
    had_scale = before.get("mixed_precision", "float16") == "float16"
    if "loss_scale" in run_state and had_scale and run.mixed_precision == "float16":
        state.loss_scale.assign(run_state["loss_scale"])
    # NaN, the default of a flag, is null in the file.
    changed = {
        name: f"--{name}={before[name]}, not {flags[name]}"
        for name in sorted(set(before) & set(flags) - {"conditions"})
        if not files.is_same_json(before[name], files.finite(flags[name]))
    }
    used = [text for name, text in changed.items() if name in _TRAINING]
    last = before.get("num_train_steps", before.get("train_step")) or 0
    if used and step >= max(last, run.num_train_steps):
        raise FlagError(f"{run.output_dir} is already trained, with {some(used)}: use another "
                        "--output_dir, or leave --do_train out")
    if changed:
        log.warning("flags changed: the first %d steps had %s", step, "; ".join(changed.values()))


def log_start(state: TrainState, run: RunConfig, origin: str) -> None:
    """Logs model, settings and initial weights of a training."""
    size = sum(int(np.prod(v.shape)) for v in state.weights.values())
    log.info(
        "training %s parameters, steps %d to %d of %d sequences, %s, %s, into %s",
        f"{size:,}", state.step, run.last_step, run.train_batch_size,
        "compiled by XLA" if run.use_xla else "not compiled", run.mixed_precision, run.output_dir,
    )
    log.info("start: %s", origin)
    is_tensorflow = keras.backend.backend() == "tensorflow"  # JAX's products gain less
    if run.mixed_precision == "float32" and is_tensorflow and not current().has_accelerator:
        if gain := bfloat16_gain():
            log.info("--mixed_precision=bfloat16 would be about %s times as fast here", gain)
