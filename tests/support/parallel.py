"""Runs test modules in several forks of one process that has imported everything.

A fork begins with TensorFlow loaded and nothing computed. It runs module after module until it is
large, and then ends, which frees its memory. `--jobs=N` sets the number of concurrent forks; 1 runs
pytest as usual.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from multiprocessing import connection

import pytest

MAX_BYTES = 1_200_000_000  # a larger process gets no further module
# The longest first, so that none of them is left for the end.
LONGEST = (
    "test_jax_engine", "test_distribution", "test_encoder_forms", "test_model_hub", "test_distributed_fit",
    "test_fine_tuning", "test_run_pretraining", "test_keras_contract", "test_predict",
    "test_export_to_tfhub", "test_session", "test_numbers", "test_run_squad",
    "test_preemption", "test_wiring", "test_classifier_report", "test_pretrain_from_text",
    "test_fine_tuners", "test_score", "test_own_file", "test_refusals",
)


def pytest_addoption(parser):
    parser.addoption("--jobs", default=1, type=int, help="test modules at a time")


def pytest_configure(config):
    if config.option.jobs > 1:
        # Threads of BLAS and of pyarrow could not be forked.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    option = session.config.option
    if option.jobs < 2 or option.collectonly or option.usepdb or session.testsfailed:
        return None
    modules: dict[str, list] = {}
    for item in session.items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    if len(modules) < 2:
        return None
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise pytest.UsageError(f"{threads} threads, which a fork would lose: --jobs=1")
    session.config._tmp_path_factory.getbasetemp()  # one for all
    _Forks(session, sorted(modules.values(), key=_rank)).run()
    return True


def _rank(items) -> int:
    name = items[0].path.stem
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


class _Forks:
    def __init__(self, session, waiting):
        self.session, self.waiting = session, waiting
        self.running: dict[connection.Connection, _Fork] = {}

    def run(self) -> None:
        session = self.session
        before = signal.signal(signal.SIGTERM, _ended)
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < session.config.option.jobs:
                    fork = _Fork(session, self.waiting.pop(0))
                    self.running[fork.pipe] = fork
                for pipe in connection.wait(list(self.running)):
                    self._read(self.running[pipe])
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            signal.signal(signal.SIGTERM, before)
            for fork in self.running.values():
                os.killpg(fork.pid, signal.SIGKILL)  # with the processes of its tests
                os.waitpid(fork.pid, 0)

    def _read(self, fork: "_Fork") -> None:
        hook, config = self.session.config.hook, self.session.config
        try:
            data = fork.pipe.recv()
        except EOFError:
            del self.running[fork.pipe]
            fork.pipe.close()
            _, status = os.waitpid(fork.pid, 0)
            if fork.items:  # the first of them killed it
                hook.pytest_runtest_logreport(report=_death_of(fork.items.pop(0), status))
            if fork.items:
                self.waiting.insert(0, fork.items)
            return
        if data is None:
            fork.items.pop(0)
            if not fork.items:
                fork.go_on(self.waiting)
            return
        report = hook.pytest_report_from_serializable(config=config, data=data)
        hook.pytest_runtest_logreport(report=report)


def _ended(number, frame):
    pytest.exit("ended by SIGTERM", 128 + number)


class _Fork:
    """A process that runs one module's tests at a time, and the tests it has left."""

    def __init__(self, session, items):
        self.items, self._numbers = list(items), {item: n for n, item in enumerate(session.items)}
        self.pipe, theirs = multiprocessing.Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        os.setpgid(self.pid, 0)  # in both, as either may be the first
        if not self.pid:
            code = 1
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                self.pipe.close()
                _run(session, items, theirs)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        theirs.close()

    def go_on(self, waiting: list[list]) -> None:
        """Gives the process the next module, or ends it if it is large or no module is left."""
        with open(f"/proc/{self.pid}/statm") as stream:
            size = int(stream.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        if waiting and size < MAX_BYTES:
            self.items = waiting.pop(0)
            self.pipe.send([self._numbers[item] for item in self.items])
        else:
            self.pipe.send([])


class _Teller:
    """Sends reports to the process that prints them."""

    def __init__(self, config, pipe):
        self.config, self.pipe = config, pipe

    def pytest_runtest_logreport(self, report):
        hook = self.config.hook
        self.pipe.send(hook.pytest_report_to_serializable(config=self.config, report=report))


def _run(session, items, pipe) -> None:
    config = session.config
    plugins = config.pluginmanager
    capture = plugins.getplugin("capturemanager")
    # The forks share its files.
    capture.suspend_global_capture(in_=True)
    capture.stop_global_capturing()
    plugins.unregister(plugins.getplugin("terminalreporter"))
    plugins.register(_Teller(config, pipe))
    if sys.platform == "linux" and "tensorflow" in sys.modules:
        import forked

        forked.fork_server(close_in_it=pipe.close)
    capture.start_global_capturing()
    while items:
        # After the last one, the module's fixtures are torn down, and the session's stay.
        other = next((item for item in session.items if item.path != items[0].path), None)
        for item, following in zip(items, [*items[1:], other], strict=True):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            pipe.send(None)  # the item is done
        items = [session.items[number] for number in pipe.recv()]
        session._setupstate.teardown_exact(items[0] if items else None)


def _death_of(item, status: int) -> pytest.TestReport:
    code = os.waitstatus_to_exitcode(status)
    return pytest.TestReport(
        item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "failed",
        f"the process ended with {code} while it ran this test", "call",
    )
