"""Where the temporary files of a job are, and who of several machines makes what of it.

One machine works in a directory of its own, which goes at the end. Several, each with
`--task=i/n`, share one, in which each has its own. There they wait for each other twice: until all
pairs are dealt out, and until all buckets are finished. The last one publishes.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator

from albert import __version__
from albert.errors import DataError, RunDirBusyError, UserError
from albert.pretraining_data.buckets import Part
from albert.pretraining_data.journal import NAME as JOURNAL
from albert.pretraining_data.journal import Journal, read_journal, result_of
from albert.pretraining_data.recipe import Job, Stream
from albert.pretraining_data.spills import LAYOUT, resume
from albert.records import records
from albert.storage import files, temporaries
from albert.text.documents import ReadingCounts

log = logging.getLogger("albert")

_JOB_FILE = "job.json"
_POLL = 0.5  # seconds
_LOOKED, _SAID = 10, 240  # polls between two looks at the outputs, and between two messages
_TRIES = 40  # to remove a directory
_PROCESSES = 16  # that a machine of several may have: the work is divided the same everywhere


class PublishedError(Exception):
    """All records are made already."""


@dataclasses.dataclass(frozen=True)
class Share:
    """One of `count` machines, from 0."""

    number: int
    count: int


ALL = Share(0, 1)  # one machine makes everything


def parse(text: str) -> Share:
    """Returns the share of "i/n", i from 1 to n.

    Raises:
      ValueError: it is none.
    """
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError(text)
    return Share(number - 1, count)


def part_name(stream: str, bucket: int) -> str:
    """Returns the name of the file of a finished bucket."""
    return f"{stream}-{bucket}.part"


@dataclasses.dataclass(frozen=True)
class Place:
    """The directories of a job, and this machine's share."""

    job: Job
    share: Share
    all: tuple[str, ...]  # of each machine
    journal: Journal  # of this one's
    processes: int  # for which the work is divided: those of the job's first run

    @property
    def own(self) -> str:
        """This machine's directory."""
        return self.all[self.share.number]

    def step_of(self, job: Job) -> Callable[[Stream], int]:
        """Returns how many passes over a block are one piece of work."""
        blocks, processes = -(-job.text_bytes // job.block_characters), self.processes
        # A small corpus has fewer blocks than there are processes: then the
        # passes over a block are shared out.
        count = max(1, -(-2 * processes // blocks)) if processes > 1 else 1
        return lambda stream: -(-stream.passes // min(count, stream.passes))

    def wait_for(self, stage: str, counts: ReadingCounts) -> None:
        """Says that this machine has done a stage, and waits for the others.

        Raises:
          UserError: they read another text; PublishedError: they have published.
        """
        if len(self.all) == 1:
            return
        told = dataclasses.asdict(counts)
        files.write_json(os.path.join(self.own, f"{stage}.json"), told)
        for poll in itertools.count():
            missing = [n for n in range(len(self.all)) if not self._is_done(stage, n)]
            if not missing:
                break
            if poll % _SAID == 0:
                log.info("waiting until all pairs are %s by task %s of %d", stage,
                         ", ".join(str(n + 1) for n in missing), len(self.all))
            if poll % _LOOKED == 0 and _is_published(self.job):
                raise PublishedError
            time.sleep(_POLL)
        for directory in self.all:
            path = os.path.join(directory, f"{stage}.json")
            if os.path.exists(path) and files.read_json(path) != told:
                raise UserError(f"{path}: that machine read another text than this one")

    def _is_done(self, stage: str, number: int) -> bool:
        return os.path.exists(os.path.join(self.all[number], f"{stage}.json"))

    @contextlib.contextmanager
    def last(self) -> Iterator[bool]:
        """Tells whether this machine is the one that publishes; of several, none else does then."""
        if len(self.all) == 1:
            yield True
            return
        shared = os.path.dirname(self.own)
        if not os.path.exists(shared):
            yield False
            return
        try:
            with temporaries.lock_run_dir(shared):
                yield not _is_published(self.job)
                _remove(shared)
        except RunDirBusyError:
            log.info("another task publishes the records")
            yield False

    def all_parts(self, mine: dict[str, list[Part]]) -> dict[str, list[Part]]:
        """Returns the finished buckets of all machines, in order."""
        if len(self.all) == 1:
            return mine
        notes = [read_journal(directory) for directory in self.all]
        known = {name.split("-")[0] for note in notes for name in note}
        found: dict[str, list[Part]] = {}
        for stream in self.job.streams:
            parts = found[stream.name] = []
            buckets = stream.buckets(self.job.text_bytes) if stream.name in known else 0
            for bucket in range(buckets):
                number, name = bucket % len(self.all), part_name(stream.name, bucket)
                directory = self.all[number]
                result = result_of(notes[number], directory, name)
                if result is None:
                    raise UserError(f"{directory}/{name} is gone or damaged: start task "
                                    f"{number + 1}/{len(self.all)} again, and this one")
                parts.append(Part(os.path.join(directory, name), *result))
        return found


@contextlib.contextmanager
def working_place(job: Job, share: Share, processes: int) -> Iterator[Place]:
    """Yields a job's place: a new one, or what a killed run of the same job left.

    Raises:
      RunDirBusyError: this share is under way; DataError: others make other records there;
      PublishedError: of several machines, the last one has published.
    """
    with _alone(job, processes) if share == ALL else _together(job, share) as place:
        try:
            yield place
        finally:
            place.journal.close()


@contextlib.contextmanager
def _alone(job: Job, processes: int) -> Iterator[Place]:
    with temporaries.work_folder(job.outputs[0], _identity(job), JOURNAL) as scratch:
        _sweep(job)
        resume(scratch)
        journal = Journal(scratch)
        _say_what_is_left(journal)
        yield Place(job, ALL, (scratch,), journal, _first_processes(scratch, processes))


def _first_processes(scratch: str, processes: int) -> int:
    """Returns how many processes the job's first run had; it is this one's number if it is new.

    What is done is named after its share of the work, which depends on their number.
    """
    path = os.path.join(scratch, "processes.json")
    if not os.path.exists(path):
        files.write_json(path, processes)
    return files.read_json(path)


@contextlib.contextmanager
def _together(job: Job, share: Share) -> Iterator[Place]:
    if _is_published(job):
        raise PublishedError
    shared, identity = f"{os.path.abspath(job.outputs[0])}.tasks", _identity(job, share.count)
    directories = tuple(
        os.path.join(shared, f"{n + 1}-of-{share.count}") for n in range(share.count)
    )
    try:
        _sweep(job)
        files.make_dirs(shared)
        path = os.path.join(shared, _JOB_FILE)
        if not os.path.exists(path):  # two that write it at once write the same
            files.write_json(path, {"job": identity})
        if _identity_of(shared) != identity:
            raise DataError(f"{shared} is of other records (of other flags, another text or another "
                            "number of tasks): remove it, or give another --output_file")
        own = directories[share.number]
        with temporaries.lock_run_dir(own):
            resume(own)
            journal = Journal(own)
            _say_what_is_left(journal)
            yield Place(job, share, directories, journal, _PROCESSES * share.count)
    except PublishedError:
        _remove(shared)
        raise
    except UserError as error:
        # The last machine may publish, and remove the directory, while this one looks into it.
        if not _is_published(job):
            raise
        raise PublishedError from error


def _remove(shared: str) -> None:
    """Removes the directory of all machines, to which some may write a last word meanwhile."""
    for _ in range(_TRIES):
        shutil.rmtree(shared, ignore_errors=True)
        if not os.path.exists(shared):
            return
        time.sleep(_POLL / 10)


def _say_what_is_left(journal: Journal) -> None:
    if count := len(journal):
        log.info("resuming an unfinished run: %d of its tasks are done", count)


def _sweep(job: Job) -> None:
    for path in job.outputs:
        temporaries.sweep_litter(files.make_dirs(os.path.dirname(os.path.abspath(path))))


def _is_published(job: Job) -> bool:
    """Whether the outputs are of these flags and newer than the text."""
    newest = max(os.stat(path).st_mtime for path in job.inputs)
    for path in job.outputs:
        where = records.manifest_path(path)
        try:
            found = files.read_sealed_json(where)["info"]
        except (DataError, KeyError):
            return False
        if (
            not files.is_same_json(found.get("flags"), job.flags)
            or not os.path.exists(path) or os.path.getmtime(where) < newest
        ):
            return False
    return True


def _identity(job: Job, tasks: int = 1) -> str:
    """Returns a digest of all that decides the records."""
    texts = [(path, (stat := os.stat(path)).st_size, stat.st_mtime_ns) for path in job.inputs]
    told = [job.flags, dataclasses.asdict(job.form), job.recipe.vocabulary_sha256, texts,
            __version__, LAYOUT, tasks]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _identity_of(scratch: str) -> str | None:
    try:
        return files.read_json_object(os.path.join(scratch, _JOB_FILE)).get("job")
    except DataError:
        return None
