"""A tiny text, and the command that makes pretraining records from it, run in this process."""

import os
import pathlib

import numpy as np
from helpers import parse_with_tensorflow
from jobs import SPECIALS

from albert import create_pretraining_data as command
from albert.cli import flags
from albert.pretraining_data.job import Recipe
from albert.pretraining_data.masking import MaskingSettings
from albert.pretraining_data.pairs import PairSettings
from albert.tokenization import TextSettings

NUM_WORDS = 200


def write_tiny(folder: pathlib.Path) -> pathlib.Path:
    """Writes a vocabulary w0..w199 and 40 documents; document i has only words wi."""
    words = [*SPECIALS, *(f"w{i}" for i in range(NUM_WORDS))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    write_corpus(folder / "corpus.txt", range(40))
    return folder


def write_corpus(path, numbers, lines=8):
    texts = ["\n".join([f"w{i} " * (3 + (i + n) % 7) for n in range(lines)]) for i in numbers]
    path.write_text("\n\n".join(texts) + "\n")


def flags_of(folder, **changes) -> list[str]:
    values = dict(
        input_file=folder / "corpus.txt", output_file=folder / "out.tfrecord",
        vocab_file=folder / "vocab.txt", max_seq_length=32, max_predictions_per_seq=5,
        dupe_factor=3, num_processes=1,
    ) | changes
    return [f"--{k}={v}" for k, v in values.items() if v is not None]


def make(folder, **changes) -> None:
    """Runs the command; its errors are raised."""
    command.main(flags.parse(command.define_flags, ["command", *flags_of(folder, **changes)]))


def read(path, length=32, predictions=5):
    """Returns the features of a record file, [N, length] each."""
    recipe = Recipe(PairSettings(length), MaskingSettings(predictions), None, None, "", TextSettings(), 0)
    return parse_with_tensorflow(path, recipe.feature_spec())


def files_made(folder) -> list[str]:
    """Returns the names of all files except the vocabulary and the text, including unfinished work."""
    ours = set(os.listdir(folder)) - {"vocab.txt", "corpus.txt"}
    return sorted(name for name in ours if ".vocabulary." not in name)


def published(folder) -> list[str]:
    return [name for name in files_made(folder) if not name.endswith(".work")]


def take(folder) -> dict[str, bytes]:
    """Returns the bytes of all output, and removes it."""
    found = {name: (folder / name).read_bytes() for name in files_made(folder)}
    for name in found:
        (folder / name).unlink()
    return found


def words_in(features) -> set:
    return set(np.unique(features["input_ids"])) - set(range(len(SPECIALS)))


def masked_pairs(masking, ids, segments, boundary, labels, positions):
    """Returns what a `DynamicMasking` makes of pairs."""
    pairs = {"input_ids": ids, "segment_lengths": segments, "token_boundary": boundary,
             "next_sentence_labels": labels}
    return masking(pairs, positions)
