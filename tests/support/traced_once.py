"""Steps that the runs of one process share, because tracing them takes most of a tiny run's time.

Two runs have the same step if task, configuration, settings and optimizer are equal, apart from the
settings that only the loop reads. The second run gets the variables of the first one, with the values
with which that one began.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

MOST = 8  # kept at a time, the last ones used
# A model and its steps do not depend on these.
OF_THE_LOOP = {
    "output_dir": "", "num_train_steps": 1, "until_step": 0, "save_checkpoints_steps": 1, "keep_last": False,
    "keep_checkpoint_max": 0, "log_steps": 1, "max_eval_steps": 0,
}


@dataclasses.dataclass
class _Kept:
    made: Any  # a TrainState or a model
    values: list  # of its variables, when it was made
    steps: dict[Hashable, Callable] = dataclasses.field(default_factory=dict)

    @property
    def model(self):
        return getattr(self.made, "model", self.made)


def share_steps() -> None:
    """Makes the runs of this process share their steps on TensorFlow."""
    import keras
    import tensorflow as tf

    from albert.training import evaluate, loop, run, tf_engine

    kept: collections.OrderedDict[Hashable, _Kept] = collections.OrderedDict()

    def once(make: Callable, task, config, settings, *more):
        settings = dataclasses.replace(settings, **OF_THE_LOOP)
        # Tests replace the last two.
        key = (make, task, repr(config), settings, keras.config.dtype_policy().name, more,
               type(task).loss_sums, tf_engine.islands.islands)
        if not _is_hashable(key) or task.constants or tf.distribute.has_strategy():
            return make(task, config, settings, *more)
        if key not in kept:
            made = make(task, config, settings, *more)
            kept[key] = _Kept(made, [value.numpy() for value in made.variables])
            if len(kept) > MOST:
                kept.popitem(last=False)
        kept.move_to_end(key)
        keras.utils.set_random_seed(settings.seed)
        for variable, value in zip(kept[key].made.variables, kept[key].values, strict=True):
            variable.assign(value)
        return kept[key].made

    def traced(make: Callable, name: str):
        def step(engine, task, owner, *given):
            found = next((one for one in kept.values() if owner in (one.made, one.model)), None)
            batches = given[-1] if given else None
            key = name, task, repr(getattr(batches, "element_spec", None))
            if found is None or not _is_hashable(key):
                return make(engine, task, owner, *given)
            if key not in found.steps:
                found.steps[key] = make(engine, task, owner, *given)
            return found.steps[key]

        return step

    engine, make_state, build_model = tf_engine.TensorFlowEngine, run.TrainState, evaluate.build_model
    loop.TrainState = lambda *given: once(make_state, *given)
    evaluate.build_model = lambda *given: once(build_model, *given)
    for name in ("train_step", "eval_step"):
        setattr(engine, name, traced(getattr(engine, name), name))


def _is_hashable(key: Any) -> bool:
    with contextlib.suppress(TypeError):
        hash(key)
        return True
    return False
