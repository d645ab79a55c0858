"""The engines, TensorFlow and JAX: which one computes, and its late import.

Sessions and the commands that answer texts need neither.
"""

import contextlib
import importlib
import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import albert
from albert.errors import FlagError

ENGINES = ("tensorflow", "jax")


def is_installed(package: str) -> bool:
    """Whether a package, such as an engine, is installed."""
    return importlib.util.find_spec(package) is not None


def choose(values: Any = None) -> str:
    """Returns the engine of a command's flags, else of KERAS_BACKEND, else one that is installed.

    Raises:
      FlagError: albert does not support it, or it is not installed.
    """
    of_flags = values and (values.engine or ("jax" if values.use_tpu else None))
    engine = of_flags or os.environ.get("KERAS_BACKEND")
    if not engine:
        engine = "jax" if is_installed("jax") and not is_installed("tensorflow") else "tensorflow"
    require(engine, f"--engine={engine}" if of_flags else f"KERAS_BACKEND={engine}")
    return engine


def require(engine: str, origin: str) -> None:
    """Checks an engine that `origin`, a setting or a command, names.

    Raises:
      FlagError: albert does not support it, or it is not installed.
    """
    if engine not in ENGINES:
        raise FlagError(f"{origin}: albert runs on the tensorflow and jax backends of Keras. Set "
                        "KERAS_BACKEND to one of them before Keras is imported")
    if not is_installed(engine):
        extra = "albert-keras[jax], albert-keras[jax-cuda] or albert-keras[jax-tpu]"
        remedy = extra if engine == "jax" else "tensorflow, or set KERAS_BACKEND=jax"
        raise FlagError(f"{origin}: it is not installed: install {remedy}")


def require_backend() -> None:
    """Checks Keras's backend; before Keras is imported, chooses it.

    Raises:
      FlagError: albert does not support it, or it is not installed.
    """
    if "keras" in sys.modules:
        engine = sys.modules["keras"].backend.backend()
        require(engine, f"Keras was imported with the backend {engine}")
    else:
        os.environ["KERAS_BACKEND"] = choose()


# === Imports, which take seconds ===


def set_environment() -> None:
    """Sets the environment variables that TensorFlow and Keras read at import, unless they are set."""
    has_gpu = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))  # the latter in WSL
    # TensorFlow reports as an error that there is no GPU.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if has_gpu else "3")
    if not has_gpu:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    if os.uname().machine == "x86_64":
        # By default TensorFlow takes oneDNN's matrix products only where there are instructions
        # for neural networks; on AVX2 alone they are faster too (a step of the base model with
        # 8 x 128 takes 4.2 instead of 5.2 s, AMD EPYC, version 0.2).
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


@contextlib.contextmanager
def _ending_at_interrupt() -> Iterator[None]:
    """Ctrl-C in the block ends a command at once: a half-imported engine would make an error of it."""
    before = signal.getsignal(signal.SIGINT)
    is_command = before is signal.default_int_handler and albert.is_program()
    if not is_command or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, albert.end_at_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class LazyModule:
    """A module that takes seconds to import, for code that a command runs before it needs it."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def import_tensorflow() -> None:
    """Imports TensorFlow, and Keras with it."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    set_environment()
    with _ending_at_interrupt():
        import tensorflow as tf

        tf.config.list_physical_devices()  # its first call looks for accelerators
    # It warns if lengths of sequences differ.
    logging.getLogger("tensorflow").addFilter(lambda x: "triggered tf.function retracing" not in str(x.msg))


def start(engine: str) -> None:
    """Imports an engine, and Keras with it."""
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
