"""The tokenizer as a TensorFlow graph that also returns the character offsets of tokens.

Legend: B batch, N characters of all texts, (n) a ragged number of tokens.
"""

import numpy as np
import tensorflow as tf

from albert import tokenization
from albert.export import text_graph

# The ids of texts, and the first and the last character of each token: [B, (n)] each.
WithOffsets = tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]


class _SentencePieceOffsets(text_graph.SentencePieceIds):
    """`SentencePieceIds` with offsets.

    The only implementation in tensorflow-text that returns them may choose another one than the
    installed sentencepiece among equally good segmentations ("e", "ee" or "ee", "e").
    """

    def __init__(self, tokenizer: tokenization.FullTokenizer):
        super().__init__(tokenizer)
        with open(tokenizer.path, "rb") as stream:
            self._with_offsets = text_graph.import_tensorflow_text().SentencepieceTokenizer(
                stream.read(), out_type=tf.int32
            )
        self._blank = ""
        if tokenizer.settings.remove_space:
            self._blank = text_graph.character_class(str.isspace)
        # In the order of `_cut`: the number of bytes that follow each part of a token.
        following = [
            _following(tokenizer, token) if i in tokenizer.comma_ids else [0]
            for token, i in sorted(tokenizer.vocab.items(), key=lambda item: item[1])
        ]
        following += [[1, 0]] * bool(self._unknown_comma)
        self._following = np.array([n for row in following for n in row], np.int64)

    def with_offsets(self, texts) -> WithOffsets:
        """Returns ids and offsets of texts [B] without invalid bytes."""
        cleaned, origins = self._with_origins(texts)
        ids, begins, ends = (
            x.with_row_splits_dtype(tf.int64)
            for x in self._with_offsets.tokenize_with_offsets(cleaned)
        )
        rows = self._rows_of_cut(ids, cleaned)
        following = self._parts(rows, self._following)
        parts = following.values  # [tokens, (parts)]
        part_ends = parts.with_values(
            tf.repeat(tf.cast(ends.values, tf.int64), parts.row_lengths()) - parts.values
        )
        first = tf.cast(begins.values, tf.int64)[:, None]
        part_begins = tf.concat([tf.RaggedTensor.from_tensor(first), part_ends[:, :-1]], 1)
        return self._parts(rows, self._cut).merge_dims(1, 2), *_characters(
            following.with_values(part_begins).merge_dims(1, 2),
            following.with_values(part_ends).merge_dims(1, 2), origins,
        )

    def _with_origins(self, texts):
        """Returns `clean(texts)`, and for each of its bytes the index of the original character."""
        characters = tf.strings.unicode_split(texts, "UTF-8").with_row_splits_dtype(tf.int64)
        changed = _collapsed(characters, self._blank) if self._blank else characters.values
        if self._characters:
            changed = self._characters.of_each(changed)
        origins = _origins(characters, changed)
        cleaned = tf.strings.reduce_join(characters.with_values(changed), axis=1)
        # A lower-case sigma has as many bytes as a capital one.
        return text_graph.lower_sigma(cleaned) if self._lower else cleaned, origins


def _following(tokenizer: tokenization.FullTokenizer, token: str) -> list[int]:
    parts = tokenization.split_digit_comma(tokenizer.sp_model, token)
    sizes = [len(part.replace(tokenization.SPIECE_UNDERLINE, "").encode()) for part in parts]
    return [sum(sizes[i + 1 :]) for i in range(len(sizes))]


def _collapsed(characters: tf.RaggedTensor, blank: str):
    """Returns the characters [N] of texts, with one blank for white space between words."""
    is_blank = tf.strings.regex_full_match(characters.values, blank)
    counts = tf.concat([[0], tf.cumsum(tf.cast(~is_blank, tf.int64))], 0)
    rows = characters.value_rowids()
    before = counts[:-1] - tf.gather(counts, tf.gather(characters.row_starts(), rows))
    behind = tf.gather(counts, tf.gather(characters.row_limits(), rows)) - counts[1:]
    is_next = tf.concat([[False], ~is_blank], 0)[:-1]
    between = tf.where(is_next & (before > 0) & (behind > 0), " ", "")
    return tf.where(is_blank, between, characters.values)


def _origins(characters: tf.RaggedTensor, changed) -> tf.RaggedTensor:
    """Returns, for each byte of the changed characters, the character's index in its text."""
    sizes = tf.strings.length(changed)
    indices = tf.repeat(tf.ragged.range(characters.row_lengths()).values, sizes)
    counts = tf.reduce_sum(characters.with_values(tf.cast(sizes, tf.int64)), axis=1)
    return tf.RaggedTensor.from_row_lengths(indices, counts)


def _characters(
    begins: tf.RaggedTensor, ends: tf.RaggedTensor, origins: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Returns the first and the last character of tokens, given their bytes in the changed text."""
    starts = tf.gather(origins.row_starts(), begins.value_rowids())
    values = tf.concat([origins.values, [0]], 0)
    last_bytes = tf.maximum(ends.values - 1, 0)

    def at(offsets):
        # The token that SentencePiece adds in front of a text has no bytes.
        indices = tf.gather(values, starts + tf.minimum(offsets, last_bytes))
        return begins.with_values(tf.where(ends.values > 0, indices, 0))

    return at(begins.values), at(last_bytes)


class _WordPieceOffsets(text_graph.WordPieceIds):
    """`WordPieceIds` with offsets."""

    def __init__(self, tokenizer: tokenization.FullTokenizer):
        super().__init__(tokenizer)
        basic = tokenizer.basic_tokenizer
        self._changed = text_graph.CharacterMap(lambda c: "".join(basic.tokenize(c)))

    def with_offsets(self, texts) -> WithOffsets:
        """Returns ids and offsets of texts [B] without invalid bytes."""
        words = self._words(texts).with_row_splits_dtype(tf.int64)
        ids, begins, ends = (
            x.with_row_splits_dtype(tf.int64)
            for x in self._wordpiece.tokenize_with_offsets(self._without_long(words))
        )
        # The beginning of each word if the words of a text are concatenated.
        sizes = words.with_values(tf.cast(tf.strings.length(words.values), tf.int64))
        before = tf.cumsum(sizes.values, exclusive=True)
        row_starts = tf.gather(words.row_starts(), words.value_rowids())
        before -= tf.gather(tf.concat([before, [0]], 0), row_starts)
        word_index = begins.values.value_rowids()
        begins = tf.cast(begins.values.values, tf.int64) + tf.gather(before, word_index)
        # An unknown token covers its entire word.
        is_unknown = tf.equal(ids.values.values, tf.cast(self._unknown, ids.dtype))
        ends = tf.where(
            is_unknown, tf.gather(sizes.values, word_index), tf.cast(ends.values.values, tf.int64)
        ) + tf.gather(before, word_index)
        ids = tf.cast(ids.merge_dims(1, 2), tf.int32)
        characters = tf.strings.unicode_split(texts, "UTF-8").with_row_splits_dtype(tf.int64)
        origins = _origins(characters, self._changed.of_each(characters.values))
        return ids, *_characters(ids.with_values(begins), ids.with_values(ends), origins)


def ids_of(
    tokenizer: tokenization.FullTokenizer,
) -> _SentencePieceOffsets | _WordPieceOffsets:
    """Returns `text_graph.ids_of` with the method `with_offsets`.

    Raises:
      FlagError: tensorflow-text is not installed.
    """
    return (_SentencePieceOffsets if tokenizer.is_spm else _WordPieceOffsets)(tokenizer)
