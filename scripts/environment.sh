# Sourced by quickstart.sh and test.sh: makes .venv in the repository and installs the project.
#
#   ensure_environment [EXTRAS [FOLDER]]    e.g. ensure_environment test .venv
#
# sets `python` to the environment's interpreter. Nothing is installed if the last
# installation was from the same setup.py, requirements.txt and extras.
# PYTHON sets the interpreter that creates the environment.

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

fail() {
  echo "error: $*" >&2
  exit 2
}

# TensorFlow 2.20 and 2.21 have no wheels for other versions.
is_suitable() {
  "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
  local candidate
  if [[ -n "${PYTHON:-}" ]]; then
    command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON: no such command"
    is_suitable "$PYTHON" || fail "PYTHON=$PYTHON is $("$PYTHON" -V 2>&1); Python 3.10 to 3.13 is needed"
    echo "$PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
    if is_suitable "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  fail "Python 3.10 to 3.13 is needed (python3 is $(python3 -V 2>&1 || true)); set PYTHON to one"
}

ensure_environment() {
  local extras="${1:-}" environment="$repository/${2:-.venv}" stamp wanted base
  local versions="$repository/requirements.txt"
  if [[ ",$extras," == *,beam,* ]]; then
    versions=/dev/null  # Beam wants other ones, such as protobuf 6
  fi
  python="$environment/bin/python"
  stamp="$environment/installed.stamp"
  if ! "$python" -c '' 2>/dev/null; then
    base="$(find_python)"
    echo "making $environment with $("$base" -V 2>&1)" >&2
    "$base" -m venv --clear "$environment" >&2 ||
      fail "cannot make $environment; on Debian and Ubuntu: apt install python3-venv"
  fi
  # The path is part of it: a copied or moved repository needs installing again.
  wanted="$repository $(cat "$repository/setup.py" "$repository/requirements.txt" | cksum)"
  if grep -qxF "$wanted extras=$extras" "$stamp" 2>/dev/null; then
    return
  fi
  echo "installing the project${extras:+ with extra $extras} (a few minutes the first time)" >&2
  "$python" -m pip install --quiet --disable-pip-version-check \
    -r "$versions" -e "$repository${extras:+[$extras]}" >&2 ||
    fail "installation failed (see above); run the same command again"
  # Extras add up as long as the versions are the same.
  if grep -qF "$wanted extras=" "$stamp" 2>/dev/null; then
    echo "$wanted extras=$extras" >>"$stamp"
  else
    echo "$wanted extras=$extras" >"$stamp"
  fi
}
