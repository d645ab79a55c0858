"""Damaged checkpoints and records of real runs: named, set aside or refused; never guessed."""

import json
import os

import numpy as np
import pytest
from helpers import (
    LENGTH,
    PREDICTIONS,
    VOCAB,
    assert_one_clear_line,
    metrics,
    pretraining_rows,
)
from invariants import nothing_lost, snapshot

from albert.errors import CheckpointError, DataError
from albert.formats import checkpoints, run_states
from albert.records import feature_cache, records, tfrecord
from albert.records.examples import FeatureSpec
from albert.tasks.pretraining import PretrainingTask
import jobs

DATA = ".data-00000-of-00001"


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def other_position(path):
    text = path.read_text()
    assert '"records_seen": 92' in text
    path.write_text(text.replace('"records_seen": 92', '"records_seen": 96'))


DAMAGE = {
    "data cut": (DATA, cut), "data flipped": (DATA, flip), "data lost": (DATA, os.unlink),
    "index cut": (".index", cut), "index flipped": (".index", flip),
    "run_state cut": (".json", cut), "run_state changed": (".json", other_position),
}


QUICK = ("data flipped",)


@pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in DAMAGE]
)
def test_a_damaged_newest_checkpoint_is_set_aside_with_its_reason_and_the_one_before_used(
    kind, finished, capsys
):
    out, ending, damage = finished.out, *DAMAGE[kind]
    whole = metrics(out)
    damage(out / f"model.ckpt-23{ending}")
    capsys.readouterr()
    with nothing_lost(out):
        assert jobs.pretrain(*finished.flags, "--do_eval") == 0
    said = capsys.readouterr().err
    [warning] = [line for line in said.splitlines() if "unreadable" in line]
    assert "model.ckpt-23 unreadable (" in warning and "using " in warning
    assert "model.ckpt-20" in warning and "model.ckpt-20 left off" in said
    assert (out / "model.ckpt-23.index.corrupt").exists()
    # The steps that were lost are made again, to the same numbers.
    assert metrics(out) == whole


@pytest.mark.parametrize("stride", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_no_flipped_bit_of_a_checkpoints_tensors_goes_unnoticed(stride, finished):
    path = finished.out / f"model.ckpt-23{DATA}"
    content, prefix = path.read_bytes(), str(finished.out / "model.ckpt-23")
    shapes = checkpoints.open_weights(prefix).shapes
    for place in range(0, len(content), stride):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match="cannot read"):
            checkpoints.read_all(prefix, shapes)
    path.write_bytes(content)
    checkpoints.read_all(prefix, shapes)


def test_when_no_checkpoint_is_readable_the_run_stops_and_touches_nothing(finished, capsys):
    out = finished.out
    for step in (10, 20, 23):
        cut(out / f"model.ckpt-{step}{DATA}")
    before = snapshot(out)
    assert jobs.pretrain(*finished.flags) == 2
    assert "no checkpoint in" in assert_one_clear_line(capsys.readouterr().err)
    after = snapshot(out)
    del before[str(out / ".lock")], after[str(out / ".lock")]
    assert after == before


def test_a_checkpoint_whose_sidecar_was_lost_is_used_with_a_warning(finished, capsys):
    (finished.out / "model.ckpt-23.json").unlink()
    assert jobs.pretrain(*finished.flags) == 0
    said = capsys.readouterr().err
    assert "no model.ckpt-23.json" in said and "model.ckpt-23 left off" in said


def test_a_damaged_best_is_refused_by_name_when_it_is_asked_for(finished, capsys):
    out = finished.out
    os.truncate(out / f"model.ckpt-best{DATA}", 100)
    target = f"--init_checkpoint={out / 'model.ckpt-best'}"
    with nothing_lost(out):
        assert jobs.pretrain(*finished.flags, target, f"--output_dir={out.parent / 'new'}") == 2
    assert "model.ckpt-best" in assert_one_clear_line(capsys.readouterr().err)


def test_a_checkpoint_cut_behind_its_encoder_starts_no_run_and_tells_what_is_lost(finished, capsys):
    path = finished.out / f"model.ckpt-best{DATA}"
    os.truncate(path, path.stat().st_size - 40)  # of the heads' moments, which no run would read
    target = f"--init_checkpoint={finished.out / 'model.ckpt-best'}"
    with nothing_lost(finished.out):
        code = jobs.pretrain(*finished.flags, target, f"--output_dir={finished.out.parent / 'new'}")
    assert code == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "model.ckpt-best is cut short" in line
    assert "cannot be read: cls/seq_relationship/" in line
    assert not (finished.out.parent / "new").exists()


WRONG = ([1], {"a": 1}, "x", -1, 3.5, True)
KINDS = {
    **{key: (str,) for key in ("task", "architecture", "version")},
    **{key: (dict,) for key in ("config", "facts")},
    **{f"flags.{key}": (str,) for key in ("label_list", "spm_model_file", "vocab_file")},
    **{f"flags.{key}": (bool,) for key in ("do_lower_case", "regression")},
    **{key: () for key in ("records_seen", "step", "window", "loss_scale", "skipped")},
    **{f"flags.{key}": () for key in ("max_seq_length", "doc_stride", "start_n_top")},
    **{f"facts.{key}": (str,) for key in ("task", "architecture")},
    **{f"facts.{key}": () for key in ("label_names", "problem_type", "num_texts", "max_seq_length",
                                      "text.keep_accents", "settings.num_choices")},
}


@pytest.mark.parametrize("key", KINDS)
def test_every_value_beside_a_checkpoint_has_its_kind_or_is_refused_by_file_and_key(key, tmp_path):
    path = tmp_path / "model.ckpt-7.json"
    *outer, last = key.split(".")
    for wrong in WRONG:
        if type(wrong) in KINDS[key] or (key, wrong) == ("facts.text.keep_accents", True):
            continue
        values = place = {"records_seen": 1}
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = wrong
        path.write_text(json.dumps(values))
        with pytest.raises(DataError, match=last) as refused:
            run_states.read_run_state(str(tmp_path / "model.ckpt-7"))
        assert str(path) in str(refused.value)


def test_a_damaged_note_of_the_best_is_refused_by_name(begun, capsys):
    (begun.out / "best.json").write_text('{"step": "20"')
    assert jobs.pretrain(*begun.flags, "--do_eval") == 2
    assert "best.json" in assert_one_clear_line(capsys.readouterr().err)


def test_a_torn_last_line_of_the_metrics_is_written_again(finished):
    path, whole = finished.out / "metrics.jsonl", metrics(finished.out)
    os.truncate(path, os.path.getsize(path) - 20)
    assert jobs.pretrain(*finished.flags, "--do_eval") == 0
    assert metrics(finished.out) == whole


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "corrupt after record 2"),
        (cut, "its manifest says 40"),
        (lambda path: path.write_bytes(b""), "its manifest says 40"),
        (lambda path: os.truncate(path, path.stat().st_size // 40 * 39), "its manifest says 40"),
        (lambda path: path.write_bytes(path.read_bytes() * 2), "its manifest says 40"),
    ],
    ids=["flipped", "cut", "empty", "cut at a border", "doubled"],
)
def test_damaged_records_end_the_run_with_file_and_place(damage, message, job, tmp_path, capsys):
    path = tmp_path / "train.tfrecord"
    damage(path)
    with nothing_lost(tmp_path):
        assert jobs.pretrain(*job) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "train.tfrecord: " in line and message in line
    assert "(byte " in line or "in its" in line or "bytes" in line


def test_a_manifest_that_was_changed_is_not_believed(job, tmp_path, capsys):
    path = tmp_path / "train.tfrecord.manifest.json"
    path.write_text(path.read_text().replace('"records": 40', '"records": 80'))
    assert jobs.pretrain(*job) == 2
    assert "manifest.json" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_the_same_file_given_twice_is_refused(job, tmp_path, capsys):
    twice = f"--input_file={tmp_path}/train*,{tmp_path}/./train.tfrecord"
    assert jobs.pretrain(*job, twice) == 2
    assert "given twice" in assert_one_clear_line(capsys.readouterr().err)
    os.symlink(tmp_path / "train.tfrecord", tmp_path / "train-link.tfrecord")
    assert jobs.pretrain(*job, f"--input_file={tmp_path}/train*.tfrecord") == 2
    assert "given twice" in assert_one_clear_line(capsys.readouterr().err)


def test_a_missing_shard_is_refused_where_it_is_named_and_told_where_it_is_not(
    job, tmp_path, capsys
):
    shards = [tmp_path / f"{name}.tfrecord" for name in "abc"]
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    together = {"vocab_size": VOCAB, "shards": [shard.name for shard in shards]}
    for shard in shards:
        records.write_records(str(shard), pretraining_rows(8), spec, together)
    shards[1].unlink()
    named = f"--input_file={shards[0]},{shards[1]}"
    assert jobs.pretrain(*job, named) == 2
    assert "b.tfrecord" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
    found = f"--input_file={tmp_path}/[a-c].tfrecord"
    assert jobs.pretrain(*job, found, "--num_train_steps=1", "--num_warmup_steps=0") == 0
    [told] = [line for line in capsys.readouterr().err.splitlines() if "not found: " in line]
    assert "b.tfrecord" in told and "a.tfrecord" not in told


def test_records_that_vanish_while_they_are_read_are_named(job, tmp_path, capsys, monkeypatch):
    from albert.records import tf_dataset

    load = tf_dataset.train_batches

    def vanish(source, *rest, **options):
        os.unlink(source.paths[0])
        return load(source, *rest, **options)

    monkeypatch.setattr(tf_dataset, "train_batches", vanish)
    assert jobs.pretrain(*job) == 2
    assert "train.tfrecord" in assert_one_clear_line(capsys.readouterr().err)


def make_cache(folder, value=1, rows=3):
    spec = FeatureSpec({"x": ("int64", 2)})
    made = []

    def each():
        made.append(True)
        for _ in range(rows):
            yield {"x": np.array([value, value])}

    path = feature_cache.cached_records(str(folder), "dev", each(), spec, {"value": value})
    return path, bool(made)


def test_a_cache_of_other_origin_or_without_manifest_or_cut_is_made_anew(tmp_path):
    path, made = make_cache(tmp_path)
    assert made and not make_cache(tmp_path)[1]
    other, made = make_cache(tmp_path, value=2)
    assert made and other != path
    whole = open(path, "rb").read()
    for damage in (
        lambda: os.unlink(records.manifest_path(path)),
        lambda: os.truncate(path, len(whole) // 2),
        lambda: open(records.manifest_path(path), "w").close(),
        lambda: flip(tmp_path / os.path.basename(records.manifest_path(path))),
        lambda: os.unlink(path),
    ):
        damage()
        assert make_cache(tmp_path) == (path, True)
        assert open(path, "rb").read() == whole
    assert not make_cache(tmp_path)[1]


def test_two_processes_that_want_one_cache_make_it_once(tmp_path):
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                os._exit(10 + make_cache(tmp_path, rows=2000)[1])
            finally:
                os._exit(1)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [10, 10, 10, 11]
    [path] = [n for n in os.listdir(tmp_path) if n.endswith(".tf_record")]
    assert len(list(tfrecord.read_records(str(tmp_path / path)))) == 2000


def test_a_best_checkpoint_is_read_whatever_the_state_file_says(finished):
    (finished.out / "checkpoint").write_text("\x00garbage")
    assert checkpoints.open_weights(str(finished.out)).origin.endswith("model.ckpt-best")
