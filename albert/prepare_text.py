"""Prepares pretraining text and a small labelled task from any text, or from Python's own docs.

  python -m albert.prepare_text --input_file=my_text.txt --output_dir=text

Without --input_file the text is the documentation of the running Python: the
language reference that help() shows and the docstrings of the standard library.

Writes to --output_dir:
  corpus.txt                                one sentence a line, blank line between documents
  classification/SST-2/{train,dev,test}.tsv a task with two balanced classes in SST-2's layout
  stats.json                                what was read and written, and the flags

The sentences of the dev and test sets come from the ends of the documents (with
--label=part, if they are long enough) or from documents of their own, and, unless
--noreserve_task_documents, they are left out of corpus.txt, so that an encoder
pretrained on it has not seen them either.
"""

import os
import random
import sys

from albert.cli import flags
from albert.data import files
from albert.own_text import labelled_task, python_docs, text_corpus


def define_flags(values: flags.FlagValues) -> None:
    flags.define("string", values, "input_file", None,
                 "Text (UTF-8, or UTF-16 with its mark; packed or not): one sentence or paragraph "
                 "a line, blank line between documents. "
                 "Without it: Python's own documentation.")
    flags.define("string", values, "output_dir", None, "Where the files go. Required.")
    flags.define("enum", values, "label", "part",
                 "What the labelled task asks: are the words in order, do they belong, or which "
                 "part of the text a sentence is from.",
                 enum_values=list(labelled_task.LABELS))
    flags.define("integer", values, "num_train", 400, "Rows of train.tsv, at most.", least=1)
    flags.define("integer", values, "num_dev", 1000, "Rows of dev.tsv, at most.", least=1)
    flags.define("integer", values, "num_test", 600, "Rows of test.tsv, at most.", least=1)
    flags.define("bool", values, "reserve_task_documents", True,
                 "Leave the documents of dev and test out of corpus.txt.")
    flags.define("integer", values, "seed", 12345, "Everything random derives from it.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    corpus_file = os.path.join(values.output_dir, "corpus.txt")
    files.refuse_overwriting(corpus_file, values.input_file)
    text = _read(values.input_file)
    sizes = (values.num_train, values.num_dev, values.num_test)
    rng = random.Random(f"{values.seed}/labelled task")
    task = labelled_task.make_task(text.documents, values.label, sizes, rng)
    corpus = task.rest if values.reserve_task_documents else text.documents
    text_corpus.write_corpus(corpus_file, corpus)
    labelled_task.write_task(os.path.join(values.output_dir, "classification", "SST-2"), task)
    stats = {
        "source": values.input_file or f"documentation of Python {sys.version.split()[0]}",
        "bytes": text.bytes,
        "invalid_utf8_lines": text.invalid_utf8_lines,
        "pseudo_documents": text.is_cut,
        "text": _counts(text.documents),
        "corpus": _counts(corpus),
        "task": {
            "label": values.label,
            "train": len(task.train), "dev": len(task.dev), "test": len(task.test),
            "dev_documents": [d.name for d in task.dev_documents],
            "test_documents": [d.name for d in task.test_documents],
        },
        "flags": flags.to_dict(values),
    }
    files.write_json(os.path.join(values.output_dir, "stats.json"), stats)
    counts = stats["corpus"]
    flags.log.info("%s: %d documents, %d sentences, %d words for pretraining; task %r: %d train, "
                   "%d dev, %d test rows", values.output_dir, counts["documents"],
                   counts["sentences"], counts["words"], values.label, len(task.train),
                   len(task.dev), len(task.test))


def _read(path: str | None) -> text_corpus.Text:
    if path is not None:
        return text_corpus.read_text_file(path)
    documents = python_docs.read_python_docs()
    size = sum(len(s.encode()) + 1 for d in documents for s in d.sentences)
    return text_corpus.Text(documents, size, invalid_utf8_lines=0, is_cut=False)


def _counts(documents: list[text_corpus.Document]) -> dict[str, int]:
    return {
        "documents": len(documents),
        "sentences": sum(len(d.sentences) for d in documents),
        "words": text_corpus.count_words(documents),
    }


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
