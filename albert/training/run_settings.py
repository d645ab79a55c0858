"""The settings of a run, its model, and its batch layout."""

import dataclasses
import math
from typing import Any

import keras

from albert.config import AlbertConfig
from albert.model.encoder_options import EncoderOptions
from albert.model.layers import precision
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles
from albert.tasks.task import Task
from albert.training.current_engine import current
from albert.training.engine import Engine

# XLA compiles each batch shape: packed batches have at most this many different sizes. Of large
# batches, sizes are multiples of twice the square root of the examples: their spread grows like the
# root, so that two or three occur, with less padding.
_XLA_BATCH_SIZES = 8
# If at least this fraction of positions are tokens, trimming and packing cost more than they save.
_FULL_ENOUGH = 0.8


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
    attn_implementation: str = "eager"  # key of `attention.ATTENTION`
    remat: bool = False  # recompute layers in the backward pass instead of keeping activations
    freeze_encoder: bool = False  # train the head only
    pad_to_max_seq_length: bool = False  # sequences of full length, even if a batch needs less
    pack_rows: bool = False  # several short examples in a sequence
    keep_last: bool = False  # model.ckpt-best is the last checkpoint evaluated, whatever its metric

    def on(self, engine: Engine) -> "RunConfig":
        """Returns the settings with the engine's defaults."""
        if self.use_xla is not None:
            return self
        return dataclasses.replace(self, use_xla=engine.always_compiles or engine.has_accelerator)

    @property
    def last_step(self) -> int:
        """The step at which this process ends."""
        return min(self.until_step or self.num_train_steps, self.num_train_steps)


def build_model(task: Task, config: AlbertConfig, run: RunConfig) -> keras.Model:
    """Returns the task's model, initialised from the seed, in the run's precision."""
    engine = current()
    keras.utils.set_random_seed(run.seed)
    is_compiled = bool(run.use_xla) or engine.always_compiles
    options = EncoderOptions(
        run.attn_implementation,
        engine=engine.layer_engine(run.use_xla),
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
    if run.pad_to_max_seq_length or not spec.row_length or source.mean_fill(spec) >= _FULL_ENOUGH:
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
