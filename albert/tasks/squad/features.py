"""Questions and passages as windows of fixed length. No TensorFlow."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence

import numpy as np

from albert.errors import some
from albert.records.features import join_texts
from albert.records.windows import spans
from albert.tasks.squad.questions import SquadExample
from albert.text.offsets import encode_with_offsets
from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

_FIRST_UNIQUE_ID = 1_000_000_000


@dataclasses.dataclass
class Window:
    """One sequence of a model's input, and the positions of its tokens in the passage.

    `tok_start_to_orig_index` and `tok_end_to_orig_index` hold the first and the last character
    of each token in this part of the passage. `tokens`, `input_ids`, `input_mask`,
    `segment_ids` and `p_mask` hold a value for each position.
    """

    tok_start_to_orig_index: list[int]
    tok_end_to_orig_index: list[int]
    tokens: list[str]
    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    p_mask: list[int]  # 1 where an answer is impossible
    paragraph_len: int  # length without padding
    unique_id: int = 0
    example_index: int | None = None  # None in training
    # For the positions of the passage.
    token_is_max_context: dict[int, bool] = dataclasses.field(default_factory=dict)
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False


# === Passages ===


@dataclasses.dataclass(frozen=True)
class _Passage:
    """The tokens of a passage and their positions in it."""

    ids: list[int]
    tok_start_to_orig_index: list[int]
    tok_end_to_orig_index: list[int]
    # For each character: the token that an answer beginning or ending there begins or ends with.
    token_of_start: np.ndarray
    token_of_end: np.ndarray


def _passage(text: str, tokenizer: FullTokenizer) -> _Passage | None:
    """Returns the passage, with the positions that the tokenizer reports; None without any token."""
    ids, spans = encode_with_offsets(tokenizer, text)
    if not ids:
        return None
    starts = [begin for begin, _ in spans]
    lasts = [max(begin, end - 1) for begin, end in spans]
    everywhere = np.arange(len(text))
    # At a character between two tokens, an answer starts with the next or ends with the previous one.
    token_of_start = np.minimum(np.searchsorted(lasts, everywhere), len(ids) - 1)
    token_of_end = np.maximum(np.searchsorted(starts, everywhere, side="right") - 1, 0)
    return _Passage(ids, starts, lasts, token_of_start, token_of_end)


# === Windows ===


def make_windows(
    examples: Sequence[SquadExample],
    tokenizer: FullTokenizer,
    *,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
) -> Iterator[Window]:
    """Yields the windows of every question, in order, as [CLS] question [SEP] passage [SEP].

    A passage that does not fit becomes several windows, which begin `doc_stride` tokens apart.
    Questions whose passage has no tokens are skipped, with a warning.
    """
    unique_id, left_out = _FIRST_UNIQUE_ID, []
    passages: dict[str, _Passage | None] = {}  # several questions share one
    for index, example in enumerate(examples):
        text = example.paragraph_text
        if text not in passages:
            passages[text] = _passage(text, tokenizer)
        passage = passages[text]
        if passage is None:
            left_out.append(example.qas_id)
            continue
        query = tokenizer.encode_text(example.question_text)[:max_query_length]
        parts = spans(len(passage.ids), max_seq_length - len(query) - 3, doc_stride)
        best = _windows_of_most_context(parts, len(passage.ids))
        for number, part in enumerate(parts):
            window = _window(tokenizer, query, passage, part, max_seq_length)
            offset = len(query) + 2
            window.token_is_max_context = {
                offset + i: bool(best[token] == number) for i, token in enumerate(part)
            }
            window.unique_id, window.is_impossible = unique_id, example.is_impossible
            if is_training:
                _set_answer(window, example, passage, part, offset)
            else:
                window.example_index = index
            unique_id += 1
            yield window
    if left_out:
        log.warning("skipped %s of %s questions, whose passage has no tokens: %s",
                    f"{len(left_out):,}", f"{len(examples):,}", some(left_out))


def _set_answer(
    window: Window, example: SquadExample, passage: _Passage, part: range, offset: int
) -> None:
    """Sets the position of the answer in the window of a part of the passage."""
    window.is_impossible, window.start_position, window.end_position = True, 0, 0
    if example.is_impossible:
        return
    last_character = example.start_position + len(example.orig_answer_text) - 1
    first = int(passage.token_of_start[example.start_position])
    last = max(first, int(passage.token_of_end[last_character]))
    # A window without the answer stays, even in 1.1; its answer is [CLS].
    if first in part and last in part:
        window.is_impossible = False
        window.start_position = first - part.start + offset
        window.end_position = last - part.start + offset


def _window(
    t: FullTokenizer, query: list[int], passage: _Passage, part: range, length: int
) -> Window:
    """Returns the sequence of a question and a part of its passage."""
    shown, offset = slice(part.start, part.stop), len(query) + 2
    row = {
        name: values.tolist() for name, values in
        join_texts(query, passage.ids[shown], length, t.cls_id, t.sep_id).items()
    }
    used = offset + len(part) + 1
    return Window(
        tok_start_to_orig_index=passage.tok_start_to_orig_index[shown],
        tok_end_to_orig_index=passage.tok_end_to_orig_index[shown],
        tokens=[t.inv_vocab[i] for i in row["input_ids"]],
        **row,
        p_mask=[0] + [1] * (offset - 1) + [0] * len(part) + [1] * (length - used + 1),
        paragraph_len=used,
    )


def _windows_of_most_context(parts: Sequence[range], count: int) -> np.ndarray:
    """Returns for each token the window in which it has the most context on both sides.

    The score is the number of neighbours on the shorter side, plus 0.01 times the length of the
    window; among equal scores the first counts.
    """
    best, scores = np.zeros(count, int), np.full(count, -1.0)
    for number, part in enumerate(parts):
        positions, shown = np.arange(len(part)), slice(part.start, part.stop)
        score = np.minimum(positions, positions[::-1]) + 0.01 * len(part)
        better = score > scores[shown]
        best[shown][better] = number
        scores[shown][better] = score[better]
    return best
