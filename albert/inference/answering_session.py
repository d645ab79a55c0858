"""Texts in, answers out, from Python.

    session = albert.open_session("work/classifier")
    session.classify("A fine film.")                    # one answer
    for answer in session.classify(texts): ...          # of any iterable, 4,096 texts at a time

Legend: D size of a vector, N texts.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

import numpy as np

from albert import engines
from albert.errors import DataError, FlagError
from albert.formats import model_hub, pretrained
from albert.inference import embedding, predictors, question_answering
from albert.inference.fine_tuned import predictor_of
from albert.inference.mask_filling import MaskFiller
from albert.inference.onnx_file import OnnxFile
from albert.inference.predictors import TaskPredictor, TextClassifier
from albert.inference.scoring import SentenceScorer
from albert.inference.session import DTYPES, Predictor, Session
from albert.runtime.named_dict import NamedDict
from albert.runtime.progress import Progress
from albert.storage import filesystem


class Answer(NamedDict):
    """An answer by our names, and by those of transformers' pipelines."""

    also = {"score": "probability", "token_str": "piece", "token": "id", "entity_group": "type",
            "word": "text"}


def _named(answer: Any) -> Any:
    """Returns an answer with its dicts as `Answer`s, except tables of probabilities."""
    if isinstance(answer, list):
        return [_named(part) for part in answer]
    if not isinstance(answer, dict):
        return answer
    tables = ("probabilities", "values")
    return Answer({k: v if k in tables else _named(v) for k, v in answer.items()})


class AnsweringSession(Session):
    """An opened model that answers texts.

    The task that a model was fine-tuned for decides which of `classify`, `answer`, `choose` and
    `tag` it supports. Each returns the answer to a single input, a list of answers for a list of
    inputs, and for any other iterable a generator of answers, which reads up to 4,096 inputs before
    the first answer. An answer is a dict whose values can also be read by the names of transformers'
    pipelines (`["score"]`, `.label`). The first answer waits for the weights and the compiler; later
    calls do not. A warning says how many inputs were truncated. Each method raises a UserError for
    an input that does not fit, and for a model that was trained for something else.
    """

    def classify(self, texts: Any, *, progress: bool = False) -> Any:
        """Returns the label of a text, or of a pair of texts, with its probability.

        Args:
          texts: a string or a tuple of two; or an iterable of these.
          progress: whether to show progress on the terminal.

        Returns:
          {"label", "probability", "probabilities": {label: probability}}; for a multi-label model
          {"labels", "probabilities"}; for a regression {"value"}.
        """
        kinds = TextClassifier, predictors.MultiLabelClassifier, predictors.Regressor
        return self._fine_tuned(texts, kinds, progress)

    def answer(
        self, questions: Any = None, *, question: str | None = None, context: str | None = None,
        progress: bool = False,
    ) -> Any:
        """Returns the part of a passage that answers a question.

        Args:
          questions: a tuple (question, passage), or an iterable of these.
          question, context: one question and its passage, instead.

        Returns:
          {"answer", "probability", "start", "end"}, the last two in characters of the passage. A
          SQuAD 2.0 model adds "no_answer_score" and "best_answer": "answer" is "", from 0 to 0,
          if the score exceeds the threshold that the model's evaluation found best (0 if there was
          none); `best_answer` is the most likely part in any case.
        """
        if questions is None:
            questions = _text(question, 1), _text(context, 1)
        return self._fine_tuned(questions, (question_answering.QuestionAnswerer,), progress)

    def choose(self, questions: Any, *, progress: bool = False) -> Any:
        """Returns which of four options is right: {"label", "probability", "probabilities"}.

        Args:
          questions: a tuple (passage, question, option, option, option, option), or an iterable.
        """
        return self._fine_tuned(questions, (predictors.ChoicePredictor,), progress)

    def tag(self, texts: Any, *, progress: bool = False) -> Any:
        """Returns a label for every word of a text.

        Returns:
          {"words", "labels", "probabilities", "entities": [{"type", "text", "start", "end"}]}.
        """
        return self._fine_tuned(texts, (predictors.TokenClassifier,), progress)

    def fill_mask(self, texts: Any, *, top_k: int = 5) -> Any:
        """Returns the most likely tokens for each [MASK]: `[[{"piece", "id", "probability"}]]`.

        Args:
          texts: a string, or an iterable of strings.
          top_k: number of tokens.
        """
        filler = MaskFiller(self, top_k)
        return _predictions(filler, texts, isinstance(texts, str), _text_and_origin)

    def embed(
        self, texts: Any, *, pooling: str = "mean", layers: Sequence[int] = (-1,),
        progress: bool = False,
    ) -> Any:
        """Returns the vector of a text [D] or of a list or tuple of texts [N, D]; else a generator.

        Args:
          pooling: "mean" over all tokens, "cls", or "pooled", a trained layer on [CLS].
          layers: layers whose vectors "mean" and "cls" concatenate; 1 is the first, -1 the last.
        """
        if pooling not in embedding.POOLINGS:
            raise FlagError(
                f"pooling must be one of {', '.join(embedding.POOLINGS)}, got {pooling!r}"
            )
        embedder = embedding.Embedder(self, pooling, layers)
        answers = _predictions(embedder, texts, isinstance(texts, str), _text, progress)
        if isinstance(texts, str):
            return answers["vector"]
        vectors = (answer["vector"] for answer in answers)
        if not isinstance(texts, list | tuple):
            return vectors
        size = self.source.config.hidden_size * (1 if pooling == "pooled" else len(layers))
        return np.stack(list(vectors)) if texts else np.zeros((0, size), np.float32)

    def score(self, texts: Any, *, within_words: bool = False, progress: bool = False) -> Any:
        """Returns how likely the model finds a text: `{"log_probability", "pieces"}`.

        That is the text's pseudo-log-likelihood, see `albert.inference.scoring`, and the number of
        tokens that it sums over.

        Args:
          texts: a string, or an iterable of strings.
          within_words: mask the later tokens of a word together with one of its tokens.
        """
        scorer = SentenceScorer(self, within_words)
        return _predictions(scorer, texts, isinstance(texts, str), _text_and_origin, progress)

    def _fine_tuned(
        self, inputs: Any, kinds: Sequence[type[TaskPredictor]], progress: bool
    ) -> Any:
        predictor, tasks = self.predictor, [kind.task for kind in kinds]
        if predictor.task not in tasks:
            raise FlagError(
                f"{self.source.path} was fine-tuned for {predictor.task}, not for "
                f"{' or '.join(tasks)}"
            )

        def checked(value: Any, number: int) -> tuple[str, ...]:
            columns = _columns(value, number)
            predictor.check(columns, f"input {number}")
            return columns

        is_one = isinstance(inputs, str) or (
            isinstance(inputs, tuple) and inputs and all(isinstance(one, str) for one in inputs)
        )
        return _predictions(predictor, inputs, is_one, checked, progress)

    @property
    def predictor(self) -> TaskPredictor:
        """The predictor for the task that the model was fine-tuned for."""
        return self.once("predictor", lambda: predictor_of(self, None))


def open_session(
    path: str | os.PathLike[str], *, max_seq_length: int | None = None, batch_size: int = 32,
    spm_model_file: str | os.PathLike[str] | None = None, vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None, keep_accents: bool | None = None,
    onnx_file: str | os.PathLike[str] | None = None,
    dtype: str = "float32", revision: str | None = None,
) -> AnsweringSession:
    """Opens a session with the model at a path, whoever wrote it.

    Args:
      path, revision: as in `albert.from_pretrained`.
      max_seq_length: maximum length in tokens; by default that of the training, else the model's
        maximum.
      batch_size: sequences computed together; fewer need less memory.
      spm_model_file, vocab_file: the vocabulary, if it isn't in the directory.
      do_lower_case, keep_accents: whether texts are lower-cased, and keep their marks; by default
        as the directory says.
      onnx_file: the `.onnx` file that `albert.export_model` wrote for this model, int8 or not.
        onnxruntime then computes, and no engine is imported: faster for single texts, and starts
        sooner. For `classify`, `tag`, `answer`, `choose`, and `embed` of the last layer.
      dtype: "bfloat16" takes half the memory, and is faster on processors and devices that support
        it; answers change in the third digit.

    Raises:
      UserError: no model or vocabulary there, these and the file do not fit each other, or Keras
        runs on another backend than TensorFlow and JAX.
    """
    if dtype not in DTYPES:
        raise FlagError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if onnx_file and dtype != "float32":
        raise FlagError(f"dtype={dtype!r} has no effect with onnx_file")
    path, spm_model_file, vocab_file, onnx_file = (
        value and os.fspath(value) for value in (path, spm_model_file, vocab_file, onnx_file)
    )
    onnx = OnnxFile(filesystem.local_copy(onnx_file, "onnx_file")) if onnx_file else None
    if not onnx:
        engines.require_backend()
    source = pretrained.open_path(model_hub.with_revision(path, revision))
    given = {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
    tokenizer = source.tokenizer(spm_model_file, vocab_file, given)
    if tokenizer is None:
        raise DataError(f"{path} has no vocabulary: give spm_model_file or vocab_file")
    session = AnsweringSession.of(source, tokenizer, max_seq_length, batch_size, "max_seq_length")
    session.onnx, session.dtype = onnx, dtype
    return session


def _predictions(
    predictor: Predictor, inputs: Any, is_one: bool, checked: Callable[[Any, int], Any],
    progress: bool = False,
) -> Any:
    """Returns the answer to one input, the list of answers to a list, or else a generator of them.

    Args:
      checked: returns an input as the predictor takes it, given its number, from 1.
    """
    if is_one:
        [answer] = predictor.predict([checked(inputs, 1)])
        return _named(answer)
    if not isinstance(inputs, Iterable) or isinstance(inputs, bytes):
        raise DataError(f"neither text nor texts: {inputs!r:.80}")
    total = len(inputs) if isinstance(inputs, Sized) else None
    answers = map(_named, predictor.predict(
        map(checked, inputs, itertools.count(1)),
        Progress("answered", total, "texts") if progress else None,
    ))
    return list(answers) if isinstance(inputs, list | tuple) else answers


def _text(value: Any, number: int) -> str:
    if not isinstance(value, str):
        raise DataError(f"input {number} is not a text: {value!r:.80}")
    return value


def _text_and_origin(value: Any, number: int) -> tuple[str, str]:
    return _text(value, number), f"text {number}"


def _columns(value: Any, number: int) -> tuple[str, ...]:
    columns = (value,) if isinstance(value, str) else value
    if not isinstance(columns, list | tuple) or not all(isinstance(one, str) for one in columns):
        raise DataError(f"input {number} is neither a text nor several: {value!r:.80}")
    return tuple(columns)
