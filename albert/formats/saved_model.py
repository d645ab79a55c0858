"""Writes SavedModels."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert.errors import UserError, first_line

MAIN_FILE = "saved_model.pb"  # without it, a directory isn't a SavedModel


def save(module: tf.Module, directory: str, signatures: Mapping[str, Any]) -> None:
    """Writes a SavedModel; the caller publishes the directory.

    Raises:
      UserError: it could not be written (disk full, say).
    """
    try:
        tf.saved_model.save(module, directory, signatures=signatures)
    except (tf.errors.OpError, OSError) as error:
        raise UserError(f"cannot write a SavedModel: {first_line(error)}") from error
