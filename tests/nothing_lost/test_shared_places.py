"""Temporary files, and directories shared with the user's files."""

import concurrent.futures
import contextlib
import errno
import os
import pathlib
import shutil
import subprocess
import sys

import jobs
import pytest
import stores
from helpers import REPO, assert_one_clear_line
from invariants import assert_tidy, nothing_lost, snapshot
from record_files_made import write_records

import albert
from albert import (
    create_pretraining_data, extract_features, predict, train_sentencepiece,
)
from albert.errors import DataError, RunDirBusyError, UserError
from albert.formats import model_card
from albert.formats.metadata import Metadata
from albert.records import manifests
from albert.records.record_files import RecordFiles
from albert.storage import files, locks, temporary
from albert.tokenization import FullTokenizer

HOLDER = """
import sys
from albert.storage import temporary
with temporary.temporary_dir(sys.argv[1]) as directory:
    print(directory, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holding(path, *before):
    """A process with a temporary directory for `path`; yields the process and the directory."""
    with subprocess.Popen(
        [*before, sys.executable, "-c", HOLDER, str(path)], text=True, cwd=REPO,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


# --- Temporary directories ---


def test_the_next_job_removes_the_temporary_directory_of_a_killed_one_and_of_no_other(tmp_path):
    write = [lambda name=name: files.write_json(str(tmp_path / name), {}) for name in "xy"]
    with holding(tmp_path / "x") as (process, directory):
        write[0]()
        assert os.path.isdir(directory)  # its process is alive
        process.kill()
        process.wait()
        write[1]()
        assert os.path.isdir(directory)  # that is another job
        write[0]()
        assert sorted(os.listdir(tmp_path)) == ["x", "y"]


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare")
def test_a_temporary_directory_of_another_container_is_left_alone(tmp_path):
    with holding(tmp_path / "x", "unshare", "--pid", "--fork", "--kill-child") as (_, directory):
        if not directory:
            pytest.skip("needs the right to create a PID namespace")
        files.write_json(str(tmp_path / "x"), {})
        assert os.path.isdir(directory)


def test_files_are_published_where_there_are_no_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(temporary.fcntl, "flock", refuse)
    with temporary.temporary_dir(str(tmp_path / "x")) as other:
        files.write_json(str(tmp_path / "x"), {})
        assert os.path.isdir(other)  # whose process may be alive
    assert os.listdir(tmp_path) == ["x"]


def begin_work(path, identity, error=KeyboardInterrupt) -> bool:
    """Does a job that gets stopped; returns whether it found earlier work."""
    with contextlib.suppress(error), locks.work_folder([str(path)], identity) as folder:
        done = pathlib.Path(folder, "done")
        found = done.exists()
        done.touch()
        raise error
    return found


def test_a_work_folder_stays_until_its_job_succeeds(tmp_path):
    path = tmp_path / "x"
    assert not begin_work(path, "one") and begin_work(path, "one")
    assert not begin_work(path, "two")  # of another job
    with locks.work_folder([str(path)], "two"):
        with pytest.raises(RunDirBusyError), locks.work_folder([str(path)], "two"):
            pass
    assert not os.listdir(tmp_path)
    with contextlib.suppress(ValueError), locks.work_folder([str(path)], "two"):
        raise ValueError
    assert not os.listdir(tmp_path)  # no work was done, so none is kept


def test_a_job_removes_no_work_but_its_own(tmp_path):
    begin_work(tmp_path / "x.1", "a")
    (tmp_path / "x").write_text("of the user")
    (tmp_path / ".x.1.tmp-notes").mkdir()
    before = snapshot(tmp_path)
    with locks.work_folder([str(tmp_path / "x.2")], "b"):
        files.write_json(str(tmp_path / "x.2"), {})
    (tmp_path / "x.2").unlink()
    assert snapshot(tmp_path) == before and (tmp_path / ".x.1.tmp-notes").exists()


def test_threads_that_write_the_same_file_leave_one_whole_file(tmp_path):
    path, texts = str(tmp_path / "x"), [str(n) * 5000 for n in range(8)]

    def write(text):
        for _ in range(20):
            with files.atomic_write(path) as stream:
                stream.write(text)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(write, texts))
    assert open(path).read() in texts and os.listdir(tmp_path) == ["x"]


# --- Directories ---


def publish(path, text="new"):
    with files.publish_dir(str(path), "index") as scratch:
        pathlib.Path(scratch, "deep").mkdir()
        for name in ("index", "deep/a"):
            pathlib.Path(scratch, name).write_text(text)


def use(folder):
    """Adds user files to a directory; returns their snapshot."""
    (folder / "deep/er").mkdir(parents=True, exist_ok=True)
    (folder / "empty").mkdir()
    for name in ("notes", ".hidden", "deep/notes", "deep/er/notes"):
        (folder / name).write_text("mine")
    (folder / "deep/link").symlink_to(folder / "notes")
    return snapshot(folder)


def test_what_else_is_in_a_directory_stays(tmp_path):
    folder = tmp_path / "used"
    theirs = use(folder)
    for number in range(2):
        publish(folder, text=str(number))
        after = snapshot(folder)
        assert theirs.items() <= after.items()
        assert {os.path.relpath(path, folder) for path in set(after) - set(theirs)} == {
            "index", "deep/a"
        }
        assert (folder / "index").read_text() == str(number) == (folder / "deep/a").read_text()
    assert (folder / "empty").is_dir() and (folder / "deep/link").is_symlink()
    assert os.listdir(tmp_path) == ["used"]


def test_an_empty_directory_or_a_link_to_one_is_filled_and_not_replaced(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o2750)
    before = folder.stat()
    (tmp_path / "link").symlink_to("shared")
    publish(tmp_path / "link")
    assert (folder / "index").exists() and (tmp_path / "link").is_symlink()
    assert (folder.stat().st_ino, folder.stat().st_mode) == (before.st_ino, before.st_mode)


def test_what_is_in_the_way_is_named_and_a_failure_changes_nothing(tmp_path):
    (tmp_path / "away").mkdir()
    for how, obstruct in {
        "file": lambda path: path.write_text("mine"),
        "link": lambda path: path.symlink_to(tmp_path / "away"),
        "directory": lambda path: (path / "a/b").mkdir(parents=True),
    }.items():
        (folder := tmp_path / how / "used").mkdir(parents=True)
        (folder / "index").write_text("old")
        obstruct(folder / "deep")
        before = snapshot(tmp_path)
        with pytest.raises(UserError, match=r"cannot write .*used: .*deep.* is in the way"):
            publish(folder)
        assert snapshot(tmp_path) == before
    with pytest.raises(ZeroDivisionError), files.publish_dir(str(folder), "index") as scratch:
        pathlib.Path(scratch, "index").touch()
        raise ZeroDivisionError
    assert snapshot(tmp_path) == before


def test_a_model_card_replaces_nothing_but_a_model_card(tmp_path):
    def write(folder, title):
        model_card.write(str(folder), stores.CONFIG, Metadata(), name=title, parameters=1)

    for is_card in (True, False):
        (folder := tmp_path / str(is_card)).mkdir()
        readme = folder / "README.md"
        write(folder, "old") if is_card else readme.write_text("# My project\n")
        before = readme.read_text()
        with model_card.publish_model(str(folder), "index") as scratch:
            pathlib.Path(scratch, "index").touch()
            write(scratch, "new")
        assert (readme.read_text() == before) == (not is_card)
        write(folder, "newer")
        assert (readme.read_text() == before) == (not is_card)
        assert ("# newer\n" in readme.read_text()) == is_card


def test_a_saved_model_and_its_tokenizer_join_what_is_in_their_directory(tmp_path):
    folder = tmp_path / "used"
    theirs = use(folder)
    tokenizer = albert.AlbertTokenizer(FullTokenizer(jobs.write_vocabulary(tmp_path), True), 16)
    for _ in range(2):
        tokenizer.save_pretrained(str(folder))
        albert.AlbertModel(stores.CONFIG).save_pretrained(str(folder))
        assert theirs.items() <= snapshot(folder).items()
        again = albert.AlbertTokenizer.from_pretrained(str(folder))
        assert again.tokenize("w1 w2") == ["w1", "w2"]
        albert.AlbertModel.from_pretrained(str(folder))


def test_an_export_into_a_runs_directory_leaves_the_run_as_it_was(classified, tmp_path):
    run = classified.copy(tmp_path / "out")
    theirs = use(run.out)
    checkpoints = [path for path in snapshot(run.out) if "model.ckpt" in path]
    before = snapshot(run.out)
    assert jobs.classify(*run.flags, f"--export_dir={run.out}") == 0
    after = snapshot(run.out)
    assert theirs.keys() <= after.keys() and checkpoints
    changed = {path for path in before if before[path] != after.get(path)}
    assert changed <= {str(run.out / name) for name in ("README.md", ".lock")}
    assert (run.out / "saved_model.pb").exists() and (run.out / "variables").is_dir()
    assert_tidy(run.out)
    (tmp_path / "lines.txt").write_text("w1 w2\nw3\n")
    assert jobs.command(
        predict, f"--model={run.out}", f"--input_file={tmp_path}/lines.txt",
        f"--output_file={tmp_path / 'answers.jsonl'}",
    ) == 0


# --- Files that a flag names ---


def test_a_file_of_the_users_is_never_overwritten_with_records_or_results(tmp_path, capsys):
    for ending in ("txt", "jsonl", "vocab"):
        (tmp_path / f"user.{ending}").write_text("w1 w2.\n")
    user, model = f"{tmp_path}/user", f"--model={tmp_path}"
    foreign, is_input = "remove it, or choose another name", "is an input and would be overwritten"
    for module, message, flags in (
        (create_pretraining_data, foreign,
         jobs.data_flags(tmp_path, output_file=f"{tmp_path / 'new.tfrecord'},{user}.txt")),
        (create_pretraining_data, foreign,
         jobs.data_flags(tmp_path, eval_output_file=f"{user}.txt", held_out_fraction=0.5)),
        (extract_features, is_input, [model, f"--input_file={user}.jsonl", f"--output_file={user}.jsonl"]),
        (predict, is_input, [model, f"--input_file={user}.txt", f"--output_file={tmp_path}/./user.txt"]),
        (train_sentencepiece, is_input, [f"--input={user}.vocab", f"--model_prefix={user}"]),
    ):
        with nothing_lost(tmp_path):
            assert jobs.command(module, *flags) == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert f"{tmp_path}/" in line and "user" in line and message in line, line


def test_records_of_ours_are_replaced_also_after_a_kill(tmp_path):
    """A process that died between two renames leaves a file that its manifest calls unfinished."""
    path, spec = str(tmp_path / "x.tfrecord"), manifests.FeatureSpec({"x": ("int64", 1)})
    for value in range(2):
        write_records(path, [{"x": [value]}], spec, {})
        manifests.refuse_foreign(path)
    assert manifests.is_complete(path)
    manifests.mark_unfinished(path)
    assert not manifests.is_complete(path) and not manifests.is_complete(f"{path}.absent")
    manifests.refuse_foreign(path)
    with pytest.raises(DataError, match="x.tfrecord is unfinished: the command that writes it was"):
        RecordFiles([path]).check(spec)
    os.unlink(manifests.manifest_path(path))
    with pytest.raises(DataError, match="is not overwritten: it has no x.tfrecord.manifest.json"):
        manifests.refuse_foreign(path)


def test_two_jobs_never_make_the_same_file_at_once(tmp_path):
    one, two, shared = (str(tmp_path / name) for name in ("one", "two", "shared"))
    for paths, others in (([one, shared], [two, shared]), ([one, shared], [shared]),
                          ([shared], [two, shared]), ([shared, one], [two, shared])):
        with locks.work_folder(paths, "first"):
            with pytest.raises(RunDirBusyError, match="in use by pid"), locks.work_folder(others, "x"):
                pass
            with locks.work_folder([two], "another output"):
                pass
        assert not os.listdir(tmp_path)


def test_a_job_takes_over_a_file_that_a_dead_job_began_and_leaves_its_other_work(tmp_path):
    one, two, shared = (str(tmp_path / name) for name in ("one", "two", "shared"))
    for others in ([two, shared], [shared]):
        with contextlib.suppress(KeyboardInterrupt), locks.work_folder([one, shared], "1") as folder:
            pathlib.Path(folder, "done").touch()
            raise KeyboardInterrupt
        with locks.work_folder(others, "2") as folder:
            assert not os.path.exists(f"{folder}/done") and os.path.exists(f"{tmp_path}/.one.work/done")
        assert os.listdir(tmp_path) == [".one.work"]
        with locks.work_folder([one, shared], "1") as folder:
            assert os.path.exists(f"{folder}/done")


def test_many_outputs_are_published_with_few_open_files(tmp_path):
    names = [str(tmp_path / f"{number}.tfrecord") for number in range(60)]
    code = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (40, 40));" \
           "from albert.create_pretraining_data import cli; cli()"
    jobs.python(code, *jobs.data_flags(tmp_path, output_file=",".join(names), dupe_factor=8))
    assert all(map(os.path.exists, names))
