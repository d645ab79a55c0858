"""Prepares text for pretraining: one sentence per line.

  python -m albert.prepare_text --input_file=my_text.txt --output_dir=text

Writes to --output_dir:
  corpus.txt  one sentence per line, a blank line between documents
  stats.json  what was read, dropped and written, and the flags

Copies of earlier documents are dropped. The text is streamed, not held in memory.
"""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator

from albert.cli import corpus_flags, flags
from albert.errors import DataError, some
from albert.runtime import workers
from albert.runtime.progress import Progress
from albert.storage import cloud, files
from albert.text import corpus_files
from albert.text.documents import Document, ReadingCounts, read_documents, split_documents

_MIN_SENTENCES = 30  # fewer are too little to learn from
_BATCH = 1 << 20  # characters of documents that are split together
_SMALL = 16 << 20  # bytes of text; one process is fastest up to here


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "input_file", None,
                 f"Text: {corpus_flags.WHERE}. Required.", use="texts")
    corpus_flags.define_flags(values)
    flags.define("bool", values, "split_sentences", True,
                 "Split lines into sentences; if false, each line is a sentence.")
    flags.define("path", values, "output_dir", None, "Output directory. Required.",
                 use="directory")


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

    def __str__(self) -> str:
        return f"{self.words:,} words in {self.documents:,} document{'s' * (self.documents != 1)}"


def main(values: flags.FlagValues) -> None:
    flags.require(values, "input_file", "output_dir")
    paths = corpus_files.find(values.input_file, "input_file")
    corpus_file = os.path.join(values.output_dir, "corpus.txt")
    for path in paths:
        files.refuse_overwriting(corpus_file, path)
    form = corpus_flags.form_of(values)
    reading, corpus, copies, seen = ReadingCounts(), Counts(), Counts(), set[bytes]()
    with workers.preemptible("no partial output is left"), contextlib.ExitStack() as at_end:
        if not os.path.exists(values.output_dir):
            at_end.callback(_remove_if_empty, values.output_dir)
        with files.atomic_write(corpus_file) as stream:
            for document in _documents(paths, form, reading):
                text = " ".join(document).encode("utf-8", "replace")
                if (digest := hashlib.blake2b(text, digest_size=16).digest()) in seen:
                    copies.add(document)
                    continue
                seen.add(digest)
                stream.write("\n" if corpus.documents else "")
                stream.writelines(f"{sentence}\n" for sentence in document)
                corpus.add(document)
            if corpus.sentences < _MIN_SENTENCES:
                raise DataError(
                    f"{some(paths, 3)}: {corpus.sentences} sentences; at least {_MIN_SENTENCES} are "
                    "required (one sentence or paragraph a line, blank line between documents)"
                )
        files.write_json(os.path.join(values.output_dir, "stats.json"), {
            "source": values.input_file,
            "bytes": reading.bytes,
            "copies": dataclasses.asdict(copies),
            "corpus": dataclasses.asdict(corpus),
            "flags": flags.to_dict(values),
        })
    reading.warn()
    if copies.documents:
        flags.log.info("dropped %s: copies of earlier documents", copies)
    flags.log.info("wrote %s: %s, %s sentences", corpus_file, corpus, f"{corpus.sentences:,}")


def _remove_if_empty(directory: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def _documents(
    paths: list[str], form: corpus_files.Form, reading: ReadingCounts
) -> Iterator[Document]:
    """Yields the documents of a text, split into sentences by several processes."""
    progress = Progress("read", None, "MB")
    processes = workers.available_cores() if sum(map(cloud.size, paths)) > _SMALL else 1
    with workers.Workers(processes) as pool:
        documents = read_documents(paths, str, reading, form=form)
        batches = ((batch, form.language) for batch in _batches(documents))
        for batch in pool.map(split_documents, batches):
            yield from batch
            progress.update(reading.bytes / 1e6)
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


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
