"""Writes tiny files for all GLUE tasks and a tiny encoder with random weights, for smoke tests.

  python scripts/maintainers/make_glue_smoke.py --output_dir=smoke

<output_dir>/glue has every task's folder in GLUE's own columns, with made-up words;
<output_dir>/encoder has albert_config.json, vocab.txt and model.ckpt-best.
"""

import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir))

from albert.cli import flags
from albert.config import AlbertConfig  # noqa: E402
from albert.storage import files  # noqa: E402
from albert.tasks.glue import LAST, TASKS, GlueTask  # noqa: E402

WORDS = [f"word{i}" for i in range(60)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONFIG = AlbertConfig(
    vocab_size=len(VOCABULARY), embedding_size=8, hidden_size=16, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=32, max_position_embeddings=512,
)
ROWS = {"train": 24, "dev": 11, "test": 7}


def define_flags(values: flags.FlagValues) -> None:
    flags.define("string", values, "output_dir", None, "Where to write. Required.")
    flags.define("integer", values, "seed", 12345, "Everything random derives from it.",
                 lower_bound=0, upper_bound=flags.MAX_SEED)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "output_dir")
    rng = random.Random(values.seed)
    for task in TASKS.values():
        for split, count in ROWS.items():
            if task.columns(split):
                path = os.path.join(values.output_dir, "glue", task.directory, task.file(split))
                with files.atomic_write(path) as stream:
                    stream.writelines(_lines(task, split, count, rng))
    _write_encoder(os.path.join(values.output_dir, "encoder"), values.seed)


def _lines(task: GlueTask, split: str, count: int, rng: random.Random):
    layout = task.columns(split)
    width = layout.minimum
    if split == "test" or task.has_header:
        yield "\t".join(f"column{i}" for i in range(width)) + "\n"
    for row in range(count):
        columns = ["-"] * width
        if layout.guid is not None:
            columns[layout.guid] = str(row)
        label = rng.randrange(len(task.labels)) if task.labels else rng.randrange(6)
        # The first word determines the label, so that there is something to learn.
        columns[layout.text_a] = " ".join([WORDS[label], *rng.choices(WORDS, k=rng.randint(2, 9))])
        if layout.text_b is not None:
            columns[layout.text_b] = " ".join(rng.choices(WORDS, k=rng.randint(2, 9)))
        if layout.label is not None:
            place = width - 1 if layout.label == LAST else layout.label
            columns[place] = task.labels[label] if task.labels else str(label)
        yield "\t".join(columns) + "\n"


def _write_encoder(directory: str, seed: int) -> None:
    flags.import_tensorflow()
    import keras

    from albert.formats import checkpoint_files, checkpoints
    from albert.modeling import AlbertModel, named_weights

    with files.atomic_write(os.path.join(directory, "albert_config.json")) as stream:
        stream.write(json.dumps(CONFIG.to_dict(), indent=2) + "\n")
    with files.atomic_write(os.path.join(directory, "vocab.txt")) as stream:
        stream.writelines(piece + "\n" for piece in VOCABULARY)
    keras.utils.set_random_seed(seed)
    weights = named_weights(AlbertModel(CONFIG))
    prefix = os.path.join(directory, checkpoints.BEST)
    checkpoint_files.write(prefix, {name: w.value for name, w in weights.items()})


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
