"""Prepares the quickstart's text: a corpus, and a labelled task made from it.

  python scripts/quickstart/text.py --output_dir=text [--input_file=my_text.txt]

Without --input_file the text is the documentation of the running Python: the language reference
that help() shows and the docstrings of the standard library. It is held in memory.

Writes to --output_dir:
  corpus.txt  one sentence per line, documents separated by blank lines
  stats.json  counts of what was read and written
  classification/SST-2/{train,dev,test}.tsv  two balanced classes in SST-2's layout: is a sentence
      from Python's library (1) or its language reference (0); of other texts, from their first half

The dev and test sentences are left out of corpus.txt, so that an encoder pretrained on it has not
seen them.
"""

import itertools
import logging
import os
import random
import sys

import python_docs
from labelled_task import Document, make_task, write_task

from albert.cli import flags
from albert.errors import DataError
from albert.storage import files
from albert.text import corpus_files
from albert.text.documents import ReadingCounts, read_documents, split_documents

log = logging.getLogger("albert")

# The labelled task holds out documents: a text with fewer is cut into pseudo-documents.
_MIN_DOCUMENTS = 3
_PSEUDO_DOCUMENT = 50  # sentences
_MIN_SENTENCES = 30


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "input_file", None, "Text files.", use="texts")
    flags.define("path", values, "output_dir", None, "Output directory. Required.", use="directory")
    for name, rows in (("train", 400), ("dev", 1000), ("test", 600)):
        flags.define("integer", values, f"num_{name}", rows, f"Maximum rows of {name}.tsv.",
                     lower_bound=1)
    flags.define("integer", values, "seed", 12345, "Seed of all random numbers.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    documents = _read(values.input_file) if values.input_file else python_docs.read_python_docs()
    rng = random.Random(f"{values.seed}/labelled task")
    task = make_task(documents, (values.num_train, values.num_dev, values.num_test), rng)
    write_task(os.path.join(values.output_dir, "classification", "SST-2"), task)
    corpus_file = os.path.join(values.output_dir, "corpus.txt")
    with files.atomic_write(corpus_file) as stream:
        stream.write("\n".join(
            "".join(f"{sentence}\n" for sentence in document.sentences) for document in task.rest
        ))
    corpus = _count(task.rest)
    files.write_json(os.path.join(values.output_dir, "stats.json"), {
        "source": values.input_file or f"documentation of Python {sys.version.split()[0]}",
        "text": _count(documents),
        "corpus": corpus,
        "task": {name: len(getattr(task, name)) for name in ("train", "dev", "test")} | {
            "dev_documents": [document.name for document in task.dev_documents],
            "test_documents": [document.name for document in task.test_documents],
        },
    })
    log.info("wrote %s: %s words, %s sentences, %s documents", corpus_file, *(
        f"{corpus[name]:,}" for name in ("words", "sentences", "documents")
    ))
    log.info("wrote the labelled task: %d train, %d dev, %d test rows",
             len(task.train), len(task.dev), len(task.test))


def _read(patterns: str) -> list[Document]:
    """Returns the documents of a text; those in its first half have the part "first"."""
    paths = corpus_files.find(patterns, "input_file")
    texts = split_documents(list(read_documents(paths, str, ReadingCounts())), "en")
    sentences = sum(map(len, texts))
    if sentences < _MIN_SENTENCES:
        raise DataError(f"{patterns}: {sentences} sentences; at least {_MIN_SENTENCES} are needed")
    if len(texts) < _MIN_DOCUMENTS:
        size = min(_PSEUDO_DOCUMENT, sentences // 10)
        texts = [list(part) for text in texts for part in _batched(text, size)]
        log.warning("%s: fewer than %d documents; cut into %d pseudo-documents of about %d "
                    "sentences, so that some can be held out. Put a blank line between documents "
                    "if the text has any", patterns, _MIN_DOCUMENTS, len(texts), size)
    half = (len(texts) + 1) // 2
    return [
        Document(f"document {number}", "first" if number <= half else "second", text)
        for number, text in enumerate(texts, 1)
    ]


def _batched(items: list[str], size: int):
    iterator = iter(items)
    return iter(lambda: list(itertools.islice(iterator, size)), [])


def _count(documents: list[Document]) -> dict[str, int]:
    sentences = [sentence for document in documents for sentence in document.sentences]
    return {"documents": len(documents), "sentences": len(sentences),
            "words": sum(len(sentence.split()) for sentence in sentences)}


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
