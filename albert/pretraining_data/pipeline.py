"""Makes records with the processes of one machine.

The work folder `.<output>.work` holds the files of shuffled pairs, then the record files, which grow
bucket by bucket. Whatever ends a run, the same command resumes there. The outputs appear when all of
them are complete.
"""

import collections
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from albert import __version__
from albert.errors import UserError
from albert.pretraining_data import instances, report, shuffle
from albert.pretraining_data.instances import Blocks, Statistics
from albert.pretraining_data.job import Job, OutputSplit, Recipe, load_tokenizer
from albert.pretraining_data.outputs import Output, publish
from albert.runtime.progress import Progress
from albert.runtime.workers import Workers, preemptible
from albert.storage import files, locks
from albert.text.documents import ReadingCounts, read_documents

log = logging.getLogger("albert")

_LAYOUT = 7  # version of the work folder; others are emptied
_CHECKED_DISK = 64 << 20  # bytes of text times passes from which disk space is checked


def make_records(job: Job, processes: int) -> None:
    """Makes all records of a job, then publishes them."""
    started, counts = time.monotonic(), ReadingCounts()
    log.info("making records of %.1f MB of text with %d process%s",
             job.text_bytes / 1e6, processes, "es" if processes > 1 else "")
    with (
        preemptible("rerun the command to resume"),
        locks.work_folder(job.outputs[0], _identity(job)) as work,
    ):
        _check_disk(job, work)
        with Workers(processes) as pool:
            paths = _shuffle_pairs(job, counts, work, pool)
            outputs = [
                output for split in job.splits
                for output in _write_split(job, split, paths[split.name], work, pool)
            ]
        publish(job, outputs, counts)
    seconds, total = time.monotonic() - started, sum(o.statistics.records for o in outputs)
    log.info("wrote %s records in %.1f s (%s/s)", f"{total:,}", seconds, f"{total / seconds:,.0f}")


def read(job: Job, counts: ReadingCounts) -> Iterator[list[str]]:
    """Yields the documents of a job, updating `counts`."""
    preprocess = load_tokenizer(job.recipe).preprocess
    return read_documents(job.inputs, preprocess, counts, job.break_between_files, job.form)


def _identity(job: Job) -> str:
    """Returns a digest of what determines the records, except the text, whose blocks have digests."""
    values = [job.flags, dataclasses.asdict(job.form), job.recipe.vocabulary_sha256, __version__, _LAYOUT]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _check_disk(job: Job, work: str) -> None:
    """Raises a UserError if the disk is clearly too small for the work folder."""
    if job.text_bytes * job.splits[0].passes < _CHECKED_DISK:
        return
    needed = needed_disk(job)
    used = sum(entry.stat().st_size for entry in os.scandir(work))
    free = shutil.disk_usage(work).free + used
    message = f"making records takes about {needed / 1e9:,.1f} GB in {work}"
    if needed > free:
        raise UserError(f"{message}; {free / 1e9:,.1f} GB are free. Free some, or choose another "
                        "--output_file")
    log.info("%s (%.1f GB are free)", message, free / 1e9)


def needed_disk(job: Job) -> float:
    """Returns a low estimate of the bytes in a work folder when all records are written."""
    passes = sum(split.passes * split.fraction for split in job.splits)
    length, predictions = job.recipe.pairs.max_seq_length, job.recipe.masking.max_predictions_per_seq
    record = 5 * length + 7 * predictions + 200 if job.recipe.static_masks else 3 * length + 100
    tokens = job.text_bytes * passes / 6  # with 4 to 5 bytes per token, this is a lower bound
    return tokens * 2 + tokens / length * (record + 24)


# === Shuffled pairs ===


def _shuffle_pairs(
    job: Job, counts: ReadingCounts, work: str, pool: Workers
) -> dict[str, list[str]]:
    """Writes the pairs of all blocks; returns the files of each split in the order of the text."""
    names: dict[str, list[str]] = {split.name: [] for split in job.splits}
    megabytes: collections.deque[float] = collections.deque()  # of the tasks under way
    dtype = shuffle.token_dtype(job.recipe)
    progress, done, num_reused = Progress("paired", job.text_bytes / 1e6, "MB"), 0.0, 0
    passes = {split.name: split.passes for split in job.splits}

    def tasks() -> Iterator[tuple]:
        nonlocal done, num_reused
        for task in shuffle.block_tasks(job, read(job, counts), pool.count):
            paths = [path for _, path in task.files(work)]
            names[task.split] += paths
            complete = sum(shuffle.is_complete(path, task.num_buckets, dtype) for path in paths)
            num_reused += complete
            size = sum(len(line.encode()) + 1 for lines in task.documents for line in lines)
            size *= len(task.passes) / passes[task.split] / 1e6
            if complete == len(paths):
                done += size
            else:
                megabytes.append(size)
                yield job.recipe, task, work

    for _ in pool.map(shuffle.write_block, tasks()):
        done += megabytes.popleft()
        progress.update(done)
    progress.clear()
    if num_reused:
        log.info("resumed an unfinished run: %d of its tasks were done", num_reused)
    report.report_reading(job, counts)
    current = {path for paths in names.values() for path in paths}
    _remove(work, lambda path: path.endswith(".pairs") and path not in current)
    return names


def _remove(work: str, is_stale: Callable[[str], bool]) -> None:
    """Removes the files that an earlier run made of a text that has since changed."""
    for entry in os.scandir(work):
        if is_stale(entry.path):
            os.unlink(entry.path)


# === Records ===


def _write_split(
    job: Job, split: OutputSplit, paths: list[str], work: str, pool: Workers
) -> list[Output]:
    """Writes the records of a split, except those that an earlier run has written.

    Args:
      paths: the files of its pairs.
    """
    digest = hashlib.sha256("\n".join(map(os.path.basename, paths)).encode()).hexdigest()[:16]
    prefix = os.path.join(work, f"{split.name}-{digest}")
    _remove(work, lambda path: path.startswith(os.path.join(work, f"{split.name}-"))
            and not path.endswith(".pairs") and not path.startswith(prefix))
    outputs = [
        Output(split, path, f"{prefix}-{k}.records") for k, path in enumerate(split.outputs)
    ]
    buckets = split.num_buckets(job.text_bytes) if paths else 0
    progress = Progress(f"wrote {split.name}", buckets, "buckets")
    with files.writing(work), open(f"{prefix}.journal", "ab+") as journal:
        with open(f"{prefix}.files", "w", encoding="utf-8") as stream:
            stream.write("\n".join(paths))
        first = _resume(journal, outputs)
        if first:
            log.info("resumed an unfinished run: %d of %d buckets were written", first, buckets)
        tasks = ((job.recipe, split.name, number, buckets, prefix)
                 for number in range(first, buckets))
        for number, (part, examples, *result) in enumerate(pool.map(write_bucket, tasks), first):
            for example in examples:
                log.info("a record:\n%s", example)
            output = outputs[number % len(outputs)]
            with open(part, "rb") as content, open(output.work_path, "ab") as stream:
                shutil.copyfileobj(content, stream, 1 << 20)
                stream.flush()
                os.fsync(stream.fileno())
            entry = json.dumps([result[0], result[1].to_json()]).encode()
            journal.write(b"%08x %s\n" % (zlib.crc32(entry), entry))
            journal.flush()
            os.unlink(part)
            output.add(*result)
            progress.update(number + 1)
    progress.clear()
    return outputs


def _resume(journal: BinaryIO, outputs: list[Output]) -> int:
    """Adds what was written according to the journal; returns the number of buckets."""
    entries, size = read_journal(journal)
    for number, (blocks, statistics) in enumerate(entries):
        outputs[number % len(outputs)].add(blocks, Statistics.from_json(statistics))
    for output in outputs:
        with open(output.work_path, "ab") as stream:
            if os.path.getsize(output.work_path) < output.bytes:
                raise UserError(
                    f"{output.work_path} is damaged: remove {os.path.dirname(output.work_path)}"
                )
            stream.truncate(output.bytes)
    journal.truncate(size)
    return len(entries)


def read_journal(journal: BinaryIO) -> tuple[list, int]:
    """Returns the entries of a journal up to a truncated one, and their bytes."""
    journal.seek(0)
    entries, size = [], 0
    for line in journal:
        checksum, _, entry = line.partition(b" ")
        if checksum != b"%08x" % zlib.crc32(entry.rstrip(b"\n")):
            break
        entries.append(json.loads(entry))
        size += len(line)
    return entries, size


def write_bucket(
    recipe: Recipe, split: str, number: int, num_buckets: int, prefix: str
) -> tuple[str, list[str], Blocks, Statistics]:
    """Gathers, masks and serializes a bucket.

    Returns:
      The file of its records, some of them as text, the blocks of that file, and statistics.
    """
    with open(f"{prefix}.files", encoding="utf-8") as stream:
        paths = stream.read().splitlines()
    bucket = shuffle.read_bucket(paths, number, num_buckets, shuffle.token_dtype(recipe))
    # Not the same file as a process whose owner was killed, which may still be writing.
    part = f"{prefix}-{number}-{os.getpid()}.part"
    with files.writing(part), open(part, "wb") as stream:
        examples = None if number or split != "train" else []
        frames = instances.frame_bucket(recipe, split, number, bucket, examples)
        blocks = instances.write_frames(frames, stream)
    return part, examples or [], blocks, Statistics.of_bucket(recipe, bucket)
