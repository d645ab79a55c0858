"""Flags are the public interface: the original's names and defaults, and ranges of numbers."""

import importlib
import math
import re
import signal

import jobs
import pytest
from helpers import REPO, assert_one_clear_line, run_here

import albert
from albert import (
    create_pretraining_data,
    export_checkpoints,
    export_to_tfhub,
    predict,
    run_classifier,
    run_pretraining,
    run_race,
    run_squad_v1,
    run_squad_v2,
    run_token_classifier,
)
from albert import errors
from albert.cli import flags
from albert.errors import FlagError

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
        "use_einsum": True, "export_path": None,
    },
}


def values_of(command, *given) -> flags.FlagValues:
    return flags.parse(command.define_flags, ["command", *given])


def test_every_flag_of_the_original_is_there_with_its_default():
    for command, defaults in ORIGINAL.items():
        values = flags.to_dict(values_of(command))
        for name, default in defaults.items():
            assert values[name] == default or default != default and values[name] != values[name], (
                f"{command.__name__} --{name}"
            )


def test_a_flag_means_the_same_to_run_token_classifier_as_to_run_classifier():
    ours, theirs = (flags.to_dict(values_of(c)) for c in (run_token_classifier, run_classifier))
    assert set(ours) - set(theirs) == {"scheme"}
    assert all(ours[name] == theirs[name] for name in set(ours) & set(theirs))


def test_a_misspelt_flag_is_answered_with_ours_and_a_missing_one_is_named(capsys):
    assert run_here(run_classifier, "--learning_rat=3") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert line == "error: Unknown command line flag 'learning_rat'. Did you mean: learning_rate ?"
    assert run_here(run_classifier) == 2
    assert "--train_file is required: a table" in assert_one_clear_line(capsys.readouterr().err)


def test_an_error_names_the_argument_in_python_and_the_flag_on_the_command_line(capsys):
    for opened in (albert.AlbertModel.from_pretrained, albert.AlbertTokenizer.from_pretrained,
                   albert.open_session, albert.from_pretrained):
        with pytest.raises(errors.CheckpointError, match="^path: no directory or checkpoint 'nowhere'"):
            opened("nowhere")
    with pytest.raises(FlagError, match="^max_seq_length=999 exceeds"):
        albert.open_session("small_en", max_seq_length=999)
    for flag, said in (("--model=nowhere", "--model: no directory"),
                       ("--max_seq_length=999", "--max_seq_length=999 exceeds")):
        assert run_here(predict, "--model=small_en", flag, f"--input_file={__file__}") == 2
        assert assert_one_clear_line(capsys.readouterr().err).startswith(f"error: {said}")


def test_a_tilde_is_the_home_directory_also_after_an_equals_sign(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    values = flags.parse(create_pretraining_data.define_flags, [
        "x", "--input_file=~/a.txt,~/b*", "--output_file", "~/out", "--spm_model_file=a~/b"])
    assert values.input_file == "/home/ada/a.txt,/home/ada/b*" and values.output_file == "/home/ada/out"
    assert values.spm_model_file == "a~/b"


def test_flags_of_which_one_would_win_are_refused_as_they_were_typed():
    values = values_of(run_classifier, "--nodo_train", "--seed=3", "--export_dir=")
    flags.refuse_together(values, "do_train", "export_dir", "init_checkpoint")
    with pytest.raises(FlagError, match="pass only one of --nodo_train and --seed$"):
        flags.refuse_together(values, "do_train", "seed")


def test_each_way_to_end_badly_has_its_exit_code(capsys):
    for error, code, said in (
        (errors.DataError("a"), 2, "error: a\n"),
        (errors.TrainingDivergedError("b"), 3, "error: b\n"),
        (errors.WorkerLostError("c"), 75, "error: c\n"),
        (errors.Preempted("d", signal.SIGTERM), 143, "d\n"),
        (FileNotFoundError(2, "No such file", "e"), 2, "error: e: No such file\n"),
        (OSError(5, "our bug"), 1, "OSError: [Errno 5] our bug\n"),
    ):
        def main(values, error=error):
            raise error

        assert flags.run_command("", lambda values: None, main, ["command"]) == code
        assert capsys.readouterr().err.endswith(said)


# --- Numbers ---

HAS_FLAGS = re.compile(r"^(?:def )?define_flags\b|import define_flags", re.MULTILINE)
IS_COMMAND = re.compile(r"^cli = flags\.command\(|^def main\(values: flags\.FlagValues", re.M)
COMMANDS = sorted(
    path.relative_to(REPO) for folder in ("albert", "scripts/maintainers")
    for path in (REPO / folder).glob("*.py")
    if HAS_FLAGS.search(text := path.read_text("utf-8")) and IS_COMMAND.search(text)
)
assert len(COMMANDS) >= 19
# Thresholds, and seeds that become text or bits of any length.
ANY_NUMBER = {"na_prob_thresh", "null_score_diff_threshold", "random_seed",
              "threshold_to_export"}
SEEDS_AS_TEXT = {"train_sentencepiece"}


def ends(flag):
    """Returns the numbers at the ends of a flag's range, and those just outside it."""
    is_whole, parser = flag.parser.flag_type() == "int", flag.parser
    within, outside = [], ["", "x", "1e"]
    for end, way in ((parser.lower_bound, -1), (parser.upper_bound, 1)):
        if end is not None:
            beyond = end + way if is_whole else math.nextafter(end, way * math.inf)
            # Either end of a float's range may be excluded by a validator.
            within.append(end if is_whole else math.nextafter(end, -way * math.inf))
            outside.append(beyond)
    return within, outside + (["nan", "inf", "-inf"] if flag.validators or is_whole else [])


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_every_number_has_its_range_held_before_anything_is_done(path, capsys):
    name, done = path.stem, []
    is_ours = path.parent.name == "albert"
    module = importlib.import_module(f"albert.{name}") if is_ours else jobs.script(name)
    assert flags.run_command(module.__doc__ or "", module.define_flags, None, ["x", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith((module.__doc__ or "").partition("\n")[0]) and "--flagfile" in shown
    values = flags.FlagValues()
    module.define_flags(values)
    for flag in (values[name] for name in values):
        if flag.parser.flag_type() not in ("int", "float"):
            continue
        may_be_any = flag.name in ANY_NUMBER or flag.name == "seed" and name in SEEDS_AS_TEXT
        has_range = flag.validators or (flag.parser.lower_bound, flag.parser.upper_bound) != (None, None)
        assert bool(has_range) != may_be_any, flag.name
        within, outside = ends(flag)
        for value in [*within, *outside]:
            argv = ["command", f"--{flag.name}={value}"]
            code = flags.run_command("", module.define_flags, lambda *_: done.append(True), argv)
            assert code == (0 if value in within else 2) and bool(done) == (value in within), argv
            done.clear()
            if value not in within:
                line = assert_one_clear_line(capsys.readouterr().err)
                assert re.match(r"error: --\w+=", line), line


def test_help_has_each_flag_once_in_a_group_with_one_default_and_fits_a_terminal():
    for name in (path.stem for path in COMMANDS if path.parent.name == "albert"):
        module, values = importlib.import_module(f"albert.{name}"), flags.FlagValues()
        module.define_flags(values)
        text = flags.help_text(module.__doc__, values)
        assert flags.help_text(module.__doc__, values) == text, name
        _, *groups = re.split(r"^(\S.*):\n(?=  --)", text, flags=re.M)
        groups = {title: re.findall(r"^  --(?:\[no\])?(\w+):", shown, re.M)
                  for title, shown in zip(groups[::2], groups[1::2], strict=True)}
        assert sorted(sum(groups.values(), [])) == sorted(values), name
        assert list(groups)[0] == "Usually needed", name
        # Examples stay as they are, to be pasted.
        assert all(len(line) <= 80 or f"\n{line}\n" in module.__doc__ for line in text.splitlines()), name
        # Of several defaults, help would print the first.
        assert not [flag for flag in values
                    if values[flag].default not in (None, "", []) and "Default:" in values[flag].help], name
        without_effect = {flag for flag in values if "No effect" in values[flag].help}
        assert set(groups.get("Without effect", ())) == without_effect, name
        if name == "run_classifier":
            assert {"train_file", "init_checkpoint", "output_dir"} <= set(groups["Usually needed"])
            assert "label_column" in groups["Data"] and "optimizer" in groups["Model and training"]
            assert "engine" in groups["Checkpoints and machine"]


def test_an_open_end_of_a_range_is_outside_it(capsys):
    for command, name, *outside in (
        (run_pretraining, "learning_rate", 0, "nan"), (run_race, "dropout_prob", 1, -0.1),
        (run_classifier, "dev_share", 0, 1),
    ):
        for value in outside:
            assert run_here(command, f"--{name}={value}") == 2
            line = assert_one_clear_line(capsys.readouterr().err)
            assert re.match(rf"error: --{name}=[-\w.]+: ", line)


@pytest.mark.parametrize("library", ["tensorflow", "jax", "numpy"])
def test_a_device_without_enough_memory_is_one_line_that_says_what_to_do(library, capsys):
    arrays = importlib.import_module({"jax": "jax.numpy"}.get(library, library))

    def main(values):
        if library == "tensorflow":  # which would try for ten seconds
            raise arrays.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        arrays.ones([1 << 22, 1 << 22])  # 64 TiB

    assert flags.run_command("", lambda values: None, main, ["command"]) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "does not fit the device" in line and "--gradient_accumulation_steps" in line
