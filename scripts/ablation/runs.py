"""Runs the data creation, pretraining and evaluation commands of a grid, each once."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

from albert import tokenization
import run_files
from ablation.grid import Grid, Setting, tokens_per_step
from albert.errors import DataError, Preempted
from albert.model import costs
from albert.runtime import workers
from albert.storage import files

log = logging.getLogger("albert")

# Flags of a run that also apply to its additional held-out records: all that determine masking.
_OF_EVALUATIONS = (
    "eval_batch_size", "max_eval_steps", "max_predictions_per_seq", "masked_lm_budget",
    "do_whole_word_mask", "favor_shorter_ngram", "ngram",
    "mask_token_share",
)
_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one run of a setting."""

    setting: str
    seed: int
    metrics: Mapping[str, float]  # at the end of training
    others: Mapping[str, Mapping[str, float]]  # the grid's `evaluations` and `probes`, by name
    curve: Sequence[Mapping[str, float]]  # evaluations during training, with `tokens`, `minutes`
    parameters: int
    minutes: float  # of all its commands, evaluations included


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
        self, grid: Grid, inputs: Sequence[str], spm_model_file: str, glue_dir: str | None,
        output_dir: str, input_flags: Mapping[str, Any],
    ):
        """Takes the flags that all runs share.

        Args:
          input_flags: flags of create_pretraining_data that describe the format of the text.
        """
        self._grid, self._dir = grid, output_dir
        self._probes = grid.probes if glue_dir else {}
        self._glue_dir = glue_dir
        self._inputs, self._spm = list(map(os.path.abspath, inputs)), spm_model_file
        self._input_flags = dict(input_flags)
        tokenizer = tokenization.FullTokenizer(None, spm_model_file=spm_model_file)
        self._processes: set[subprocess.Popen] = set()
        self._stopped, self._renewing = False, threading.Lock()
        self._configs = {
            setting.name: setting.architecture(tokenizer.vocab_size) for setting in grid.settings
        }

    def results(self) -> list[Result]:
        """Returns the results available so far, in the grid's order."""
        return [
            found for setting in self._grid.settings for seed in self._grid.seeds
            if (found := self._result(setting, seed))
        ]

    def execute(self, parallel: int, seconds: float) -> Iterator[None]:
        """Runs the commands that are not done yet; yields after each run, and at the end.

        Args:
          parallel: number of concurrent runs.
          seconds: time after which running commands save and stop; 0: no limit.

        Raises:
          DataError: a command failed.
          Preempted: a signal arrived. Rerun the command to resume.
        """
        deadline = time.monotonic() + seconds if seconds else math.inf
        with self._signals(), ThreadPoolExecutor(parallel, initializer=own_cores(parallel)) as pool:
            for data in self._data_sets():
                self._make_records(data)
            left = [(s, seed) for seed in self._grid.seeds for s in self._grid.settings]
            running: dict[Any, tuple[Setting, int]] = {}
            try:
                while (left or running) and not self._stopped:
                    while len(running) < parallel and (ready := self._ready(left, running)):
                        left.remove(ready)
                        running[pool.submit(self._run, *ready)] = ready
                    done, _ = wait(running, max(0.0, min(deadline - time.monotonic(), 1e6)),
                                   FIRST_COMPLETED)
                    for future in done:
                        del running[future]
                        future.result()
                        yield
                    if time.monotonic() >= deadline:
                        log.info("the time is over: %d runs are left to the next call",
                                 len(left) + len(running))
                        self._stop()
            except BaseException:  # no command may outlive this process
                self._stop()
                raise
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
        for process in list(self._processes):
            process.terminate()

    def _ready(self, left, running) -> tuple[Setting, int] | None:
        """Returns the first run of `left` that can begin: the run it starts from is done."""
        waiting = {(setting.name, seed) for setting, seed in [*left, *running.values()]}
        return next(
            ((s, seed) for s, seed in left if s.start is None or (s.start, seed) not in waiting),
            None,
        )

    # --- Records ---

    def _data_sets(self) -> list[dict[str, Any]]:
        every = [dict(part.data) for s in self._grid.settings for part in (s, *s.stages)]
        if self._grid.held_out is not None:
            every.append(dict(self._grid.held_out))
        every += [self._evaluation_data(flags) for flags in self._grid.evaluations.values()]
        unique = {json.dumps(data, sort_keys=True): data for data in every}
        return list(unique.values())

    def _evaluation_data(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._grid.settings[0].data) | dict(flags)

    def _records(self, data: Mapping[str, Any]) -> str:
        name = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]
        return os.path.join(self._dir, "records", name)

    def _make_records(self, data: Mapping[str, Any]) -> None:
        folder = self._records(data)
        self._once(folder, "records", "albert.create_pretraining_data", {
            "input_file": ",".join(self._inputs), "spm_model_file": self._spm,
            "output_file": os.path.join(folder, "train.tfrecord"),
            "eval_output_file": os.path.join(folder, "heldout.tfrecord"), **self._input_flags,
            **data,
        })

    # --- Runs ---

    def _folder(self, name: str, seed: int) -> str:
        return os.path.join(self._dir, "runs", name.replace("/", "-").replace(" ", "_"), str(seed))

    def _steps(self, setting: Setting) -> int:
        return math.ceil(setting.tokens / tokens_per_step(setting.data, setting.train))

    def _run(self, setting: Setting, seed: int) -> None:
        folder, steps = files.make_dirs(self._folder(setting.name, seed)), self._steps(setting)
        config = os.path.join(folder, "config.json")
        with files.atomic_write(config) as stream:
            stream.write(self._configs[setting.name].to_json_string())
        model = os.path.join(folder, "model")
        start = {}
        if setting.start:
            start["init_checkpoint"] = self._last_checkpoint(
                os.path.join(self._folder(setting.start, seed), "model")
            )
        if setting.model:
            if not (renewed := self._with_vocabulary(setting)):
                return
            start["init_checkpoint"] = renewed
        for number, part in enumerate((*setting.stages, setting), 1):
            is_last, where = part is setting, folder
            what = f"{setting.name}, seed {seed}"
            given = start | self._training(part.data, part.train, steps) | {
                "albert_config_file": config, "output_dir": model, "seed": seed,
            }
            if not is_last:
                # No evaluation: the held-out sequences have the length of the last stage.
                given |= {"do_eval": False, "until_step": round(steps * part.until)}
                del given["eval_input_file"]
                where, what = _stage(folder, number), f"{what}, stage {number}"
            if not self._once(where, what, "albert.run_pretraining", given):
                return
        train, lengths = setting.train, {"max_seq_length": setting.data["max_seq_length"]}
        for name, data in self._grid.evaluations.items():
            other = files.make_dirs(os.path.join(folder, f"on-{name}"))
            self._once(other, f"{setting.name}, seed {seed}, on {name}", "albert.run_pretraining", {
                "albert_config_file": config, "do_train": False, "do_eval": True,
                "input_file": os.path.join(
                    self._records(self._evaluation_data(data)), "heldout.tfrecord"),
                "init_checkpoint": self._last_checkpoint(model),
                "output_dir": os.path.join(other, "model"), **lengths,
                **{key: train[key] for key in _OF_EVALUATIONS if key in train},
            })

        for name, flags in self._probes.items():
            probe = files.make_dirs(os.path.join(folder, f"probe-{name}"))
            self._once(probe, f"{setting.name}, seed {seed}, {name}", "albert.run_classifier", {
                "albert_config_file": config, "data_dir": self._glue_dir,
                "spm_model_file": self._spm, "init_checkpoint": self._last_checkpoint(model),
                "output_dir": os.path.join(probe, "model"), "do_train": True, "do_eval": True,
                **flags,
            })

    def _with_vocabulary(self, setting: Setting) -> str | None:
        """Returns a setting's model with the grid's vocabulary, as a directory; None if stopped."""
        model, records = setting.model, os.path.join(self._records(setting.data), "train.tfrecord")
        name = hashlib.sha256(f"{model} {records}".encode()).hexdigest()[:8]
        folder = os.path.join(self._dir, "starts", name)
        target = os.path.join(folder, "model")
        with self._renewing:  # concurrent runs may start from the same model
            if not os.path.isdir(target) and not self._once(
                folder, f"{model} with this vocabulary", "albert.extend_vocabulary",
                {"model": model, "spm_model_file": self._spm, "input_file": records,
                 "output_dir": target},
            ):
                return None
        return target

    def _training(
        self, data: Mapping[str, Any], train: Mapping[str, Any], steps: int
    ) -> dict[str, Any]:
        """Returns the flags of run_pretraining for `steps` steps on the records of `data`."""
        train = dict(train)
        # A grid gives these as fractions of the steps, so that they fit any number of tokens.
        warmup, evaluations = train.pop("warmup_share", 0.1), train.pop("num_evaluations", 5)
        held_out = self._records(self._grid.held_out or data)
        return {
            "do_train": True, "do_eval": True,
            "input_file": os.path.join(self._records(data), "train.tfrecord"),
            "eval_input_file": os.path.join(held_out, "heldout.tfrecord"),
            "num_train_steps": steps, "num_warmup_steps": int(steps * warmup),
            "save_checkpoints_steps": math.ceil(steps / evaluations), "keep_checkpoint_max": 1,
            "max_seq_length": data["max_seq_length"], **train,
        }

    @staticmethod
    def _last_checkpoint(folder: str) -> str:
        step = run_files.read_results(folder)["global_step"]
        return os.path.join(folder, f"model.ckpt-{int(step)}")

    def _result(self, setting: Setting, seed: int) -> Result | None:
        folder = self._folder(setting.name, seed)
        others = {name: os.path.join(folder, f"on-{name}") for name in self._grid.evaluations}
        others |= {name: os.path.join(folder, f"probe-{name}") for name in self._probes}
        stages = [_stage(folder, number) for number, _ in enumerate(setting.stages, 1)]
        if not all(map(_is_done, (*stages, folder, *others.values()))):
            return None
        model = os.path.join(folder, "model")
        tokens = tokens_per_step(setting.data, setting.train)
        lines = run_files.read_metrics(os.path.join(model, "metrics.jsonl"))
        return Result(
            setting.name, seed, run_files.read_results(model),
            {n: run_files.read_results(os.path.join(f, "model")) for n, f in others.items()},
            [
                line | {"tokens": line["step"] * tokens,
                        "minutes": minutes_to(lines["train"], line["step"])}
                for line in lines["eval"]
            ],
            costs.parameter_count(self._configs[setting.name]),
            sum(_command(where)["seconds"] for where in (*stages, folder)) / 60,
        )

    # --- Commands ---

    def _once(self, folder: str, what: str, module: str, flags: Mapping[str, Any]) -> bool:
        """Runs a command unless it is already done; returns whether it is done now.

        Raises:
          DataError: it failed, or the folder was made with different flags.
        """
        path = os.path.join(files.make_dirs(folder), "command.json")
        told = {"module": module, "flags": _relative(flags, self._dir), "seconds": 0.0}
        if before := _command(folder):
            for name in sorted(set(told["flags"]) | set(before.get("flags", {}))):
                values = [x.get("flags", {}).get(name) for x in (before, told)]
                if values[0] != values[1]:
                    raise DataError(
                        f"{folder} was made with --{name}={values[0]}, not {values[1]}: use "
                        "another --output_dir"
                    )
            if before.get("is_done"):
                return True
            told["seconds"] = before["seconds"]
        files.write_json(path, told)
        if self._stopped:
            return False
        log.info("%s", what)
        started, output = time.monotonic(), os.path.join(folder, "log.txt")
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        code = self._call([sys.executable, "-m", module, *arguments], output)
        told["seconds"] += time.monotonic() - started
        if code == 0:
            files.write_json(path, told | {"is_done": True})
            return True
        files.write_json(path, told)
        if self._stopped:
            return False
        with open(output, encoding="utf-8", errors="replace") as stream:
            last = (stream.read().strip().splitlines() or ["(it said nothing)"])[-1]
        raise DataError(f"{what}: exit code {code}: {last} (all of it: {output})")

    def _call(self, command: Sequence[str], output: str) -> int:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        }
        with open(output, "a", encoding="utf-8") as stream:
            # Its own session, so that Ctrl-C reaches it only once, through `_stop`.
            process = subprocess.Popen(
                command, stdout=stream, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )
            self._processes.add(process)
            try:
                return process.wait()
            finally:
                self._processes.discard(process)


def own_cores(parallel: int) -> Callable[[], None] | None:
    """Returns a function that pins the calling thread, and its processes, to their own cores.

    Each of `parallel` threads calls it once and gets the same number of cores, which makes the
    times of concurrent runs comparable. Returns None if there is only one thread, if there
    are fewer cores than threads, or if the system cannot bind threads to cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if not 1 < parallel <= len(cores):
        return None
    shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    size = len(cores) // parallel
    for first in range(0, size * parallel, size):
        shares.put(cores[first : first + size])
    # 0 means the calling thread. Its processes inherit its cores.
    return lambda: os.sched_setaffinity(0, shares.get())


def _stage(folder: str, number: int) -> str:
    return os.path.join(folder, f"stage-{number}")


def _command(folder: str) -> dict[str, Any]:
    """Returns what `_once` wrote about a folder's command; {} if nothing."""
    path = os.path.join(folder, "command.json")
    return files.read_json_object(path) if os.path.exists(path) else {}


def _is_done(folder: str) -> bool:
    return bool(_command(folder).get("is_done"))


def _relative(flags: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Returns the flags with paths relative to the folder, so that it can be moved."""
    inside = os.path.join(folder, "")
    return {
        name: value.replace(inside, "") if isinstance(value, str) else value
        for name, value in flags.items()
    }
