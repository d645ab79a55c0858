"""Scores how likely sentences are under a masked LM. No TensorFlow at import.

The pseudo-log-likelihood of a sentence (Salazar et al. 2020, arXiv 1910.14659) is the sum of the
log-probabilities of its tokens, each predicted with only that token masked. `[CLS]` and `[SEP]`
are not scored.

Legend: B batch, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np

from albert.errors import DataError
from albert.inference.session import Batch, Predictor, Row, Session, masked_logits


class SentenceScorer(Predictor):
    """Computes pseudo-log-likelihoods of sentences, as natural logarithms.

    An input is a text and its name in errors. An answer is `{"log_probability", "pieces"}`, the
    latter the number of tokens.
    """

    class_name = "AlbertForMaskedLM"

    def __init__(self, session: Session):
        self.session = session

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
            all_rows.append(self.rows(ids))
        return Batch(all_rows)

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """Returns the sequence for each token of a text."""
        tokenizer = self.session.tokenizer
        sequence = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)
        mask, segments = np.ones_like(sequence), np.zeros_like(sequence)
        rows = []
        for position, token_id in enumerate(ids, 1):
            masked = sequence.copy()
            masked[position] = tokenizer.mask_id
            rows.append({
                "input_ids": masked, "input_mask": mask, "segment_ids": segments,
                # [1, 1], so that they aren't padded like the sequences
                "masked_lm_positions": np.array([[position]]),
                "masked_lm_ids": np.array([[token_id]]),
            })
        return rows

    def compute(self, model, batch):
        ids = batch["masked_lm_ids"][:, 0]  # [B, 1]
        logits = masked_logits(model, batch)[:, 0]  # [B, V]
        logits = logits - logits.max(axis=-1, keepdims=True)
        chosen = np.take_along_axis(logits, ids, -1)[:, 0]
        return {"log_probability": chosen - np.log(np.exp(logits).sum(axis=-1))}

    def decode(self, context, outputs):
        for rows in outputs:
            total = np.sum([row["log_probability"] for row in rows], dtype=float)
            yield {"log_probability": float(total), "pieces": len(rows)}
