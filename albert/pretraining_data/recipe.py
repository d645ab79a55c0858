"""What decides the records of a run: the recipe, its vocabulary, and the sets of files."""

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from albert.pretraining_data import pair_records
from albert.pretraining_data.masking import MaskingSettings, Pieces
from albert.pretraining_data.pairs import PairSettings
from albert.records.examples import FeatureSpec
from albert.runtime.seeds import child_seed
from albert.text.corpus_files import Form
from albert.tokenization import FullTokenizer

BLOCK_CHARACTERS = 4 << 20  # text that is tokenised and paired together
_SMALLEST_BUCKET, _LARGEST_BUCKET = 1 << 20, 64 << 20  # bytes of pairs, about
_EXAMPLES = 3  # instances shown in the log


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides the content of the records, but the text."""

    pairs: PairSettings
    masking: MaskingSettings
    vocab_file: str | None
    spm_model_file: str | None
    vocabulary_sha256: str  # of the one in use: a file that changed is read anew
    do_lower_case: bool
    random_seed: int
    static_masks: bool = True  # masks are in the records, not drawn when they are read

    @property
    def vocabulary(self) -> str:
        """The file in use."""
        return self.spm_model_file or self.vocab_file

    def feature_spec(self) -> FeatureSpec:
        """Returns the features of a record: as the original wrote them, or a pair's."""
        length = self.pairs.max_seq_length
        if not self.static_masks:
            return FeatureSpec(pair_records.pair_features(length))
        return FeatureSpec(
            pair_records.masked_features(length, self.masking.num_predictions, with_boundary=True)
        )

    def seed(self, *purpose: Any) -> int:
        """Returns the seed of one purpose."""
        return child_seed(self.random_seed, *purpose)


_loaded: dict[tuple, FullTokenizer] = {}  # the last one, by what its vocabulary holds


def load_tokenizer(recipe: Recipe, fetch: Callable[[], bytes] | None = None) -> FullTokenizer:
    """Returns the tokenizer, read once in every process.

    Args:
      fetch: returns the vocabulary's content, where its file is not on this machine.
    """
    key = recipe.vocabulary_sha256, recipe.do_lower_case, bool(recipe.spm_model_file)
    if key not in _loaded:
        with contextlib.ExitStack() as stack:
            path = recipe.vocabulary
            if fetch:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                path = os.path.join(folder, os.path.basename(path))
                with open(path, "wb") as out:
                    out.write(fetch())
            names = (None, path) if recipe.spm_model_file else (path, None)
            tokenizer = FullTokenizer(names[0], recipe.do_lower_case, names[1])
        _loaded.clear()
        _loaded[key] = tokenizer
    return _loaded[key]


@functools.lru_cache(maxsize=1)
def load_pieces(recipe: Recipe) -> Pieces:
    """Returns what masking needs to know of the vocabulary."""
    tokenizer = load_tokenizer(recipe)
    is_start = np.array(tokenizer.start_pieces())
    return Pieces(is_start, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)


@dataclasses.dataclass(frozen=True)
class Stream:
    """One set of output files: the training records, or the held-out ones."""

    name: str
    outputs: tuple[str, ...]
    passes: int  # over its documents
    share: float  # of the documents

    def buckets(self, text_bytes: int) -> int:
        """Returns how many buckets the pairs are dealt out to; a multiple of the outputs."""
        # About four bytes of text a token, two bytes for it in a pair, and its pair's.
        estimate = 0.6 * text_bytes * self.share * self.passes
        bucket = min(max(estimate / 64, _SMALLEST_BUCKET), _LARGEST_BUCKET)
        return max(1, round(estimate / bucket / len(self.outputs))) * len(self.outputs)

    def examples(self, bucket: int) -> int:
        """Returns how many instances of a bucket are shown in the log."""
        return _EXAMPLES if self.name == "train" and bucket == 0 else 0


@dataclasses.dataclass(frozen=True)
class Job:
    """All that one run makes, checked."""

    recipe: Recipe
    inputs: tuple[str, ...]
    streams: tuple[Stream, ...]  # the training records, then the held-out ones if any
    held_out_fraction: float
    break_between_files: bool  # a file ends its last document
    text_bytes: int  # of all inputs; Beam's machines find out what packed ones hold
    flags: dict[str, Any]  # as manifests tell them
    form: Form = Form()  # of the inputs, its layout decided
    report_dir: str | None = None  # where a page about the records goes
    block_characters: int = dataclasses.field(default_factory=lambda: BLOCK_CHARACTERS)

    @property
    def outputs(self) -> list[str]:
        """The files of all streams."""
        return [path for stream in self.streams for path in stream.outputs]
