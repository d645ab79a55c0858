"""Command processes that need not import TensorFlow, which takes longer than a tiny command.

A server has imported it and computed nothing. It forks a process per command, which the caller
adopts: a normal child, with its own pid, signals, exit code and CPU time.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import json
import logging
import os
import pathlib
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import NoReturn

REPO = pathlib.Path(__file__).resolve().parents[2]
# Modules that the commands import when called.
MODULES = (
    "tensorflow", "keras", "numpy", "albert.modeling", "albert.optimization",
    "albert.training.loop", "albert.training.tf_engine",
)
# Variables read when Python or a library starts. Changing them requires a real start.
READ_AT_START = ("PYTHON", "TF_", "KERAS_", "JAX_", "XLA_", "OMP_", "CUDA_", "LC_", "LANG", "PATH")
READ_LATER = {"PYTHONPATH"}
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, SIGKILL = 1, 36, 9


class Process(subprocess.Popen):
    """`python -m module arguments`, as a fork of the server."""

    def __init__(self, module: str, *arguments: str, **options):
        super().__init__([sys.executable, "-m", module, *arguments], **options)

    def _execute_child(self, args, *options):
        cwd, env, pipes = options[4], options[5], options[9:15]
        theirs = pipes[0], pipes[3], pipes[5]
        streams = [number if given < 0 else given for number, given in enumerate(theirs)]
        job = {"args": args[2:], "cwd": str(cwd or os.getcwd()), "env": dict(env or os.environ)}
        try:
            self.pid = _server().start(job, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)


# Flags that make a command use another backend than the server's.
OTHER_ENGINE = {"--engine=jax", "--use_tpu"}


def can_serve(environment: dict[str, str], arguments: Sequence[str] = ()) -> bool:
    """Whether a process with this environment and these arguments can be a fork."""
    if OTHER_ENGINE & set(arguments):
        return False
    changed = {name for name, _ in environment.items() ^ os.environ.items()} - READ_LATER
    return sys.platform == "linux" and not any(map(lambda n: n.startswith(READ_AT_START), changed))


def use_plain_graphs(wanted: bool = True) -> None:
    """Turns off what takes longer than a tiny run.

    That is TensorFlow's graph optimisation, and the second form of each chain in a training step,
    which XLA compiles and only larger models use.
    """
    import keras
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": wanted})
    if keras.backend.backend() == "tensorflow":
        from albert.model import islands
        from albert.training import tf_engine

        plain = types.SimpleNamespace(islands=lambda _=True: contextlib.nullcontext())
        tf_engine.islands = plain if wanted else islands


@functools.cache
def _server() -> "_Server":
    ours, theirs = socket.socketpair()
    # A multithreaded BLAS would start its threads before the fork, and so would pandas' pyarrow.
    environment = os.environ | {
        "PYTHONPATH": f"{REPO}:{REPO / 'tests/support'}", "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
    }
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment,
            stderr=subprocess.PIPE, text=True,
        )

    def close() -> str:
        ours.close()
        return process.communicate()[1]

    atexit.register(close)
    return _Server(ours, close)


def fork_server(close_in_it: Callable[[], None]) -> None:
    """Forks the server from this process, which has imported much and computed nothing."""
    ours, theirs = socket.socketpair()
    if not os.fork():
        try:
            ours.close()
            close_in_it()
            _forget_pytest()
            _serve(theirs)
        finally:
            os._exit(1)
    theirs.close()
    server = _Server(ours, lambda: "")

    global _server
    _server = lambda: server  # noqa: E731


def _forget_pytest() -> None:
    """Undoes pytest's changes to its process."""
    import _pytest.pathlib

    atexit.unregister(_pytest.pathlib.cleanup_numbered_dir)
    faulthandler.disable()
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)


class _Server:
    """The server, from the view of the process that it ends with."""

    def __init__(self, connection: socket.socket, close: Callable[[], str]):
        self.socket, self.close = connection, close

    def start(self, job: dict, streams: list[int]) -> int:
        """Returns the pid of a process that does the job with `streams` as 0, 1 and 2."""
        body = json.dumps(job).encode()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # until now, orphans went to another process
        try:
            socket.send_fds(self.socket, [len(body).to_bytes(4, "big")], streams)
            self.socket.sendall(body)
            answer = self.socket.recv(4)
        except OSError:
            answer = b""
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, 0)
        if not answer:
            raise RuntimeError(f"the server of forks has ended: {self.close()}")
        return int.from_bytes(answer, "big")


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


def main() -> NoReturn:
    _serve(socket.socket(fileno=int(sys.argv[1])))


def _serve(connection: socket.socket) -> NoReturn:
    for name in MODULES:
        importlib.import_module(name)
    use_plain_graphs()  # as in conftest.py
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        sys.exit(f"{threads} threads, which a fork would lose")
    gc.collect()
    gc.freeze()
    job, streams = _next_job(connection)
    module, *arguments = job["args"]
    _prctl(PR_SET_PDEATHSIG, SIGKILL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Python caches properties of a stream when opening it, such as whether it is seekable.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = open(
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a shell set it so
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules.pop(module, None)
    sys.path[0] = job["cwd"]
    sys.argv = [module, *arguments]
    _end(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def _end(work: Callable[[], object]) -> NoReturn:
    """Does the work and ends the process as an interpreter would."""
    code: object = 0
    try:
        work()
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _next_job(connection: socket.socket) -> tuple[dict, list[int]]:
    """Forks for each job until the caller ends; returns, in the fork, the job and its streams."""
    while True:
        head, streams, _, _ = socket.recv_fds(connection, 4, 3)
        if not head:
            os._exit(0)
        body = b""
        while len(body) < int.from_bytes(head, "big"):
            body += connection.recv(1 << 16)
        told, tell = os.pipe()
        # The process between them ends at once, so that the job's becomes the caller's.
        if not (between := os.fork()):
            between = os.getpid()
            if os.fork():
                os._exit(0)
            os.write(tell, os.getpid().to_bytes(4, "big"))
            while os.getppid() == between:
                time.sleep(0.001)
            for fd in (told, tell):
                os.close(fd)
            connection.close()
            return json.loads(body), streams
        os.waitpid(between, 0)
        connection.send(os.read(told, 4))
        for fd in (told, tell, *streams):
            os.close(fd)


if __name__ == "__main__":
    main()
