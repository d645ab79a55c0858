"""The tokenizer as a TensorFlow graph: strings to the same ids as those of `tokenization`.

Characters are mapped by Python's Unicode data when the graph is built, not by the ICU library of
the process that runs it: `tf.strings.lower` depends on that process's locale (in a Turkish one, "I"
becomes a dotless i), and TensorFlow's normalization on another version of Unicode.

Legend: B batch, (n) a ragged number of tokens, L sequence.
"""

import sys
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from albert import tokenization
from albert.errors import DataError, FlagError, first_line
from albert.formats import tokenizer_json

_AutoTrackable = tf.__internal__.tracking.AutoTrackable

_SIGMA = "\u03a3"  # the only letter whose lower-case form depends on its neighbors
_ABSENT = b"\xff"  # not valid in UTF-8
_UNKNOWN_WORD = "\1"  # in no vocabulary, since preprocessing removes control characters


def import_tensorflow_text():
    """Returns the module tensorflow_text.

    Raises:
      FlagError: it is not installed, or made for another version of TensorFlow.
    """
    try:
        import tensorflow_text
    except (ImportError, tf.errors.NotFoundError) as error:
        minor = ".".join(tf.__version__.split(".")[:2])
        raise FlagError(
            f"modules that take raw text need tensorflow-text for TensorFlow {minor} "
            f"({first_line(error)}): pip install 'tensorflow-text=={minor}.*'"
        ) from error
    return tensorflow_text


def refuse_added_tokens(tokenizer: tokenization.FullTokenizer) -> None:
    """Raises a FlagError if a tokenizer has tokens that its vocabulary file lacks."""
    if tokenizer.added.ids:
        raise FlagError(f"the added tokens {', '.join(tokenizer.added.ids):.60} can't be written into a "
                        "SavedModel of texts or a TF-Hub module: export an .onnx file, which takes ids")


# === Characters ===


def character_class(is_member: Callable[[str], bool]) -> str:
    """Returns the characters that a predicate accepts, as a bracketed class of RE2."""
    return tokenizer_json.character_class(is_member, lambda code: f"\\x{{{code:x}}}")


class CharacterMap(_AutoTrackable):
    """Applies `change` to each character of texts [B]."""

    def __init__(self, change: Callable[[str], str]):
        characters = (chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i < 0xE000)
        pairs = [(c.encode(), new.encode()) for c in characters if (new := change(c)) != c]
        keys, values = zip(*pairs, strict=True)
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                # As objects: NumPy's byte strings lose a final NUL.
                tf.constant(np.array(keys, object)), tf.constant(np.array(values, object))
            ),
            default_value=_ABSENT,
        )

    def __call__(self, texts):
        characters = tf.strings.unicode_split(texts, "UTF-8")  # [B, (characters)]
        changed = characters.with_values(self.of_each(characters.values))
        return tf.strings.reduce_join(changed, axis=1)

    def of_each(self, characters):
        """Returns the replacements of characters [N]."""
        changed = self._table.lookup(characters)
        return tf.where(tf.equal(changed, _ABSENT), characters, changed)


def _lower_but_sigma(text: str) -> str:
    return _SIGMA.join(part.lower() for part in text.split(_SIGMA))


def lower_sigma(texts):
    """Lower-cases capital sigmas, in texts whose other letters are lower-cased.

    Like Python, ICU detects whether a sigma ends a word, in any locale.
    """
    # A NUL ends a text for TensorFlow's ICU. A constant or an attribute would lose it.
    nul = tf.strings.unicode_encode([0], "UTF-8")
    parts = tf.strings.split(texts, nul)
    has_sigma = tf.strings.regex_full_match(parts.values, f"(?s).*{_SIGMA}.*")
    lower = tf.where(has_sigma, tf.strings.lower(parts.values, encoding="utf-8"), parts.values)
    joined = tf.strings.reduce_join(parts.with_values(tf.strings.join([lower, nul])), axis=1)
    lengths = tf.strings.length(joined) - 1
    return tf.strings.substr(joined, tf.zeros_like(lengths), lengths)


def without_bad_bytes(texts):
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")


def _joined_words() -> Callable:
    """Returns the function `" ".join(text.split())`, for the same white space as Python's."""
    runs = character_class(str.isspace) + "+"
    return lambda texts: tf.strings.strip(tf.strings.regex_replace(texts, runs, " "))


def stripper() -> Callable:
    """Returns `str.strip` for texts of any shape."""
    blanks = character_class(str.isspace)
    return lambda texts: tf.strings.regex_replace(texts, f"^{blanks}+|{blanks}+$", "")


# === Ids ===


class SentencePieceIds(_AutoTrackable):
    """`FullTokenizer.encode_text` with a SentencePiece model: texts [B] to int32 [B, (n)]."""

    def __init__(self, tokenizer: tokenization.FullTokenizer):
        refuse_added_tokens(tokenizer)
        text = import_tensorflow_text()
        _refuse_symbols(tokenizer)
        with open(tokenizer.path, "rb") as stream:
            proto = stream.read()
        self._ids = _segmenter(text, proto, tokenizer)
        self._lower = tokenizer.do_lower_case
        # Without SentencePiece's normalizer, white space is not special.
        self._joined = _joined_words() if tokenizer.settings.remove_space else tf.identity
        lower = _lower_but_sigma if self._lower else str
        keep_accents = tokenizer.settings.keep_accents
        self._characters = None  # nothing changes
        if self._lower or not keep_accents:
            self._characters = CharacterMap(
                lambda c: lower(tokenization.preprocess_text(c, False, keep_accents=keep_accents))
            )
        # Row i: the ids of the parts of token i ("2010," is split into "2010" and ","), or i alone.
        cut = [tokenizer.comma_ids.get(i, [i]) for i in range(tokenizer.vocab_size)]
        # Without a token ",", an unknown token (a run of unknown characters) may also end in a digit
        # and a comma; both of its parts are unknown.
        self._unknown_comma = ""
        if "," not in tokenizer.vocab:
            self._unknown_comma = f"(?s).*{character_class(str.isdigit)},"
            self._unknown_id, self._cut_unknown = tokenizer.sp_model.unk_id(), len(cut)
            cut.append([self._unknown_id] * 2)
            # The same implementation, so that both split texts alike.
            self._ids = text.SentencepieceTokenizer(proto, out_type=tf.int32)
            self._tokens = text.SentencepieceTokenizer(proto, out_type=tf.string)
        self._cut = np.array([i for row in cut for i in row], np.int32)
        self._cut_lengths = np.array([len(row) for row in cut], np.int64)

    def __call__(self, texts):
        return self.encode(self.clean(texts))

    def clean(self, texts):
        """Returns `FullTokenizer.preprocess` of texts [B]."""
        texts = self._joined(without_bad_bytes(texts))
        if self._characters:
            texts = self._characters(texts)
        return lower_sigma(texts) if self._lower else texts

    def encode(self, texts):
        """Returns the ids [B, (n)] of cleaned texts [B]."""
        rows = self._rows_of_cut(self._ids.tokenize(texts).with_row_splits_dtype(tf.int64), texts)
        return self._parts(rows, self._cut).merge_dims(1, 2)

    def _rows_of_cut(self, ids: tf.RaggedTensor, texts):
        """Returns the row of `_cut` for each token of cleaned texts, [B, (n)]."""
        if not self._unknown_comma:
            return ids
        tokens = self._tokens.tokenize(texts).values
        is_cut = tf.strings.regex_full_match(tokens, self._unknown_comma)
        is_cut &= tf.equal(ids.values, self._unknown_id)
        return ids.with_values(tf.where(is_cut, self._cut_unknown, ids.values))

    def _parts(self, rows: tf.RaggedTensor, values: np.ndarray) -> tf.RaggedTensor:
        """Returns, for each token, its part of values in the order of `_cut`: [B, (n), (parts)]."""
        return tf.gather(tf.RaggedTensor.from_row_lengths(values, self._cut_lengths), rows)


def _refuse_symbols(tokenizer: tokenization.FullTokenizer) -> None:
    if tokenizer.symbols:
        raise FlagError(f"{tokenizer.path} has tokens with capitals, which a model that reads text "
                        f"cannot recognize: {' '.join(tokenizer.symbols.values())[:100]}")


def _segmenter(text, proto: bytes, tokenizer: tokenization.FullTokenizer):
    """Returns an implementation that agrees with the installed sentencepiece.

    Both of tensorflow-text's find a best segmentation. Among equally good ones ("e", "ee" or
    "ee", "e"), the fast one chooses as sentencepiece does, but it supports only unigram models without
    special features. So it is tested on texts with all tokens of the vocabulary.
    """
    tokens = [t.replace(tokenization.SPIECE_UNDERLINE, " ") for t in tokenizer.vocab]
    probes = ["".join(tokens[i : i + 8]) for i in range(0, len(tokens), 8)]
    probes += [f"x{char}{char}{char}" for char in tokens if len(char) == 1]
    probes = [tokenization.scrub_surrogates(probe) for probe in probes]
    expected = tokenizer.sp_model.EncodeAsIds(probes)
    fast = text.FastSentencepieceTokenizer(proto)
    if fast.tokenize(tf.constant([p.encode() for p in probes])).to_list() == expected:
        return fast
    return text.SentencepieceTokenizer(proto, out_type=tf.int32)


class WordPieceIds(_AutoTrackable):
    """`FullTokenizer.encode_text` with a WordPiece vocabulary: texts [B] to int32 [B, (n)]."""

    def __init__(self, tokenizer: tokenization.FullTokenizer):
        refuse_added_tokens(tokenizer)
        text = import_tensorflow_text()
        _refuse_symbols(tokenizer)
        basic, wordpiece = tokenizer.basic_tokenizer, tokenizer.wordpiece_tokenizer
        if wordpiece.unk_token not in tokenizer.vocab:
            raise DataError(f"{tokenizer.path}: the vocabulary has no token {wordpiece.unk_token}")
        self._lower = basic.do_lower_case
        if self._lower:
            self._clean = CharacterMap(lambda c: _lower_but_sigma(basic.clean(c)))
            self._split = CharacterMap(lambda c: basic.separate(basic.strip_accents(c)))
        else:
            self._split = CharacterMap(lambda c: basic.separate(basic.clean(c)))
        self._joined, self._stripped = _joined_words(), stripper()
        self._max_length = wordpiece.max_input_chars_per_word
        self._unknown = tokenizer.vocab[wordpiece.unk_token]
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(np.array([token.encode() for token in tokenizer.vocab], object)),
                tf.constant(list(tokenizer.vocab.values()), tf.int64),
            ),
            default_value=-1,
        )
        self._wordpiece = text.WordpieceTokenizer(
            self._table,
            unknown_token=wordpiece.unk_token,
            max_bytes_per_word=4 * self._max_length,  # we count characters
            token_out_type=tf.int64,
        )

    def __call__(self, texts):
        return self.encode(self.clean(texts))

    def clean(self, texts):
        """Returns `FullTokenizer.preprocess` of texts [B]."""
        return self._stripped(without_bad_bytes(texts))

    def encode(self, texts):
        """Returns the ids [B, (n)] of texts [B]."""
        words = self._without_long(self._words(texts))
        return tf.cast(self._wordpiece.tokenize(words).merge_dims(1, 2), tf.int32)

    def _words(self, texts) -> tf.RaggedTensor:
        if self._lower:
            texts = lower_sigma(self._clean(texts))
        return tf.strings.split(self._joined(self._split(texts)))

    def _without_long(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        is_long = tf.strings.length(words.values, "UTF8_CHAR") > self._max_length
        return words.with_values(tf.where(is_long, _UNKNOWN_WORD, words.values))


def ids_of(tokenizer: tokenization.FullTokenizer) -> SentencePieceIds | WordPieceIds:
    """Returns the tokenizer as a callable, trackable graph.

    Raises:
      FlagError: tensorflow-text is not installed.
    """
    return SentencePieceIds(tokenizer) if tokenizer.is_spm else WordPieceIds(tokenizer)


# === Packed inputs ===


def pack(segments: Sequence[tf.RaggedTensor], seq_length, tokenizer: tokenization.FullTokenizer):
    """Packs one or two ragged texts [B, (n)] as `features.join_texts` does, as the encoder's inputs [B, L].

    Args:
      seq_length: L, an integer or a tensor. Longer pairs lose the end of their longer text.
    """
    text = import_tensorflow_text()
    max_tokens = seq_length - len(segments) - 1
    # Taking tokens of both in turn is the same as truncating the longer one.
    segments = text.RoundRobinTrimmer(max_tokens).trim(list(segments))
    ids, types = text.combine_segments(segments, tokenizer.cls_id, tokenizer.sep_id)
    ids, mask = text.pad_model_inputs(ids, seq_length, pad_value=tokenizer.pad_id)
    types, _ = text.pad_model_inputs(types, seq_length)
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}
