#!/usr/bin/env bash
# Trains a small model on an NVIDIA GPU, with JAX and without TensorFlow.
#
#   bash scripts/maintainers/gpu.sh prepare FOLDER WORDS TEXT...   where there is a network
#   bash scripts/maintainers/gpu.sh learn FOLDER OUT [SECONDS]     on the GPU's machine: 480 seconds
#
# The GPU's machine needs Python 3.12, JAX with CUDA, sentencepiece, protobuf, safetensors, SciPy and
# fsspec, and no network. `prepare` puts what it lacks into FOLDER: wheels, and about WORDS words of
# TEXT, which has one sentence per line; 1.5 MB a million.
#
# It ends by itself, and writes JSON to OUT as results come. `quick` after SECONDS rehearses it on a
# CPU, with a tiny model and a few steps.
set -euo pipefail
[[ $# -ge 3 && "$1" =~ ^(prepare|learn)$ ]] || { sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
folder="$(realpath -m "$2")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p "$folder"

if [[ "$1" == prepare ]]; then
  python3 -m pip download --no-deps --only-binary=:all: --python-version=3.12 --dest="$folder/wheels" \
    --platform=manylinux2014_x86_64 --platform=manylinux_2_28_x86_64 --platform=any \
    keras==3.15.1 namex optree google-crc32c
  exec python3 scripts/maintainers/gpu/text.py "$folder/text" "$3" "${@:4}"
fi

out="$(realpath -m "$3")" work="$(mktemp -d)" site="$(mktemp -d)"
mkdir -p "$out"
end() { # keep what explains the results
  (cd "$work" && find . -name '*.log' -o -name metrics.jsonl | tar -czf "$out/learn.logs.tgz" -T -)
  rm -rf "$work" "$site"
}
trap end EXIT
for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done
python3 -m compileall -q -j 0 "$site" > /dev/null || true
export PYTHONPATH="$site:$PWD${PYTHONPATH:+:$PYTHONPATH}" KERAS_BACKEND=jax
# The probe and the training share the GPU: none takes it all at its start, as JAX does by default.
export XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_PYTHON_CLIENT_MEM_FRACTION=0.95
# Choosing among Triton's matrix products would take minutes where several processes compile at once.
export XLA_FLAGS=--xla_gpu_enable_triton_gemm=false
# The training run finds what its probe has compiled.
export JAX_COMPILATION_CACHE_DIR="$work/compiled"
export HF_HUB_OFFLINE=1 TF_CPP_MIN_LOG_LEVEL=2
python3 scripts/maintainers/gpu/learn.py "$folder" "$out" "$work" "${4:-480}" "${@:5}"
