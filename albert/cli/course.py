"""What every fine-tuning does after its input is checked: train, evaluate, finish.

No TensorFlow at import.
"""

import dataclasses
import logging
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert.cli import earlier_run, fine_tuning, flags
from albert.config import AlbertConfig
from albert.errors import DataError, FlagError
from albert.formats import tokenizer_files
from albert.records.record_files import RecordFiles
from albert.storage import files, filesystem

if TYPE_CHECKING:
    from albert.formats.weights import Weights
    from albert.tasks.task import Task
    from albert.training.evaluation import Evaluated, Evaluation
    from albert.training.run_settings import RunConfig

log = logging.getLogger("albert")

# Lies in the folder of a run that is finished: --num_runs does not repeat it.
FINISHED_FILE = "finished.json"
# A finished run stays valid if these flags change: they do not change its training.
_OUTSIDE_A_RUN = (
    "num_runs", "seed", "output_dir", "cached_dir", "do_predict", "predict_batch_size",
    "export_dir", "threshold_to_export", "log_steps", "keep_checkpoint_max",
)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a command predicts with or exports: weights, and the settings to run them."""

    course: "Course"
    run: "RunConfig"
    weights: "Weights"
    evaluation: "Evaluation | None" = None  # of these weights, if this process has made it

    def predict(self, split: str, task: "Task | None" = None) -> "Evaluation":
        """Returns the evaluation of a split; `task` replaces the task of the training."""
        from albert.training import evaluation

        course = self.course
        size = course.values.predict_batch_size
        run = dataclasses.replace(self.run, eval_batch_size=size)
        return evaluation.evaluate(
            task or course.task, course.config, run, course.files_of(split), self.weights
        )

    def tell(self, written: Sequence[str]) -> None:
        """Logs which files hold the predictions."""
        log.info("predictions of %s: %s", self.weights.origin, ", ".join(written))

    def export(self, write: Callable[..., None], *arguments: Any) -> None:
        """Publishes a SavedModel in --export_dir by `write(model, directory, ..., complete=)`."""
        from albert.formats import model_card
        from albert.training import evaluation

        course, directory = self.course, self.course.values.export_dir
        model, _ = evaluation.load_model(course.task, course.config, self.run, self.weights)
        name = os.path.basename(os.path.abspath(directory))

        def complete(scratch: str) -> None:
            model_card.of_weights(
                scratch, self.weights, course.config,
                title=f"{name}: a fine-tuned ALBERT for serving",
                summary="A TensorFlow SavedModel with one signature, as TensorFlow Serving takes "
                "it.",
                usage=_EXPORT_USAGE.format(name=name),
            )

        write(model, directory, *arguments, complete=complete)
        log.info("SavedModel of %s: %s", self.weights.origin, directory)


_EXPORT_USAGE = """
import tensorflow as tf

serve = tf.saved_model.load("{name}").signatures["serving_default"]
print(serve.structured_input_signature, serve.structured_outputs)
"""


@dataclasses.dataclass(frozen=True)
class Course:
    """What a fine-tuning command does after it has checked all its input.

    `finish(trained)` is called at the end, to predict or export. After several runs it gets the
    best one.
    """

    values: flags.FlagValues
    task: "Task"
    encoder: fine_tuning.Encoder  # its vocabulary is kept beside the checkpoints
    identity: earlier_run.Identity  # what checkpoints to be evaluated must share
    records: Mapping[str, str]  # the record files of the wanted splits: train, dev, test
    finish: Callable[[Trained], None] | None = None

    @property
    def config(self) -> AlbertConfig:
        return self.encoder.config

    def go(self) -> None:
        """Trains, evaluates and finishes, as the flags say."""
        from albert.training import run_settings
        from albert.training.current_engine import current

        values = self.values
        files.make_dirs(values.output_dir)
        run = run_settings.RunConfig(
            **flags.select(values, run_settings.RunConfig), num_train_steps=values.train_step
        )
        with current().scope(values):
            trained = self._several(run) if values.num_runs > 1 else self._once(run)
            if self.finish and trained:
                with current().alone():
                    self.finish(trained)

    def _once(self, run: "RunConfig") -> Trained | None:
        """Trains and evaluates. Returns None if nothing is left to do with the weights."""
        from albert.training import evaluation
        from albert.training.current_engine import current

        evaluated = self._train(run) if self.values.do_train else evaluation.Evaluated()
        if not current().is_chief:
            return None  # the rest is done by one machine
        with current().alone():
            self._write_card(run)
            if not (self.values.do_eval or self.finish):
                log.info("done; checkpoints, metrics.jsonl and TensorBoard summaries: %s",
                         run.output_dir)
                return None
            weights = fine_tuning.finished_weights(self.values, self.encoder.weights, run.output_dir)
            self.identity.check(weights.origin)
            if not self.values.do_eval:
                return Trained(self, run, weights)
            found = self._evaluate(run, weights, evaluated)
            self._write_card(run)
            return Trained(self, run, weights, found)

    def _write_card(self, run: "RunConfig") -> None:
        from albert.formats import checkpoints, model_card

        own = checkpoints.newest_or_best(run.output_dir)
        if own:
            weights = checkpoints.open_weights(own)
            model_card.of_weights(
                run.output_dir, weights, self.config, tokenizer=self.encoder.tokenizer
            )

    def files_of(self, split: str) -> RecordFiles:
        """Returns the records of a split."""
        return RecordFiles([self.records[split]])

    def _train(self, run: "RunConfig") -> "Evaluated":
        from albert.optimization import OptimizerConfig
        from albert.training import trainer
        from albert.training.current_engine import current

        values, tokenizer = self.values, self.encoder.tokenizer
        name = values.optimizer if "optimizer" in values else "adamw"
        optimizer = OptimizerConfig(
            name, values.learning_rate, values.train_step, values.warmup_step
        )
        told = flags.to_dict(values) | {
            "seed": run.seed, "output_dir": filesystem.address_of(run.output_dir),
        }
        told |= self.identity.recorded()
        evaluated = trainer.train(
            self.task, self.config, run, optimizer, self.files_of("train"),
            eval_files=self.files_of("dev") if values.do_eval else None,
            init=self.encoder.weights,
            flags=told,
        )
        if current().is_chief:
            tokenizer_files.write(tokenizer, run.output_dir)
        return evaluated

    def _evaluate(
        self, run: "RunConfig", weights: "Weights", evaluated: "Evaluated"
    ) -> "Evaluation":
        """Writes the results of a checkpoint. Evaluates it unless the training has done so."""
        from albert.formats import checkpoints, sidecars
        from albert.training import evaluation, summaries

        found = evaluated.of_step(sidecars.read_sidecar(weights.origin).get("step"))
        if found is None:
            source = self.files_of("dev")
            found = evaluation.evaluate(self.task, self.config, run, source, weights)
            summaries.log_results(found.results)
            if weights.origin == os.path.join(run.output_dir, checkpoints.BEST):
                # Runs are compared by this value. Renew it if it is of another dev file, say.
                step, best = found.results["global_step"], evaluation.read_best(run.output_dir)
                measured = evaluation.what_is_measured(self.task, self.config, run, source, step)
                if best and evaluation.differences(best, measured):
                    evaluation.keep_if_best(self.task, weights.origin, found.results, measured)
        path = summaries.write_results(run.output_dir, found.results)
        log.info("results of %s: %s", weights.origin, path)
        return found

    def _several(self, run: "RunConfig") -> Trained | None:
        """Makes the runs that are not finished. Returns the best one's weights if needed."""
        from albert.training import evaluation, summaries
        from albert.training.current_engine import current

        folders = fine_tuning.run_directories(self.values)
        seeds = list(folders)
        for seed, folder in folders.items():
            log.info("run with seed %d, of %d to %d: %s", seed, seeds[0], seeds[-1], folder)
            self._unless_finished(dataclasses.replace(run, seed=seed, output_dir=folder))
        if not (current().is_chief and (self.values.do_eval or self.finish)):
            return None
        best = {seed: evaluation.read_best(folder) for seed, folder in folders.items()}
        ranked = [seed for seed in seeds if best[seed]]
        if not ranked:
            raise FlagError("--num_runs: no run was evaluated, so none is the best: add --do_eval")
        winner = max(ranked, key=lambda seed: best[seed]["value"])
        if self.values.do_eval:
            results = over_runs({
                seed: files.read_json_object(os.path.join(folder, "eval_results.json"))
                for seed, folder in folders.items()
            })
            results["best_seed"] = winner
            summaries.log_results(results, f"Eval results of {len(folders)} runs")
            log.info("results: %s", summaries.write_results(run.output_dir, results))
        weights = fine_tuning.finished_weights(self.values, self.encoder.weights, folders[winner])
        return Trained(self, run, weights)

    def _unless_finished(self, run: "RunConfig") -> None:
        from albert.training.current_engine import current

        path = os.path.join(run.output_dir, FINISHED_FILE)
        made_from = {k: v for k, v in flags.to_dict(self.values).items() if k not in _OUTSIDE_A_RUN}
        made_from["records"] = [
            os.path.basename(self.records[split]) for split in ("train", "dev")
            if split in self.records
        ]
        if os.path.exists(path) and files.is_same_json(files.read_json(path), made_from):
            log.info("done already: %s", run.output_dir)
        elif self.values.do_train or self.values.do_eval:
            dataclasses.replace(self, finish=None)._once(run)
            if current().is_chief:
                files.write_json(path, made_from)


def over_runs(results: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Returns the median of each number over the runs, under its name, and min, max and std.

    Args:
      results: {seed: evaluation results}; the standard deviation is of the sample.

    Raises:
      DataError: a run's eval_results.json was changed, and has other numbers than the first's.
    """
    summary: dict[str, float] = {"num_runs": len(results)}
    keys = set(next(iter(results.values())))
    for seed, run in results.items():
        if odd := keys ^ set(run):
            raise DataError(
                f"eval_results.json of the run of seed {seed} has other numbers than the first's "
                f"({', '.join(sorted(odd))}): remove it to have the run evaluated anew"
            )
    for key in sorted(keys):
        values = [run[key] for run in results.values()]
        summary[key] = statistics.median(values)
        if key != "global_step":
            summary[f"{key}_min"], summary[f"{key}_max"] = min(values), max(values)
            summary[f"{key}_std"] = statistics.stdev(values)
    return summary
