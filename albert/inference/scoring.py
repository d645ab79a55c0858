"""How likely a masked-LM finds a sentence. No TensorFlow at import.

The pseudo-log-likelihood of a sentence (Salazar et al. 2020, arXiv 1910.14659) is the sum, over its
pieces, of the log-probability of a piece where that piece alone is masked. `[CLS]` and `[SEP]` are
there, and are neither masked nor scored. With `within_words` (Kauf and Ivanova 2023, arXiv
2305.10588) the later pieces of the same word are masked too.

Legend: B batch, n pieces of a sentence, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from albert import tokenization
from albert.errors import DataError
from albert.inference.session import Row, Session
from albert.tasks import minimal_pairs
from albert.tasks.minimal_pairs import Pair
from albert.tokenization import FullTokenizer


class SentenceScorer:
    """Pseudo-log-likelihoods of sentences.

    Args:
      within_words: mask the later pieces of a word together with one of its pieces.
      model: what computes, an `AlbertForMaskedLM`; by default the session's.
      depth: of its call.
    """

    def __init__(
        self, session: Session, within_words: bool = False, model: Any = None,
        depth: Any = None,
    ):
        self.session, self.within_words = session, within_words
        self._given, self._depth = model, depth

    def scores(
        self, texts: Sequence[str], places: Sequence[str], progress: Any = None
    ) -> Iterator[tuple[float, int]]:
        """Yields for each text its pseudo-log-likelihood, natural, and the number of its pieces.

        Args:
          places: where each text is from.
          progress: as of `Session.outputs`.

        Raises:
          DataError: a text has more pieces than a row has places for; names its place.
        """
        most, named = self.session.max_seq_length - 2, list(zip(texts, places, strict=True))

        def encode(some: Sequence[tuple[str, str]]) -> tuple[list[list[Row]], None]:
            found = []
            ids_of = self.session.tokenizer.encode_batch([text for text, _ in some])
            for ids, (text, place) in zip(ids_of, some, strict=True):
                if len(ids) > most:
                    raise DataError(f"{place}: {len(ids)} tokens, at most {most} fit: {text!r:.80}")
                found.append(self._rows(ids))
            return found, None

        key = SentenceScorer, self._given, self._depth
        compute = self.session.once(key, self._computer)
        for _, outputs in self.session.outputs(named, encode, compute, progress):
            for of_one in outputs:
                yield float(np.sum([one["log_probability"] for one in of_one], dtype=float)), len(of_one)

    def _rows(self, ids: Sequence[int]) -> list[Row]:
        """Returns a row for each piece, in which that piece is masked."""
        tokenizer, count = self.session.tokenizer, len(ids)
        whole = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)
        ends = _ends_of_words(tokenizer, ids) if self.within_words else range(1, count + 1)
        mask, segments = np.ones_like(whole), np.zeros_like(whole)
        rows = []
        for place, end in enumerate(ends):
            masked = whole.copy()
            masked[1 + place : 1 + end] = tokenizer.mask_id
            rows.append({
                "input_ids": masked, "input_mask": mask, "segment_ids": segments,
                # [1, 1], so that they are not padded like the rows
                "masked_lm_positions": np.array([[1 + place]]), "piece": np.array([[ids[place]]]),
            })
        return rows

    def _computer(self):
        from keras import ops

        if model := self._given:
            self.session.add(model)
        else:
            model = self.session.load("AlbertForMaskedLM", needed_outputs_only=True)

        def compute(batch):
            inputs = {name: value for name, value in batch.items() if name != "piece"}
            inputs["masked_lm_positions"] = inputs["masked_lm_positions"][..., 0]  # [B, 1]
            outputs = model(inputs, training=False, depth=self._depth)
            logits = outputs["prediction_logits"][:, 0]  # [B, V]
            likely = ops.log_softmax(ops.cast(logits, "float32"))
            found = ops.take_along_axis(likely, batch["piece"][:, 0], axis=-1)
            return {"log_probability": found[:, 0]}

        return self.session.computer(compute)


class PairsPreferred:
    """How often a model that is being trained prefers the good sentence of minimal pairs.

    Called as `training.evaluation.MeasureMore`, it returns {"pairs_accuracy"}, the mean over the
    paradigms.
    """

    def __init__(self, pairs: Sequence[Pair], tokenizer: FullTokenizer, longest: int):
        self._pairs, self._tokenizer, self._longest = pairs, tokenizer, longest
        self._scorers: dict[Any, SentenceScorer] = {}

    def __call__(
        self, model: Any, depth: Any, end_if_asked: Callable[[], None]
    ) -> dict[str, float]:
        if depth not in self._scorers:
            session = Session(None, self._tokenizer, self._longest, batch_size=256)
            self._scorers = {depth: SentenceScorer(session, model=model, depth=depth)}
        texts = [text for pair in self._pairs for text in (pair.good, pair.bad)]
        places = [f"--eval_pairs, pair {1 + i // 2}" for i in range(len(texts))]
        found = []
        for value, _ in self._scorers[depth].scores(texts, places):
            end_if_asked()
            found.append(value)
        result = minimal_pairs.accuracies(self._pairs, found[::2], found[1::2])
        return {"pairs_accuracy": result["accuracy"]}


def unigram_scores(tokenizer: Any, texts: Sequence[str]) -> list[float] | None:
    """Returns the sums of the log-probabilities that the vocabulary itself gives the pieces.

    Only a SentencePiece model of kind unigram has them; of others None is returned.
    """
    if not tokenizer.is_spm:
        return None
    from sentencepiece import sentencepiece_model_pb2

    trained = sentencepiece_model_pb2.ModelProto.FromString(
        tokenizer.sp_model.serialized_model_proto()
    ).trainer_spec
    if trained.model_type != trained.UNIGRAM:
        return None
    of_piece = np.array([tokenizer.sp_model.GetScore(i) for i in range(tokenizer.vocab_size)])
    return [float(of_piece[ids].sum()) for ids in tokenizer.encode_batch(texts)]


def _ends_of_words(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Returns for each piece where its word ends."""
    pieces = tokenizer.convert_ids_to_tokens(ids)
    if tokenizer.is_spm:
        begins = [piece.startswith(tokenization.SPIECE_UNDERLINE) for piece in pieces]
    else:
        begins = [not piece.startswith("##") for piece in pieces]
    ends, end = [], len(ids)
    for place in range(len(ids) - 1, -1, -1):
        ends.append(end)
        if begins[place]:
            end = place
    return ends[::-1]
