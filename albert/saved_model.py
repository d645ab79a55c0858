"""The one place where a SavedModel is written."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert.errors import UserError, first_line


def save(module: tf.Module, directory: str, signatures: Mapping[str, Any]) -> None:
    """Writes a SavedModel; the caller publishes the directory.

    Raises:
      UserError: it could not be written (disk full, say).
    """
    try:
        tf.saved_model.save(module, directory, signatures=signatures)
    except (tf.errors.OpError, OSError) as error:
        reason = first_line(error)
        raise UserError(f"cannot write a SavedModel: {reason}; is the disk full?") from error
