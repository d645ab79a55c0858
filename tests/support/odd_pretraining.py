"""Pretraining with a finite loss but a non-finite gradient, on records marked for it.

A separate command (`python -m odd_pretraining`), so that a test can run it on
several devices; `odd_gradients` does the same in the test's process.
"""

import contextlib
from unittest import mock

MARK = 0.5  # weight of a masked token


@contextlib.contextmanager
def odd_gradients():
    """Gives the losses of marked records a non-finite gradient."""
    import tensorflow as tf

    from albert.tasks.pretraining import PretrainingTask

    plain = PretrainingTask.loss_sums

    def loss_sums(task, batch, outputs):
        sums = plain(task, batch, outputs)
        marks = tf.reduce_sum(tf.cast(batch["masked_lm_weights"] == MARK, tf.float32))
        logits = tf.cast(outputs["sop_logits"], tf.float32)
        # Its value is that of the first term; its gradient at 0 is infinite times 0.
        root = tf.sqrt(tf.where(marks > 0.0, 0.0, 1.0) + 0.0 * tf.reduce_sum(logits))
        return sums | {"sentence_order": sums["sentence_order"] + root - tf.stop_gradient(root)}

    with mock.patch.object(PretrainingTask, "loss_sums", loss_sums):
        yield


if __name__ == "__main__":
    from albert import engines, run_pretraining
    from albert.cli import flags

    def main(values):
        engines.import_tensorflow()
        with odd_gradients():
            run_pretraining.main(values)

    flags.command(__doc__, run_pretraining.define_flags, main)()
