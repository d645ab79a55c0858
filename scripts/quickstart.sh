#!/usr/bin/env bash
# From raw text to a pretrained model, on your text or on Python's own documentation, and to a classifier.
#
#   bash scripts/quickstart.sh [--input_file my_text.txt] [--hours 0.05] [--output_dir DIR]
#
# Every step is a command that is printed before it runs and can be copied. Rerun
# the script to resume: finished steps are skipped, and an interrupted one
# continues. --hours is the time for pretraining. Each model's report is in its directory.
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

usage() {
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

input_file="" out="quickstart_output" hours=0.05
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --input_file=* | --hours=* | --output_dir=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --input_file) (($# > 1)) || fail "--input_file needs a value"; input_file="$2"; shift 2 ;;
    --hours) (($# > 1)) || fail "--hours needs a value"; hours="$2"; shift 2 ;;
    --output_dir) (($# > 1)) || fail "--output_dir needs a value"; out="$2"; shift 2 ;;
    *) fail "unknown argument $1; usage: quickstart.sh [--input_file FILE] [--hours HOURS] [--output_dir DIR]" ;;
  esac
done
[[ -n "$out" ]] || fail "--output_dir is empty"
out="${out%/}"
if [[ -n "$input_file" ]]; then
  # Before minutes of installation, not after.
  [[ -f "$input_file" && -r "$input_file" ]] || fail "--input_file: no such file: $input_file"
  [[ -s "$input_file" ]] || fail "--input_file: $input_file is empty"
fi
mkdir -p "$out/.steps" || fail "cannot create $out"
ensure_environment
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
# Commands are shown as you would type them: relative to the repository.
root="$repository/"
if [[ "$PWD" == "$repository" ]]; then
  root="" python=".venv/bin/python"
fi

total_steps=3
# shellcheck source=scripts/steps.sh
source "$repository/scripts/steps.sh"

text="$input_file" data="$out/data" pretrained="$out/pretrained" model="$out/pretrained/model"
mkdir -p "$data"
if [[ -z "$text" ]]; then
  text="$data/text.txt"
  # The language reference, as help() shows it: a paragraph on each line, a blank line after each topic.
  "$python" - >"$text" <<'END' || fail "this Python has no documentation: use --input_file with your text"
from pydoc_data.topics import topics
for text in topics.values():
    print("\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n")), end="\n\n")
END
fi
for name in train test; do
  "$python" -m albert.examples "$name" >"$data/$name.csv"
done

step pretrain_from_text "text $(digest "$text")" \
  "$python" -m albert.pretrain_from_text "--input_file=$text" "--hours=$hours" \
  "--output_dir=$pretrained"

# The export refuses to overwrite; output without a stamp was cut short.
[[ -f "$out/.steps/export_to_tfhub.stamp" ]] || rm -rf "$out/hub_module"
weights="$(digest "$model/model.ckpt-best.index" "$model/model.ckpt-best.data-00000-of-00001")"
step export_to_tfhub "weights $weights" \
  "$python" -m albert.export_to_tfhub "--albert_directory=$model" "--export_path=$out/hub_module"

# What Python functions do: a table that comes with the package.
step run_classifier "weights $weights table $(digest "$data/train.csv" "$data/test.csv")" \
  "$python" -m albert.run_classifier "--train_file=$data/train.csv" "--test_file=$data/test.csv" \
  "--output_dir=$out/classifier" "--albert_hub_module_handle=$out/hub_module"

echo
for name in pretrained classifier; do
  echo "$out/$name/report.md:"
  grep -m 4 -E '^\| (accuracy|masked tokens|sentence order|TF-IDF)' "$out/$name/report.md" || true
done
echo "$out/pretrained/model, $out/hub_module: the pretrained model, for --init_checkpoint and as a TF-Hub module"
