"""`albert/` never grows: an addition is paid for by a removal.

`size_budget.json` holds the lines of code that each package may have. A commit that removes code
lowers the numbers; none raises them. To print today's counts as such a file:

    python tests/docs/test_size_budget.py
"""

import ast
import collections
import io
import json
import pathlib
import tokenize

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "albert"
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}


def lines_of_code(source: str) -> int:
    """Returns the number of lines that hold code: no blanks, comments or docstrings."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(lines)


def counts() -> dict[str, int]:
    """Returns the lines of code of each package; `albert` is the whole."""
    found = collections.Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        size = lines_of_code(path.read_text(encoding="utf-8"))
        packages = path.relative_to(PACKAGE).parts[:-1]
        found["albert"] += size
        found[packages[0] if packages else "albert/*.py"] += size
    return found


def test_every_package_is_within_its_budget():
    source = '"""A module."""\n\nX = 1  # one\n# two\ndef f():\n    """Docs."""\n    return """a\nb"""\n'
    assert lines_of_code(source) == 4
    found, budget = counts(), json.loads((HERE / "size_budget.json").read_text())
    assert found.keys() == budget.keys()
    for name, lines in found.items():
        allowed = budget[name]
        assert lines <= allowed, f"{name}: {lines} lines of code, the budget is {allowed}: remove some"


if __name__ == "__main__":
    print(json.dumps(counts(), indent=2))
