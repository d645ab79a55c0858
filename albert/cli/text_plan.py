"""Formulas by which pretrain_from_text chooses a model for a text and a time budget.

A size is affordable if text and time, on a machine of the assumed speed, provide enough tokens for each
of its compute parameters (counted as if nothing were shared, since that determines the cost of a token).
The largest affordable size is trained until the time is up, at the speed that its first steps show, but
for at most `MAX_PASSES` epochs. docs/guides/pretrain.md has the resulting table.
"""

import collections
import dataclasses
import math

import numpy as np

from albert.config import AlbertConfig
from albert.runtime import workers
from albert.text import vocabulary
from albert.training import costs

# FLOPs per second in training of a core and of an accelerator (docs/guides/pretrain.md).
CORE_FLOPS, ACCELERATOR_FLOPS = 5e10, 3e14
MEASURED_SECONDS = 30  # of training, by which the speed is measured

# Estimates for tokenization: bytes per token, and how often a vocabulary entry must occur in training
# to be worth an embedding.
BYTES_PER_TOKEN = 4.5
USES_OF_ENTRY = 50
# Tokens to train each compute parameter on: with less, a smaller model learns more (Hoffmann et al.
# 2022, arXiv 2203.15556; docs/evidence/results.md).
TOKENS = 25
MAX_PASSES = 100
MIN_STEPS = 1000  # fewer: smaller batches
MIN_BATCH = 16
WARMUP = 0.05  # fraction of the steps in which the rate rises; in the others it falls
# Checkpoints: the maximum of seconds between two, the minimum of saves, and the minimum of seconds.
SAVED_SECONDS, SAVES, MIN_SAVED_SECONDS = 600, 10, 60
EVAL_BATCH = 128
HELD_OUT_TOKENS = 200_000  # enough for a standard error of 0.3 points of 30,000 masked tokens
MAX_HELD_OUT = 0.1
CHARACTERS_SHARE = 0.5  # maximum fraction of the vocabulary that is single characters


@dataclasses.dataclass(frozen=True)
class Size:
    """An architecture, and the batch size and learning rate to train it with."""

    name: str  # as --albert_config_file takes it
    batch: int  # sequences
    length: int  # tokens
    optimizer: str
    rate: float
    least_warmup: int = 1  # steps

    @property
    def config(self) -> AlbertConfig:
        """The architecture."""
        return AlbertConfig.released(self.name)


# Smallest first. The first learning rates come from searches (docs/evidence/results.md); those for
# LAMB are the paper's, scaled by the square root of the batch size.
SIZES = (
    Size("one_layer", 64, 48, "muon", 0.006),
    Size("quickstart", 64, 48, "muon", 0.006),
    Size("two_layers", 64, 48, "muon", 0.006),
    Size("tiny", 64, 64, "muon", 0.006),
    Size("mini", 128, 64, "muon", 0.005),
    Size("small", 256, 128, "lamb", 0.003),
    Size("base_v2", 256, 128, "lamb", 0.00044),
    Size("large_v2", 256, 128, "lamb", 0.00044),
)

# To learn from a teacher (docs/evidence/results.md).
STUDENT = Size("student", 64, 64, "adamw", 5e-4, 100)
STUDENT_WIDTH = 128  # of its embeddings


def size_of(name: str) -> Size:
    """Returns the size of this name."""
    return next(size for size in (*SIZES, STUDENT) if size.name == name)


def student_of(teacher: AlbertConfig) -> AlbertConfig:
    """Returns the architecture of a student: its teacher's layers, and narrower embeddings."""
    return dataclasses.replace(
        teacher, embedding_size=min(STUDENT_WIDTH, teacher.embedding_size),
        num_hidden_groups=teacher.num_hidden_layers, extra={},
    )


def covered(characters: collections.Counter[str]) -> int:
    """Returns how many of a text's characters, given their counts, get a separate token."""
    shares = np.cumsum(sorted(characters.values(), reverse=True)) / max(characters.total(), 1)
    return int(np.searchsorted(shares, vocabulary.Settings.character_coverage)) + 1


def assumed_flops() -> float:
    """Returns the FLOPs per second of this machine in training, by the kind of processor alone.

    It loads Keras.
    """
    import keras

    accelerators = [name for name in keras.distribution.list_devices() if not name.startswith("cpu")]
    return len(accelerators) * ACCELERATOR_FLOPS or workers.available_cores() * CORE_FLOPS


def token_flops(size: Size, config: AlbertConfig) -> float:
    """Returns the FLOPs of a token in training, in which 15 % of the tokens are masked."""
    return costs.training_flops(config, size.length, math.ceil(0.15 * size.length))


def choose_size(text_tokens: float, flops: float) -> Size:
    """Returns the largest affordable size, else the smallest.

    Args:
      flops: the budget for the entire training.
    """
    def is_affordable(size: Size) -> bool:
        tokens = min(MAX_PASSES * text_tokens, flops / token_flops(size, size.config))
        return costs.compute_parameters(size.config) <= tokens / TOKENS

    return next(filter(is_affordable, reversed(SIZES)), SIZES[0])


def vocabulary_size(size: Size, text_tokens: float, characters: int) -> int:
    """Returns the vocabulary size of a model size, or less for a short text, in hundreds.

    At least half of the entries are longer than one character.

    Args:
      characters: of the text, which get a token each.
    """
    supported = min(size.config.vocab_size, text_tokens / USES_OF_ENTRY)
    return 100 * math.ceil(max(supported, characters / CHARACTERS_SHARE, 200) / 100)


def held_out_fraction(text_tokens: float) -> float:
    """Returns the fraction of the text that is held out, in thousandths."""
    return max(round(min(MAX_HELD_OUT, HELD_OUT_TOKENS / max(text_tokens, 1)), 3), 0.001)


def training_flags(
    size: Size, text_tokens: float, tokens_per_second: float, seconds: float
) -> dict[str, float]:
    """Returns run_pretraining's flags of batch, rate and steps."""
    tokens = min(MAX_PASSES * text_tokens, tokens_per_second * seconds)
    batch = size.batch
    while batch > MIN_BATCH and tokens < MIN_STEPS * batch * size.length:
        batch //= 2
    steps = max(round(tokens / (batch * size.length)), 20)
    # A power failure costs little work; a checkpoint and its evaluation cost seconds.
    duration = tokens / tokens_per_second
    saves = max(round(duration / SAVED_SECONDS), min(SAVES, round(duration / MIN_SAVED_SECONDS)), 1)
    return {
        "train_batch_size": batch,
        "learning_rate": float(f"{size.rate * math.sqrt(batch / size.batch):.3g}"),
        "num_train_steps": steps,
        "num_warmup_steps": max(round(WARMUP * steps), min(size.least_warmup, steps // 2)),
        "save_checkpoints_steps": math.ceil(steps / saves),
        "log_steps": math.ceil(steps / 20),
        "eval_batch_size": EVAL_BATCH,
        # All evaluations together read a quarter as many sequences as training does, each in a third
        # of the time.
        "max_eval_steps": min(max(steps * batch // (4 * saves * EVAL_BATCH), 8), 60),
    }


def measured_steps(size: Size, training: dict[str, float], tokens_per_second: float) -> int:
    """Returns how many of the first steps measure the speed, at most a quarter.

    Args:
      training: from `training_flags`.
      tokens_per_second: assumed.
    """
    steps = MEASURED_SECONDS * tokens_per_second / (training["train_batch_size"] * size.length)
    return max(min(round(steps), int(training["num_train_steps"]) // 4), 2)


def nearest(config: AlbertConfig) -> Size:
    """Returns the size whose cost is nearest to an architecture's."""
    cost = costs.compute_parameters(config)
    return min(SIZES, key=lambda size: abs(math.log(costs.compute_parameters(size.config) / cost)))
