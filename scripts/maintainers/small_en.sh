#!/usr/bin/env bash
# Makes the model small_en again: text, vocabulary, records, and pretraining in two runs.
#
#   bash scripts/maintainers/small_en.sh SIMPLEWIKI FICTION FOLDER
#
# SIMPLEWIKI and FICTION are texts, one paragraph per line, with blank lines between documents;
# compressed or not. All output goes to FOLDER; rerun the command to resume where it stopped.
#
# The first run reads single sentences. One layer becomes two at step 3,000; the learning rate and
# masking rise after step 1,171; from step 3,023 the rate falls. The second run starts from the first
# one's weights. It reads pairs, and from step 4,097 pairs and single sentences.
#
# The shipped model was made this way, with two exceptions: its sentences were split slightly
# differently, and in the second run the rate began to fall 57 steps later.
set -euo pipefail
(($# == 3)) || { sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
simplewiki="$(realpath "$1")" fiction="$(realpath "$2")" folder="$(realpath -m "$3")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
recipe=configs/small_en
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
mkdir -p "$folder"

text() {
  [[ -f "$folder/$2/stats.json" ]] || python -m albert.prepare_text "--input_file=$1" \
    "--output_dir=$folder/$2"
}
records() { # of single sentences, or of pairs
  [[ -f "$folder/$1.tfrecord.manifest.json" ]] || python -m albert.create_pretraining_data \
    "--flagfile=$recipe/$1_records.flags" "--input_file=$corpus" \
    "--spm_model_file=$folder/spm.model" "--output_file=$folder/$1.tfrecord" \
    "--eval_output_file=$folder/$1.heldout.tfrecord"
}
# The released weights were made with at most 8, then 10 masked tokens per sentence, which reduced the
# masked fraction of the longest ones.
train_on_sentences() {
  python -m albert.run_pretraining "--flagfile=$recipe/run_pretraining.flags" \
    "--input_file=$folder/single.tfrecord" "--eval_input_file=$folder/single.heldout.tfrecord" \
    --train_batch_size=128 --masked_lm_budget=0.2 --depth_schedule=1:3000 \
    --num_warmup_steps=300 "--output_dir=$folder/of_sentences" "$@"
}
train_on_pairs() { # and on what else $1 says
  python -m albert.run_pretraining "--flagfile=$recipe/run_pretraining.flags" \
    "--init_checkpoint=$folder/of_sentences" "--input_file=$folder/pair.tfrecord$1" \
    "--eval_input_file=$folder/pair.heldout.tfrecord" \
    --learning_rate=0.006 --num_warmup_steps=150 --last_masked_lm_budget=0.15 \
    "--output_dir=$folder/pretrained" "${@:2}"
}

text "$simplewiki" simplewiki
text "$fiction" fiction
corpus="$folder/simplewiki/corpus.txt,$folder/fiction/corpus.txt"
[[ -f "$folder/spm.model" ]] || python -m albert.train_sentencepiece "--input=$corpus" \
  "--model_prefix=$folder/spm" --vocab_size=8000
records single
records pair
train_on_sentences --until_step=1171 \
  --learning_rate=0.003 --num_train_steps=40000 --num_decay_steps=3000
train_on_sentences --until_step=3023 \
  --learning_rate=0.008 --num_train_steps=40000 --num_decay_steps=3000
train_on_sentences --until_step=5635 \
  --learning_rate=0.008 --num_train_steps=6800 --num_decay_steps=3800
train_on_sentences \
  --learning_rate=0.008 --num_train_steps=6400 --num_decay_steps=3400
train_on_pairs "" --train_batch_size=64 --masked_lm_budget=0.25 \
  --num_train_steps=8000 --num_decay_steps=7500 --until_step=4097
train_on_pairs ",$folder/single.tfrecord" --train_batch_size=112 --masked_lm_budget=0.22 \
  --num_train_steps=8000 --num_decay_steps=7500 --until_step=4500
train_on_pairs ",$folder/single.tfrecord" --train_batch_size=112 --masked_lm_budget=0.22 \
  --num_train_steps=6600 --num_decay_steps=6100
python -m albert.convert_hf "--albert_directory=$folder/pretrained" --dtype=float16 \
  "--spm_model_file=$folder/spm.model" \
  "--output_dir=$folder/small_en"
