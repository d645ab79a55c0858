"""The tools in scripts/: each produces the promised output from tiny inputs."""

import collections
import json
import re
import sys

import jobs
import pytest
from helpers import REPO, assert_one_clear_line, program, write_config, write_text

from albert.errors import UserError
from albert.storage import shipped

TOOLS = REPO / "scripts/maintainers"
sys.path += [str(TOOLS), str(REPO / "scripts/quickstart")]

import prose  # noqa: E402
import python_docs  # noqa: E402
from benchmarks import turns  # noqa: E402


# --- Benchmarks ---

SIDE = f"""
import os, sys, time
sys.path.insert(0, {turns.FOLDER!r})
import serve

def prepare(spec):
    turns = []
    print("libraries may print")
    def turn():
        turns.append(1)
        if len(turns) > spec.get("dies_after", 99):
            os.kill(os.getpid(), 9)
        time.sleep(spec["seconds"])
        with open(spec["log"], "a") as stream:
            stream.write(spec["name"])
    return turn, {{"loss": spec["loss"], "statistics/x": spec["mean"], "chance/x": 0.01}}

serve.serve(prepare)
"""


def test_sides_of_a_benchmark_take_turns_and_only_equal_work_is_compared(tmp_path):
    (tmp_path / "side.py").write_text(SIDE)

    def compare(other, tolerance, **options):
        first = {"seconds": 0.01, "loss": [1.0, 2.0], "mean": 0.5, "log": str(tmp_path / "log")}
        sides = [turns.Side(name, str(tmp_path / "side.py"), {"name": name} | first | more)
                 for name, more in (("a", {}), ("b", other))]
        return turns.compare(
            sides, str(tmp_path / "work"), rounds=2, tolerance=tolerance, **options
        )

    # A mean of random draws may differ within its standard error.
    slow = {"seconds": 0.2, "loss": [1.0, 2.0001], "mean": 0.53}
    found = compare(slow, {"loss": 1e-3}, work=10)
    assert (tmp_path / "log").read_text() == "ab" + "abab"  # one to warm up
    assert found["a"]["ratio"] == 1.0 and found["b"]["ratio"] < 0.5
    assert found["b"]["rate"] == pytest.approx(10 / found["b"]["median_seconds"])
    assert found["b"]["largest_difference"] == pytest.approx(0.06)
    for other, said in (
        ({"loss": [1.0, 2.1]}, "b computes something else than a: differs by 0.05 .*in loss"),
        ({"mean": 0.6}, "b computes something else than a: .*in statistics/x"),
        ({"dies_after": 2}, "b ended: it was killed; is there enough memory"),
    ):
        with pytest.raises(UserError, match=said):
            compare(other, {"loss": 1e-3})


def benchmark(name, folder, *more):
    """Runs a benchmark of a tiny model for one round; returns its results and table."""
    config = write_config(folder, vocab_size=60, max_position_embeddings=64)
    done = program(
        TOOLS / "benchmark.py", name, "--rounds=1", f"--albert_config_file={config}",
        f"--output_dir={folder}", *more,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    table = (folder / f"{name}.md").read_text()
    return json.loads((folder / f"{name}.json").read_text())["results"], table


def texts(folder):
    path = write_text(folder / "text.txt", documents=30)
    return f"--input_file={path}", f"--spm_model_file={shipped.vocabulary_of('small_en')}"


@pytest.mark.slow
def test_the_benchmark_of_records_compares_with_a_plain_version(tmp_path):
    sides, _ = benchmark(
        "make_records", tmp_path, "--lengths=64", "--dupe_factor=1", *texts(tmp_path)
    )
    assert set(sides) == {"plain Python", "ours"}
    assert len({one["instances"] for one in sides.values()}) == 1
    assert sides["ours"]["instances"] > 20 and sides["ours"]["largest_difference"] > 0


BENCHMARKS = {  # {name: (flags, required packages)}
    "attention": ("--precisions=float32,bfloat16", ""), "memory": ("", ""), "startup": ("", ""),
    "pretrain_step": ("", ""), "inference": ("--engine=jax", "jax"), "idle": ("--examples=16", ""),
    "input_pipeline": ("--examples=40 --accelerators=2 --utilization=0.5", ""),
    "scaling": ("--batch_sizes=2,4 --lengths=32,48 --layers=1,2 --corpus_bytes=5000,10000", ""),
    "remote": ("--examples=64 --latency=20", "moto s3fs"),
    "int8": ("--glue_file={folder}/dev.tsv --albert_config_file=small_en", "tf2onnx onnxruntime"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_of_a_model_runs(name, tmp_path):
    given, packages = BENCHMARKS[name]
    for package in packages.split():
        pytest.importorskip(package, reason=f"{package} is not installed")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + "a film\t1\nit rains\t0\n" * 4)
    found, table = benchmark(
        name, tmp_path, "--batch_sizes=2", "--lengths=48", *texts(tmp_path),
        *given.format(folder=tmp_path).split(),
    )
    numbers = re.findall(r'"(largest_difference|median_seconds)": ([\d.e-]+)', json.dumps(found))
    for what, value in numbers:
        assert float(value) < 0.1 if what == "largest_difference" else float(value) > 0
    assert table.count("\n| ") >= 3 and (numbers or name == "scaling")


# --- Data ---


def test_measured_data_creation_gives_the_commands_figures_and_kills_change_no_byte(tmp_path):
    text, spm = texts(tmp_path)
    out = f"--output_dir={tmp_path / 'out'}"
    done = program(TOOLS / "measure_data_creation.py", "--gigabytes=0.0004", out, "--kills=1",
                   text, spm, "--", "--max_seq_length=64", "--num_processes=2")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out/data_creation.json").read_text())
    assert 4e5 <= found["text_bytes"] < 5e5 and found["records"] > 500
    assert found["most_bytes_of_all_processes"] >= found["most_bytes_of_one_process"] > 1e7
    assert found["records_after_kills"] == "the same bytes" and found["kills"] == 1
    alone = program(TOOLS / "measure_data_creation.py", out, text)
    assert alone.returncode == 2 and "go together" in assert_one_clear_line(alone.stderr)


def test_every_fuzzed_reader_answers_its_seeds_and_other_errors_are_let_through(
    tmp_path, monkeypatch, capsys
):
    script = jobs.script("fuzz_readers")
    odd = [b"", b"{}", b"[]", b"\xff\xfe", b"\0" * 40, b'{"data": []}', b"\x1f\x8b\x08junk"]
    for reader in script.READERS:
        paths = []
        for number, seed in enumerate([*script.seeds(reader), *odd]):
            paths.append(tmp_path / str(number))
            paths[-1].write_bytes(seed)
        assert script.main(["fuzz_readers", reader, "--replay", *map(str, paths)]) == 0
        assert capsys.readouterr().out == f"passed: {len(paths)} inputs\n"

    monkeypatch.setitem(script.READERS, "tsv", lambda path, tokenizer: {}["a bug"])
    with pytest.raises(KeyError):
        script.main(["fuzz_readers", "tsv", "--replay", str(tmp_path / "0")])


# --- The quickstart's text ---

DOCSTRING = """\
Return the ``value`` of the :func:`~os.path.join` call as it is.

    >>> join('a', 'b')

Heading here
============

* The first item says what the *name* of the file is [1]_.

def join(a, b):
    return a

+-----+------+
| a b | of c |
+-----+------+

join(path, *paths)
   See https://example.org for what this is about in detail.
   The result is never an empty string.
"""


def test_prose_is_read_from_docstrings_without_importing_their_modules(tmp_path):
    assert prose.sentences_of(DOCSTRING) == [
        "Return the value of the os.path.join call as it is.",
        "The first item says what the name of the file is.",
        "The result is never an empty string.",
    ]
    text = '"""This module has some words in it.\n\nIt also has a second sentence here."""\n'
    (tmp_path / "loud.py").write_text(text + "raise SystemExit('imported')\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test/hidden.py").write_text(text.replace("module", "fixture"))
    (tmp_path / "python2.py").write_text("print 'no'\n")
    names = [document.name for document in python_docs.read_python_docs(str(tmp_path))]
    assert [name for name in names if name.startswith("module:")] == ["module:loud"]


def test_the_quickstarts_task_is_of_documents_that_its_corpus_lacks_the_same_for_a_seed(tmp_path):
    source = write_text(tmp_path / "in.txt", documents=20)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        done = program(REPO / "scripts/quickstart/text.py", f"--input_file={source}",
                       f"--output_dir={tmp_path / name}", f"--seed={seed}", "--num_dev=40")
        assert done.returncode == 0, done.stderr
    task = "classification/SST-2"
    for file, is_drawn in (("corpus.txt", False), (f"{task}/train.tsv", True)):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b and (a != c or not is_drawn)
    corpus = (tmp_path / "a/corpus.txt").read_text().splitlines()
    stats = json.loads((tmp_path / "a/stats.json").read_text())
    held = {*stats["task"]["dev_documents"], *stats["task"]["test_documents"]}
    assert stats["corpus"]["documents"] == 20 - len(held)
    for number, document in enumerate(source.read_text().strip().split("\n\n"), 1):
        is_held_out = f"document {number}" in held
        assert set(corpus).isdisjoint(document.splitlines()) == is_held_out
    rows = {}
    for name in ("train", "dev", "test"):
        text = (tmp_path / f"a/{task}/{name}.tsv").read_text()
        head, *rows[name] = [line.split("\t") for line in text.splitlines()]
        assert head == (["index", "sentence"] if name == "test" else ["sentence", "label"])
    assert not {s for s, _ in rows["train"]} & {s for s, _ in rows["dev"]}
    for name in ("train", "dev"):
        counts = collections.Counter(label for _, label in rows[name])
        assert counts["0"] == counts["1"] >= 5
    assert [i for i, _ in rows["test"]] == [str(i) for i in range(len(rows["test"]))]
