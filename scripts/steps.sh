# Sourced by quickstart.sh and run_glue.sh: commands that run once, and resume where they stopped.
#
# Expects `python` (see environment.sh), `out` (with a folder .steps in it), `total_steps`,
# `root` and `input_file` (may be empty).

# Steps are named in order; a stamp records the inputs of a finished step.
step_number=0 child=""
forward_signal() {
  [[ -z "$child" ]] || kill -TERM "$child" 2>/dev/null || true
}
trap forward_signal INT TERM HUP

digest() {
  "$python" -c 'import sys; from albert.storage import files
print(*(files.sha256(p)[:16] for p in sys.argv[1:]))' "$@"
}

# step NAME "INPUT FILES" COMMAND...: runs the command unless it is done.
step() {
  local name="$1" inputs="$2" description argument
  shift 2
  step_number=$((step_number + 1))
  local stamp="$out/.steps/$name.stamp"
  local title="[$step_number/$total_steps] $name"
  # The step's inputs, independent of the working directory and of the files' location.
  description=""
  for argument in "${@:2}"; do
    argument="${argument//"$out/"/@out/}"
    [[ -z "$input_file" ]] || argument="${argument//"=$input_file"/=@input}"
    [[ -z "$root" ]] || argument="${argument//"$root"/}"
    description+="$argument"$'\n'
  done
  description+="$inputs"
  if [[ -f "$stamp" ]]; then
    if [[ "$(cat "$stamp")" == "$description" ]]; then
      echo "$title: done already"
      return
    fi
    fail "$out: step $name was made from another text or other settings ($stamp); use another --output_dir, or remove $out"
  fi
  printf '\n%s\n ' "$title"
  printf ' %q' "$@"
  printf '\n'
  local status=0
  # In the background, so that a signal to this script alone reaches the command too.
  "$@" &
  child=$!
  wait "$child" || status=$?
  # A trapped signal ends `wait` early; the command is saving its state.
  while kill -0 "$child" 2>/dev/null; do
    status=0
    wait "$child" || status=$?
  done
  child=""
  if ((status)); then
    if ((status > 128)); then
      echo "stopped in step $name; rerun the same command to resume" >&2
    else
      echo "error: step $name failed (see above); rerun the same command to resume" >&2
    fi
    exit "$status"
  fi
  printf '%s\n' "$description" >"$stamp.new"
  mv "$stamp.new" "$stamp"
}
