"""Every use of randomness has its own stream: no seed, step or component shares another's."""

import itertools

import keras
import pytest

tf = pytest.importorskip("tensorflow")

from albert.model.dropout import Dropout  # noqa: E402
from albert.runtime.seeds import child_seed  # noqa: E402
from albert.training import steps  # noqa: E402

# Adjacent seeds, and seeds that are equal to Keras, which takes them modulo 2^31 - 2.
SEEDS = (0, 1, 2, 4, 5, 2**31 - 2, 2**31 + 2, 2**32, 2**32 + 4)


def test_purposes_and_seeds_have_numbers_of_their_own():
    streams = ("order", "dropout")
    found = {child_seed(*purpose) for purpose in itertools.product(SEEDS, streams, range(9))}
    assert len(found) == len(SEEDS) * len(streams) * 9
    assert child_seed(5, "order", 1) == 4949609611897841769  # must never change


@pytest.mark.parametrize("use_xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_step_part_or_seed_has_the_dropout_of_another(use_xla):
    def draw(seed):
        @tf.function(jit_compile=use_xla)
        def mask(step, part):
            dropout = Dropout(steps.dropout_seed(seed, step, part))
            return tf.stack([dropout(tf.ones(64), 0.5) for _ in range(2)])

        for step, part in itertools.product((0, 1, 2), (0, 1, 4)):
            numbers = (tf.constant(number) for number in (step, part))
            yield from (tuple(row) for row in mask(*numbers).numpy().tolist())

    assert keras.backend.backend() == "tensorflow"
    seeds = SEEDS if use_xla else (0, 1, 2**31 - 2, 2**32)
    assert len(set(itertools.chain(*map(draw, seeds)))) == len(seeds) * 3 * 3 * 2
