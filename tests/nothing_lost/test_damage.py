"""Damaged checkpoints and records of real runs: named, set aside or refused; never made up."""

import json
import os
import pathlib

import jobs
import pytest
from damage import flipped
from helpers import (
    LENGTH, PREDICTIONS, VOCAB, assert_one_clear_line, pretraining_rows, write_pretraining_records,
)
from invariants import nothing_lost
from record_files_made import write_records

from albert.errors import DataError
from albert.formats import metadata
from albert.records import batches
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.tasks.pretraining import PretrainingTask

DATA = ".data-00000-of-00001"


def test_a_checkpoint_without_its_run_state_is_used_with_a_warning(finished, capsys):
    (finished.out / "model.ckpt-23.json").unlink()
    assert jobs.pretrain(*finished.flags) == 0
    said = capsys.readouterr().err
    assert "no model.ckpt-23.json" in said and "resuming from" in said


def test_a_damaged_checkpoint_starts_no_run_and_the_error_says_what_is_lost(finished, capsys):
    path, new = finished.out / f"model.ckpt-best{DATA}", finished.out.parent / "new"
    flags = [*finished.flags, f"--init_checkpoint={finished.out}/model.ckpt-best"]
    # Truncate first the heads' moments, which no run would read, and then nearly everything.
    for size, message in ((path.stat().st_size - 40, "cannot be read: cls/seq_relationship/"),
                          (100, "")):
        os.truncate(path, size)
        with nothing_lost(finished.out):
            assert jobs.pretrain(*flags, f"--output_dir={new}") == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert "model.ckpt-best is truncated" in line and message in line
        assert not new.exists()


WRONG = ([1], {"a": 1}, "x", -1, 3.5, True)
KINDS = {
    "version": (str,), **{key: (dict,) for key in ("config", "metadata", "results")},
    "flags.text_column": (str,), "flags.do_lower_case": (bool,),
    **{key: () for key in ("records_seen", "step", "loss_scale")},
    **{f"metadata.{key}": (str,) for key in ("task", "architecture")},
    **{f"metadata.{key}": () for key in (
        "label_names", "problem_type", "num_texts", "max_seq_length", "settings.num_choices",
        "settings.doc_stride", "settings.start_n_top",
    )},
    "metadata.text.keep_accents": (bool,),
}


def test_every_value_beside_a_checkpoint_has_its_kind_or_is_refused_by_file_and_key(tmp_path):
    path = tmp_path / "model.ckpt-7.json"
    for key, wrong in ((key, value) for key in KINDS for value in WRONG):
        if type(wrong) not in KINDS[key]:
            *outer, last = key.split(".")
            values = inner = {"records_seen": 1}
            for name in outer:
                inner = inner.setdefault(name, {})
            inner[last] = wrong
            path.write_text(json.dumps(values))
            with pytest.raises(DataError, match=last) as refused:
                metadata.read_run_state(str(tmp_path / "model.ckpt-7"))
            assert str(path) in str(refused.value)


# --- Records ---


def test_damaged_records_end_the_run_with_file_and_place(job, tmp_path, capsys, monkeypatch):
    path, manifest = tmp_path / "train.tfrecord", tmp_path / "train.tfrecord.manifest.json"
    content, said_of = path.read_bytes(), manifest.read_text()

    def refused() -> str:
        assert jobs.pretrain(*job) == 2
        assert not list(tmp_path.glob("out/model.ckpt*"))
        path.write_bytes(content)
        manifest.write_text(said_of)
        return assert_one_clear_line(capsys.readouterr().err)

    path.write_bytes(flipped(content, len(content) // 2, 0x10))
    line = refused()
    assert "train.tfrecord: corrupt after record 2" in line and "(byte " in line
    size = len(content)
    for part in (content[: size // 2], b"", content[: size // 40 * 39], content * 2):
        path.write_bytes(part)
        line = refused()
        assert "train.tfrecord: " in line and "its manifest says 40" in line
    manifest.write_text(said_of.replace('"records": 40', '"records": 80'))
    assert "manifest.json" in refused()
    load = batches.train_batches

    def vanish(source, *rest, **options):
        os.unlink(source.paths[0])
        return load(source, *rest, **options)

    monkeypatch.setattr(batches, "train_batches", vanish)
    assert jobs.pretrain(*job) == 2
    assert "train.tfrecord" in assert_one_clear_line(capsys.readouterr().err)


def test_damaged_records_to_evaluate_on_are_refused_before_the_first_step(job, tmp_path, capsys):
    held_out = pathlib.Path(write_pretraining_records(tmp_path / "held_out.tfrecord", 12))
    os.truncate(held_out, held_out.stat().st_size // 2)
    assert jobs.pretrain(*job, "--do_eval", f"--eval_input_file={held_out}") == 2
    assert "held_out.tfrecord: " in assert_one_clear_line(capsys.readouterr().err)
    assert not list(tmp_path.glob("out/model.ckpt*"))


def test_the_same_file_given_twice_is_refused(job, tmp_path, capsys):
    os.symlink(tmp_path / "train.tfrecord", tmp_path / "linked.tfrecord")
    for pattern in (f"{tmp_path}/train*,{tmp_path}/./train.tfrecord", f"{tmp_path}/*.tfrecord"):
        assert jobs.pretrain(*job, f"--input_file={pattern}") == 2
        assert "given twice" in assert_one_clear_line(capsys.readouterr().err)


def test_a_missing_shard_is_refused_where_it_is_named_and_else_warned_about(
    job, tmp_path, capsys, caplog
):
    shards = [tmp_path / f"{name}.tfrecord" for name in "abc"]
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    together = {"vocab_size": VOCAB, "shards": dict.fromkeys(shard.name for shard in shards)}
    for shard in shards:
        write_records(str(shard), pretraining_rows(8), spec, together)
    shards[1].unlink()
    named = f"--input_file={shards[0]},{shards[1]}"
    assert jobs.pretrain(*job, named) == 2
    assert "b.tfrecord" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
    RecordFiles.of_flag(f"{tmp_path}/[a-c].tfrecord", "input_file").check(spec, VOCAB)
    [warning] = [r.getMessage() for r in caplog.records if "missing files" in r.getMessage()]
    assert "b.tfrecord" in warning and "a.tfrecord" not in warning


def test_a_shard_of_another_run_is_refused_with_and_without_its_manifest(tmp_path):
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    shards = [tmp_path / f"{name}.tfrecord" for name in "ab"]

    def write(seed):
        for _ in range(2):  # the second time, their contents are known
            together = {shard.name: files.sha256(str(shard)) if shard.exists() else None for shard in shards}
            for shard in shards:
                write_records(str(shard), pretraining_rows(8, seed), spec, {"shards": together})

    def check():
        RecordFiles.of_flag(f"{tmp_path}/[ab].tfrecord", "input_file").check(spec, VOCAB)

    write(seed=1)
    older = [(path, path.read_bytes()) for path in tmp_path.glob("b.*")]
    write(seed=0)
    check()
    for path, content in older:
        path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(DataError, match="were written by different runs"):
            check()
        (tmp_path / "b.tfrecord.manifest.json").unlink(missing_ok=True)
    write(seed=0)
    (tmp_path / "b.tfrecord.manifest.json").unlink()
    check()


@pytest.mark.parametrize("has_manifest", [True, False])
def test_records_that_differ_only_in_the_middle_are_other_data(has_manifest, tmp_path):
    path, prints = tmp_path / "a.tfrecord", []
    for seed in (0, 0, 1):
        rows = [*pretraining_rows(600), *pretraining_rows(600, seed=seed), *pretraining_rows(600)]
        spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
        write_records(str(path), rows, spec, {})
        info = {"shards": {path.name: files.sha256(str(path))}}
        write_records(str(path), rows, spec, info)
        if not has_manifest:
            (tmp_path / "a.tfrecord.manifest.json").unlink()
        prints.append(RecordFiles([str(path)]).fingerprints())
        os.utime(path, ns=(len(prints), len(prints)))  # as if written later
    assert prints[0] == prints[1] != prints[2]
