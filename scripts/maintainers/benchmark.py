"""Times albert and other libraries in turn on the same inputs and weights, and prints ratios.

  python scripts/maintainers/benchmark.py inference --output_dir=figures
  python scripts/maintainers/benchmark.py pretrain_step --peers_env=peers --output_dir=figures

Each side runs in its own process. A check that all sides compute the same outputs comes before the
timing; then they take turns for several rounds. The tool prints medians, spread and speed relative
to the first side (above 1: faster), and writes NAME.json and NAME.md. Peers run in a separate
environment, which is created in --peers_env if it does not exist.

  pretrain_step  a training step with both heads, on full sequences
  inference      the encoder's outputs for full sequences
  finetune       an epoch of a classifier on texts of various lengths
  predict        the classifier's logits for such texts
  first_answer   a new process that opens a classifier and answers one text; no peer
  tokenize       text to ids, on one core
  make_records   text to pretraining records, on one core; no peer
"""

import dataclasses
import itertools
import os
import subprocess
import sys
import tempfile

import numpy as np

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
sys.path[:0] = [REPOSITORY]

from albert import engines  # noqa: E402
from albert.cli import flags  # noqa: E402
from albert.errors import FlagError  # noqa: E402
from albert.formats import huggingface  # noqa: E402
from albert.formats.model_card import table  # noqa: E402
from albert.storage import files  # noqa: E402
from benchmarks.turns import Side, compare  # noqa: E402

PEERS = (
    "torch==2.13.0", "transformers==5.23.0", "tokenizers", "numpy", "safetensors",
    "tensorflow==2.21.0", "keras-hub==0.32.0", "onnx==1.23.2", "onnxruntime==1.32.0", "openvino==2026.4.1",
    "nncf==3.4.0",
)
# Relative to the largest output: half-precision sums differ in the second digit.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.2, "int8": 0.3}
PREDICTIONS, STEPS_ON_GPU = 20, 10
OURS = {"tensorflow": {"ours": {}, "ours, XLA": {"use_xla": True}},
        "jax": {"ours": {}}}
ON_TEXTS = {"ours, packed": {"pack_rows": True}, "ours, cut": {},
            "ours, padded": {"pad_to_max_seq_length": True}}
SESSION = {"ours, session": {"is_session": True}}
SDPA = {"attn_implementation": "sdpa"}
THEIRS = {"transformers, eager": {"attn_implementation": "eager"}, "transformers, SDPA": SDPA,
          "transformers, SDPA, compiled": SDPA | {"compile": True}}
GATHERED = {f"transformers, SDPA, gathered positions{name}": SDPA | {"gathered": True} | more
            for name, more in (("", {}), (", compiled", {"compile": True}))}
BATCHED = {f"transformers, {name}": {"batching": name} for name in ("padded", "dynamic", "grouped")}
RUNTIMES = {"onnxruntime": {"runtime": "onnxruntime"}, "OpenVINO": {"runtime": "openvino"}}
KERAS_HUB = {"keras-hub": {}, "keras-hub, XLA": {"use_xla": True}}


def define_flags(values: flags.FlagValues) -> None:
    flags.define("string", values, "albert_config_file", "base_v2", "Architecture.")
    flags.define("integer", values, "batch_size", 8, "Sequences or texts of a batch.", lower_bound=1)
    flags.define("integer", values, "length", 128, "Tokens of a sequence, at most.", lower_bound=8)
    flags.define("enum", values, "precision", "float32", "Of the models.", enum_values=list(TOLERANCES))
    flags.define("integer", values, "rounds", 5, "Turns of each side.", lower_bound=1)
    flags.define("enum", values, "device", "cpu", "Where models compute.", enum_values=["cpu", "gpu"])
    flags.define("enum", values, "engine", "tensorflow", "What computes our sides of a model.",
                 enum_values=["tensorflow", "jax"])
    flags.define("string", values, "glue_file", None,
                 "TSV of SST-2's layout, whose texts finetune and predict take.")
    flags.define("integer", values, "examples", 96, "Number of these texts.", lower_bound=1)
    flags.define("string", values, "spm_model_file", "small_en", "SentencePiece model of what reads text.")
    flags.define("string", values, "input_file", None, "Text of tokenize and make_records.")
    flags.define("string", values, "sides", None,
                 "Of the sides that run a model, these alone: names with semicolons between them.")
    flags.define("string", values, "peers_env", None,
                 "Environment with the peers, made if absent; `this`: the one that runs this program. "
                 "Without it, only our own sides run.")
    flags.define("string", values, "output_dir", None, "Where NAME.json and NAME.md go. Required.")


def peers_python(values) -> str | None:
    """Returns the interpreter of --peers_env, creating the environment if needed."""
    if not values.peers_env or values.peers_env == "this":
        return values.peers_env and sys.executable
    python = os.path.join(os.path.abspath(values.peers_env), "bin", "python")
    if not os.path.exists(python):
        flags.log.info("making %s with %s", values.peers_env, ", ".join(PEERS))
        for command in ([sys.executable, "-m", "venv", values.peers_env],
                        [python, "-m", "pip", "install", "--quiet", *PEERS]):
            if subprocess.run(command).returncode:
                raise FlagError(f"--peers_env: {' '.join(command[:4])} ... failed (see above)")
    return python


def make_model(values, config, kind: str, folder: str, **options) -> dict[str, str]:
    """Writes a random model; returns the path that each program reads."""
    import keras

    import albert
    from albert.formats import pretrained

    keras.utils.set_random_seed(1)
    path = os.path.join(folder, kind)
    model = getattr(albert, kind)(config, **options)
    model.save_pretrained(path)
    archive = files.make_dirs(path + "-archive")
    pretrained.save(model, archive, is_archive=True)
    return {"ours.py": path, "theirs_torch.py": path, "theirs_keras_hub.py": archive}


def sides_of(values, models, spec, ours, theirs, keras_hub) -> list[Side]:
    """Returns a side for each {name: additions to the specification}, and peers' if installed."""
    def can_run(more) -> bool:
        # Exported graphs are measured on CPUs, where onnxruntime has no bfloat16, and alone are in int8.
        if "is_session" in more:
            is_there = spec["precision"] != "bfloat16" or engines.is_installed("openvino")
        elif "runtime" in more:
            is_there = spec["precision"] == "float32" or more["runtime"] == "openvino"
        else:
            return spec["precision"] != "int8"
        return is_there and values.device == "cpu"

    spec = spec | {"device": values.device, "engine": values.engine}
    programs = [("ours.py", ours, sys.executable)]
    if python := peers_python(values):
        programs.append(("theirs_torch.py", theirs, python))
        if values.engine == "tensorflow":
            programs.append(("theirs_keras_hub.py", keras_hub, python))
    sides = [Side(name, program, spec | {"model": models[program]} | more, interpreter)
             for program, named, interpreter in programs for name, more in named.items() if can_run(more)]
    chosen = [name.strip() for name in (values.sides or "").split(";") if name.strip()]
    if unknown := set(chosen) - {side.name for side in sides}:
        raise FlagError(f"--sides: no {'; '.join(sorted(unknown))}; there are "
                        + "; ".join(side.name for side in sides))
    return [side for side in sides if not chosen or side.name in chosen]


def on_rows(work, kind, theirs, ours=None):
    """Returns a benchmark on full sequences of random ids, with masked positions."""
    def run(values, config, folder):
        batch, length = values.batch_size, values.length
        rng, count = np.random.default_rng(0), min(PREDICTIONS, values.length)
        path = os.path.join(folder, "rows.npz")
        np.savez(
            path, input_ids=rng.integers(5, config.vocab_size, (batch, length), np.int32),
            input_mask=np.ones((batch, length), np.int32),
            segment_ids=np.tile(np.int32(np.arange(length) >= length // 2), (batch, 1)),
            masked_lm_positions=np.stack(
                [rng.permutation(length)[:count] for _ in range(batch)]).astype(np.int32),
            masked_lm_ids=rng.integers(5, config.vocab_size, (batch, count), np.int32),
            masked_lm_weights=np.ones((batch, count), np.float32),
            next_sentence_labels=rng.integers(0, 2, (batch, 1), np.int32),
        )
        spec, tokens = {"work": work, "precision": values.precision, "inputs": path}, batch * length
        if work == "pretrain" and values.device == "gpu":  # in a run, steps do not wait for the host
            spec["steps_per_turn"] = STEPS_ON_GPU
            tokens *= STEPS_ON_GPU
        sides = sides_of(values, make_model(values, config, kind, folder), spec,
                         (ours or {}) | OURS[values.engine], theirs, KERAS_HUB)
        found = compare(sides, folder, rounds=values.rounds, work=tokens,
                        tolerance=TOLERANCES[values.precision])
        return {"batch": batch, "length": length, "tokens": tokens}, found
    return run


def on_texts(work, ours, theirs, keras_hub):
    """Returns a benchmark on texts of various lengths; each side batches them in its own ways."""
    def run(values, config, folder):
        path, lengths = write_texts(values, folder)
        if work == "finetune" and len(lengths) % values.batch_size:  # left over: others on each side
            raise FlagError(f"--examples: {len(lengths)} texts are not whole batches of {values.batch_size}")
        models = make_model(values, config, "AlbertForSequenceClassification", folder, num_labels=2)
        spec = {"work": work, "precision": values.precision, "inputs": path, "is_warm": True,
                "batch_size": values.batch_size, "vocab_size": config.vocab_size}
        found = compare(sides_of(values, models, spec, ours, theirs, keras_hub), folder, work=len(lengths),
                        rounds=values.rounds, tolerance=TOLERANCES[values.precision])
        return {"texts": len(lengths), "tokens on average": float(np.mean(lengths))}, found
    return run


def write_texts(values, folder) -> tuple[str, np.ndarray]:
    """Writes the sequences of --glue_file's first texts as arrays; returns (path, their lengths)."""
    from albert import AlbertTokenizer

    flags.require(values, "glue_file")
    with open(files.require_file(values.glue_file, "glue_file"), encoding="utf-8") as stream:
        texts = [line.split("\t")[0] for line in itertools.islice(stream, 1, 1 + values.examples)]
    rows = AlbertTokenizer.from_pretrained(values.spm_model_file)(
        texts, max_length=values.length, padding="max_length", return_tensors="np")
    path = os.path.join(folder, "texts.npz")
    np.savez(path, **rows, label_ids=np.arange(len(texts), dtype=np.int32) % 2)
    return path, rows["input_mask"].sum(1)


def first_answer(values, config, folder):
    """Compares `predict` with `open_session`, from the start of a process to its end."""
    from albert import AlbertTokenizer

    tokenizer = AlbertTokenizer.from_pretrained(values.spm_model_file)
    config = dataclasses.replace(config, vocab_size=len(tokenizer))
    model = make_model(values, config, "AlbertForSequenceClassification", folder, num_labels=2)["ours.py"]
    tokenizer.save_pretrained(model)
    spec = {"work": "first_answer", "model": model}
    sides = [Side(name, "ours.py", spec | {"by": name}) for name in ("predict", "session")]
    return {}, compare(sides, folder, rounds=values.rounds, tolerance=1e-5)


def on_text(work):
    """Returns a benchmark of one core on the lines of a text."""
    def run(values, config, folder):
        from albert import AlbertTokenizer
        from albert.storage import shipped

        flags.require(values, "input_file")
        text = files.require_file(values.input_file, "input_file")
        tokenizer = AlbertTokenizer.from_pretrained(values.spm_model_file)
        tokenizer.save_pretrained(os.path.join(folder, "tokenizer"))
        spm = shipped.vocabulary_of(values.spm_model_file) or values.spm_model_file
        spec = {"work": work, "text": text, "spm_model_file": spm,
                "tokenizer": os.path.join(folder, "tokenizer", "tokenizer.json")}
        sides = [Side("ours", "ours.py", spec, threads=1)]
        if work == "tokenize" and (python := peers_python(values)):
            sides.append(Side("tokenizers", "theirs_torch.py", spec, python, threads=1))
        megabytes = os.path.getsize(text) / 1e6
        return {"megabytes": megabytes}, compare(
            sides, folder, rounds=values.rounds, tolerance=0.0, work=megabytes)
    return run


WORK = {
    "pretrain_step": on_rows("pretrain", "AlbertForPreTraining", THEIRS | GATHERED),
    "inference": on_rows("inference", "AlbertModel", THEIRS | RUNTIMES, SESSION),
    "finetune": on_texts("finetune", ON_TEXTS, BATCHED, {}),
    "predict": on_texts("predict", SESSION | ON_TEXTS, BATCHED | {
        f"{name}, grouped": how | {"batching": "grouped"} for name, how in RUNTIMES.items()
    }, {"keras-hub, padded": {}}),
    "first_answer": first_answer, "tokenize": on_text("tokenize"), "make_records": on_text("make_records"),
}


def main(values: flags.FlagValues, name: str) -> None:
    flags.require(values, "output_dir")
    config = huggingface.read_config(values.albert_config_file)
    if values.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    engines.start(values.engine)
    with tempfile.TemporaryDirectory() as folder:
        facts, sides = WORK[name](values, config.with_dropout(0.0), folder)
    rows = [
        (side, f"{one['median_seconds']:.3f}", f"{one['least_seconds']:.3f} ... {one['most_seconds']:.3f}",
         f"{one['rate']:,.1f}", f"{one['ratio']:.2f}", one["peak_bytes"] >> 20)
        for side, one in sides.items()
    ]
    text = (f"`{name}` on {_machine()}, {values.precision}, {values.rounds} rounds; {facts}\n\n"
            + table(("side", "median s", "spread s", "rate", "speed, first = 1", "peak MiB"), rows))
    path = os.path.join(files.make_dirs(values.output_dir), name)
    facts = {"benchmark": name, "machine": _machine(), "rounds": values.rounds, "results": [
        {"precision": values.precision, **facts, "sides": sides}]}
    files.write_json(path + ".json", facts)
    with files.atomic_write(path + ".md") as stream:
        stream.write(text)
    print(text)


def _machine() -> str:
    with open("/proc/cpuinfo") as stream:
        lines = stream.read().splitlines()
    model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "?")
    features = next((x for x in lines if x.startswith("flags")), "").split()
    has = [name for name in ("avx512f", "avx512_bf16", "amx_bf16") if name in features]
    return f"{os.cpu_count()} x {model} ({', '.join(has) or 'no AVX-512'})"


def cli() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in WORK and not name.startswith("--help") and name != "-h":
        sys.stderr.write(f"error: the first argument is one of {', '.join(WORK)}\n")
        sys.exit(2)
    argv = [f"{sys.argv[0]} {name}", *sys.argv[2:]] if name in WORK else sys.argv
    sys.exit(flags.run_command(__doc__, define_flags, lambda values: main(values, name), argv))


if __name__ == "__main__":
    cli()
