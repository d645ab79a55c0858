#!/usr/bin/env bash
# Makes the model small_en again: records, and pretraining with a teacher.
#
#   bash scripts/maintainers/small_en.sh SIMPLEWIKI FICTION TEACHER FOLDER
#
# SIMPLEWIKI and FICTION are texts, one paragraph per line, with blank lines between documents;
# compressed or not. TEACHER is the directory of all-MiniLM-L6-v2, or its name on the hub. All output
# goes to FOLDER; rerun the command to resume where it stopped. The vocabulary is that of the package:
# the teacher's entries that occur five times in these texts, special tokens and ASCII characters.
#
# The shipped model was planned for 3,600 steps, then for 1,900 (from step 385) and 1,700 (from step 1,113), with
# decays of 1,800, 1,200 and 1,000 steps; up to step 700 its learning rate was constant.
set -euo pipefail
(($# == 4)) || { sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
simplewiki="$(realpath "$1")" fiction="$(realpath "$2")" folder="$(realpath -m "$4")"
teacher="$3"
[[ ! -d "$teacher" ]] || teacher="$(realpath "$teacher")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
recipe=configs/small_en
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
mkdir -p "$folder"

records() { # the file name, then what distinguishes these records
  [[ -f "$folder/$1.tfrecord.manifest.json" ]] || python -m albert.create_pretraining_data \
    "--flagfile=$recipe/records.flags" "--input_file=$simplewiki,$fiction" \
    --vocab_file=albert/models/small_en/vocab.txt \
    "--output_file=$folder/$1.tfrecord" "--eval_output_file=$folder/$1.heldout.tfrecord" "${@:2}"
}

records sentences --single_sentences --split_sentences
records paragraphs --single_sentences
records pairs --split_sentences
python -m albert.run_pretraining "--flagfile=$recipe/run_pretraining.flags" "--teacher=$teacher" \
  --albert_config_file=albert/models/small_en/albert_config.json \
  "--input_file=$folder/sentences.tfrecord,$folder/paragraphs.tfrecord,$folder/pairs.tfrecord" \
  "--eval_input_file=$folder/sentences.heldout.tfrecord" "--output_dir=$folder/pretrained"
python - "$folder" << 'END'
import dataclasses, os, sys
import albert
from albert.formats import pretrained
folder = sys.argv[1]
# Without the head of sentence order, which was not trained.
model = albert.AlbertForMaskedLM.from_pretrained(f"{folder}/pretrained")
model.metadata = dataclasses.replace(
    model.metadata, architecture="AlbertForMaskedLM", max_seq_length=256, task=None)
os.makedirs(f"{folder}/small_en")
source = pretrained.open_path(f"{folder}/pretrained")
pretrained.write(f"{folder}/small_en", model, source.required_tokenizer(), dtype="bfloat16")
END
# transformers computes in the type that this names: in bfloat16, its answers would differ.
sed -i 's/"dtype": "bfloat16"/"dtype": "float32"/' "$folder/small_en/config.json"
