"""The steps of Beam's pipeline: those of `making`, for machines that share files alone."""

import dataclasses
import io
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from albert.pretraining_data import beam_files, buckets, dealing, held_out, making
from albert.pretraining_data.recipe import Job, Stream, load_tokenizer
from albert.text import corpus_files, documents
from albert.tokenization import FullTokenizer

COUNTS, VOCABULARY = "counts.json", "vocabulary.model"  # files of the working directory
_PASSES = 8  # over a block, in one piece of work


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
        vocabulary = os.path.join(self.work, VOCABULARY)
        return load_tokenizer(self.job.recipe, lambda: beam_files.read(vocabulary))


def tail(part: buckets.Part) -> buckets.Tail:
    """Returns the tail of an output, which is a file of its own."""
    content = io.BytesIO(beam_files.read(tail_of(part.path)))
    return buckets.read_tail(content, part._replace(bytes=0))


def tail_of(path: str) -> str:
    return f"{path}.tail"


def build(pipeline, site: Site) -> None:
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
    with beam_files.open_file(name) as stream:
        text, layout = corpus_files.as_lines(stream, name, form)
        if text is stream:
            return number, documents.scan_file(stream, name, preprocess, layout, form.language)
        # Blocks are read at their places, which a packed file does not have: so its text is
        # written out once, for the time of the run.
        with beam_files.create(site.text_of(number)) as out:
            shutil.copyfileobj(text, out, 1 << 20)
    with beam_files.open_file(site.text_of(number)) as stream:
        return number, documents.scan_file(stream, name, preprocess, layout, form.language)


_Places = list[tuple[int, documents.Run]]  # of a document: [(number of the file, run)]


class _Part(NamedTuple):
    """Some lines of a document."""

    places: _Places
    first: int
    end: int


def _plan(
    _, site: Site, scans: list[tuple[int, documents.FileScan]]
) -> Iterator[dealing.BlockTask]:
    """Yields the tasks, whose documents are `_Places` or a `_Part`."""
    counts = documents.ReadingCounts()
    ordered = [scan for _, scan in sorted(scans, key=lambda scan: scan[0])]
    for scan in ordered:
        counts.add(scan.counts)

    def counted() -> Iterator[tuple[_Places, int]]:
        for document in documents.join_scans(ordered, site.job.break_between_files):
            counts.documents += 1
            yield document

    # Of the documents, those alone are read here that are long for this text.
    parts = held_out.Parts(lambda places: _read_documents(site, [places])[0], _Part)
    yield from dealing.plan_blocks(
        site.job, counted(), counts.bytes, lambda stream: _PASSES, parts
    )
    told = json.dumps(dataclasses.asdict(counts)).encode()
    beam_files.write(os.path.join(site.work, COUNTS), told)


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


def _read_documents(site: Site, wanted: Sequence[_Places | _Part]) -> list[documents.Document]:
    texts: list[documents.Document] = [[] for _ in wanted]
    places = [
        (number, run, text) for text, one in zip(texts, wanted, strict=True)
        for number, run in (one.places if isinstance(one, _Part) else one)
    ]
    preprocess, language = site.tokenizer().preprocess, site.job.form.language
    for number, group in itertools.groupby(places, key=lambda place: place[0]):
        apart = site.text_of(number)
        path = apart if beam_files.file_systems().exists(apart) else site.job.inputs[number]
        with beam_files.open_file(path) as stream:
            for _, run, text in group:
                text += documents.read_run(stream, run, preprocess, language)
    return [
        text[one.first : one.end] if isinstance(one, _Part) else text
        for text, one in zip(texts, wanted, strict=True)
    ]


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
    with beam_files.create(path) as out:
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
    with beam_files.create(site.output(stream, number)) as out:
        for part in parts:
            with beam_files.open_file(part.path) as content:
                making.copy_records(content, part, out)
                tail = buckets.read_tail(content, part)
            blocks += tail.blocks
            lengths += tail.lengths
    beam_files.write(tail_of(site.output(stream, number)), bytes(buckets.Tail(blocks, lengths)))
    whole = buckets.Part(
        "", sum(part.records for part in parts), sum(part.bytes for part in parts),
        [text for part in parts for text in part.examples],
        sum((part.facts for part in parts), buckets.PairFacts()),
    )
    beam_files.write(site.report(stream, number), json.dumps(whole[1:]).encode())
