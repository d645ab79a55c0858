"""Gives a pretrained model the vocabulary of another language or domain, for continued pretraining.

  python -m albert.train_sentencepiece --input=domain.txt --model_prefix=domain --vocab_size=8000
  python -m albert.create_pretraining_data --input_file=domain.txt --spm_model_file=domain.model \\
      --output_file=domain.tfrecord
  python scripts/extend_vocabulary.py --model=albert_base --spm_model_file=domain.model \\
      --input_file=domain.tfrecord --output_dir=domain_start
  python -m albert.run_pretraining --init_checkpoint=domain_start ...

Tokens of both vocabularies keep their embeddings. A new token's embedding is predicted from the
tokens near it in the records of --input_file; without them, it is the mean of the tokens that the old
vocabulary splits it into. All other weights are unchanged.

Shapes: V vocabulary size, E embedding size.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # this checkout

from albert import engines, tokenization
from albert.cli import flags
from albert.errors import DataError, FlagError
from albert.formats import pretrained
from albert.pretraining_data import cooccurrence
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.tokenization import SPIECE_UNDERLINE, FullTokenizer

# Tables with a row for each token.
_TABLES = (cooccurrence.NAME, "cls/predictions/output_bias")
# Relative to the mean variance of a dimension; results are the same from 0.01 to 1.
RIDGE = 0.1


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "model", None,
                 f"Pretrained model: {flags.A_MODEL}. Required.", use="model")
    flags.define("path", values, "old_spm_model_file", None,
                 "The model's SentencePiece model, if not in its directory.", use="file")
    flags.define("path", values, "old_vocab_file", None,
                 "The model's WordPiece vocabulary, if not in its directory.", use="file")
    flags.define("path", values, "spm_model_file", None, "New SentencePiece model.", use="file")
    flags.define("path", values, "vocab_file", None, "Or new WordPiece vocabulary.", use="file")
    flags.define_text_flags(values, "Lower-case texts. Default: as the new vocabulary says, else as "
                            "the old one.")
    flags.define("path", values, "input_file", None, "Records made with the new vocabulary "
                 "(comma-separated globs), to initialize new tokens from their co-occurrence.",
                 use="records")
    flags.define("path", values, "output_dir", None, "Output directory. Required.",
                 use="output")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "model", "output_dir")
    if bool(values.spm_model_file) == bool(values.vocab_file):
        raise FlagError("pass either --spm_model_file or --vocab_file, the new vocabulary")
    new_file = values.spm_model_file or values.vocab_file
    files.require_file(new_file, "spm_model_file" if values.spm_model_file else "vocab_file")
    files.refuse_existing(values.output_dir, "output_dir")
    engines.start(engines.choose())
    from albert import modeling

    source = pretrained.open_path(values.model, "model")
    vocabulary = source.vocabulary.override(values.old_spm_model_file, values.old_vocab_file)
    if not vocabulary:
        raise DataError(f"{values.model} has no vocabulary: pass --old_spm_model_file")
    old = vocabulary.open()
    tokenization.check_vocabulary(old, source.config)
    new = vocabulary.override(
        values.spm_model_file, values.vocab_file, flags.text_settings(values)
    ).open()
    tokenization.check_special_pieces(new)
    transfer = plan(old, new)
    vectors = values.input_file and _vectors(values.input_file, new, source.config.embedding_size)

    before = modeling.AlbertForPreTraining(source.config)
    pretrained.assign(before, source.weights())
    config = dataclasses.replace(source.config, vocab_size=new.vocab_size)
    after = modeling.AlbertForPreTraining(config)
    old_weights = modeling.named_weights(before)
    for name, weight in modeling.named_weights(after).items():
        value = old_weights[name].numpy()
        # A table may have more rows than there are tokens.
        if name in _TABLES:
            value = transfer.rows(value[: old.vocab_size])
        if name == cooccurrence.NAME and vectors is not None:
            value = transfer.predicted(value, vectors)
        weight.assign(value)
    pretrained.save(after, values.output_dir, new)
    predicted = transfer.is_predicted(vectors)
    averaged = ~transfer.is_shared & ~predicted & np.array(list(map(bool, transfer.sources)))
    kinds = [int(kind.sum()) for kind in (transfer.is_shared, predicted, averaged)]
    flags.log.info("wrote %s: %d tokens; embeddings kept: %d, from co-occurrence: %d, averaged: %d, "
                   "mean of all: %d", values.output_dir, new.vocab_size, *kinds,
                   new.vocab_size - sum(kinds))


def _vectors(patterns: str, tokenizer: FullTokenizer, size: int) -> np.ndarray:
    """Returns the vectors [V, size] of tokens by their co-occurrence in records."""
    source = RecordFiles.of_flag(patterns, "input_file")
    spec = cooccurrence.feature_spec(source)
    source.check(spec, tokenizer.vocab_size)
    for path, manifest in source.manifests():
        if manifest.tokenizer_sha256 != tokenizer.sha256:
            raise FlagError(f"{path} was not made with {tokenizer.path}: make it with the new "
                            "vocabulary")
    return cooccurrence.embeddings(
        source, spec, tokenizer.special_ids, tokenizer.vocab_size, size, seed=0
    )


@dataclasses.dataclass(frozen=True)
class Transfer:
    """For each new token, the old tokens of whose embeddings it is the mean."""

    sources: Sequence[Sequence[int]]  # [V new] of ids of old tokens; may be empty
    is_shared: np.ndarray  # bool [V new]: tokens of both vocabularies

    def rows(self, table: np.ndarray) -> np.ndarray:
        """Returns the table of the new tokens, [V new, ...], from one of the old, [V old, ...]."""
        mean = table.mean(axis=0)
        rows = [
            table[ids].mean(axis=0, dtype=np.float64) if ids else mean for ids in self.sources
        ]
        return np.array(rows, table.dtype)

    def is_predicted(self, vectors: np.ndarray | None) -> np.ndarray:
        """Returns, bool [V new], which tokens `predicted` gives another embedding."""
        if vectors is None:
            return np.zeros(len(self.is_shared), bool)
        has_vector = ~np.isnan(vectors).any(axis=1)
        # Without shared tokens there is nothing to predict from.
        return ~self.is_shared & has_vector & (self.is_shared & has_vector).any()

    def predicted(self, table: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Replaces the embeddings of new tokens by a linear function of their vectors.

        It is the ridge regression from vectors to embeddings over the tokens of both vocabularies.

        Args:
          table: [V new, E], from `rows`.
          vectors: [V new, D]; NaN for tokens that keep their embedding.
        """
        new, known = self.is_predicted(vectors), self.is_shared & ~np.isnan(vectors).any(axis=1)
        if not new.any():
            return table
        x, y = vectors[known], table[known]
        x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
        square = (x - x_mean).T @ (x - x_mean)
        penalty = RIDGE * np.trace(square) / len(square) * np.eye(len(square))
        weights = np.linalg.solve(square + penalty, (x - x_mean).T @ (y - y_mean))
        result = table.copy()
        result[new] = y_mean + (vectors[new] - x_mean) @ weights
        return result


def plan(old: FullTokenizer, new: FullTokenizer) -> Transfer:
    """Returns which old tokens initialize the tokens of a new vocabulary."""
    # The two kinds of vocabulary name two special tokens differently.
    renamed = {} if old.is_spm == new.is_spm else {
        "<pad>": "[PAD]", "<unk>": "[UNK]", "[PAD]": "<pad>", "[UNK]": "<unk>"
    }
    tokens = [new.inv_vocab[i] for i in range(new.vocab_size)]
    tokens = [renamed.get(token, token) for token in tokens]
    is_shared = np.array([token in old.vocab for token in tokens])
    texts = [_text_of(token, new) for token in tokens if token not in old.vocab]
    encoded = iter(old.encode_batch(texts))
    unknown = {old.vocab.get(token) for token in ("<unk>", "[UNK]", SPIECE_UNDERLINE)}
    sources = [
        [old.vocab[token]] if token in old.vocab
        else [i for i in next(encoded) if i not in unknown]
        for token in tokens
    ]
    return Transfer(sources, is_shared)


def _text_of(token: str, tokenizer: FullTokenizer) -> str:
    if tokenizer.is_spm:
        return token.replace(SPIECE_UNDERLINE, " ").strip()
    return token.removeprefix("##")


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
