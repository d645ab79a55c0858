"""Imports TensorFlow and JAX late, fast, and without noise."""

import contextlib
import logging
import os
import platform
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator

import albert
from albert.errors import FlagError


def set_environment() -> None:
    """Sets the environment variables that TensorFlow and Keras read at import, unless they are set."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if platform.machine() in ("x86_64", "AMD64"):
        # By default TensorFlow takes oneDNN's matrix products only where there are instructions
        # for neural networks; on AVX2 alone they are faster too (a step of the base model with
        # 8 x 128 takes 4.2 instead of 5.2 s, AMD EPYC, version 0.2).
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


# Printed by TensorFlow on a machine without a GPU, at any log level.
_START_UP_NOISE = (
    "All log messages before absl::InitializeLog", "oneDNN custom operations",
    "Could not find cuda drivers", "failed call to cuInit", "This TensorFlow binary is optimized",
    "To enable the following instructions", "Cannot dlopen some GPU libraries",
)


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Keeps these lines from file descriptor 2; the others appear when the block ends.

    Ctrl-C in the block ends a command at once: a half-imported engine would make an error of it.
    """
    sys.stderr.flush()
    stderr, handler = os.dup(2), signal.getsignal(signal.SIGINT)
    is_command = handler is signal.default_int_handler and albert.is_program() and (
        threading.current_thread() is threading.main_thread())

    def end(*_) -> None:
        os.dup2(stderr, 2)
        albert.end_at_interrupt()

    if is_command:
        signal.signal(signal.SIGINT, end)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            if is_command:
                signal.signal(signal.SIGINT, handler)
            os.close(stderr)
            output.seek(0)
            for line in output:
                if not any(words.encode() in line for words in _START_UP_NOISE):
                    os.write(2, line)


@contextlib.contextmanager
def _lean_imports(*absent: str) -> Iterator[None]:
    """Makes importing an engine in the block faster.

    Hides the `absent` modules from Keras, and those that it needs only for features that no command
    uses.
    """
    hidden = [name for name in ("sklearn", "matplotlib", *absent) if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def import_tensorflow() -> None:
    """Imports TensorFlow without its start-up messages; other messages are passed on.

    They come from C++, straight to file descriptor 2, and no environment variable silences them.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    set_environment()
    if "tensorflow" not in sys.modules:
        with _without_noise(), _lean_imports():
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
        with _lean_imports("tensorflow"):
            import keras

            keras.utils.set_random_seed(0)


def _is_not_retracing_warning(record: logging.LogRecord) -> bool:
    """Whether a TensorFlow message is anything but the warning that sequence lengths differ."""
    return "triggered tf.function retracing" not in str(record.msg)
