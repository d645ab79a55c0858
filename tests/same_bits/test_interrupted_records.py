"""Interrupted data creation: rerunning the command resumes it to the same bytes."""

import contextlib
import os
import pathlib
import re
import signal
import time
from unittest import mock

import jobs
import pytest
from helpers import start
from invariants import snapshot
from making_records import files_made, flags_of, make, take

from albert.errors import DataError, RunDirBusyError
from albert.pretraining_data import instances, job, pipeline
from albert.records import manifests
from albert.records.record_files import RecordFiles
from albert.text import cleaning

WORK = ".out.tfrecord.work"
PAIRING, FRAMING = (pipeline, "pairs_of_block"), (instances, "frame_pairs")


def spawn(folder, **changes):
    return start("albert.create_pretraining_data", *flags_of(folder, **changes))


def tasks_done(folder) -> int:
    return sum(path.name.endswith(".part.json") for path in (folder / WORK).glob("*"))


def wait_for_work(folder, process, tasks):
    """Waits until `tasks` tasks of a run are done."""
    deadline = time.monotonic() + 60
    while tasks_done(folder) < tasks:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def test_whatever_ends_a_run_the_same_command_resumes_it_to_the_same_bytes(tiny):
    make(tiny, dupe_factor=400)
    expected, done = take(tiny), 0
    for number, processes, code in (
        (signal.SIGTERM, 1, 143), (signal.SIGINT, 2, 130), (signal.SIGKILL, 2, -signal.SIGKILL),
    ):
        process = spawn(tiny, dupe_factor=400, num_processes=processes)
        wait_for_work(tiny, process, tasks=done + 2)
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
        assert process.returncode == code, log
        assert files_made(tiny) == [WORK] and (done := tasks_done(tiny)) < 32
        said = f"stopped by {signal.Signals(number).name}: rerun the command to resume"
        assert (said in log) == (number != signal.SIGKILL)
    _, log = (last := spawn(tiny, dupe_factor=400, num_processes=1)).communicate(timeout=300)
    assert last.returncode == 0, log
    assert int(re.search(r"resumed an unfinished run: (\d+) of its tasks", log)[1]) == done
    assert take(tiny) == expected


def test_a_run_whose_worker_dies_says_so_at_once_and_resumes(tiny):
    make(tiny, dupe_factor=400)
    expected = take(tiny)
    process = spawn(tiny, dupe_factor=400, num_processes=3)
    wait_for_work(tiny, process, tasks=2)
    os.kill(worker_of(process), signal.SIGKILL)  # as the kernel does for lack of memory
    _, log = process.communicate(timeout=60)
    assert process.returncode == 2, log
    assert "a worker process died, perhaps for lack of memory: try a smaller --num_processes" in log
    assert files_made(tiny) == [WORK]
    make(tiny, dupe_factor=400)
    assert take(tiny) == expected


def worker_of(process) -> int:
    """Returns the pid of a process that `multiprocessing` spawned for a command."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"spawn_main" in (path / "cmdline").read_bytes():
                return int(path.name)
    raise AssertionError("no worker")


def test_workers_that_are_being_started_end_with_a_killed_command(tmp_path):
    """They import nothing of the main module, here the sleep, before they watch for its end."""
    jobs.assert_children_end_with_a_killed_command(
        tmp_path,
        "import time\n"
        "if __name__ != '__main__': time.sleep(60)\n"
        "from albert.runtime.workers import Workers\n"
        "if __name__ == '__main__':\n"
        "    with Workers(2) as pool:\n"
        "        assert list(pool.map(abs, [(-1,), (2,)])) == [1, 2]\n"
        "        print(*pool._pool._processes, flush=True)\n"
        "        print(*pool.map(time.sleep, [(60,)]))\n"
    )


def test_other_jobs_in_a_folder_leave_unfinished_work_alone_and_use_none_of_it(tiny):
    process = spawn(tiny, dupe_factor=20000)
    wait_for_work(tiny, process, tasks=1)
    with pytest.raises(RunDirBusyError, match=f"{WORK} is in use by pid {process.pid} on host"):
        make(tiny)
    process.kill()
    process.communicate(timeout=60)
    before = snapshot(tiny / WORK)
    make(tiny, output_file=f"{tiny}/another.tfrecord")
    assert snapshot(tiny / WORK) == before
    make(tiny)  # the same output with other flags: the unfinished work is useless
    assert files_made(tiny) == [
        f"{name}{suffix}" for name in ("another.tfrecord", "out.tfrecord")
        for suffix in ("", ".manifest.json")
    ]


def counted(monkeypatch, module, name) -> mock.Mock:
    """Returns a mock that calls a function."""
    call = mock.Mock(wraps=getattr(module, name))
    monkeypatch.setattr(module, name, call)
    return call


def make_and_die(monkeypatch, owner, name, number, folder, **changes):
    """Makes records in a process that dies, as from kill -9, in the `number`-th call of a function."""
    original, left = getattr(owner, name), [number]

    def call(*arguments):
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
        return original(*arguments)

    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(owner, name, call)
            make(folder, **changes)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_finished_work_of_a_killed_run_stays_and_nothing_is_lost_or_double(
    tiny, monkeypatch, caplog
):
    monkeypatch.setattr(job, "_BLOCK", (1500, 1500))
    caplog.set_level("INFO", "albert")
    paths = dict(output_file=f"{tiny}/out-0.tfrecord,{tiny}/out-1.tfrecord")
    framed = counted(monkeypatch, *FRAMING)
    make(tiny, **paths)
    whole, expected = framed.call_count, take(tiny)
    assert whole > 6
    for owner, name, number, left in (
        (*PAIRING, 2, whole - 4), (*FRAMING, 5, whole - 4), (pipeline, "_join", 1, 0),
        (manifests, "manifest_path", 4, 0),  # before their manifests
    ):
        make_and_die(monkeypatch, owner, name, number, tiny, **paths)
        framed.reset_mock()
        caplog.clear()
        make(tiny, **paths)
        assert framed.call_count == left, name
        assert "resumed an unfinished run: " in caplog.text
        assert take(tiny) == expected, name


def test_readers_refuse_files_that_a_killed_run_left_between_old_and_new(tiny, monkeypatch):
    paths = [f"{tiny}/out-0.tfrecord", f"{tiny}/out-1.tfrecord"]
    changes = {"output_file": ",".join(paths)}
    for is_made_anew in (True, False):
        if is_made_anew:  # over records of another seed
            make(tiny, random_seed=1, **changes)
        for owner, name, number in (
            (pipeline, "_join", 0), (pipeline, "_join", 1),
            (manifests, "manifest_path", 5),  # after the first manifest
        ):
            make_and_die(monkeypatch, owner, name, number, tiny, **changes)
            there = [path for path in paths if os.path.exists(path)]
            if there:
                with pytest.raises(DataError, match="is unfinished: the command that writes it"):
                    RecordFiles(there).counts
        make(tiny, **changes)
        assert RecordFiles(paths).count > 0
        take(tiny)


def test_only_the_blocks_of_a_corrected_line_are_made_again(tiny, monkeypatch):
    monkeypatch.setattr(job, "_BLOCK", (400, 400))
    # A short text would be refused at once, from the sample of its letters.
    monkeypatch.setattr(cleaning.LostMarks, "add", lambda self, text: False)
    good = (tiny / "corpus.txt").read_bytes()
    (tiny / "corpus.txt").write_bytes(good + b"\n" + b"\xff\xfe\xfd\n" * 40)
    paired = counted(monkeypatch, *PAIRING)
    with pytest.raises(DataError, match="not UTF-8"):
        make(tiny)
    made = paired.call_count
    (tiny / "corpus.txt").write_bytes(good)
    paired.reset_mock()
    make(tiny)
    assert made > 20 and paired.call_count <= 4  # two blocks at the end, in two tasks each
    resumed = take(tiny)
    make(tiny)
    assert take(tiny) == resumed


@pytest.mark.parametrize("change", ["flag", "text", "vocabulary", "damage", "layout"])
def test_the_work_of_another_job_or_a_damaged_one_is_not_resumed(change, tiny, monkeypatch):
    monkeypatch.setattr(job, "_BLOCK", (1500, 1500))
    with monkeypatch.context() as patch:
        if change == "layout":
            patch.setattr(pipeline, "_LAYOUT", 1)
        make_and_die(patch, pipeline, "_join", 0, tiny)
    blocks, changes = tasks_done(tiny), {}
    if change == "flag":
        changes = {"random_seed": 7}
    elif change == "text":
        text = (tiny / "corpus.txt").read_text()
        (tiny / "corpus.txt").write_text(re.sub(r"\d", lambda digit: str(9 - int(digit[0])), text))
    elif change == "vocabulary":  # of the same path
        *special, one, two = (tiny / "vocab.txt").read_text().split()
        (tiny / "vocab.txt").write_text("\n".join([*special, two, one]) + "\n")
    elif change == "damage":
        for path in (tiny / WORK).glob("*.part"):
            path.write_bytes(path.read_bytes()[:-1])
    framed = counted(monkeypatch, *FRAMING)
    make(tiny, **changes)
    assert framed.call_count == blocks > 3
    remade = take(tiny)
    assert list(remade) == ["out.tfrecord", "out.tfrecord.manifest.json"]
    make(tiny, **changes)
    assert take(tiny) == remade
