"""Data benchmarks: text to ids, text to records, records to batches; one core each."""

import dataclasses
import os

import numpy as np

from albert import tokenization
from albert.cli import flags
from albert.formats import tokenizer_files
from albert.formats.model_card import table
from albert.storage import files
from albert.text.documents import size_of_text
from benchmarks import inputs
from benchmarks.model_work import flops
from benchmarks.turns import Side, compare, outputs_path

_NUM_FILES = 20  # over which the records of `input_pipeline` are spread


def _text(values, folder: str) -> str:
    """Returns the benchmark's text: --corpus_bytes of --input_file, or all of it."""
    flags.require(values, "input_file", "spm_model_file")
    files.require_file(values.spm_model_file, "spm_model_file")
    source = files.require_file(values.input_file, "input_file")
    return inputs.write_text(
        folder, source, inputs.numbers(values, "corpus_bytes", (size_of_text(source),))[0]
    )


def _rows(found, *columns):
    return [
        [name, f"{one['median_seconds']:.2f}",
         f"{one['least_seconds']:.2f} ... {one['most_seconds']:.2f}",
         *(column(one) for column in columns), f"{one['ratio']:.2f}"]
        for name, one in found.items()
    ]


def tokenize(values, config, folder):
    """Raw lines to ids: our tokenizer, and Rust's with the same vocabulary and normalisation."""
    text = _text(values, folder)
    directory = files.make_dirs(os.path.join(folder, "tokenizer"))
    tokenizer_files.write(
        tokenization.FullTokenizer(None, True, values.spm_model_file), directory, 512
    )
    spec = {"work": "tokenize", "text": text, "spm_model_file": values.spm_model_file,
            "tokenizer": os.path.join(directory, "tokenizer.json")}
    sides = [Side("ours", "ours_data.py", spec, threads=1)]
    if python := inputs.peers_python(values):
        sides.append(Side("tokenizers", "theirs_tokenizers.py", spec, python, threads=1))
    size = os.path.getsize(text)
    found = compare(sides, os.path.join(folder, "turns"), rounds=values.rounds, tolerance=0.0,
                    work=size / 1e6)
    header = ("side", "median s", "spread s", "MB/s", "speed, ours = 1")
    told = f"{size / 1e6:.1f} MB of text, one core, identical ids\n\n"
    return found, told + table(header, _rows(found, lambda one: f"{one['rate']:.2f}"))


def make_records(values, config, folder):
    """Text to records in the original's format, compared with a plain version of its recipe.

    All sides make the same number: no document is cut into shorter sequences.
    """
    text = _text(values, folder)
    [length] = inputs.numbers(values, "lengths", (128,))[:1]
    spec = inputs.records_spec(values, text, length)
    plain = Side("plain Python", "theirs_records.py", spec, threads=1)
    sides = [
        plain,
        Side("ours", "ours_data.py", spec, threads=1),
    ]
    # As many, with equal statistics.
    found = compare(sides, os.path.join(folder, "turns"), rounds=values.rounds,
                    tolerance={"records": 0.0, "count": 0.0})
    with np.load(outputs_path(os.path.join(folder, "turns"), plain)) as stored:
        count = int(stored["count"])
    for one in found.values():
        one["instances"], one["rate"] = count, count / one["median_seconds"]
    header = ("side", "median s", "spread s", "instances/s", "speed, plain Python = 1")
    told = (f"{os.path.getsize(text) / 1e6:.1f} MB of text, {values.dupe_factor} passes, length "
            f"{length}, {count:,} instances, one core\n\n")
    return found, told + table(header, _rows(found, lambda one: f"{one['rate']:,.0f}"))


@dataclasses.dataclass(frozen=True)
class Appetite:
    """What accelerators consume, by arithmetic: peak x utilization / FLOPs per token."""

    accelerators: int
    peak: float
    utilization: float
    flops_per_token: float

    @property
    def tokens_per_second(self) -> float:
        """The total for all accelerators."""
        return self.accelerators * self.peak * self.utilization / self.flops_per_token

    def __str__(self) -> str:
        return (
            f"{self.accelerators} accelerators x {self.peak / 1e12:.1f} TFLOP/s x "
            f"{self.utilization:g} / {self.flops_per_token / 1e6:.1f} MFLOP a token = "
            f"{self.tokens_per_second:,.0f} tokens/s"
        )


def _masks_on_the_fly(values, config, folder, spec):
    """Returns the side that masks while reading; its ratio is to the side that reads stored masks."""
    pairs = inputs.write_pairs(folder, config, spec["count"], spec["length"])
    sides = [
        Side("masks in the records", "ours_data.py", spec | {"masks_on_the_fly": False}, threads=1),
        Side("masks on the fly, to masks in the records", "ours_data.py",
             spec | {"records": pairs, "masks_on_the_fly": True}, threads=1),
    ]
    found = compare(
        sides, os.path.join(folder, f"masks-{spec['batch']}-{spec['length']}"),
        rounds=values.rounds, tolerance=0.0, work=spec["count"],
    )
    return {sides[1].name: found[sides[1].name]}


def input_pipeline(values, config, folder):
    """Records to batches: parsing many records at once, compared with one after another.

    Also records in many files, and stored masks compared with masking while reading.
    """
    results, rows, told = [], [], []
    for batch, length in inputs.sizes(values, (256,), (128,)):
        count = max(1, values.examples // batch) * batch
        spec = {
            "work": "input_pipeline", "batch": batch, "length": length, "count": count,
            "predictions": min(inputs.PREDICTIONS, length), "vocab_size": config.vocab_size,
            "records": inputs.write_records(folder, config, count, length),
        }
        sides = [
            Side("ours", "ours_data.py", spec, threads=1),
            Side("record by record", "theirs_input.py", spec, threads=1),
            Side(f"ours, from {_NUM_FILES} files", "ours_data.py", spec | {
                "records": inputs.write_records(
                    files.make_dirs(os.path.join(folder, "files")), config, count, length,
                    _NUM_FILES,
                ),
            }, threads=1),
        ]
        found = compare(sides, os.path.join(folder, f"{batch}-{length}"), rounds=values.rounds,
                        tolerance=0.0, work=count)
        found |= _masks_on_the_fly(values, config, folder, spec)
        appetite = Appetite(values.accelerators, 989.4e12, values.utilization,  # of an H200, in bfloat16
                            flops(config, length, "pretrain"))
        cores = appetite.tokens_per_second / (found["ours"]["rate"] * length)
        results.append({
            "batch": batch, "length": length, "sides": found, "cores": cores,
            "tokens_per_second_wanted": appetite.tokens_per_second,
            **dataclasses.asdict(appetite),
        })
        rows += [
            [f"{batch} x {length}", *row] for row in _rows(
                found, lambda one: f"{one['rate']:,.0f}",
                lambda one, length=length: f"{one['rate'] * length:,.0f}",
            )
        ]
        told.append(f"\nNVIDIA H200 SXM, length {length}: {appetite}, which {cores:.1f} "
                    "such cores read\n")
    header = ("batch", "side", "median s", "spread s", "sequences/s a core", "tokens/s a core",
              "speed, ours = 1")
    return results, table(header, rows) + "".join(told)
