"""The engines that compute, and which of them are installed. It imports none."""

import importlib.util

ENGINES = ("tensorflow", "jax")


def is_installed(engine: str) -> bool:
    """Whether an engine could be imported."""
    return importlib.util.find_spec(engine) is not None


def has_tpu_compiler() -> bool:
    """Whether XLA's compiler for TPUs is installed, and JAX to call it. It needs no TPU."""
    return is_installed("jax") and is_installed("libtpu")


def default_engine() -> str:
    """Returns the engine where nobody names one."""
    is_jax = is_installed("jax") and not is_installed("tensorflow")
    return "jax" if is_jax else "tensorflow"
