"""Fine-tuning, from examples to checkpoints, results and predictions.

No TensorFlow at import: a command checks all its input before loading it.
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from albert.cli import earlier_run, flags
from albert.cli.encoder import Encoder
from albert.cli.fine_tuning_settings import FineTuningSettings, work_directory
from albert.errors import FlagError
from albert.formats import (
    checkpoints,
    model_card,
    model_metadata,
    pretrained,
    run_states,
    tokenizer_files,
)
from albert.formats.pretrained import Pretrained
from albert.formats.tokenizer_files import Vocabulary
from albert.records.record_files import RecordFiles
from albert.storage import files, filesystem
from albert.tasks import fine_tuning_data
from albert.tasks.fine_tuning_data import FineTuningData
from albert.training.metrics import log_results, write_results

if TYPE_CHECKING:
    from albert.formats.weights import Weights
    from albert.tasks.task import Task
    from albert.training.evaluate import Evaluation
    from albert.training.run import RunConfig

log = logging.getLogger("albert")

_FLAGS_OF_DATA = (
    "train_file", "data_dir", "task_name", "dev_file", "dev_share", "seed", "text_column",
    "text_pair_column", "label_column", "high_only", "middle_only",
)


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """Weights to predict with or to export, their run, and their evaluations in this process."""

    run: "RunConfig"
    weights: "Weights"
    evaluations: "Mapping[str, Evaluation]"  # of dev and test, or those of them that were asked for


class FineTuning:
    """Trains, evaluates and predicts any task, as the settings say."""

    def __init__(
        self, values: flags.FlagValues, settings: FineTuningSettings, encoder: Encoder,
        data: FineTuningData, task: "Task",
    ):
        self.values, self.settings, self.encoder = values, settings, encoder
        self.data, self.task = data, task.scoring(data.examples.get("dev", ()))
        self.files: dict[str, RecordFiles] = {}  # of each split

    def run(self) -> TrainingResult | None:
        """Does everything the settings ask for; returns None if only training was asked for.

        So do all processes of a distributed run but one.
        """
        settings, folder = self.settings, work_directory(self.values)
        if settings.do_train:
            earlier_run.check_directory(settings.output_dir, self.identity)
            fine_tuning_data.warn_of_copies(self.data.examples)
        for split, examples in self.data.examples.items():
            self.files[split] = RecordFiles([fine_tuning_data.keep_records(
                self.task, split, examples, self.encoder.tokenizer, folder
            )])
            if unknown := self.encoder.tokenizer.unknown_tokens():
                log.warning("%s: %s", split, unknown)
        if settings.do_train and settings.train_step is None:
            count = self.files["train"].count
            self.settings = settings = settings.with_steps(count)
            log.info("%s examples, %s steps", f"{count:,}", f"{settings.train_step:,}")
        flags.start_engine(self.values)  # takes seconds, so check all input first
        from albert.training import evaluate
        from albert.training.run import current

        self.engine, run = current(), self._run_config()
        files.make_dirs(settings.output_dir)
        with self.engine.scope(self.values):
            evaluated = self._train(run) if settings.do_train else {}
            if not self.engine.is_chief:
                return None  # the chief does the rest
            return self._use_weights(run, evaluated)

    def _use_weights(self, run: "RunConfig", evaluated: "dict[int, Evaluation]") -> TrainingResult | None:
        """Evaluates and predicts."""
        settings, task, evaluations = self.settings, self.task, {}
        self._write_card(run.output_dir)
        if not (settings.do_eval or settings.do_predict or settings.export_dir):
            log.info("done; checkpoints, metrics.jsonl and TensorBoard summaries: %s", run.output_dir)
            return None
        weights = weights_to_use(settings.checkpoint, run.output_dir, self.encoder.weights)
        self.identity.check(weights.origin)
        if settings.do_eval:
            evaluations["dev"] = self._evaluate_run(run, weights, evaluated)
            # Another checkpoint may be the best now.
            weights = weights_to_use(settings.checkpoint, run.output_dir, self.encoder.weights)
            self._write_card(run.output_dir)  # with the results
        if settings.do_predict:
            from albert.training import evaluate

            split = "test" if "test" in self.files else "dev"
            examples = self.data.examples[split]
            if split not in evaluations:
                evaluations[split] = evaluate.evaluate(
                    task.scoring(examples), self.encoder.config,
                    dataclasses.replace(run, eval_batch_size=settings.predict_batch_size),
                    self.files[split], weights,
                )
            written = task.write_predictions(
                examples, evaluations[split].predictions, run.output_dir, weights.origin
            )
            log.info("predicted with %s: %s", weights.origin, ", ".join(written))
        return TrainingResult(run, weights, evaluations)

    @functools.cached_property
    def identity(self) -> earlier_run.Identity:
        """The meaning of the ids in the records, and the training data."""
        tokenizer, data = self.encoder.tokenizer, self.data
        training, examples = None, data.examples.get("train")
        if self.settings.do_eval:  # on rows that must not have been trained on
            examples = examples or data.trained_on
        if examples:
            given = flags.to_dict(self.values) | dict(data.settings)
            training = earlier_run.TrainingData(fine_tuning_data.digest_of(examples), len(examples), {
                name: given[name] for name in _FLAGS_OF_DATA if name in given
            })
        return earlier_run.Identity(
            data.task, tokenizer.sha256, tokenizer.do_lower_case, data.labels,
            data.settings.get("num_choices"), data.settings.get("label_threshold"),
            self.settings.seed, training, data.is_split,
        )

    def _run_config(self) -> "RunConfig":
        from albert.training.run import RunConfig

        known = {field.name for field in dataclasses.fields(RunConfig)}
        decided = {name: x for name, x in vars(self.settings).items() if name in known}
        return RunConfig(**flags.select(self.values, RunConfig) | decided | {
            "num_train_steps": self.settings.train_step,
        })

    def _train(self, run: "RunConfig") -> "dict[int, Evaluation]":
        from albert.optimization import OptimizerConfig
        from albert.training import loop

        settings, output_dir = self.settings, filesystem.address_of(run.output_dir)
        initial = self.encoder.weights
        if initial:
            initial = initial.without(*self.task.untrained_weights)
            initial = initial.for_labels(self.encoder.trained_labels, self.data.labels)
        evaluated = loop.train(
            self.task, self.encoder.config, run,
            OptimizerConfig(
                settings.optimizer, settings.learning_rate, settings.train_step,
                settings.warmup_step,
            ),
            self.files["train"],
            eval_files=self.files["dev"] if settings.do_eval else None,
            init=initial,
            flags=self._recorded_flags() | {"output_dir": output_dir} | self.identity.recorded(),
        )
        if self.engine.is_chief:
            tokenizer_files.write(self.encoder.tokenizer, run.output_dir)
        return evaluated

    def _evaluate_run(
        self, run: "RunConfig", weights: "Weights", evaluated: "dict[int, Evaluation]"
    ) -> "Evaluation":
        """Writes the results of a checkpoint, after evaluating it unless training already has."""
        from albert.training import evaluate

        result = evaluated.get(run_states.read_run_state(weights.origin).get("step"))
        if result is None:
            source, config = self.files["dev"], self.encoder.config
            result = evaluate.evaluate(self.task, config, run, source, weights)
            log_results(result.results)
            prefix, best = os.path.join(run.output_dir, checkpoints.BEST), evaluate.read_best(run.output_dir)
            if weights.origin == prefix and best:
                steps = checkpoints.list_steps(run.output_dir)
                steps.pop(best["step"], None)
                measured = evaluate.what_is_measured(self.task, config, run, source)
                is_other = evaluate.differences(best, measured) and not run.keep_last
                evaluate.keep_if_best(self.task, config, run, source, prefix, result.results)
                # It was the best on other examples: on these, another may be.
                for other in steps.values() if is_other else ():
                    found = evaluate.evaluate(self.task, config, run, source, checkpoints.open_weights(other))
                    if evaluate.keep_if_best(self.task, config, run, source, other, found.results):
                        result = found
        path = write_results(run.output_dir, result.results)
        log.info("results of %s: %s", weights.origin, path)
        return result

    def _write_card(self, directory: str) -> None:
        if newest := checkpoints.newest_or_best(directory):
            model_card.of_weights(
                directory, checkpoints.open_weights(newest), self.encoder.config,
                tokenizer=self.encoder.tokenizer,
            )

    def _recorded_flags(self) -> dict[str, Any]:
        """Returns the flags as a run records them, with the values derived from the data."""
        return flags.to_dict(self.values) | self.settings.as_flags() | dict(self.data.settings)

    def opened(self, weights: "Weights") -> Pretrained:
        """Returns the trained model of these weights with what the flags and the data say of it."""
        recorded = {"task": self.task.name, "flags": self._recorded_flags()}
        metadata, _ = model_metadata.without_units(run_states.metadata_of(recorded))
        return Pretrained(
            weights.origin, os.path.dirname(weights.origin), self.encoder.config,
            Vocabulary(), metadata, lambda: weights,
        )


def weights_to_use(
    checkpoint: str | None, directory: str, init: "Weights | None" = None
) -> "Weights":
    """Returns --checkpoint, else the best of a run's directory, else its newest, else `init`."""
    if checkpoint:
        return pretrained.open_any_weights(checkpoint, "checkpoint")
    if newest := checkpoints.newest_or_best(directory):
        return checkpoints.open_weights(newest, "output_dir")
    if init is None:
        raise FlagError(
            f"no checkpoint in {directory}: train first (--do_train) or give --checkpoint"
        )
    return init
