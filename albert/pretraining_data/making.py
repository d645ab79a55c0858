"""Makes records on one machine: worker processes, temporary files, publishing.

The outputs appear when all of them are made. Temporary files lie beside the first output. The
same job goes on with what a killed run left there.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator

from albert import __version__
from albert.data import files, records, temporaries, workers
from albert.errors import DataError
from albert.pretraining_data import original_draws, reports
from albert.pretraining_data.buckets import (
    LAYOUT,
    BlockTask,
    Part,
    Spill,
    ask_to_stop,
    finish_bucket,
    plan_blocks,
    resume,
    spill_block,
)
from albert.pretraining_data.documents import Document, ReadingCounts, read_documents
from albert.pretraining_data.recipe import Job, Stream, load_tokenizer

log = logging.getLogger("albert")

_JOB_FILE = "job.json"


def make_records(job: Job, processes: int, numpy_seed: int | None = None) -> None:
    """Makes all records of a job, and only then publishes the first file.

    Args:
      processes: how many work at it.
      numpy_seed: of the original's draws, if it is those that are made; see `original_draws`.
    """
    with (
        workers.preemptible("nothing half-written is left"),
        _scratch(job) as scratch,
        workers.Workers(processes, lambda: ask_to_stop(scratch)) as pool,
    ):
        started, counts = time.monotonic(), ReadingCounts()
        log.info("making records of %.1f MB of text with %d process%s",
                 job.text_bytes / 1e6, processes, "es" if processes > 1 else "")
        tokenizer = load_tokenizer(job.recipe)
        documents = read_documents(
            job.inputs, tokenizer.preprocess, counts, job.break_between_files, job.form,
            None if numpy_seed is None else sys.maxsize,
        )
        if numpy_seed is None:
            spills = _spill(job, documents, scratch, pool)
            reports.report_reading(job, counts)
            parts = {
                stream.name: _finish(job, stream, spills[stream.name], scratch, pool)
                for stream in job.streams
            }
        else:
            texts = list(documents)
            reports.report_reading(job, counts)
            parts = original_draws.make_parts(job, texts, numpy_seed, scratch)
        reports.check_outputs(job, parts, counts.documents)
        _publish(job, parts, counts)
        reports.report_outcome(job, parts, counts, started)


def sweep(outputs: Iterable[str]) -> None:
    """Makes the directories of outputs, and removes what dead processes left there."""
    for path in outputs:
        temporaries.sweep_litter(files.make_dirs(os.path.dirname(os.path.abspath(path))))


@contextlib.contextmanager
def _scratch(job: Job) -> Iterator[str]:
    """Yields a directory for temporary files: a new one, or what a killed run of this job left."""
    path, identity = f"{job.outputs[0]}.work", _identity(job)
    with temporaries.temporary_dir(path, lambda left: _identity_of(left) == identity) as scratch:
        sweep(job.outputs)
        if _identity_of(scratch) == identity:
            log.info("a run was killed here: going on with the %d pieces of work that it had done",
                     resume(scratch))
        files.write_json(os.path.join(scratch, _JOB_FILE), {"job": identity})
        yield scratch


def _identity(job: Job) -> str:
    """Returns a digest of all that decides the records."""
    texts = [(path, (stat := os.stat(path)).st_size, stat.st_mtime_ns) for path in job.inputs]
    told = [job.flags, dataclasses.asdict(job.form), job.recipe.vocabulary_sha256, texts,
            __version__, LAYOUT]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _identity_of(scratch: str) -> str | None:
    try:
        return files.read_json_object(os.path.join(scratch, _JOB_FILE)).get("job")
    except DataError:
        return None


def _spill(
    job: Job, documents: Iterable[Document], scratch: str, pool: workers.Workers
) -> dict[str, list[Spill]]:
    """Returns the spill files of each stream, in order."""
    blocks = -(-job.text_bytes // job.block_characters)
    # A small corpus has fewer blocks than there are processes: then the
    # passes over a block are shared out.
    shares = max(1, -(-2 * pool.count // blocks)) if pool.count > 1 else 1
    planned = plan_blocks(
        job, ((document, sum(map(len, document))) for document in documents), job.text_bytes,
        lambda stream: -(-stream.passes // min(shares, stream.passes)),
    )
    passes = {stream.name: stream.passes for stream in job.streams}
    submitted: list[tuple[str, float]] = []  # (stream, megabytes) of each task

    def tasks() -> Iterator[tuple]:
        for task in planned:
            size = sum(len(line.encode()) + 1 for document in task.documents for line in document)
            share = len(task.passes) / passes[task.stream]
            submitted.append((task.stream, size / 1e6 * share))
            yield job.recipe, task, os.path.join(scratch, _spill_name(task))

    spills: dict[str, list[Spill]] = {name: [] for name in passes}
    progress, done = reports.Progress("pairing", "MB", job.text_bytes / 1e6), 0.0
    for number, spill in enumerate(pool.map(spill_block, tasks())):
        name, size = submitted[number]
        spills[name].append(spill)
        done += size
        progress.show(done)
    progress.end()
    return spills


def _spill_name(task: BlockTask) -> str:
    return f"{task.stream}-{task.index}-{task.passes.start}-{task.passes.stop}.spill"


def _finish(
    job: Job, stream: Stream, spills: list[Spill], scratch: str, pool: workers.Workers
) -> list[Part]:
    """Returns the finished buckets of a stream, in order; none if it has no documents."""
    if not spills:
        return []
    buckets = stream.buckets(job.text_bytes)
    tasks = (
        (job.recipe, stream.name, bucket, [spill.section(bucket) for spill in spills],
         os.path.join(scratch, f"{stream.name}-{bucket}.part"), stream.examples(bucket))
        for bucket in range(buckets)
    )
    progress, parts = reports.Progress(f"writing {stream.name}", "buckets", buckets), []
    for part in pool.map(finish_bucket, tasks):
        parts.append(part)
        progress.show(len(parts))
    progress.end()
    return parts


def _publish(job: Job, parts: reports.Parts, counts: ReadingCounts) -> None:
    """Writes all outputs and their manifests aside, then gives them their names."""
    with contextlib.ExitStack() as stack:
        # They get their names in the opposite order: the manifests last. There may be many, so
        # each is closed.
        for stream in job.streams:
            for path, mine in reports.parts_of_outputs(stream, parts):
                info = reports.manifest_info(job, stream, path, counts)
                blocks = [block for part in mine for block in part.blocks]
                note = stack.enter_context(files.atomic_write(records.manifest_path(path)))
                note.write(records.manifest_text(blocks, job.recipe.feature_spec(), info))
                note.close()
        for stream in job.streams:
            for path, mine in reports.parts_of_outputs(stream, parts):
                out = stack.enter_context(files.atomic_write(path, "wb"))
                for part in mine:
                    with open(part.path, "rb") as content:
                        shutil.copyfileobj(content, out, 1 << 20)
                    os.unlink(part.path)
                out.close()
        for path in job.outputs:
            records.remove_manifest(path)
