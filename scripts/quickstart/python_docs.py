"""Python's own documentation as pretraining text: available everywhere, with nothing to download.

Three sources: the language reference that `help()` shows (`pydoc_data.topics`),
the docstrings of the modules compiled into the interpreter, and those of the
rest of the standard library, read from its source files with `ast`, so that
none of its modules is imported and none can have side effects.
"""

import ast
import importlib
import itertools
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator

import prose
from labelled_task import Document

from albert.errors import DataError

# Parts of the library that are not documentation, not Python's, or fixtures.
_SKIPPED_DIRS = frozenset(
    "test tests idle_test site-packages dist-packages __pycache__ lib-dynload pydoc_data".split()
)
# A document ends at the next section, class or function once it is this
# long, so that entire documents can be held out without losing much text.
_FULL_SENTENCES = 40
_MIN_SENTENCES = 2  # sentence-order prediction needs a next sentence


def read_python_docs(stdlib: str | None = None) -> list[Document]:
    """Returns the documents of the running Python (or of the library at `stdlib`), in fixed order.

    Repeated sentences are left out: licences and method summaries recur all
    over the library, and a repeated sentence in a held-out document would have
    been seen in training.

    Raises:
      DataError: this Python has neither topics nor library sources.
    """
    stdlib = stdlib or sysconfig.get_path("stdlib")
    seen: set[str] = set()
    documents: list[Document] = []
    for name, part, sections in itertools.chain(_topics(), _builtin_modules(), _modules(stdlib)):
        documents += _cut(name, part, sections, seen)
    if not documents:
        raise DataError(
            f"this Python has no documentation to read (looked in pydoc_data and {stdlib}); "
            "pass --input_file with a text of your own"
        )
    return documents


def _cut(name: str, part: str, sections: list[str], seen: set[str]) -> list[Document]:
    """Returns documents of about `_FULL_SENTENCES` sentences, cut only between sections."""
    cut: list[list[str]] = [[]]
    for section in sections:
        if len(cut[-1]) >= _FULL_SENTENCES:
            cut.append([])
        for sentence in prose.sentences_of(section):
            if sentence.lower() not in seen:
                seen.add(sentence.lower())
                cut[-1].append(sentence)
    if len(cut) > 1 and len(cut[-1]) < _MIN_SENTENCES:
        remainder = cut.pop()
        cut[-1] += remainder
    return [
        Document(f"{name}#{i}" if i else name, part, sentences)
        for i, sentences in enumerate(cut)
        if len(sentences) >= _MIN_SENTENCES
    ]


def _topics() -> Iterator[tuple[str, str, list[str]]]:
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError:  # some distributions package it separately
        return
    for key in sorted(topics):
        yield f"topic:{key}", "reference", _by_heading(topics[key])


def _by_heading(text: str) -> list[str]:
    """Cuts a page before each line that is underlined."""
    sections: list[list[str]] = [[]]
    for line in text.split("\n"):
        if prose.is_underline(line) and sections[-1]:
            sections.append([sections[-1].pop()])
        sections[-1].append(line)
    return ["\n".join(section) for section in sections if section]


def _modules(stdlib: str) -> Iterator[tuple[str, str, list[str]]]:
    for path in _source_files(stdlib):
        name = os.path.relpath(path, stdlib)[: -len(".py")].replace(os.sep, ".")
        with open(path, "rb") as stream:
            source = stream.read()
        try:
            with warnings.catch_warnings():  # invalid escapes in old sources are not our concern
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue  # a template or a file for another Python: it has no usable docstrings
        yield f"module:{name}", "library", list(_docstrings(tree))


def _builtin_modules() -> Iterator[tuple[str, str, list[str]]]:
    """Yields the documents of modules without a source file: builtins, math and so on."""
    for name in sorted(sys.builtin_module_names):
        if not name.startswith("_xx"):  # experiments, some of which warn when imported
            module = importlib.import_module(name)
            yield f"builtin:{name}", "library", list(_live_docstrings(module))


def _live_docstrings(value: object, depth: int = 0) -> Iterator[str]:
    """Yields the docstrings of a module and its members, classes with their methods."""
    if isinstance(getattr(value, "__doc__", None), str):
        yield value.__doc__
    if depth == 0 or (depth == 1 and isinstance(value, type)):
        for _, member in sorted(vars(value).items()):
            yield from _live_docstrings(member, depth + 1)


def _source_files(stdlib: str) -> list[str]:
    paths = []
    for directory, subdirectories, names in os.walk(stdlib):
        subdirectories[:] = [d for d in subdirectories if d not in _SKIPPED_DIRS]
        paths += [os.path.join(directory, n) for n in names if n.endswith(".py")]
    return sorted(paths)


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Yields the docstrings of a module, its classes and functions, in source order."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, documented):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield from _docstrings(child)
