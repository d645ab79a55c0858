"""Checks which engines, TensorFlow and JAX, are installed. Imports neither.

Sessions and the commands that answer texts need neither.
"""

import importlib.util
import os
import sys

from albert.errors import FlagError

ENGINES = ("tensorflow", "jax")


def is_installed(engine: str) -> bool:
    """Whether an engine is installed."""
    return importlib.util.find_spec(engine) is not None


def default_engine() -> str:
    """Returns TensorFlow, or JAX if it alone is installed."""
    is_jax = is_installed("jax") and not is_installed("tensorflow")
    return "jax" if is_jax else "tensorflow"


def require(engine: str, origin: str) -> None:
    """Checks an engine that the user chose.

    Args:
      origin: the setting that names the engine, for the error.

    Raises:
      FlagError: albert does not support it, or it is not installed.
    """
    if engine not in ENGINES:
        raise FlagError(
            f"{origin}: albert runs on the tensorflow and jax backends of Keras. Set "
            "KERAS_BACKEND to one of them before Keras is imported"
        )
    if not is_installed(engine):
        extra = "albert-keras[jax], albert-keras[jax-cuda] or albert-keras[jax-tpu]"
        remedy = extra if engine == "jax" else "tensorflow, or set KERAS_BACKEND=jax"
        raise FlagError(f"{origin}: it is not installed: install {remedy}")


def require_backend() -> None:
    """Checks Keras's backend, even before Keras is imported; the default is an installed engine.

    Raises:
      FlagError: albert does not support it, or it is not installed.
    """
    if "keras" in sys.modules:
        engine = sys.modules["keras"].backend.backend()
        require(engine, f"Keras was imported with the backend {engine}")
    else:
        engine = os.environ.get("KERAS_BACKEND") or default_engine()
        require(engine, f"KERAS_BACKEND={engine}")
        os.environ["KERAS_BACKEND"] = engine
