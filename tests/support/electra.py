"""ELECTRA's objective (arXiv 2003.10555), as CONTRIBUTING.md explains it: a model and its `Task`.

The masked-LM head replaces the masked tokens by samples, and the same encoder then says of each token
whether it was replaced. Both losses are added to those of ALBERT.

  python tests/support/electra.py RECORDS CONFIG OUTPUT_DIR STEPS

Legend: B batch, L sequence, P predictions, V vocabulary.
"""

import dataclasses
import sys
from typing import Any

import keras
from keras import ops

from albert import config, optimization
from albert.formats.metadata import Metadata
from albert.model.dropout import Dropout
from albert.model.layers import dense_layer
from albert.model.row_layout import layout_of
from albert.modeling import AlbertForPreTraining
from albert.records.record_files import RecordFiles
from albert.tasks.pretraining import PretrainingTask
from albert.tasks.task import mean, real
from albert.training import loop
from albert.training.run import RunConfig

WEIGHT = 50.0  # of the second loss, as in the paper
SAMPLES, SECOND_PASS = 1_000_000, 2_000_000  # numbers of the first draw of each, far from the first pass's


class Electra(AlbertForPreTraining):
    """ALBERT with a third head, which only training uses."""

    def __init__(self, config: config.AlbertConfig, **options: Any):
        super().__init__(config, **options)
        self.metadata = Metadata(architecture="AlbertForPreTraining")  # as which a checkpoint is opened

    def _make_head(self) -> None:
        super()._make_head()
        self.discriminator = dense_layer(1, self.config, "discriminator")
        self.discriminator.build((None, None, self.config.hidden_size))


@dataclasses.dataclass(frozen=True)
class ElectraTask(PretrainingTask):
    """Masked tokens, order of sentences, and which tokens were replaced."""

    name: str = "electra"
    best_metric: str = "replaced_accuracy"

    @property
    def statistic_names(self):
        return (*super().statistic_names, "replaced_accuracy")

    def build_model(self, config, encoder_options):
        # Logits [B, P, V] of all predictions, as samples have positions; and the states of all tokens.
        return Electra(config, encoder_options=dataclasses.replace(
            encoder_options, weighted_positions_only=False, needed_outputs_only=False))

    def outputs(self, model, batch, training=False, dropout_seed=None):
        outputs = super().outputs(model, batch, training=training, dropout_seed=dropout_seed)
        scores = ops.cast(ops.stop_gradient(outputs["prediction_logits"]), "float32")
        if training:  # an evaluation takes the most likely tokens: its result never changes
            numbers = keras.random.uniform(ops.shape(scores), 1e-6, seed=Dropout(dropout_seed, SAMPLES))
            scores = scores - ops.log(-ops.log(numbers))  # its argmax is a sample of the softmax
        samples = ops.cast(ops.argmax(scores, axis=-1), "int32")
        layout, ids = layout_of(batch), ops.convert_to_tensor(batch["input_ids"])
        # Several examples may share a sequence: `flat` finds their positions among all.
        at, flat = ops.reshape(layout.flat(batch["masked_lm_positions"]), (-1,)), ops.reshape(ids, (-1,))
        is_masked = ops.reshape(batch["masked_lm_weights"], (-1,)) > 0

        def filled(tokens):
            tokens = ops.where(is_masked, ops.reshape(ops.cast(tokens, ids.dtype), (-1,)), ops.take(flat, at))
            return ops.reshape(ops.scatter_update(flat, at[:, None], tokens), ops.shape(ids))

        replaced, original = filled(samples), filled(batch["masked_lm_ids"])
        seed = Dropout(dropout_seed, SECOND_PASS).next() if training else None
        second = model.bert.of_batch({**batch, "input_ids": replaced}, training=training, dropout_seed=seed)
        is_replaced = layout.every(ops.cast(replaced != original, "float32")[..., None])
        logits = ops.cast(model.discriminator(second["sequence_output"]), "float32")
        return {**outputs, "is_replaced": is_replaced[..., 0], "replaced_logits": logits[..., 0]}  # [B, L]

    def loss_weights(self, batch):
        return super().loss_weights(batch) | {"replaced": ops.sum(_tokens(batch)) / WEIGHT}

    def loss_sums(self, batch, outputs):
        logits = outputs["replaced_logits"]
        losses = ops.softplus(logits) - outputs["is_replaced"] * logits
        return super().loss_sums(batch, outputs) | {"replaced": ops.sum(losses * _tokens(batch))}

    def statistics(self, batch, outputs):
        hits = (outputs["replaced_logits"] > 0) == (outputs["is_replaced"] > 0)
        return super().statistics(batch, outputs) | {"replaced_accuracy": mean(hits, _tokens(batch))}


def _tokens(batch):
    """Returns [B, L]: 1.0 for each token of an example, 0.0 for padding of sequences and of the batch."""
    return ops.cast(layout_of(batch).mask, "float32") * real(batch)[:, None]


def train(records: str, config_file: str, output_dir: str, steps: str) -> None:
    """Trains for some of 60 steps, or goes on."""
    source, architecture = RecordFiles([records]), config.AlbertConfig.from_json_file(config_file)
    task = ElectraTask(source.length_of("input_ids"), source.length_of("masked_lm_positions"))
    run = RunConfig(output_dir, num_train_steps=60, until_step=int(steps), train_batch_size=16, log_steps=1,
                    save_checkpoints_steps=100, gradient_accumulation_steps=2, pack_rows=True)
    loop.train(task, architecture, run, optimization.OptimizerConfig("adamw", 0.01, 60, 5), source,
               eval_files=source)


if __name__ == "__main__":
    train(*sys.argv[1:])
