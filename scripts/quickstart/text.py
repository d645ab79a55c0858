"""Prepares the quickstart's text: a corpus, and a labelled task made from it.

  python scripts/quickstart/text.py --output_dir=text [--input_file=my_text.txt]

Without --input_file the text is the documentation of the running Python: the language reference that
help() shows, and the docstrings of the standard library. The text is held in memory.

Writes to --output_dir:
  corpus.txt  one sentence per line, documents separated by blank lines
  classification/SST-2/{train,dev,test}.tsv  two balanced classes in SST-2's layout: is a sentence from
      Python's library (1) or its language reference (0); of other texts, from their second or first half

The sentences of dev and test are not in corpus.txt: an encoder pretrained on it has not seen them.
"""

import ast
import importlib
import os
import pathlib
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator

from albert.cli import flags
from albert.errors import DataError
from albert.storage import files
from albert.text import corpus_files
from albert.text.documents import ReadingCounts, read_documents
from albert.text.sentences import split_sentences

Documents = list[list[str]]  # the sentences of each

_ROWS = {"dev": (1000, 0.1), "test": (600, 0.05), "train": (400, 0.85)}  # at most, and of all sentences
_MIN_WORDS, _MAX_WORDS = 6, 18  # of a sentence of the task
_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data"}
_MARKUP = [
    (re.compile(r":[a-z:+]+:`[~!]?([^`<]+?)(?:\s*<[^>]*>)?`"), r"\1"),  # :func:`name`
    (re.compile(r"``?([^`]+)``?_{0,2}|(?<!\w)'([\w.]+)'"), r"\1\2"),
    (re.compile(r"(?<![\w*])\*{1,2}(\w[^*]*?)\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"\s*\[\d+\]_?"), ""),  # footnotes
]
_BLOCKS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)]) )")
_CODE = re.compile(r"[=<>{}\\|@#$~]|::|\.\.\.|__|https?:")
_WORD = re.compile(r"[\"'(]*[A-Za-z]+(?:['’-][A-Za-z]+)*[\"')]*[.,;:!?]*")


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "input_file", None, "Text files.", use="texts")
    flags.define("path", values, "output_dir", None, "Output directory. Required.", use="directory")
    for name, (rows, _) in _ROWS.items():
        flags.define("integer", values, f"num_{name}", rows, f"Maximum rows of {name}.tsv.",
                     lower_bound=1)
    flags.define("integer", values, "seed", 12345, "Seed of all random numbers.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    parts = _halves(values.input_file) if values.input_file else python_docs()
    rows = make_task(parts, {name: values[f"num_{name}"].value for name in _ROWS}, random.Random(values.seed))
    held_out = {sentence for name in ("dev", "test") for sentence, _ in rows[name]}
    documents = [[s for s in document if s not in held_out] for part in parts for document in part]
    corpus_file = os.path.join(values.output_dir, "corpus.txt")
    with files.atomic_write(corpus_file) as stream:
        stream.write("\n".join("".join(f"{s}\n" for s in document) for document in documents if document))
    for name, labelled in rows.items():
        with files.atomic_write(f"{values.output_dir}/classification/SST-2/{name}.tsv") as stream:
            stream.write("index\tsentence\n" if name == "test" else "sentence\tlabel\n")
            stream.writelines(f"{i}\t{sentence}\n" if name == "test" else f"{sentence}\t{label}\n"
                              for i, (sentence, label) in enumerate(labelled))
    flags.log.info("%s: %s words; task: %s rows", corpus_file, f"{sum(len(s.split()) for d in documents for s in d):,}",
                   ", ".join(f"{len(rows[name])} {name}" for name in rows))


def make_task(parts: tuple[Documents, Documents], sizes: dict[str, int], rng: random.Random):
    """Returns {set: [(sentence, label)]}, half of each part, no sentence twice; label 1 is the second part.

    Raises:
      DataError: there is too little text.
    """
    seen: set[str] = set()
    usable = []
    for part in parts:
        sentences = dict.fromkeys(s for document in part for s in document if s not in seen)
        seen.update(sentences)
        usable.append([s for s in sentences if _MIN_WORDS <= len(s.split()) <= _MAX_WORDS and "\t" not in s])
        rng.shuffle(usable[-1])
    count, start, rows = min(map(len, usable)), 0, {}
    for name, (_, share) in _ROWS.items():
        half = min(sizes[name] // 2, int(count * share))
        if half < 5:
            raise DataError(f"too little text for the labelled task: {count} sentences of {_MIN_WORDS} to "
                            f"{_MAX_WORDS} words in one half; use a longer text")
        rows[name] = [(s, label) for label, part in enumerate(usable) for s in part[start : start + half]]
        rng.shuffle(rows[name])
        start += half
    return rows


def _halves(patterns: str) -> tuple[Documents, Documents]:
    """Returns the documents in the first and in the second half of a text; one document is cut."""
    paths = corpus_files.find(patterns, "input_file")
    documents = [[sentence for line in document for sentence in split_sentences(line)]
                 for document in read_documents(paths, str, ReadingCounts())]
    if len(documents) == 1:
        middle = len(documents[0]) // 2
        documents = [documents[0][:middle], documents[0][middle:]]
    middle = (len(documents) + 1) // 2
    return documents[:middle], documents[middle:]


# --- Python's documentation ---


def python_docs(stdlib: str | None = None) -> tuple[Documents, Documents]:
    """Returns the language reference and the library's docstrings; repeated sentences are left out.

    Docstrings are read from the source files, so no module is imported.
    """
    stdlib = stdlib or sysconfig.get_path("stdlib")
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:  # some distributions package it separately
        raise DataError("this Python has no documentation: pass --input_file with your text") from error
    seen: set[str] = set()

    def document(texts) -> list[str]:
        found = [s for text in texts for s in sentences_of(text)]
        fresh = [s for s in dict.fromkeys(found) if s not in seen]
        seen.update(fresh)
        return fresh

    reference = [document([topics[name]]) for name in sorted(topics)]
    library = [document(docstrings(path)) for path in sorted(pathlib.Path(stdlib).rglob("*.py"))
               if not _NOT_LIBRARY & set(path.relative_to(stdlib).parts)]
    return [d for d in reference if len(d) > 1], [d for d in library if len(d) > 1]


def docstrings(path: pathlib.Path) -> Iterator[str]:
    """Yields the docstrings of a module, its classes and functions."""
    try:
        with warnings.catch_warnings():  # invalid escapes in old sources
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # a template or a file for another Python
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def sentences_of(text: str) -> Iterator[str]:
    """Yields the English sentences of documentation; rather loses one than keeps code."""
    for block in _BLOCKS.split(text.expandtabs()):
        block = " ".join(block.split())
        for pattern, replacement in _MARKUP:
            block = pattern.sub(replacement, block)
        for sentence in split_sentences(block):
            words = sentence.split()
            plain = sum(bool(_WORD.fullmatch(word)) for word in words)
            if (sentence[0].isupper() and sentence[-1] in ".!?" and not _CODE.search(sentence)
                    and plain >= max(4, 0.7 * len(words))):
                yield sentence


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
