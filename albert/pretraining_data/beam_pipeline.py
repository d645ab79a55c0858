"""Makes pretraining records with Apache Beam, for corpora that need many machines.

The records are those of `making`. One machine plans the blocks. It holds
24 bytes for each document, which tell where it lies.

Texts and outputs may be anywhere that Beam's file systems reach (gs://, hdfs://, s3://).
Temporary files lie beside the first output, which all machines must reach. The outputs appear
when the whole pipeline is done.
"""

import contextlib
import importlib
import io
import json
import logging
import os
import re
import time
from collections.abc import Sequence

from albert.errors import DataError, FlagError, Preempted, UserError, first_line
from albert.pretraining_data import beam_files, beam_steps, buckets, making, reports
from albert.pretraining_data.recipe import Job, Stream
from albert.records import records
from albert.runtime import workers
from albert.text import documents

log = logging.getLogger("albert")

_OUR_ERROR = re.compile(r"albert\.errors\.\w+: (.+?)(?: \[while running .*)?$", re.MULTILINE)


def require_beam(runner: str) -> None:
    """Raises a FlagError that says what to install, if Beam is not there."""
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise FlagError(
            f"--runner={runner} needs Apache Beam, which is not installed: "
            "pip install 'apache-beam>=2.60'"
        ) from error


def make_records(job: Job, runner: str, arguments: Sequence[str]) -> None:
    """Makes all records of a job with Beam, and only then publishes the first file.

    Args:
      arguments: more of Beam's pipeline options, as on a command line.

    Raises:
      FlagError: Beam does not know the runner, or an option's value; DataError: an input
      cannot be read; UserError: the pipeline failed otherwise.
    """
    started = time.monotonic()
    making.sweep(path for path in job.outputs if not beam_files.is_remote(path))
    log.info("making records of %.1f MB of text with %s", job.text_bytes / 1e6, runner)
    with (
        workers.preemptible("nothing half-written is left"),
        beam_files.working_directories(job.outputs) as works,
    ):
        site = beam_steps.Site(job, works)
        _set_up_logging()
        pipeline = _make_pipeline(runner, arguments)
        with open(job.recipe.vocabulary, "rb") as stream:
            beam_files.write(os.path.join(site.work, beam_steps.VOCABULARY), stream.read())
        beam_steps.build(pipeline, site)
        _run(pipeline, runner)
        told = beam_files.read(os.path.join(site.work, beam_steps.COUNTS))
        counts = documents.ReadingCounts(**json.loads(told))
        parts = {stream.name: _outcome(site, stream) for stream in job.streams}
        reports.report_reading(job, counts)
        reports.check_outputs(job, parts, counts.documents)
        report = reports.Report.of(
            job, parts, counts, lambda part: beam_steps.tail(part).lengths
        )
        _publish(job, parts, report, counts)
        reports.report_outcome(job, parts, report, started)


def _set_up_logging() -> None:
    theirs = logging.getLogger("apache_beam")
    theirs.setLevel(logging.WARNING)
    theirs.handlers[:], theirs.propagate = log.handlers, False
    # It tells an error of a step in many lines, which then is told once more.
    logging.getLogger("apache_beam.runners").setLevel(logging.CRITICAL)


def _make_pipeline(runner: str, arguments: Sequence[str]):
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    said = io.StringIO()
    try:
        if "." in runner:  # its options are known once its module is there
            importlib.import_module(runner.rpartition(".")[0])
        with contextlib.redirect_stderr(said):
            options = PipelineOptions([f"--runner={runner}", *arguments])
            options.get_all_options()  # which looks at the values
            return beam.Pipeline(options=options)
    except SystemExit as error:  # of argparse
        line = (said.getvalue().strip().splitlines() or ["unusable"])[-1]
        raise FlagError(f"options of --runner={runner}: {line}") from error
    except Exception as error:
        raise FlagError(f"--runner={runner}: {first_line(error)}") from error


def _run(pipeline, runner: str) -> None:
    result = None
    try:
        result = pipeline.run()
        state = result.wait_until_finish()
    except BaseException as error:
        stopped = _stopped(error)
        if isinstance(error, Exception) and not stopped:
            raise _blame(error, runner) from error
        if result:  # a signal: the machines need not go on
            with contextlib.suppress(Exception):
                result.cancel()
        raise (stopped or error) from None
    if state not in (None, "DONE"):
        raise UserError(f"--runner={runner}: the pipeline ended as {state}")


def _stopped(error: BaseException | None) -> Preempted | None:
    """Returns the signal's error, which Beam may have wrapped in one of its own."""
    while error is not None and not isinstance(error, Preempted):
        error = error.__cause__ or error.__context__
    return error


def _blame(error: Exception, runner: str) -> UserError:
    """Returns our own error that a step raised, or one with the last line of Beam's."""
    ours = _OUR_ERROR.findall(str(error))
    if ours:
        return DataError(ours[-1])
    log.error("%s", error)
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return UserError(f"--runner={runner}: the pipeline failed: {(lines or [repr(error)])[-1]}")


def _outcome(site: beam_steps.Site, stream: Stream) -> list[buckets.Part]:
    """Returns what was made of a stream's outputs; of one without records, an empty part."""
    parts = []
    for number in range(len(stream.outputs)):
        path, where = site.output(stream.name, number), site.report(stream.name, number)
        told = [0, 0, [], buckets.PairFacts()]
        if beam_files.file_systems().exists(where):
            told = json.loads(beam_files.read(where))
        parts.append(buckets.Part(path, *told))
    return parts


def _publish(
    job: Job, parts: reports.Parts, report: reports.Report, counts: documents.ReadingCounts
) -> None:
    """Gives all outputs their names, then writes their manifests."""
    spec, manifests = job.recipe.feature_spec(), {}
    outputs = [(stream, path, part) for stream in job.streams
               for path, part in zip(stream.outputs, parts[stream.name], strict=True)]
    for stream, path, part in outputs:
        info = reports.manifest_info(job, stream, path, counts, report)
        manifests[path] = records.Manifest.of(beam_steps.tail(part).blocks, spec, info)
    for path in job.outputs:
        beam_files.delete(records.manifest_path(path))
    for _, path, part in outputs:
        beam_files.file_systems().rename([part.path], [path])
    for path, manifest in manifests.items():
        beam_files.write(records.manifest_path(path), manifest.text().encode())
