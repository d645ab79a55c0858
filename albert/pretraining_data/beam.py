"""Makes records with Apache Beam, on any number of machines that share a file system.

One machine reads the text and distributes blocks. The others make pairs, gather buckets and write
parts of the records, with the functions of `parts`, so that both ways make the same records.
"""

import contextlib
import dataclasses
import importlib
import io
import json
import logging
import os
import posixpath
import re
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from albert.errors import DataError, FlagError, Preempted, UserError, first_line
from albert.pretraining_data import parts, pipeline, report, shuffle
from albert.pretraining_data.job import Job, Recipe, load_tokenizer
from albert.pretraining_data.outputs import publish
from albert.pretraining_data.pairs import PAIR
from albert.runtime import workers
from albert.storage import filesystem, fsspec_calls, locks, mirrors
from albert.text.documents import ReadingCounts

log = logging.getLogger("albert")

_OUR_ERROR = re.compile(r"albert\.errors\.\w+: (.+?)(?: \[while running .*)?$", re.MULTILINE)
_MACHINES = 8  # number of parts of a small text
_COUNTS, _VOCABULARY = "counts.json", "vocabulary"  # files in the work folder
_KEY = "beam"  # of the parts


def require_beam(runner: str) -> None:
    """Raises a FlagError with the installation command if Beam is missing."""
    try:
        import apache_beam  # noqa: F401
        import fsspec  # noqa: F401
    except ImportError as error:
        raise FlagError(
            f"--runner={runner} needs Apache Beam, which is not installed: "
            "pip install 'albert-keras[beam]'"
        ) from error


def make_records(job: Job, runner: str, arguments: Sequence[str]) -> None:
    """Makes all records of a job with Beam, then publishes them.

    Args:
      arguments: options of the runner, as on a command line.

    Raises:
      FlagError: Beam does not know the runner or an option; DataError: an input cannot be read;
      UserError: the pipeline failed otherwise.
    """
    started = time.monotonic()
    log.info("making records of %.1f MB of text with %s", job.text_bytes / 1e6, runner)
    # Only the machine that reads the text sees its blocks; so the files identify it.
    text = [[path, *filesystem.stamp(path)] for path in job.inputs]
    identity = json.dumps([pipeline.job_digest(job), text])
    with (
        workers.preemptible("rerun the command to resume"), _work_folder(job, identity) as work,
    ):
        _set_up_logging()
        beam_pipeline = _make_pipeline(runner, arguments)
        fs, _ = fsspec_calls.file_system(work)
        with open(job.recipe.vocabulary, "rb") as stream:
            fs.pipe_file(f"{work}/{_VOCABULARY}", stream.read())
        _build(beam_pipeline, job, work, _done(fs, work))
        _run(beam_pipeline, runner)
        counts = ReadingCounts(**json.loads(fs.cat_file(f"{work}/{_COUNTS}")))
        report.report_reading(job, counts)
        if filesystem.is_remote(work):
            mirrors.open_mirror(work).check_owner()
        publish(job, [
            parts.read_output(split, number, work, _KEY)
            for split in job.splits for number in range(len(split.outputs))
        ], counts)
    log.info("finished in %.1f s", time.monotonic() - started)


@contextlib.contextmanager
def _work_folder(job: Job, identity: str) -> Iterator[str]:
    """Yields the folder of the parts, next to the first output; removed on success only.

    It keeps the parts of an earlier run of the same job on the same text.
    """
    output = job.outputs[0]
    if not filesystem.is_remote(output):
        with locks.work_folder(job.outputs, identity) as work:
            try:
                yield work
            except BaseException:
                if not _done(fsspec_calls.file_system(work)[0], work):  # nothing to resume
                    for name in {_COUNTS, _VOCABULARY} & set(os.listdir(work)):
                        os.unlink(f"{work}/{name}")
                raise
        return
    folder, name = posixpath.split(output)
    work = posixpath.join(folder, f".{name}.work")
    fs, _ = fsspec_calls.file_system(work)
    owned = mirrors.open_mirror(work)
    with locks.hold(work):
        owned.own()
        if not fs.exists(f"{work}/job") or fs.cat_file(f"{work}/job").decode() != identity:
            for path in fs.find(work) if fs.exists(work) else ():
                if not path.endswith("/.owner"):
                    fs.rm_file(path)
            fs.pipe_file(f"{work}/job", identity.encode())
        yield work
    fs.rm(work, recursive=True)


_Bucket = tuple[str, int]  # split and number


def _done(fs, work: str) -> list[_Bucket]:
    """Returns the buckets whose parts an earlier run has written."""
    names = (path.rpartition("/")[2] for path in fs.find(work))
    done = [re.fullmatch(rf"(\w+)-{_KEY}-(\d+)\.part\.json", name) for name in names]
    return [(match[1], int(match[2])) for match in done if match]


# === The steps ===


def _build(beam_pipeline, job: Job, work: str, done: list[_Bucket]) -> None:
    import apache_beam as beam

    if done:
        log.info("resuming an unfinished run: %d buckets were written", len(done))
    written = (
        beam_pipeline
        | "Corpus" >> beam.Create([0])
        | "ReadBlocks" >> beam.FlatMap(_read_blocks, job, work)
        | "SpreadBlocks" >> beam.Reshuffle()
        | "PairBlocks" >> beam.FlatMap(_pair, job, work, frozenset(done))
        | "GatherBuckets" >> beam.GroupByKey()
        | "WriteBuckets" >> beam.Map(_write_bucket, job, work)
    )
    earlier = beam_pipeline | "EarlierBuckets" >> beam.Create(done)
    (
        (written, earlier)
        | "AllBuckets" >> beam.Flatten()
        | "OfOutputs" >> beam.Map(_with_output, job)
        | "GatherOutputs" >> beam.GroupByKey()
        | "JoinOutputs" >> beam.Map(_join, job, work)
    )


def _recipe(job: Job, work: str) -> Recipe:
    """Returns the recipe, after loading its tokenizer on this machine."""
    def fetch(folder: str) -> str:
        path = os.path.join(folder, os.path.basename(job.recipe.vocabulary))
        fs, _ = fsspec_calls.file_system(work)
        fs.get_file(f"{work}/{_VOCABULARY}", path)
        return path

    load_tokenizer(job.recipe, fetch)
    return job.recipe


def _read_blocks(_, job: Job, work: str) -> Iterator[shuffle.BlockTask]:
    _recipe(job, work)
    counts = ReadingCounts()
    yield from shuffle.block_tasks(job, pipeline.read(job, counts), _MACHINES)
    fs, _ = fsspec_calls.file_system(work)
    fs.pipe_file(f"{work}/{_COUNTS}", json.dumps(dataclasses.asdict(counts)).encode())


# (number of the block, its first pass, pairs, tokens) of one bucket
_Pairs = tuple[int, int, bytes, bytes]


def _pair(
    task: shuffle.BlockTask, job: Job, work: str, done: frozenset[_Bucket]
) -> Iterator[tuple[_Bucket, _Pairs]]:
    recipe = _recipe(job, work)
    block = shuffle.load_block(recipe, task)
    pairs, counts = shuffle.deal_pairs(recipe, block, task, task.passes)
    ends, dtype = np.cumsum(counts), shuffle.token_dtype(recipe)
    for bucket in np.flatnonzero(counts).tolist():
        if (task.split, bucket) in done:
            continue
        part = pairs[ends[bucket] - counts[bucket] : ends[bucket]]
        tokens = b"".join(ids.tobytes() for ids in shuffle.gather(block.ids, part, dtype))
        yield (task.split, bucket), (task.index, task.passes.start, part.tobytes(), tokens)


def _write_bucket(bucket: tuple[_Bucket, Iterable[_Pairs]], job: Job, work: str) -> _Bucket:
    (name, number), pairs = bucket
    recipe = _recipe(job, work)
    dtype = shuffle.token_dtype(recipe)
    ordered = sorted(pairs, key=lambda of_block: of_block[:2])
    joined = shuffle.join_buckets(
        ((np.frombuffer(pairs, PAIR), np.frombuffer(ids, dtype)) for *_, pairs, ids in ordered),
        dtype,
    )
    parts.write(recipe, name, number, joined, parts.path_of(work, _KEY, name, number))
    return name, number


def _with_output(bucket: _Bucket, job: Job) -> tuple[tuple[str, int], int]:
    """Returns the output of a bucket, and the bucket's number."""
    (split,) = (split for split in job.splits if split.name == bucket[0])
    return (split.name, bucket[1] % len(split.outputs)), bucket[1]


def _join(output: tuple[tuple[str, int], Iterable[int]], job: Job, work: str) -> None:
    (name, number), buckets = output
    (split,) = (split for split in job.splits if split.name == name)
    parts.join(split, number, work, _KEY, buckets)


# === Beam itself ===


def _set_up_logging() -> None:
    beam_log = logging.getLogger("apache_beam")
    beam_log.setLevel(logging.WARNING)
    beam_log.handlers[:], beam_log.propagate = log.handlers, False
    # Beam logs the error of a step in many lines, and reports it again at the end.
    logging.getLogger("apache_beam.runners").setLevel(logging.CRITICAL)


def _make_pipeline(runner: str, arguments: Sequence[str]):
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    stderr = io.StringIO()
    try:
        if "." in runner:  # importing its module defines its options
            importlib.import_module(runner.rpartition(".")[0])
        with contextlib.redirect_stderr(stderr):
            options = PipelineOptions([f"--runner={runner}", *arguments])
            options.get_all_options()  # checks the values
            return beam.Pipeline(options=options)
    except SystemExit as error:  # of argparse
        line = (stderr.getvalue().strip().splitlines() or ["invalid"])[-1]
        raise FlagError(f"options of --runner={runner}: {line}") from error
    except Exception as error:
        raise FlagError(f"--runner={runner}: {first_line(error)}") from error


def _run(beam_pipeline, runner: str) -> None:
    result = None
    try:
        result = beam_pipeline.run()
        state = result.wait_until_finish()
    except BaseException as error:
        preempted: BaseException | None = error  # Beam may wrap it
        while preempted is not None and not isinstance(preempted, Preempted):
            preempted = preempted.__cause__ or preempted.__context__
        if isinstance(error, Exception) and not preempted:
            raise _user_error(error, runner) from error
        if result:  # after a signal, stop the machines
            with contextlib.suppress(Exception):
                result.cancel()
        raise (preempted or error) from None
    if state not in (None, "DONE"):
        raise UserError(f"--runner={runner}: the pipeline ended as {state}")


def _user_error(error: Exception, runner: str) -> UserError:
    """Returns the error of ours that a step raised, or one with the last line of Beam's."""
    ours = _OUR_ERROR.findall(str(error))
    if ours:
        return DataError(ours[-1])
    log.error("%s", error)
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return UserError(f"--runner={runner}: the pipeline failed: {(lines or [repr(error)])[-1]}")
