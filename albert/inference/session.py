"""`open_session`: an opened model that answers texts.

onnxruntime computes, in bfloat16 OpenVINO: neither TensorFlow nor JAX is imported.

Legend: D size of an embedding, N texts.
"""

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sized
from typing import Any

import numpy as np

from albert import engines
from albert.errors import FlagError
from albert.formats import model_hub, pretrained
from albert.formats.model_classes import CHOICE, CLASSIFICATION, MODEL_CLASSES, QUESTIONS, TOKENS
from albert.formats.pretrained import Pretrained
from albert.inference import fine_tuned, onnx_graph, onnx_model
from albert.inference.onnx_graph import Call
from albert.inference.predictors import POOLINGS, Embedder, MaskFiller, Predictor
from albert.runtime.progress import Progress
from albert.text import encodings
from albert.tokenization import FullTokenizer

DTYPES = ("float32", "bfloat16", "int8")


@dataclasses.dataclass(eq=False)
class AnsweringSession:
    """A session: an opened model that answers texts.

    Each method takes an input, a list of inputs, or any other iterable, and returns an answer, a
    list of answers, or a generator that reads up to 4,096 inputs at a time. An answer is a dict.
    `progress` shows progress on the terminal. The first call of a method loads the weights and
    makes the graph. A warning says once how many inputs were truncated. An input that does not fit,
    or a model for another task, is a UserError. Threads may share a session; processes open their
    own, also by pickling it. `close()`, or `with albert.open_session(...) as session`, frees the model.
    """

    source: Pretrained
    tokenizer: FullTokenizer
    max_seq_length: int | None = None  # by default as in training, else the model's maximum
    batch_size: int = 32
    dtype: str = "float32"  # one of DTYPES, of large matrices
    opened_with: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # see `__reduce__`

    def __post_init__(self):
        if self.dtype not in DTYPES:
            raise FlagError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.dtype == "bfloat16" and not engines.is_installed("openvino"):
            raise FlagError("bfloat16 needs OpenVINO: pip install 'albert-keras[openvino]'")
        self.source.config.check_length(self.max_seq_length, self.source.path)
        limit = self.source.config.max_position_embeddings
        known = self.source.metadata.max_seq_length or self.source.vocabulary.max_length or limit
        self.max_seq_length = self.max_seq_length or min(known, limit)
        self._cache: dict[Any, Any] = {}
        self._process, self._lock = os.getpid(), threading.RLock()

    def classify(self, texts: Any, *, top_k: int | None = None, progress: bool = False) -> Any:
        """Classifies a text, or a pair of texts.

        Args:
          texts: a string, a tuple of two strings, or an iterable of these.
          top_k: instead, return a list of this many {"label", "probability"}, the most likely first.

        Returns:
          {"label", "probability", "probabilities": {label: probability}}; of a multi-label model
          {"labels", "probabilities"}; of a regression {"value"}.
        """
        # A regression has no labels.
        tasks = [CLASSIFICATION, "multi_label_classification", *["regression"] * (top_k is None)]
        return self._answers(self._fine_tuned(tasks, top_k), texts, progress)

    def answer(
        self, questions: Any = None, *, question: str | None = None, context: str | None = None,
        top_k: int | None = None, progress: bool = False,
    ) -> Any:
        """Answers a question about a passage with a part of the passage.

        Args:
          questions: a tuple (question, passage), or an iterable of these.
          question, context: instead, one question and its passage.
          top_k: instead, return a list of at most this many parts of the passage, the most likely
            first. No threshold withholds them.

        Returns:
          {"answer", "probability", "start", "end"}, start and end in characters of the passage. A
          SQuAD 2.0 model adds "best_answer" and "no_answer_score". If this score exceeds the
          threshold that was best in the model's evaluation (by default 0), "answer" is "".
        """
        if questions is None:
            questions = question, context
        return self._answers(self._fine_tuned([QUESTIONS], top_k), questions, progress)

    def choose(self, questions: Any, *, progress: bool = False) -> Any:
        """Chooses the right one of 2 to 26 options: {"label", "probability", "probabilities"}.

        Args:
          questions: a tuple (passage, question, option, option, ...), or an iterable of these.
        """
        return self._answers(self._fine_tuned([CHOICE]), questions, progress)

    def tag(self, texts: Any, *, progress: bool = False) -> Any:
        """Labels each word of a text, and finds the entities that the labels mark.

        Returns:
          {"words", "labels", "probabilities", "entities": [{"type", "text", "start", "end"}]}, start
          and end in characters.
        """
        return self._answers(self._fine_tuned([TOKENS]), texts, progress)

    def fill_mask(self, texts: Any, *, top_k: int = 5) -> Any:
        """Predicts the tokens at each [MASK] of a text.

        Args:
          texts: a string, or an iterable of strings.
          top_k: number of tokens for each [MASK].

        Returns:
          for each [MASK] a list of {"piece", "id", "probability"}, the most likely token first.
        """
        return self._answers(MaskFiller(self, top_k), texts)

    def embed(
        self, texts: Any, *, pooling: str | None = None, progress: bool = False
    ) -> Any:
        """Computes embeddings: [D] of a text, [N, D] of a list of texts.

        Args:
          texts: a string, or an iterable of strings.
          pooling: by default that of the files of sentence-transformers next to the model; without
            these the "mean" over all tokens; the vector at "cls"; or "pooled", a trained layer on
            it.
        """
        if pooling not in (None, *POOLINGS):
            raise FlagError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        vectors = self._answers(Embedder(self, pooling), texts, progress)
        if isinstance(vectors, list):
            return np.array(vectors, np.float32).reshape(-1, self.source.config.hidden_size)
        return vectors

    def _fine_tuned(self, tasks: list[str], top_k: int | None = None) -> Predictor:
        """Returns the predictor for the model's task, which must be one of these."""
        predictor = self.once("predictor", lambda: fine_tuned.predictor_of(self))
        if predictor.task not in tasks:
            raise FlagError(
                f"{self.source.path} was fine-tuned for {predictor.task}, not for {' or '.join(tasks)}"
            )
        if top_k is not None and top_k < 1:
            raise FlagError(f"top_k must be at least 1, got {top_k}")
        return dataclasses.replace(predictor, top_k=top_k)

    def _answers(self, predictor: Predictor, inputs: Any, progress: bool = False) -> Any:
        """Returns the answer to one input, a list of answers to a list, else a generator of answers."""
        is_several = isinstance(predictor, fine_tuned.TaskPredictor) and isinstance(inputs, tuple)
        if isinstance(inputs, str) or is_several and inputs and all(isinstance(one, str) for one in inputs):
            [answer] = predictor.predict([predictor.read(inputs, "input 1")])
            return answer
        inputs = encodings.collection(inputs, "input")
        total = len(inputs) if isinstance(inputs, Sized) else None
        answers = predictor.predict(
            (predictor.read(value, f"input {number}") for number, value in enumerate(inputs, start=1)),
            Progress("answered", total, "texts") if progress else None,
        )
        return list(answers) if isinstance(inputs, list | tuple) else answers

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the path and the settings: another process opens the model itself."""
        return functools.partial(open_session, **self.opened_with), ()

    # === For predictors ===

    def load(self, class_name: str) -> Call:
        """Loads the model as one of albert's classes; returns its call."""
        kind = MODEL_CLASSES[class_name]
        content = onnx_model.model_file(
            kind, self.source, is_int8=self.dtype == "int8", has_positions=kind.head == "masked_lm"
        )
        if self.dtype == "bfloat16":
            return onnx_graph.opened_in_bfloat16(content)
        return onnx_graph.opened(content)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns the result of `make` for this key, which only the first thread calls.

        Raises:
          FlagError: the session was opened by the process that this one was forked from, whose
            threads, with which it would compute, are not here.
        """
        if self._process != os.getpid():
            raise FlagError(
                "a session that was opened before a fork cannot answer after it: open one in each "
                'process, or use multiprocessing.get_context("spawn")'
            )
        with self._lock:
            if key not in self._cache:
                self._cache[key] = make()
            return self._cache[key]

    def close(self) -> None:
        """Frees the model; the next question loads it again."""
        with self._lock:
            self._cache.clear()

    def __enter__(self) -> "AnsweringSession":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def open_session(
    path: str | os.PathLike[str], *, max_seq_length: int | None = None, batch_size: int = 32,
    spm_model_file: str | os.PathLike[str] | None = None,
    vocab_file: str | os.PathLike[str] | None = None, do_lower_case: bool | None = None,
    keep_accents: bool | None = None, dtype: str = "float32", revision: str | None = None,
) -> AnsweringSession:
    """Opens a model that answers texts.

    The model's task decides which of `classify`, `answer`, `choose` and `tag` the session supports.
    `embed` works with every model, `fill_mask` with those that have a masked-LM head. onnxruntime
    computes, on a GPU if the package `onnxruntime-gpu` is installed instead.

    Args:
      path, revision: as in `albert.from_pretrained`.
      max_seq_length: maximum sequence length in tokens; by default as in training, else the model's
        maximum. A model of `pretrain_from_text` reads fewer tokens than a classifier may that starts
        from it, whose length `run_classifier` chooses by its texts.
      batch_size: number of sequences computed together.
      spm_model_file, vocab_file: the vocabulary, if the model's directory has none.
      do_lower_case, keep_accents: as in `AlbertTokenizer.from_pretrained`.
      dtype: "float32"; "bfloat16", which changes answers in the third digit, is faster on processors
        that support it, and needs `pip install 'albert-keras[openvino]'`; or "int8", which changes
        them in the second, is faster too, and needs a quarter of the memory.

    Raises:
      UserError: model or vocabulary are missing or don't fit each other.

    Example:
      >>> session = albert.open_session("small_en")
      >>> session.fill_mask("The boys [MASK] playing in the garden.", top_k=2)
      [[{'piece': 'were', 'id': 573, 'probability': 0.476},
        {'piece': 'are', 'id': 577, 'probability': 0.258}]]
      >>> session.embed(["A text.", "Another one."]).shape
      (2, 384)
    """
    opened_with = dict(locals())
    path, spm_model_file, vocab_file = (
        value and os.fspath(value) for value in (path, spm_model_file, vocab_file)
    )
    source = pretrained.open_path(model_hub.with_revision(path, revision))
    settings = {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
    tokenizer = source.required_tokenizer(spm_model_file, vocab_file, settings)
    return AnsweringSession(source, tokenizer, max_seq_length, batch_size, dtype, opened_with)
