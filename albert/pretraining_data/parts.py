"""Parts of record files: one for each bucket of pairs, with its statistics next to it.

The processes of one machine and those of Apache Beam write the same parts, and join them at the end.
A run that was interrupted makes those that are missing. Paths may be addresses.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from albert.pretraining_data import instances
from albert.pretraining_data.job import OutputSplit, Recipe
from albert.pretraining_data.outputs import Output
from albert.pretraining_data.shuffle import Bucket
from albert.records import manifests
from albert.storage import files, filesystem, fsspec_calls
from albert.text import text_files


def path_of(folder: str, key: str, split: str, number: int) -> str:
    """Returns the path of a bucket's part; `key` identifies the text."""
    return f"{folder}/{split}-{key}-{number}.part"


def write(recipe: Recipe, split: str, number: int, bucket: Bucket, path: str) -> None:
    """Shuffles, masks and serializes a bucket, and writes its part."""
    examples: list[str] | None = None if number or split != "train" else []
    with _create(path) as stream:
        frames = instances.frame_bucket(recipe, split, number, bucket, examples)
        blocks = manifests.write_blocks(frames, stream)
    _write_json(path, [blocks, instances.statistics_of(recipe, bucket), examples or []])


def is_complete(path: str) -> bool:
    """Whether a part and its statistics are there; a power cut may have kept the latter alone."""
    if not (filesystem.exists(path) and filesystem.exists(f"{path}.json")):
        return False
    blocks = files.read_json(f"{path}.json")[0]
    return filesystem.size(path) == sum(size for _, size in blocks)


def join(
    split: OutputSplit, number: int, folder: str, key: str, buckets: Iterable[int]
) -> Output:
    """Concatenates the parts of output `number` of a split, and writes what `read_output` reads.

    Args:
      buckets: the numbers of the buckets of this output.
    """
    output = Output(split, split.outputs[number], f"{folder}/{split.name}-{key}-{number}.records")
    digest = hashlib.sha256()
    with _create(output.work_path) as stream:
        for bucket in sorted(buckets):
            path = path_of(folder, key, split.name, bucket)
            output.add(*files.read_json(f"{path}.json"))
            with filesystem.open_read(path) as content:
                for chunk in text_files.chunks(content):
                    digest.update(chunk)
                    stream.write(chunk)
    output.sha256 = digest.hexdigest()
    _write_json(output.work_path, [
        output.blocks, output.statistics, output.examples, output.sha256
    ])
    return output


def read_output(split: OutputSplit, number: int, folder: str, key: str) -> Output:
    """Returns an output that another machine joined; an empty one if there was nothing to join."""
    output = Output(split, split.outputs[number], f"{folder}/{split.name}-{key}-{number}.records")
    if is_complete(output.work_path):
        *counts, output.sha256 = files.read_json(f"{output.work_path}.json")
        output.add(*counts)
    return output


@contextlib.contextmanager
def _create(path: str) -> Iterator[BinaryIO]:
    """Yields a stream whose content appears at the path when the block succeeds."""
    if not filesystem.is_remote(path):
        with files.atomic_write(path, "wb") as stream:
            yield stream
        return
    fs, name = fsspec_calls.file_system(path)
    with fs.open(name, "wb") as stream:
        yield stream


def _write_json(path: str, value: Any) -> None:
    with _create(f"{path}.json") as stream:
        stream.write(json.dumps(value).encode())
