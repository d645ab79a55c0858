#!/usr/bin/env bash
# From raw text to a fine-tuned classifier, on your text or on Python's own documentation.
#
#   bash scripts/quickstart.sh [--input_file my_text.txt] [--output_dir DIR]
#
# Every step is a command that is printed before it runs and can be copied. Rerun
# the script to resume: finished steps are skipped, and an interrupted one
# continues. Results: DIR/report.md and DIR/curves.png.
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

usage() {
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

input_file="" out="quickstart_output"
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --input_file=* | --output_dir=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --input_file) (($# > 1)) || fail "--input_file needs a value"; input_file="$2"; shift 2 ;;
    --output_dir) (($# > 1)) || fail "--output_dir needs a value"; out="$2"; shift 2 ;;
    *) fail "unknown argument $1; usage: quickstart.sh [--input_file FILE] [--output_dir DIR]" ;;
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

total_steps=10
# shellcheck source=scripts/steps.sh
source "$repository/scripts/steps.sh"

text="$out/text" records="$out/records" pretrained="$out/pretrained" spm="$out/spm.model"
recipes="${root}configs/quickstart" config="${root}configs/quickstart.json"

if [[ -n "$input_file" ]]; then
  source_text="text $(digest "$input_file")"
else
  source_text="documentation of $("$python" -V)"
fi
step prepare_text "$source_text" \
  "$python" "${root}scripts/quickstart/text.py" ${input_file:+"--input_file=$input_file"} \
  "--output_dir=$text"

corpus="$(digest "$text/corpus.txt")"
step train_sentencepiece "corpus $corpus" \
  "$python" -m albert.train_sentencepiece "--input=$text/corpus.txt" \
  "--model_prefix=$out/spm" --vocab_size=2000

vocabulary="$(digest "$spm")"
step create_pretraining_data "corpus $corpus $(digest "$spm" "$recipes/create_pretraining_data.flags")" \
  "$python" -m albert.create_pretraining_data \
  "--flagfile=$recipes/create_pretraining_data.flags" \
  "--input_file=$text/corpus.txt" "--spm_model_file=$spm" \
  "--output_file=$records/train.tfrecord" "--eval_output_file=$records/heldout.tfrecord"

step run_pretraining \
  "records $(digest "$records/train.tfrecord" "$config" "$recipes/run_pretraining.flags")" \
  "$python" -m albert.run_pretraining "--flagfile=$recipes/run_pretraining.flags" \
  "--albert_config_file=$config" "--input_file=$records/train.tfrecord" \
  "--eval_input_file=$records/heldout.tfrecord" "--output_dir=$pretrained"

# The export refuses to overwrite; output without a stamp was cut short.
[[ -f "$out/.steps/export_to_tfhub.stamp" ]] || rm -rf "$out/hub_module"
weights="$(digest "$pretrained/model.ckpt-best.index" "$pretrained/model.ckpt-best.data-00000-of-00001")"
step export_to_tfhub "weights $weights $vocabulary" \
  "$python" -m albert.export_to_tfhub "--albert_directory=$pretrained" \
  "--export_path=$out/hub_module"

# classify NAME WEIGHTS FLAG...: fine-tunes from the start that the flags give.
classify() {
  local from="$1" weights="$2"
  shift 2
  step "run_classifier_$from" \
    "weights $weights task $(digest "$text/classification/SST-2/train.tsv" "$recipes/run_classifier.flags")" \
    "$python" -m albert.run_classifier "--flagfile=$recipes/run_classifier.flags" \
    "--data_dir=$text/classification" "--output_dir=$out/classifier_$from" "$@"
}
classify checkpoint "$weights" "--init_checkpoint=$pretrained"
classify hub "$weights" "--albert_hub_module_handle=$out/hub_module"
classify random "$weights" "--albert_config_file=$config" "--spm_model_file=$spm"
# The English model that ships with the package read much more text than the one made here. Its settings
# are those of configs/small_en/fine_tuning.flags.
classify small_en "$(digest "$repository/albert/models/small_en/model.safetensors")" \
  --init_checkpoint=small_en --optimizer=lamb --learning_rate=2e-3

step_number=$((step_number + 1))
echo
echo "[$step_number/$total_steps] report"
"$python" "$repository/scripts/quickstart/report.py" "--directory=$out" "--albert_config_file=$config"
