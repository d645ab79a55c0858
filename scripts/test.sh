#!/usr/bin/env bash
# Runs the tests, in .venv, which is made and filled if need be.
#
#   bash scripts/test.sh                       all but the slow ones
#   bash scripts/test.sh -m "slow or not slow" all
#   bash scripts/test.sh tests/test_config.py  what pytest takes
#
# Without arguments, on all cores but no more than 4: each process takes a gigabyte or two.
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ensure_environment test
# Paths among the arguments are relative to the repository, as in its README.
cd "$repository"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
[[ $# -gt 0 ]] || set -- -n auto --maxprocesses 4
exec "$python" -m pytest "$@"
