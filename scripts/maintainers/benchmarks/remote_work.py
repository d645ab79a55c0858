"""Benchmark of training from and to an object store with high latency."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator

from albert.config import AlbertConfig
from albert.errors import FlagError
from albert.formats.model_card import table
from albert.storage import files
from benchmarks import inputs
from benchmarks.turns import REPOSITORY, Side, compare

_FILES = 8
_RECORDS = 200_000  # more than are fetched at once
_BUCKET = "s3://bucket"


def remote(values, config, folder):
    """An epoch of `albert.run_pretraining` from a disk and from S3, each turn in its own process."""
    if not all(map(importlib.util.find_spec, ("moto", "s3fs"))):
        raise FlagError("remote needs a server: pip install 'albert-keras[remote-test]'")
    [(batch, length)] = inputs.sizes(values, (256,), (128,))[:1]
    config_file = os.path.join(folder, "albert_config.json")
    with files.atomic_write(config_file) as stream:
        stream.write(config.to_json_string())
    count = values.examples if values["examples"].present else _RECORDS
    records = _write_shards(folder, config, count, length)
    spec = {"arguments": [
        f"--albert_config_file={config_file}", f"--train_batch_size={batch}",
        f"--max_seq_length={length}", f"--max_predictions_per_seq={min(inputs.PREDICTIONS, length)}",
        "--learning_rate=1e-4", f"--num_train_steps={max(count // batch, 2)}",
        "--num_warmup_steps=0", "--nopack_rows",
    ], "is_warm": True}  # each turn is a separate process
    with _store(records, values.latency / 1000) as environment:
        sides = [
            Side("disk", "remote_run.py", spec | {"input": f"{records}/*", "environment": {}}),
            Side(f"S3, {values.latency} ms", "remote_run.py", spec | {
                "input": f"{_BUCKET}/records/*.tfrecord", "environment": environment,
                "output": f"{_BUCKET}/runs",
            }),
        ]
        found = compare(sides, os.path.join(folder, "turns"), rounds=values.rounds, tolerance=0.0,
                        work=count)
    rows, first = [], next(iter(found.values()))["parts"]
    for name, one in found.items():
        parts = one["parts"]
        whole = parts["first batch"] + parts["waiting"]
        rows.append([
            name, f"{parts['first batch']:.2f}", f"{count / parts['steps']:,.0f}",
            f"{first['steps'] / parts['steps']:.2f}",
            f"{100 * parts['waiting'] / parts['steps']:.2f} %",
            f"{100 * whole / parts['loop']:.2f} %", f"{one['median_seconds']:.1f}",
        ])
    header = ("side", "wait for the first batch, s", "rows/s after the first step",
              "speed, disk = 1", "of it, waiting", "of the whole loop, waiting",
              "whole process, median s")
    told = f"{count:,} rows of {length} in {_FILES} files, batches of {batch}\n\n"
    return found, told + table(header, rows)


def _write_shards(folder: str, config: AlbertConfig, count: int, length: int) -> str:
    """Writes random sequences as records; returns their folder. They repeat, since reading is timed."""
    from albert.records import manifests
    from albert.tasks.pretraining import PretrainingTask

    rows = inputs.make_rows(config, min(count, 4096), length)
    spec = PretrainingTask(length, min(inputs.PREDICTIONS, length)).feature_spec()
    found = files.make_dirs(os.path.join(folder, "records"))
    for number in range(_FILES):
        mine = range(number, count, _FILES)
        manifests.write_records(
            os.path.join(found, f"{number}.tfrecord"),
            ({name: value[i % 4096] for name, value in rows.items()} for i in mine),
            spec, {"vocab_size": config.vocab_size},
        )
    return found


@contextlib.contextmanager
def _store(records: str, latency: float) -> Iterator[dict[str, str]]:
    """Yields the environment for a server that holds the records."""
    sys.path.insert(0, os.path.join(REPOSITORY, "tests/support"))
    import s3fs
    import s3

    with s3.server() as port:
        proxy = s3.Proxy(port)
        environment = {
            "AWS_ENDPOINT_URL": proxy.url, "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark", "AWS_DEFAULT_REGION": "us-east-1",
        }
        system = s3fs.S3FileSystem(
            endpoint_url=proxy.url, key="benchmark", secret="benchmark", skip_instance_cache=True
        )
        system.mkdir(_BUCKET)
        system.put(f"{records}/", f"{_BUCKET}/records/", recursive=True)
        proxy.latency = latency
        yield environment
        proxy.close()
