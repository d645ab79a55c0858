"""Prepares pretraining text from any text, or from Python's own documentation.

  python -m albert.prepare_text --input_file=my_text.txt --output_dir=text

Without --input_file the text is the documentation of the running Python: the
language reference that help() shows and the docstrings of the standard library.

Writes to --output_dir:
  corpus.txt  one sentence a line, blank line between documents
  stats.json  what was read, dropped and written, and the flags

With --label it also makes a small labelled task of the text, to try fine-tuning on:
  classification/SST-2/{train,dev,test}.tsv  two balanced classes in SST-2's layout

The dev and test sentences of the task come from the ends of the documents (with
--label=part, if they are long enough) or from documents of their own. They are left out of
corpus.txt, so that an encoder pretrained on it hasn't seen them; --noreserve_task_documents
keeps them. The text is not held in memory. If it has more than 16 million characters, the
labelled task is made of a sample.
"""

import contextlib
import os
import random
import sys
from collections.abc import Iterator

from albert.cli import corpus_flags, flags
from albert.errors import FlagError
from albert.runtime import workers
from albert.storage import files, temporaries
from albert.text import corpus_files, filters, labelled_task, python_docs, text_corpus
from albert.text.documents import ReadingCounts

_OF_TASK = ("num_train", "num_dev", "num_test", "reserve_task_documents")


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "input_file", None,
                 f"The text: {corpus_flags.WHERE}; `-` is the standard input. "
                 "Without it: Python's own documentation.", use="texts")
    corpus_flags.define_flags(values)
    flags.define("bool", values, "split_sentences", True,
                 "Split each line into its sentences. If false, each line is a sentence.")
    flags.define("path", values, "output_dir", None, "Where the files go. Required.",
                 use="directory")
    _define_filters(values)
    flags.define("enum", values, "label", None,
                 "Make a labelled task, too, and what it asks: are the words in order, do they "
                 "belong, or which part of the text a sentence is from. Default: no task.",
                 enum_values=list(labelled_task.LABELS))
    flags.define("integer", values, "num_train", 400, "With --label: most rows of train.tsv.",
                 least=1)
    flags.define("integer", values, "num_dev", 1000, "With --label: most rows of dev.tsv.", least=1)
    flags.define("integer", values, "num_test", 600, "With --label: most rows of test.tsv.",
                 least=1)
    flags.define("bool", values, "reserve_task_documents", True,
                 "With --label: leave the dev and test sentences out of corpus.txt.")
    flags.define("integer", values, "seed", 12345, "Everything random derives from it.")


def _define_filters(values: flags.FlagValues) -> None:
    flags.define("enum", values, "drop_duplicates", "none",
                 "Leave out documents that are the same as an earlier one (exact), or nearly the "
                 "same (near, which needs `pip install rensa`).",
                 enum_values=["none", "exact", "near"])
    flags.define("float", values, "duplicate_threshold", 0.8,
                 "How alike two documents are that are nearly the same: of their runs of five "
                 "words, the share that both have.", above=0, most=1)
    flags.define("integer", values, "min_document_words", 0,
                 "Leave out documents of fewer words.", least=0)
    flags.define("integer", values, "max_document_words", None,
                 "Leave out documents of more words.", least=1)
    flags.define("list", values, "keep_languages", None,
                 "Leave out documents of other languages than these (ISO 639-1 codes, "
                 "comma-separated). It needs `pip install py3langid`.")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    if not values.label and (given := [name for name in _OF_TASK if values[name].present]):
        raise FlagError(f"--{given[0]} has no effect without --label: no labelled task is made")
    corpus_file = os.path.join(values.output_dir, "corpus.txt")
    with (
        workers.preemptible("nothing half-written is left"), _read(values, corpus_file) as text
    ):
        task = None
        if values.label:
            sizes = (values.num_train, values.num_dev, values.num_test)
            rng = random.Random(f"{values.seed}/labelled task")
            task = labelled_task.make_task(text.documents, values.label, sizes, rng)
        reserves = task and values.reserve_task_documents
        corpus = text.write(corpus_file, task.rest if reserves else None)
    if task:
        labelled_task.write_task(os.path.join(values.output_dir, "classification", "SST-2"), task)
    _write_stats(values, text, corpus, task)
    _report(corpus_file, text, corpus, task)


def _report(
    corpus_file: str, text: text_corpus.Text, corpus: text_corpus.Counts,
    task: labelled_task.LabelledTask | None,
) -> None:
    """Logs the words that were read, and where each of them went."""
    dropped = sum(counts.words for counts in text.dropped.values())
    total = text.counts.words + dropped

    def words(count: int) -> str:
        return f"{count:,} words ({100 * count / max(total, 1):.1f} %)"

    def documents(count: int) -> str:
        return f"{count:,} document{'s' * (count != 1)}"

    read = text.counts.documents + sum(counts.documents for counts in text.dropped.values())
    flags.log.info("read %s words in %s", f"{total:,}", documents(read))
    for reason, counts in sorted(text.dropped.items()):
        flags.log.info("left out %s in %s: %s", words(counts.words), documents(counts.documents),
                       reason)
    if reserved := text.counts.words - corpus.words:
        flags.log.info("reserved %s for dev and test of the labelled task "
                       "(--noreserve_task_documents keeps them)", words(reserved))
    flags.log.info("wrote %s: %s, %s sentences, %s", corpus_file, words(corpus.words),
                   f"{corpus.sentences:,}", documents(corpus.documents))
    if task:
        flags.log.info("wrote the labelled task: %d train, %d dev, %d test rows",
                       len(task.train), len(task.dev), len(task.test))


def _write_stats(
    values: flags.FlagValues, text: text_corpus.Text, corpus: text_corpus.Counts,
    task: labelled_task.LabelledTask | None,
) -> None:
    """Publishes what was read, dropped and written, and the flags."""
    stats = {
        "source": values.input_file or f"documentation of Python {sys.version.split()[0]}",
        "bytes": text.reading.bytes,
        "invalid_utf8_lines": text.reading.bad_utf8_lines,
        "pseudo_documents": text.is_cut,
        "dropped": {reason: counts.documents for reason, counts in text.dropped.items()},
        "dropped_words": {reason: counts.words for reason, counts in text.dropped.items()},
        "text": text.counts.told(),
        "corpus": corpus.told(),
        "task": task and {
            "label": values.label,
            "train": len(task.train), "dev": len(task.dev), "test": len(task.test),
            "dev_documents": [d.name for d in task.dev_documents],
            "test_documents": [d.name for d in task.test_documents],
        },
        "flags": flags.to_dict(values),
    }
    files.write_json(os.path.join(values.output_dir, "stats.json"), stats)


@contextlib.contextmanager
def _read(values: flags.FlagValues, corpus_file: str) -> Iterator[text_corpus.Text]:
    if values.input_file is None:
        documents = python_docs.read_python_docs()
        counts = text_corpus.count(documents)
        size = sum(len(s.encode()) + 1 for d in documents for s in d.sentences)
        yield text_corpus.Text(documents, counts, ReadingCounts(bytes=size), False, {})
        return
    paths = corpus_files.find(values.input_file, "input_file", is_read_once=True)
    for path in paths:
        files.refuse_overwriting(corpus_file, path)
    form, reason = corpus_flags.form_of(values), None
    # A pipe cannot be looked at first: it is recognised, and told, when it is read.
    if form.layout != corpus_files.AUTO or not any(map(corpus_files.is_pipe, paths)):
        form, reason = corpus_flags.recognise(values, paths)
    with temporaries.temporary_dir(os.path.normpath(values.output_dir) + ".work") as folder:
        spool, checks = os.path.join(folder, "corpus.txt"), _filters(values)
        text = text_corpus.read_text(paths, form, spool, checks, for_task=bool(values.label))
        if reason:
            flags.log.info("documents: %s", reason)
        yield text


def _filters(values: flags.FlagValues) -> list[text_corpus.Filter]:
    found = []
    if values.min_document_words or values.max_document_words:
        found.append(filters.by_length(values.min_document_words, values.max_document_words))
    if values.keep_languages:
        found.append(filters.by_language(values.keep_languages))
    if values.drop_duplicates != "none":
        found.append(filters.by_content())
    if values.drop_duplicates == "near":
        found.append(filters.by_likeness(values.duplicate_threshold, values.seed))
    return found


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
