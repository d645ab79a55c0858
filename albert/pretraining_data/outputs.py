"""Publishes record files, each with a manifest, and a copy of their vocabulary."""

import dataclasses
import hashlib
import itertools
import logging
import os
from collections import Counter
from typing import Any

from albert.errors import DataError
from albert.pretraining_data.job import Job, OutputSplit, load_tokenizer, vocabulary_info
from albert.pretraining_data.report import Report
from albert.records import manifests
from albert.storage import files, filesystem, fsspec_calls
from albert.storage.temporary import temporary_dir
from albert.text.documents import ReadingCounts
from albert.tokenization import tokenizer_digest

log = logging.getLogger("albert")


@dataclasses.dataclass
class Output:
    """A record file in the making."""

    split: OutputSplit
    path: str  # to publish it at
    work_path: str  # current path
    blocks: list[list[int]] = dataclasses.field(default_factory=list)  # see `manifests.Sizes`
    # See `instances.statistics_of`.
    statistics: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: list[str] = dataclasses.field(default_factory=list)  # some records as text
    sha256: str = ""  # of its content

    def add(
        self, blocks: list[list[int]], statistics: dict[str, int], examples: list[str]
    ) -> None:
        """Counts records that were appended, by the JSON of their part."""
        self.blocks += blocks
        self.statistics.update(statistics)  # adds
        self.examples += examples


def publish(job: Job, outputs: list[Output], counts: ReadingCounts) -> None:
    """Publishes all record files, then their manifests, and logs a report.

    Until its manifest is complete, a file is marked as unfinished, so that no reader takes old and
    new files for one data set.

    Raises:
      DataError: an output is empty.
    """
    _check(job, outputs, counts.documents)
    for example in itertools.chain.from_iterable(output.examples for output in outputs):
        log.info("a record:\n%s", example)
    vocabulary = _vocabulary_content(job)
    total = sum((output.statistics for output in outputs), Counter())
    report = Report(job.recipe.pairs, job.unknown_characters, counts, total)
    made = [
        manifests.Manifest.of(output.blocks, job.recipe.feature_spec(),
                              _manifest_info(job, output, outputs, counts, report))
        for output in outputs
    ]
    for output in outputs:
        manifests.mark_unfinished(output.path)
    for output in outputs:
        _publish_file(output.work_path, output.path)
    for path in vocabulary_copies(job).values():
        with files.atomic_write(path, "wb") as stream:
            stream.write(vocabulary)
    for output, manifest in zip(outputs, made, strict=True):
        files.write_sealed_json(manifests.manifest_path(output.path), manifest.to_json())
        log.info("%s: %s records, %.1f MB", output.path, f"{manifest.records:,}",
                 manifest.bytes / 1e6)
    report.log()


def _publish_file(source: str, path: str) -> None:
    """Publishes a file; a local one stays in the work folder until all are published."""
    if filesystem.is_remote(path):
        fsspec_calls.call(path, "write", lambda fs, name: fs.mv(source, name))
        return
    with temporary_dir(path) as folder:
        link = os.path.join(folder, "file")
        try:
            os.link(source, link)
        except OSError:  # another file system, or one without hard links
            files.publish_copy(source, path)
        else:
            files.publish((link, path))


def vocabulary_copies(job: Job) -> dict[str, str]:
    """Returns {folder with outputs: the path of their copy of the vocabulary}."""
    suffix = ".vocabulary.model" if job.recipe.spm_model_file else ".vocabulary.txt"
    return {os.path.dirname(path): path + suffix for path in reversed(job.outputs)}


def _vocabulary_content(job: Job) -> bytes:
    with open(job.recipe.vocabulary, "rb") as stream:
        content = stream.read()
    if hashlib.sha256(content).hexdigest() != job.recipe.vocabulary_sha256:
        raise DataError(f"{job.recipe.vocabulary} changed while records were made with it: rerun the "
                        "command")
    return content


def _check(job: Job, outputs: list[Output], documents: int) -> None:
    for split in job.splits:
        of_split = [output for output in outputs if output.split == split]
        total = sum(output.statistics["records"] for output in of_split)
        if not total:
            which = "held out" if split.name == "eval" else "left for training"
            raise DataError(
                f"no {split.name} records: none of {documents:,} documents is {which}; add text, or "
                "change --held_out_fraction" if split.fraction < 1 else
                "no records: no document has enough text"
            )
        for output in of_split:
            if not output.blocks:
                raise DataError(f"{output.path} would be empty: there are {total:,} records for "
                                f"{len(of_split):,} files")


def _manifest_info(
    job: Job, output: Output, outputs: list[Output], counts: ReadingCounts, report: Report
) -> dict[str, Any]:
    recipe, folder = job.recipe, os.path.dirname(os.path.abspath(output.path))
    return {
        "kind": "pretraining",
        "split": output.split.name,
        "max_seq_length": recipe.pairs.max_seq_length,
        "max_predictions_per_seq": recipe.masking.max_predictions_per_seq,
        # Of the vocabulary that was read; the file may have changed since.
        "tokenizer_sha256": tokenizer_digest(
            recipe.vocabulary_sha256, bool(recipe.spm_model_file), load_tokenizer(recipe).settings
        ),
        # Its path as given, that of its copy, and its settings.
        "vocabulary": {
            **{key: job.flags.get(key) for key in ("spm_model_file", "vocab_file")},
            "beside": os.path.basename(vocabulary_copies(job)[os.path.dirname(output.path)]),
            **dataclasses.asdict(load_tokenizer(recipe).settings),
        },
        # What masks that are drawn later need.
        **vocabulary_info(recipe)[1]._asdict(),
        "sentence_objective": recipe.pairs.sentence_objective,
        "documents": counts.documents,
        "shards": {
            os.path.relpath(os.path.abspath(shard.path), folder): shard.sha256
            for shard in outputs if shard.split == output.split
        },
        "flags": job.flags,
        "report": report.to_json(),
    }
