"""--task=i/n: several machines that share a disk make the records of one, and survive kills."""

import os
import pathlib
import time

import pytest
from helpers import assert_one_clear_line, run_here

from albert import create_pretraining_data
from albert.pretraining_data import recipe, shares, spills
from albert.pretraining_data.recipe import Stream

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "BLOCK_CHARACTERS", 1500)
    monkeypatch.setattr(Stream, "buckets", lambda *_: 6)
    monkeypatch.setattr(shares, "_POLL", 0.02)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *(f"w{i}" for i in range(99))]) + "\n")
    texts = ["\n".join(f"w{i} " * (3 + (i + n) % 7) for n in range(8)) for i in range(40)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts) + "\n")
    return tmp_path


def make(folder: pathlib.Path, *more: str) -> int:
    return run_here(
        create_pretraining_data, f"--input_file={folder}/corpus.txt",
        f"--output_file={folder}/out-0,{folder}/out-1", f"--eval_output_file={folder}/eval",
        "--held_out_fraction=0.25", f"--vocab_file={folder}/vocab.txt", "--max_seq_length=32",
        "--dupe_factor=3", "--num_processes=1", *more,
    )


def start(folder, *more, before=lambda: None) -> int:
    """Starts the command in a process of its own; returns its number."""
    child = os.fork()
    if child == 0:
        try:
            before()
            os._exit(make(folder, *more))
        finally:
            os._exit(99)
    return child


def status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outputs(folder) -> dict[str, bytes]:
    names = {path.name for path in folder.iterdir()} - {"corpus.txt", "vocab.txt"}
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture
def expected(folder):
    assert make(folder) == 0
    found = outputs(folder)
    assert len(found) == 6
    for name in found:
        (folder / name).unlink()
    return found


@pytest.mark.parametrize(("count", "merges"), [(2, False), (3, False), (9, False), (3, True)])
def test_the_bytes_of_several_machines_are_those_of_one(
    count, merges, folder, expected, monkeypatch
):
    if merges:  # as for a text of many gigabytes
        monkeypatch.setattr(spills, "_MOST_READS", 0)
        monkeypatch.setattr(spills, "_MERGED", 3)
    children = [start(folder, f"--task={n + 1}/{count}") for n in range(count)]
    assert [status(child) for child in children] == [0] * count
    assert outputs(folder) == expected
    assert make(folder, f"--task=1/{count}") == 0  # it waits for nobody when all is done
    assert outputs(folder) == expected


@pytest.mark.parametrize(("name", "number"), [("spill_block", 2), ("finish_bucket", 1)])
def test_a_machine_that_was_killed_goes_on_with_the_same_command(name, number, folder, expected):
    from albert.pretraining_data import making

    original, left = getattr(making, name), [number]

    def call(*arguments):
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
        return original(*arguments)

    others = [start(folder, f"--task={n}/3") for n in (1, 3)]
    killed = start(folder, "--task=2/3", before=lambda: setattr(making, name, call))
    assert status(killed) == 9
    # The others wait for it.
    assert all(os.waitpid(child, os.WNOHANG) == (0, 0) for child in others)
    assert not (folder / "out-0").exists()
    assert status(start(folder, "--task=2/3")) == 0
    assert [status(child) for child in others] == [0, 0]
    assert outputs(folder) == expected


def test_a_machine_killed_while_it_publishes_loses_nothing(folder, expected):
    from albert.pretraining_data import making

    def die(*_):
        os._exit(9)

    children = [
        start(folder, f"--task={n}/2", before=lambda: setattr(making, "copy_records", die))
        for n in (1, 2)
    ]
    assert sorted(map(status, children)) in ([0, 9], [9, 9])
    assert not (folder / "out-0").exists()
    children = [start(folder, f"--task={n}/2") for n in (1, 2)]
    assert list(map(status, children)) == [0, 0]
    assert outputs(folder) == expected


def test_the_same_share_twice_and_other_records_are_refused(folder, capsys):
    waiting = start(folder, "--task=1/2")
    deadline = time.monotonic() + 60
    while not list(folder.glob("out-0.tasks/1-of-2/paired.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for flags, message in ((["--task=1/2"], "1-of-2 is in use by pid"),
                           (["--task=2/2", "--random_seed=7"], "out-0.tasks is of other records"),
                           (["--task=2/3"], "out-0.tasks is of other records")):
        assert make(folder, *flags) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("error: ") and message in line
    os.kill(waiting, 15)
    assert status(waiting) == 143


@pytest.mark.parametrize("task", ["3/2", "0/2", "2", "a/b", "1/2/3", ""])
def test_what_is_no_share_is_refused(task, folder, capsys):
    more = ["--original_draw_order"] if not task else []
    assert make(folder, f"--task={task or '1/2'}", *more) == 2
    assert "--task" in assert_one_clear_line(capsys.readouterr().err)


def test_spills_are_found_by_their_numbers(folder):
    found = list(spills.Spills(("a", "b", "c"), "train", 4, 5, 2, 7).paths())
    assert len(set(found)) == 12 and found[:4] == [
        "a/train-0-0-2.spill", "b/train-0-2-4.spill", "c/train-0-4-5.spill", "a/train-1-0-2.spill"
    ]
    merged = spills.Spills(("a", "b"), "train", 4, 5, 2, 7, group=5)
    assert list(merged.paths()) == ["a/train-0.merged", "b/train-1.merged", "a/train-2.merged"]
    assert sum(map(merged.sources, range(3)), []) == [
        os.path.join("aaaaabbbbbaa"[number], os.path.basename(path))
        for number, path in enumerate(found)
    ]
