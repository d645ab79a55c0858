"""Models that come with this package, and short names of released ones. No TensorFlow."""

import os
import re

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "models")


# How Hugging Face's hub named the released models at first.
_RELEASED = re.compile("albert-(base|large|xlarge|xxlarge)-v[12]")


def names() -> list[str]:
    """Returns the names of the models."""
    return sorted(name for name in os.listdir(FOLDER) if os.path.isdir(os.path.join(FOLDER, name)))


def path_of(value: str) -> str:
    """Returns the directory of a named model, the name of a released one on the hub, or the value.

    A file or folder with that name has priority.
    """
    is_name = os.path.basename(value) == value and not os.path.exists(value)
    if is_name and _RELEASED.fullmatch(value):
        return f"albert/{value}"
    return os.path.join(FOLDER, value) if is_name and value in names() else value


def vocabulary_of(value: str) -> str:
    """Returns the vocabulary of a named model, and any other value unchanged."""
    path = path_of(value)
    return value if not os.path.isdir(path) or path == value else os.path.join(path, "vocab.txt")
