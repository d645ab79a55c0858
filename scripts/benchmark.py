"""Times our work beside others' on the same inputs and weights, by turns, and prints ratios.

  python scripts/benchmark.py attention --output_dir=figures
  python scripts/benchmark.py pretrain_step --peers_env=peers --output_dir=figures

Each side is a process of its own; all compute the same outputs, which is
checked first, and then take turns for some rounds. Printed are medians, spread
and the ratio to the first side's time (above 1: faster than it); written are
NAME.json and NAME.md. Peers live in an environment of their own, which is made
in --peers_env if it is not there yet.

  attention      eager against fused attention, training and inference: time and peak memory
  pretrain_step  a training step with both heads, on full rows, or on those of --input_file
  inference      the encoder's outputs of full rows
  finetune       an epoch of a classifier on rows of real lengths
  gemm           the machine's largest rate of a matrix product, to compare with
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

import numpy as np  # noqa: E402
from benchmarks import turns  # noqa: E402
from benchmarks.turns import Side, compare, table  # noqa: E402

from albert import files, flags, model_size  # noqa: E402
from albert.config import AlbertConfig  # noqa: E402
from albert.errors import DataError, FlagError  # noqa: E402
from albert.tasks.pretraining import PretrainingTask  # noqa: E402

PEERS = ("torch==2.13.0", "transformers==5.23.0", "numpy", "safetensors")
# Of the largest output: sums of half precision differ in the second digit.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.2}
PREDICTIONS = 20


def define_flags(values: flags.FlagValues) -> None:
    config = os.path.join(turns.REPOSITORY, "configs", "albert_base_v2.json")
    flags.define("string", values, "albert_config_file", config, "Architecture.")
    flags.define("list", values, "batch_sizes", None, "Rows of a batch; of attention, several.")
    flags.define("list", values, "lengths", None, "Places of a row; of attention, several.")
    flags.define("list", values, "precisions", ["float32"], "float32, bfloat16.")
    flags.define("integer", values, "rounds", 5, "Turns of each side.")
    flags.define("string", values, "input_file", None,
                 "Pretraining records, whose first rows pretrain_step takes: padding and all.")
    flags.define("string", values, "glue_file", None,
                 "TSV of SST-2's layout, whose texts finetune takes its lengths from.")
    flags.define("string", values, "spm_model_file", None, "SentencePiece model of finetune.")
    flags.define("integer", values, "examples", 512, "Rows of finetune's epoch.")
    flags.define("string", values, "peers_env", None,
                 "Environment with the peers, made if absent; without it only our own sides.")
    flags.define("string", values, "output_dir", None, "Where NAME.json and NAME.md go. Required.")


def main(values: flags.FlagValues, name: str) -> None:
    flags.require(values, "output_dir")
    flags.require_positive(values, "rounds", "examples")
    config = AlbertConfig.from_json_file(
        files.require_file(values.albert_config_file, "albert_config_file")
    )
    flags.import_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        results, text = WORK[name](values, config.with_dropout(0.0), folder)
    facts = {"benchmark": name, "machine": _machine(), "rounds": values.rounds, "results": results}
    path = os.path.join(files.make_dirs(values.output_dir), name)
    files.write_json(path + ".json", facts)
    with files.atomic_write(path + ".md") as stream:
        stream.write(f"`{name}` on {facts['machine']}, {values.rounds} rounds\n\n{text}")
    print(text)
    flags.log.info("%s.json and .md", path)


def _machine() -> str:
    with open("/proc/cpuinfo") as stream:
        lines = stream.read().splitlines()
    model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "?")
    features = next((x for x in lines if x.startswith("flags")), "")
    has = [name for name in ("avx512f", "avx512_bf16", "amx_bf16") if name in features.split()]
    return f"{os.cpu_count()} x {model} ({', '.join(has) or 'no AVX-512'})"


# === Models and inputs ===


def _make_model(config: AlbertConfig, kind: str, folder: str, for_peers: bool, **options) -> dict:
    """Writes a random model in our layout and, if asked, Hugging Face's; returns their paths."""
    import keras

    import albert

    keras.utils.set_random_seed(1)
    model = getattr(albert, kind)(config, **options)
    ours = os.path.join(folder, kind)
    model.save_pretrained(ours)
    paths = {"ours": ours}
    if for_peers:
        paths["theirs"] = ours + "-hf"
        subprocess.run(
            [sys.executable, os.path.join(turns.REPOSITORY, "scripts", "convert_hf.py"),
             f"--albert_directory={ours}", f"--output_dir={paths['theirs']}",
             f"--architecture={kind}"],
            check=True, stderr=subprocess.DEVNULL,
        )
    return paths


def _write_rows(folder: str, config: AlbertConfig, batch: int, length: int) -> str:
    """Writes full rows of random ids, with masked positions; returns their path."""
    rng = np.random.default_rng(0)
    count = min(PREDICTIONS, length)
    positions = np.stack([rng.permutation(length)[:count] for _ in range(batch)])
    path = os.path.join(folder, f"rows-{batch}-{length}.npz")
    np.savez(
        path,
        input_ids=rng.integers(5, config.vocab_size, (batch, length), np.int32),
        input_mask=np.ones((batch, length), np.int32),
        segment_ids=np.tile((np.arange(length) >= length // 2).astype(np.int32), (batch, 1)),
        masked_lm_positions=positions.astype(np.int32),
        masked_lm_ids=rng.integers(5, config.vocab_size, (batch, count), np.int32),
        masked_lm_weights=np.ones((batch, count), np.float32),
        next_sentence_labels=rng.integers(0, 2, (batch, 1), np.int32),
    )
    return path


def _read_rows(path: str, folder: str, batch: int) -> tuple[str, int, int]:
    """Writes the first rows of a record file; returns (path, length, tokens)."""
    import tensorflow as tf

    from albert import records

    files.require_file(path, "input_file")
    lengths = records.feature_lengths(path)
    try:
        task = PretrainingTask(lengths["input_ids"], lengths["masked_lm_positions"])
    except KeyError as error:
        raise DataError(f"{path}: no {error} in its records: not those of pretraining") from error
    spec = task.feature_spec()
    [count] = records.check_records([path], spec)
    if count < batch:
        raise DataError(f"{path}: {count} records, fewer than a batch of {batch}")
    rows = tf.io.parse_example(
        list(itertools.islice(records.read_records(path), batch)), spec.parse_spec()
    )
    rows = {
        name: value.numpy().astype(np.float32 if value.dtype.is_floating else np.int32)
        for name, value in rows.items()
    }
    found = os.path.join(folder, f"rows-{batch}.npz")
    np.savez(found, **rows)
    return found, task.max_seq_length, int(rows["input_mask"].sum())


def _peers_python(values: flags.FlagValues) -> str | None:
    """Returns the interpreter of --peers_env, which is made and filled if need be."""
    if not values.peers_env:
        return None
    python = os.path.join(os.path.abspath(values.peers_env), "bin", "python")
    if not os.path.exists(python):
        flags.log.info("making %s with %s", values.peers_env, ", ".join(PEERS))
        for command in (
            [sys.executable, "-m", "venv", values.peers_env],
            [python, "-m", "pip", "install", "--quiet", *PEERS],
        ):
            if subprocess.run(command).returncode:
                raise FlagError(f"--peers_env: {' '.join(command[:4])} ... failed (see above)")
    return python


def _sizes(values, batch_sizes, lengths) -> list[tuple[int, int]]:
    def numbers(name, default):
        try:
            return [int(x) for x in getattr(values, name) or default]
        except ValueError as error:
            raise FlagError(f"--{name}: {error}") from error

    return list(
        itertools.product(numbers("batch_sizes", batch_sizes), numbers("lengths", lengths))
    )


# === The benchmarks ===


def attention(values, config, folder):
    """Eager against fused, over batch and length."""
    model = _make_model(config, "AlbertForPreTraining", folder, False)["ours"]
    results, rows = [], {"pretrain": [], "inference": []}
    for work, precision, (batch, length) in itertools.product(
        rows, values.precisions, _sizes(values, (2, 8), (128, 512))
    ):
        spec = {"work": work, "model": model, "precision": precision,
                "inputs": _write_rows(folder, config, batch, length)}
        sides = [
            Side(name, "ours.py", spec | {"attn_implementation": name})
            for name in ("eager", "fused")
        ]
        found = compare(sides, os.path.join(folder, f"{work}-{precision}-{batch}-{length}"),
                        rounds=values.rounds, tolerance=TOLERANCES[precision],
                        work=batch * length)
        results.append(
            {"work": work, "precision": precision, "batch": batch, "length": length, **found}
        )
        eager, fused = found["eager"], found["fused"]
        rows[work].append([
            precision, batch, length, f"{eager['median_seconds']:.3f}",
            f"{fused['median_seconds']:.3f}", f"{100 * (fused['ratio'] - 1):.1f}",
            eager["peak_bytes"] >> 20, fused["peak_bytes"] >> 20,
            f"{100 * (eager['peak_bytes'] / fused['peak_bytes'] - 1):.1f}",
        ])
        flags.log.info("%s", rows[work][-1])
    header = ("precision", "batch_size", "seq_len", "Time per batch (eager - s)",
              "Time per batch (fused - s)", "Speedup (%)", "Eager peak mem (MiB)",
              "Fused peak mem (MiB)", "Mem saving (%)")
    titles = {"pretrain": "Training", "inference": "Inference"}
    return results, "\n".join(f"{titles[k]}\n\n{table(header, v)}" for k, v in rows.items())


def _model_sides(values, paths, spec, ours: dict, theirs: dict) -> list[Side]:
    python = _peers_python(values)
    sides = [Side(name, "ours.py", spec | {"model": paths["ours"]} | more)
             for name, more in ours.items()]
    if python:
        sides += [Side(name, "theirs_torch.py", spec | {"model": paths["theirs"]} | more, python)
                  for name, more in theirs.items()]
    return sides


_OURS = {
    "ours": {},
    "ours, XLA": {"use_xla": True},
}
_THEIRS = {
    "transformers, eager": {"attn_implementation": "eager"},
    "transformers, SDPA": {"attn_implementation": "sdpa"},
    "transformers, SDPA, compiled": {"attn_implementation": "sdpa", "compile": True},
}
_GATHERED = {
    "transformers, SDPA, gathered positions": {"attn_implementation": "sdpa", "gathered": True},
    "transformers, SDPA, gathered positions, compiled":
        {"attn_implementation": "sdpa", "gathered": True, "compile": True},
}


def _on_rows(values, config, folder, kind, work, theirs):
    paths = _make_model(config, kind, folder, bool(values.peers_env))
    results, rows = [], []
    for precision, (batch, length) in itertools.product(
        values.precisions, _sizes(values, (8,), (128,))
    ):
        ours = _OURS
        if values.input_file and work == "pretrain":
            inputs, length, tokens = _read_rows(values.input_file, folder, batch)
            ours = {"ours, packed": {"pack_rows": True}, "ours, padded": {}}
        else:
            inputs, tokens = _write_rows(folder, config, batch, length), batch * length
        spec = {"work": work, "precision": precision, "inputs": inputs}
        sides = _model_sides(values, paths, spec, ours, theirs)
        found = compare(sides, os.path.join(folder, f"{precision}-{batch}-{length}"),
                        rounds=values.rounds, tolerance=TOLERANCES[precision], work=tokens)
        peak = gemm_rate(precision)
        flops = _flops(config, length, work) * tokens
        results.append({"precision": precision, "batch": batch, "length": length,
                        "tokens": tokens, "gemm_flops_per_second": peak, "sides": found})
        for name, one in found.items():
            share = flops / one["median_seconds"] / peak
            rows.append([
                precision, f"{batch} x {length}", name, f"{one['median_seconds']:.3f}",
                f"{one['least_seconds']:.3f} ... {one['most_seconds']:.3f}",
                f"{one['rate']:,.0f}", f"{one['ratio']:.2f}", f"{100 * share:.0f} %",
                one["peak_bytes"] >> 20,
            ])
    header = ("precision", "rows", "side", "median s", "spread s", "tokens/s",
              "speed, ours = 1", "of the matrix-product peak", "peak MiB")
    return results, table(header, rows)


def _flops(config: AlbertConfig, length: int, work: str) -> float:
    """Returns the FLOPs of a token's matrix products, forward or in a training step."""
    workload = model_size.Workload(
        max_seq_length=length,
        max_predictions_per_seq=min(PREDICTIONS, length) if work == "pretrain" else 0,
    )
    count = model_size.training_flops if work == "pretrain" else model_size.forward_flops
    return count(config, workload)


def pretrain_step(values, config, folder):
    return _on_rows(
        values, config, folder, "AlbertForPreTraining", "pretrain", _THEIRS | _GATHERED
    )


def inference(values, config, folder):
    return _on_rows(values, config, folder, "AlbertModel", "inference", _THEIRS)


def finetune(values, config, folder):
    """An epoch on the lengths of real texts, each side with its ways of batching."""
    flags.require(values, "glue_file", "spm_model_file")
    path, lengths = _write_examples(values, config, folder)
    [(size, _)] = _sizes(values, (32,), (128,))
    paths = _make_model(
        config, "AlbertForSequenceClassification", folder, bool(values.peers_env), num_labels=2
    )
    results, rows = [], []
    for precision in values.precisions:
        spec = {"work": "finetune", "precision": precision, "inputs": path, "batch_size": size,
                "vocab_size": config.vocab_size}
        sides = _model_sides(
            values, paths, spec,
            {"ours, packed": {"pack_rows": True}, "ours, cut": {},
             "ours, padded": {"pad_to_max_seq_length": True}},
            {f"transformers, {name}": {"batching": name}
             for name in ("padded", "dynamic", "grouped")},
        )
        found = compare(sides, os.path.join(folder, precision), rounds=values.rounds,
                        tolerance=0.0, work=len(lengths))
        results.append({"precision": precision, "batch": size, "lengths": lengths, "sides": found})
        rows += [
            [precision, name, f"{one['median_seconds']:.1f}",
             f"{one['least_seconds']:.1f} ... {one['most_seconds']:.1f}", f"{one['rate']:.1f}",
             f"{one['ratio']:.2f}"]
            for name, one in found.items()
        ]
    header = ("precision", "side", "epoch, median s", "spread s", "examples/s", "speed, ours = 1")
    told = (f"{len(lengths)} texts, {np.mean(lengths):.0f} pieces on average, "
            f"{np.percentile(lengths, 95):.0f} at the 95th percentile\n\n")
    return results, told + table(header, rows)


def _write_examples(values, config, folder) -> tuple[str, list[int]]:
    from albert import features, tokenization

    tokenizer = tokenization.FullTokenizer(
        None, True, files.require_file(values.spm_model_file, "spm_model_file")
    )
    tokenization.check_vocabulary(tokenizer, config)
    [(_, length)] = _sizes(values, (32,), (128,))
    with open(files.require_file(values.glue_file, "glue_file"), encoding="utf-8") as stream:
        next(stream)
        texts = [line.split("\t")[0] for line in stream][: values.examples]
    packed = [
        features.pack(ids, None, length, tokenizer.cls_id, tokenizer.sep_id).as_dict()
        for ids in tokenizer.encode_batch(texts)
    ]
    rows = {name: np.stack([p[name] for p in packed]).astype(np.int32) for name in packed[0]}
    rows["label_ids"] = (np.arange(len(texts)) % 2).astype(np.int32)
    path = os.path.join(folder, "examples.npz")
    np.savez(path, **rows)
    return path, rows["input_mask"].sum(1).tolist()


def gemm_rate(precision: str, size: int = 2048, seconds: float = 2.0) -> float:
    """Returns the FLOP/s of the best of many large square products in TensorFlow."""
    import tensorflow as tf

    a = tf.cast(tf.random.stateless_normal([size, size], seed=[1, 2]), precision)
    multiply = tf.function(lambda x: tf.matmul(x, a))
    multiply(a)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        multiply(a).numpy()
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best


def gemm(values, config, folder):
    rates = {precision: gemm_rate(precision) for precision in values.precisions}
    return rates, table(("precision", "GFLOP/s"), [(k, f"{v / 1e9:.0f}") for k, v in rates.items()])


WORK = {
    "attention": attention, "pretrain_step": pretrain_step, "inference": inference,
    "finetune": finetune, "gemm": gemm,
}


def cli() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in WORK:
        argv = [f"{sys.argv[0]} {name}", *sys.argv[2:]]
    elif name in ("--help", "-h", "--helpfull"):
        argv = sys.argv
    else:
        sys.stderr.write(f"error: the first argument is one of {', '.join(WORK)}\n")
        sys.exit(2)
    sys.exit(flags.run_command(__doc__, define_flags, lambda values: main(values, name), argv))


if __name__ == "__main__":
    cli()
