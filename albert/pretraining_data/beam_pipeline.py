"""Makes pretraining records with Apache Beam, for corpora that need many machines.

The steps are those of `making`, and so are the records. One machine plans the blocks. It holds
24 bytes for each document, which tell where it lies.

Texts and outputs may be anywhere that Beam's file systems reach (gs://, hdfs://, s3://).
Temporary files lie beside the first output, which all machines must reach. The outputs appear
when the whole pipeline is done.
"""

import contextlib
import dataclasses
import importlib
import io
import itertools
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from albert.data import corpus_files, files, records, temporaries, workers
from albert.errors import DataError, FlagError, Preempted, UserError, first_line
from albert.pretraining_data import buckets, dealing, documents, making, reports
from albert.pretraining_data.recipe import Job, Stream, load_tokenizer
from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

_PASSES = 8  # over a block, in one piece of work
_COUNTS, _VOCABULARY = "counts.json", "vocabulary.model"  # files of the working directory
_OUR_ERROR = re.compile(r"albert\.errors\.\w+: (.+?)(?: \[while running .*)?$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Site:
    """A job and the place of its temporary files: all that a machine needs to know."""

    job: Job
    works: Mapping[str, str]  # {directory of outputs: one in it, of what is under way}

    @property
    def work(self) -> str:
        """The directory of temporary files."""
        return self.works[os.path.dirname(self.job.outputs[0])]

    def stream(self, name: str) -> Stream:
        return next(stream for stream in self.job.streams if stream.name == name)

    def output(self, stream: str, number: int) -> str:
        """Returns the name of an output until it is published."""
        directory, name = os.path.split(self.stream(stream).outputs[number])
        return os.path.join(self.works[directory], f"output.{name}")

    def report(self, stream: str, number: int) -> str:
        """Returns the file that tells what an output holds."""
        return os.path.join(self.work, f"{stream}-{number}.json")

    def text_of(self, number: int) -> str:
        """Returns the name of an input's text, where the input itself is no plain UTF-8."""
        return os.path.join(self.work, f"input-{number}.txt")

    def tokenizer(self) -> FullTokenizer:
        """Returns the tokenizer, its vocabulary brought to this machine at the first call."""
        vocabulary = os.path.join(self.work, _VOCABULARY)
        return load_tokenizer(self.job.recipe, lambda: _read(vocabulary))


# === The launcher ===


def require_beam(runner: str) -> None:
    """Raises a FlagError that says what to install, if Beam is not there."""
    # Otherwise a message of Beam's sets up a second way for all messages, ours included.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise FlagError(
            f"--runner={runner} needs Apache Beam, which is not installed: "
            "pip install 'apache-beam>=2.60'"
        ) from error


def is_remote(path: str) -> bool:
    """Whether a path is of another file system than this machine's."""
    return "://" in path


def find_inputs(pattern: str, flag: str) -> list[str]:
    """Does what `files.find_files` does, for remote files too."""
    if not is_remote(pattern):
        return files.find_files(pattern, flag)
    found = sorted(found.path for found in _match(pattern, flag))
    if not found:
        raise DataError(f"--{flag}: no file matches {pattern}")
    return found


def size_of_input(path: str) -> int:
    """Returns the bytes of a file that `find_inputs` found."""
    if not is_remote(path):
        return os.path.getsize(path)
    return _match(path, "input_file")[0].size_in_bytes


def refuse_foreign_output(path: str) -> None:
    """Does what `records.refuse_foreign` does, for remote files too."""
    if not is_remote(path):
        records.refuse_foreign(path)
        return
    where = records.manifest_path(path)
    if _file_systems().exists(path) and not _file_systems().exists(where):
        raise DataError(
            f"{path} is not overwritten: there is no {where}; remove it, or name another"
        )


def _match(pattern: str, flag: str) -> list:
    try:
        return _file_systems().match([pattern])[0].metadata_list
    except Exception as error:  # whatever a file system's library raises
        raise DataError(f"--{flag}: {pattern}: {first_line(error)}") from error


@contextlib.contextmanager
def working_directories(outputs: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yields {directory of outputs: a temporary one in it}; the temporary ones go at the end."""
    works: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for path in outputs:
            directory, work = os.path.dirname(path), f"{path}.work"
            if directory in works:
                continue
            if is_remote(path):
                works[directory] = temporaries.temporary_name(work)
                stack.callback(_delete_remote, works[directory])
            else:
                works[directory] = stack.enter_context(temporaries.temporary_dir(work))
        yield works


def make_records(job: Job, runner: str, arguments: Sequence[str]) -> None:
    """Makes all records of a job with Beam, and only then publishes the first file.

    Args:
      arguments: more of Beam's pipeline options, as on a command line.

    Raises:
      FlagError: Beam does not know the runner, or an option's value; DataError: an input
      cannot be read; UserError: the pipeline failed otherwise.
    """
    started = time.monotonic()
    making.sweep(path for path in job.outputs if not is_remote(path))
    log.info("making records of %.1f MB of text with %s", job.text_bytes / 1e6, runner)
    with (
        workers.preemptible("nothing half-written is left"),
        working_directories(job.outputs) as works,
    ):
        site = Site(job, works)
        _set_up_logging()
        pipeline = _make_pipeline(runner, arguments)
        with open(job.recipe.vocabulary, "rb") as stream:
            _write(os.path.join(site.work, _VOCABULARY), stream.read())
        _build(pipeline, site)
        _run(pipeline, runner)
        counts = documents.ReadingCounts(**json.loads(_read(os.path.join(site.work, _COUNTS))))
        parts = {stream.name: _outcome(site, stream) for stream in job.streams}
        reports.report_reading(job, counts)
        reports.check_outputs(job, parts, counts.documents)
        report = reports.Report.of(job, parts, counts, lambda part: _tail(part).lengths)
        _publish(job, parts, report, counts)
        reports.report_outcome(job, parts, report, started)


def _set_up_logging() -> None:
    theirs = logging.getLogger("apache_beam")
    theirs.setLevel(logging.WARNING)
    theirs.handlers[:] = log.handlers
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


def _outcome(site: Site, stream: Stream) -> list[buckets.Part]:
    """Returns what was made of a stream's outputs; of one without records, an empty part."""
    parts = []
    for number in range(len(stream.outputs)):
        path, where = site.output(stream.name, number), site.report(stream.name, number)
        told = [0, 0, [], buckets.PairFacts()]
        if _file_systems().exists(where):
            told = json.loads(_read(where))
        parts.append(buckets.Part(path, *told))
    return parts


def _tail(part: buckets.Part) -> buckets.Tail:
    """Returns the tail of an output, which is a file of its own."""
    return buckets.read_tail(io.BytesIO(_read(_tail_of(part.path))), part._replace(bytes=0))


def _tail_of(path: str) -> str:
    return f"{path}.tail"


def _publish(
    job: Job, parts: reports.Parts, report: reports.Report, counts: documents.ReadingCounts
) -> None:
    """Gives all outputs their names, then writes their manifests."""
    spec, manifests = job.recipe.feature_spec(), {}
    outputs = [(stream, path, part) for stream in job.streams
               for path, part in zip(stream.outputs, parts[stream.name], strict=True)]
    for stream, path, part in outputs:
        info = reports.manifest_info(job, stream, path, counts, report)
        manifests[path] = records.manifest(_tail(part).blocks, spec, info)
    for path in job.outputs:
        _delete(records.manifest_path(path))
    for _, path, part in outputs:
        _file_systems().rename([part.path], [path])
    for path, manifest in manifests.items():
        _write(records.manifest_path(path), files.sealed_json_text(manifest).encode())


# === The pipeline ===


def _build(pipeline, site: Site) -> None:
    import apache_beam as beam

    scans = (
        pipeline
        | "Files" >> beam.Create(range(len(site.job.inputs)))
        | "SpreadFiles" >> beam.Reshuffle()
        | "FindDocuments" >> beam.Map(_scan, site)
    )
    (
        pipeline
        | "Corpus" >> beam.Create([0])
        | "PlanBlocks" >> beam.FlatMap(_plan, site, beam.pvalue.AsList(scans))
        | "SpreadBlocks" >> beam.Reshuffle()
        | "PairBlocks" >> beam.FlatMap(_pair, site)
        | "GatherBuckets" >> beam.GroupByKey()
        | "FinishBuckets" >> beam.Map(_finish, site)
        | "GatherOutputs" >> beam.GroupByKey()
        | "WriteOutputs" >> beam.Map(_assemble, site)
    )


def _scan(number: int, site: Site) -> tuple[int, documents.FileScan]:
    name, preprocess, form = site.job.inputs[number], site.tokenizer().preprocess, site.job.form
    with _open(name) as stream:
        text, layout = corpus_files.as_lines(stream, name, form)
        if text is stream:
            return number, documents.scan_file(stream, name, preprocess, layout, form.language)
        # Blocks are read at their places, which a packed file does not have: so its text is
        # written out once, for the time of the run.
        with _create(site.text_of(number)) as out:
            shutil.copyfileobj(text, out, 1 << 20)
    with _open(site.text_of(number)) as stream:
        return number, documents.scan_file(stream, name, preprocess, layout, form.language)


_Places = list[tuple[int, documents.Run]]  # of a document: [(number of the file, run)]


def _plan(
    _, site: Site, scans: list[tuple[int, documents.FileScan]]
) -> Iterator[dealing.BlockTask]:
    """Yields the tasks, whose documents are `_Places`."""
    counts = documents.ReadingCounts()
    ordered = [scan for _, scan in sorted(scans, key=lambda scan: scan[0])]
    for scan in ordered:
        counts.add(scan.counts)

    def counted() -> Iterator[tuple[_Places, int]]:
        for document in documents.join_scans(ordered, site.job.break_between_files):
            counts.documents += 1
            yield document

    yield from dealing.plan_blocks(site.job, counted(), counts.bytes, lambda stream: _PASSES)
    _write(os.path.join(site.work, _COUNTS), json.dumps(dataclasses.asdict(counts)).encode())


# (number of the block, its first pass, table, tokens) of the pairs of one bucket
_Pairs = tuple[int, int, bytes, bytes]


def _pair(task: dealing.BlockTask, site: Site) -> Iterator[tuple[tuple[str, int], _Pairs]]:
    dtype = dealing.token_type(site.tokenizer())
    read = task._replace(documents=_read_documents(site, task.documents))
    pairs = dealing.pair_block(site.job.recipe, read)
    ends = np.cumsum(pairs.counts)
    for bucket in np.flatnonzero(pairs.counts).tolist():
        some = slice(int(ends[bucket] - pairs.counts[bucket]), int(ends[bucket]))
        table, tokens = pairs.table(some).tobytes(), pairs.tokens(dtype, some).tobytes()
        yield (task.stream, bucket), (task.index, task.passes.start, table, tokens)


def _read_documents(site: Site, wanted: Sequence[_Places]) -> list[documents.Document]:
    texts: list[documents.Document] = [[] for _ in wanted]
    places = [(number, run, text) for text, runs in zip(texts, wanted, strict=True)
              for number, run in runs]
    preprocess, language = site.tokenizer().preprocess, site.job.form.language
    for number, group in itertools.groupby(places, key=lambda place: place[0]):
        apart = site.text_of(number)
        path = apart if _file_systems().exists(apart) else site.job.inputs[number]
        with _open(path) as stream:
            for _, run, text in group:
                text += documents.read_run(stream, run, preprocess, language)
    return texts


def _finish(
    bucket: tuple[tuple[str, int], Iterable[_Pairs]], site: Site
) -> tuple[tuple[str, int], tuple[int, buckets.Part]]:
    """Returns ((stream, number of the output), (number of the bucket, its part))."""
    (stream, number), pairs = bucket
    dtype, ordered = dealing.token_type(site.tokenizer()), sorted(pairs, key=lambda pair: pair[:2])
    table = np.frombuffer(b"".join(pair[2] for pair in ordered), "<i4")
    table = table.reshape(-1, dealing.PAIR_NUMBERS).astype(np.int64)
    ids = np.frombuffer(b"".join(pair[3] for pair in ordered), dtype)
    del ordered
    examples = site.stream(stream).examples(number)
    framed = buckets.frame_bucket(site.job.recipe, stream, number, table, ids, examples)
    path = os.path.join(site.work, f"{stream}-{number}.part")
    with _create(path) as out:
        part = buckets.write_part(
            path, out, framed, *buckets.facts_of(site.job.recipe, table, ids)
        )
    return (stream, number % len(site.stream(stream).outputs)), (number, part)


def _assemble(
    output: tuple[tuple[str, int], Iterable[tuple[int, buckets.Part]]], site: Site
) -> None:
    (stream, number), finished = output
    parts = [part for _, part in sorted(finished)]
    blocks, lengths = [], 0
    with _create(site.output(stream, number)) as out:
        for part in parts:
            with _open(part.path) as content:
                making.copy_records(content, part, out)
                tail = buckets.read_tail(content, part)
            blocks += tail.blocks
            lengths += tail.lengths
    _write(_tail_of(site.output(stream, number)), bytes(buckets.Tail(blocks, lengths)))
    whole = buckets.Part(
        "", sum(part.records for part in parts), sum(part.bytes for part in parts),
        [text for part in parts for text in part.examples],
        sum((part.facts for part in parts), buckets.PairFacts()),
    )
    _write(site.report(stream, number), json.dumps(whole[1:]).encode())


# === Files, wherever they are ===


def _file_systems():
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def _open(path: str) -> BinaryIO:
    from apache_beam.io.filesystem import CompressionTypes

    try:
        return _file_systems().open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or first_line(error)}") from error


@contextlib.contextmanager
def _create(path: str) -> Iterator[BinaryIO]:
    """Yields a file that becomes `path` when the block ends well.

    Two machines may do the same piece of work, one of them given up for lost:
    each writes a file of its own, and the last one's name counts.
    """
    from apache_beam.io.filesystem import CompressionTypes

    stem, _, ending = path.rpartition(".")
    own = f"{stem}.{uuid.uuid4().hex}.{ending}"
    with _file_systems().create(own, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
        yield stream
        if not is_remote(path):
            stream.flush()
            os.fsync(stream.fileno())
    _file_systems().rename([own], [path])


def _write(path: str, content: bytes) -> None:
    with _create(path) as stream:
        stream.write(content)


def _read(path: str) -> bytes:
    with _open(path) as stream:
        return stream.read()


def _delete(path: str) -> None:
    """Removes a file, if it is there."""
    if _file_systems().exists(path):
        _file_systems().delete([path])


def _delete_remote(directory: str) -> None:
    """Removes a directory, which in some file systems is but a part of its files' names."""
    for item in _match(f"{directory}/*", "output_file"):
        _delete(item.path)
    _delete(directory)
