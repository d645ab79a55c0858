"""A power cut or a kill at any point: saved data is never lost, and never mixed."""

import os
import shutil

import jobs
import pytest
import stores
from helpers import run_here
from invariants import assert_tidy, snapshot
from power_cuts import power_cuts

from albert import convert_hf, export_checkpoints
from albert.formats import checkpoints, metadata
from albert.records import manifests
from albert.storage import files, locks
from albert.training import store


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_a_power_cut_in_saving_leaves_the_old_checkpoint_or_the_new_one(out, tmp_path):
    stores.save(out, 1, keep=2)
    stores.save(out, 2, keep=2)
    seen = []
    for cut in power_cuts(out, lambda: stores.save(out, 3, keep=2), tmp_path / "cuts"):
        step = stores.newest(cut)
        with locks.hold(str(cut)):  # by the next process, which resumes
            assert_tidy(cut)
        for again in range(step + 1, 5):
            stores.save(cut, again, keep=2)
        assert stores.newest(cut) == 4
        names = os.listdir(cut)
        assert not [name for name in names if "ckpt-1." in name or "ckpt-2." in name], names
        seen.append(step)
    assert len(seen) > 20 and set(seen) == {2, 3}
    assert seen[-1] == 3, "saved, but not on the disk"


def test_a_power_cut_in_keeping_the_best_leaves_a_whole_one_or_none(out, tmp_path):
    store.publish_best(stores.save(out, 1))
    prefix, seen = stores.save(out, 2), []
    for cut in power_cuts(out, lambda: store.publish_best(prefix), tmp_path / "cuts"):
        with locks.hold(str(cut)):
            assert_tidy(cut)
        seen.append(None)
        if os.path.exists(cut / "model.ckpt-best.index"):
            best = checkpoints.open_weights(str(cut / "model.ckpt-best"))
            seen[-1] = int(best.read("global_step"))
            assert (best.read("bert/a") == seen[-1]).all()
            assert metadata.read_run_state(best.origin)["step"] == seen[-1]
    assert set(seen) == {1, None, 2} and seen[-1] == 2


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


@pytest.mark.parametrize("command, target, marker", [
    (convert_hf, "--output_dir={}/theirs", "theirs"),
    (export_checkpoints, "--export_path={}/clean", "clean.index"),
], ids=["directory", "files"])
def test_an_export_that_was_cut_off_is_complete_or_absent_and_can_be_repeated(
    command, target, marker, whole, out, tmp_path
):
    """If `marker` is there, so is all of it."""
    inputs = [f"--albert_directory={whole.out}"]
    if command is convert_hf:
        inputs.append(f"--vocab_file={jobs.write_vocabulary(tmp_path)}")

    def export(folder) -> int:
        return run_here(command, *inputs, target.format(folder))

    def content(folder):
        return {os.path.relpath(path, folder): digest for path, digest in snapshot(folder).items()}

    sources = snapshot(whole.out)
    assert export(out) == 0
    right, seen = content(out), []
    shutil.rmtree(out)
    out.mkdir()
    for number, cut in enumerate(power_cuts(out, lambda: export(out), tmp_path / "cuts")):
        seen.append((cut / marker).exists())
        if seen[-1]:
            assert right.items() <= content(cut).items(), number
        if number % 10 == 0:
            assert export(cut) == (2 if seen[-1] else 0)  # existing output is not overwritten
            assert content(cut) == right, number
            assert_tidy(cut)
    assert set(seen) == {True, False} and seen[-1]
    assert snapshot(whole.out) == sources


def test_a_power_cut_in_data_creation_publishes_nothing_and_the_next_run_gives_the_same_bytes(
    out, tmp_path
):
    arguments = jobs.data_flags(tmp_path, output_file=out / "out.tfrecord", dupe_factor=1)
    assert jobs.create_data(*arguments) == 0
    whole = snapshot(out)
    out.rename(tmp_path / "whole")
    out.mkdir()
    cuts = power_cuts(out, lambda: jobs.create_data(*arguments), tmp_path / "cuts")
    for number, cut in enumerate(cuts):
        is_published = manifests.is_complete(str(cut / "out.tfrecord"))
        if is_published:
            for name in ("out.tfrecord", "out.tfrecord.manifest.json"):
                assert (cut / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        if number % 6 and not is_published:
            continue
        shutil.rmtree(out)
        shutil.copytree(cut, out)
        assert jobs.create_data(*arguments) == 0
        assert snapshot(out) == whole, number
    assert is_published and number > 30


def test_a_power_cut_leaves_the_work_that_a_job_has_saved(out, tmp_path):
    def work():
        with pytest.raises(KeyError), locks.work_folder([str(out / "a.tfrecord")], "a job") as folder:
            files.write_json(os.path.join(folder, "part.json"), {})
            raise KeyError

    *_, certain = [snapshot(cut) for cut in power_cuts(out, work, tmp_path / "cuts")]
    assert any(path.endswith(".a.tfrecord.work/part.json") for path in certain), certain


# --- scripts/maintainers/chaos.py ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--kills=3", "--steps=600"],
        ["--workers=2", "--kills=2", "--steps=160"],
        ["--work=data", "--kills=6", "--documents=600"],
    ],
    ids=["one worker", "two workers", "data creation"],
)
def test_work_that_is_killed_at_random_moments_ends_as_if_undisturbed(arguments, tmp_path, capsys):
    assert jobs.script("chaos").main([*arguments, f"--directory={tmp_path / 'work'}"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("passed: ") and "bit-equal" in line
