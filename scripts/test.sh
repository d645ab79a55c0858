#!/usr/bin/env bash
# Runs the tests, in .venv, which is made and filled if need be.
#
#   bash scripts/test.sh                       all but the slow ones
#   bash scripts/test.sh -m "slow or not slow" all
#   bash scripts/test.sh tests/test_config.py  what pytest takes
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ensure_environment test
# Paths among the arguments are relative to the repository, as in its README.
cd "$repository"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
exec "$python" -m pytest "$@"
