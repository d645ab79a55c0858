"""Makes the parts of records with Apache Beam, on machines that share a folder.

One machine reads the text and distributes blocks; the others make their records, with the functions
of `pipeline`, so that both ways make the same files. The runner retries what fails.
"""

import contextlib
import dataclasses
import importlib
import io
import logging
import os
import re
from collections.abc import Iterator, Sequence

from albert.errors import DataError, FlagError, UserError
from albert.pretraining_data import pipeline
from albert.pretraining_data.job import Job
from albert.storage import files
from albert.text.documents import ReadingCounts

log = logging.getLogger("albert")

_OUR_ERROR = re.compile(r"albert\.errors\.\w+: (.+?)(?: \[while running .*)?$", re.MULTILINE)


def require_beam(runner: str) -> None:
    """Raises a FlagError with the installation command if Beam is missing."""
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise FlagError(f"--runner={runner} needs Apache Beam ({error}): "
                        "pip install 'albert-keras[beam]'") from error


def make_parts(
    job: Job, counts: ReadingCounts, work: str, runner: str, arguments: Sequence[str]
) -> dict[str, list[str]]:
    """Makes the missing parts with Beam; see `pipeline.make_parts`.

    Args:
      arguments: options of the runner, as on a command line.

    Raises:
      DataError: an input cannot be read; UserError: the pipeline failed otherwise.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    log.info("making records of %.1f MB of text with %s", job.text_bytes / 1e6, runner)
    # Beam logs the error of a step in many lines, and reports it again at the end.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    usage = io.StringIO()  # argparse prints an error there, and exits
    try:
        if "." in runner:  # importing its module defines its options
            importlib.import_module(runner.rpartition(".")[0])
        with contextlib.redirect_stderr(usage):
            steps = beam.Pipeline(options=PipelineOptions([f"--runner={runner}", *arguments]))
            (steps | beam.Create([job]) | beam.FlatMap(_read, work) | beam.Reshuffle()
             | beam.MapTuple(pipeline.store_part))
            steps.run().wait_until_finish()
    except (SystemExit, Exception) as error:
        if ours := _OUR_ERROR.findall(str(error)):  # raised by a step
            raise DataError(ours[-1]) from error
        lines = (usage.getvalue().strip() or str(error).strip() or repr(error)).splitlines()
        if len(lines) > 1 and not usage.getvalue():
            log.error("%s", error)
        raise UserError(f"--runner={runner}: {lines[-1]}") from error
    found = files.read_json(os.path.join(work, "parts.json"))
    vars(counts).update(found["counts"])
    return found["parts"]


def _read(job: Job, work: str) -> Iterator[tuple]:
    """Yields the arguments of `store_part` of each missing part, then writes the reading counts."""
    counts = ReadingCounts()
    parts: dict[str, list[str]] = {split: [] for split in job.outputs}
    for name, _, task in pipeline.read_tasks(job, counts):
        parts[task[1]].append(path := os.path.join(work, name))
        if not pipeline.is_complete(path):
            yield *task, path
    files.write_json(
        os.path.join(work, "parts.json"), {"parts": parts, "counts": dataclasses.asdict(counts)}
    )
