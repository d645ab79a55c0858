"""How a command starts and ends: TensorFlow's messages, closed pipes, threads."""

import logging
import os
import signal
import subprocess
import sys
import threading

import jobs
import pytest
from helpers import REPO, assert_one_clear_line

from albert import engines


def python(*arguments, **options):
    path = os.pathsep.join([*options.pop("path", ()), str(REPO)])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], stderr=subprocess.PIPE, check=False, env=environment, cwd=REPO,
        **options,
    )


def test_sequences_of_several_lengths_bring_no_advice_of_tensorflows():
    engines.import_tensorflow()
    import tensorflow as tf

    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger, graph = logging.getLogger("tensorflow"), tf.function(lambda x: x)
    logger.addHandler(handler)
    for length in range(20):
        graph(tf.zeros([length]))
    logger.warning("another")
    logger.removeHandler(handler)
    assert said == ["another"]


def test_a_process_that_dies_while_tensorflow_is_imported_leaves_its_last_words(tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text(
        "import os; os.write(2, b'needs AVX\\n'); os.kill(os.getpid(), 6)")
    done = python("-c", "from albert import engines; engines.import_tensorflow()", path=[str(tmp_path)])
    assert done.returncode == -signal.SIGABRT and b"needs AVX\n" in done.stderr


def test_a_reader_that_goes_away_is_no_traceback():
    for arguments, end in (
        (["-m", "albert.run_pretraining", "--help"], (0, b"")),
        (["scripts/model_info.py", "--albert_config_file=configs/albert*.json"],
         (2, b"error: the standard output was closed early\n")),
    ):
        read, write = os.pipe()
        os.close(read)
        done = python(*arguments, stdout=write)
        os.close(write)
        assert (done.returncode, done.stderr) == end


def test_commands_run_outside_the_main_thread(begun, tmp_path):
    codes = []

    def work():
        codes.append(jobs.create_data(*jobs.data_flags(tmp_path, num_processes=2)))
        codes.append(jobs.pretrain(*begun.flags, "--do_eval", "--num_train_steps=10"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [0, 0]


@pytest.mark.parametrize("command, module", [
    ("fill_mask", "absl"), ("fill_mask", "onnxruntime"), ("run_classifier", "tensorflow"),
])
def test_ctrl_c_while_a_command_imports_what_it_needs_is_one_line(command, module, tmp_path):
    (tmp_path / "late" / module).mkdir(parents=True)
    (tmp_path / "late" / module / "__init__.py").write_text(
        "import sys, time; print('importing', file=sys.stderr, flush=True); time.sleep(100)")
    flags = ["--model=small_en", "A [MASK]."]
    if command == "run_classifier":
        flags = [*jobs.classifier_flags(tmp_path), "--do_train"]
    process = subprocess.Popen(
        [sys.executable, "-m", f"albert.{command}", *flags], cwd=REPO, text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'late'}:{REPO}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A shell that starts the tests in the background makes them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert "importing\n" in iter(process.stderr.readline, "")
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=100)
    assert (process.returncode, out, rest) == (130, "", "stopped by SIGINT\n")


def test_a_missing_file_is_found_before_a_model_is_downloaded(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "good").write_text("")
    model, out = "--init_checkpoint=albert/albert-base-v2", f"--output_dir={tmp_path / 'out'}"
    for command, flags, name in (
        (jobs.classify, ["--train_file=typo.csv"], "train_file"),
        (jobs.classify, [f"--train_file={tmp_path}/good", "--dev_file=typo.csv"], "dev_file"),
        (jobs.classify, [f"--train_file={tmp_path}/good", "--test_file=typo.csv"], "test_file"),
        (jobs.classify, ["--data_dir=typo", "--task_name=sst-2", "--do_train"], "data_dir"),
        (jobs.race, ["--data_dir=typo"], "data_dir"),
        (jobs.label_words, ["--data_dir=typo", "--do_train"], "data_dir"),
        (jobs.squad, ["--train_file=typo.json", "--do_train"], "train_file"),
        (jobs.squad, ["--predict_file=typo.json", "--do_predict"], "predict_file"),
    ):
        assert command(*flags, model, out) == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert f"--{name}: no such file or directory: typo" in line


def test_the_error_of_a_missing_model_names_one_that_everybody_has(tmp_path, capsys):
    (tmp_path / "my.csv").write_text("text,label\na,b\n")
    assert jobs.classify(f"--train_file={tmp_path}/my.csv", f"--output_dir={tmp_path}/out") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "--init_checkpoint is required: small_en" in line
