"""Makes records by the processes of one machine, or of several that share a disk.

The outputs appear when all of them are made. Temporary files lie beside the first output, in
`.<output>.work`. Whatever ended a run, the same job resumes from what it left there.
"""

import collections
import contextlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from albert.pretraining_data import disk_space, original_draws, reports, shares
from albert.pretraining_data.buckets import Part, finish_bucket, read_tail
from albert.pretraining_data.dealing import plan_blocks
from albert.pretraining_data.recipe import Job, Stream, load_tokenizer
from albert.pretraining_data.shares import Place
from albert.pretraining_data.spills import (
    Spills,
    ask_to_stop,
    group_size,
    merge_spills,
    spill_block,
)
from albert.records import records
from albert.runtime import workers
from albert.runtime.progress import Progress
from albert.storage import files, temporaries
from albert.text.documents import Document, ReadingCounts, read_documents

log = logging.getLogger("albert")


def make_records(
    job: Job, processes: int, numpy_seed: int | None = None, share: shares.Share = shares.ALL
) -> None:
    """Makes all records of a job, and only then publishes the first file.

    Args:
      processes: how many work at it.
      numpy_seed: of the original's draws, if it is those that are made; see `original_draws`.
      share: which of several machines this is, each of which is given the same job.
    """
    with workers.preemptible("rerun the same command to resume"):
        try:
            with (
                shares.working_place(job, share, processes) as place,
                workers.Workers(processes, lambda: ask_to_stop(place.own)) as pool,
            ):
                _make(job, place, pool, numpy_seed)
        except shares.PublishedError:
            log.info("all records are made already")


def _make(job: Job, place: Place, pool: workers.Workers, numpy_seed: int | None) -> None:
    started, counts = time.monotonic(), ReadingCounts()
    log.info("making records of %.1f MB of text with %d process%s",
             job.text_bytes / 1e6, pool.count, "es" if pool.count > 1 else "")
    disk_space.check(job, place.own)
    tokenizer = load_tokenizer(job.recipe)
    documents = read_documents(
        job.inputs, tokenizer.preprocess, counts, job.break_between_files, job.form,
        None if numpy_seed is None else sys.maxsize,
    )
    if numpy_seed is None:
        spills = _spill(job, documents, place, pool)
        reports.report_reading(job, counts)
        for found in spills.values():
            _merge(job, found, place, pool)
        place.wait_for("paired", counts)
        parts = {
            stream.name: _finish(job, stream, spills[stream.name], place, pool)
            for stream in job.streams
        }
        place.wait_for("finished", counts)
    else:
        texts = list(documents)
        reports.report_reading(job, counts)
        parts = original_draws.make_parts(job, texts, numpy_seed, place.own)
    with place.last() as is_last:
        if is_last:
            parts = place.all_parts(parts)
            reports.check_outputs(job, parts, counts.documents)
            report = reports.Report.of(job, parts, counts, _lengths)
            _publish(job, parts, report, counts, keeps_parts=len(place.all) > 1)
            reports.report_outcome(job, parts, report, started)


def sweep(outputs: Iterable[str]) -> None:
    """Makes the directories of outputs, and removes what dead processes left there."""
    for path in outputs:
        temporaries.sweep_litter(files.make_dirs(os.path.dirname(os.path.abspath(path))))


def _spill(
    job: Job, documents: Iterable[Document], place: Place, pool: workers.Workers
) -> dict[str, Spills]:
    """Returns the spills of each stream, of all machines."""
    step_of = place.step_of(job)
    planned = plan_blocks(
        job, ((document, sum(map(len, document))) for document in documents), job.text_bytes,
        step_of,
    )
    spills = {
        stream.name: _no_spills(job, stream, place, step_of(stream)) for stream in job.streams
    }
    total = job.text_bytes / 1e6 / len(place.all)
    progress, done = Progress("pairing", "MB", total), 0.0
    # (name of a spill, megabytes) of the work that is under way, in order
    waiting: collections.deque[tuple[str, float]] = collections.deque()

    def tasks() -> Iterator[tuple]:
        nonlocal done
        for task in planned:
            mine = spills[task.stream] = spills[task.stream]._replace(blocks=task.index + 1)
            group = mine.group_of(task)
            if mine.directory(group) != place.own:
                continue
            size = _bytes_of(task.documents) * len(task.passes) / mine.passes / 1e6
            names = task.name, os.path.basename(mine.merged(group))
            if any(place.journal.result(name) is not None for name in names):
                done += size
                continue
            waiting.append((task.name, size))
            yield job.recipe, task, os.path.join(place.own, task.name)

    for _ in pool.map(spill_block, tasks()):
        name, size = waiting.popleft()
        place.journal.note(name, ())
        done += size
        progress.show(done)
    progress.end()
    return spills


def _bytes_of(documents: Iterable[Document]) -> int:
    return sum(sum(map(len, map(str.encode, lines))) + len(lines) for lines in documents)


def _no_spills(job: Job, stream: Stream, place: Place, step: int) -> Spills:
    """Returns how the spills of a stream lie, before there is one."""
    buckets = stream.buckets(job.text_bytes)
    blocks = job.text_bytes * stream.share / job.block_characters
    group = group_size(blocks * -(-stream.passes // step), buckets)
    return Spills(place.all, stream.name, 0, stream.passes, step, buckets, group)


def _merge(job: Job, spills: Spills, place: Place, pool: workers.Workers) -> None:
    """Merges this machine's spills of a stream in groups, if there are very many."""
    if spills.group == 1:
        return
    mine = [n for n in range(spills.groups) if spills.directory(n) == place.own]
    waiting: collections.deque[int] = collections.deque()

    def tasks() -> Iterator[tuple]:
        for group in mine:
            path = spills.merged(group)
            if place.journal.result(os.path.basename(path)) is None:
                waiting.append(group)
                yield job.recipe, spills.sources(group), spills.buckets, path
            else:
                _remove(spills.sources(group))

    progress = Progress(f"merging {spills.stream}", "groups", len(mine))
    for done, _ in enumerate(pool.map(merge_spills, tasks()), 1):
        group = waiting.popleft()
        place.journal.note(os.path.basename(spills.merged(group)), ())
        _remove(spills.sources(group))
        progress.show(done)
    progress.end()


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _finish(
    job: Job, stream: Stream, spills: Spills, place: Place, pool: workers.Workers
) -> list[Part]:
    """Returns this machine's finished buckets of a stream, in order; none without documents."""
    if not spills.blocks:
        return []
    mine = range(place.share.number, spills.buckets, place.share.count)
    parts: dict[int, Part] = {}
    waiting: collections.deque[int] = collections.deque()

    def tasks() -> Iterator[tuple]:
        for bucket in mine:
            path = os.path.join(place.own, shares.part_name(stream.name, bucket))
            if done := place.journal.result(os.path.basename(path)):
                parts[bucket] = Part(path, *done)
                continue
            waiting.append(bucket)
            yield job.recipe, bucket, spills, path, stream.examples(bucket)

    progress = Progress(f"writing {stream.name}", "buckets", len(mine))
    for part in pool.map(finish_bucket, tasks()):
        parts[waiting.popleft()] = part
        place.journal.note(os.path.basename(part.path), part[1:])
        progress.show(len(parts))
    progress.end()
    return [parts[bucket] for bucket in mine]


def _publish(
    job: Job, parts: reports.Parts, report: reports.Report, counts: ReadingCounts,
    keeps_parts: bool,
) -> None:
    """Writes all outputs and their manifests aside, then gives them their names."""
    outputs = [
        (stream, path, mine)
        for stream in job.streams for path, mine in reports.parts_of_outputs(stream, parts)
    ]
    total = sum(part.bytes for _, _, mine in outputs for part in mine) / 1e6
    progress, done = Progress("publishing", "MB", total), 0.0
    with contextlib.ExitStack() as stack:
        # They get their names in the opposite order: the manifests last. There may be many, so
        # each is closed.
        for stream, path, mine in outputs:
            info = reports.manifest_info(job, stream, path, counts, report)
            blocks = [block for part in mine for block in _blocks(part)]
            note = stack.enter_context(files.atomic_write(records.manifest_path(path)))
            note.write(records.Manifest.of(blocks, job.recipe.feature_spec(), info).text())
            note.close()
        for _, path, mine in outputs:
            out = stack.enter_context(files.atomic_write(path, "wb"))
            for part in mine:
                with open(part.path, "rb") as content:
                    copy_records(content, part, out)
                if not keeps_parts:
                    os.unlink(part.path)
                done += part.bytes / 1e6
                progress.show(done)
            out.close()
        for path in job.outputs:
            records.remove_manifest(path)
    progress.end()


def copy_records(stream: BinaryIO, part: Part, out: BinaryIO) -> None:
    """Copies the records of a part, whose file is given at its beginning."""
    shutil.copyfileobj(_Head(stream, part.bytes), out, 1 << 20)


def _blocks(part: Part) -> list[list[int]]:
    with open(part.path, "rb") as stream:
        return read_tail(stream, part).blocks


def _lengths(part: Part) -> np.ndarray:
    with open(part.path, "rb") as stream:
        return read_tail(stream, part).lengths


class _Head:
    """The first bytes of a stream."""

    def __init__(self, stream, size: int):
        self._read, self._left = stream.read, size

    def read(self, size: int) -> bytes:
        """Returns some of them, nothing at their end."""
        content = self._read(min(size, self._left))
        self._left -= len(content)
        return content
