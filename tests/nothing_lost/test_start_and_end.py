"""How a command starts and ends: TensorFlow's own words, pipes that close, threads."""

import os
import subprocess
import sys
import threading

import pytest
from helpers import REPO

import jobs

# What a processor without AVX makes of TensorFlow, and a broken driver.
DYING = """
import os
os.write(2, b"oneDNN custom operations are on\\n")
os.write(2, b"The TensorFlow library was compiled to use AVX instructions, but these aren't "
            b"available on your machine.\\n\\xff last words")
os.kill(os.getpid(), {signal})
"""
TALKING = """
import os, sys, types
os.write(2, b"failed call to cuInit: no device\\nfirst\\n")
print("second", file=sys.stderr)
os.write(2, b"third, without an end")
config = types.SimpleNamespace(list_physical_devices=lambda: os.write(2, b"\\nfourth\\n"))
"""
IMPORT = "from albert.cli import flags; flags.import_tensorflow(); import os; os.write(2, b'after\\n')"


def import_fake(folder, code, **environment):
    """Runs `import_tensorflow` beside a package of that name which is `code`."""
    (folder / "tensorflow").mkdir()
    (folder / "tensorflow/__init__.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, check=False,
        env=os.environ | {"PYTHONPATH": f"{folder}:{REPO}"} | environment, cwd=folder,
    )


def test_rows_of_several_lengths_bring_no_advice_of_tensorflows():
    code = (
        "from albert.cli import flags; flags.import_tensorflow(); import tensorflow as tf\n"
        "graph = tf.function(lambda x: x)\n"
        "for length in range(20): graph(tf.zeros([length]))\n"
        "tf.get_logger().warning('another')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True,
        env=os.environ | {"PYTHONPATH": str(REPO)},
    )
    assert "retracing" not in done.stderr and "another" in done.stderr


@pytest.mark.parametrize("signal", ["SIGILL", "SIGABRT", "SIGKILL", "SIGSEGV"])
def test_the_last_words_of_a_tensorflow_that_crashes_are_passed_on(signal, tmp_path):
    number = getattr(__import__("signal"), signal)
    done = import_fake(tmp_path, DYING.format(signal=int(number)))
    assert done.returncode == -number
    assert b"compiled to use AVX instructions" in done.stderr and b"last words" in done.stderr
    assert b"oneDNN" not in done.stderr


def test_start_up_noise_is_left_out_and_all_else_told_in_its_order(tmp_path):
    done = import_fake(tmp_path, TALKING)
    assert done.returncode == 0
    assert done.stderr == b"first\nsecond\nthird, without an end\nfourth\nafter\n"


def test_without_the_filters_program_everything_is_told(tmp_path):
    done = import_fake(tmp_path, TALKING, PATH=str(tmp_path))
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        b"failed call to cuInit: no device", b"first", b"second", b"third, without an end",
        b"fourth", b"after",
    ]


def test_an_import_that_fails_is_a_traceback_as_ever(tmp_path):
    done = import_fake(tmp_path, "import os; os.write(2, b'said\\n'); raise ImportError('why')")
    assert done.returncode == 1 and done.stderr.startswith(b"said\n") and b"why" in done.stderr


def test_filtering_takes_no_more_than_fifty_milliseconds(tmp_path):
    (tmp_path / "tensorflow.py").write_text(TALKING)
    code = "import time; from albert.cli import flags; start = time.perf_counter();" \
           "flags.import_tensorflow(); print(time.perf_counter() - start)"
    seconds = [
        float(subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f"{tmp_path}:{REPO}"},
        ).stdout) for _ in range(5)
    ]
    assert min(seconds) < 0.05


# --- The standard output ---


@pytest.mark.parametrize("arguments", [
    ["-m", "albert.run_pretraining", "--help"],
    ["-m", "albert.model_info", "--albert_config_file=configs/albert*.json"],
], ids=["help", "results"])
def test_a_reader_that_goes_away_is_no_traceback(arguments):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, *arguments], stdout=write, stderr=subprocess.PIPE, text=True, cwd=REPO,
        check=False,
    )
    os.close(write)
    if "--help" in arguments:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 2
        assert done.stderr == "error: the standard output was closed before the end\n"


# --- Threads ---


def test_commands_run_outside_the_main_thread(tmp_path):
    codes = {}

    def work():
        codes["data"] = jobs.create_data(*jobs.data_flags(tmp_path, num_processes=2))
        codes["pretraining"] = jobs.pretrain(*jobs.pretraining_flags(
            tmp_path, num_train_steps=2, num_warmup_steps=0
        ))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == {"data": 0, "pretraining": 0}
