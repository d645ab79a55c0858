"""Record files: written exactly, published atomically, and checked before they are read."""

import os
import pathlib

import jobs
import numpy as np
import pytest
from damage import flipped
from record_files_made import payloads_of, write_records

from albert.errors import DataError
from albert.records import examples, manifests, tfrecord
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles
from albert.storage import files

SPEC = FeatureSpec({
    "input_ids": ("int64", 8),
    "masked_lm_positions": ("int64", 3),
    "masked_lm_weights": ("float32", 3),
    "next_sentence_labels": ("int64", 1),
    "label": ("int64", None),
})


def make_rows(count, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "input_ids": rng.integers(0, 2 ** int(rng.integers(1, 40)), 8),
            "masked_lm_positions": rng.integers(0, 300, 3),
            "masked_lm_weights": rng.random(3, np.float32),
            "next_sentence_labels": [index % 2],
            "label": index - 1,  # -1 too: a negative varint has ten bytes
        }
        for index in range(count)
    ]


@pytest.fixture
def written(tmp_path):
    path = str(tmp_path / "pretrain.tfrecord")
    info = {"vocab_size": 100, "tokenizer_sha256": "abc"}
    write_records(path, make_rows(10), SPEC, info)
    return path


def test_tensorflow_reads_exactly_what_was_written(tmp_path):
    import tensorflow as tf

    rows, path = make_rows(2500), str(tmp_path / "r.tfrecord")
    write_records(path, iter(rows), SPEC, {})
    found = [item.numpy() for item in tf.data.TFRecordDataset(path)]
    assert len(found) == 2500
    for row, payload in zip(rows, found, strict=True):
        features = tf.train.Example.FromString(payload).features.feature
        assert {k: list((f.int64_list if f.HasField("int64_list") else f.float_list).value)
                for k, f in features.items()} == {k: np.ravel(v).tolist() for k, v in row.items()}
    assert payloads_of(path) == found


def test_messages_are_the_bytes_of_tf_train_example():
    import tensorflow as tf

    # Numbers of every width, next to rows of others; negative ones take ten bytes.
    rows = np.array([
        [0, 1, 127, 128, 16383, 16384, 1 << 21, (1 << 31) - 1], [0] * 8, [127] * 8,
        [1 << 62, (1 << 63) - 1, -1, -(1 << 63), 1 << 56, (1 << 35) - 1, 300, 5],
    ])
    for some in (rows, rows[:3], rows[1:2], rows[1:3]):
        want = []
        for row in some:
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=row))
            features = tf.train.Features(feature={"input_ids": feature})
            want.append(tf.train.Example(features=features).SerializeToString())
        spec = FeatureSpec({"input_ids": ("int64", 8)})
        assert examples.encode_examples({"input_ids": some}, spec) == want


def test_framing_is_tensorflows_for_messages_of_every_size(tmp_path):
    import tensorflow as tf

    sizes = (0, 1, 3, 4, 5, 62, 63, 64, 65, 127, 128, 1023, 1025, 5000)
    messages = [np.random.default_rng(n).bytes(n) for size in sizes for n in (size, 7, size + 1)]
    path = tmp_path / "tf.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for message in messages:
            writer.write(message)
    assert tfrecord.frame_records(messages) == path.read_bytes()


def test_a_manifest_says_what_is_inside_and_reads_back_with_and_without_blocks(written):
    manifest = manifests.Manifest.read(written)
    assert manifest.records == 10 == len(payloads_of(written))
    assert manifest.bytes == os.path.getsize(written)
    assert list(manifest.features.items()) == list(SPEC.features.items())
    assert manifest.info == {"vocab_size": 100, "tokenizer_sha256": "abc"}
    assert RecordFiles([written]).check(SPEC, 100).counts == [10]
    path = pathlib.Path(manifests.manifest_path(written))
    text = path.read_text("utf-8")
    files.write_sealed_json(str(path), manifest.to_json())
    assert path.read_text("utf-8") == text
    early = manifest.to_json()
    del early["blocks"]
    files.write_sealed_json(str(path), early)
    again = manifests.Manifest.read(written)
    assert again.blocks == () and again.to_json() == early | {"blocks": []}
    assert RecordFiles([written]).check(SPEC).blocks.records.tolist() == [10]


def test_a_file_that_was_cut_is_caught_with_record_and_byte_or_by_its_manifest(written):
    starts, _ = tfrecord.scan(written)
    os.truncate(written, int(starts[7]) - 12)  # between records: the file alone looks intact
    assert len(payloads_of(written)) == 7
    with pytest.raises(DataError, match="7 records in .*, its manifest says 10 in"):
        RecordFiles([written]).check(SPEC)
    for cut in (int(starts[5]) + 4, int(starts[5]) - 3):
        os.truncate(written, cut)
        byte = int(starts[5]) - 12
        with pytest.raises(DataError, match=rf"tfrecord: cut after record 5 \(byte {byte:,}\)"):
            RecordFiles([written]).check(SPEC)


def test_a_flipped_byte_is_found_with_record_and_byte(written):
    starts, _ = tfrecord.scan(written)
    content, byte = pathlib.Path(written).read_bytes(), int(starts[5]) - 12
    for offset in (0, 6, 9, 32):  # the length, its checksum, the message
        pathlib.Path(written).write_bytes(flipped(content, byte + offset, 0x55))
        with pytest.raises(DataError, match=rf"corrupt after record 5 \(byte {byte:,}\)"):
            payloads_of(written)


def test_a_block_with_bytes_beyond_its_last_record_is_damaged(written):
    starts, sizes = tfrecord.scan(written)
    size = int(starts[1] + sizes[1]) + tfrecord.FOOTER_BYTES  # of the first two records
    assert len(tfrecord.read_block(written, 0, size, 0, 2)) == 2
    with pytest.raises(DataError, match=r"corrupt after record 2 \(byte"):
        tfrecord.read_block(written, 0, size + 5, 0, 2)


def test_empty_files_are_refused(tmp_path):
    path = str(tmp_path / "empty.tfrecord")
    open(path, "wb").close()
    with pytest.raises(DataError, match="holds no records"):
        RecordFiles([path]).check(SPEC)
    write_records(path, [], SPEC, {})
    with pytest.raises(DataError, match="holds no records"):
        RecordFiles([path]).check(SPEC)


@pytest.mark.parametrize("with_manifest", [True, False])
def test_another_sequence_length_names_the_flag(written, with_manifest):
    if not with_manifest:
        os.unlink(manifests.manifest_path(written))
        assert RecordFiles([written]).check(SPEC).counts == [10]
    other = FeatureSpec(dict(SPEC.features, input_ids=("int64", 64)))
    with pytest.raises(DataError) as caught:
        RecordFiles([written]).check(other)
    assert str(caught.value) == (
        f"{written} has max_seq_length 8 (input_ids of length 8), expected 64: "
        "pass --max_seq_length=8"
    )
    more = FeatureSpec(dict(SPEC.features, start_positions=("int64", 1)))
    with pytest.raises(DataError, match="no feature start_positions"):
        RecordFiles([written]).check(more)


def test_records_of_another_vocabulary_are_refused(written):
    for size in (50, 101):
        with pytest.raises(DataError, match=f"vocabulary of 100 tokens, config vocab_size is {size}"):
            RecordFiles([written]).check(SPEC, vocab_size=size)


def test_a_manifest_of_another_version_is_refused(written):
    jobs.change_json(pathlib.Path(manifests.manifest_path(written)), format_version=99)
    with pytest.raises(DataError, match="format version 99, this toolkit reads 1"):
        RecordFiles([written]).check(SPEC)


def test_the_originals_file_without_manifest_is_accepted(golden_path):
    path = str(golden_path("pretraining_data/first.tfrecord"))
    spec = FeatureSpec({"input_ids": ("int64", 128), "masked_lm_positions": ("int64", 20)})
    assert RecordFiles([path]).check(spec).counts == [20]
    assert len(payloads_of(path)) == 20
