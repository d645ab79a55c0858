"""Compares settings of pretraining on your own text, each with several seeds.

  python scripts/ablate.py --grid=configs/ablations/table5.json --input_file=corpus.txt
      --spm_model_file=spm.model --output_dir=table5

After each run it writes report.md, with means and standard deviations, and results.json, with each
run's learning curve. A grid can take days: stop it at any time, and rerun the command to resume it. For
fewer settings or seeds, or other ones, edit a copy of the grid.
"""

import dataclasses
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from albert import tokenization
from albert.cli import corpus_flags, flags
from albert.config import AlbertConfig
from albert.errors import DataError, FlagError
from albert.formats import huggingface, model_card
from albert.storage import files, locks
from albert.text import corpus_files
from model_info import parameter_count

_PARTS = ("config", "data", "train")
# Flags of a run that also apply to its additional held-out records: all that determine masking.
_OF_EVALUATIONS = (
    "eval_batch_size", "max_eval_steps", "max_predictions_per_seq", "masked_lm_budget",
    "do_whole_word_mask", "favor_shorter_ngram", "ngram", "mask_token_share",
)
_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir)

Result = Mapping[str, Any]  # of one run: setting, seed, metrics, others, curve, parameters


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "grid", None,
                 "File with the settings to compare, such as those in configs/ablations. Required.",
                 use="file")
    flags.define("path", values, "input_file", None,
                 f"The text: {corpus_flags.WHERE}. Required.", use="texts")
    corpus_flags.define_flags(values)
    flags.define("path", values, "spm_model_file", None, "SentencePiece model. Required.",
                 use="file")
    flags.define("string", values, "output_dir", None,
                 "Local directory for records, runs and report. Required.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "grid", "input_file", "spm_model_file", "output_dir")
    grid = Grid.read(files.require_file(values.grid, "grid"))
    files.require_file(values.spm_model_file, "spm_model_file")
    inputs = corpus_files.find(values.input_file, "input_file")
    if "://" in values.output_dir:
        raise FlagError(f"--output_dir={values.output_dir}: the commands share a local directory: copy it "
                        "to cloud storage afterwards")
    input_flags = {name: value for name in (*corpus_flags.FLAGS, "split_sentences")
                   if (value := flags.given(values, name)) is not None}
    directory = files.make_dirs(values.output_dir)
    runs = Runs(grid, inputs, values.spm_model_file, directory, input_flags)
    path = os.path.join(directory, "report.md")
    with locks.hold(directory):
        for _ in runs.execute():
            results = runs.results()
            files.write_json(os.path.join(directory, "results.json"), results)
            with files.atomic_write(path) as stream:
                stream.write(report(grid, results))
    flags.log.info("report: %s", path)


# === The grid ===


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of the comparison."""

    name: str
    config: Mapping[str, Any]  # keys of albert_config.json; `like` names an architecture to modify
    data: Mapping[str, Any]  # flags of create_pretraining_data
    train: Mapping[str, Any]  # flags of run_pretraining
    start: str | None  # setting whose weights (same seed) training starts from
    paper: float | None  # the paper's result
    tokens: int  # to train on

    def architecture(self, vocab_size: int) -> AlbertConfig:
        """Returns its configuration for a vocabulary of `vocab_size` tokens.

        Raises:
          UserError: it is not a valid architecture.
        """
        own = dict(self.config)
        like = own.pop("like", None)
        base = huggingface.read_config(like).to_dict() if like else {}
        return AlbertConfig.from_dict(base | {"vocab_size": vocab_size} | own, f"setting {self.name}")


@dataclasses.dataclass(frozen=True)
class Grid:
    """The settings to compare, and the metrics to compare them by."""

    title: str
    about: str  # the paper's finding, and how this grid differs
    paper_measure: str  # name of the metric of `Setting.paper`
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    tokens: int  # to train a run on, unless its setting overrides it
    settings: tuple[Setting, ...]
    # Flags of the data whose held-out records evaluate all runs; None: each run uses its own.
    held_out: Mapping[str, Any] | None = None
    # Additional held-out records that evaluate each run: {name: flags of the data}.
    evaluations: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> "Grid":
        """Reads a grid from a JSON file.

        Raises:
          DataError: a key is missing, unknown or unusable; the message names it and the file.
        """
        values = dict(files.read_json_object(path))
        common = {part: _mapping(path, part, values.pop(part, {})) for part in _PARTS}
        settings = []
        for name, own in _mapping(path, "settings", values.pop("settings", None)).items():
            own = dict(_mapping(path, f"settings.{name}", own))
            parts = {
                part: common[part] | _mapping(path, f"{name}.{part}", own.pop(part, {}))
                for part in _PARTS
            }
            start, paper = (own.pop(key, None) for key in ("start", "paper"))
            tokens = own.pop("tokens", values.get("tokens"))
            if not isinstance(tokens, int) or tokens < 1:
                raise DataError(f"{path}: tokens must be an integer from 1")
            if own:
                raise DataError(f"{path}: setting {name}: unknown {', '.join(own)}")
            if start is not None and start not in [s.name for s in settings]:
                raise DataError(f"{path}: setting {name} starts from {start}: put that before it")
            settings.append(Setting(name, **parts, start=start, paper=paper, tokens=tokens))
        known = {field.name for field in dataclasses.fields(cls)} - {"settings"}
        optional = {"held_out", "evaluations"}
        if wrong := (set(values) - known) | (known - optional - set(values)):
            raise DataError(f"{path}: missing or unknown: {', '.join(sorted(wrong))}")
        if not (settings and values["seeds"] and values["metrics"]):
            raise DataError(f"{path}: settings, seeds and metrics must not be empty")
        for key in ("seeds", "metrics"):
            values[key] = tuple(values[key])
        return cls(**values, settings=tuple(settings))


def _mapping(path: str, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{path}: {name} must be an object of names and values")
    return value


# === The commands ===


class Runs:
    """All commands of a grid, ordered by seed."""

    def __init__(
        self, grid: Grid, inputs: Sequence[str], spm_model_file: str, output_dir: str,
        input_flags: Mapping[str, Any],
    ):
        """Takes what all runs share; `input_flags` of create_pretraining_data describe the text."""
        self._grid, self._dir = grid, output_dir
        self._inputs, self._spm = list(map(os.path.abspath, inputs)), spm_model_file
        self._input_flags = dict(input_flags)
        tokenizer = tokenization.FullTokenizer(None, spm_model_file=spm_model_file)
        self._configs = {
            setting.name: setting.architecture(tokenizer.vocab_size) for setting in grid.settings
        }

    def execute(self) -> Iterator[None]:
        """Runs the commands that are not done yet; yields after each run.

        Raises:
          DataError: a command failed.
        """
        data_sets = [setting.data for setting in self._grid.settings]
        if self._grid.held_out is not None:
            data_sets.append(self._grid.held_out)
        data_sets += map(self._evaluation_data, self._grid.evaluations.values())
        for data in data_sets:
            train = self._records(data, "train")
            self._once(os.path.dirname(train), "records", "albert.create_pretraining_data", {
                "input_file": ",".join(self._inputs), "spm_model_file": self._spm, "output_file": train,
                "eval_output_file": self._records(data, "heldout"), **self._input_flags, **data,
            })
        for seed in self._grid.seeds:
            for setting in self._grid.settings:
                self._run(setting, seed)
                yield

    def results(self) -> list[Result]:
        """Returns the results available so far, in the grid's order."""
        return [
            result for setting in self._grid.settings for seed in self._grid.seeds
            if (result := self._result(setting, seed))
        ]

    def _evaluation_data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._grid.settings[0].data) | dict(data)

    def _records(self, data: Mapping[str, Any], name: str) -> str:
        folder = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]
        return os.path.join(self._dir, "records", folder, name + ".tfrecord")

    def _folder(self, name: str, seed: int) -> str:
        return os.path.join(self._dir, "runs", name.replace("/", "-").replace(" ", "_"), str(seed))

    def _run(self, setting: Setting, seed: int) -> None:
        """Trains a setting, and evaluates it on the additional held-out records."""
        folder = files.make_dirs(self._folder(setting.name, seed))
        config, model = os.path.join(folder, "config.json"), os.path.join(folder, "model")
        with files.atomic_write(config) as stream:
            stream.write(self._configs[setting.name].to_json_string())
        start = {}
        if setting.start:
            start["init_checkpoint"] = self._last_checkpoint(
                os.path.join(self._folder(setting.start, seed), "model"))
        self._once(folder, f"{setting.name}, seed {seed}", "albert.run_pretraining", {
            "albert_config_file": config, "output_dir": model, "seed": seed,
            **start, **self._training(setting),
        })
        for name, data in self._grid.evaluations.items():
            other = files.make_dirs(os.path.join(folder, f"on-{name}"))
            self._once(other, f"{setting.name}, seed {seed}, on {name}", "albert.run_pretraining", {
                "albert_config_file": config, "do_train": False, "do_eval": True,
                "input_file": self._records(self._evaluation_data(data), "heldout"),
                "init_checkpoint": self._last_checkpoint(model),
                "output_dir": os.path.join(other, "model"),
                "max_seq_length": setting.data["max_seq_length"],
                **{key: setting.train[key] for key in _OF_EVALUATIONS if key in setting.train},
            })

    def _training(self, setting: Setting) -> dict[str, Any]:
        """Returns the flags of run_pretraining."""
        train, data = dict(setting.train), setting.data
        # A grid gives these as fractions of the steps, so that they fit any number of tokens.
        warmup, evaluations = train.pop("warmup_share", 0.1), train.pop("num_evaluations", 5)
        steps = math.ceil(setting.tokens / _tokens_per_step(setting))
        return {
            "do_train": True, "do_eval": True, "input_file": self._records(data, "train"),
            "eval_input_file": self._records(self._grid.held_out or data, "heldout"),
            "num_train_steps": steps, "num_warmup_steps": int(steps * warmup),
            "save_checkpoints_steps": math.ceil(steps / evaluations), "keep_checkpoint_max": 1,
            "max_seq_length": data["max_seq_length"], **train,
        }

    @staticmethod
    def _last_checkpoint(folder: str) -> str:
        return os.path.join(folder, f"model.ckpt-{int(_results_of(folder)['global_step'])}")

    def _result(self, setting: Setting, seed: int) -> Result | None:
        folder = self._folder(setting.name, seed)
        others = {name: os.path.join(folder, f"on-{name}") for name in self._grid.evaluations}
        if not all(_command(each).get("is_done") for each in (folder, *others.values())):
            return None
        with open(os.path.join(folder, "model", "metrics.jsonl"), encoding="utf-8") as stream:
            lines = sorted(map(json.loads, stream), key=lambda line: line["step"])
        trained = [line for line in lines if line["kind"] == "train"]
        curve = [
            line | {"tokens": line["step"] * _tokens_per_step(setting),
                    "minutes": minutes_to(trained, line["step"])}
            for line in lines if line["kind"] == "eval"
        ]
        return {
            "setting": setting.name, "seed": seed,
            "metrics": _results_of(os.path.join(folder, "model")),
            "others": {name: _results_of(os.path.join(other, "model")) for name, other in others.items()},
            "curve": curve, "parameters": parameter_count(self._configs[setting.name]),
        }

    def _once(self, folder: str, what: str, module: str, given: Mapping[str, Any]) -> None:
        """Runs a command unless it is already done.

        Raises:
          DataError: it failed, or the folder was made with different flags.
        """
        path = os.path.join(files.make_dirs(folder), "command.json")
        inside = os.path.join(self._dir, "")  # the directory can be moved
        entry = {"module": module, "flags": {
            name: value.replace(inside, "") if isinstance(value, str) else value
            for name, value in given.items()}}
        if before := _command(folder):
            for name in sorted(set(entry["flags"]) | set(before["flags"])):
                values = [one["flags"].get(name) for one in (before, entry)]
                if values[0] != values[1]:
                    raise DataError(f"{folder} was made with --{name}={values[0]}, not {values[1]}: "
                                    "use another --output_dir")
            if before.get("is_done"):
                return
        files.write_json(path, entry)
        flags.log.info("%s", what)
        log = os.path.join(folder, "log.txt")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        }
        with open(log, "a", encoding="utf-8") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *(f"--{name}={value}" for name, value in given.items())],
                stdout=stream, stderr=subprocess.STDOUT, env=environment)
            try:
                code = process.wait()
            finally:
                process.wait()  # after Ctrl-C, which it gets too, until it has saved
        if code:
            with open(log, encoding="utf-8", errors="replace") as stream:
                last = (stream.read().strip().splitlines() or ["(no output)"])[-1]
            raise DataError(f"{what}: exit code {code}: {last} (all of it: {log})")
        files.write_json(path, entry | {"is_done": True})


def _tokens_per_step(setting: Setting) -> int:
    """Returns the number of tokens in a step, padding included."""
    return setting.data["max_seq_length"] * setting.train["train_batch_size"]


def _results_of(folder: str) -> dict[str, float]:
    return files.read_json_object(os.path.join(folder, "eval_results.json"))


def _command(folder: str) -> dict[str, Any]:
    """Returns what `_once` wrote about a folder's command; {} if nothing."""
    path = os.path.join(folder, "command.json")
    return files.read_json_object(path) if os.path.exists(path) else {}


def minutes_to(lines: Sequence[Mapping[str, float]], step: int) -> float:
    """Returns the minutes of training up to a step, excluding evaluations.

    Args:
      lines: training metrics; `seconds` is the time since the previous line. Steps between two
        lines are taken to be equally long.
    """
    seconds, before = 0.0, 0
    for line in lines:
        if line["step"] >= step:
            seconds += line["seconds"] * (step - before) / (line["step"] - before)
            break
        seconds, before = seconds + line["seconds"], line["step"]
    return seconds / 60


# === The report ===


def report(grid: Grid, results: Sequence[Result]) -> str:
    """Returns report.md."""
    tokens = sorted({setting.tokens for setting in grid.settings})
    of_tokens = " to ".join(f"{count:,}" for count in dict.fromkeys((tokens[0], tokens[-1])))
    finished = f"{len(results)} of {len(grid.settings) * len(grid.seeds)} runs are finished."
    return "\n".join([
        f"# {grid.title}\n", grid.about,
        f"\nEach run: {of_tokens} tokens. {finished} Held-out documents; mean ± standard deviation of "
        f"the seeds {', '.join(map(str, grid.seeds))}.\n",
        table(grid, results), "",
    ])


def table(grid: Grid, results: Sequence[Result]) -> str:
    """Returns the means of each setting's metrics over its seeds, as a Markdown table."""
    metrics = [m for m in grid.metrics if any(_value(one, m) is not None for one in results)]
    heads = ["setting", "parameters", *(m.replace("_", " ") for m in metrics), "minutes of training"]
    with_paper = any(setting.paper is not None for setting in grid.settings)
    heads += [f"paper: {grid.paper_measure}"] * with_paper
    lines = []
    for setting in grid.settings:
        of_setting = [one for one in results if one["setting"] == setting.name]
        cells = [setting.name, f"{of_setting[0]['parameters']:,}" if of_setting else ""]
        cells += [_mean([_value(one, metric) for one in of_setting]) for metric in metrics]
        minutes = [one["curve"][-1]["minutes"] for one in of_setting]
        cells.append(f"{statistics.fmean(minutes):.1f}" if minutes else "")
        cells += ["" if setting.paper is None else f"{setting.paper:g}"] * with_paper
        lines.append(cells)
    return model_card.table(heads, lines).rstrip()


def _value(one: Result, metric: str) -> float | None:
    """Returns a metric; `nsp/masked_lm_loss` is masked_lm_loss in the evaluation `nsp`."""
    where, _, name = metric.rpartition("/")
    return (one["others"].get(where, {}) if where else one["metrics"]).get(name)


def _mean(values: Sequence[float | None]) -> str:
    """Returns the mean over seeds, and the standard deviation of one seed's value."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    spread = f" ± {statistics.stdev(known):.2g}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.4g}{spread}"


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
