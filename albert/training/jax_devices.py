"""Devices and workers of a JAX run."""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from albert.errors import FlagError, WorkerLostError
from albert.runtime.workers import STOPPING
from albert.training.engine import TF_CONFIG_EXAMPLE, workers_of

log = logging.getLogger("albert")

JOIN_SECONDS = 600  # maximum time for which a worker waits for the others
ROWS = "rows"  # the axis of the mesh: devices share the rows of a batch


def mesh_of(devices: Iterable) -> Mesh:
    """Returns a one-dimensional mesh of devices; those of a worker are adjacent."""
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(ordered), (ROWS,))


def chosen_devices(values) -> list:
    """Returns the devices that the flags ask for."""
    if values.use_tpu and jax.default_backend() != "tpu":
        raise FlagError("--use_tpu: JAX finds no TPU on this machine: run the command on the TPU "
                        "machine itself, with albert-keras[jax-tpu] installed")
    if values.num_gpus == 0 and jax.default_backend() == "gpu":
        return _of_each_worker(jax.devices("cpu"), 1)
    devices = jax.devices()
    if values.num_gpus is not None:
        gpus = [device for device in devices if device.platform == "gpu"]
        local = sum(device.platform == "gpu" for device in jax.local_devices())
        if values.num_gpus > local:
            raise FlagError(f"--num_gpus={values.num_gpus}: this machine has {local}")
        devices = _of_each_worker(gpus, values.num_gpus) or devices
    return devices[:1] if values.distribution_strategy == "one_device" else devices


def _of_each_worker(devices: Iterable, count: int) -> list:
    """Returns the first `count` devices of each process."""
    by_worker: dict[int, list] = {}
    for device in sorted(devices, key=lambda device: device.id):
        by_worker.setdefault(device.process_index, []).append(device)
    return [device for of_worker in by_worker.values() for device in of_worker[:count]]


def join(cluster: Mapping[str, Any]) -> None:
    """Joins the workers of a TF_CONFIG, of which the first coordinates."""
    workers, task = workers_of(cluster), cluster["task"]
    address = cluster["cluster"][task["type"]][task["index"]]
    log.info("waiting for the %d workers to join: %s", len(workers), ", ".join(workers))
    with _waiting(workers, address):
        jax.distributed.initialize(
            workers[0], len(workers), workers.index(address),
            initialization_timeout=2 * JOIN_SECONDS,  # after it, JAX would abort
        )


@contextlib.contextmanager
def _waiting(workers: Sequence[str], address: str) -> Iterator[None]:
    """Ends the process in the block at the first signal, or when `JOIN_SECONDS` are over.

    Waiting happens in C++, where Python's handlers of signals do not run.
    """
    timer = threading.Timer(JOIN_SECONDS, _give_up, (workers, address))
    timer.daemon = True
    with contextlib.ExitStack() as stack:
        if address != workers[0]:  # answers others that ask who is missing
            with contextlib.suppress(OSError):
                port = int(address.rpartition(":")[2])
                stack.enter_context(socket.create_server(("", port)))
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                stack.callback(signal.signal, number, signal.signal(number, signal.SIG_DFL))
        stack.callback(timer.cancel)
        timer.start()
        yield


def _give_up(workers: Sequence[str], address: str) -> None:
    missing = [
        f"worker {number} at {other}" for number, other in enumerate(workers)
        if other != address and not _answers(other)
    ]
    print(f"error: {', '.join(missing) or 'another worker'} did not join in {JOIN_SECONDS} seconds: "
          f"start the command there too; every machine must reach {workers[0]}", file=sys.stderr,
          flush=True)
    os._exit(WorkerLostError.exit_code)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
        return True
    return False


def join_automatically() -> None:
    """Joins the workers that JAX detects, as on a TPU slice or in a scheduler's job."""
    try:
        jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:
        raise FlagError("--distribution_strategy=multi_worker: JAX detects no other workers: set "
                        f"{TF_CONFIG_EXAMPLE}") from error
