"""Devices and workers of a JAX run."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from albert.errors import FlagError
from albert.training.engine import TF_CONFIG_EXAMPLE, announce_workers, workers_of

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
    announce_workers(cluster)
    jax.distributed.initialize(workers[0], len(workers), workers.index(address))


def join_automatically() -> None:
    """Joins the workers that JAX detects, as on a TPU slice or in a scheduler's job."""
    try:
        jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:
        raise FlagError("--distribution_strategy=multi_worker: JAX detects no other workers: set "
                        f"{TF_CONFIG_EXAMPLE}") from error
