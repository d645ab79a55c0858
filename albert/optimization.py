"""LAMB and the original's AdamW as Keras 3 optimizers, and their learning-rate schedule.

Neither is what Keras calls by that name: no bias correction, weight decay
inside the update, epsilon outside the square root, and LayerNorm and biases
left out of both decay and trust ratio (spec of the released models).
"""

import dataclasses
import re

import albert.model.backend  # noqa: F401, I001  (before Keras)
import keras
from keras import ops

from albert.errors import FlagError

WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0
# Searched (not matched) in the checkpoint name of a variable.
EXCLUDED = ("LayerNorm", "layer_norm", "bias")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """How weights are updated; every value comes from a flag of the run."""

    name: str = "adamw"  # adamw, lamb or muon
    learning_rate: float = 5e-5  # peak rate
    num_train_steps: int = 1000  # where the decay reaches zero
    num_warmup_steps: int = 0  # linear warm-up from zero
    poly_power: float = 1.0  # power of the polynomial decay
    start_warmup_step: int = 0  # step at which the warm-up begins
    num_decay_steps: int = 0  # the last steps, in which alone the rate falls; 0: in all


@keras.saving.register_keras_serializable("albert")
@dataclasses.dataclass(eq=False)
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """The original's schedule: rate(t) for t counted from 0 before the update.

    rate * (1 - t/T)^power, and during warm-up rate * (t - start) / W instead.
    The decay is not shifted by the warm-up, so the rate steps down slightly
    where the warm-up ends, as in the original. Before `start` it is 0, where
    the original's went negative.

    With `num_decay_steps` D the rate stays as it is until D steps are left, and then is
    rate * ((T - t) / D)^power: warm-up, plateau, decay.
    """

    learning_rate: float
    num_train_steps: int
    num_warmup_steps: int = 0
    poly_power: float = 1.0
    start_warmup_step: int = 0
    num_decay_steps: int = 0

    def __call__(self, step):
        step = ops.cast(step, "float32")
        total = float(self.num_train_steps)
        if self.num_decay_steps:
            left = ops.minimum(ops.maximum(total - step, 0.0) / self.num_decay_steps, 1.0)
        else:
            left = 1.0 - ops.minimum(step, total) / total
        rate = self.learning_rate * ops.power(left, self.poly_power)
        if not self.num_warmup_steps:
            return rate
        since = step - self.start_warmup_step
        warm = self.learning_rate * ops.maximum(since, 0.0) / self.num_warmup_steps
        return ops.where(since < self.num_warmup_steps, warm, rate)

    def get_config(self):
        return dataclasses.asdict(self)


@keras.saving.register_keras_serializable("albert")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam with decay inside the update and no bias correction (BERT's AdamW).

    m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  u = m / (sqrt(v) + eps) + wd w;  w = w - lr u

    Gradients are made dense, summed over replicas and clipped by their global norm, in
    that order. Keras's own clipping comes before the sum, and takes the norm of an
    embedding gradient slice by slice. A gradient that is not finite leaves weights and
    moments untouched on every replica.

    Args:
      exclude_from_weight_decay: regular expressions searched in a variable's path.
      clip_norm: largest global norm of the gradients; None does not clip.
      sums_over_replicas: off where the caller has summed the gradients already.
    """

    slot_names = ("adam_m", "adam_v")

    def __init__(
        self,
        learning_rate=0.001,
        weight_decay_rate: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: tuple[str, ...] | None = None,
        clip_norm: float | None = None,
        sums_over_replicas: bool = True,
        name: str = "adam_weight_decay",
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude_from_weight_decay_patterns = tuple(exclude_from_weight_decay or ())
        self.clip_norm = clip_norm
        self.sums_over_replicas = sums_over_replicas

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.moments = [
            tuple(self.add_variable_from_reference(v, name=slot) for slot in self._slots_of(v))
            for v in variables
        ]
        self._decayed = [
            not _matches(v.path, self.exclude_from_weight_decay_patterns) for v in variables
        ]

    def named_slots(self, names: dict[str, keras.Variable]) -> dict[str, keras.Variable]:
        """Returns {"<variable>/adam_m": slot, ...} for the named trainable weights."""
        return {
            f"{name}/{slot}": moment
            for name, variable in names.items()
            for slot, moment in zip(
                self._slots_of(variable), self.moments[self._get_variable_index(variable)],
                strict=True,
            )
        }

    def _slots_of(self, variable) -> tuple[str, ...]:
        """Returns the names of what is kept for a variable."""
        return self.slot_names

    def _clip_gradients(self, grads):
        # TensorFlow sums over replicas later, and clips what it has summed.
        sums_later = keras.backend.backend() == "tensorflow"
        return grads if sums_later else clip_by_global_norm(grads, self.clip_norm)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        """Called by Keras on TensorFlow alone."""
        import tensorflow as tf

        dense = [(None if g is None else tf.convert_to_tensor(g), v) for g, v in grads_and_vars]
        reduced = super()._all_reduce_sum_gradients(dense) if self.sums_over_replicas else dense
        grads = clip_by_global_norm([g for g, _ in reduced], self.clip_norm)
        return [(g, v) for g, (_, v) in zip(grads, reduced, strict=True)]

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        # clip_by_global_norm makes every gradient NaN when any of them is not finite.
        finite = ops.isfinite(ops.reshape(gradient, (-1,))[0])
        old = ops.convert_to_tensor(variable)
        moments = self.moments[index]
        before = [ops.convert_to_tensor(moment) for moment in moments]
        update, after = self._direction(before, gradient)
        if self._decayed[index]:
            update += self.weight_decay_rate * old
        rate = ops.cast(learning_rate, variable.dtype)
        step = rate * self._trust_ratio(index, old, update) * update
        for moment, was, now in zip(moments, before, after, strict=True):
            self.assign(moment, ops.where(finite, now, was))
        self.assign(variable, ops.where(finite, old - step, old))

    def _direction(self, moments, gradient):
        """Returns the update before decay and rate, and the new values of the moments."""
        first = self.beta_1 * moments[0] + (1.0 - self.beta_1) * gradient
        second = self.beta_2 * moments[1] + (1.0 - self.beta_2) * ops.square(gradient)
        return first / (ops.sqrt(second) + self.epsilon), (first, second)

    def _trust_ratio(self, index, weight, update):
        return 1.0

    def get_config(self):
        return super().get_config() | {
            "weight_decay_rate": self.weight_decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "exclude_from_weight_decay": self.exclude_from_weight_decay_patterns,
            "clip_norm": self.clip_norm,
            "sums_over_replicas": self.sums_over_replicas,
        }


@keras.saving.register_keras_serializable("albert")
class Lamb(AdamWeightDecay):
    """LAMB (arXiv 1904.00962) in the form that the released models were trained with.

    Four stages: Adam's update without bias correction, weight decay added to
    it, the trust ratio ||w|| / ||u|| (1 where either norm is 0), the rate.

    Args:
      exclude_from_layer_adaptation: regular expressions for a ratio of 1;
        empty means those of `exclude_from_weight_decay`.
    """

    def __init__(
        self,
        learning_rate=0.001,
        exclude_from_layer_adaptation: tuple[str, ...] | None = None,
        name: str = "lamb",
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.exclude_from_layer_adaptation = tuple(
            exclude_from_layer_adaptation or self.exclude_from_weight_decay_patterns
        )

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._adapted = [
            not _matches(v.path, self.exclude_from_layer_adaptation) for v in variables
        ]

    def _trust_ratio(self, index, weight, update):
        if not self._adapted[index]:
            return 1.0
        weight_norm, update_norm = _norm(weight), _norm(update)
        both = ops.logical_and(weight_norm > 0, update_norm > 0)
        return ops.where(both, weight_norm / ops.where(both, update_norm, 1.0), 1.0)

    def get_config(self):
        return super().get_config() | {
            "exclude_from_layer_adaptation": self.exclude_from_layer_adaptation
        }


@keras.saving.register_keras_serializable("albert")
class Muon(Lamb):
    """LAMB, whose updates of matrices are orthogonal: every direction is learned at one rate.

    For a matrix (a variable that ends with "kernel") Adam's update is replaced by that of Muon
    (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the gradients' running sum, looked
    ahead by one step, is brought near to U V^T of its singular value decomposition U S V^T. Decay
    and trust ratio stay LAMB's, so the rate means the same for all variables. Where one layer is
    used many times there are few matrices, and this costs little.

    Args:
      momentum: how much of the running sum is kept at each step.
    """

    matrix_slot_names = ("momentum",)

    def __init__(self, learning_rate=0.001, momentum: float = 0.95, name: str = "muon", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum

    def _slots_of(self, variable):
        is_matrix = len(variable.shape) == 2 and variable.path.endswith("kernel")
        return self.matrix_slot_names if is_matrix else self.slot_names

    def _direction(self, moments, gradient):
        if len(moments) == 2:
            return super()._direction(moments, gradient)
        total = self.momentum * moments[0] + gradient
        return orthogonal(gradient + self.momentum * total), (total,)

    def get_config(self):
        return super().get_config() | {"momentum": self.momentum}


def orthogonal(matrix):
    """Returns a matrix near to the orthogonal one that is nearest to `matrix` [M, N].

    Its singular values lie between about 0.7 and 1.2. Five steps of Newton and Schulz with the
    coefficients of Jordan et al. 2024, in the precision of the matrix.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = ops.transpose(matrix) if is_tall else matrix
    x = x / (_norm(x) + 1e-7)
    for _ in range(5):
        square = ops.matmul(x, ops.transpose(x))
        mixed = -4.7750 * square + 2.0315 * ops.matmul(square, square)
        x = 3.4445 * x + ops.matmul(mixed, x)
    return ops.transpose(x) if is_tall else x


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _norm(x):
    """Returns the L2 norm of all values of a tensor."""
    return ops.sqrt(ops.sum(ops.square(x)))


def global_norm(gradients):
    """Returns the L2 norm over all dense gradients (None ones left out)."""
    squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients if g is not None]
    return ops.sqrt(sum(squares[1:], squares[0]))


def clip_by_global_norm(gradients, clip_norm: float | None):
    """Returns the gradients scaled to a global norm of at most `clip_norm`.

    If any value is not finite, every returned value is NaN: that is how each
    variable's update learns of it.
    """
    norm = global_norm(gradients)
    scale = 1.0 if clip_norm is None else clip_norm / ops.maximum(norm, clip_norm)
    scale = ops.where(ops.isfinite(norm), scale, float("nan"))
    return [None if g is None else g * ops.cast(scale, g.dtype) for g in gradients]


def create_optimizer(
    config: OptimizerConfig, sums_over_replicas: bool = True
) -> AdamWeightDecay:
    """Returns the optimizer with the settings of the released models (decay 0.01, clip 1.0).

    Raises:
      FlagError: unknown name.
    """
    schedule = dataclasses.asdict(config)
    classes = {"adamw": AdamWeightDecay, "lamb": Lamb, "muon": Muon}
    name = schedule.pop("name")
    if name not in classes:
        raise FlagError(f"--optimizer must be one of {', '.join(classes)}, got {name!r}")
    return classes[name](
        learning_rate=WarmupPolynomialDecay(**schedule),
        weight_decay_rate=WEIGHT_DECAY,
        exclude_from_weight_decay=EXCLUDED,
        clip_norm=CLIP_NORM,
        sums_over_replicas=sums_over_replicas,
    )
