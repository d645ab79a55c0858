"""Record files written for tests, with their manifests."""

import itertools
import pathlib

import numpy as np

from albert.records import manifests, record_files, tfrecord
from albert.records.examples import DTYPES, encode_examples
from albert.storage import files


def write_records(path, rows, spec, info) -> None:
    """Writes rows, {name: values}, as a record file with `info` in its manifest."""
    rows, blocks, content = iter(rows), [], b""
    while block := list(itertools.islice(rows, record_files.BLOCK)):
        batch = {name: np.array([row[name] for row in block], DTYPES[dtype])
                 for name, (dtype, _) in spec.features.items()}
        framed = tfrecord.frame_records(encode_examples(batch, spec))
        blocks.append((len(block), len(framed)))
        content += framed
    pathlib.Path(path).write_bytes(content)
    manifest = manifests.Manifest.of(blocks, spec, info)
    files.write_sealed_json(manifests.manifest_path(str(path)), manifest.to_json())


def payloads_of(path) -> list[bytes]:
    """Returns the payloads of all records of a file, after checking them."""
    starts, _ = tfrecord.scan(str(path))
    return tfrecord.read_block(str(path), 0, pathlib.Path(path).stat().st_size, 0, len(starts))
