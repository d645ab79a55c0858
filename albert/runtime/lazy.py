"""Modules that are imported when they are first used."""

import importlib
from typing import Any


class LazyModule:
    """A module that takes seconds to import, for code that a command runs before it needs it."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
