"""Texts in, answers out, from Python.

    session = albert.open_session("work/classifier")
    session.classify("A fine film.")                    # one answer
    for answer in session.classify(texts): ...          # of any iterable, 4,096 texts at a time

Legend: D size of a vector, N texts.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from albert import engines
from albert.errors import DataError, FlagError
from albert.formats import pretrained
from albert.inference import heads, masks, scoring, vectors
from albert.inference.onnx_file import OnnxFile
from albert.inference.predictors import Predictor
from albert.inference.session import CHUNK, Session
from albert.runtime.progress import Progress
from albert.storage import filesystem

_CLASSIFIERS = (heads.CLASSIFICATION, heads.MULTI_LABEL, heads.REGRESSION)


class AnsweringSession(Session):
    """An opened model that answers texts.

    What a model was fine-tuned for decides which of `classify`, `answer`, `choose` and `tag` it
    can do. Each takes one input, and returns its answer; or an iterable of inputs, and returns
    a generator of their answers in the same order. It reads 4,096 inputs, or what is left of
    them, before it answers the first of these. The first answer waits for the weights and for the
    compiler; later calls do not. A warning tells how many inputs were cut. Each raises a
    UserError for an input that does not fit, and for a model that was trained for something else.
    """

    def classify(self, texts: Any, *, progress: bool = False) -> Any:
        """Returns the label of a text, or of a pair of texts, with its probability.

        Args:
          texts: a string or a tuple of two; or an iterable of these.
          progress: whether a line on the terminal tells how far it is.

        Returns:
          {"label", "probability", "probabilities": {label: probability}}; of a model that gives
          several labels {"labels", "probabilities"}; of a regression {"value"}.
        """
        return self._answers(texts, _CLASSIFIERS, progress)

    def answer(self, questions: Any, *, progress: bool = False) -> Any:
        """Returns the part of a passage that answers a question.

        Args:
          questions: a tuple (question, passage), or an iterable of these.

        Returns:
          {"answer", "probability"}. A SQuAD 2.0 model adds "no_answer_score" and "best_answer":
          "answer" is "" where the score exceeds the threshold that the model's evaluation found
          best (0 if there was none), and `best_answer` is the likeliest part all the same.
        """
        return self._answers(questions, (heads.QUESTIONS,), progress)

    def choose(self, questions: Any, *, progress: bool = False) -> Any:
        """Returns which of four options is right: {"label", "probability", "probabilities"}.

        Args:
          questions: a tuple (passage, question, option, option, option, option), or an iterable.
        """
        return self._answers(questions, (heads.CHOICE,), progress)

    def tag(self, texts: Any, *, progress: bool = False) -> Any:
        """Returns a label for every word of a text.

        Returns:
          {"words", "labels", "probabilities", "entities": [{"type", "text", "start", "end"}]}.
        """
        return self._answers(texts, (heads.TOKENS,), progress)

    def fill_mask(self, texts: Any, *, top_k: int = 5) -> Any:
        """Returns of each [MASK] in a text the likeliest pieces: [[{"piece", "id", "probability"}]].

        Args:
          texts: a string, or an iterable of strings.
          top_k: how many pieces.
        """
        filler = masks.MaskFiller(self, top_k)

        def fill(some: Sequence[str], first: int) -> Iterator[Any]:
            return filler.fill(some, [f"text {first + i}" for i in range(len(some))])

        return _one_or_all(texts, isinstance(texts, str), _text, fill)

    def embed(
        self, texts: Any, *, pooling: str = "mean", layers: Sequence[int] = (-1,),
        progress: bool = False,
    ) -> Any:
        """Returns the vector of a text [D], of a list or tuple of texts [N, D]; else a generator.

        Args:
          pooling: "mean" over all places, "cls", or "pooled", a trained layer on [CLS].
          layers: of which "mean" and "cls" are, put end to end; 1 is the first, -1 the last.
        """
        if pooling not in vectors.POOLINGS:
            raise FlagError(f"pooling must be one of {', '.join(vectors.POOLINGS)}, got {pooling!r}")
        vectors.check_layers(self, layers)
        embedder = vectors.Embedder(self, pooling, layers)

        def embed(some: Sequence[str], first: int) -> Iterator[np.ndarray]:
            found = embedder.vectors(some, _progress(some, progress))
            return (result["vector"] for result in found)

        found = _one_or_all(texts, isinstance(texts, str), _text, embed)
        if not isinstance(texts, list | tuple):
            return found
        size = self.source.config.hidden_size * (1 if pooling == "pooled" else len(layers))
        return np.stack(list(found)) if texts else np.zeros((0, size), np.float32)

    def score(self, texts: Any, *, within_words: bool = False, progress: bool = False) -> Any:
        """Returns how likely the model finds a text: {"log_probability", "pieces"}.

        That is its pseudo-log-likelihood, see `albert.inference.scoring`, and the number of pieces
        over which it is summed.

        Args:
          texts: a string, or an iterable of strings.
          within_words: mask the later pieces of a word together with one of its pieces.
        """
        scorer = scoring.SentenceScorer(self, within_words)

        def score(some: Sequence[str], first: int) -> Iterator[dict[str, Any]]:
            places = [f"text {first + i}" for i in range(len(some))]
            for value, count in scorer.scores(some, places, _progress(some, progress)):
                yield {"log_probability": value, "pieces": count}

        return _one_or_all(texts, isinstance(texts, str), _text, score)

    def _answers(self, inputs: Any, tasks: Sequence[str], progress: bool) -> Any:
        predictor = self.predictor
        if predictor.task not in tasks:
            raise FlagError(
                f"{self.source.path} was fine-tuned for {predictor.task}, not for "
                f"{' or '.join(tasks)}"
            )

        def answers(some: Sequence[tuple[str, ...]], first: int) -> Iterator[dict[str, Any]]:
            for number, columns in enumerate(some, start=first):
                predictor.check(columns, f"input {number}")
            return predictor.predict(some, _progress(some, progress))

        is_one = isinstance(inputs, str) or (
            isinstance(inputs, tuple) and inputs and all(isinstance(one, str) for one in inputs)
        )
        return _one_or_all(inputs, is_one, _columns, answers)

    @property
    def predictor(self) -> Predictor:
        """The predictor for the task that the model was fine-tuned for."""
        return self.once("predictor", lambda: heads.predictor_of(self, None))


def open_session(
    path: str, *, max_seq_length: int | None = None, batch_size: int = 32,
    spm_model_file: str | None = None, vocab_file: str | None = None,
    do_lower_case: bool | None = None, onnx_file: str | None = None,
) -> AnsweringSession:
    """Returns a session of the model that lies at a path, whoever wrote it.

    Args:
      path: what `albert.from_pretrained` takes.
      max_seq_length: most pieces of a row; by default that of the training, else the most that
        the model takes.
      batch_size: rows computed together; fewer need less memory.
      spm_model_file, vocab_file: the vocabulary, if it does not lie there.
      do_lower_case: whether texts are put in lower case; by default what the directory says.
      onnx_file: what `albert.export_model` wrote of this model as `.onnx`, int8 or not. Then
        onnxruntime computes, and no engine is imported: faster for single texts, and from the
        start. For `classify`, `tag`, `answer`, `choose`, and `embed` of the last layer.

    Raises:
      UserError: no model or vocabulary there, these and the file do not fit each other, or Keras
        runs on another backend than TensorFlow and JAX.
    """
    opened = OnnxFile(filesystem.local_copy(onnx_file, "onnx_file")) if onnx_file else None
    if not opened:
        engines.require_backend()
    source = pretrained.open_path(path)
    tokenizer = source.tokenizer(spm_model_file, vocab_file, do_lower_case)
    if tokenizer is None:
        raise DataError(f"{path} has no vocabulary: give spm_model_file or vocab_file")
    session = AnsweringSession.of(source, tokenizer, max_seq_length, batch_size, "max_seq_length")
    session.onnx = opened
    return session


def _one_or_all(
    inputs: Any, is_one: bool, checked: Callable[[Any, int], Any],
    compute: Callable[[Sequence, int], Iterator[Any]],
) -> Any:
    """Returns what `compute` makes of one input, or a generator over those of an iterable.

    Args:
      checked: returns an input as `compute` takes it, given its number, from 1.
      compute: returns the answers to some inputs, given the number of the first.
    """
    if is_one:
        [answer] = compute([checked(inputs, 1)], 1)
        return answer
    if not isinstance(inputs, Iterable):
        raise DataError(f"neither text nor texts: {inputs!r:.80}")
    return _all(iter(inputs), checked, compute)


def _all(
    inputs: Iterator, checked: Callable[[Any, int], Any],
    compute: Callable[[Sequence, int], Iterator[Any]],
) -> Iterator[Any]:
    for first in itertools.count(1, CHUNK):
        some = list(itertools.islice(inputs, CHUNK))
        if not some:
            return
        yield from compute([checked(one, first + i) for i, one in enumerate(some)], first)


def _text(value: Any, number: int) -> str:
    if not isinstance(value, str):
        raise DataError(f"input {number} is not a text: {value!r:.80}")
    return value


def _columns(value: Any, number: int) -> tuple[str, ...]:
    columns = (value,) if isinstance(value, str) else value
    if not isinstance(columns, list | tuple) or not all(isinstance(one, str) for one in columns):
        raise DataError(f"input {number} is neither a text nor several: {value!r:.80}")
    return tuple(columns)


def _progress(inputs: Sequence, is_wanted: bool) -> Any:
    if not is_wanted:
        return None
    return Progress("answered", len(inputs), "texts")
