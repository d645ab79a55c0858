"""Runs the data creation, pretraining and evaluation commands of a grid, each once."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablation.grid import Grid, Setting, tokens_per_step
from albert import tokenization
from albert.errors import DataError, Preempted
from albert.runtime import workers
from albert.storage import files
from model_info import parameter_count

log = logging.getLogger("albert")

# Flags of a run that also apply to its additional held-out records: all that determine masking.
_OF_EVALUATIONS = (
    "eval_batch_size", "max_eval_steps", "max_predictions_per_seq", "masked_lm_budget",
    "do_whole_word_mask", "favor_shorter_ngram", "ngram", "mask_token_share",
)
_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one run of a setting."""

    setting: str
    seed: int
    metrics: Mapping[str, float]  # at the end of training
    others: Mapping[str, Mapping[str, float]]  # the grid's `evaluations`, by name
    curve: Sequence[Mapping[str, float]]  # evaluations during training, with `tokens`, `minutes`
    parameters: int
    minutes: float  # of all its commands, evaluations included


def read_metrics(path: str) -> dict[str, list[dict[str, float]]]:
    """Returns {kind: lines by step} of a run's metrics.jsonl."""
    found: dict[str, list[dict[str, float]]] = {"train": [], "eval": []}
    with open(path, encoding="utf-8") as stream:
        for line in map(json.loads, stream):
            found[line["kind"]].append(line)
    return {kind: sorted(lines, key=lambda line: line["step"]) for kind, lines in found.items()}


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


class Work:
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
        self._process: subprocess.Popen | None = None
        self._stopped = False
        self._configs = {
            setting.name: setting.architecture(tokenizer.vocab_size) for setting in grid.settings
        }

    def results(self) -> list[Result]:
        """Returns the results available so far, in the grid's order."""
        return [
            found for setting in self._grid.settings for seed in self._grid.seeds
            if (found := self._result(setting, seed))
        ]

    def execute(self, seconds: float) -> Iterator[None]:
        """Runs the commands that are not done yet; yields after each run, and at the end.

        Args:
          seconds: time after which the running command saves and stops; 0: no limit.

        Raises:
          DataError: a command failed.
          Preempted: a signal arrived. Rerun the command to resume.
        """
        timer = threading.Timer(seconds or 1e6, self._stop)
        timer.daemon = True
        with self._signals():
            timer.start()
            try:
                for data in self._data_sets():
                    self._make_records(data)
                for seed in self._grid.seeds:
                    for setting in self._grid.settings:
                        self._run(setting, seed)
                        yield
            except BaseException:  # no command may outlive this process
                self._stop()
                raise
            finally:
                timer.cancel()
        yield

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def end(number, _):
            self._stop()
            raise Preempted("stopped; rerun the same command to resume", number)

        with workers.on_signals(end):
            yield

    def _stop(self) -> None:
        self._stopped = True
        if self._process:
            self._process.terminate()

    # --- Records ---

    def _data_sets(self) -> list[dict[str, Any]]:
        every = [dict(setting.data) for setting in self._grid.settings]
        if self._grid.held_out is not None:
            every.append(dict(self._grid.held_out))
        every += [self._evaluation_data(flags) for flags in self._grid.evaluations.values()]
        return list({json.dumps(data, sort_keys=True): data for data in every}.values())

    def _evaluation_data(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._grid.settings[0].data) | dict(flags)

    def _records(self, data: Mapping[str, Any], name: str) -> str:
        folder = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]
        return os.path.join(self._dir, "records", folder, name + ".tfrecord")

    def _make_records(self, data: Mapping[str, Any]) -> None:
        train = self._records(data, "train")
        self._once(os.path.dirname(train), "records", "albert.create_pretraining_data", {
            "input_file": ",".join(self._inputs), "spm_model_file": self._spm, "output_file": train,
            "eval_output_file": self._records(data, "heldout"), **self._input_flags, **data,
        })

    # --- Runs ---

    def _folder(self, name: str, seed: int) -> str:
        return os.path.join(self._dir, "runs", name.replace("/", "-").replace(" ", "_"), str(seed))

    def _run(self, setting: Setting, seed: int) -> None:
        folder = files.make_dirs(self._folder(setting.name, seed))
        config, model = os.path.join(folder, "config.json"), os.path.join(folder, "model")
        with files.atomic_write(config) as stream:
            stream.write(self._configs[setting.name].to_json_string())
        start = {}
        if setting.start and not self._stopped:
            start["init_checkpoint"] = self._last_checkpoint(
                os.path.join(self._folder(setting.start, seed), "model"))
        if setting.model:
            start["init_checkpoint"] = self._with_vocabulary(setting)
        if not self._once(folder, f"{setting.name}, seed {seed}", "albert.run_pretraining", {
            "albert_config_file": config, "output_dir": model, "seed": seed,
            **start, **self._training(setting),
        }):
            return
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

    def _with_vocabulary(self, setting: Setting) -> str:
        """Returns the directory of a setting's model with the grid's vocabulary."""
        model, records = setting.model, self._records(setting.data, "train")
        name = hashlib.sha256(f"{model} {records}".encode()).hexdigest()[:8]
        folder = os.path.join(self._dir, "starts", name)
        target = os.path.join(folder, "model")
        if not os.path.isdir(target):
            self._once(folder, f"{model} with this vocabulary", "scripts/extend_vocabulary.py", {
                "model": model, "spm_model_file": self._spm, "input_file": records,
                "output_dir": target})
        return target

    def _training(self, setting: Setting) -> dict[str, Any]:
        """Returns the flags of run_pretraining."""
        train, data = dict(setting.train), setting.data
        # A grid gives these as fractions of the steps, so that they fit any number of tokens.
        warmup, evaluations = train.pop("warmup_share", 0.1), train.pop("num_evaluations", 5)
        steps = math.ceil(setting.tokens / tokens_per_step(data, train))
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
        model = os.path.join(folder, "model")
        tokens = tokens_per_step(setting.data, setting.train)
        lines = read_metrics(os.path.join(model, "metrics.jsonl"))
        return Result(
            setting.name, seed, _results_of(model),
            {name: _results_of(os.path.join(other, "model")) for name, other in others.items()},
            [
                line | {"tokens": line["step"] * tokens,
                        "minutes": minutes_to(lines["train"], line["step"])}
                for line in lines["eval"]
            ],
            parameter_count(self._configs[setting.name]), _command(folder)["seconds"] / 60,
        )

    # --- Commands ---

    def _once(self, folder: str, what: str, module: str, flags: Mapping[str, Any]) -> bool:
        """Runs a command unless it is already done; returns whether it is done now.

        Raises:
          DataError: it failed, or the folder was made with different flags.
        """
        path = os.path.join(files.make_dirs(folder), "command.json")
        entry = {"module": module, "flags": _relative(flags, self._dir), "seconds": 0.0}
        if before := _command(folder):
            for name in sorted(set(entry["flags"]) | set(before["flags"])):
                values = [x["flags"].get(name) for x in (before, entry)]
                if values[0] != values[1]:
                    raise DataError(f"{folder} was made with --{name}={values[0]}, not {values[1]}: "
                                    "use another --output_dir")
            if before.get("is_done"):
                return True
            entry["seconds"] = before["seconds"]
        if self._stopped:
            return False
        files.write_json(path, entry)
        log.info("%s", what)
        started, output = time.monotonic(), os.path.join(folder, "log.txt")
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        program = [os.path.join(_ROOT, module)] if module.endswith(".py") else ["-m", module]
        code = self._call([sys.executable, *program, *arguments], output)
        entry["seconds"] += time.monotonic() - started
        files.write_json(path, entry | {"is_done": code == 0})
        if code and not self._stopped:
            with open(output, encoding="utf-8", errors="replace") as stream:
                last = (stream.read().strip().splitlines() or ["(no output)"])[-1]
            raise DataError(f"{what}: exit code {code}: {last} (all of it: {output})")
        return code == 0

    def _call(self, command: Sequence[str], output: str) -> int:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        }
        with open(output, "a", encoding="utf-8") as stream:
            # Its own session, so that Ctrl-C reaches it only once, through `_stop`.
            self._process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT,
                                             env=environment, start_new_session=True)
            try:
                return self._process.wait()
            finally:
                self._process.wait()  # if it was stopped, until it has saved
                self._process = None


def _results_of(folder: str) -> dict[str, float]:
    return files.read_json_object(os.path.join(folder, "eval_results.json"))


def _command(folder: str) -> dict[str, Any]:
    """Returns what `_once` wrote about a folder's command; {} if nothing."""
    path = os.path.join(folder, "command.json")
    return files.read_json_object(path) if os.path.exists(path) else {}


def _relative(flags: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Returns the flags with paths relative to the folder, so that it can be moved."""
    inside = os.path.join(folder, "")
    return {name: value.replace(inside, "") if isinstance(value, str) else value
            for name, value in flags.items()}
