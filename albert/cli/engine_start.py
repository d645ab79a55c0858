"""Imports TensorFlow and JAX late."""

import contextlib
import logging
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator

import albert
from albert.errors import FlagError


def set_environment() -> None:
    """Sets the environment variables that TensorFlow and Keras read at import, unless they are set."""
    if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):  # the latter in WSL
        # TensorFlow reports as an error that there is no GPU.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if platform.machine() in ("x86_64", "AMD64"):
        # By default TensorFlow takes oneDNN's matrix products only where there are instructions
        # for neural networks; on AVX2 alone they are faster too (a step of the base model with
        # 8 x 128 takes 4.2 instead of 5.2 s, AMD EPYC, version 0.2).
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


@contextlib.contextmanager
def _ending_at_interrupt() -> Iterator[None]:
    """Ctrl-C in the block ends a command at once: a half-imported engine would make an error of it."""
    before = signal.getsignal(signal.SIGINT)
    is_command = before is signal.default_int_handler and albert.is_program()
    if is_command and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, albert.end_at_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
    else:
        yield


def import_tensorflow() -> None:
    """Imports TensorFlow, and Keras with it."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    set_environment()
    with _ending_at_interrupt():
        import tensorflow as tf

        tf.config.list_physical_devices()  # its first call looks for accelerators
    logging.getLogger("tensorflow").addFilter(_is_not_retracing_warning)


def start(engine: str) -> None:
    """Imports an engine, tensorflow or jax, and Keras with it."""
    if "keras" in sys.modules:
        loaded = sys.modules["keras"].backend.backend()
        if loaded != engine:
            raise FlagError(f"Keras was imported with {loaded} before: set KERAS_BACKEND={engine}")
    os.environ["KERAS_BACKEND"] = engine
    if engine == "tensorflow":
        import_tensorflow()
        import keras
    elif "keras" not in sys.modules:
        # To set a seed, Keras tries to import TensorFlow and remembers the result. Importing it
        # would take seconds, and the accelerators' memory.
        is_absent = sys.modules.setdefault("tensorflow", None) is None
        with _ending_at_interrupt():
            import keras

            keras.utils.set_random_seed(0)
        if is_absent:
            del sys.modules["tensorflow"]


def _is_not_retracing_warning(record: logging.LogRecord) -> bool:
    """Whether a TensorFlow message is anything but the warning that sequence lengths differ."""
    return "triggered tf.function retracing" not in str(record.msg)
