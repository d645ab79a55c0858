"""The tokenizer as a TensorFlow graph that also tells where in a text each piece stands.

Legend: B batch, N characters of all texts, (n) a ragged number of pieces.
"""

import numpy as np
import tensorflow as tf

from albert import tokenization
from albert.export import text_graph

# The ids of texts, and of each piece the first and the last character, all [B, (n)].
Placed = tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]


class _PlacedSentencePieces(text_graph.SentencePieceIds):
    """`SentencePieceIds` with places.

    Only one of tensorflow-text's implementations tells them. Of several equally good
    segmentations ("e", "ee" or "ee", "e") it may take another than the installed sentencepiece.
    """

    def __init__(self, tokenizer: tokenization.FullTokenizer):
        super().__init__(tokenizer)
        with open(tokenizer.path, "rb") as stream:
            self._placing = text_graph.import_tensorflow_text().SentencepieceTokenizer(
                stream.read(), out_type=tf.int32
            )
        self._blank = ""
        if tokenizer.settings.remove_space:
            self._blank = text_graph.character_class(str.isspace)
        # As `_cut`: how many bytes of a piece that is cut follow each of its parts.
        following = [
            _following(tokenizer, piece) if i in tokenizer.comma_ids else [0]
            for piece, i in sorted(tokenizer.vocab.items(), key=lambda item: item[1])
        ]
        following += [[1, 0]] * bool(self._unknown_comma)
        self._following = np.array([n for row in following for n in row], np.int64)

    def placed(self, texts) -> Placed:
        """Returns ids and places of texts [B] without bad bytes."""
        cleaned, origins = self._with_origins(texts)
        ids, begins, ends = (
            x.with_row_splits_dtype(tf.int64) for x in self._placing.tokenize_with_offsets(cleaned)
        )
        rows = self._rows_of_cut(ids, cleaned)
        following = self._parts(rows, self._following)
        parts = following.values  # [pieces, (parts)]
        of_parts = parts.with_values(
            tf.repeat(tf.cast(ends.values, tf.int64), parts.row_lengths()) - parts.values
        )
        first = tf.cast(begins.values, tf.int64)[:, None]
        of_begins = tf.concat([tf.RaggedTensor.from_tensor(first), of_parts[:, :-1]], 1)
        return self._parts(rows, self._cut).merge_dims(1, 2), *_characters(
            following.with_values(of_begins).merge_dims(1, 2),
            following.with_values(of_parts).merge_dims(1, 2), origins,
        )

    def _with_origins(self, texts):
        """Returns `clean(texts)`, and of each of its bytes the character that it comes from."""
        characters = tf.strings.unicode_split(texts, "UTF-8").with_row_splits_dtype(tf.int64)
        made = _collapsed(characters, self._blank) if self._blank else characters.values
        if self._characters:
            made = self._characters.of_each(made)
        cleaned = tf.strings.reduce_join(characters.with_values(made), axis=1)
        # A sigma is as many bytes long wherever it stands.
        return text_graph.lower_sigma(cleaned) if self._lower else cleaned, _origins(
            characters, made
        )


def _following(tokenizer: tokenization.FullTokenizer, piece: str) -> list[int]:
    parts = tokenization.split_digit_comma(tokenizer.sp_model, piece)
    sizes = [len(part.replace(tokenization.SPIECE_UNDERLINE, "").encode()) for part in parts]
    return [sum(sizes[i + 1 :]) for i in range(len(sizes))]


def _collapsed(characters: tf.RaggedTensor, blank: str):
    """Returns the characters [N] of texts, of white space one blank between words alone."""
    is_blank = tf.strings.regex_full_match(characters.values, blank)
    counts = tf.concat([[0], tf.cumsum(tf.cast(~is_blank, tf.int64))], 0)
    rows = characters.value_rowids()
    before = counts[:-1] - tf.gather(counts, tf.gather(characters.row_starts(), rows))
    behind = tf.gather(counts, tf.gather(characters.row_limits(), rows)) - counts[1:]
    is_next = tf.concat([[False], ~is_blank], 0)[:-1]
    between = tf.where(is_next & (before > 0) & (behind > 0), " ", "")
    return tf.where(is_blank, between, characters.values)


def _origins(characters: tf.RaggedTensor, made) -> tf.RaggedTensor:
    """Returns for each byte of what characters turned into the character's place in its text."""
    sizes = tf.strings.length(made)
    places = tf.repeat(tf.ragged.range(characters.row_lengths()).values, sizes)
    counts = tf.reduce_sum(characters.with_values(tf.cast(sizes, tf.int64)), axis=1)
    return tf.RaggedTensor.from_row_lengths(places, counts)


def _characters(
    begins: tf.RaggedTensor, ends: tf.RaggedTensor, origins: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Returns the first and last characters of pieces, given their bytes in the changed text."""
    starts = tf.gather(origins.row_starts(), begins.value_rowids())
    values = tf.concat([origins.values, [0]], 0)
    lasts = tf.maximum(ends.values - 1, 0)

    def at(places):
        # The piece that SentencePiece puts in front of a text has no bytes.
        found = tf.gather(values, starts + tf.minimum(places, lasts))
        return begins.with_values(tf.where(ends.values > 0, found, 0))

    return at(begins.values), at(lasts)


class _PlacedWordPieces(text_graph.WordPieceIds):
    """`WordPieceIds` with places."""

    def __init__(self, tokenizer: tokenization.FullTokenizer):
        super().__init__(tokenizer)
        basic = tokenizer.basic_tokenizer
        self._of_words = text_graph.CharacterMap(lambda c: "".join(basic.tokenize(c)))

    def placed(self, texts) -> Placed:
        """Returns ids and places of texts [B] without bad bytes."""
        words = self._words(texts).with_row_splits_dtype(tf.int64)
        ids, begins, ends = (
            x.with_row_splits_dtype(tf.int64)
            for x in self._wordpiece.tokenize_with_offsets(self._without_long(words))
        )
        # Where each word begins, the words of a text put end to end.
        sizes = words.with_values(tf.cast(tf.strings.length(words.values), tf.int64))
        before = tf.cumsum(sizes.values, exclusive=True)
        row_starts = tf.gather(words.row_starts(), words.value_rowids())
        before -= tf.gather(tf.concat([before, [0]], 0), row_starts)
        of_word = begins.values.value_rowids()
        begins = tf.cast(begins.values.values, tf.int64) + tf.gather(before, of_word)
        # An unknown piece is its whole word, however long.
        is_unknown = tf.equal(ids.values.values, tf.cast(self._unknown, ids.dtype))
        ends = tf.where(
            is_unknown, tf.gather(sizes.values, of_word), tf.cast(ends.values.values, tf.int64)
        ) + tf.gather(before, of_word)
        ids = tf.cast(ids.merge_dims(1, 2), tf.int32)
        characters = tf.strings.unicode_split(texts, "UTF-8").with_row_splits_dtype(tf.int64)
        origins = _origins(characters, self._of_words.of_each(characters.values))
        return ids, *_characters(ids.with_values(begins), ids.with_values(ends), origins)


def placed_of(
    tokenizer: tokenization.FullTokenizer,
) -> _PlacedSentencePieces | _PlacedWordPieces:
    """Returns `text_graph.ids_of` with a method `placed` of texts [B], see `Placed`.

    Raises:
      FlagError: tensorflow-text is not installed.
    """
    kind = _PlacedSentencePieces if tokenizer.is_spm else _PlacedWordPieces
    return kind(tokenizer)
