"""A crash before any one file operation, for all of them: nothing is lost, nothing is mixed.

A forked child works until its n-th file operation and dies there as by kill -9;
then the parent looks at what is left, and does the work again. TensorFlow's
threads do not survive a fork, so its one operation here is a copy of files.
"""

import contextlib
import os
import shutil
import sys

import numpy as np
import pytest
from invariants import assert_tidy, snapshot

from albert.config import AlbertConfig
from albert.formats import checkpoint_files, checkpoints, saved_model, sidecars, tensor_bundle
from albert.records import records, tfrecord
from albert.records.examples import FeatureSpec
from albert.storage import files, locks
from albert.training import checkpoint_store
from faults import jobs

CRASHED = 9
OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")
CONFIG = AlbertConfig(100, 8, 16, 2, num_attention_heads=2, intermediate_size=8)
SHAPES = {"bert/a": (2, 3), "global_step": ()}


def crash_at(number: int, work, folder) -> bool:
    """Does `work` in a child that dies before file operation `number`; whether it died."""
    child = os.fork()
    if child == 0:
        left = [number]

        def count(event, arguments):
            if event in OPERATIONS and str(arguments[0]).startswith(str(folder)):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(CRASHED)

        code = 1
        with contextlib.suppress(BaseException):
            sys.addaudithook(count)
            work()
            code = 0
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, CRASHED)
    return status == CRASHED


@pytest.fixture
def bundles(tmp_path, monkeypatch):
    """Bundles of steps 1 to 4, and their writing replaced by a copy of them; returns the folder."""
    folder = tmp_path / "bundles"
    folder.mkdir()
    for step in range(1, 5):
        tensors = {"bert/a": np.full((2, 3), step, "float32"), "global_step": np.int64(step)}
        checkpoint_files.write(str(folder / str(step)), tensors)

    def copy(prefix, tensors):
        for ending in tensor_bundle.SUFFIXES:
            shutil.copyfile(f"{folder}/{int(tensors['global_step'])}{ending}", prefix + ending)

    monkeypatch.setattr(tensor_bundle, "write", copy)
    return folder


def save(out, step):
    tensors = {"bert/a": np.full((2, 3), step, "float32"), "global_step": np.int64(step)}
    sidecar = {"task": "t", "config": CONFIG.to_dict(), "records_seen": 4 * step}
    return checkpoint_store.save(str(out), step, tensors, sidecar, keep=2)


def newest(out):
    prefix, tensors, sidecar = checkpoint_store.read_newest(str(out), SHAPES, CONFIG, "t")
    step = int(tensors["global_step"])
    assert (tensors["bert/a"] == step).all() and sidecar["records_seen"] == 4 * step
    return step


def test_a_crash_anywhere_in_saving_leaves_the_old_checkpoint_or_the_new_one(tmp_path, bundles):
    number, seen = 0, set()
    while True:
        out = tmp_path / f"out-{number}"
        out.mkdir()
        for step in (1, 2):
            save(out, step)
        crashed = crash_at(number, lambda out=out: save(out, 3), out)
        step = newest(out)
        assert step in (2, 3)
        seen.add(step)
        with locks.hold(str(out)):  # by the next process, which resumes
            assert_tidy(out)
        for again in range(step + 1, 5):
            save(out, again)
        assert newest(out) == 4
        names = {name.partition(".")[0] + name.partition("ckpt")[2] for name in os.listdir(out)}
        assert not [name for name in names if "-1." in name or "-2." in name], names
        if not crashed:
            break
        number += 1
    assert number > 10 and seen == {2, 3}


def test_a_crash_anywhere_in_keeping_the_best_leaves_a_whole_one_or_none(tmp_path, bundles):
    number, seen = 0, set()
    while True:
        out = tmp_path / f"out-{number}"
        out.mkdir()
        checkpoint_store.publish_best(save(out, 1))
        prefix = save(out, 2)
        crashed = crash_at(number, lambda prefix=prefix: checkpoint_store.publish_best(prefix), out)
        with locks.hold(str(out)):
            assert_tidy(out)
        if os.path.exists(out / "model.ckpt-best.index"):
            best = checkpoints.open_weights(str(out / "model.ckpt-best"))
            step = int(best.read("global_step"))
            assert (best.read("bert/a") == step).all()
            assert sidecars.read_sidecar(best.origin)["step"] == step
            seen.add(step)
        if not crashed:
            break
        number += 1
    assert number > 5 and seen == {1, 2}


def test_a_crash_anywhere_in_writing_records_leaves_records_with_their_manifest_or_none(tmp_path):
    spec = FeatureSpec({"x": ("int64", 2)})

    def write(path, value, count):
        rows = ({"x": np.array([value, value])} for _ in range(count))
        records.write_records(str(path), rows, spec, {"value": value})

    number = 0
    while True:
        path = tmp_path / f"{number}" / "x.tfrecord"
        write(path, 1, 5)
        crashed = crash_at(number, lambda path=path: write(path, 2, 7), path.parent)
        manifest = records.Manifest.read(str(path))
        count = len(list(tfrecord.read_records(str(path))))
        assert count in (5, 7)
        if manifest:
            assert manifest.records == count
            assert manifest.info["value"] == {5: 1, 7: 2}[count]
        write(path, 3, 1)
        assert_tidy(path.parent)
        if not crashed:
            break
        number += 1
    assert number > 3


def test_a_crash_anywhere_in_writing_into_a_used_directory_leaves_no_mixture(tmp_path):
    def publish(path, value):
        with files.publish_dir(str(path), last="index") as scratch:
            os.mkdir(os.path.join(scratch, "deep"))
            for name in ("index", "a", "deep/b"):
                files.write_json(os.path.join(scratch, name), {"value": value})

    number, seen = 0, set()
    while True:
        folder = tmp_path / str(number) / "used"
        (folder / "deep/er").mkdir(parents=True)
        for name in ("notes", "deep/notes", "deep/er/notes"):
            (folder / name).write_text("mine")
        publish(folder, 1)
        crashed = crash_at(number, lambda folder=folder: publish(folder, 2), folder.parent)
        for name in ("notes", "deep/notes", "deep/er/notes"):
            assert (folder / name).read_text() == "mine"
        values = {files.read_json(str(folder / name))["value"] for name in ("a", "deep/b")}
        if (folder / "index").exists():
            values.add(files.read_json(str(folder / "index"))["value"])
            assert len(values) == 1
            seen |= values
        else:
            seen.add(None)
        publish(folder, 3)
        assert_tidy(folder.parent)
        if not crashed:
            break
        number += 1
    assert number > 10 and seen == {1, None, 2}


def publish_module(out, monkeypatch):
    def write(module, directory, signatures):
        for name in ("saved_model.pb", "fingerprint.pb"):
            files.write_json(os.path.join(directory, name), {})

    monkeypatch.setattr(saved_model.tf.saved_model, "save", write)
    saved_model.publish(
        None, str(out / "served"), {},
        lambda scratch: files.write_json(os.path.join(scratch, "README.md"), {}),
    )


def publish_checkpoint(out, _):
    tensors = {"bert/a": np.zeros((2, 3), "float32"), "global_step": np.int64(1)}
    checkpoint_files.write(
        str(out / "clean"), tensors,
        before=lambda: files.write_json(str(out / "README.md"), {}),
    )


@pytest.mark.parametrize(
    ("publish", "model", "card"),
    [(publish_module, "served/saved_model.pb", "served/README.md"),
     (publish_checkpoint, "clean.index", "README.md")],
    ids=["module", "checkpoint"],
)
def test_a_crash_anywhere_in_an_export_never_leaves_a_model_without_its_card(
    publish, model, card, tmp_path, bundles, monkeypatch
):
    number, seen = 0, set()
    while True:
        out = tmp_path / f"out-{number}"
        out.mkdir()
        crashed = crash_at(number, lambda out=out: publish(out, monkeypatch), out)
        seen.add((out / model).exists())
        assert (out / card).exists() or not (out / model).exists()
        publish(out, monkeypatch)
        assert (out / card).exists() and (out / model).exists()
        assert_tidy(out)
        if not crashed:
            break
        number += 1
    assert number > 5 and seen == {True, False}


@pytest.mark.parametrize("step", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_a_crash_in_data_creation_publishes_nothing_and_the_next_run_gives_the_same_bytes(
    step, tmp_path
):
    arguments = jobs.data_flags(tmp_path)
    assert jobs.create_data(*arguments) == 0
    whole = snapshot(tmp_path)
    number, crashes = 0, 0
    while True:
        crashed = crash_at(number, lambda: jobs.create_data(*arguments), tmp_path)
        crashes += crashed
        if os.path.exists(tmp_path / "out.tfrecord.manifest.json"):
            # Old or new, which are the same bytes; a manifest never stands beside others.
            assert {k: v for k, v in snapshot(tmp_path).items() if ".work/" not in k} == whole
        if not crashed:
            break
        number += step
    assert jobs.create_data(*arguments) == 0
    assert snapshot(tmp_path) == whole and crashes > 3
