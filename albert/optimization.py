"""LAMB and the original's AdamW as Keras 3 optimizers, and their learning-rate schedule.

Keras's optimizers of these names differ. Those of the released models don't correct the bias of
running averages, add weight decay to the update, add epsilon outside of the square root, and
exclude LayerNorm and biases from weight decay and trust ratio.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable

import albert.model  # noqa: F401, I001  (before Keras)
import keras
from keras import ops

from albert.errors import FlagError
from albert.model.layers import compiled_chains

WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0
# Regular expressions, searched in a variable's path.
EXCLUDED = ("LayerNorm", "layer_norm", "bias")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer and schedule, with the values of the flags of the same names."""

    name: str = "adamw"  # adamw, lamb or muon
    learning_rate: float = 5e-5  # peak
    num_train_steps: int = 1000  # after them, the learning rate is 0
    num_warmup_steps: int = 0  # steps of linear warm-up from 0
    poly_power: float = 1.0  # power of the polynomial decay
    start_warmup_step: int = 0  # step at which the warm-up begins
    num_decay_steps: int = 0  # the decay takes only the last steps; 0: all steps


@keras.saving.register_keras_serializable("albert")
@dataclasses.dataclass(eq=False)
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """The original's schedule: linear warm-up for W steps, then polynomial decay until step T.

    At step t, counted from 0, the learning rate is rate * (t - start) / W during warm-up and
    rate * (1 - t / T)^power afterwards. As in the original, the warm-up doesn't shift the decay, so
    the rate drops slightly where it ends. Before `start` it is 0, unlike in the original, where it
    was negative. With `num_decay_steps` D, the rate is constant between warm-up and the last D
    steps, and then rate * ((T - t) / D)^power.
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


# Arguments of Keras's optimizers that would act besides ours, in another way.
_OF_KERAS = {
    "weight_decay": "weight_decay_rate", "global_clipnorm": "clip_norm", "clipnorm": "clip_norm",
    "clipvalue": "clip_norm",
}


@keras.saving.register_keras_serializable("albert")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """BERT's AdamW: weight decay is part of the update, and there is no bias correction.

    Gradients are made dense, summed over replicas and clipped by their global norm, in this order;
    Keras would clip before the sum, with the norm of an embedding's gradient taken slice by slice.
    If a gradient isn't finite, weights and optimizer state don't change on any replica.

    Args:
      weight_decay_rate: weight decay, multiplied by the learning rate.
      exclude_from_weight_decay: regular expressions that are searched in a variable's path.
      clip_norm: maximum global norm of the gradients; None does not clip.
    """

    def __init__(
        self, learning_rate=0.001, weight_decay_rate: float = 0.0, beta_1: float = 0.9,
        beta_2: float = 0.999, epsilon: float = 1e-6,
        exclude_from_weight_decay: tuple[str, ...] | None = None, clip_norm: float | None = None,
        name: str = "adam_weight_decay", **kwargs,
    ):
        for keras_name, ours in _OF_KERAS.items():
            if kwargs.get(keras_name) is not None:
                raise ValueError(f"{keras_name} is Keras's argument: use {ours}")
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude_from_weight_decay_patterns = tuple(exclude_from_weight_decay or ())
        self.clip_norm = clip_norm
        self._traced: dict[tuple, Callable] = {}

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Leaves variables, or those whose path matches a regular expression, without weight decay.

        Raises:
          ValueError: the optimizer has been used.
        """
        if self.built:
            raise ValueError("exclude_from_weight_decay: call it before the optimizer is used")
        given = [*(var_list or ()), *(var_names or ())]
        self.exclude_from_weight_decay_patterns += tuple(
            one if isinstance(one, str) else f"^{re.escape(one.path)}$" for one in given
        )

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.slots = [
            tuple(self.add_variable_from_reference(v, name=slot) for slot in self.slot_names(v))
            for v in variables
        ]

    def slot_names(self, variable) -> tuple[str, ...]:
        """Returns the names of a variable's slots, its optimizer state."""
        return ("adam_m", "adam_v")

    def rule(self, variable) -> Callable:
        """Returns the update rule of a variable: (gradient, weight, slots, rate) -> (weight, slots)."""
        return functools.partial(adamw, **self._adam_options(variable.path))

    def _adam_options(self, path: str) -> dict[str, float]:
        excluded = _matches(path, self.exclude_from_weight_decay_patterns)
        return {
            "beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon,
            "decay": 0.0 if excluded else self.weight_decay_rate,
        }

    def named_slots(self, names: dict[str, keras.Variable]) -> dict[str, keras.Variable]:
        """Returns {"<name>/<name of slot>": slot} for trainable variables {name: variable}."""
        return {
            f"{name}/{slot_name}": slot
            for name, variable in names.items()
            for slot_name, slot in zip(
                self.slot_names(variable), self.slots[self._get_variable_index(variable)],
                strict=True,
            )
        }

    def update(self, gradients, variables, norm, is_sound) -> None:
        """Clips and applies gradients if `is_sound`; counts the step in any case.

        Args:
          gradients: dense gradients, summed over replicas.
          norm: their `global_norm`.
        """
        self._update(gradients, variables, self._get_current_learning_rate(), norm, is_sound)
        self._iterations.assign_add(1)

    def _update(self, gradients, variables, rate, norm, is_sound) -> None:
        for gradient, variable in zip(clip(gradients, norm, self.clip_norm), variables, strict=True):
            assigned = (variable, *self.slots[self._get_variable_index(variable)])
            before = [ops.convert_to_tensor(x) for x in assigned]
            step = self._traced_once(self.rule(variable), tuple(variable.shape))
            updated = step(gradient, ops.cast(rate, before[0].dtype), is_sound, *before)
            for target, new in zip(assigned, updated, strict=True):
                self.assign(target, new)

    def _traced_once(self, rule: functools.partial, shape: tuple[int, ...]) -> Callable:
        """Returns the function (gradient, rate, is_sound, weight, *slots) -> new weight and slots.

        TensorFlow traces it once for all variables of a rank, which makes tracing a training step a
        tenth faster. The computation of `muon` depends on the shape. On CPUs, XLA computes the update
        of a large variable, but no matrix products, in which it is slow.
        """
        def step(gradient, rate, is_sound, *before):
            weight, slots = rule(gradient, before[0], before[1:], rate)
            return [ops.where(is_sound, new, old)
                    for new, old in zip((weight, *slots), before, strict=True)]

        if keras.backend.backend() != "tensorflow":
            return step
        import tensorflow as tf

        has_products, chains = rule.func is muon, compiled_chains.get()
        is_compiled = bool(chains and not has_products and math.prod(shape) >= chains.MIN_ELEMENTS)
        size = shape if has_products or is_compiled else len(shape)
        key = rule.func, tuple(sorted(rule.keywords.items())), size
        if key not in self._traced:
            self._traced[key] = tf.function(
                step, autograph=False, reduce_retracing=True, jit_compile=is_compiled or None
            )
        return lambda *inputs: self._traced[key](*map(tf.convert_to_tensor, inputs))

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        """Called by Keras's `apply`."""
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            dense = [(tf.convert_to_tensor(g), None) for g in grads]
            grads = [g for g, _ in self._all_reduce_sum_gradients(dense)]
        norm = global_norm(grads)
        self._update(grads, trainable_variables, learning_rate, norm, ops.isfinite(norm))

    def get_config(self):
        names = ("weight_decay_rate", "beta_1", "beta_2", "epsilon", "clip_norm")
        return super().get_config() | {name: getattr(self, name) for name in names} | {
            "exclude_from_weight_decay": self.exclude_from_weight_decay_patterns,
        }


@keras.saving.register_keras_serializable("albert")
class Lamb(AdamWeightDecay):
    """LAMB (arXiv 1904.00962), as the released models were trained with it.

    Args:
      exclude_from_layer_adaptation: regular expressions for variables whose trust ratio is 1; by
        default those of `exclude_from_weight_decay`.
      kwargs: arguments of `AdamWeightDecay`.
    """

    def __init__(
        self, learning_rate=0.001, exclude_from_layer_adaptation: tuple[str, ...] | None = None,
        name: str = "lamb", **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.exclude_from_layer_adaptation = tuple(
            exclude_from_layer_adaptation or self.exclude_from_weight_decay_patterns
        )

    def rule(self, variable) -> Callable:
        is_adapted = not _matches(variable.path, self.exclude_from_layer_adaptation)
        return functools.partial(lamb if is_adapted else adamw, **self._adam_options(variable.path))

    def get_config(self):
        return super().get_config() | {
            "exclude_from_layer_adaptation": self.exclude_from_layer_adaptation
        }


@keras.saving.register_keras_serializable("albert")
class Muon(Lamb):
    """LAMB with orthogonalized updates of matrices, so that all directions learn at the same rate.

    Matrices (variables whose path ends with "kernel") are updated by `muon`. Weight decay and trust
    ratio are LAMB's, so that the learning rate means the same for all variables. It costs little
    if layers share their weights, since there are few matrices.

    Args:
      momentum: fraction of the running sum of gradients that is kept at each step.
      kwargs: arguments of `Lamb`.
    """

    def __init__(self, learning_rate=0.001, momentum: float = 0.95, name: str = "muon", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum

    def slot_names(self, variable) -> tuple[str, ...]:
        return ("momentum",) if _is_matrix(variable) else super().slot_names(variable)

    def rule(self, variable) -> Callable:
        if not _is_matrix(variable):
            return super().rule(variable)
        is_adapted = not _matches(variable.path, self.exclude_from_layer_adaptation)
        return functools.partial(
            muon, momentum=self.momentum, decay=self._adam_options(variable.path)["decay"],
            is_adapted=is_adapted,
        )

    def get_config(self):
        return super().get_config() | {"momentum": self.momentum}


def _is_matrix(variable) -> bool:
    return len(variable.shape) == 2 and variable.path.endswith("kernel")


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


# --- Update rules: (gradient, weight, slots, rate) -> (weight, slots) ---
#
# They depend on the step only through the learning rate, without bias correction.


def adamw(gradient, weight, slots, rate, *, beta_1, beta_2, epsilon, decay):
    """Updates w = w - rate u, with u = m / (sqrt(v) + epsilon) + decay w.

    m = beta_1 m + (1 - beta_1) g and v = beta_2 v + (1 - beta_2) g^2, without bias correction.
    """
    update, slots = _adam(gradient, slots, beta_1, beta_2, epsilon)
    return weight - rate * _decayed(update, weight, decay), slots


def lamb(gradient, weight, slots, rate, *, beta_1, beta_2, epsilon, decay):
    """Updates w = w - rate r u, with the trust ratio r (arXiv 1904.00962).

    u as in `adamw`; r = ||w|| / ||u||, or 1 if either norm is 0.
    """
    update, slots = _adam(gradient, slots, beta_1, beta_2, epsilon)
    update = _decayed(update, weight, decay)
    return weight - rate * _trust_ratio(weight, update) * update, slots


def muon(gradient, weight, slots, rate, *, momentum, decay, is_adapted=True):
    """Updates w = w - rate r u, with u = orthogonal(g + momentum s) + decay w and `lamb`'s r.

    s = momentum s + g is a running sum of gradients, used with Nesterov momentum (Jordan et al.
    2024, kellerjordan.github.io/posts/muon).
    """
    total = momentum * slots[0] + gradient
    update = _decayed(orthogonal(gradient + momentum * total), weight, decay)
    ratio = _trust_ratio(weight, update) if is_adapted else 1.0
    return weight - rate * ratio * update, (total,)


def _adam(gradient, slots, beta_1, beta_2, epsilon):
    first = beta_1 * slots[0] + (1.0 - beta_1) * gradient
    second = beta_2 * slots[1] + (1.0 - beta_2) * ops.square(gradient)
    return first / (ops.sqrt(second) + epsilon), (first, second)


def _decayed(update, weight, decay: float):
    return update + decay * weight if decay else update


def _trust_ratio(weight, update):
    weight_norm, update_norm = _norm(weight), _norm(update)
    both = ops.logical_and(weight_norm > 0, update_norm > 0)
    return ops.where(both, weight_norm / ops.where(both, update_norm, 1.0), 1.0)


def orthogonal(matrix):
    """Returns roughly the orthogonal matrix U V^T nearest to `matrix` [M, N] = U S V^T.

    Singular values of the result are between about 0.7 and 1.2: five Newton-Schulz steps with the
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


def _norm(x):
    return ops.sqrt(ops.sum(ops.square(x)))


# --- Gradients ---


def global_norm(gradients):
    """Returns the L2 norm over all dense gradients."""
    # The scope's name affects the order of sums in TensorFlow's graph optimizer.
    with keras.name_scope("global_norm"):
        squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients]
        return ops.sqrt(sum(squares[1:], squares[0]))


def clip(gradients, norm, clip_norm: float | None):
    """Scales gradients with this global norm to a norm of at most `clip_norm`."""
    if clip_norm is None:
        return gradients
    scale = clip_norm / ops.maximum(norm, clip_norm)
    return [g * ops.cast(scale, g.dtype) for g in gradients]


def create_optimizer(config: OptimizerConfig) -> AdamWeightDecay:
    """Creates an optimizer as for the released models: weight decay 0.01, gradient norm at most 1.

    Raises:
      FlagError: the name is unknown.

    Example:
      >>> from albert.optimization import OptimizerConfig, create_optimizer
      >>> optimizer = create_optimizer(OptimizerConfig(
      ...     "lamb", learning_rate=2e-3, num_train_steps=100, num_warmup_steps=20))
      >>> type(optimizer).__name__, optimizer.weight_decay_rate, optimizer.clip_norm
      ('Lamb', 0.01, 1.0)
      >>> schedule = albert.optimization.WarmupPolynomialDecay(2e-3, 100, num_warmup_steps=20)
      >>> [round(float(schedule(step)), 5) for step in (0, 10, 20, 60, 100)]
      [0.0, 0.001, 0.0016, 0.0008, 0.0]
    """
    schedule = dataclasses.asdict(config)
    classes = {"adamw": AdamWeightDecay, "lamb": Lamb, "muon": Muon}
    name = schedule.pop("name")
    if name not in classes:
        raise FlagError(f"--optimizer must be one of {', '.join(classes)}, got {name!r}")
    return classes[name](
        learning_rate=WarmupPolynomialDecay(**schedule), weight_decay_rate=WEIGHT_DECAY,
        exclude_from_weight_decay=EXCLUDED, clip_norm=CLIP_NORM,
    )
