"""How a run goes, and what follows from it for its model and its rows."""

import dataclasses
import math
from typing import Any

import keras
import tensorflow as tf

from albert.config import AlbertConfig
from albert.data.examples import FeatureSpec
from albert.data.record_files import RecordFiles
from albert.model.encoder_options import EncoderOptions
from albert.tasks.task import Task
from albert.training import distribution

# Numbers of packed rows that a batch may have where each is compiled.
_XLA_NUMBERS_OF_ROWS = 8
# Share of places that are tokens from which cutting and packing rows saves less than it costs.
_FULL_ENOUGH = 0.8


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """How a run goes, apart from what is trained; every value comes from a flag."""

    output_dir: str
    num_train_steps: int = 1000  # the step at which training is done
    until_step: int = 0  # end here already, the schedules being those of num_train_steps; 0: no
    # (layers, step before which the encoder has no more): a shallow model grows deeper.
    depth_schedule: tuple[tuple[int, int], ...] = ()
    train_batch_size: int = 32  # sequences of a step
    eval_batch_size: int = 8  # sequences of an evaluation or prediction batch
    save_checkpoints_steps: int = 1000  # steps between checkpoints
    keep_checkpoint_max: int = 5  # newest checkpoints kept; 0 keeps all
    iterations_per_loop: int = 1000  # most steps in one call into TensorFlow
    log_steps: int = 100  # steps between lines of metrics
    seed: int = 12345  # everything random derives from it
    max_eval_steps: int = 0  # evaluation batches; 0 is one full pass
    use_xla: bool | None = None  # compile the step; None: where it is known to pay
    mixed_precision: str = "float32"  # of the matrix products
    gradient_accumulation_steps: int = 1  # micro-batches that a device cuts its rows into
    attn_implementation: str = "eager"  # key of `attention.ATTENTION`
    remat: bool = False  # recompute each layer in the backward pass instead of keeping it
    per_replica_loss: bool = False  # each replica's own mean, averaged, as in the original
    freeze_encoder: bool = False  # train what stands on the encoder alone
    pad_to_max_seq_length: bool = False  # rows of full length, though a batch needs less
    pack_rows: bool = False  # several short examples in a row
    skip_loss_spikes: bool = False  # no update where the loss is far above the last ones
    early_stopping_patience: int = 0  # evaluations without improvement that end training; 0: off

    @property
    def last_step(self) -> int:
        """The step at which this process ends."""
        return min(self.until_step or self.num_train_steps, self.num_train_steps)

    def depth_at(self, step: int) -> int | None:
        """Returns how many layers the step after `step` has; None: all."""
        return next((layers for layers, until in self.depth_schedule if step < until), None)

    def depth_before(self, step: int) -> int | None:
        """Returns how many layers the step that led to `step` had; None: all."""
        return self.depth_at(max(step - 1, 0))


def build_model(task: Task, config: AlbertConfig, run: RunConfig) -> keras.Model:
    """Returns the task's model, initialised from the seed, in the run's precision."""
    policy = run.mixed_precision
    keras.config.set_dtype_policy(policy if policy == "float32" else f"mixed_{policy}")
    keras.utils.set_random_seed(run.seed)
    # Beside seeds that are computed, as those of epochs are, TensorFlow fails on a global 0.
    tf.random.set_seed(run.seed or 2**32)
    is_compiled = run.use_xla or distribution.is_tpu()
    return task.build_model(config, EncoderOptions(
        run.attn_implementation,
        engine="unrolled" if is_compiled else "graph_loop",
        remat=run.remat,
        # The parity switch computes all that the original does.
        needed_outputs_only=not run.pad_to_max_seq_length,
    ))


def row_options(
    run: RunConfig, spec: FeatureSpec, source: RecordFiles, batch_size: int
) -> dict[str, Any]:
    """Returns the `is_cut` and `packed_rows` of `input_pipeline` for the batches of a run."""
    if run.pad_to_max_seq_length or not spec.row_length or distribution.is_tpu():
        return {"is_cut": False}
    if source.mean_fill(spec) >= _FULL_ENOUGH:
        return {"is_cut": False}
    # Micro-batches are cut out of a batch by its examples, which rows would not show.
    if not run.pack_rows or run.gradient_accumulation_steps > 1:
        return {"is_cut": True}
    if not run.use_xla:
        return {"is_cut": True, "packed_rows": 1}
    # Each shape is compiled: rows of one length, and few numbers of them.
    examples = batch_size // distribution.num_replicas()
    return {"is_cut": False, "packed_rows": math.ceil(examples / _XLA_NUMBERS_OF_ROWS)}
