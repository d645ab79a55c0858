"""Writes SavedModels."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from albert.errors import UserError, first_line

MAIN_FILE = "saved_model.pb"  # without it, a directory isn't a SavedModel


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Raises a UserError if the SavedModel in the block cannot be written (disk full, say)."""
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        raise UserError(f"cannot write a SavedModel: {first_line(error)}") from error
