"""Proof that albert trains right and fast on a GPU; see `gpu.sh`.

First the runs that check numbers, all at once; then, one after another, those that measure speed.
"""

import functools
import json
import lzma
import os
import signal
import sys
import time

import parts

VOCABULARY = "albert/models/small_en/vocab.txt"
PEAK = 989e12  # dense bfloat16 FLOP/s of an H100 (SXM), by its data sheet
RUN = (
    "-m", "albert.run_pretraining", "--do_train",
    "--max_seq_length=128", "--masked_lm_budget=0.15",
    "--num_warmup_steps=5", "--learning_rate=0.002",
)
EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}  # float32 is not rounded to TF32
SAME_BITS = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_enable_triton_gemm=false"}
PARTS = {"losses", "half", "resume", "hidden", "speed", "classify", "largest"}
TRANSFORMERS = "transformers, SDPA, gathered positions"


class Proof:
    def __init__(self, folder: str, out: str, work: str, seconds: str, *wanted: str):
        """`wanted`: `quick`, and the parts to run; by default all."""
        quick = "quick" in wanted
        self.wanted = {name for name in wanted if name != "quick"} or PARTS
        self.work, self.quick = work, quick
        self.texts, self.end = os.path.join(folder, "text"), time.monotonic() + float(seconds)
        self.report = parts.Report(os.path.join(out, "proof.json"))
        self.tiny, self.base, self.huge = "configs/tiny.json", "base_v2", "xxlarge_v2"
        if quick:
            with open(self.tiny) as stream:
                config = json.load(stream) | {"num_hidden_layers": 2, "hidden_size": 64}
            self.tiny = self.base = self.huge = self.path("config.json")
            with open(self.tiny, "w") as stream:
                json.dump(config, stream)

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def path(self, name: str) -> str:
        return os.path.join(self.work, name)

    def main(self) -> None:
        self.report.add("machine", machine())
        self.report.attempt("records", self.records)
        runs = self.start_runs()
        hidden = "hidden" in self.wanted and self.benchmark(
            "inference", "hidden", "float32", ["ours", "transformers, SDPA"], (8, 128), 1, EXACT
        )
        checks = {
            "resume": lambda: self.resume(runs),  # first: the signal must come in time
            "losses": lambda: self.losses(runs), "half": lambda: self.half(runs),
            "hidden": lambda: self.hidden(hidden),
        }
        for batch, length in ((8, 32), (4, 64)) if self.quick else ((256, 128), (64, 512)):
            checks[f"speed, {batch} x {length}"] = functools.partial(self.speed, batch, length)
        checks |= {
            "classify": self.classify, "largest": lambda: self.largest(self.start_plan()),
        }
        for name, check in checks.items():
            if name.split(",")[0] in self.wanted:
                self.report.attempt(name, check)

    # --- Numbers ---

    def records(self):
        with open(self.path("text.txt"), "wb") as stream:
            import text

            stream.write(text.unpacked(os.path.join(self.texts, "heldout.xz")))
        process = parts.start(
            self.path("records.log"), "-m", "albert.create_pretraining_data",
            "--flagfile=configs/small_en/records.flags", f"--input_file={self.path('text.txt')}",
            f"--vocab_file={VOCABULARY}", f"--output_file={self.path('pairs.tfrecord')}",
            f"--eval_output_file={self.path('heldout.tfrecord')}",
        )
        return {"seconds": parts.finish(process, self.left)}

    def start_runs(self):
        def run(name, steps, log_steps, *flags, env=EXACT):
            process = parts.start(
                self.path(name + ".log"), *RUN, f"--albert_config_file={self.tiny}", f"--num_train_steps={steps}",
                *flags,
                f"--input_file={self.path('pairs.tfrecord')}", f"--log_steps={log_steps}",
                f"--output_dir={self.path(name)}", f"--train_batch_size={2 if self.quick else 32}",
                env=env,
            )
            if self.quick and name != "stopped":
                process.wait()  # few cores
            return process

        self.run, half = run, 8 if self.quick else 100
        self.long = (40, 4) if self.quick else (300, 20)
        runs = {}
        if "losses" in self.wanted:
            runs["cpu"] = run("cpu", 20, 1, env=EXACT | {"JAX_PLATFORMS": "cpu"})
            runs |= {"gpu": run("gpu", 20, 1), "tf32": run("tf32", 20, 1, env={})}
        if "half" in self.wanted:
            for name in ("bfloat16", "float16"):
                runs[name] = run(name, half, 1, f"--mixed_precision={name}", env={})
        if "resume" in self.wanted:
            runs |= {name: run(name, *self.long, env=SAME_BITS) for name in ("whole", "stopped")}
        return runs

    def start_plan(self):
        return parts.start(self.path("largest.log"), path_of("largest.py"), self.path("largest"),
                           self.huge)

    def losses(self, runs):
        seconds = {name: parts.finish(runs[name], self.left) for name in ("cpu", "gpu", "tf32")}
        cpu, gpu, tf32 = (
            [row["loss"] for row in parts.metrics(self.path(name)).values()] for name in seconds
        )
        assert len(cpu) == len(gpu) == 20, (len(cpu), len(gpu))
        return {
            "steps": len(cpu), "first": cpu[0], "last": cpu[-1], "last on the GPU": gpu[-1],
            "largest difference": largest_difference(cpu, gpu),
            "largest difference with TF32": largest_difference(cpu, tf32), "seconds": seconds,
        }

    def half(self, runs):
        result = {}
        for name in ("bfloat16", "float16"):
            parts.finish(runs[name], self.left)
            rows = list(parts.metrics(self.path(name)).values())
            result[name] = {
                "steps": len(rows), "skipped": sum(row["skipped_steps"] for row in rows),
                "first": rows[0]["loss"], "last": rows[-1]["loss"],
            }
        return result

    def resume(self, runs):
        """SIGTERM in the middle, the same command again: the losses of an uninterrupted run."""
        stopped, (steps, every) = runs["stopped"], self.long
        while stopped.poll() is None and not parts.metrics(self.path("stopped")):
            time.sleep(0.02)
        stopped.send_signal(signal.SIGTERM)
        code, at = stopped.wait(60), max(parts.metrics(self.path("stopped")))
        again = self.run("stopped", steps, every, env=SAME_BITS)
        parts.finish(again, self.left)
        parts.finish(runs["whole"], self.left)
        one, other = (parts.metrics(self.path(name)) for name in ("whole", "stopped"))
        assert set(one) == set(other), (sorted(one), sorted(other))
        return {
            "exit code": code, "stopped after step": at, "of": steps,
            "largest difference of losses": largest_difference(
                *([rows[step]["loss"] for step in sorted(one)] for rows in (one, other))
            ),
            "last loss": one[steps]["loss"],
        }

    def hidden(self, process):
        seconds = parts.finish(process, self.left)
        [result] = self.results("inference", "hidden")
        theirs = result["sides"]["transformers, SDPA"]
        return {"model": "base_v2, random weights", "rows": f"{result['batch']} x {result['length']}",
                "largest difference, of the largest value": theirs["largest_difference"],
                "seconds": seconds}

    # --- Speed ---

    def benchmark(self, work, name, precision, sides, size, rounds, env=None, *flags):
        return parts.start(
            self.path(name + ".log"), "scripts/maintainers/benchmark.py", work, "--engine=jax",
            f"--device={'cpu' if self.quick else 'gpu'}", "--peers_env=this",
            f"--albert_config_file={self.base}", f"--precision={precision}", f"--rounds={rounds}",
            f"--sides={';'.join(sides)}", f"--batch_size={size[0]}", f"--length={size[1]}",
            f"--output_dir={self.path(name)}", *flags, env=env,
        )

    def results(self, work, name):
        with open(os.path.join(self.path(name), work + ".json")) as stream:
            return json.load(stream)["results"]

    def speed(self, batch, length):
        sides = ["ours", TRANSFORMERS + ", compiled"]
        name = f"steps-{batch}-{length}"
        process = self.benchmark("pretrain_step", name, "bfloat16", sides, (batch, length),
                                 1 if self.quick else 3)
        seconds = parts.finish(process, self.left)
        [result] = self.results("pretrain_step", name)
        measured = {side: rounded(one) for side, one in result["sides"].items()}
        for one in measured.values():
            one["MFU"] = round(flops(self.base, length) * one["per second"] / PEAK, 3)
        return {
            "tokens per second": measured, "seconds": seconds,
            "matrix products, TFLOP/s": round(result["gemm_flops_per_second"] / 1e12),
        }

    def classify(self):
        count = 100 if self.quick else 10000
        model = VOCABULARY
        if not self.quick:
            model = self.path("30k-clean.model")
            with lzma.open("tests/golden/spm/30k-clean.model.xz") as packed, open(model, "wb") as out:
                out.write(packed.read())
        with open(self.path("text.txt"), encoding="utf-8") as stream:
            texts = [line.strip() for line in stream if line.strip()][:count]
        with open(self.path("texts.tsv"), "w", encoding="utf-8") as stream:
            stream.write("\n".join(["sentence\tlabel", *(f"{text}\t0" for text in texts)]) + "\n")
        process = self.benchmark(
            "predict", "classify", "bfloat16", ["ours, packed", "transformers, grouped"], (256, 128),
            3, None, f"--glue_file={self.path('texts.tsv')}", f"--spm_model_file={model}",
            f"--examples={count}",
        )
        seconds = parts.finish(process, self.left)
        [result] = self.results("predict", "classify")
        return {"texts": count, "seconds": seconds,
                "texts per second": {side: rounded(one) for side, one in result["sides"].items()}}

    def largest(self, process):
        """The largest batch that ran, or the plan if there was no time for it."""
        try:
            parts.finish(process, self.left)
        except RuntimeError as error:
            if not os.path.exists(self.path("largest.json")):
                raise
            self.report.add("largest failed", str(error)[-300:])
        with open(self.path("largest.json")) as stream:
            return json.load(stream)


def path_of(name: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


def largest_difference(one, other) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def rounded(side) -> dict[str, float]:
    rates = [side["rate"] * side["median_seconds"] / side[x] for x in ("most_seconds", "least_seconds")]
    return {"per second": round(side["rate"]), "spread": [round(rate) for rate in rates],
            "peak GiB": round(side["peak_bytes"] / 2**30, 1)}


def flops(model: str, length: int) -> float:
    """Returns the matrix-product FLOPs per token of a training step."""
    from albert.formats import huggingface
    from albert.training import costs

    return costs.training_flops(huggingface.read_config(model), length, predictions=20)


def machine() -> dict[str, str]:
    import importlib.metadata
    import subprocess

    try:
        gpu = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpu = "none"
    names = ("jax", "torch", "transformers", "keras", "numpy")
    return {"gpu": gpu, "python": sys.version.split()[0], "cores": str(len(os.sched_getaffinity(0)))} | {
        name: importlib.metadata.version(name) for name in names
    }


if __name__ == "__main__":
    os.chdir(parts.REPOSITORY)
    Proof(*sys.argv[1:]).main()
