"""From raw texts to answers, for each kind of fine-tuned model. No TensorFlow at import.

A predictor turns inputs into rows for the model, chooses the outputs that it needs, and turns
these into one JSON object for each input.

Legend: B batch, L sequence, C labels or choices.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.errors import DataError, FlagError
from albert.inference.session import Compute, Outputs, Row, Session, model_inputs, numbers
from albert.tasks import conll, race
from albert.tasks import entity_metrics as entities
from albert.tasks.choice_metrics import likeliest
from albert.tasks.squad import decode as squad_decode
from albert.tasks.squad import features as squad_features

Texts = Sequence[str]  # the columns of a line
# Punctuation before and after a word is cut off; inside a word (U.S, don't, 3.5) it stays.
WORD = re.compile(r"\w(?:\S*\w)?|\S")


class Encoded(NamedTuple):
    """Inputs as rows for the model."""

    rows: list[list[Row]]  # of each input
    num_cut: int  # inputs, or words, that did not fit in a row
    context: Any = None  # what decoding needs to know of the inputs


@dataclasses.dataclass
class Predictor:
    """One label for a text or a pair of texts.

    Threads may share a predictor: `encode` returns all that `decode` needs.
    """

    session: Session
    labels: Sequence[str] = ()  # C
    task: str = "classification"
    model_name: str = "AlbertForSequenceClassification"
    least: int = 1  # columns of a line
    most: int = 2
    counted = "inputs"  # what a warning counts that did not fit in a row

    @property
    def model_options(self) -> dict[str, Any]:
        """Returns further arguments of the model's class, after the configuration."""
        return {}

    @property
    def model(self) -> Any:
        """The model, with its weights."""
        return self.session.once((Predictor, "model"), lambda: self.session.load(
            self.model_name, needed_outputs_only=True, **self.model_options
        ))

    def _computer(self) -> Compute:
        model = self.model  # loaded here: within a graph its variables would be the graph's
        return self.session.computer(lambda batch: self.compute(model, batch))

    def predict(self, inputs: Sequence[Texts], progress: Any = None) -> Iterator[dict[str, Any]]:
        """Yields the answer to each input; `progress` as of `Session.outputs`.

        In the end a warning says how many were cut.
        """
        session, num_cut = self.session, 0
        compute = session.once((Predictor, "compute"), self._computer)

        def encode(some: Sequence[Texts]) -> tuple[list[list[Row]], Encoded]:
            encoded = self.encode(some)
            return encoded.rows, encoded

        for encoded, outputs in session.outputs(inputs, encode, compute, progress):
            num_cut += encoded.num_cut
            yield from self.decode(encoded.context, outputs)
        session.report_cut(num_cut, self.counted)

    def columns(self, line: str) -> Texts:
        """Returns the texts of a line."""
        return line.split("\t")

    def check(self, columns: Texts, place: str, what: str = "texts") -> None:
        """Raises a DataError for an input of another number of columns; `what` they are called."""
        if not self.least <= len(columns) <= self.most:
            wanted = {self.least, self.most}
            raise DataError(
                f"{place}: {len(columns)} {what}, expected "
                f"{' or '.join(str(n) for n in sorted(wanted))}"
            )

    def encode(self, inputs: Sequence[Texts]) -> Encoded:
        """Returns the rows of each input, and what `decode` needs to know of them."""
        tokenizer = self.session.tokenizer
        firsts = tokenizer.encode_batch([columns[0] for columns in inputs])
        # As in training: a second text that is empty after cleaning is no text.
        seconds = [c[1] if len(c) > 1 and tokenizer.preprocess(c[1]) else None for c in inputs]
        encoded = iter(tokenizer.encode_batch([text for text in seconds if text is not None]))
        rows = [
            self.session.row(first, None if second is None else next(encoded))
            for first, second in zip(firsts, seconds, strict=True)
        ]
        return Encoded([[row] for row, _ in rows], sum(is_cut for _, is_cut in rows))

    def compute(self, model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what `decode` needs of a model's outputs, tensors [B, ...]."""
        ops = self.session.ops
        logits = model(batch, training=False)["logits"]
        logits = ops.cast(logits, "float32")
        return {"logits": logits, "probabilities": ops.softmax(logits)}

    def decode(
        self, context: Any, outputs: Sequence[Sequence[Outputs]]
    ) -> Iterator[dict[str, Any]]:
        """Yields the answer to each input from the outputs of its rows."""
        for (one,) in outputs:
            best, values = likeliest(one["logits"]), numbers(one["probabilities"])
            yield {
                "label": self.labels[best],
                "probability": values[best],
                "probabilities": dict(zip(self.labels, values, strict=True)),
            }


@dataclasses.dataclass
class MultiLabeller(Predictor):
    """All labels of a text or a pair of texts: those with a probability of 0.5 or more."""

    def compute(self, model, batch):
        ops = self.session.ops
        logits = model(batch, training=False)["logits"]
        return {"probabilities": ops.sigmoid(ops.cast(logits, "float32"))}

    def decode(self, context, outputs):
        for (one,) in outputs:
            values = numbers(one["probabilities"])
            pairs = list(zip(self.labels, values, strict=True))
            yield {
                "labels": [label for label, value in pairs if value >= 0.5],
                "probabilities": dict(pairs),
            }


@dataclasses.dataclass
class Regressor(Predictor):
    """A number for a text or a pair of texts, or several numbers with their names."""

    def compute(self, model, batch):
        ops = self.session.ops
        return {"value": ops.cast(model(batch, training=False)["logits"], "float32")}

    def decode(self, context, outputs):
        for (one,) in outputs:
            values = numbers(one["value"])
            if len(values) == 1:
                yield {"value": values[0]}
            else:
                yield {"values": dict(zip(self.labels, values, strict=True))}


@dataclasses.dataclass
class TokenLabeller(Predictor):
    """A label for every word of a text, and the entities that the labels mark."""

    model_name: str = "AlbertForTokenClassification"
    most: int = 1
    is_tokenized: bool = False  # texts are cut into words at blanks only

    counted = "words"

    def columns(self, line):
        return [line]  # tabs separate words, as blanks do

    def encode(self, inputs):
        pattern = re.compile(r"[^ \t]+") if self.is_tokenized else WORD
        found, context, counts = [], [], conll.Overflow()
        length = self.session.max_seq_length
        for (text,) in inputs:
            spans = [match.span() for match in pattern.finditer(text)]
            tokenizer = self.session.tokenizer
            pieces = conll.encode_words(tokenizer, [text[a:b] for a, b in spans])
            rows = conll.sentence_rows(pieces, [0] * len(pieces), tokenizer, length, counts)
            kept = list(map(_without_padding, rows)) if pieces else []
            context.append((text, spans, [np.flatnonzero(row["label_ids"]) for row in kept]))
            found.append([model_inputs(row) for row in kept])
        return Encoded(found, counts.words, context)

    def decode(self, context, outputs):
        for (text, spans, labelled), rows in zip(context, outputs, strict=True):
            logits, probabilities = (  # [words, C]
                np.concatenate(
                    [row[name][at] for row, at in zip(rows, labelled, strict=True)]
                    or [np.zeros((0, len(self.labels)), np.float32)]
                )
                for name in ("logits", "probabilities")
            )
            labels = [self.labels[i] for i in likeliest(logits)]
            yield {
                "words": [text[a:b] for a, b in spans],
                "labels": labels,
                "probabilities": numbers(probabilities.max(axis=-1, initial=0.0)),
                "entities": [
                    {
                        "type": kind, "text": text[spans[first][0] : spans[last][1]],
                        "start": spans[first][0], "end": spans[last][1],
                    }
                    for kind, first, last in entities.find_entities(labels)
                ],
            }


@dataclasses.dataclass
class Reader(Predictor):
    """The part of a passage that answers a question. A line is question, passage."""

    model_name: str = "AlbertForQuestionAnswering"
    least: int = 2
    # Where a passage has no possible answer at all.
    fallback = {"answer": squad_decode.NO_ANSWER}

    def __post_init__(self):
        self.longest_question()

    def longest_question(self) -> int:
        """Returns the most pieces of a question: those of the training, else half a row or 64.

        Raises:
          FlagError: a question of this length leaves no place for a passage.
        """
        length = self.session.max_seq_length
        told = self.session.source.facts.settings.get("max_query_length")
        if told is None:
            return min(64, (length - 3) // 2)
        if length <= told + 3:
            raise FlagError(
                f"--max_seq_length={length} leaves no place for passages: the model was trained "
                f"with questions of up to {told} pieces, so that {told + 4} is the least"
            )
        return told

    def encode(self, inputs):
        examples = [
            squad_features.SquadExample(str(i), question, passage, None, None, False, f"input {i}")
            for i, (question, passage) in enumerate(inputs)
        ]
        windows: list[list[squad_features.Window]] = [[] for _ in inputs]
        for window in squad_features.make_windows(
            examples, self.session.tokenizer, max_seq_length=self.session.max_seq_length,
            doc_stride=self.setting("doc_stride", 128),
            max_query_length=self.longest_question(), is_training=False,
        ):
            windows[window.example_index].append(window)
        rows = [[self._row(window) for window in of_one] for of_one in windows]
        return Encoded(rows, 0, (examples, [window for of_one in windows for window in of_one]))

    def _row(self, window: squad_features.Window) -> Row:
        names = ("input_ids", "input_mask", "segment_ids")
        return _without_padding({name: np.asarray(getattr(window, name)) for name in names})

    def compute(self, model, batch):
        outputs = model(batch, training=False)
        return {name: outputs[name] for name in ("start_logits", "end_logits")}

    def decode(self, context, outputs):
        examples, windows = context
        rows = [row for of_one in outputs for row in of_one]
        answers, nbest, *odds = self._decode(
            examples, windows,
            {w.unique_id: self._result(w, row) for w, row in zip(windows, rows, strict=True)},
            **self.sizes,
        )
        for example in examples:
            qid = example.qas_id
            told = {"answer": answers[qid], "probability": _rounded(nbest[qid][0]["probability"])}
            yield told | {"no_answer_score": _rounded(by_id[qid]) for by_id in odds}

    def _result(self, window: squad_features.Window, row: Outputs) -> Any:
        """Returns the outputs of a window that `_decode` needs, without those of padding."""
        return [row[name][: window.paragraph_len] for name in ("start_logits", "end_logits")]

    def _decode(self, *inputs, **options):
        return squad_decode.decode_v1(*inputs, **options)

    @property
    def sizes(self) -> dict[str, int]:
        """How many candidates an answer is chosen from, and its most pieces."""
        return {
            "n_best_size": self.setting("n_best_size", 20),
            "max_answer_length": self.setting("max_answer_length", 30),
        }

    def setting(self, name: str, default: int) -> int:
        """Returns what the training was told, or a default."""
        return self.session.source.facts.settings.get(name, default)


@dataclasses.dataclass
class DoubtingReader(Reader):
    """Like Reader, for passages that may have no answer (SQuAD 2.0)."""

    model_name: str = "AlbertForBeamQuestionAnswering"
    fallback = {"answer": "", "no_answer_score": squad_decode.NO_WINDOW}

    @property
    def threshold(self) -> float:
        """The `no_answer_score` above which a question is left unanswered.

        0, where an answer and none are equally likely, if the model's directory holds none.
        """
        return self.setting("null_score_diff_threshold", 0.0)

    def decode(self, context, outputs):
        for found in super().decode(context, outputs):
            # Scores were rounded to the shortest decimals of the same float32.
            has_none = np.float32(found["no_answer_score"]) > np.float32(self.threshold)
            best = found["answer"]
            yield found | {"answer": "" if has_none else best, "best_answer": best}

    @property
    def model_options(self):
        return {name: self.setting(name, 5) for name in ("start_n_top", "end_n_top")}

    def _row(self, window):
        # 1 where an answer may be. Batches pad it with 0, where none may be.
        allowed = 1 - np.asarray(window.p_mask)[: window.paragraph_len]
        return {**super()._row(window), "allowed": allowed}

    def compute(self, model, batch):
        allowed, rows = batch["allowed"], {k: v for k, v in batch.items() if k != "allowed"}
        outputs = model({**rows, "p_mask": 1 - allowed}, training=False)
        names = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index")
        return {name: outputs[name] for name in (*names, "cls_logits")}

    def _result(self, window, row):
        return row

    def _decode(self, *inputs, **options):
        return squad_decode.decode_v2(*inputs, **options, **self.model_options)


@dataclasses.dataclass
class Chooser(Predictor):
    """One of several options. A line is passage, question, options."""

    labels: Sequence[str] = race.ANSWERS
    model_name: str = "AlbertForMultipleChoice"
    least: int = 2 + race.NUM_CHOICES
    most: int = 2 + race.NUM_CHOICES

    @property
    def model_options(self):
        return {"num_choices": race.NUM_CHOICES}

    @property
    def longest_ending(self) -> int:
        """The most pieces of a question with its option."""
        told = self.session.source.facts.settings.get("max_qa_length", 128)
        return min(told, self.session.max_seq_length - 3)

    def encode(self, inputs):
        tokenizer, length = self.session.tokenizer, self.session.max_seq_length
        questions = [
            race.Question(
                "", "", tokenizer.preprocess(passage),
                race.endings_of(question, options, "input", tokenizer), None,
            )
            for passage, question, *options in inputs
        ]
        rows = [
            [
                _without_padding({
                    name: value.reshape(race.NUM_CHOICES, length)
                    for name, value in model_inputs(row).items()
                })
            ]
            for row in race.question_rows(questions, tokenizer, length, self.longest_ending)
        ]
        return Encoded(rows, 0)


def _without_padding(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row's arrays [..., L], cut to the length of their tokens; drops other values."""
    used = int(np.asarray(row["input_mask"]).sum(axis=-1).max())
    return {name: value[..., :used] for name, value in row.items() if np.ndim(value)}


def _rounded(value: float) -> float:
    return numbers(np.array([value]))[0]
