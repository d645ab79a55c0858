"""The making of pre-training records as an Apache Beam pipeline, for corpora of many machines.

The steps are those of `create_pretraining_data`, and so are the records:

  files -> where their documents are -> blocks (planned on one machine, from
  24 bytes a document) -> pairs, dealt out to buckets -> finished buckets ->
  output files

Texts and outputs may be anywhere that Beam's file systems reach (gs://,
hdfs://, s3://); what is under way lies beside the first output, which all
machines must reach. Nothing has its name before the whole pipeline is done.
"""

import contextlib
import dataclasses
import io
import itertools
import json
import logging
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from albert.data import files, records, text_files
from albert.errors import DataError, FlagError, Preempted, UserError, first_line
from albert.pretraining_data.documents import (
    Document,
    FileScan,
    ReadingCounts,
    Run,
    cut_blocks,
    join_scans,
    read_run,
    scan_file,
)
from albert.pretraining_data.pretraining_buckets import (
    PAIR_NUMBERS,
    PairFacts,
    Part,
    Recipe,
    Stream,
    choose_held_out,
    frame_bucket,
    has_tokenizer,
    load_tokenizer,
    pair_block,
    token_type,
)
from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

_PASSES = 8  # over a block, in one piece of work
_COUNTS, _VOCABULARY = "counts.json", "vocabulary.model"  # files of the working directory
_OUR_ERROR = re.compile(r"albert\.errors\.\w+: (.+?)(?: \[while running .*)?$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Job:
    """All that the machines need to know."""

    recipe: Recipe
    inputs: tuple[str, ...]
    streams: tuple[Stream, ...]
    held_out_fraction: float
    break_between_files: bool
    block_characters: int
    examples: int  # instances shown in the log
    works: Mapping[str, str]  # {directory of outputs: one in it, of what is under way}

    @property
    def work(self) -> str:
        """The directory of what is under way."""
        return self.works[os.path.dirname(self.streams[0].outputs[0])]

    def under_way(self, stream: str, number: int) -> str:
        """Returns the name of an output until it is published."""
        directory, name = os.path.split(self._stream(stream).outputs[number])
        return os.path.join(self.works[directory], f"output.{name}")

    def text_of(self, number: int) -> str:
        """Returns the name of an input's text, where the input itself is no plain UTF-8."""
        return os.path.join(self.work, f"input-{number}.txt")

    def buckets(self, stream: str, text_bytes: int) -> int:
        return self._stream(stream).buckets(text_bytes)

    def num_outputs(self, stream: str) -> int:
        return len(self._stream(stream).outputs)

    def _stream(self, name: str) -> Stream:
        return next(stream for stream in self.streams if stream.name == name)


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


def find_files(pattern: str, flag: str) -> list[str]:
    """Returns the files that a glob names, as `files.find_files` does, remote ones too.

    Raises:
      DataError: it matches no file, or its file system is not there.
    """
    if not is_remote(pattern):
        return files.find_files(pattern, flag)
    found = sorted(found.path for found in _match(pattern, flag))
    if not found:
        raise DataError(f"--{flag}: no file matches {pattern}")
    return found


def size_of(path: str) -> int:
    """Returns the bytes of a file that `find_files` found."""
    if not is_remote(path):
        return os.path.getsize(path)
    return _match(path, "input_file")[0].size_in_bytes


def refuse_foreign(path: str) -> None:
    """Is `records.refuse_foreign` of a remote file."""
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
    """Yields {directory of outputs: one in it, for what is under way}; those go in the end."""
    works: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for path in outputs:
            directory, work = os.path.dirname(path), f"{path}.work"
            if directory in works:
                continue
            if is_remote(path):
                works[directory] = files.temporary_name(work)
                stack.callback(_delete_remote, works[directory])
            else:
                works[directory] = stack.enter_context(files.temporary_dir(work))
        yield works


def run(
    job: Job, runner: str, arguments: Sequence[str]
) -> tuple[dict[str, list[Part]], ReadingCounts]:
    """Runs the pipeline; returns each stream's output files, not published yet, and the counts.

    Args:
      runner: a runner's name, as Beam knows it.
      arguments: more of Beam's pipeline options, as on a command line.

    Raises:
      FlagError: Beam does not know the runner, or an option's value; DataError: an input
      cannot be read; UserError: the pipeline failed otherwise.
    """
    _set_up_logging()
    pipeline = _make_pipeline(runner, arguments)
    with open(job.recipe.vocabulary, "rb") as stream:
        _write(os.path.join(job.work, _VOCABULARY), stream.read())
    _build(pipeline, job)
    _run(pipeline, runner)
    counts = ReadingCounts(**json.loads(_read(os.path.join(job.work, _COUNTS))))
    return {stream.name: _outcome(job, stream) for stream in job.streams}, counts


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


def _outcome(job: Job, stream: Stream) -> list[Part]:
    """Returns what was made of a stream's outputs; of one without records, an empty part."""
    parts = []
    for number in range(len(stream.outputs)):
        path = job.under_way(stream.name, number)
        where = _report_path(job, stream.name, number)
        told = json.loads(_read(where)) if _file_systems().exists(where) else None
        parts.append(Part(path, **told) if told else Part(path, 0, 0, [], [], PairFacts()))
    return parts


def publish(job: Job, parts: dict[str, list[Part]], manifests: dict[str, dict[str, Any]]) -> None:
    """Gives all outputs their names, then writes their manifests.

    Args:
      parts: of `run`; manifests: {output: its manifest}.
    """
    for path in manifests:
        _delete(records.manifest_path(path))
    for stream in job.streams:
        for path, part in zip(stream.outputs, parts[stream.name], strict=True):
            _file_systems().rename([part.path], [path])
    for path, manifest in manifests.items():
        _write(records.manifest_path(path), files.sealed_json_text(manifest).encode())


# === The pipeline ===


def _build(pipeline, job: Job) -> None:
    import apache_beam as beam

    scans = (
        pipeline
        | "Files" >> beam.Create(range(len(job.inputs)))
        | "SpreadFiles" >> beam.Reshuffle()
        | "FindDocuments" >> beam.Map(_scan, job)
    )
    (
        pipeline
        | "Corpus" >> beam.Create([0])
        | "PlanBlocks" >> beam.FlatMap(_plan, job, beam.pvalue.AsList(scans))
        | "SpreadBlocks" >> beam.Reshuffle()
        | "PairBlocks" >> beam.FlatMap(_pair, job)
        | "GatherBuckets" >> beam.GroupByKey()
        | "FinishBuckets" >> beam.Map(_finish, job)
        | "GatherOutputs" >> beam.GroupByKey()
        | "WriteOutputs" >> beam.Map(_assemble, job)
    )


def _scan(number: int, job: Job) -> tuple[int, FileScan]:
    name, preprocess = job.inputs[number], _tokenizer(job).preprocess
    with _open(name) as stream:
        text = text_files.as_utf8(stream, name)
        if text is stream:
            return number, scan_file(stream, name, preprocess)
        # Blocks are read at their places, which a packed file does not have: so its text is
        # written out once, for the time of the run.
        with _create(job.text_of(number)) as out:
            shutil.copyfileobj(text, out, 1 << 20)
    with _open(job.text_of(number)) as stream:
        return number, scan_file(stream, name, preprocess)


# (stream, number of the block, its documents as [(number of the file, run)], passes, buckets)
_Block = tuple[str, int, list[list[tuple[int, Run]]], range, int]


def _plan(_, job: Job, scans: list[tuple[int, FileScan]]) -> Iterator[_Block]:
    counts, ordered = ReadingCounts(), [scan for _, scan in sorted(scans, key=lambda s: s[0])]
    for scan in ordered:
        counts.add(scan.counts)

    def counted() -> Iterator[tuple[list[tuple[int, Run]], int]]:
        for document in join_scans(ordered, job.break_between_files):
            counts.documents += 1
            yield document

    is_held_out = choose_held_out(job.recipe, job.held_out_fraction)
    for which, index, block in cut_blocks(counted(), job.block_characters, is_held_out):
        stream = job.streams[which]
        for first in range(0, stream.passes, _PASSES):
            passes = range(first, min(first + _PASSES, stream.passes))
            buckets = job.buckets(stream.name, counts.bytes)
            yield stream.name, index, block, passes, buckets
    _write(os.path.join(job.work, _COUNTS), json.dumps(dataclasses.asdict(counts)).encode())


# (number of the block, its first pass, table, tokens) of the pairs of one bucket
_Pairs = tuple[int, int, bytes, bytes]


def _pair(block: _Block, job: Job) -> Iterator[tuple[tuple[str, int], _Pairs]]:
    stream, index, documents, passes, buckets = block
    dtype = token_type(_tokenizer(job))
    pairs = pair_block(
        job.recipe, stream, index, _read_documents(job, documents), passes, buckets
    )
    ends = np.cumsum(pairs.counts)
    for bucket in np.flatnonzero(pairs.counts).tolist():
        some = slice(int(ends[bucket] - pairs.counts[bucket]), int(ends[bucket]))
        table, tokens = pairs.table(some).tobytes(), pairs.tokens(dtype, some).tobytes()
        yield (stream, bucket), (index, passes.start, table, tokens)


def _read_documents(job: Job, documents: list[list[tuple[int, Run]]]) -> list[Document]:
    texts: list[Document] = [[] for _ in documents]
    places = [(number, run, text) for text, runs in zip(texts, documents, strict=True)
              for number, run in runs]
    preprocess = _tokenizer(job).preprocess
    for number, group in itertools.groupby(places, key=lambda place: place[0]):
        is_apart = _file_systems().exists(job.text_of(number))
        with _open(job.text_of(number) if is_apart else job.inputs[number]) as stream:
            for _, run, text in group:
                text += read_run(stream, run, preprocess)
    return texts


# (bucket, its file, instances for people to read, blocks as of a `Part`, facts)
_Finished = tuple[int, str, list[str], list[tuple[int, int]], PairFacts]


def _finish(
    bucket: tuple[tuple[str, int], Iterable[_Pairs]], job: Job
) -> tuple[tuple[str, int], _Finished]:
    (stream, number), pairs = bucket
    dtype, ordered = token_type(_tokenizer(job)), sorted(pairs, key=lambda pair: pair[:2])
    table = np.frombuffer(b"".join(pair[2] for pair in ordered), "<i4").reshape(-1, PAIR_NUMBERS)
    ids = np.frombuffer(b"".join(pair[3] for pair in ordered), dtype)
    del ordered
    blocks, printed = [], []
    examples = job.examples if stream == "train" and number == 0 else 0
    path = os.path.join(job.work, f"{stream}-{number}.part")
    with _create(path) as out:
        for content, count, texts in frame_bucket(
            job.recipe, stream, number, table.astype(np.int64), ids, examples
        ):
            out.write(content)
            blocks.append((count, len(content)))
            printed += texts
    finished = number, path, printed, blocks, PairFacts.of(table)
    return (stream, number % job.num_outputs(stream)), finished


def _assemble(output: tuple[tuple[str, int], Iterable[_Finished]], job: Job) -> str:
    (stream, number), buckets = output
    ordered = sorted(buckets)
    with _create(job.under_way(stream, number)) as out:
        for _, path, *_ in ordered:
            with _open(path) as content:
                for block in iter(lambda content=content: content.read(1 << 20), b""):
                    out.write(block)
    blocks = [block for *_, its, _ in ordered for block in its]
    told = {
        "records": sum(count for count, _ in blocks),
        "bytes": sum(size for _, size in blocks),
        "examples": [text for _, _, printed, *_ in ordered for text in printed],
        "blocks": blocks,
        "facts": sum((facts for *_, facts in ordered), PairFacts()),
    }
    _write(_report_path(job, stream, number), json.dumps(told).encode())
    return job.under_way(stream, number)


def _report_path(job: Job, stream: str, number: int) -> str:
    return os.path.join(job.work, f"{stream}-{number}.json")


def _tokenizer(job: Job) -> FullTokenizer:
    """Returns the tokenizer, its vocabulary brought to this machine at the first call."""
    if has_tokenizer(job.recipe):
        return load_tokenizer(job.recipe)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, os.path.basename(job.recipe.vocabulary))
        with open(path, "wb") as out:
            out.write(_read(os.path.join(job.work, _VOCABULARY)))
        return load_tokenizer(job.recipe, path)


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
