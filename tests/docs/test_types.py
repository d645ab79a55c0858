"""Type hints for users who type-check: the names are there."""

import ast

from helpers import REPO

import albert


def test_the_names_with_types_are_those_of_the_package():
    tree = ast.parse((REPO / "albert/__init__.pyi").read_text())
    names = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom)
             for alias in node.names}
    assert names == set(dir(albert)) - {"__version__"}
    for name in names:
        getattr(albert, name)
