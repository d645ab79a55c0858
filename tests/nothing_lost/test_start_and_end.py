"""How a command starts and ends: TensorFlow's messages, closed pipes, threads."""

import logging
import os
import subprocess
import sys
import threading

import jobs
from helpers import REPO

from albert.cli import flags

TALKING = """
import os, sys, types
os.write(2, b"failed call to cuInit: no device\\nfirst\\n")
print("second", file=sys.stderr)
os.write(2, b"third, without an end")
config = types.SimpleNamespace(list_physical_devices=lambda: os.write(2, b"\\nfourth\\n"))
"""
IMPORT = "from albert.cli import flags; flags.import_tensorflow(); import os; os.write(2, b'after\\n')"


def python(*arguments, **options):
    path = os.pathsep.join([*options.pop("path", ()), str(REPO)])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], stderr=subprocess.PIPE, check=False, env=environment, cwd=REPO,
        **options,
    )


def import_fake(folder, code):
    """Runs `import_tensorflow` with `code` as the tensorflow package."""
    (folder / "tensorflow").mkdir(exist_ok=True)
    (folder / "tensorflow/__init__.py").write_text(code)
    return python("-c", IMPORT, path=[str(folder)])


def test_sequences_of_several_lengths_bring_no_advice_of_tensorflows():
    flags.import_tensorflow()
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


def test_start_up_noise_is_left_out_and_all_else_passed_on_in_its_order(tmp_path):
    done = import_fake(tmp_path, TALKING)
    assert done.returncode == 0
    assert done.stderr == b"first\nsecond\nthird, without an end\nfourth\nafter\n"
    failing = import_fake(tmp_path, "import os; os.write(2, b'said\\n'); raise ImportError('why')")
    assert failing.returncode == 1
    assert failing.stderr.startswith(b"said\n") and b"why" in failing.stderr


def test_a_reader_that_goes_away_is_no_traceback():
    for arguments, end in (
        (["-m", "albert.run_pretraining", "--help"], (0, b"")),
        (["-m", "albert.model_info", "--albert_config_file=configs/albert*.json"],
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
