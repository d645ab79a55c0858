"""The job of making records: recipe, input text and output files."""

import dataclasses
import functools
from typing import Any

import numpy as np

from albert.pretraining_data.features import masked_features, pair_features
from albert.pretraining_data.masking import MaskingSettings, SpecialIds
from albert.pretraining_data.pairs import PairSettings
from albert.records.examples import FeatureSpec
from albert.runtime.seeds import child_seed
from albert.text.corpus_files import Form
from albert.tokenization import FullTokenizer, TextSettings

_BLOCK = 4 << 20, 32 << 20  # characters of text tokenized together: at least, at most


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything except the text that determines the content of records."""

    pairs: PairSettings
    masking: MaskingSettings
    vocab_file: str | None
    spm_model_file: str | None
    vocabulary_sha256: str
    text: TextSettings
    random_seed: int
    static_masks: bool = True  # write masked records; else readers mask pairs
    language: str | None = None  # split lines into sentences of this language

    @property
    def vocabulary(self) -> str:
        """The vocabulary file in use."""
        return self.spm_model_file or self.vocab_file

    def feature_spec(self) -> FeatureSpec:
        """Returns the features of a record."""
        length = self.pairs.max_seq_length
        if not self.static_masks:
            return FeatureSpec(pair_features(length))
        return FeatureSpec(
            masked_features(length, self.masking.max_predictions_per_seq, with_boundary=True)
        )

    def seed(self, *purpose: Any) -> int:
        """Returns the seed of one purpose."""
        return child_seed(self.random_seed, *purpose)


@functools.lru_cache(maxsize=1)
def load_tokenizer(recipe: Recipe) -> FullTokenizer:
    """Returns the tokenizer, loaded once per process."""
    vocab_file = None if recipe.spm_model_file else recipe.vocab_file
    return FullTokenizer(vocab_file, spm_model_file=recipe.spm_model_file, **dataclasses.asdict(recipe.text))


@functools.lru_cache(maxsize=1)
def vocabulary_info(recipe: Recipe) -> tuple[np.ndarray, SpecialIds]:
    """Returns which tokens start a word (bool [V]), and the special ids."""
    tokenizer = load_tokenizer(recipe)
    is_start = np.array(tokenizer.start_pieces())
    ids = SpecialIds(tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, len(is_start))
    return is_start, ids


@dataclasses.dataclass(frozen=True)
class Job:
    """A checked job of one command."""

    recipe: Recipe
    inputs: tuple[str, ...]
    outputs: dict[str, tuple[str, ...]]  # the files of "train", and of "eval" if text is held out
    passes: dict[str, int]  # over the documents of each
    held_out_fraction: float
    break_between_files: bool  # documents end with their file
    text_bytes: int  # of all inputs, uncompressed
    flags: dict[str, Any]  # those that can change the records, for manifests
    form: Form = Form()  # of the inputs
    unknown_characters: str = ""  # the commonest that the vocabulary lacks

    @property
    def all_outputs(self) -> list[str]:
        """The files of both."""
        return [path for paths in self.outputs.values() for path in paths]

    @property
    def block_characters(self) -> int:
        """Size of the blocks of text that are tokenized and paired together.

        It grows with the text, so that there are not too many files in the work folder.
        """
        return min(max(self.text_bytes // 1000, _BLOCK[0]), _BLOCK[1])
