"""Times albert and other libraries in turn on the same inputs and weights, and prints ratios.

  python scripts/maintainers/benchmark.py inference --output_dir=figures
  python scripts/maintainers/benchmark.py pretrain_step --peers_env=peers --output_dir=figures

Each side runs in its own process. A check that all sides compute the same
outputs comes before the timing; then they take turns for several rounds. The
tool prints medians, spread and speed relative to the first side (above 1:
faster), and writes NAME.json and NAME.md. Peers run in a separate environment,
which is created in --peers_env if it does not exist.

  pretrain_step  a training step with both heads, on full sequences or on those of --records_file
  idle           a training step on sequences in memory, read from records, masked while reading
  inference      the encoder's outputs for full sequences
  finetune       an epoch of a classifier on texts of various lengths
  predict        the classifier's logits for such texts
  int8           a classifier's predictions with int8: their time, and how they differ
  gemm           the machine's peak matrix-product rate, for comparison
  memory         peak memory of a training step: plain, recomputed, accumulated
  scaling        cost per token as length, batch, layers and corpus grow; also NAME.png
  startup        from process start to the end of the first training step, part by part
  tokenize       text to ids, on one core
  make_records   text to pretraining records, on one core
  input_pipeline records to batches, on one core, and how many cores accelerators need
  remote         run_pretraining from and to a slow S3 server: time spent waiting, and throughput
"""

import os
import sys
import tempfile

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
sys.path[:0] = [REPOSITORY, os.path.join(REPOSITORY, "scripts")]

from benchmarks import (  # noqa: E402
    cost_work,
    data_work,
    inputs,
    int8_work,
    model_work,
    remote_work,
    start_work,
)

from albert.cli import engine_start, flags
from albert.errors import FlagError  # noqa: E402
from albert.formats import huggingface  # noqa: E402
from albert.storage import files  # noqa: E402


def define_flags(values: flags.FlagValues) -> None:
    flags.define("string", values, "albert_config_file", "base_v2", "Architecture.")
    flags.define("list", values, "batch_sizes", None, "Rows of a batch; of some, several.")
    flags.define("list", values, "lengths", None, "Places of a row; of some, several.")
    flags.define("list", values, "precisions", ["float32"], "float32, bfloat16.")
    flags.define("integer", values, "rounds", 5, "Turns of each side.", lower_bound=1)
    flags.define("enum", values, "device", "cpu", "Where models compute, ours and theirs.",
                 enum_values=["cpu", "gpu"])
    flags.define("enum", values, "engine", "tensorflow",
                 "What computes our sides of a model. With jax nothing needs TensorFlow.",
                 enum_values=["tensorflow", "jax"])
    flags.define("string", values, "records_file", None,
                 "Pretraining records, whose first rows pretrain_step takes: padding and all.")
    flags.define("string", values, "glue_file", None,
                 "TSV of SST-2's layout, whose texts finetune, predict and int8 take.")
    flags.define("string", values, "model", None,
                 "Directory of int8's classifier; by default random weights.")
    flags.define("string", values, "spm_model_file", None,
                 "SentencePiece model of what reads text.")
    flags.define("string", values, "input_file", None,
                 "Text of tokenize, make_records and scaling's corpus.")
    flags.define("list", values, "corpus_bytes", None,
                 "How much of --input_file; of scaling, several.")
    flags.define("integer", values, "dupe_factor", 5, "Passes over the text of make_records.",
                 lower_bound=1)
    flags.define("integer", values, "examples", 512,
                 "Rows of finetune's epoch, and of the records of input_pipeline and remote.",
                 lower_bound=1)
    flags.define("integer", values, "latency", 50, "Milliseconds before each of remote's answers.",
                 lower_bound=0)
    flags.define("list", values, "layers", None, "Numbers of layers of scaling.")
    flags.define("integer", values, "accelerators", 8,
                 "H200s whose appetite input_pipeline compares with what a core reads.",
                 lower_bound=1)
    flags.define("float", values, "utilization", 0.3,
                 "Part of their peak that training reaches.",
                 above=0, upper_bound=1)
    flags.define("string", values, "sides", None,
                 "Names with semicolons between them: of the sides that run a model, these alone.")
    flags.define("string", values, "peers_env", None,
                 "Environment with the peers, made if absent; without it only our own sides. "
                 "`this`: the one that runs this program has them.")
    flags.define("string", values, "output_dir", None, "Where NAME.json and NAME.md go. Required.")


def main(values: flags.FlagValues, name: str) -> None:
    flags.require(values, "output_dir")
    unknown = set(values.precisions) - set(inputs.TOLERANCES)
    if unknown:
        raise FlagError(f"--precisions: {', '.join(sorted(unknown))} is not among "
                        + ", ".join(inputs.TOLERANCES))
    config = huggingface.read_config(values.albert_config_file)
    if values.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    engine_start.start(values.engine)
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


WORK = {
    "pretrain_step": model_work.pretrain_step,
    "idle": model_work.idle, "inference": model_work.inference, "finetune": model_work.finetune,
    "predict": model_work.predict, "int8": int8_work.int8, "gemm": model_work.gemm,
    "memory": cost_work.memory, "scaling": cost_work.scaling, "startup": start_work.startup,
    "tokenize": data_work.tokenize, "make_records": data_work.make_records,
    "input_pipeline": data_work.input_pipeline, "remote": remote_work.remote,
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
