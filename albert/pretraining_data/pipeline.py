"""Makes records with the processes of one machine.

The work folder `.<output>.work` holds the files of shuffled pairs, then a part of the records for each
bucket. Whatever ends a run, the same command resumes there. The outputs appear when all of them are
complete.
"""

import collections
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator

from albert import __version__
from albert.errors import UserError
from albert.pretraining_data import parts, report, shuffle
from albert.pretraining_data.job import Job, OutputSplit, Recipe, load_tokenizer
from albert.pretraining_data.outputs import Output, publish
from albert.runtime.progress import Progress
from albert.runtime.workers import Workers, preemptible
from albert.storage import files, locks
from albert.text.documents import ReadingCounts, read_documents

log = logging.getLogger("albert")

_LAYOUT = 9  # version of the work folder; others are emptied
_CHECKED_DISK = 64 << 20  # bytes of text times passes from which disk space is checked


def make_records(job: Job, processes: int) -> None:
    """Makes all records of a job, then publishes them."""
    started, counts = time.monotonic(), ReadingCounts()
    log.info("making records of %.1f MB of text with %d process%s",
             job.text_bytes / 1e6, processes, "es" if processes > 1 else "")
    with (
        preemptible("rerun the command to resume"),
        locks.work_folder(job.outputs, job_digest(job)) as work,
    ):
        _check_disk(job, work)
        with Workers(processes) as pool:
            paths = _shuffle_pairs(job, counts, work, pool)
            outputs = [
                output for split in job.splits
                for output in _write_split(job, split, paths[split.name], work, pool)
            ]
        publish(job, outputs, counts)
    seconds, total = time.monotonic() - started, sum(o.statistics["records"] for o in outputs)
    log.info("wrote %s records in %.1f s (%s/s)", f"{total:,}", seconds, f"{total / seconds:,.0f}")


def read(job: Job, counts: ReadingCounts) -> Iterator[list[str]]:
    """Yields the documents of a job, updating `counts`."""
    preprocess = load_tokenizer(job.recipe).preprocess
    return read_documents(job.inputs, preprocess, counts, job.break_between_files, job.form)


def job_digest(job: Job) -> str:
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
    # Records are in the work folder twice: as parts, and joined.
    return tokens * 2 + 2 * tokens / length * (record + 24)


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
    """Writes the records of a split, except the parts that an earlier run has written.

    Args:
      paths: the files of its pairs.
    """
    key = hashlib.sha256("\n".join(map(os.path.basename, paths)).encode()).hexdigest()[:16]
    _remove(work, lambda path: os.path.basename(path).startswith(f"{split.name}-")
            and not path.endswith(".pairs") and f"-{key}" not in path)
    buckets = split.num_buckets(job.text_bytes) if paths else 0
    listing = os.path.join(work, f"{split.name}-{key}.files")
    with files.writing(listing), open(listing, "w", encoding="utf-8") as stream:
        stream.write("\n".join(paths))
    missing = [number for number in range(buckets)
               if not parts.is_complete(parts.path_of(work, key, split.name, number))]
    if len(missing) < buckets:
        log.info("resumed an unfinished run: %d of %d buckets were written",
                 buckets - len(missing), buckets)
    progress = Progress(f"wrote {split.name}", buckets, "buckets")
    tasks = ((job.recipe, split.name, number, buckets, work, key) for number in missing)
    for done, _ in enumerate(pool.map(write_bucket, tasks), buckets - len(missing) + 1):
        progress.update(done)
    progress.clear()
    count = len(split.outputs)
    return [parts.join(split, number, work, key, range(number, buckets, count))
            for number in range(count)]


def write_bucket(
    recipe: Recipe, split: str, number: int, num_buckets: int, work: str, key: str
) -> None:
    """Gathers a bucket and writes its part."""
    with open(os.path.join(work, f"{split}-{key}.files"), encoding="utf-8") as stream:
        paths = stream.read().splitlines()
    bucket = shuffle.read_bucket(paths, number, num_buckets, shuffle.token_dtype(recipe))
    parts.write(recipe, split, number, bucket, parts.path_of(work, key, split, number))
