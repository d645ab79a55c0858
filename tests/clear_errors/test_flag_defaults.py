"""The flags are the public interface: the original's names with the original's defaults."""

import math

import pytest

from albert import (
    create_pretraining_data,
    export_checkpoints,
    export_to_tfhub,
    run_classifier,
    run_pretraining,
    run_race,
    run_squad_v1,
    run_squad_v2,
    run_token_classifier,
)
from albert.cli import flags

# Of every command that trains (spec 7.1, 9.1 and 11.1).
SHARED = {
    "output_dir": None, "init_checkpoint": None, "albert_config_file": None,
    "keep_checkpoint_max": 5, "iterations_per_loop": 1000, "use_tpu": False, "tpu_name": None,
    "tpu_zone": None, "gcp_project": None, "master": None, "num_tpu_cores": 8,
    "max_seq_length": 512,
}
SQUAD = SHARED | {
    "spm_model_file": None, "vocab_file": None, "train_file": None, "predict_file": None,
    "train_feature_file": None, "predict_feature_file": None, "predict_feature_left_file": None,
    "albert_hub_module_handle": None, "do_lower_case": True, "max_seq_length": 384,
    "doc_stride": 128, "max_query_length": 64, "do_train": False, "do_predict": False,
    "train_batch_size": 32, "predict_batch_size": 8, "learning_rate": 5e-5,
    "num_train_epochs": 3.0, "warmup_proportion": 0.1, "save_checkpoints_steps": 1000,
    "n_best_size": 20, "max_answer_length": 30,
}
ORIGINAL = {
    run_squad_v1: SQUAD | {"use_einsum": True, "export_dir": None},
    run_squad_v2: SQUAD | {"start_n_top": 5, "end_n_top": 5, "dropout_prob": 0.1},
    run_pretraining: SHARED | {
        "input_file": None, "max_predictions_per_seq": 20, "do_train": True, "do_eval": False,
        "train_batch_size": 4096, "eval_batch_size": 64, "optimizer": "lamb", "poly_power": 1.0,
        "num_warmup_steps": 3125, "start_warmup_step": 0, "save_checkpoints_steps": 5000,
        "max_eval_steps": 100, "init_from_group0": False, "masked_lm_budget": 0.0,
        "learning_rate": 0.00176, "num_train_steps": 125000,
    },
    run_classifier: SHARED | {
        "data_dir": None, "task_name": None, "spm_model_file": None, "vocab_file": None,
        "cached_dir": None, "albert_hub_module_handle": None, "do_lower_case": True,
        "do_train": False, "do_eval": False, "do_predict": False, "train_batch_size": 32,
        "eval_batch_size": 8, "predict_batch_size": 8, "learning_rate": 5e-5, "train_step": 1000,
        "warmup_step": 0, "save_checkpoints_steps": 1000, "optimizer": "adamw",
        "export_dir": None, "threshold_to_export": math.nan,
    },
    run_race: SHARED | {
        "data_dir": None, "task_name": "race", "spm_model_file": None, "vocab_file": None,
        "train_file": None, "eval_file": None, "predict_file": None, "do_lower_case": True,
        "albert_hub_module_handle": None, "dropout_prob": 0.1, "max_qa_length": 128,
        "num_keep_checkpoint": 5, "high_only": False, "middle_only": False, "do_train": True,
        "do_eval": True, "do_predict": False, "train_batch_size": 32, "eval_batch_size": 8,
        "predict_batch_size": 8, "learning_rate": 1e-5, "train_step": 12000, "warmup_step": 1000,
        "save_checkpoints_steps": 100,
    },
    create_pretraining_data: {
        "input_file": None, "output_file": None, "vocab_file": None, "spm_model_file": None,
        "input_file_mode": "r", "do_lower_case": True, "do_whole_word_mask": True,
        "do_permutation": False, "favor_shorter_ngram": True, "random_next_sentence": False,
        "max_seq_length": 512, "ngram": 3, "max_predictions_per_seq": 20, "random_seed": 12345,
        "dupe_factor": 40, "masked_lm_prob": 0.15, "short_seq_prob": 0.1,
    },
    export_checkpoints: {
        "albert_directory": None, "checkpoint_name": "model.ckpt-best", "do_lower_case": True,
        "export_path": None,
    },
    export_to_tfhub: {
        "albert_directory": None, "checkpoint_name": "model.ckpt-best", "do_lower_case": True,
        "use_einsum": True, "export_path": None, "export_preprocessor_path": None,
        "export_text_embedding_path": None, "text_embedding": "pooled", "max_seq_length": None,
    },
}


@pytest.mark.parametrize("command", ORIGINAL, ids=lambda c: c.__name__)
def test_every_flag_of_the_original_is_there_with_its_default(command):
    values = flags.to_dict(flags.parse(command.define_flags, ["command"]))
    for name, default in ORIGINAL[command].items():
        assert name in values, name
        both_nan = isinstance(default, float) and math.isnan(default) and math.isnan(values[name])
        assert both_nan or values[name] == default, name


def test_a_flag_means_the_same_to_run_token_classifier_as_to_run_classifier():
    ours, theirs = (
        flags.to_dict(flags.parse(command.define_flags, ["command"]))
        for command in (run_token_classifier, run_classifier)
    )
    assert {name: ours[name] for name in ours if name in theirs} == {
        name: theirs[name] for name in theirs if name in ours
    }
    assert set(ours) - set(theirs) == {"scheme"}


@pytest.mark.parametrize("written", [["--do_train=true"], ["--do_train"]])
def test_booleans_are_written_in_each_of_absls_ways(written):
    assert flags.parse(run_classifier.define_flags, ["command", *written]).do_train
    assert not flags.parse(run_classifier.define_flags, ["command", "--nodo_train"]).do_train
    assert not flags.parse(run_classifier.define_flags, ["command", "--do_train=false"]).do_train
