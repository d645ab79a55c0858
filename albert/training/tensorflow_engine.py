"""Where a run computes: one device, all of this machine, several machines, a TPU.

Only this module chooses the strategy of `tf.distribute`. Other modules ask TensorFlow for the
current one.
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert.data import files
from albert.data.input_pipeline import Share
from albert.errors import FlagError, WorkerLostError

log = logging.getLogger("albert")

# Flags in which workers may differ: they do not change what is computed.
_OF_A_WORKER = ("--log_steps", "--tpu_name", "--tpu_zone", "--gcp_project", "--master")

_entered: list = []  # the strategy's scope, if it is entered


@contextlib.contextmanager
def scope(values) -> Iterator[tf.distribute.Strategy]:
    """Enters the strategy that the device flags ask for.

    Raises:
      FlagError: a device is missing, or TF_CONFIG contradicts itself.
    """
    cluster = read_cluster(os.environ.get("TF_CONFIG"))
    kind = values.distribution_strategy or _default_kind(values, cluster)
    if kind == "multi_worker" and cluster is None:
        raise FlagError(
            "--distribution_strategy=multi_worker needs TF_CONFIG in the environment: "
            '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
        )
    strategy = _create(kind, values)
    if strategy is None:
        yield tf.distribute.get_strategy()
        return
    log.info("%s: %d replicas", kind, strategy.num_replicas_in_sync)
    _enter(strategy)
    try:
        if not is_chief():
            log.setLevel(logging.WARNING)  # the chief logs the rest
        yield strategy
    finally:
        _leave()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Leaves the strategy of several machines for a while, so that one can compute by itself.

    Under that strategy, whoever creates a variable waits for all machines.
    """
    if not is_multi_worker():
        yield
        return
    strategy = tf.distribute.get_strategy()
    _leave()
    try:
        yield
    finally:
        _enter(strategy)


def _enter(strategy: tf.distribute.Strategy) -> None:
    _entered.append(strategy.scope())  # a scope that was left cannot be entered again
    _entered[-1].__enter__()


def _leave() -> None:
    _entered.pop().__exit__(None, None, None)


def _default_kind(values, cluster: Mapping[str, Any] | None) -> str:
    if values.use_tpu:
        return "tpu"
    if cluster is not None:
        return "multi_worker"
    several = len(_gpus(values)) > 1 or values.num_virtual_devices > 1
    return "mirrored" if several else "one_device"


def _create(kind: str, values) -> tf.distribute.Strategy | None:
    """Returns the strategy; None: TensorFlow's default, on one device."""
    if kind == "tpu":
        return _tpu_strategy(values)
    gpus = _gpus(values)
    if values.num_virtual_devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * values.num_virtual_devices
        tf.config.set_logical_device_configuration(cpu, devices)
    tf.config.set_visible_devices(gpus[:1] if kind == "one_device" else gpus, "GPU")
    if kind == "one_device":
        return None
    if kind == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def _gpus(values) -> list:
    """Returns the GPUs to use: --num_gpus of them, or all."""
    gpus = tf.config.list_physical_devices("GPU")
    if values.num_gpus is None:
        return gpus
    if values.num_gpus > len(gpus):
        raise FlagError(f"--num_gpus={values.num_gpus}: this machine has {len(gpus)}")
    return gpus[: values.num_gpus]


def _tpu_strategy(values) -> tf.distribute.Strategy:
    address = values.tpu_name or values.master or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            address, zone=values.tpu_zone, project=values.gcp_project
        )
        if address != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, ValueError, RuntimeError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise FlagError(f"--use_tpu: no TPU at {address!r}: {reason}") from error
    if strategy.num_replicas_in_sync != values.num_tpu_cores:
        raise FlagError(
            f"--num_tpu_cores={values.num_tpu_cores}, but {address!r} has "
            f"{strategy.num_replicas_in_sync}"
        )
    return strategy


def read_cluster(text: str | None) -> dict[str, Any] | None:
    """Returns the parsed TF_CONFIG if it names more than one worker, else None.

    Raises:
      FlagError: it is not JSON, or its task and its cluster do not fit together.
    """
    if not text:
        return None
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        workers = [*cluster.get("chief", []), *cluster.get("worker", [])]
    except (ValueError, AttributeError, TypeError) as error:
        raise FlagError(f"TF_CONFIG is not usable: {error}") from error
    if len(workers) < 2:
        return None
    kind, index = task.get("type"), task.get("index")
    if kind not in cluster or not isinstance(index, int) or not 0 <= index < len(cluster[kind]):
        raise FlagError(
            f"TF_CONFIG: task {kind!r} {index!r} is not in its cluster of "
            + ", ".join(f"{len(hosts)} {name}" for name, hosts in cluster.items())
        )
    if len(set(workers)) < len(workers):
        raise FlagError(f"TF_CONFIG: an address stands twice among {', '.join(workers)}")
    return config


# --- This process's part ---


def is_multi_worker() -> bool:
    """Whether several machines train together."""
    return isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy)


def is_chief() -> bool:
    """Whether this process writes the run's files. Exactly one of all workers does."""
    resolver = tf.distribute.get_strategy().cluster_resolver
    if not is_multi_worker() or resolver is None:
        return True
    has_chief = "chief" in resolver.cluster_spec().jobs
    return resolver.task_type == ("chief" if has_chief else "worker") and resolver.task_id == 0


def num_workers() -> int:
    """Returns how many machines train together."""
    if not is_multi_worker():
        return 1
    cluster = tf.distribute.get_strategy().cluster_resolver.cluster_spec().as_dict()
    return sum(len(hosts) for kind, hosts in cluster.items() if kind in ("chief", "worker"))


def is_tpu() -> bool:
    return isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


def has_gpu() -> bool:
    """Whether this process computes on a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))


def num_replicas() -> int:
    """Returns how many devices, of all machines, share a training batch."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def num_evaluating_replicas() -> int:
    """Returns how many devices share an evaluation batch. Of several machines, one evaluates."""
    return 1 if is_multi_worker() else num_replicas()


# --- Each replica's part of the batches ---


def distributed(make: Callable[[Share], tf.data.Dataset]):
    """Returns the batches, distributed over the replicas.

    Args:
      make: returns the batches for some of the replicas, given which share of them these are.
    """
    strategy = tf.distribute.get_strategy()

    def for_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        total = context.num_replicas_in_sync
        count = total // context.num_input_pipelines
        return make(Share(total, context.input_pipeline_id * count, count))

    if strategy.num_replicas_in_sync == 1:
        return make(Share())
    return strategy.distribute_datasets_from_function(for_pipeline)


def check_batch_size(batch_size: int, accumulation: int) -> None:
    """Raises a FlagError if a global batch cannot be cut into equal parts."""
    replicas = num_replicas()
    if batch_size % (replicas * accumulation):
        raise FlagError(
            f"--train_batch_size={batch_size} cannot be divided by {replicas} replicas x "
            f"{accumulation} (--gradient_accumulation_steps)"
        )


# --- Agreement ---


def check_agreement(facts: Mapping[str, Any]) -> None:
    """Checks that all workers have the same flags, files and step. All workers must call it.

    Raises:
      FlagError: names the first fact that differs, with both values.
    """
    if not is_multi_worker():
        return
    ours = {k: v for k, v in facts.items() if k not in _OF_A_WORKER}
    texts = _texts_of_workers(json.dumps(ours, sort_keys=True, default=str))
    first = json.loads(texts[0])
    for worker, text in enumerate(texts):
        theirs = json.loads(text)
        for name in sorted(set(first) | set(theirs)):
            if not files.is_same_json(first.get(name), theirs.get(name)):
                raise FlagError(
                    f"workers differ in {name}: worker 0 has {first.get(name)!r}, "
                    f"worker {worker} has {theirs.get(name)!r}"
                )


def any_worker(mine: bool) -> bool:
    """Returns whether `mine` is true on any worker. All workers must call it."""
    return bool(_gather(np.array([mine])).any()) if is_multi_worker() else mine


def _texts_of_workers(text: str) -> list[str]:
    """Returns the texts that the workers gave, in their order."""
    data = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    # What is gathered must have equal lengths, so the lengths are gathered first.
    lengths = _gather(np.array([len(data)], np.int32))
    padded = np.zeros([1, max(lengths)], np.int32)
    padded[0, : len(data)] = data
    found = [
        bytes(row[:size].astype(np.uint8)).decode()
        for row, size in zip(_gather(padded), lengths, strict=True)
    ]
    return found[:: max(1, len(found) // num_workers())]


def _gather(value: np.ndarray) -> np.ndarray:
    """Returns the values of all replicas, one after another."""
    strategy = tf.distribute.get_strategy()

    @tf.function
    def gather():
        mine = strategy.run(lambda: tf.constant(value))
        return strategy.gather(mine, axis=0)

    return gather().numpy()


@contextlib.contextmanager
def blame_workers(where: Callable[[], str]) -> Iterator[None]:
    """Turns the errors that TensorFlow raises when a worker is lost into a WorkerLostError."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        if not is_multi_worker():
            raise
        raise WorkerLostError(
            f"{_who_is_lost(error.message or '')}; start all of them again: the run goes on from "
            f"{where()}"
        ) from error


def _who_is_lost(message: str) -> str:
    """Returns which worker was lost and why, as far as TensorFlow's message tells."""
    config = read_cluster(os.environ.get("TF_CONFIG")) or {"cluster": {}, "task": {}}
    who, peer, reason = "another worker", _PEER.search(message), _REASON.search(message)
    if peer and int(peer[2]) < len(config["cluster"].get(peer[1], ())):
        who = f"{peer[1]} {peer[2]} at {config['cluster'][peer[1]][int(peer[2])]}"
    return f"{who} was lost" + (f" ({reason[1][:200]})" if reason else "")


# Parts of TensorFlow's message about a failed exchange between workers.
_PEER = re.compile(r"remote target /job:(\w+)/replica:\d+/task:(\d+)")
_REASON = re.compile(r"^Collective ops is aborted by: (.*?)\s*$", re.MULTILINE)
