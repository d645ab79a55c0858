"""Trains a small English model in minutes on a GPU; see `gpu.sh`.

The number of steps follows from the speed of a short run on the held-out text, while the processor
makes records of the training text. Token embeddings from co-occurrence would take longer than they
save here.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import time

import text

REPOSITORY = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
STARTED = time.monotonic()
VOCABULARY = "albert/models/small_en/vocab.txt"
# 6 layers that share their weights.
MODEL = {
    "attention_probs_dropout_prob": 0, "down_scale_factor": 1, "embedding_size": 192,
    "hidden_act": "gelu", "hidden_dropout_prob": 0, "hidden_size": 640, "initializer_range": 0.04,
    "inner_group_num": 1, "intermediate_size": 2560, "max_position_embeddings": 128,
    "num_attention_heads": 10, "num_hidden_groups": 1, "num_hidden_layers": 6, "type_vocab_size": 2,
    "vocab_size": 28455,
}
# About 40,000 tokens: pairs of segments and single sentences, in proportion to their numbers.
BATCH, LEARNING_RATE, WARM_UP, PROBE_STEPS = 1024, 0.005, 300, 300
RECORDS = {
    "pair": ("--strict_sentence_order",),
    "single": ("--single_sentences", "--sentence_objective=none"),
}
AT_THE_END = 34.0  # seconds for the last checkpoint, its evaluation, and the conversion


class Report:
    """Results, printed as they come and kept in a JSON file that is always complete."""

    def __init__(self, path: str):
        self.path, self.results = path, {}

    def add(self, name: str, result) -> None:
        self.results[name] = result
        print(f"[{time.monotonic() - STARTED:5.0f} s] {name}: {json.dumps(result)}", flush=True)
        with open(self.path + ".new", "w") as stream:
            json.dump(self.results, stream, indent=1)
        os.replace(self.path + ".new", self.path)

    def attempt(self, name: str, make) -> None:
        """Adds `make()`, or what went wrong with it: one failure must not cost the other results."""
        try:
            self.add(name, make())
        except Exception as error:
            self.add(name, {"failed": f"{type(error).__name__}: {error}"[-1500:]})


def start(log: str, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen:
    """Starts `python COMMAND...` in the repository, with its output in the file `log`."""
    with open(log, "a") as stream:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=REPOSITORY, stdout=stream, stderr=stream,
            env=os.environ | (env or {}), start_new_session=True,
        )
    process.log, process.begun = log, time.monotonic()
    return process


def finish(process: subprocess.Popen, seconds: float) -> float:
    """Waits at most so long; returns the seconds that the process took.

    Raises:
      RuntimeError: it failed, or was killed because it took longer.
    """
    try:
        code = process.wait(max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        process.wait()
        code = "too slow"
    if code:
        with open(process.log, errors="replace") as stream:
            raise RuntimeError(f"{os.path.basename(process.log)}: {code}: {stream.read()[-1200:]}")
    return round(time.monotonic() - process.begun, 1)


def metrics(folder: str, kind: str = "train") -> dict[int, dict]:
    """Returns {step: values} of a run's lines of one kind; the last line of a step counts."""
    found = {}
    path = os.path.join(folder, "metrics.jsonl")
    if os.path.exists(path):
        with open(path) as stream:
            for line in stream:
                row = json.loads(line)
                if row["kind"] == kind:
                    found[row["step"]] = row
    return found


class Learning:
    def __init__(self, folder: str, out: str, work: str, seconds: str, *flags: str):
        """`flags`: `quick`, and others of run_pretraining."""
        self.end, self.quick = time.monotonic() + float(seconds), "quick" in flags
        self.out, self.work = out, work
        self.flags = [flag for flag in flags if flag != "quick"]
        self.folder = os.path.join(folder, "text")
        self.report = Report(os.path.join(out, "learn.json"))
        tiny = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
        model = MODEL | (tiny if self.quick else {})
        with open(self.path("config.json"), "w") as stream:
            json.dump(model, stream)
        self.batch = 16 if self.quick else BATCH

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def path(self, name: str) -> str:
        return os.path.join(self.work, name)

    def main(self) -> None:
        # --- Records, and the speed at the same time ---
        packed = sorted(os.listdir(self.folder))
        text.unpack(self.folder, self.work, packed[:1])  # the held-out text
        made = [self.records(kind, "heldout") for kind in RECORDS]
        seconds = [finish(process, self.left) for process in made]
        probe = self.run("probe", "heldout", 3 if self.quick else PROBE_STEPS)
        text.unpack(self.folder, self.work, packed[-1:] if self.quick else packed[1:])
        self.report.add("text", {"files": len(packed)})
        made = [self.records(kind, "train") for kind in RECORDS]
        seconds += [finish(process, self.left) for process in made]
        self.report.add("records", {"seconds": seconds})
        plan = self.plan(finish(probe, self.left))
        self.report.add("plan", plan)
        # --- Train ---
        steps = plan["steps"]
        training = self.run(
            "trained", "train", steps, "--do_eval", "--max_eval_steps=100",
            f"--save_checkpoints_steps={-(-steps // 2)}",
            f"--eval_input_file={self.path('heldout.pair.tfrecord')}",
        )
        while training.poll() is None and self.left > 16:
            time.sleep(1)
        if training.poll() is None:
            training.terminate()  # it saves what it has
            self.report.add("ended early", {"code": training.wait(60)})
        self.report.attempt("training", self.trained)
        self.report.attempt("checkpoint", self.converted)

    def records(self, kind: str, name: str):
        sources = [n for n in sorted(os.listdir(self.work)) if n.startswith(name) and n.endswith(".txt")]
        return start(
            self.path(f"{name}.{kind}.log"), "-m", "albert.create_pretraining_data", *RECORDS[kind],
            "--nostatic_masks", "--max_seq_length=128", f"--vocab_file={VOCABULARY}",
            f"--num_processes={max(len(os.sched_getaffinity(0)) // 2, 1)}",
            f"--input_file={','.join(map(self.path, sources))}",
            f"--output_file={self.path(f'{name}.{kind}.tfrecord')}",
        )

    def run(self, name, records, steps, *flags):
        inputs = (self.path(f"{records}.{kind}.tfrecord") for kind in RECORDS)
        return start(
            self.path(name + ".log"), "-m", "albert.run_pretraining", "--do_train",
            "--flagfile=configs/small_en/run_pretraining.flags", "--nodo_eval",
            "--noinit_from_teacher", "--optimizer=muon",
            f"--albert_config_file={self.path('config.json')}",
            f"--input_file={','.join(inputs)}", f"--output_dir={self.path(name)}",
            f"--vocab_file={VOCABULARY}", f"--train_batch_size={self.batch}",
            f"--num_train_steps={steps}", f"--num_warmup_steps={min(WARM_UP, steps // 5)}",
            f"--num_decay_steps={int(0.8 * steps)}", f"--learning_rate={LEARNING_RATE}", "--log_steps=20",
            *flags, *self.flags,
        )

    def plan(self, seconds: float) -> dict:
        """Returns the steps for the time that is left, from the probe's speed."""
        rows = list(metrics(self.path("probe")).values())
        # Windows of 20 steps; those in which a batch shape is compiled are far slower.
        window = statistics.median(row["seconds"] for row in rows)
        start = seconds - window * len(rows)  # import and compilation
        planned = int((self.left - start - AT_THE_END) / window * 20)
        return {
            "steps per second": round(20 / window, 2), "seconds to start": round(start, 1),
            "tokens per second": statistics.median(row["tokens_per_second"] for row in rows),
            "seconds left": round(self.left), "steps": 20 if self.quick else max(planned, 100),
            "last loss": rows[-1]["loss"],
        }

    def trained(self) -> dict:
        rows, evals = (metrics(self.path("trained"), kind) for kind in ("train", "eval"))
        tokens = sum(row["tokens_per_second"] * row["seconds"] for row in rows.values())
        return {
            "steps": max(rows), "million tokens": round(tokens / 1e6, 1),
            "tokens per second": round(tokens / sum(row["seconds"] for row in rows.values())),
            "last loss": rows[max(rows)]["loss"], "evaluations": evals,
            "losses": [[step, round(row["loss"], 3)] for step, row in list(rows.items())[::25]],
        }

    def converted(self) -> dict:
        process = start(
            self.path("convert.log"), "-m", "albert.convert_hf", "--dtype=float16",
            f"--albert_directory={self.path('trained')}", f"--vocab_file={VOCABULARY}",
            f"--output_dir={self.path('model')}", env={"JAX_PLATFORMS": "cpu"},
        )
        seconds = finish(process, self.left)
        with tarfile.open(os.path.join(self.out, "model.tgz"), "w:gz") as packed:
            packed.add(self.path("model"), "model")
        size = os.path.getsize(os.path.join(self.work, "model", "model.safetensors"))
        return {"seconds": seconds, "MB": round(size / 1e6, 1)}


if __name__ == "__main__":
    os.chdir(REPOSITORY)
    Learning(*sys.argv[1:]).main()
