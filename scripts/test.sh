#!/usr/bin/env bash
# Runs the tests in .venv, which is created and filled if needed.
#
#   bash scripts/test.sh                       all except the slow ones
#   bash scripts/test.sh tests/same_numbers/test_config.py  what pytest takes
#   bash scripts/test.sh --all                 the slow ones too, with every optional package
#
# As many test modules at a time as there are cores, but no more than 4, as each may take two
# gigabytes, and no fewer than 2. --jobs=1 is one process, which takes 22 GB for the slow tests.
# --all first installs the extras test, remote-test, interop, torch, openvino, docs and release
# of setup.py. That is several GB, most of it torch; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu offers a small one.
# Apache Beam wants older packages than the others: its tests run last, in .venv-beam.
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

run_tests() {
  local cores
  cores="$(getconf _NPROCESSORS_ONLN)"
  case " $* " in
    *" --jobs"* | *" --pdb "*) ;;
    *) set -- --jobs="$((cores < 2 ? 2 : cores < 4 ? cores : 4))" "$@" ;;
  esac
  # Threads of BLAS and of pyarrow could not be forked (tests/support/parallel.py).
  OPENBLAS_NUM_THREADS=1 JE_ARROW_MALLOC_CONF=background_thread:false "$python" -m pytest "$@"
}

# Paths among the arguments are relative to the repository, as in its README.
cd "$repository"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
if [[ "${1:-}" != --all ]]; then
  ensure_environment test
  run_tests "$@"
  exit
fi
set -- -m "slow or not slow" "${@:2}"
code=0
ensure_environment test,remote-test,interop,torch,openvino,docs,release
run_tests "$@" || code=$?
# Code 5: none of the selected tests is one of Beam's.
ensure_environment test,beam,beam-dask,remote-test .venv-beam
run_tests "$@" --jobs=1 -k beam_pipeline || (($? == 5)) || code=1
exit "$code"
