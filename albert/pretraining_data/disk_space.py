"""Whether the disk holds what a job will write, told before hours of work."""

import itertools
import logging
import os
import shutil

import numpy as np

from albert.errors import UserError
from albert.pretraining_data import buckets, dealing
from albert.pretraining_data.recipe import Job, load_tokenizer
from albert.text.documents import Document, ReadingCounts, read_documents

log = logging.getLogger("albert")

_WORTH_A_LOOK = 64 << 20  # bytes of text times passes; less fits any disk
_SAMPLE = 1 << 18  # characters
_RECORDS = 64
_DOUBT = 0.9  # of the estimate; the text further on may be another


def check(job: Job, directory: str) -> None:
    """Says how much disk will be needed, and refuses to begin where it is not there.

    Args:
      directory: of temporary files, where a killed run may have left some.

    Raises:
      UserError: there is less.
    """
    passes = sum(stream.passes * stream.share for stream in job.streams)
    if job.text_bytes * passes < _WORTH_A_LOOK:
        return
    needed = estimate(job)
    free = shutil.disk_usage(directory).free + _size_of(directory)
    told = f"about {needed / 1e9:,.1f} GB of disk are needed while records are made, in {directory}"
    if _DOUBT * needed > free:
        raise UserError(f"{told}, and {free / 1e9:,.1f} GB are free: free some, or give another "
                        "--output_file")
    log.info("%s (%.1f GB are free)", told, free / 1e9)


def estimate(job: Job) -> float:
    """Returns the bytes of all temporary files at their most, from the first text of a job."""
    documents = _sample(job)
    sizes = [len(line.encode()) + 1 for document in documents for line in document]
    stream = job.streams[0]
    task = dealing.BlockTask(stream.name, 0, documents, range(1), 1)
    pairs = dealing.pair_block(job.recipe, task)
    table = pairs.table().astype(np.int64)
    if not len(table):
        return 0.0
    tokens = pairs.tokens(dealing.token_type(load_tokenizer(job.recipe)))
    some = table[:_RECORDS]
    framed = buckets.frame_bucket(job.recipe, stream.name, 0, some, tokens, 0)
    records = sum(len(content) for content, *_ in framed) / len(some)
    # Spills, and the finished buckets that are made of them.
    one_pass = tokens.nbytes + len(table) * (4 * dealing.PAIR_NUMBERS + records)
    passes = sum(stream.passes * stream.share for stream in job.streams)
    return one_pass * passes * job.text_bytes / sum(sizes)


def _sample(job: Job) -> list[Document]:
    preprocess, found, size = load_tokenizer(job.recipe).preprocess, [], 0
    documents = read_documents(
        job.inputs, preprocess, ReadingCounts(), job.break_between_files, job.form, _SAMPLE
    )
    for document in itertools.takewhile(lambda _: size < _SAMPLE, documents):
        found.append(document)
        size += sum(map(len, document))
    return found


def _size_of(directory: str) -> int:
    sizes = 0
    for place, _, names in os.walk(directory):
        sizes += sum(os.path.getsize(os.path.join(place, name)) for name in names)
    return sizes
