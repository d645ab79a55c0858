"""A power cut anywhere: nothing is lost that was saved, and nothing is mixed."""

import os
import shutil

import numpy as np
import pytest
from invariants import assert_tidy, snapshot

from albert.config import AlbertConfig
from albert.formats import checkpoint_files, checkpoints, saved_model, run_states
from albert.records import records, tfrecord
from albert.records.examples import FeatureSpec
from albert.storage import files, locks
from albert.training import checkpoint_store
import jobs
from power_cuts import power_cuts

CONFIG = AlbertConfig(100, 8, 16, 2, num_attention_heads=2, intermediate_size=8)
SHAPES = {"bert/a": (2, 3), "global_step": ()}


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def save(out, step):
    tensors = {"bert/a": np.full((2, 3), step, "float32"), "global_step": np.int64(step)}
    run_state = {"task": "t", "config": CONFIG.to_dict(), "records_seen": 4 * step}
    return checkpoint_store.save(str(out), step, tensors, run_state, keep=2)


def newest(out):
    prefix, tensors, run_state = checkpoint_store.read_newest(str(out), SHAPES, CONFIG, "t")
    step = int(tensors["global_step"])
    assert (tensors["bert/a"] == step).all() and run_state["records_seen"] == 4 * step
    return step


def test_a_power_cut_in_saving_leaves_the_old_checkpoint_or_the_new_one(out, tmp_path):
    save(out, 1)
    save(out, 2)
    seen = []
    for cut in power_cuts(out, lambda: save(out, 3), tmp_path / "cuts"):
        step = newest(cut)
        with locks.hold(str(cut)):  # by the next process, which resumes
            assert_tidy(cut)
        for again in range(step + 1, 5):
            save(cut, again)
        assert newest(cut) == 4
        names = {name.partition(".")[0] + name.partition("ckpt")[2] for name in os.listdir(cut)}
        assert not [name for name in names if "-1." in name or "-2." in name], names
        seen.append(step)
    assert len(seen) > 20 and set(seen) == {2, 3}
    assert seen[-1] == 3, "saved, but not on the disk"


def test_a_power_cut_in_keeping_the_best_leaves_a_whole_one_or_none(out, tmp_path):
    checkpoint_store.publish_best(save(out, 1))
    prefix, seen = save(out, 2), []
    for cut in power_cuts(out, lambda: checkpoint_store.publish_best(prefix), tmp_path / "cuts"):
        with locks.hold(str(cut)):
            assert_tidy(cut)
        seen.append(None)
        if os.path.exists(cut / "model.ckpt-best.index"):
            best = checkpoints.open_weights(str(cut / "model.ckpt-best"))
            seen[-1] = int(best.read("global_step"))
            assert (best.read("bert/a") == seen[-1]).all()
            assert run_states.read_run_state(best.origin)["step"] == seen[-1]
    assert set(seen) == {1, None, 2} and seen[-1] == 2


def test_a_power_cut_in_writing_records_leaves_records_with_their_manifest_or_none(out, tmp_path):
    spec = FeatureSpec({"x": ("int64", 2)})

    def write(folder, value, count):
        rows = ({"x": np.array([value, value])} for _ in range(count))
        records.write_records(str(folder / "x.tfrecord"), rows, spec, {"value": value})

    write(out, 1, 5)
    for cut in power_cuts(out, lambda: write(out, 2, 7), tmp_path / "cuts"):
        path = str(cut / "x.tfrecord")
        manifest = records.Manifest.read(path)
        count = len(list(tfrecord.read_records(path)))
        assert count in (5, 7)
        if manifest:
            assert manifest.records == count
            assert manifest.info["value"] == {5: 1, 7: 2}[count]
        write(cut, 3, 1)
        assert_tidy(cut)
    assert manifest and count == 7


@pytest.mark.parametrize("is_used", [True, False], ids=["used", "new"])
def test_a_power_cut_in_publishing_a_directory_leaves_no_mixture(is_used, out, tmp_path):
    def publish(path, value):
        with files.publish_dir(str(path), last="index") as scratch:
            os.mkdir(os.path.join(scratch, f"deep{value}"))
            for name in ("index", "a", f"deep{value}/b"):
                files.write_json(os.path.join(scratch, name), {"value": value})

    theirs = ("notes", "deep1/notes", "deep/er/notes") if is_used else ()
    for name in theirs:
        (out / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (out / "model" / name).write_text("mine")
    if is_used:
        publish(out / "model", 1)
    seen = []
    for cut in power_cuts(out, lambda: publish(out / "model", 2), tmp_path / "cuts"):
        folder = cut / "model"
        for name in theirs:
            assert (folder / name).read_text() == "mine"
        seen.append(None)
        if (folder / "index").exists():
            seen[-1] = files.read_json(str(folder / "index"))["value"]
            for name in ("a", f"deep{seen[-1]}/b"):
                assert files.read_json(str(folder / name))["value"] == seen[-1]
        publish(folder, 3)
        assert_tidy(cut)
    assert set(seen) == {1, None, 2} - (set() if is_used else {1}) and seen[-1] == 2


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
def test_a_power_cut_in_an_export_never_leaves_a_model_without_its_card(
    publish, model, card, out, tmp_path, monkeypatch
):
    seen = []
    for cut in power_cuts(out, lambda: publish(out, monkeypatch), tmp_path / "cuts"):
        seen.append((cut / model).exists())
        assert not seen[-1] or files.read_json(str(cut / card)) == {}
        publish(cut, monkeypatch)
        assert (cut / card).exists() and (cut / model).exists()
        assert_tidy(cut)
    assert set(seen) == {True, False} and seen[-1]


def test_a_power_cut_in_data_creation_publishes_nothing_and_the_next_run_gives_the_same_bytes(
    out, tmp_path
):
    arguments = jobs.data_flags(tmp_path, output_file=out / "out.tfrecord")
    assert jobs.create_data(*arguments) == 0
    whole = snapshot(out)
    out.rename(tmp_path / "whole")
    out.mkdir()
    cuts = power_cuts(out, lambda: jobs.create_data(*arguments), tmp_path / "cuts")
    for number, cut in enumerate(cuts):
        is_published = (cut / "out.tfrecord.manifest.json").exists()
        if is_published:
            for name in ("out.tfrecord", "out.tfrecord.manifest.json"):
                assert (cut / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        shutil.rmtree(out)
        shutil.copytree(cut, out)
        assert jobs.create_data(*arguments) == 0
        assert snapshot(out) == whole, number
    assert is_published and number > 30
