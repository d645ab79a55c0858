"""Scores how likely sentences are under a masked LM. No TensorFlow at import.

The pseudo-log-likelihood of a sentence (Salazar et al. 2020, arXiv 1910.14659) is the sum of the
log-probabilities of its tokens, each predicted with only that token masked. `[CLS]` and `[SEP]`
are not scored. With `within_words` (Kauf and Ivanova 2023, arXiv 2305.10588), the later tokens of
the same word are masked too.

Legend: B batch, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from albert.errors import DataError
from albert.inference.session import Batch, Predictor, Row, Session


class SentenceScorer(Predictor):
    """Computes pseudo-log-likelihoods of sentences, as natural logarithms.

    An input is a text and its name in errors. An answer is `{"log_probability", "pieces"}`, the
    latter the number of tokens.

    Args:
      within_words: whether to mask the later tokens of a word too.
      model: an `AlbertForMaskedLM`, by default the session's.
    """

    def __init__(self, session: Session, within_words: bool = False, model: Any = None):
        self.session, self.within_words, self._model = session, within_words, model

    @property
    def key(self):
        return SentenceScorer, self._model

    def load_model(self):
        return self._model or self.session.masked_lm()

    def encode(self, inputs: Sequence[tuple[str, str]]) -> Batch:
        """Returns, for each text, a sequence per token in which that token is masked.

        Raises:
          DataError: a text has more tokens than fit.
        """
        limit, all_rows = self.session.max_seq_length - 2, []
        all_ids = self.session.tokenizer.encode_batch([text for text, _ in inputs])
        for ids, (text, origin) in zip(all_ids, inputs, strict=True):
            if len(ids) > limit:
                raise DataError(f"{origin}: {len(ids)} tokens, at most {limit} fit: {text!r:.80}")
            all_rows.append(self._rows(ids))
        return Batch(all_rows)

    def _rows(self, ids: Sequence[int]) -> list[Row]:
        tokenizer = self.session.tokenizer
        sequence = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)
        ends = word_ends(tokenizer, ids) if self.within_words else range(1, len(ids) + 1)
        mask, segments = np.ones_like(sequence), np.zeros_like(sequence)
        rows = []
        for start, end in enumerate(ends):
            masked = sequence.copy()
            masked[1 + start : 1 + end] = tokenizer.mask_id
            rows.append({
                "input_ids": masked, "input_mask": mask, "segment_ids": segments,
                # [1, 1], so that they aren't padded like the sequences
                "masked_lm_positions": np.array([[1 + start]]),
                "masked_lm_ids": np.array([[ids[start]]]),
            })
        return rows

    def compute(self, model, batch):
        from keras import ops

        inputs = {name: value for name, value in batch.items() if name != "masked_lm_ids"}
        inputs["masked_lm_positions"] = inputs["masked_lm_positions"][..., 0]  # [B, 1]
        outputs = model(inputs, training=False)
        logits = outputs["prediction_logits"][:, 0]  # [B, V]
        log_probs = ops.log_softmax(ops.cast(logits, "float32"))
        chosen = ops.take_along_axis(log_probs, batch["masked_lm_ids"][:, 0], axis=-1)
        return {"log_probability": chosen[:, 0]}

    def decode(self, context, outputs):
        for rows in outputs:
            total = np.sum([row["log_probability"] for row in rows], dtype=float)
            yield {"log_probability": float(total), "pieces": len(rows)}


def word_ends(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Returns, for each token, the index just after its word."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    is_start = list(map(tokenizer.starts_word, tokens))
    ends, end = [], len(ids)
    for index in range(len(ids) - 1, -1, -1):
        ends.append(end)
        if is_start[index]:
            end = index
    return ends[::-1]
