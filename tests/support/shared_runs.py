"""Runs of the commands that many tests start from, made once for all processes of the suite."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import filelock
import jobs
import making_records
import pytest


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[pathlib.Path], Any]], tuple]:
    """Function from a name and make(folder) to the folder and, through JSON, make's result.

    The first caller makes it, in whichever fork; nobody may change the contents of the folder.
    """
    base = tmp_path_factory.getbasetemp()

    def get(name: str, make: Callable[[pathlib.Path], Any]) -> tuple:
        folder, done = base / f"once-{name}", base / f"once-{name}.json"
        with filelock.FileLock(f"{folder}.lock"):
            if not done.exists():
                folder.mkdir()
                done.write_text(json.dumps(make(folder)))
        return folder, json.loads(done.read_text())

    return get


@pytest.fixture(scope="session")
def run_once(made_once) -> Callable[..., jobs.Run]:
    """Function from a name, a command and flags(folder) to the finished run."""

    def get(name: str, command: Callable[..., int], flags_of: Callable, *more: str) -> jobs.Run:
        def make(folder: pathlib.Path) -> list[str]:
            flags = flags_of(folder)
            assert command(*flags, *more) == 0
            return flags

        folder, flags = made_once(name, make)
        return jobs.Run(folder / "out", flags)

    return get


@pytest.fixture
def job(tmp_path):
    """Flags of a tiny pretraining run into tmp_path/out."""
    return jobs.pretraining_flags(tmp_path)


@pytest.fixture
def tiny(tmp_path) -> pathlib.Path:
    """A folder with vocab.txt and corpus.txt, see `making_records.write_tiny`."""
    return making_records.write_tiny(tmp_path)


@pytest.fixture(scope="session")
def whole(run_once) -> jobs.Run:
    """A finished pretraining run of 23 steps; saved and evaluated at 10, 20 and 23."""

    def flags_of(folder):
        return jobs.pretraining_flags(folder, keep_checkpoint_max=0)

    return run_once("pretraining", jobs.pretrain, flags_of, "--do_eval")


@pytest.fixture
def finished(whole, tmp_path) -> jobs.Run:
    """A copy of that run."""
    return whole.copy(tmp_path / "out")


@pytest.fixture
def begun(whole, tmp_path) -> jobs.Run:
    """A copy of that run when it had just saved step 10, and not yet evaluated it."""
    return whole.copy(tmp_path / "out", step=10)


@pytest.fixture(scope="session")
def classified(run_once) -> jobs.Run:
    """A classifier trained to its last step, 6, and evaluated."""
    return run_once(
        "classifier", jobs.classify, jobs.classifier_flags, "--do_train", "--do_eval",
    )


@pytest.fixture(scope="session")
def tuned(run_once) -> Callable[[str], jobs.Run]:
    """Function from a name in jobs.TUNERS to a finished run of that fine-tuning command."""

    def get(name: str) -> jobs.Run:
        tuner = jobs.TUNERS[name]
        return run_once(f"tuned-{name}", tuner.run, lambda f: [
            *tuner.flags(f), *tuner.asked])

    return get


@pytest.fixture(scope="session")
def hub_module(made_once) -> tuple[pathlib.Path, pathlib.Path]:
    """A pretrained directory and its cased TF-Hub module."""
    import hub_source

    folder, _ = made_once("module", hub_source.write_module)
    return folder / "albert", folder / "module"


class Begins(BaseException):
    """Raised when training begins."""


@pytest.fixture
def begin(monkeypatch) -> Callable:
    """Function that runs a command up to its training, which would take seconds.

    Training must begin. Returns the arguments and the options of `loop.train`.
    """
    from albert.training import loop

    def train(*arguments, **options):
        raise Begins(arguments, options)

    def run(command: Callable[..., int], *flags: str):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "train", train)
            with pytest.raises(Begins) as begins:
                command(*flags)
        return begins.value.args

    return run


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """An empty in-memory file system (memory://), and an empty cache."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'albert-keras[test]'")
    monkeypatch.setenv("ALBERT_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
