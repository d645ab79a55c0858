"""Embeddings of texts. No TensorFlow at import.

Legend: B batch, L sequence, D size of an embedding, E of a token's, V vocabulary.
"""

import logging
from collections.abc import Sequence

import numpy as np

from albert.errors import CheckpointError
from albert.formats import sentence_files
from albert.inference.session import Batch, Predictor, Session

log = logging.getLogger("albert")

POOLINGS = ("weighted", "pooled", "cls", "mean")
_POOLER = "bert/pooler/dense/kernel"
_WORDS = 768  # numbers that say which tokens a text has; a multiple of 32
# Measured, see docs/evidence/results.md: squared lengths of the parts of a weighted embedding.
_SHARES = {"states": 0.3, "tokens": 0.3, "words": 1.0}
_RARE = 1e-3  # a token of this probability counts half


class TokenVectors:
    """What "weighted" embeddings need of the vocabulary and the token embeddings.

    A token of probability p weighs a / (a + p), as in smooth inverse frequency (Arora et al.,
    2017); special tokens weigh next to nothing. `weights` is [V] in float32.
    """

    def __init__(self, session: Session):
        table = np.asarray(session.source.weights().read("bert/embeddings/word_embeddings"))
        log_probabilities = session.tokenizer.log_probabilities()
        self.weights = np.ones(len(table), np.float32)
        if log_probabilities is None:
            log.warning("%s has no probabilities of tokens: rare and frequent ones weigh the same",
                        session.tokenizer.path)
            self.weights[list(session.tokenizer.special_ids)] = _RARE
        else:
            p = np.exp(log_probabilities)
            self.weights[: len(p)] = _RARE / (_RARE + p)
        self._centred = table - table.mean(axis=0, dtype=np.float64)  # [V, E]
        covariance = self._centred.T @ self._centred / len(table)
        ridge = (1e-6 * np.trace(covariance) + 1e-12) * np.eye(len(covariance))
        # After this matrix [E, E], no direction of the table's rows varies more than another.
        self._whitening = np.linalg.inv(np.linalg.cholesky(covariance + ridge)).T
        # A random direction for each token, which RandomState guarantees never to change.
        bits = np.frombuffer(np.random.RandomState(0).bytes(len(table) * _WORDS // 8), np.uint8)
        self._bits = bits.reshape(-1, _WORDS // 8)

    def join(self, states: np.ndarray, ids: Sequence[int]) -> np.ndarray:
        """Returns the embedding, of length 1, of a text with these tokens.

        Args:
          states: weighted mean of its hidden states.
          ids: all its tokens. One that occurs n times counts sqrt(n) times.
        """
        found, counts = np.unique(np.asarray(ids, np.int64), return_counts=True)
        weights = self.weights[found] * np.sqrt(counts)
        # Of these tokens alone: those of all tokens would delay the first answer.
        tokens = _unit(self._centred[found] @ self._whitening)
        words = np.unpackbits(self._bits[found], axis=1).astype(np.float32) * 2 - 1
        parts = {"states": states, "tokens": weights @ tokens, "words": weights @ words}
        scaled = [_unit(parts[name]) * np.sqrt(share) for name, share in _SHARES.items()]
        return _unit(np.concatenate(scaled)).astype(np.float32)


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Scales vectors to the length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


class Embedder(Predictor):
    """Computes embeddings of texts. An answer has `vector` [D].

    Args:
      pooling: one of `POOLINGS`, see `albert.extract_features`; by default the model's own, else
        "weighted".

    Raises:
      CheckpointError: the model's own is not supported.
    """

    class_name = "AlbertModel"

    def __init__(self, session: Session, pooling: str | None):
        own = session.source.metadata.pooling or "weighted"
        if not pooling and own not in (*sentence_files.SUPPORTED, *POOLINGS):
            raise CheckpointError(f"{session.source.path} makes embeddings by {own!r}, which is not "
                                  f"supported: choose a pooling, {', '.join(POOLINGS)}")
        self.session, (self.pooling, *rest) = session, (pooling or own).split("+")
        self.is_normalized = bool(rest)
        config = session.source.config
        self.size = config.hidden_size
        if self.pooling == "weighted":
            self.size += config.embedding_size + _WORDS

    @property
    def _token_vectors(self) -> TokenVectors:
        return self.session.once(TokenVectors, lambda: TokenVectors(self.session))

    def model(self):
        source = self.session.source
        if self.pooling == "pooled" and _POOLER not in source.weights().shapes:
            raise CheckpointError(
                f"{source.path} has no trained {_POOLER}: choose another pooling"
            )
        return super().model()

    def encode(self, inputs):
        texts = self.session.tokenizer.encode_batch(inputs)
        rows = [self.session.row(ids) for ids in texts]
        return Batch([[row] for row, _ in rows], texts, sum(is_cut for _, is_cut in rows))

    def compute(self, model, batch):
        """Returns `vector` [B, D]."""
        outputs = model(batch)
        if self.pooling == "pooled":
            return {"vector": outputs["pooled_output"]}
        states, mask = outputs["sequence_output"], batch["input_mask"].astype(np.float32)
        if self.pooling == "cls":
            mask[:, 1:] = 0
        if self.pooling == "weighted":
            mask *= self._token_vectors.weights[batch["input_ids"]]
        vectors = np.einsum("blh,bl->bh", states, mask) / mask.sum(axis=1, keepdims=True)
        return {"vector": _unit(vectors) if self.is_normalized else vectors}

    def decode(self, context, outputs):
        for ids, (one,) in zip(context, outputs, strict=True):
            if self.pooling == "weighted":
                one = {"vector": self._token_vectors.join(one["vector"], ids)}
            yield one
