"""The tokenizer as a TensorFlow graph: raw strings to the same ids as `tokenization`.

Characters are mapped by Python's Unicode data when the graph is built, not by the ICU of the
process that runs it: TensorFlow's `tf.strings.lower` follows that process's locale (in a
Turkish one, "I" becomes a dotless i), and its normalization follows another version of Unicode
than Python's.

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

_SIGMA = "\u03a3"  # its lower case depends on its neighbours, unlike any other letter's
_ABSENT = b"\xff"  # never a part of UTF-8
_UNKNOWN_WORD = "\1"  # control characters are cleaned away, so no vocabulary has it


def import_tensorflow_text():
    """Returns the tensorflow_text module.

    Raises:
      FlagError: it is not installed, or made for another TensorFlow.
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
    """Raises a FlagError for a tokenizer with more tokens than its vocabulary file."""
    if tokenizer.added.ids:
        raise FlagError(f"the added tokens {', '.join(tokenizer.added.ids):.60} can't be written into a "
                        "SavedModel of texts or a TF-Hub module: export an .onnx file, which takes ids")


# === Characters ===


def _all_characters() -> list[str]:
    return [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]


def character_class(is_member: Callable[[str], bool]) -> str:
    """Returns RE2's bracketed class of the characters that a predicate accepts."""
    return tokenizer_json.character_class(is_member, lambda code: f"\\x{{{code:x}}}")


class CharacterMap(_AutoTrackable):
    """Applies `change` to each character of texts [B] separately."""

    def __init__(self, change: Callable[[str], str]):
        pairs = [(c.encode(), new.encode()) for c in _all_characters() if (new := change(c)) != c]
        keys, values = zip(*pairs, strict=True)
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                # As objects: NumPy's byte strings lose a NUL at their end.
                tf.constant(np.array(keys, object)), tf.constant(np.array(values, object))
            ),
            default_value=_ABSENT,
        )

    def __call__(self, texts):
        characters = tf.strings.unicode_split(texts, "UTF-8")  # [B, (characters)]
        changed = characters.with_values(self.of_each(characters.values))
        return tf.strings.reduce_join(changed, axis=1)

    def of_each(self, characters):
        """Returns what each of the characters [N] turns into."""
        found = self._table.lookup(characters)
        return tf.where(tf.equal(found, _ABSENT), characters, found)


def _lower_but_sigma(text: str) -> str:
    return _SIGMA.join(part.lower() for part in text.split(_SIGMA))


def lower_sigma(texts):
    """Lower-cases capital sigmas, in texts whose other letters are already lower-cased.

    Like Python, ICU knows whether a sigma ends a word, whatever the locale.
    """
    # A NUL ends a text for TensorFlow's ICU; as a constant or attribute it would get lost.
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
    """Returns `" ".join(text.split())`, for Unicode's white space, as in Python."""
    runs = character_class(str.isspace) + "+"
    return lambda texts: tf.strings.strip(tf.strings.regex_replace(texts, runs, " "))


def stripper() -> Callable:
    """Returns `str.strip` of texts of any shape."""
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
        # Without SentencePiece's normalizer, white space is a character like any other.
        self._joined = _joined_words() if tokenizer.settings.remove_space else tf.identity
        lower, keep = _lower_but_sigma if self._lower else str, tokenizer.settings.keep_accents
        self._characters = None  # keeps case and accents: nothing changes
        if self._lower or not keep:
            self._characters = CharacterMap(
                lambda c: lower(tokenization.preprocess_text(c, False, keep_accents=keep))
            )
        # Row i: what token i is split into ("2010," into "2010" and ","), else i alone.
        cut = [tokenizer.comma_ids.get(i, [i]) for i in range(tokenizer.vocab_size)]
        # Without a token ",", an unknown token (a run of unknown characters) may end in a digit
        # and a comma, too; both of its parts are unknown again.
        self._unknown_comma = ""
        if "," not in tokenizer.vocab:
            self._unknown_comma = f"(?s).*{character_class(str.isdigit)},"
            self._unknown_id, self._cut_unknown = tokenizer.sp_model.unk_id(), len(cut)
            cut.append([self._unknown_id] * 2)
            # The same implementation, so that both split a text alike.
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
        """Returns [B, (n), (parts)] of values in the order of `_cut`."""
        return tf.gather(tf.RaggedTensor.from_row_lengths(values, self._cut_lengths), rows)


def _refuse_symbols(tokenizer: tokenization.FullTokenizer) -> None:
    if tokenizer.symbols:
        raise FlagError(f"{tokenizer.path} has tokens with capitals, which a model that reads text "
                        f"cannot tell: {' '.join(tokenizer.symbols.values())[:100]}")


def _segmenter(text, proto: bytes, tokenizer: tokenization.FullTokenizer):
    """Returns the implementation that splits as the installed sentencepiece does.

    Both of tensorflow-text's find a best segmentation. Among equally good ones ("e", "ee" or
    "ee", "e") the fast one chooses as we do, but it supports only unigram models without special
    features. To see whether it can be used, it is tried on texts with every token of the vocabulary.
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
        self._longest = wordpiece.max_input_chars_per_word
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
            max_bytes_per_word=4 * self._longest,  # we count characters
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
        is_long = tf.strings.length(words.values, "UTF8_CHAR") > self._longest
        return words.with_values(tf.where(is_long, _UNKNOWN_WORD, words.values))


def ids_of(tokenizer: tokenization.FullTokenizer) -> SentencePieceIds | WordPieceIds:
    """Returns the tokenizer as a callable, trackable graph.

    Raises:
      FlagError: tensorflow-text is not installed.
    """
    return SentencePieceIds(tokenizer) if tokenizer.is_spm else WordPieceIds(tokenizer)


# === Packed inputs ===


def pack(segments: Sequence[tf.RaggedTensor], seq_length, tokenizer: tokenization.FullTokenizer):
    """Returns `features.pack` of one or two ragged texts [B, (n)], as the encoder's inputs [B, L].

    `seq_length` may be a tensor. A pair that is too long is truncated at the end of its longer text.
    """
    text = import_tensorflow_text()
    max_tokens = seq_length - len(segments) - 1
    # Filling the row with tokens of both in turn is truncating the longer one.
    segments = text.RoundRobinTrimmer(max_tokens).trim(list(segments))
    ids, types = text.combine_segments(segments, tokenizer.cls_id, tokenizer.sep_id)
    ids, mask = text.pad_model_inputs(ids, seq_length, pad_value=tokenizer.pad_id)
    types, _ = text.pad_model_inputs(types, seq_length)
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}
