#!/usr/bin/env bash
# Makes the model small_en again: text, vocabulary, records, and pretraining in four parts.
#
#   bash scripts/maintainers/small_en.sh SIMPLEWIKI FICTION FOLDER
#
# SIMPLEWIKI and FICTION are texts, a paragraph a line, a blank line between documents; packed or
# not. FOLDER takes all that is made; the same command goes on where it was stopped.
#
# Rate and masks were raised after the first part. One layer became two at step 3,000, and from there
# on the rate fell: towards step 6,800 first, then faster. Sentences are split a little otherwise now
# than they were for the model that is shipped.
set -euo pipefail
(($# == 3)) || { sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
simplewiki="$(realpath "$1")" fiction="$(realpath "$2")" folder="$(realpath -m "$3")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
recipe=configs/small_en
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
mkdir -p "$folder"

text() {
  [[ -f "$folder/$2/stats.json" ]] || python -m albert.prepare_text "--input_file=$1" \
    "--output_dir=$folder/$2" --noreserve_task_documents --label=neighbours
}
train() {
  python -m albert.run_pretraining "--flagfile=$recipe/run_pretraining.flags" \
    "--input_file=$folder/train.tfrecord" "--eval_input_file=$folder/heldout.tfrecord" \
    "--output_dir=$folder/pretrained" "$@"
}

text "$simplewiki" simplewiki
text "$fiction" fiction
corpus="$folder/simplewiki/corpus.txt,$folder/fiction/corpus.txt"
[[ -f "$folder/spm.model" ]] || python -m albert.train_sentencepiece "--input=$corpus" \
  "--model_prefix=$folder/spm" --vocab_size=8000
[[ -f "$folder/train.tfrecord.manifest.json" ]] || python -m albert.create_pretraining_data \
  "--flagfile=$recipe/records.flags" "--input_file=$corpus" "--spm_model_file=$folder/spm.model" \
  "--output_file=$folder/train.tfrecord" "--eval_output_file=$folder/heldout.tfrecord"
train --until_step=1171 --max_predictions_per_seq=8 \
  --learning_rate=0.003 --num_train_steps=40000 --num_decay_steps=3000
train --until_step=3023 --max_predictions_per_seq=10 \
  --learning_rate=0.008 --num_train_steps=40000 --num_decay_steps=3000
train --until_step=5635 --max_predictions_per_seq=10 \
  --learning_rate=0.008 --num_train_steps=6800 --num_decay_steps=3800
train --max_predictions_per_seq=10 \
  --learning_rate=0.008 --num_train_steps=6400 --num_decay_steps=3400
python -m albert.convert_hf "--albert_directory=$folder/pretrained" --dtype=float16 \
  "--spm_model_file=$folder/spm.model" \
  "--output_dir=$folder/small_en"
