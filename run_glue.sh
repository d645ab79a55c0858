#!/usr/bin/env bash
# Fine-tunes on the GLUE tasks with the paper's hyper-parameters, and shows one table.
#
#   ALBERT_HUB_MODULE_HANDLE=MODULE GLUE_DIR=glue bash run_glue.sh
#   INIT_CHECKPOINT=albert_base/model.ckpt-best GLUE_DIR=glue bash run_glue.sh CoLA RTE MRPC
#   bash run_glue.sh --smoke       everything on tiny made-up data, in a few minutes
#
# Arguments are tasks (default: all nine), --output_dir=DIR (default: glue_output), --seeds=1,2,3 for
# a run of each seed in DIR/seed-<seed> and the medians of all, and flags for every run_classifier
# command, such as --train_batch_size=16. The
# hyper-parameters are in configs/glue. INIT_CHECKPOINT is a checkpoint, or any pretrained model, as
# small_en (with --max_seq_length=128). Its architecture and its vocabulary are used, unless
# ALBERT_CONFIG_FILE and SPM_MODEL_FILE or VOCAB_FILE name others. Rerun the command to resume it;
# finished tasks are not repeated. PYTHON is used as it is if it has TensorFlow; otherwise .venv is
# made.
#
# Results: DIR/<task>, DIR/submission (for the benchmark's server), DIR/glue_results.md.
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/environment.sh"

usage() {
  sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

known="cola sst-2 mrpc sts-b qqp mnli qnli rte wnli"
out="glue_output" smoke="" seeds="" tasks=() extra=()
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --smoke) smoke=1; shift ;;
    --seeds=*) seeds="${1#*=}"; shift ;;
    --output_dir=*) out="${1#*=}"; shift ;;
    --output_dir) (($# > 1)) || fail "--output_dir needs a value"; out="$2"; shift 2 ;;
    --*) extra+=("$1"); shift ;;
    *)
      task="$(tr '[:upper:]' '[:lower:]' <<<"$1")"
      [[ " $known " == *" $task "* ]] || fail "unknown task $1; there are: $known"
      tasks+=("$task")
      shift
      ;;
  esac
done
[[ -n "$out" ]] || fail "--output_dir is empty"
out="${out%/}"
# shellcheck disable=SC2206
((${#tasks[@]})) || tasks=($known)
if [[ -z "$smoke" ]]; then
  # Before minutes of installation, not after.
  glue="${GLUE_DIR:-${ALBERT_ROOT:+$ALBERT_ROOT/glue}}"
  [[ -n "$glue" ]] || fail "set GLUE_DIR to the folder that holds CoLA, SST-2, ..."
  [[ -d "$glue" ]] || fail "GLUE_DIR: no such directory: $glue"
  if [[ -n "${ALBERT_HUB_MODULE_HANDLE:-}" ]]; then
    [[ -z "${INIT_CHECKPOINT:-}" ]] || fail "set one of ALBERT_HUB_MODULE_HANDLE and INIT_CHECKPOINT"
  else
    [[ -n "${INIT_CHECKPOINT:-}" ]] || fail "set ALBERT_HUB_MODULE_HANDLE or INIT_CHECKPOINT (see --help)"
  fi
fi
export PYTHONPATH="$repository${PYTHONPATH:+:$PYTHONPATH}"
if [[ -n "$seeds" ]]; then
  directories=""
  for seed in ${seeds//,/ }; do
    bash "${BASH_SOURCE[0]}" ${smoke:+--smoke} "--output_dir=$out/seed-$seed" "--seed=$seed" \
      "${tasks[@]}" ${extra[@]+"${extra[@]}"}
    directories+="${directories:+,}$out/seed-$seed"
  done
  "${PYTHON:-$repository/.venv/bin/python}" "$repository/scripts/glue_report.py" "--directory=$directories"
  exit
fi
mkdir -p "$out/.steps" || fail "cannot create $out"

if [[ -n "${PYTHON:-}" ]] && "$PYTHON" -c \
  'import importlib.util as u, sys; sys.exit(u.find_spec("tensorflow") is None)' 2>/dev/null; then
  python="$PYTHON"
else
  ensure_environment
fi
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
root="$repository/" input_file="" total_steps=${#tasks[@]}
[[ " ${tasks[*]} " != *" mnli "* ]] || total_steps=$((total_steps + 2))
[[ -z "$smoke" ]] || total_steps=$((total_steps + 1))
# shellcheck source=scripts/steps.sh
source "$repository/scripts/steps.sh"

if [[ -n "$smoke" ]]; then
  made="$out/smoke"
  step make_glue_smoke "made-up words" "$python" "${root}scripts/maintainers/make_glue_smoke.py" "--output_dir=$made"
  glue="$made/glue"
  INIT_CHECKPOINT="$made/encoder/model.ckpt-best" ALBERT_HUB_MODULE_HANDLE=""
  extra=(--max_seq_length=32 --train_step=4 --warmup_step=1 --save_checkpoints_steps=2
    --train_batch_size=8 --eval_batch_size=16 --predict_batch_size=16 ${extra[@]+"${extra[@]}"})
fi

if [[ -n "${ALBERT_HUB_MODULE_HANDLE:-}" ]]; then
  encoder=("--albert_hub_module_handle=$ALBERT_HUB_MODULE_HANDLE")
  architecture=("${encoder[@]}")
else
  given=(${SPM_MODEL_FILE:+"--spm_model_file=$SPM_MODEL_FILE"} ${VOCAB_FILE:+"--vocab_file=$VOCAB_FILE"})
  if [[ -f "$INIT_CHECKPOINT.index" ]]; then
    folder="$(dirname "$INIT_CHECKPOINT")"
    if ((${#given[@]} == 0)); then
      models=("$folder"/*.model)
      if [[ -f "${models[0]}" ]]; then
        ((${#models[@]} == 1)) || fail "several *.model in $folder: set SPM_MODEL_FILE"
        given=("--spm_model_file=${models[0]}")
      else
        [[ -f "$folder/vocab.txt" ]] || fail "no *.model and no vocab.txt in $folder: set SPM_MODEL_FILE"
        given=("--vocab_file=$folder/vocab.txt")
      fi
    fi
    architecture=("--albert_config_file=${ALBERT_CONFIG_FILE:-$folder/albert_config.json}" "${given[@]}")
    encoder=("${architecture[@]}" "--init_checkpoint=$INIT_CHECKPOINT")
  else  # the directory, archive or name of a model, which has all that is needed
    encoder=(${ALBERT_CONFIG_FILE:+"--albert_config_file=$ALBERT_CONFIG_FILE"}
      ${given[@]+"${given[@]}"} "--init_checkpoint=$INIT_CHECKPOINT")
    architecture=("${encoder[@]}")
  fi
fi

# folder_of TASK: the task's folder under GLUE_DIR.
folder_of() {
  case "$1" in
    cola) echo CoLA ;;
    mismnli) echo MNLI ;;
    ax) echo diagnostic ;;
    *) tr '[:lower:]' '[:upper:]' <<<"$1" ;;
  esac
}

# classify TASK FLAG...: one run_classifier command, made once for these data.
classify() {
  local task="$1" data
  shift
  data="$glue/$(folder_of "$task")"
  compgen -G "$data/*.tsv" >/dev/null || fail "no *.tsv in $data"
  step "$task" "data $(digest "$data"/*.tsv)" \
    "$python" -m albert.run_classifier "$@" "--data_dir=$glue" "--output_dir=$out/$task"
  mkdir -p "$out/submission"
  find "$out/$task" -maxdepth 1 -name '*.tsv' ! -name test_results.tsv ! -name submit_results.tsv \
    -exec cp {} "$out/submission/" \;
}

# with_mnli TASK FLAG...: another test of the classifier that mnli has trained.
with_mnli() {
  local task="$1"
  shift
  classify "$task" "--flagfile=${root}configs/glue/mnli.flags" "--task_name=$task" --nodo_train "$@" \
    "${architecture[@]}" ${extra[@]+"${extra[@]}"} "--checkpoint=$out/mnli"
}

for task in "${tasks[@]}"; do
  classify "$task" "--flagfile=${root}configs/glue/$task.flags" "${encoder[@]}" \
    ${extra[@]+"${extra[@]}"}
  if [[ "$task" == mnli ]]; then
    with_mnli mismnli
    if [[ -f "$glue/diagnostic/diagnostic.tsv" ]]; then
      with_mnli ax --nodo_eval
    else
      step_number=$((step_number + 1))
      echo "[$step_number/$total_steps] ax: left out, no $glue/diagnostic/diagnostic.tsv"
    fi
  fi
done

echo
"$python" "$repository/scripts/glue_report.py" "--directory=$out"
