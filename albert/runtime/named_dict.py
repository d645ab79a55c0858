"""Dicts whose values have two names each, ours and another library's, and are attributes too."""

import functools
from collections.abc import Mapping
from typing import Any


class NamedDict(dict[str, Any]):
    """A dict that finds its values under `also`, {another name: ours}, and as attributes."""

    also: Mapping[str, str] = {}

    def __new__(cls, *_: Any, **__: Any) -> "NamedDict":
        _tree_for_keras(cls)
        return super().__new__(cls)

    def __missing__(self, name: str) -> Any:
        if (ours := self.also.get(name, name)) not in self:
            raise KeyError(name)
        return self[ours]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no {name!r} among {', '.join(self)}") from None


@functools.cache
def _tree_for_keras(kind: type[NamedDict]) -> None:
    """Registers these dicts with Keras, which maps them to plain ones.

    Keras's losses know the outputs of a model in plain dicts alone.
    """
    import optree  # a dependency of Keras; only here: every command would take longer to start

    def flatten(values: NamedDict) -> tuple[list[Any], tuple[str, ...], tuple[str, ...]]:
        return *_flatten(values), tuple(sorted(values))

    optree.register_pytree_node(
        kind, flatten, lambda names, values: dict(zip(names, values, strict=True)), namespace="keras"
    )


@functools.cache
def trees_for_jax() -> None:
    """Registers the same dicts with JAX, which does not know subclasses of `dict`; imports JAX."""
    import jax

    for kind in NamedDict.__subclasses__():
        jax.tree_util.register_pytree_node(
            kind, _flatten, lambda names, values, kind=kind: kind(zip(names, values, strict=True))
        )


def _flatten(values: NamedDict) -> tuple[list[Any], tuple[str, ...]]:
    names = tuple(sorted(values))
    return [values[name] for name in names], names
