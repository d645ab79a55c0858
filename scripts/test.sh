#!/usr/bin/env bash
# Runs the tests, in .venv, which is made and filled if need be.
#
#   bash scripts/test.sh                       all but the slow ones
#   bash scripts/test.sh tests/test_config.py  what pytest takes
#   bash scripts/test.sh --all                 the slow ones too, with every optional package
#
# On all cores but no more than 4: each process takes a gigabyte or two. -n 0 is one process.
# --all first installs the extras text, onnx, beam, zstd and interop of setup.py. That is several GB,
# most of it torch; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu offers a small one.
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

extras=test
if [[ "${1:-}" == --all ]]; then
  extras=test,text,onnx,beam,zstd,interop
  set -- -m "slow or not slow" "${@:2}"
fi
ensure_environment "$extras"
# Paths among the arguments are relative to the repository, as in its README.
cd "$repository"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
case " $* " in
  *" -n"* | *" --numprocesses"* | *no:xdist* | *" --pdb "*) ;;
  *) set -- -n auto --maxprocesses 4 "$@" ;;
esac
exec "$python" -m pytest "$@"
