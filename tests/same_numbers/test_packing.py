"""Texts are laid out in sequences; packed or cut to what they need, they give the same results as alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from helpers import gradients_of
from hypothesis import given
from hypothesis import strategies as st
from record_files_made import write_records

from albert import modeling
from albert.config import AlbertConfig
from albert.records import batches, features, packing
from albert.records.record_files import RecordFiles

LENGTH, VOCAB = 48, 40
CONFIG = AlbertConfig(
    vocab_size=VOCAB, embedding_size=8, hidden_size=16, num_hidden_layers=2, inner_group_num=2,
    num_attention_heads=2, intermediate_size=24, max_position_embeddings=LENGTH,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.3,
)
USED = np.array([5, 48, 20, 1, 30, 17, 9, 0])  # the last is padding of the batch
REAL = len(USED) - 1
KINDS = {
    "encoder": (modeling.AlbertModel, ()),
    "pretraining": (modeling.AlbertForPreTraining, ()),
    "classification": (modeling.AlbertForSequenceClassification, (3,)),
    "tokens": (modeling.AlbertForTokenClassification, (3,)),
    "choice": (modeling.AlbertForMultipleChoice, (2,)),
    "answers": (modeling.AlbertForBeamQuestionAnswering, (2, 2)),
}


@functools.cache
def model_of(name, **options):
    kind, sizes = KINDS[name]
    return kind(CONFIG, *sizes, encoder_options=modeling.EncoderOptions(**options))


def make_batch(name):
    rng = np.random.default_rng(3)
    shape = (len(USED), LENGTH)
    mask = (np.arange(LENGTH) < USED[:, None]).astype(np.int32)
    batch = {
        "input_ids": rng.integers(5, VOCAB, shape, np.int32) * mask,
        "segment_ids": rng.integers(0, 2, shape, np.int32) * mask,
        "input_mask": mask,
    }
    if name == "choice":
        return {key: value.reshape(-1, 2 * LENGTH) for key, value in batch.items()}
    if name == "pretraining":
        batch["masked_lm_positions"] = rng.integers(0, np.maximum(USED, 1)[:, None], (8, 3))
    if name == "answers":
        batch["p_mask"] = 1.0 - mask
        batch["start_positions"] = np.zeros(len(USED), np.int32)
    return batch


def gradients_by(model, batch, function, **options):
    """Returns function(outputs), as {name: tensor}, and the gradient of a scalar of them."""
    def compute():
        outputs = model.of_batch({name: tf.constant(value) for name, value in batch.items()}, **options)
        chosen = function(outputs)
        loss = tf.add_n([_some_number(tf.clip_by_value(x, -9, 9)) for x in chosen.values()])
        return loss, (outputs, chosen)

    _, (outputs, chosen), gradients = gradients_of(model, compute)
    return outputs, {name: value.numpy() for name, value in (gradients | chosen).items()}


def real_outputs(outputs):
    """Returns each output at real positions."""
    real = (np.arange(LENGTH) < USED[:, None]) & (np.arange(len(USED)) < REAL)[:, None]
    flat = {}
    for name, value in outputs.items():
        for number, one in enumerate(value if isinstance(value, list) else [value]):
            of_tokens = one.shape[:2] == real.shape  # otherwise of examples or of choices
            kept = one[real] if of_tokens else one[: REAL * one.shape[0] // len(USED)]
            flat[f"{name}/{number}"] = kept
    return flat


def _some_number(x):
    """A weighted sum: the sum of squares is constant after a LayerNorm."""
    weights = np.random.default_rng(1).normal(size=x.shape[-1]).astype(np.float32)
    return tf.reduce_sum(tf.cast(x, tf.float32) * weights)


def assert_same(found, expected):
    """To 1e-5 of the largest value."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # The key bias adds the same to all scores of a query: its gradient is 0 up to
        # rounding, in proportion to that of the key kernel.
        scale = expected[name.replace("key/bias", "key/kernel")]
        atol = 1e-5 * max(np.abs(scale).max(initial=0.0), 1.0)
        np.testing.assert_allclose(found[name], value, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", KINDS)
def test_outputs_and_gradients_of_packed_rows_are_those_of_each_row_by_itself(name):
    model, batch, choices = model_of(name), make_batch(name), 2 if name == "choice" else 1
    # Choices share sequences of a length that their number doesn't divide.
    packed = packing.pack_rows(batch, choices, [LENGTH + choices - 1])
    assert packed["input_ids"].shape == (3, LENGTH + choices - 1)  # 130 tokens
    found, expected = (gradients_by(model, rows, real_outputs)[1] for rows in (packed, batch))
    assert_same(found, expected)


@pytest.mark.parametrize("way", ["packed", "cut"])
def test_places_that_are_read_though_masked_or_padding_give_what_they_give_unpacked(way):
    # As another tool might write it.
    batch = make_batch("pretraining")
    mask = batch["input_mask"]
    mask[0, 2] = 0  # a hole, which is read
    mask[2, [0, 7, 8]] = 0  # [CLS] and more
    mask[5] = 0  # attention is uniform
    batch["masked_lm_positions"] = np.array(
        [[2, 0, 4], [47, 0, 0], [3, 8, 1], [0, 0, 9], [29, 41, 0], [3, 30, 0], [8, 0, 0], [0, 0, 0]]
    )
    if way == "cut":
        batch = {name: value[[0, 2, 3, 6, 7]] for name, value in batch.items()}
        shorter = packing.cut_rows(batch, LENGTH)
        assert shorter["input_ids"].shape[1] == 32
    else:
        shorter = packing.pack_rows(batch, 1, [LENGTH])
        assert list(packing.used_lengths(batch, LENGTH)) == [5, 48, 20, 10, 42, LENGTH, 9, 0]
    found, expected = (
        {name: model_of("pretraining").of_batch(rows)[name].numpy()[:-1]
         for name in ("prediction_logits", "sop_logits")}
        for rows in (shorter, {name: tf.constant(value) for name, value in batch.items()})
    )
    assert_same(found, expected)


@pytest.mark.parametrize("name, is_packed", [
    ("classification", True), ("choice", False), ("choice", True), ("pretraining", False),
    ("pretraining", True), ("tokens", True), ("answers", False),
])
def test_the_last_layer_where_it_is_read_alone_gives_the_same(name, is_packed):
    batch, choices = make_batch(name), 2 if name == "choice" else 1
    if is_packed:
        batch = packing.pack_rows(batch, choices, [LENGTH])

    def of_logits(model):
        return gradients_by(model, batch, lambda outputs: {
            key: value[: REAL // choices] for key, value in outputs.items()
            if key.endswith("logits")
        })

    short = model_of(name, needed_outputs_only=True)
    short.set_weights(model_of(name).get_weights())
    assert_same(of_logits(short)[1], of_logits(model_of(name))[1])


def test_the_number_of_rows_is_a_multiple_and_rows_have_a_length_that_is_allowed():
    assert packing.row_lengths(512) == [64, 128, 192, 256, 320, 384, 448, 512]
    assert (packing.row_lengths(100), packing.row_lengths(20)) == ([32, 64, 96, 100], [20])
    batch = make_batch("encoder")
    packed = packing.pack_rows(batch, 1, [32, LENGTH], 4)
    assert packed["input_ids"].shape == (4, LENGTH)
    short = {name: value[:, :20] for name, value in batch.items()}
    assert packing.pack_rows(short, 1, [20, 32])["input_ids"].shape[1] == 32
    assert packing.pack_rows(short, 1, [20, 128, 512])["input_ids"].shape[1] == 128


def test_dropout_falls_on_packed_rows_too():
    model = modeling.AlbertForSequenceClassification(CONFIG.with_dropout(0.5), 3)
    packed = packing.pack_rows(make_batch("classification"), 1, [LENGTH])
    logits = [
        model.of_batch(packed, training=True, dropout_seed=tf.constant([seed, 0]))["logits"][:REAL]
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - logits[2]).max() > 1e-3


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60))
def test_examples_lie_apart_in_no_more_rows_than_they_are(lengths):
    rows, starts = packing.best_fit(np.array(lengths), 20)
    taken = set()
    for row, start, length in zip(rows, starts, lengths, strict=True):
        assert start + length <= 20
        places = {(row, start + i) for i in range(length)}
        assert not places & taken
        taken |= places
    assert int(rows.max()) + 1 <= max(np.count_nonzero(lengths), 1)
    # No two sequences would fit in one: best fit opens a new one only if none has space.
    filled = [sum(n for r, n in zip(rows, lengths, strict=True) if r == row) for row in set(rows)]
    assert sum(2 * n <= 20 for n in filled) <= 1


@pytest.mark.parametrize("choices", [1, 3])
def test_a_batch_is_as_long_as_its_longest_row_needs_and_loses_no_token(choices, tmp_path):
    rng, length, text = np.random.default_rng(1), 96, ("input_ids", "input_mask", "segment_ids")
    spec = features.classification_spec(length, False, choices)

    def row(count):  # the sequences of a choice after the first are shorter
        parts = [
            features.join_texts(rng.integers(5, VOCAB, max(n, 1)).tolist(), None, length, 2, 3)
            for n in range(count - 2, count - 2 - choices, -1)
        ]
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in text}
        return {**arrays, "label_ids": count % 3, "is_real_example": 1}

    write_records(str(tmp_path / "r"), map(row, (5, 32, 33, 4, 7, 65, 96, 3, 9)), spec, {})
    whole, cut = (list(batches.eval_batches(
        RecordFiles([str(tmp_path / "r")]), spec, batch_size=2, vocab_size=VOCAB, is_cut=is_cut
    )) for is_cut in (False, True))
    assert [b["input_ids"].shape[1] // choices for b in cut] == [32, 64, 96, 96, 32]
    for before, after in zip(whole, cut, strict=True):
        shorter = after["input_ids"].shape[1] // choices
        for name in text:
            rows = np.reshape(before[name], [-1, length])
            np.testing.assert_array_equal(np.reshape(after[name], [-1, shorter]), rows[:, :shorter])
            assert not rows[:, shorter:].any()
        np.testing.assert_array_equal(after["label_ids"], before["label_ids"])


@pytest.mark.parametrize(("a", "b", "length", "ids", "second"), [
    ([10, 11], None, 6, [2, 10, 11, 3], 0),
    ([10, 11], [20], 8, [2, 10, 11, 3, 20, 3], 2),
    ([10, 11], [], 8, [2, 10, 11, 3, 3], 1),
    ([], None, 5, [2, 3], 0),
    ([10, 11, 12, 13], None, 5, [2, 10, 11, 12, 3], 0),
    ([10, 11, 12, 13], [20, 21, 22], 8, [2, 10, 11, 12, 3, 20, 21, 3], 3),
])
def test_texts_are_cut_and_laid_out_with_their_separators(a, b, length, ids, second):
    row = features.join_texts(a, b, length, cls_id=2, sep_id=3)
    padding = [0] * (length - len(ids))
    assert row["input_ids"].tolist() == ids + padding
    assert row["input_mask"].tolist() == [1] * len(ids) + padding
    assert row["segment_ids"].tolist() == [0] * (len(ids) - second) + [1] * second + padding
    assert all(values.dtype == np.int64 for values in row.values())


def test_truncation_takes_from_the_longer_text_and_from_the_second_on_a_tie():
    for length_a, length_b, room, kept in (
        (5, 2, 7, (5, 2)), (5, 2, 5, (3, 2)), (2, 5, 5, (2, 3)), (3, 3, 5, (3, 2)),
        (4, 4, 1, (1, 0)),
    ):
        a, b = features.truncate_pair(range(length_a), range(length_b), room)
        assert ([*a], [*b]) == ([*range(kept[0])], [*range(kept[1])])
