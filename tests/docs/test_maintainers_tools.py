"""The tools in scripts/: each produces the promised output from tiny inputs."""

import json
import sys

import jobs
import pytest
from helpers import REPO, program, write_config, write_text

from albert.errors import UserError
from albert.records.manifests import Manifest

TOOLS = REPO / "scripts/maintainers"
sys.path.append(str(TOOLS))

import small_texts  # noqa: E402
from benchmarks import turns  # noqa: E402
from mutants.rows import ROWS  # noqa: E402

quickstart = jobs.script("text", "scripts/quickstart")


def test_each_mutation_is_of_one_place_and_names_tests_that_there_are():
    names = {path.stem: path.read_text("utf-8") for path in (REPO / "tests").rglob("test_*.py")}
    for file, old, new, tests in ROWS:
        assert (REPO / "albert" / file).read_text("utf-8").count(old) == 1 and new != old, (file, old)
        for module, _, test in (name.partition("::") for name in tests.split()):
            assert "def " + test.split("[")[0] in names[module], tests


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
    return turn, {{"loss": spec["loss"]}}

serve.serve(prepare)
"""


def test_sides_of_a_benchmark_take_turns_and_only_equal_work_is_compared(tmp_path):
    (tmp_path / "side.py").write_text(SIDE)

    def compare(other, **options):
        first = {"seconds": 0.01, "loss": [1.0, 2.0], "log": str(tmp_path / "log")}
        sides = [turns.Side(name, str(tmp_path / "side.py"), {"name": name} | first | more)
                 for name, more in (("a", {}), ("b", other))]
        return turns.compare(sides, str(tmp_path / "work"), rounds=2, tolerance=1e-3, **options)

    found = compare({"seconds": 0.2, "loss": [1.0, 2.0001]}, work=10)
    assert (tmp_path / "log").read_text() == "ab" + "abab"  # one to warm up
    assert found["a"]["ratio"] == 1.0 and found["b"]["ratio"] < 0.5
    assert found["b"]["rate"] == pytest.approx(10 / found["b"]["median_seconds"])
    assert found["b"]["largest_difference"] == pytest.approx(5e-5, rel=0.01)
    for other, said in (
        ({"loss": [1.0, 2.1]}, "b computes something else than a: differs by 0.05 .*in loss"),
        ({"loss": [1.0]}, "b computes something else than a: differs by inf"),
        ({"dies_after": 2}, "b ended: it was killed; is there enough memory"),
    ):
        with pytest.raises(UserError, match=said):
            compare(other)


BENCHMARKS = {  # {name: (flags, required packages)}
    "pretrain_step": ("--precision=bfloat16", ""), "inference": ("--engine=jax", "jax"),
    "finetune": ("--examples=8 --glue_file={folder}/dev.tsv", ""),
    "predict": ("--glue_file={folder}/dev.tsv", "onnxruntime"),
    "tokenize": ("--input_file={folder}/text.txt", ""),
    "make_records": ("--input_file={folder}/text.txt", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_runs_and_its_sides_compute_the_same(name, tmp_path):
    given, packages = BENCHMARKS[name]
    for package in packages.split():
        pytest.importorskip(package, reason=f"{package} is not installed")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + "a film\t1\nit rains\t0\n" * 4)
    write_text(tmp_path / "text.txt", documents=30)
    config = write_config(tmp_path, vocab_size=8000, max_position_embeddings=64)
    done = program(
        TOOLS / "benchmark.py", name, "--rounds=1", f"--albert_config_file={config}", "--batch_size=2",
        "--length=48", f"--output_dir={tmp_path}", *given.format(folder=tmp_path).split(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [result] = json.loads((tmp_path / f"{name}.json").read_text())["results"]
    assert "ours" in result["sides"] or len(result["sides"]) >= 3
    for one in result["sides"].values():
        assert one["largest_difference"] < 0.1 and one["median_seconds"] > 0
    assert (tmp_path / f"{name}.md").read_text().count("\n| ") >= 2


# --- Data ---


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


# --- What small texts give ---


def test_finished_models_of_small_texts_are_tabled_and_nothing_is_trained_again(tmp_path, monkeypatch, capsys):
    rows = ["text,label", *["a fine film,good", "a dull film,bad"] * 5]
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    (tmp_path / "en.txt").write_bytes(b"x" * 2_000_000)
    done = {
        "plan.json": {"training": {"num_train_steps": 30, "train_batch_size": 4}},
        "albert_config.json": {"num_hidden_layers": 1, "hidden_size": 128, "vocab_size": 2000},
        "model/eval_results.json": {"masked_lm_accuracy": 0.2, "masked_lm_accuracy_baseline": 0.05,
                                    "sentence_order_accuracy": 0.8},
        "records/train.tfrecord.manifest.json": Manifest(
            160, 0, {}, {"report": {"cut_tokens": 0.1}}, ()).to_json(),
        "classifier/1/predict_results.json": {"eval_accuracy": 0.5},
        "classifier/2/predict_results.json": {"eval_accuracy": 0.7},
        "report.md": {},
    }
    for name, value in done.items():
        path = tmp_path / "out/en-0.1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    monkeypatch.setattr(small_texts, "run", None)
    monkeypatch.setattr(sys, "argv", ["small_texts", f"--texts={tmp_path / 'en.txt'}", "--hours=0.1",
                                      f"--train_file={tmp_path / 'train.csv'}", "--seeds=2",
                                      f"--test_file={tmp_path / 'test.csv'}", f"--output_dir={tmp_path / 'out'}"])
    small_texts.main()
    line = ("| en.txt, 2 MB | 0.1 | 1 x 128, 2,000 | 68 %, 0.8 times | 20.0 % | 5.0 % | 80.0 % | "
            "0.600 ± 0.100 | 1.000 |")
    assert line in capsys.readouterr().out and line in (tmp_path / "out/results.md").read_text()


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
    assert list(quickstart.sentences_of(DOCSTRING)) == [
        "Return the value of the os.path.join call as it is.",
        "The result is never an empty string.",
    ]
    text = '"""This module has some words in it.\n\nIt also has a second sentence here."""\n'
    (tmp_path / "loud.py").write_text(text + "raise SystemExit('imported')\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test/hidden.py").write_text(text.replace("module", "fixture"))
    (tmp_path / "python2.py").write_text("print 'no'\n")
    reference, library = quickstart.python_docs(str(tmp_path))
    assert library == [["This module has some words in it.", "It also has a second sentence here."]]
    assert len(reference) > 50


def test_the_quickstarts_task_is_of_sentences_that_its_corpus_lacks_the_same_for_a_seed(tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("\n\n".join(
        "\n".join(f"Sentence {i} of document {number} has some words." for i in range(20))
        for number in range(20)))
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        done = program(REPO / "scripts/quickstart/text.py", f"--input_file={source}",
                       f"--output_dir={tmp_path / name}", f"--seed={seed}", "--num_dev=20")
        assert done.returncode == 0, done.stderr
    rows = {}
    for name in ("train", "dev", "test"):
        a, b, c = ((tmp_path / x / f"classification/SST-2/{name}.tsv").read_text() for x in "abc")
        assert a == b != c
        head, *rows[name] = [line.split("\t") for line in a.splitlines()]
        assert head == (["index", "sentence"] if name == "test" else ["sentence", "label"])
    sentences = {"train": {s for s, _ in rows["train"]}, "dev": {s for s, _ in rows["dev"]},
                 "test": {s for _, s in rows["test"]}}
    assert len(sentences["train"]) == 340 and len(sentences["dev"]) == 20 and len(sentences["test"]) == 20
    corpus = set((tmp_path / "a/corpus.txt").read_text().splitlines()) - {""}
    everything = set(source.read_text().splitlines()) - {""}
    assert corpus == everything - sentences["dev"] - sentences["test"] and sentences["train"] <= corpus
    for name in ("train", "dev"):
        for sentence, label in rows[name]:
            assert int(label) == (int(sentence.split()[4]) >= 10)
        assert len({label for _, label in rows[name]}) == 2
    assert [i for i, _ in rows["test"]] == [str(i) for i in range(20)]
