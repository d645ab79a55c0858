"""The README and docs/: their examples run in order, their links lead somewhere."""

import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from pydoc_data import topics

import pytest
from absl import flags as absl_flags
from helpers import REPO, run

DOCS = REPO / "docs"
PAGES = [REPO / "README.md", *sorted(DOCS.rglob("*.md"))]
# The pages with examples, in the order in which they build on each other.
GUIDES = [
    "docs/guides/pretrain.md", "docs/guides/classify.md", "README.md", "docs/guides/records.md",
    "docs/guides/another_language.md", "docs/guides/serve.md", "docs/guides/squad.md",
    "docs/guides/race.md", "docs/guides/token_classes.md", "docs/guides/embeddings.md",
    "docs/guides/released_models.md", "docs/guides/accelerators.md",
]
# Enough to see that a command works; the last flag wins.
SMALLER = {
    "train_sentencepiece": ["--vocab_size=500"],
    "create_pretraining_data": ["--dupe_factor=2"],
    "run_pretraining": ["--num_train_steps=4", "--num_warmup_steps=1", "--max_eval_steps=2",
                        "--save_checkpoints_steps=4", "--train_batch_size=8"],
    "run_classifier": ["--train_step=4", "--warmup_step=1", "--save_checkpoints_steps=4"],
    "run_squad": ["--train_step=2", "--warmup_step=1", "--save_checkpoints_steps=2"],
    "run_token_classifier": ["--train_step=4", "--warmup_step=1", "--save_checkpoints_steps=4"],
    "run_race": ["--train_step=2", "--warmup_step=1", "--save_checkpoints_steps=2"],
}
# Words of examples, and the package beyond ours that they need.
NEEDS = {
    "export_preprocessor_path": "tensorflow_text", "work/served": "tensorflow_text",
    "tensorflow_text": "tensorflow_text", "work/classifier.onnx": "tf2onnx",
}
PASSAGE = {
    "article": "A cat sat on a mat.", "questions": ["Who sat? _ did."],
    "options": [["A cat", "A dog", "A mat", "Nobody"]], "answers": ["A"], "id": "1.txt",
}
QUESTIONS = {
    "context": PASSAGE["article"],
    "qas": [
        {"id": "1", "question": "Who sat?", "answers": [{"text": "A cat", "answer_start": 0}]},
        {"id": "2", "question": "Who ran?", "answers": [], "is_impossible": True},
    ],
}


def examples(page: str) -> list[tuple[str, str]]:
    """Returns (language, code) of a page's fenced blocks."""
    text = (REPO / page).read_text(encoding="utf-8")
    return re.findall(r"```(\w*)\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def workshop(tmp_path):
    """A folder with the repository's scripts and configs, a text, and small data of each task."""
    # Prose that every machine with Python has.
    documents = [
        "\n".join(line for line in topics.topics[name].splitlines() if line.endswith((".", ",")))
        for name in sorted(topics.topics)[:40]
    ]
    text = "\n\n".join(documents).replace("`", "")
    (tmp_path / "my_text.txt").write_text(text, encoding="utf-8")
    for split in ("train", "dev", "test"):
        for level in ("middle", "high"):
            folder = tmp_path / "data" / "RACE" / split / level
            folder.mkdir(parents=True)
            (folder / "1.txt").write_text(json.dumps(PASSAGE), encoding="utf-8")
    folder = tmp_path / "data" / "squad"
    folder.mkdir()
    paragraphs = [
        QUESTIONS | {"qas": [qa | {"id": f"{qa['id']}-{i}"} for qa in QUESTIONS["qas"]]}
        for i in range(8)
    ]
    for name in ("train", "dev"):
        text = json.dumps({"data": [{"paragraphs": paragraphs}]})
        (folder / f"{name}-v2.0.json").write_text(text)
    folder = tmp_path / "data" / "ner"
    folder.mkdir()
    for name in ("train", "dev", "test"):
        (folder / f"{name}.txt").write_text("Ada B-PER\nLovelace I-PER\nwrites O\n. O\n\n" * 8)
    os.symlink(REPO / "scripts", tmp_path / "scripts")
    # The configurations of the examples, with the vocabulary of so small a text.
    (tmp_path / "configs").mkdir()
    for source in (REPO / "configs").glob("*.json"):
        text = source.read_text().replace('"vocab_size": 2000', '"vocab_size": 500')
        (tmp_path / "configs" / source.name).write_text(text)
    return tmp_path


def run_examples(pages: list[str], workshop: pathlib.Path, packages: set[str]) -> int:
    """Runs the examples of pages that need no other packages than these; returns how many."""
    environment, count = os.environ | {"PYTHONPATH": str(REPO)}, 0
    for language, code in (example for page in pages for example in examples(page)):
        if not {package for word, package in NEEDS.items() if word in code} <= packages:
            continue
        if language == "bash":
            _, *arguments = shlex.split(code.replace("\\\n", " "))
            module = arguments[arguments[0] == "-m"]
            arguments += next((v for k, v in SMALLER.items() if k in module), [])
        else:
            arguments = ["-c", code]
        if arguments[0] == "-m":
            result = run(*arguments[1:], cwd=workshop)
        else:
            result = subprocess.run(
                [sys.executable, *arguments], cwd=workshop, env=environment,
                capture_output=True, text=True, timeout=300,
            )
        assert result.returncode == 0, f"{code}\n{result.stderr[-3000:]}"
        count += 1
    return count


def commands_shown() -> list[tuple[str, str, str]]:
    """Returns (page, module, its arguments) of every command, whether the tests run it or not."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8").replace("\\\n", " ")
        for module, rest in re.findall(r"^.*?python -m (albert\.[a-z_12]+)(.*)$", text, re.M):
            found.append((str(page.relative_to(REPO)), module, rest.split(" -- ")[0]))
    return found


def test_every_flag_of_every_command_on_every_page_is_one_of_its_own():
    shown = commands_shown()
    assert len(shown) > 40
    for page, module, rest in shown:
        values = absl_flags.FlagValues()
        importlib.import_module(module).define_flags(values)
        for name in re.findall(r"--(\w+)", rest):
            assert name in values or name.removeprefix("no") in values, f"{page}: {module} {name}"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_examples_of_every_page_run_in_their_order(workshop):
    assert run_examples(GUIDES, workshop, set()) > 24
    results = (workshop / "work/classifier/eval_results.txt").read_text()
    assert "eval_accuracy = " in results
    assert (workshop / "work/classifier/submit_results.tsv").stat().st_size
    assert "num_runs = 3" in (workshop / "work/own/eval_results.txt").read_text()
    assert "eval_accuracy_high = " in (workshop / "work/race/predict_results.txt").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_examples_that_need_other_packages_run(workshop):
    packages = {name for name in NEEDS.values() if importlib.util.find_spec(name)}
    if not packages:
        pytest.skip("neither tensorflow_text nor tf2onnx installed (extras: text, onnx)")
    run_examples(["docs/guides/pretrain.md", "docs/guides/classify.md", "docs/guides/serve.md"],
                 workshop, packages)


def test_every_example_is_on_a_page_that_the_tests_run():
    for page in PAGES:
        found = [each for each in examples(page.relative_to(REPO)) if each[0] != "mermaid"]
        assert {language for language, _ in found} <= {"bash", "python"}, page
        assert not found or str(page.relative_to(REPO)) in GUIDES, page
        for command in (code for language, code in found if language == "bash"):
            [line] = command.replace("\\\n", " ").splitlines()
            assert line.startswith(("python -m albert.", "python scripts/")), f"{page}: {command}"
    assert set(GUIDES) <= {str(page.relative_to(REPO)) for page in PAGES}


def anchors(page: pathlib.Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_link_leads_to_a_file_and_a_heading_that_are_there():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            assert file.exists() and file.is_relative_to(REPO), f"{page}: {target}"
            assert not anchor or anchor in anchors(file), f"{page}: {target}"


def test_every_page_is_linked_from_another():
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    }
    assert set(PAGES[1:]) <= linked


def test_every_picture_says_what_it_shows_and_every_one_is_shown():
    shown = set()
    for page in PAGES:
        for alternative, target in re.findall(r"!\[(.*?)\]\((\S+?)\)", page.read_text("utf-8")):
            assert len(alternative) > 20, f"{page}: {target}"
            shown.add((page.parent / target).resolve())
    assert shown == {path for path in (DOCS / "pictures").iterdir()}


def test_every_maintainers_tool_is_told_with_its_command():
    folder = REPO / "scripts/maintainers"
    told = (folder / "README.md").read_text(encoding="utf-8")
    for path in folder.glob("*.py"):
        assert f"| `{path.name}` |" in told and f"scripts/maintainers/{path.name}" in told


def test_the_modules_and_tests_of_the_maintainers_page_are_there():
    told = (DOCS / "CONTRIBUTING.md").read_text("utf-8").partition("## The packages")[2]
    names = re.findall(r"`([a-z_/]+(?:\.py)?)`", told.partition("## Rules")[0])
    assert len(names) > 50
    places = (".", "albert", "albert/pretraining_data", "albert/records", "tests")
    for name in set(names) - {"finetune"}:  # a benchmark
        found = [REPO / place / name for place in places]
        assert any(p.exists() or p.with_suffix(".py").exists() for p in found), name


def test_the_readme_is_short():
    assert len((REPO / "README.md").read_text("utf-8").splitlines()) <= 150


def test_the_reference_is_in_step_with_the_code(monkeypatch):
    monkeypatch.syspath_prepend(REPO / "scripts/maintainers")
    import reference

    for name, page in reference.PAGES.items():
        assert page() == (reference.FOLDER / name).read_text("utf-8"), (
            f"docs/reference/{name}: run python scripts/maintainers/reference.py"
        )


def test_the_common_errors_are_those_of_the_code():
    code = "".join(path.read_text("utf-8") for path in (REPO / "albert").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    table = (DOCS / "reference/exit_codes.md").read_text("utf-8").partition("## Twenty")[2]
    errors = re.findall(r"^\| `(.+?)` \|", table, re.M)
    assert len(errors) == 20
    assert not [error for error in errors if error not in code]


def test_the_version_of_the_readme_and_of_the_changes_is_the_packages():
    import albert

    assert f"Version {albert.__version__}." in (REPO / "README.md").read_text("utf-8")
    changes = (DOCS / "CHANGELOG.md").read_text("utf-8")
    assert re.search(r"^## (\S+)$", changes, re.M)[1] == albert.__version__
