"""Prepares text for pretraining: one sentence per line.

  python -m albert.prepare_text --input_file=my_text.txt --output_dir=text

Writes to --output_dir:
  corpus.txt  one sentence per line, a blank line between documents
  stats.json  what was read, dropped and written, and the flags

Filters drop duplicates, documents in other languages, and too short or too long ones. The text is
streamed, not held in memory.
"""

import collections
import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator

from albert.cli import corpus_flags, flags
from albert.errors import DataError, some
from albert.runtime import workers
from albert.runtime.progress import Progress
from albert.storage import files, filesystem
from albert.text import corpus_files, filters
from albert.text.documents import (
    Document,
    Position,
    ReadingCounts,
    read_documents,
    split_documents,
)

_MIN_SENTENCES = 30  # fewer are too little to learn from
_BATCH = 1 << 20  # characters of documents that are split together
_SMALL = 16 << 20  # bytes of text; one process is fastest up to here


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "input_file", None,
                 f"Text: {corpus_flags.WHERE}; `-` is the standard input. Required.", use="texts")
    corpus_flags.define_flags(values)
    flags.define("bool", values, "split_sentences", True,
                 "Split lines into sentences; if false, each line is a sentence.")
    flags.define("path", values, "output_dir", None, "Output directory. Required.",
                 use="directory")
    flags.define("enum", values, "drop_duplicates", "none",
                 "Drop duplicates of earlier documents: exact ones, or also near ones (needs `pip "
                 "install rensa`).", enum_values=["none", "exact", "near"])
    flags.define("float", values, "duplicate_threshold", 0.8,
                 "Minimum Jaccard similarity of near duplicates, by their sets of five-word "
                 "sequences.", above=0, upper_bound=1)
    flags.define("integer", values, "min_document_words", 0, "Drop documents with fewer words.",
                 lower_bound=0)
    flags.define("integer", values, "max_document_words", None, "Drop documents with more words.",
                 lower_bound=1)
    flags.define("list", values, "keep_languages", None,
                 "Keep only documents in these languages (comma-separated ISO 639-1 codes; needs "
                 "`pip install py3langid`).")
    flags.define("integer", values, "seed", 12345, "Seed of the near-duplicate search.")


@dataclasses.dataclass
class Counts:
    """Amounts of text."""

    documents: int = 0
    sentences: int = 0
    words: int = 0

    def add(self, document: Document) -> None:
        """Counts a document."""
        self.documents += 1
        self.sentences += len(document)
        self.words += sum(len(sentence.split()) for sentence in document)

    def as_text(self, total: int) -> str:
        """Returns the number of words, with its percentage of `total`."""
        return (f"{self.words:,} words ({100 * self.words / max(total, 1):.1f} %) in "
                f"{self.documents:,} document{'s' * (self.documents != 1)}")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "input_file", "output_dir")
    paths = corpus_files.find(values.input_file, "input_file", is_read_once=True)
    corpus_file = os.path.join(values.output_dir, "corpus.txt")
    for path in paths:
        files.refuse_overwriting(corpus_file, path)
    form = corpus_files.recognize(paths, corpus_flags.form_of(values))
    checks = _filters(values)
    reading, corpus = ReadingCounts(), Counts()
    dropped: dict[str, Counts] = collections.defaultdict(Counts)
    with workers.preemptible("no partial output is left"), _removed_if_empty(values.output_dir):
        with files.atomic_write(corpus_file) as stream:
            for document in _documents(paths, form, reading):
                if why := next(filter(None, (check(document) for check in checks)), None):
                    dropped[why].add(document)
                    continue
                stream.write("\n" if corpus.documents else "")
                stream.writelines(f"{sentence}\n" for sentence in document)
                corpus.add(document)
            if corpus.sentences < _MIN_SENTENCES:
                losses = (f"; {counts.documents:,} documents dropped: {why}"
                          for why, counts in dropped.items())
                raise DataError(
                    f"{some(paths, 3)}: {corpus.sentences} sentences; at least {_MIN_SENTENCES} are "
                    "required (one sentence or paragraph a line, blank line between documents)"
                    + "".join(losses)
                )
        files.write_json(os.path.join(values.output_dir, "stats.json"), {
            "source": values.input_file,
            "bytes": reading.bytes,
            "invalid_utf8_lines": reading.bad_utf8_lines,
            "dropped": {why: dataclasses.asdict(counts) for why, counts in dropped.items()},
            "corpus": dataclasses.asdict(corpus),
            "flags": flags.to_dict(values),
        })
    reading.warn()
    parts = [corpus, *dropped.values()]
    total = sum(counts.words for counts in parts)
    flags.log.info("read %s words in %s documents", f"{total:,}",
                   f"{sum(counts.documents for counts in parts):,}")
    for why, counts in sorted(dropped.items()):
        flags.log.info("dropped %s: %s", counts.as_text(total), why)
    flags.log.info("wrote %s: %s, %s sentences", corpus_file, corpus.as_text(total),
                   f"{corpus.sentences:,}")


@contextlib.contextmanager
def _removed_if_empty(directory: str) -> Iterator[None]:
    """Removes the directory if the block created it and fails, leaving it empty."""
    is_new = not os.path.exists(directory)
    try:
        yield
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        raise


def _documents(
    paths: list[str], form: corpus_files.Form, reading: ReadingCounts
) -> Iterator[Document]:
    """Yields the documents of a text, split into sentences by several processes."""
    is_piped = any(map(corpus_files.is_pipe, paths))
    position, size = Position(), None if is_piped else sum(map(filesystem.size, paths))
    progress = Progress("read", size and size / 1e6, "MB")
    processes = workers.available_cores() if size is None or size > _SMALL else 1
    with workers.Workers(processes) as pool:
        documents = read_documents(paths, str, reading, form=form, position=position)
        batches = ((batch, form.language) for batch in _batches(documents))
        for batch in pool.map(split_documents, batches):
            yield from batch
            progress.update((reading.bytes if is_piped else position.bytes) / 1e6)
    progress.clear()


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document))
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _filters(values: flags.FlagValues) -> list[filters.Filter]:
    checks = []
    if values.min_document_words or values.max_document_words:
        checks.append(filters.by_length(values.min_document_words, values.max_document_words))
    if values.keep_languages:
        checks.append(filters.by_language(values.keep_languages))
    if values.drop_duplicates != "none":
        checks.append(filters.by_content())
    if values.drop_duplicates == "near":
        checks.append(filters.by_similarity(values.duplicate_threshold, values.seed))
    return checks


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
