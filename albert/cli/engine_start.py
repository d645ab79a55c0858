"""TensorFlow and JAX as the commands import them: quick, and quiet where nothing is wrong.

They are imported when all that can be checked without them has been.
"""

import contextlib
import gc
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence

from albert.errors import FlagError


def set_environment() -> None:
    """Sets what TensorFlow and Keras read when they are imported, unless it is set already."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if platform.machine() in ("x86_64", "AMD64"):
        # By itself TensorFlow takes oneDNN's matrix products only where there are instructions
        # for neural networks; on AVX2 alone they are faster too
        # (docs/evidence/performance_diary.md).
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


# What TensorFlow prints on a sound machine without a GPU, whatever its log level is.
_START_UP_NOISE = (
    "All log messages before absl::InitializeLog", "oneDNN custom operations",
    "Could not find cuda drivers", "failed call to cuInit", "This TensorFlow binary is optimized",
    "To enable the following instructions", "Cannot dlopen some GPU libraries",
)


@contextlib.contextmanager
def _without(noise: Sequence[str]) -> Iterator[None]:
    """Leaves out lines with these words of what is written to file descriptor 2.

    That is done by a process that outlives this one, which may crash without another word.
    """
    patterns = [part for words in noise for part in ("-e", words)]
    try:
        grep = subprocess.Popen(
            ["grep", "-v", "-F", *patterns], stdin=subprocess.PIPE, stdout=2,
            env=os.environ | {"LC_ALL": "C"}, start_new_session=True,  # Ctrl-C is not for it
        )
    except OSError:  # there is no such program here
        yield
        return
    sys.stderr.flush()
    real = os.dup(2)
    with grep.stdin as sink:
        os.dup2(sink.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        os.close(real)
        # It ends at once, unless a process that was started inside the block still writes.
        with contextlib.suppress(subprocess.TimeoutExpired):
            grep.wait(1)


# What Keras imports, where it is there, for parts of it that no command uses: a third of the
# time that importing TensorFlow takes.
_UNUSED_BY_COMMANDS = ("sklearn", "matplotlib")


@contextlib.contextmanager
def _absent(*modules: str) -> Iterator[None]:
    """Lets imports of these fail inside the block, as if they were not installed."""
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def _uncollected(module: str) -> Iterator[None]:
    """Looks for garbage neither while a large module is imported nor, later on, in it.

    It would be a seventh of TensorFlow's time. Nothing changes where the module is there already.
    """
    if module in sys.modules:
        yield
        return
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def import_tensorflow() -> None:
    """Imports TensorFlow without its start-up noise; other messages are passed on.

    They come from C++ straight to file descriptor 2. Where it is imported here for the first time,
    Keras has no scikit-learn wrappers and plots of pictures.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    set_environment()
    with _without(_START_UP_NOISE):
        with _absent(*_UNUSED_BY_COMMANDS), _uncollected("tensorflow"):
            import tensorflow as tf

        tf.config.list_physical_devices()  # its first call looks for accelerators
    logging.getLogger("tensorflow").addFilter(_is_no_advice_on_tracing)


def start(engine: str) -> None:
    """Imports an engine, tensorflow or jax, and Keras with it.

    Raises:
      FlagError: Keras is there already, with another one.
    """
    if "keras" in sys.modules:
        loaded = sys.modules["keras"].backend.backend()
        if loaded != engine:
            raise FlagError(f"Keras was imported with {loaded} before: set KERAS_BACKEND={engine}")
    os.environ["KERAS_BACKEND"] = engine
    if engine == "tensorflow":
        import_tensorflow()
        import keras  # noqa: F401

        return
    # Where a seed is set, Keras imports TensorFlow too, if it is there, and remembers whether it
    # was. It would take seconds here, and the accelerators' memory.
    with _absent(*_UNUSED_BY_COMMANDS, "tensorflow"), _uncollected("keras"):
        import keras

        keras.utils.set_random_seed(0)


def _is_no_advice_on_tracing(record: logging.LogRecord) -> bool:
    """Whether a message of TensorFlow's is another than that rows have several lengths."""
    return "triggered tf.function retracing" not in str(record.msg)
