"""From text to record files, read top to bottom.

The text is read once, in blocks of a few megabytes. Some passes over a block make a part: the pairs
are shuffled, masked and serialized by a worker process, and stored in the work folder
`.<output>.work`. An output is its share of each part, one after another; readers mix the blocks of
all files (see `data_order`). However a run ends, the same command makes only the missing parts.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import logging
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from albert import __version__
from albert.errors import DataError, UserError
from albert.pretraining_data import instances, report
from albert.pretraining_data.held_out import split_document
from albert.pretraining_data.job import Job, Recipe, load_tokenizer, vocabulary_info
from albert.pretraining_data.pairs import Block, pairs_of_block, tokenize_block
from albert.records import manifests
from albert.runtime.progress import Progress
from albert.runtime.workers import Workers, preemptible
from albert.storage import files, locks
from albert.text.documents import Document, ReadingCounts, cut_blocks, read_documents, sentences_of
from albert.tokenization import tokenizer_digest

log = logging.getLogger("albert")

_LAYOUT = 10  # version of the work folder; others are emptied
_MIN_PARTS = 32  # if there are enough passes: work for all processes, and little to repeat
_CHECKED_DISK = 64 << 20  # bytes of text times passes from which disk space is checked

Infos = dict[str, list[dict[str, Any]]]  # the JSON of the parts of each split, and their paths


def make_records(
    job: Job, make_parts: Callable[[Job, ReadingCounts, str], dict[str, list[str]]]
) -> None:
    """Makes all records of a job, then publishes them.

    Until its manifest is complete, an output is marked as unfinished, so that no reader takes old and
    new files for one data set.

    Args:
      make_parts: see the function of this name.

    Raises:
      DataError: an input cannot be read, or an output would be empty.
    """
    counts, recipe = ReadingCounts(), job.recipe
    # What determines the records, except the text, whose blocks have digests.
    values = [job.flags, dataclasses.asdict(job.form), recipe.vocabulary_sha256, __version__, _LAYOUT]
    identity = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    with (
        preemptible("rerun the command to resume"),
        locks.work_folder(job.all_outputs, identity) as work,
    ):
        # === Parts ===
        _check_disk(job, work)
        parts = make_parts(job, counts, work)
        report.report_reading(job, counts)
        infos = {split: [files.read_json(f"{path}.json") | {"path": path} for path in paths]
                 for split, paths in parts.items()}
        _check_outputs(job, counts, infos)
        with open(recipe.vocabulary, "rb") as stream:
            vocabulary = stream.read()
        if hashlib.sha256(vocabulary).hexdigest() != recipe.vocabulary_sha256:
            raise DataError(f"{recipe.vocabulary} changed while records were made with it: rerun the "
                            "command")

        # === Outputs, and a copy of the vocabulary in each folder ===
        for path in job.all_outputs:
            manifests.mark_unfinished(path)
        digests = {}
        for split, outputs in job.outputs.items():
            for number, path in enumerate(outputs):
                with files.atomic_write(path, "wb") as stream:
                    digests[path] = _join(number, infos[split], stream)
        suffix = ".vocabulary.model" if recipe.spm_model_file else ".vocabulary.txt"
        copies = {os.path.dirname(path): path + suffix for path in reversed(job.all_outputs)}
        for path in copies.values():
            with files.atomic_write(path, "wb") as stream:
                stream.write(vocabulary)

        # === Manifests ===
        everything = [info for split in infos.values() for info in split]
        for example in (text for info in everything for text in info["examples"]):
            log.info("the first record has %s", example)
        total = sum((Counter(info["statistics"]) for info in everything), Counter())
        summary, settings = report.summary_of(recipe.pairs, counts, total), load_tokenizer(recipe).settings
        for split, outputs in job.outputs.items():
            for number, path in enumerate(outputs):
                info = {
                    "kind": "pretraining",
                    "split": split,
                    "max_seq_length": recipe.pairs.max_seq_length,
                    "max_predictions_per_seq": recipe.masking.max_predictions_per_seq,
                    # Of the vocabulary that was read; the file may have changed since.
                    "tokenizer_sha256": tokenizer_digest(
                        recipe.vocabulary_sha256, bool(recipe.spm_model_file), settings
                    ),
                    # Its path as given, that of its copy, and its settings.
                    "vocabulary": {
                        **{key: job.flags.get(key) for key in ("spm_model_file", "vocab_file")},
                        "beside": os.path.basename(copies[os.path.dirname(path)]),
                        **dataclasses.asdict(settings),
                    },
                    # What masks that are drawn later need.
                    **vocabulary_info(recipe)[1]._asdict(),
                    "sentence_objective": recipe.pairs.sentence_objective,
                    "documents": counts.documents,
                    "shards": {os.path.relpath(shard, os.path.dirname(os.path.abspath(path))): digests[shard]
                               for shard in outputs},
                    "flags": job.flags,
                    "report": summary,
                }
                blocks = [tuple(block) for part in infos[split] for block in part["blocks"][number]]
                manifest = manifests.Manifest.of(blocks, recipe.feature_spec(), info)
                files.write_sealed_json(manifests.manifest_path(path), manifest.to_json())
                size = manifest.bytes / 1e6
                log.info("wrote %s: %s records, %.1f MB", path, f"{manifest.records:,}", size)
        report.log_summary(job, counts, summary)


def _check_disk(job: Job, work: str) -> None:
    """Raises a UserError if the disk is clearly too small for the work folder."""
    if job.text_bytes * job.passes["train"] < _CHECKED_DISK:
        return
    needed = needed_disk(job)
    free = shutil.disk_usage(work).free + sum(entry.stat().st_size for entry in os.scandir(work))
    message = f"making records takes about {needed / 1e9:,.1f} GB in {work}"
    if needed > free:
        raise UserError(f"{message}; {free / 1e9:,.1f} GB are free. Free some, or choose another "
                        "--output_file")
    log.info("%s (%.1f GB are free)", message, free / 1e9)


def needed_disk(job: Job) -> float:
    """Returns a low estimate of the bytes of all parts, which their outputs need again."""
    passes = job.passes["train"] * (1 - job.held_out_fraction)
    passes += job.passes.get("eval", 0) * job.held_out_fraction
    length, predictions = job.recipe.pairs.max_seq_length, job.recipe.masking.max_predictions_per_seq
    record = 5 * length + 7 * predictions + 200 if job.recipe.static_masks else 3 * length + 100
    # With 4 to 5 bytes per token, the number of tokens is a lower bound.
    return 2 * job.text_bytes * passes / 6 / length * (record + 24)


# === Parts ===


def make_parts(job: Job, counts: ReadingCounts, work: str, processes: int) -> dict[str, list[str]]:
    """Makes the parts that are missing in the work folder, updating `counts`.

    Returns:
      the paths of the parts of each split, in the order of the text.
    """
    log.info("making records of %.1f MB of text with %d process%s",
             job.text_bytes / 1e6, processes, "es" if processes > 1 else "")
    parts: dict[str, list[str]] = {split: [] for split in job.outputs}
    megabytes: collections.deque[float] = collections.deque()  # of the parts in progress
    done, reused = 0.0, 0

    def missing() -> Iterator[tuple]:
        nonlocal done, reused
        for name, size, task in read_tasks(job, counts):
            parts[task[1]].append(path := os.path.join(work, name))
            if is_complete(path):
                done, reused = done + size, reused + 1
            else:
                megabytes.append(size)
                yield *task, path

    progress = Progress("made records of", job.text_bytes / 1e6, "MB")
    with Workers(processes) as pool:
        for _ in pool.map(store_part, missing()):
            done += megabytes.popleft()
            progress.update(done)
    progress.clear()
    if reused:
        log.info("resumed an unfinished run: %d of its tasks were done", reused)
    return parts


def read_sides(job: Job, counts: ReadingCounts) -> Iterator[tuple[bool, Document]]:
    """Yields (is held out, document or a part of it) of the text, updating `counts`."""
    preprocess, seed = load_tokenizer(job.recipe).preprocess, job.recipe.seed("held out")
    for document in read_documents(job.inputs, preprocess, counts, job.break_between_files, job.form):
        yield from split_document(
            document, job.held_out_fraction, seed, job.text_bytes, job.recipe.language
        )


def read_tasks(job: Job, counts: ReadingCounts) -> Iterator[tuple[str, float, tuple]]:
    """Reads the text, and divides it into parts.

    Yields (file name, megabytes of text, arguments of `store_part` except the path). The name identifies
    the text.
    """
    parts_of_block = -(-_MIN_PARTS // max(1, job.text_bytes // job.block_characters))
    for is_held_out, index, block in cut_blocks(read_sides(job, counts), job.block_characters):
        split, crc, size = "eval" if is_held_out else "train", 0, 0
        for line in (line for document in block for line in (*document, "")):
            content = line.encode("utf-8", "surrogatepass") + b"\n"
            crc, size = zlib.crc32(content, crc), size + len(content)
        passes, texts = job.passes[split], tuple(map(tuple, block))
        step = -(-passes // parts_of_block)
        for first in range(0, passes, step):
            of_part = range(first, min(first + step, passes))
            yield (
                f"{split}-{index:06}-{first:06}-{crc:08x}.part", size / 1e6 * len(of_part) / passes,
                (job.recipe, split, index, of_part, texts, len(job.outputs[split])),
            )


def store_part(
    recipe: Recipe, split: str, index: int, passes: range, documents: tuple[tuple[str, ...], ...],
    num_outputs: int, path: str,
) -> None:
    """Makes the records of some passes over a block, an equal share for each output.

    The JSON next to the part makes it complete: the blocks of each output (see `manifests.Sizes`),
    statistics, and the first record as text.
    """
    block = _tokenize(recipe, documents)
    pairs = np.concatenate([
        pairs_of_block(block, recipe.pairs, recipe.seed(split, "pairs", index, number))
        for number in passes
    ])
    rng = np.random.default_rng(recipe.seed(split, "part", index, passes.start))
    rng.shuffle(pairs)
    first = rng.integers(num_outputs)  # the output that gets one more, if they cannot be equal
    blocks: list[list[tuple[int, int]]] = []
    examples: list[str] = []
    with files.atomic_write(path, "wb") as stream:
        for number in range(num_outputs):
            of_output = pairs[(number - first) % num_outputs :: num_outputs]
            blocks.append([])
            for content, count in instances.frame_pairs(recipe, block.ids, of_output, rng, examples):
                stream.write(content)
                blocks[-1].append((count, len(content)))
    files.write_json(f"{path}.json", {
        "blocks": blocks, "statistics": instances.statistics_of(recipe, block.ids, pairs),
        "examples": examples if (split, index, passes.start) == ("train", 0, 0) else [],
    })


@functools.lru_cache(maxsize=1)  # a block may have several parts
def _tokenize(recipe: Recipe, documents: tuple[tuple[str, ...], ...]) -> Block:
    documents = [sentences_of(document, recipe.language) for document in documents]
    return tokenize_block(documents, load_tokenizer(recipe))


def is_complete(path: str) -> bool:
    """Whether a part and its JSON are there; a power cut may have kept the latter alone."""
    if not (os.path.exists(path) and os.path.exists(f"{path}.json")):
        return False
    blocks = files.read_json(f"{path}.json")["blocks"]
    return os.path.getsize(path) == sum(map(_size_of, blocks))


def _size_of(blocks: manifests.Sizes) -> int:
    return sum(size for _, size in blocks)


# === Outputs ===

def _check_outputs(job: Job, counts: ReadingCounts, infos: Infos) -> None:
    """Raises a DataError if an output would be empty."""
    for split, outputs in job.outputs.items():
        total = sum(info["statistics"]["records"] for info in infos[split])
        if not total:
            which = "held out" if split == "eval" else "left for training"
            raise DataError(
                f"no {split} records: none of {counts.documents:,} documents is {which}; add text, or "
                "change --held_out_fraction" if job.held_out_fraction else
                "no records: no document has enough text"
            )
        for number, path in enumerate(outputs):
            if not any(info["blocks"][number] for info in infos[split]):
                raise DataError(f"{path} would be empty: there are {total:,} records for "
                                f"{len(outputs):,} files")


def _join(number: int, infos: Sequence[dict[str, Any]], stream: BinaryIO) -> str:
    """Writes output `number`, its share of each part; returns its SHA-256."""
    digest = hashlib.sha256()
    for info in infos:
        sizes = list(map(_size_of, info["blocks"]))
        with open(info["path"], "rb") as part:
            part.seek(sum(sizes[:number]))
            for at in range(0, sizes[number], 1 << 20):
                chunk = part.read(min(1 << 20, sizes[number] - at))
                digest.update(chunk)
                stream.write(chunk)
    return digest.hexdigest()
