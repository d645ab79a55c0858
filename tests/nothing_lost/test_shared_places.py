"""Temporaries, and directories that are the user's as well as ours."""

import contextlib
import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
from helpers import REPO, assert_one_clear_line
from invariants import assert_tidy, nothing_lost, snapshot

import albert
from albert import (
    create_pretraining_data,
    evaluate_squad,
    extract_features,
    predict,
    prepare_text,
    run_race,
    run_squad_v1,
    train_sentencepiece,
)
from albert.config import AlbertConfig
from albert.errors import DataError, RunDirBusyError, UserError
from albert.formats import model_card
from albert.records import records
from albert.storage import files, locks, temporary
from albert.tokenization import FullTokenizer
import jobs

CONFIG = AlbertConfig(100, 8, 16, 2, num_attention_heads=2, intermediate_size=8)
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
    process = subprocess.Popen(
        [*before, sys.executable, "-c", HOLDER, str(path)], text=True,
        env=os.environ | {"PYTHONPATH": str(REPO)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def has_namespaces() -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True,
                              check=False).returncode == 0
    return False


# --- Temporary directories ---


def test_the_next_job_removes_the_temporary_directory_of_a_killed_one_and_of_no_other(tmp_path):
    write = [lambda name=name: files.write_json(str(tmp_path / name), {}) for name in "xy"]
    with holding(tmp_path / "x") as (process, directory):
        write[0]()
        assert os.path.isdir(directory)  # its process lives
        process.send_signal(signal.SIGKILL)
        process.wait()
        write[1]()
        assert os.path.isdir(directory)  # that is another job
        write[0]()
        assert sorted(os.listdir(tmp_path)) == ["x", "y"]


@pytest.mark.skipif(not has_namespaces(), reason="needs the right to create a PID namespace")
def test_a_temporary_directory_of_another_container_is_left_alone(tmp_path):
    with holding(tmp_path / "x", "unshare", "--pid", "--fork", "--kill-child") as (_, directory):
        files.write_json(str(tmp_path / "x"), {})
        assert os.path.isdir(directory)


def test_files_are_published_where_there_are_no_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(temporary.fcntl, "flock", refuse)
    with temporary.temporary_dir(str(tmp_path / "x")) as other:
        files.write_json(str(tmp_path / "x"), {})
        assert os.path.isdir(other)  # whose process may live
    assert os.listdir(tmp_path) == ["x"]


def test_a_work_folder_stays_until_its_job_succeeds(tmp_path):
    path = str(tmp_path / "x")
    with pytest.raises(KeyboardInterrupt), locks.work_folder(path, "one") as folder:
        pathlib.Path(folder, "done").touch()
        raise KeyboardInterrupt
    with pytest.raises(RunDirBusyError), locks.work_folder(path, "one") as folder:
        assert os.path.exists(os.path.join(folder, "done"))
        with locks.work_folder(path, "two"):
            pass
    with pytest.raises(ValueError), locks.work_folder(path, "two") as folder:
        assert not os.path.exists(os.path.join(folder, "done"))  # of another job
        raise ValueError
    assert not os.listdir(tmp_path)  # nothing was done, so nothing is kept
    with locks.work_folder(path, "one") as folder:
        pathlib.Path(folder, "done").touch()
    assert not os.listdir(tmp_path)


def test_a_job_removes_no_work_but_its_own(tmp_path):
    with contextlib.suppress(KeyboardInterrupt), locks.work_folder(str(tmp_path / "x.1"), "a") as own:
        pathlib.Path(own, "done").touch()
        raise KeyboardInterrupt
    (tmp_path / "x").write_text("of the user")
    (tmp_path / ".x.1.tmp-notes").mkdir()
    before = snapshot(tmp_path)
    with locks.work_folder(str(tmp_path / "x.2"), "b"):
        files.write_json(str(tmp_path / "x.2"), {})
    (tmp_path / "x.2").unlink()
    assert snapshot(tmp_path) == before and (tmp_path / ".x.1.tmp-notes").exists()


def test_a_held_directory_is_refused_with_its_holder_and_free_after_a_kill(tmp_path):
    code = "import sys; from albert.storage import locks\nwith locks.hold(sys.argv[1]):" \
           " print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], cwd=REPO,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        process.stdout.readline()
        with pytest.raises(RunDirBusyError, match=f"is in use by pid {process.pid} on host"):
            with locks.hold(str(tmp_path / "run")):
                pass
        process.kill()
        process.wait()
        with locks.hold(str(tmp_path / "run")):
            assert f"pid {os.getpid()}" in (tmp_path / "run/.lock").read_text()


def test_threads_that_write_the_same_file_leave_one_whole_file(tmp_path):
    path, texts = str(tmp_path / "x"), [str(n) * 5000 for n in range(8)]

    def write(text):
        for _ in range(20):
            with files.atomic_write(path) as stream:
                stream.write(text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert open(path).read() in texts and os.listdir(tmp_path) == ["x"]


# --- Directories ---


def write_lines(folder) -> str:
    path = folder / "lines.txt"
    path.write_text("w1 w2\nw3\n")
    return str(path)


def publish(path, last="index", **content):
    with files.publish_dir(str(path), last) as scratch:
        os.mkdir(os.path.join(scratch, "deep"))
        for name in (last, "deep/a"):
            with open(os.path.join(scratch, name), "w") as stream:
                stream.write(content.get("text", "new"))


def use(folder):
    """Puts files of the user's into a directory; returns their snapshot."""
    (folder / "deep/er").mkdir(parents=True, exist_ok=True)
    (folder / "empty").mkdir()
    for name in ("notes", ".hidden", "deep/notes", "deep/er/notes"):
        (folder / name).write_text("mine")
    (folder / "deep/link").symlink_to(folder / "notes")
    return snapshot(folder)


@pytest.mark.parametrize("times", [1, 2])
def test_what_else_is_in_a_directory_stays(times, tmp_path):
    folder = tmp_path / "used"
    theirs = use(folder)
    for number in range(times):
        publish(folder, text=str(number))
    after = snapshot(folder)
    assert theirs.items() <= after.items()
    assert {os.path.relpath(path, folder) for path in set(after) - set(theirs)} == {
        "index", "deep/a"
    }
    assert (folder / "index").read_text() == str(times - 1) == (folder / "deep/a").read_text()
    assert (folder / "empty").is_dir() and (folder / "deep/link").is_symlink()
    assert os.listdir(tmp_path) == ["used"]


def test_an_empty_directory_of_the_user_is_filled_and_not_replaced(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o2750)
    before = folder.stat()
    publish(folder)
    assert (folder.stat().st_ino, folder.stat().st_mode) == (before.st_ino, before.st_mode)


def test_a_link_to_a_directory_is_followed_and_stays(tmp_path):
    use(tmp_path / "used")
    (tmp_path / "link").symlink_to("used")
    publish(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "used/index").exists()
    assert (tmp_path / "used/notes").exists()


@pytest.mark.parametrize("how", ["file", "directory", "link"])
def test_what_is_in_the_way_is_named_and_nothing_is_changed(how, tmp_path):
    folder = tmp_path / "used"
    folder.mkdir()
    (folder / "index").write_text("old")
    (tmp_path / "away").mkdir()
    if how == "file":
        (folder / "deep").write_text("mine")
    elif how == "link":
        (folder / "deep").symlink_to(tmp_path / "away")
    else:
        (folder / "deep/a/b").mkdir(parents=True)
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=r"cannot write .*used: .*deep.* is in the way"):
        publish(folder)
    assert snapshot(tmp_path) == before


def test_a_failure_while_a_directory_is_made_changes_nothing(tmp_path):
    before = use(tmp_path / "used")
    with pytest.raises(ZeroDivisionError), files.publish_dir(str(tmp_path / "used"), "x") as place:
        open(os.path.join(place, "x"), "w").close()
        raise ZeroDivisionError
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("is_card", [True, False])
def test_a_model_card_replaces_a_model_card_alone(is_card, tmp_path, caplog):
    readme, folder = tmp_path / "used/README.md", str(tmp_path / "used")
    os.mkdir(folder)
    if is_card:
        model_card.write(folder, config=CONFIG, title="old", summary="")
    else:
        readme.write_text("# My project\n")
    before = readme.read_text()
    with model_card.publish_model(folder, "index") as scratch:
        open(os.path.join(scratch, "index"), "w").close()
        model_card.write(scratch, config=CONFIG, title="new", summary="")
    assert (readme.read_text() == before) == (not is_card)
    model_card.write(folder, config=CONFIG, title="newer", summary="")
    assert ("# newer\n" in readme.read_text()) == is_card
    assert (readme.read_text() == before) == (not is_card)


def test_a_saved_model_and_its_tokenizer_join_what_is_in_their_directory(tmp_path):
    folder = tmp_path / "used"
    theirs = use(folder)
    tokenizer = albert.AlbertTokenizer(FullTokenizer(jobs.write_vocabulary(tmp_path), True), 16)
    for _ in range(2):
        tokenizer.save_pretrained(str(folder))
        albert.AlbertModel(CONFIG).save_pretrained(str(folder))
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
    assert jobs.classify(*run.flags, "--do_eval") == 0
    assert_tidy(run.out)
    assert jobs.command(
        predict, f"--model={run.out}", f"--input_file={write_lines(tmp_path)}",
        f"--output_file={tmp_path / 'answers.tsv'}",
    ) == 0


# --- Files that a flag names ---

WRITERS = {
    "data creation": lambda folder, path: (create_pretraining_data, jobs.data_flags(
        folder, output_file=f"{folder / 'new.tfrecord'},{path}"
    )),
    "held-out data": lambda folder, path: (create_pretraining_data, jobs.data_flags(
        folder, eval_output_file=path, held_out_fraction=0.5
    )),
    "race": lambda folder, path: (run_race, jobs.race_flags(folder, predict_file=path)),
    "squad records": lambda folder, path: (run_squad_v1, jobs.squad_flags(
        folder, do_train=False, predict_feature_file=path
    )),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_is_not_ours_is_never_overwritten_with_records(name, tmp_path, capsys):
    path = tmp_path / "passage.txt"
    path.write_text("A passage of the user's.\n")
    module, arguments = WRITERS[name](tmp_path, path)
    with nothing_lost(tmp_path):
        assert jobs.command(module, *arguments) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert str(path) in line and "remove it, or choose another name" in line


def test_records_of_ours_are_replaced_also_after_a_kill(tmp_path):
    """A process that died between two names leaves the temporary of a manifest."""
    path, spec = str(tmp_path / "x.tfrecord"), records.FeatureSpec({"x": ("int64", 1)})
    for value in range(2):
        records.write_records(path, [{"x": [value]}], spec, {})
        records.refuse_foreign(path)
    with temporary.temporary_dir(records.manifest_path(path)):
        records.remove_manifest(path)
        records.refuse_foreign(path)
    with pytest.raises(DataError, match="is not overwritten: it has no x.tfrecord.manifest.json"):
        records.refuse_foreign(path)


def test_many_outputs_are_published_with_few_open_files(tmp_path):
    names = [str(tmp_path / f"{number}.tfrecord") for number in range(60)]
    code = "import resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, (int(sys.argv.pop(1)),) * 2);" \
           "from albert.create_pretraining_data import cli; cli()"
    arguments = jobs.data_flags(tmp_path, output_file=",".join(names), dupe_factor=8)
    done = subprocess.run([sys.executable, "-c", code, "40", *arguments], cwd=REPO,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(os.path.exists(name) for name in names)


def write_answers(path) -> str:
    path.write_text(json.dumps({f"q{i}": f"w{i + 9}" for i in range(8)}))
    return str(path)


OVERWRITERS = {
    "vectors": lambda folder, path: (extract_features, [
        f"--model={folder}", f"--input_file={path}", f"--output_file={path}"
    ]),
    "predictions": lambda folder, path: (predict, [
        f"--model={folder}", f"--input_file={path}", f"--output_file={folder}/./{path.name}"
    ]),
    "scores": lambda folder, path: (evaluate_squad, [
        f"--dataset_file={jobs.write_squad(folder)}", f"--predictions_file={write_answers(path)}",
        f"--output_file={path}",
    ]),
    "corpus": lambda folder, path: (prepare_text, [
        f"--input_file={path}", f"--output_dir={folder}"
    ]),
    "vocabulary": lambda folder, path: (train_sentencepiece, [
        f"--input={path}", f"--model_prefix={path.with_suffix('')}"
    ]),
}


@pytest.mark.parametrize("name", OVERWRITERS)
def test_an_input_is_never_overwritten_with_results(name, tmp_path, capsys):
    ending = {"vocabulary": "vocab", "vectors": "jsonl"}.get(name, "txt")
    path = tmp_path / f"corpus.{ending}"
    path.write_text("w1 w2.\n")
    module, arguments = OVERWRITERS[name](tmp_path, path)
    with nothing_lost(tmp_path):
        assert jobs.command(module, *arguments) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert f"corpus.{ending} is an input: it is not overwritten" in line
