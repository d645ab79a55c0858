"""Dicts whose values have two names each, ours and another library's, and are attributes too."""

from collections.abc import Mapping
from typing import Any


class NamedDict(dict[str, Any]):
    """A dict that finds its values under `also`, {another name: ours}, and as attributes."""

    also: Mapping[str, str] = {}

    def __missing__(self, name: str) -> Any:
        if (ours := self.also.get(name, name)) not in self:
            raise KeyError(name)
        return self[ours]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no {name!r} among {', '.join(self)}") from None


def as_tree(kind: type[NamedDict]) -> type[NamedDict]:
    """Registers these dicts with Keras, to be treated like plain ones."""
    import optree  # a dependency of Keras

    def flatten(values: NamedDict) -> tuple[list[Any], tuple[str, ...], tuple[str, ...]]:
        names = tuple(sorted(values))
        return [values[name] for name in names], names, names

    optree.register_pytree_node(
        kind, flatten, lambda names, values: kind(zip(names, values, strict=True)), namespace="keras"
    )
    return kind
