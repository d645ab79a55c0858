"""Model benchmarks: steps, inference, fine-tuning, matrix-product rate."""

import importlib.util
import itertools
import os
import subprocess
import time

import numpy as np

from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import FlagError
from albert.formats.model_card import table
from albert.model import costs
from albert.storage import files
from benchmarks import inputs
from benchmarks.turns import Side, compare


def model_sides(
    values, paths, spec, ours: dict, theirs: dict, keras_hub: dict | None = None
) -> list[Side]:
    """Returns a side for each {name: additions to the specification}, and peers' if installed.

    If --sides is given, only the sides that it names.
    """
    python = inputs.peers_python(values)
    spec = spec | {"device": values.device, "engine": values.engine}
    sides = [Side(name, "ours.py", spec | {"model": paths["ours"]} | more)
             for name, more in ours.items()]
    if spec.get("precision") == "bfloat16":  # onnxruntime has no such products on processors
        theirs = {k: v for k, v in theirs.items() if v.get("runtime") != "onnxruntime"}
    if python and values.engine == "jax":  # keras-hub's side is on TensorFlow
        keras_hub = {}
    if python and _has(python, "flash_attn"):
        theirs = theirs | _FLASH
    if python:
        sides += [Side(name, "theirs_torch.py", spec | {"model": paths["theirs"]} | more, python)
                  for name, more in theirs.items()]
        sides += [Side(name, "theirs_keras_hub.py", spec | {"model": paths["archive"]} | more, python)
                  for name, more in (keras_hub or {}).items()]
    if not values.sides:
        return sides
    chosen = [name.strip() for name in values.sides.split(";")]
    if unknown := set(chosen) - {side.name for side in sides}:
        raise FlagError(f"--sides: no {'; '.join(sorted(unknown))}; there are "
                        + "; ".join(side.name for side in sides))
    return [side for side in sides if side.name in chosen]


def _has(python: str, package: str) -> bool:
    """Whether a package is installed in an interpreter's environment."""
    asked = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", asked]).returncode == 0


_OURS = {
    "tensorflow": {
        "ours": {},
        "ours, XLA": {"use_xla": True},
        "ours, without oneDNN": {"onednn": False},  # as TensorFlow chooses on many a processor
    },
    "jax": {
        "ours": {}, "ours, fused": {"attn_implementation": "fused"},
        "ours, unrolled": {"layer_engine": "unrolled"},
    },
}
_THEIRS = {
    "transformers, eager": {"attn_implementation": "eager"},
    "transformers, SDPA": {"attn_implementation": "sdpa"},
    "transformers, SDPA, compiled": {"attn_implementation": "sdpa", "compile": True},
}
# PyTorch's exports, computed by other runtimes.
_RUNTIMES = {
    "onnxruntime": {"attn_implementation": "sdpa", "runtime": "onnxruntime"},
    "OpenVINO": {"attn_implementation": "sdpa", "runtime": "openvino"},
}
_FLASH = {"transformers, FlashAttention": {"attn_implementation": "flash_attention_2"}}
_KERAS_HUB = {"keras-hub": {}, "keras-hub, XLA": {"use_xla": True}}
_GATHERED = {
    "transformers, SDPA, gathered positions": {"attn_implementation": "sdpa", "gathered": True},
    "transformers, SDPA, gathered positions, compiled":
        {"attn_implementation": "sdpa", "gathered": True, "compile": True},
}


_STEPS_ON_GPU = 10


def _on_rows(values, config, folder, kind, work, theirs):
    paths = inputs.make_model(config, kind, folder, bool(values.peers_env))
    results, rows = [], []
    for precision, (batch, length) in itertools.product(
        values.precisions, inputs.sizes(values, (8,), (128,))
    ):
        ours = _OURS[values.engine]
        if values.records_file and work == "pretrain":
            path, length, tokens = inputs.read_rows(values.records_file, folder, batch)
            ours = {"ours, packed": {"pack_rows": True}, "ours, padded": {}}
        else:
            path, tokens = inputs.write_rows(folder, config, batch, length), batch * length
            if work == "inference" and values.engine == "tensorflow":
                ours = ours | {
                    "ours, model(x)": {"is_called": True},
                    "ours, constant weights": {"is_constant": True},
                } | _by_file(values, precision)
        spec = {"work": work, "precision": precision, "inputs": path}
        if work == "pretrain" and values.device == "gpu":  # as in a run, steps do not wait for the host
            spec["steps_per_turn"] = _STEPS_ON_GPU
            tokens *= _STEPS_ON_GPU
        sides = model_sides(values, paths, spec, ours, theirs, _KERAS_HUB)
        found = compare(sides, os.path.join(folder, f"{precision}-{batch}-{length}"),
                        rounds=values.rounds, tolerance=inputs.TOLERANCES[precision], work=tokens)
        peak = gemm_rate(precision, 12288 if values.device == "gpu" else 2048)
        wanted = flops(config, length, work) * tokens
        results.append({"precision": precision, "batch": batch, "length": length,
                        "tokens": tokens, "gemm_flops_per_second": peak, "sides": found})
        for name, one in found.items():
            share = wanted / one["median_seconds"] / peak
            rows.append([
                precision, f"{batch} x {length}", name, f"{one['median_seconds']:.3f}",
                f"{one['least_seconds']:.3f} ... {one['most_seconds']:.3f}",
                f"{one['rate']:,.0f}", f"{one['ratio']:.2f}", f"{100 * share:.0f} %",
                one["peak_bytes"] >> 20,
            ])
    header = ("precision", "rows", "side", "median s", "spread s", "tokens/s",
              "speed, ours = 1", "of the matrix-product peak", "peak MiB")
    return results, table(header, rows)


def flops(config: AlbertConfig, length: int, work: str) -> float:
    """Returns the matrix-product FLOPs per token, forward or in a training step."""
    workload = costs.Workload(
        max_seq_length=length,
        max_predictions_per_seq=min(inputs.PREDICTIONS, length) if work == "pretrain" else 0,
    )
    training = costs.training_flops(config, workload)
    return training if work == "pretrain" else training / 3


def pretrain_step(values, config, folder):
    return _on_rows(
        values, config, folder, "AlbertForPreTraining", "pretrain", _THEIRS | _GATHERED
    )


_IDLE_STEPS = 16  # per turn; the second half is timed


def idle(values, config, folder):
    """The part of a training step spent waiting for input: reading, parsing and masking."""
    paths = inputs.make_model(config, "AlbertForPreTraining", folder, for_peers=False)
    results, rows = [], []
    for batch, length in inputs.sizes(values, (8,), (128,)):
        count = max(values.examples, batch)
        spec = {"work": "pretrain", "inputs": inputs.write_rows(folder, config, batch, length),
                "batch_size": batch, "vocab_size": config.vocab_size, "model": paths["ours"],
                "device": values.device, "engine": values.engine, "steps": _IDLE_STEPS}
        sides = [
            Side("rows at hand", "ours.py", spec),
            Side("records", "ours.py",
                 spec | {"records": inputs.write_records(folder, config, count, length)}),
            Side("masks on the fly", "ours.py",
                 spec | {"records": inputs.write_pairs(folder, config, count, length)}),
        ]
        # Different sequences, and so different losses.
        found = compare(sides, os.path.join(folder, f"idle-{batch}-{length}"),
                        rounds=values.rounds, tolerance=None, work=batch * length * _IDLE_STEPS)
        results.append({"batch": batch, "length": length, "sides": found})
        for name, one in found.items():
            parts = one["parts"]
            rows.append([
                f"{batch} x {length}", name, f"{parts['steps'] / (_IDLE_STEPS // 2):.4f}",
                f"{100 * parts['waiting'] / parts['steps']:.2f} %",
            ])
    header = ("rows", "side", "step, median s", "of it, waiting for rows")
    return results, table(header, rows)


def inference(values, config, folder):
    return _on_rows(
        values, config, folder, "AlbertModel", "inference", _THEIRS | _runtimes(values)
    )


def _runtimes(values) -> dict[str, dict]:
    """Returns the sides of exported graphs, which are measured on CPUs."""
    return _RUNTIMES if values.device == "cpu" else {}


def _by_file(values, precision: str) -> dict[str, dict]:
    """Returns our float32 side that onnxruntime computes, if its packages are installed."""
    if values.engine != "tensorflow" or precision != "float32" or values.device != "cpu":
        return {}
    has_all = all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime")))
    return {"ours, ONNX": {"is_onnx": True}} if has_all else {}


def finetune(values, config, folder):
    """An epoch of training on texts; the mean losses of the first epoch are compared."""
    return _on_texts(values, config, folder, "finetune", {})


def predict(values, config, folder):
    """The logits of texts."""
    runtimes = {f"{name}, grouped": how | {"batching": "grouped"}
                for name, how in _runtimes(values).items()}
    return _on_texts(values, config, folder, "predict", runtimes, {"keras-hub, padded": {}})


def _on_texts(values, config, folder, work, runtimes, keras_hub=None):
    """All texts once, of various lengths; each side batches them in its own ways."""
    flags.require(values, "glue_file", "spm_model_file")
    path, lengths = write_examples(values, config, folder)
    [(size, _)] = inputs.sizes(values, (32,), (128,))
    if work == "finetune" and len(lengths) % size:  # left over: other texts on each side
        raise FlagError(f"{len(lengths)} texts are not whole batches of {size}: see --examples")
    paths = inputs.make_model(
        config, "AlbertForSequenceClassification", folder, bool(values.peers_env), num_labels=2
    )
    results, rows = [], []
    for precision in values.precisions:
        spec = {"work": work, "precision": precision, "inputs": path, "batch_size": size,
                "vocab_size": config.vocab_size, "is_warm": True}  # by what is compared
        sides = model_sides(
            values, paths, spec,
            {"ours, packed": {"pack_rows": True}, "ours, cut": {},
             "ours, padded": {"pad_to_max_seq_length": True}}
            | (_by_file(values, precision) if work == "predict" else {}),
            {f"transformers, {name}": {"batching": name}
             for name in ("padded", "dynamic", "grouped")} | runtimes,
            keras_hub,
        )
        found = compare(sides, os.path.join(folder, precision), rounds=values.rounds,
                        tolerance=inputs.TOLERANCES[precision], work=len(lengths))
        results.append({"precision": precision, "batch": size, "lengths": lengths, "sides": found})
        rows += [
            [precision, name, f"{one['median_seconds']:.1f}",
             f"{one['least_seconds']:.1f} ... {one['most_seconds']:.1f}", f"{one['rate']:.1f}",
             f"{one['ratio']:.2f}"]
            for name, one in found.items()
        ]
    header = ("precision", "side", "all texts, median s", "spread s", "examples/s", "speed, ours = 1")
    told = (f"{len(lengths)} texts, {np.mean(lengths):.0f} pieces on average, "
            f"{np.percentile(lengths, 95):.0f} at the 95th percentile\n\n")
    return results, told + table(header, rows)


def write_examples(values, config, folder) -> tuple[str, list[int]]:
    """Writes the sequences of --glue_file's first texts as arrays; returns (path, their lengths)."""
    from albert import tokenization
    from albert.records import features

    tokenizer = tokenization.FullTokenizer(
        None, True, files.require_file(values.spm_model_file, "spm_model_file")
    )
    tokenization.check_vocabulary(tokenizer, config)
    [(_, length)] = inputs.sizes(values, (32,), (128,))
    with open(files.require_file(values.glue_file, "glue_file"), encoding="utf-8") as stream:
        next(stream)
        texts = [line.split("\t")[0] for line in stream][: values.examples]
    packed = [
        features.join_texts(ids, None, length, tokenizer.cls_id, tokenizer.sep_id)
        for ids in tokenizer.encode_batch(texts)
    ]
    rows = {name: np.stack([p[name] for p in packed]).astype(np.int32) for name in packed[0]}
    rows["label_ids"] = (np.arange(len(texts)) % 2).astype(np.int32)
    path = os.path.join(folder, "examples.npz")
    np.savez(path, **rows)
    return path, rows["input_mask"].sum(1).tolist()


def gemm_rate(precision: str, size: int = 2048, seconds: float = 2.0) -> float:
    """Returns the FLOP/s of the fastest of many large square matrix products on the backend."""
    from keras import ops

    from albert.inference.compiled_call import compiled_function

    normal = np.random.default_rng(1).standard_normal((size, size), np.float32)
    batch = {"a": ops.cast(ops.convert_to_tensor(normal), precision)}
    # Read only a corner of the product: copying all of it takes longer than computing it.
    multiply = compiled_function(lambda batch: {"c": ops.matmul(batch["a"], batch["a"])}, [])
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        float(multiply(batch)["c"][0, 0])
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best


def gemm(values, config, folder):
    rates = {precision: gemm_rate(precision) for precision in values.precisions}
    return rates, table(("precision", "GFLOP/s"), [(k, f"{v / 1e9:.0f}") for k, v in rates.items()])
