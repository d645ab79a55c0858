#!/usr/bin/env bash
# Makes the model small_en again: text, records, and pretraining in one run of changing parts.
#
#   bash scripts/maintainers/small_en.sh SIMPLEWIKI FICTION FOLDER
#
# SIMPLEWIKI and FICTION are texts, one paragraph per line, with blank lines between documents;
# compressed or not. All output goes to FOLDER; rerun the command to resume where it stopped. The
# vocabulary is that of the package.
#
# One layer is trained for 1,200 steps. From it all four start, which read single sentences up to step
# 10,645, with 20 % of the tokens masked, then pairs, with 15 %, and from step 14,000 pairs and single
# sentences.
#
# The shipped model was made by the recipe of version 0.3, in one run whose layers were added at
# steps 1,200, 3,200 and 5,200; from pairs on, the share of masked tokens fell to 15 %. Its pairs were
# made without --strict_sentence_order, which cost it on pairs that differ in order alone.
set -euo pipefail
(($# == 3)) || { sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
simplewiki="$(realpath "$1")" fiction="$(realpath "$2")" folder="$(realpath -m "$3")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
recipe=configs/small_en vocabulary=albert/models/small_en/spiece.model
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
mkdir -p "$folder"

text() {
  [[ -f "$folder/$2/stats.json" ]] || python -m albert.prepare_text "--input_file=$1" \
    "--output_dir=$folder/$2"
}
records() { # of single sentences, or of pairs
  [[ -f "$folder/$1.tfrecord.manifest.json" ]] || python -m albert.create_pretraining_data \
    "--flagfile=$recipe/$1_records.flags" "--input_file=$corpus" \
    "--spm_model_file=$vocabulary" \
    "--output_file=$folder/$1.tfrecord" "--eval_output_file=$folder/$1.heldout.tfrecord"
}
train() { # the run $1 to step $2 on $3 examples of the records $4
  local input=()
  for name in $4; do input+=("$folder/$name.tfrecord"); done
  python -m albert.run_pretraining "--flagfile=$recipe/run_pretraining.flags" \
    "--input_file=$(IFS=,; echo "${input[*]}")" "--output_dir=$folder/$1" \
    "--eval_input_file=$folder/${4%% *}.heldout.tfrecord" \
    "--until_step=$2" "--train_batch_size=$3" "${@:5}"
}

text "$simplewiki" simplewiki
text "$fiction" fiction
corpus="$folder/simplewiki/corpus.txt,$folder/fiction/corpus.txt"
records single
records pair
sed 's/"num_hidden_layers": 4/"num_hidden_layers": 1/' albert/models/small_en/albert_config.json \
  > "$folder/one_layer.json"
train one_layer 1200 192 single --learning_rate=0.006 --num_train_steps=1200 \
  "--albert_config_file=$folder/one_layer.json" --init_embeddings=cooccurrence
all() { train pretrained "$@" "--init_checkpoint=$folder/one_layer"; }
all 2883 192 single --learning_rate=0.006 --num_train_steps=15800 --num_decay_steps=11000
all 4000 192 single --learning_rate=0.003 --num_train_steps=15800 --num_decay_steps=11000
all 5798 384 single --learning_rate=0.003 --num_train_steps=15300 --num_decay_steps=11300
all 10645 384 single --learning_rate=0.003 --num_train_steps=17800 --num_decay_steps=13800
all 11462 80 pair --learning_rate=0.003 --num_train_steps=15600 --num_decay_steps=11600 \
  --masked_lm_budget=0.15
all 14000 80 pair --learning_rate=0.0055 --num_train_steps=15600 --num_decay_steps=11600 \
  --masked_lm_budget=0.15
all 15850 240 "pair single" --learning_rate=0.0055 --num_train_steps=15850 \
  --num_decay_steps=11850 --masked_lm_budget=0.15
python -m albert.convert_hf "--albert_directory=$folder/pretrained" --dtype=float16 \
  "--spm_model_file=$vocabulary" "--output_dir=$folder/small_en"
# transformers computes in the type that this names: in float16, its answers would differ.
sed -i 's/"dtype": "float16"/"dtype": "float32"/' "$folder/small_en/config.json"
