"""Packs texts for `gpu.sh`: training text and held-out text, small enough to travel.

  python scripts/maintainers/gpu/text.py FOLDER WORDS TEXT...

TEXT has one sentence per line, and a blank line between documents. The
held-out text is the one that `create_pretraining_data --flagfile=configs/small_en/records.flags`
holds out of all of it. About WORDS words of the rest are kept, in complete documents, lower-cased.
"""

import concurrent.futures
import functools
import lzma
import os
import random
import sys

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3)
sys.path.insert(0, REPOSITORY)

from albert import create_pretraining_data
from albert.cli import flags
from albert.pretraining_data import pipeline
from albert.text.documents import ReadingCounts

CHUNK = 16 << 20  # characters that are packed together


def pack(folder: str, words: int, texts: list[str]) -> None:
    """Writes FOLDER/train-NN.xz and heldout.xz."""
    train, held = [], []
    for is_held_out, part in _parts(texts):
        (held if is_held_out else train).append("\n".join(part) + "\n\n")
    share = words / sum(len(part.split()) for part in train)
    rng = random.Random(1)
    train = [part for part in train if rng.random() < share]
    size = -(-sum(map(len, train)) // -(-sum(map(len, train)) // CHUNK))
    chunks, length = [[]], 0
    for part in train:
        if length >= size:
            chunks.append([])
            length = 0
        chunks[-1].append(part)
        length += len(part)
    named = {f"train-{i:02d}": "".join(parts) for i, parts in enumerate(chunks)}
    named["heldout"] = "".join(held)
    os.makedirs(folder, exist_ok=True)
    with concurrent.futures.ProcessPoolExecutor() as pool:
        list(pool.map(functools.partial(_pack, folder), *zip(*named.items(), strict=True)))
    print(f"{sum(len(part.split()) for part in train):,} words, held out "
          f"{sum(len(part.split()) for part in held):,}")


def _parts(texts):
    """Returns (is held out, lines) of the documents, lower-cased as the tokenizer does."""
    argv = ["", "--flagfile=configs/small_en/records.flags", f"--input_file={','.join(texts)}",
            "--vocab_file=albert/models/small_en/vocab.txt",
            "--output_file=/nonexistent/a", "--eval_output_file=/nonexistent/b"]
    job = create_pretraining_data.job_of(flags.parse(create_pretraining_data.define_flags, argv))
    return pipeline.read_sides(job, ReadingCounts())


def _pack(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name + ".xz"), "wb") as stream:
        stream.write(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))


def unpack(folder: str, output: str, names: list[str]) -> None:
    """Writes OUTPUT/train-NN.txt and heldout.txt, as named in FOLDER."""
    with concurrent.futures.ProcessPoolExecutor() as pool:
        list(pool.map(functools.partial(_unpack, folder, output), names))


def _unpack(folder: str, output: str, name: str) -> None:
    with lzma.open(os.path.join(folder, name)) as packed:
        text = packed.read()
    with open(os.path.join(output, name.replace(".xz", ".txt")), "wb") as stream:
        stream.write(text)


if __name__ == "__main__":
    pack(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
