"""The tools in scripts/: each produces the promised output from tiny inputs."""

import sys

import conftest
import jobs
import pytest
from helpers import REPO, program

sys.path.append(str(REPO / "scripts/maintainers"))

from mutants.rows import ROWS  # noqa: E402

quickstart = jobs.script("text", "scripts/quickstart")


def test_absent_golden_values_are_a_failure_under_ci(tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "SHARED", tmp_path / "shared")
    for ci, outcome in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(outcome, match=f"{tmp_path / 'shared'} is absent"):
            conftest.require_shared()


def test_each_mutation_is_of_one_place_and_names_tests_that_there_are():
    names = {path.stem: path.read_text("utf-8") for path in (REPO / "tests").rglob("test_*.py")}
    for file, old, new, tests in ROWS:
        assert (REPO / "albert" / file).read_text("utf-8").count(old) == 1 and new != old, (file, old)
        for module, _, test in (name.partition("::") for name in tests.split()):
            assert "def " + test.split("[")[0] in names[module], tests


# --- The quickstart's text ---

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
