"""The examples of the README and docs/ run in their order, and the notebooks from top to bottom."""

import json
import os
import re
import shlex
import shutil
from pydoc_data import topics

import jobs
import pytest
from helpers import NEEDS_JAX, REPO, program, run

from albert import fill_mask
from albert.cli import flags

PAGES = [*(REPO / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
         *sorted((REPO / "docs").rglob("*.md"))]
# The pages with examples, in the order in which they build on each other.
GUIDES = [
    "docs/guides/pretrain.md", "docs/start/first_classifier.md", "docs/guides/tune_classifier.md",
    "README.md", "docs/guides/records.md", "docs/guides/another_language.md", "docs/guides/serve.md",
    "docs/guides/tasks.md", "docs/guides/embeddings.md", "docs/guides/which_model.md",
    "docs/start/old_checkpoints.md", "docs/guides/accelerators.md",
]
# Enough to see that a command works; the last flag wins.
SMALLER = {
    "train_sentencepiece": ["--vocab_size=500"],
    "create_pretraining_data": ["--dupe_factor=2"],
    "run_pretraining": ["--num_train_steps=4", "--num_warmup_steps=1", "--max_eval_steps=2",
                        "--save_checkpoints_steps=4", "--train_batch_size=8"],
    "pretrain_from_text": ["--hours=0.005"],
    "run_classifier": ["--train_step=4", "--warmup_step=1", "--save_checkpoints_steps=4"],
    "run_squad": ["--train_step=2", "--warmup_step=1", "--save_checkpoints_steps=2"],
    "run_token_classifier": ["--train_step=4", "--warmup_step=1", "--save_checkpoints_steps=4"],
    "run_race": ["--train_step=2", "--warmup_step=1", "--save_checkpoints_steps=2"],
}
NUMBER = re.compile(r"\d+\.\d+")
QUESTIONS = {
    "context": "A cat sat on a mat.",
    "qas": [
        {"id": "1", "question": "Who sat?", "answers": [{"text": "A cat", "answer_start": 0}]},
        {"id": "2", "question": "Who ran?", "answers": [], "is_impossible": True},
    ],
}


def examples(page: str) -> list[tuple[str, str]]:
    """Returns (language, code) of a page's fenced blocks."""
    text = (REPO / page).read_text(encoding="utf-8")
    return re.findall(r"```(\w*)\n(.*?)```", text, flags=re.DOTALL)


def commands(code: str) -> list[tuple[str, list[str], str | None, str | None]]:
    """Returns (module or script, arguments, standard input, output file) of each command of a block.

    A command may get its input from `echo TEXT |`, and write to a file with `>`.
    """
    found = []
    for line in re.sub(r"\\\n|(?<=\|)\n", " ", code).splitlines():
        words, given, output = shlex.split(line), None, None
        if words[0] == "echo":
            given, words = words[1] + "\n", words[words.index("|") + 1 :]
        if ">" in words:
            output, words = words[-1], words[: words.index(">")]
        assert words[0] == "python" and (words[1] == "-m" or words[1].startswith("scripts/")), line
        words = words[2 if words[1] == "-m" else 1 :]
        found.append((words[0], words[1:], given, output))
    return found


@pytest.fixture
def workshop(tmp_path):
    """A folder with the repository's scripts and configs, a text, and small data for each task."""
    # Prose that comes with every Python.
    documents = [
        "\n".join(line for line in topics.topics[name].splitlines() if line.endswith((".", ",")))
        for name in sorted(topics.topics)[:40]
    ]
    text = "\n\n".join(documents).replace("`", "")
    for name in ("my_text.txt", "my.txt"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "albert_base").symlink_to("work/pretrained")  # by the commands of pretrain.md
    (tmp_path / "data").mkdir()
    jobs.write_race(tmp_path / "data", passages=1)
    folder = tmp_path / "data" / "squad"
    folder.mkdir()
    paragraphs = [
        QUESTIONS | {"qas": [qa | {"id": f"{qa['id']}-{i}"} for qa in QUESTIONS["qas"]]}
        for i in range(8)
    ]
    for name in ("train", "dev"):
        text = json.dumps({"data": [{"paragraphs": paragraphs}]})
        (folder / f"{name}-v2.0.json").write_text(text)
    folder = tmp_path / "data" / "SST-2"
    folder.mkdir()
    rows = "sentence\tlabel\n" + "It works.\t1\nIt broke at once.\t0\n" * 8
    for name in ("train", "dev", "test"):
        (folder / f"{name}.tsv").write_text(rows if name != "test" else "index\tsentence\n0\tIt works.\n")
    folder = tmp_path / "data" / "ner"
    folder.mkdir()
    for name in ("train", "dev", "test"):
        (folder / f"{name}.txt").write_text("Ada B-PER\nLovelace I-PER\nwrites O\n. O\n\n" * 8)
    os.symlink(REPO / "scripts", tmp_path / "scripts")
    # The configurations of the examples, with a vocabulary for this small text.
    (tmp_path / "configs").mkdir()
    for source in (REPO / "configs").glob("*.json"):
        text = source.read_text().replace('"vocab_size": 2000', '"vocab_size": 500')
        (tmp_path / "configs" / source.name).write_text(text)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_examples_of_every_page_run_in_their_order(workshop):
    wanted = [example for page in GUIDES for example in examples(page) if example[0] in ("bash", "python")]
    assert len(wanted) > 24
    for number, (language, code) in enumerate(wanted):
        script = f"example_{number}.py"
        (workshop / script).write_text(code)
        steps = commands(code) if language == "bash" else [(script, [], None, None)]
        for module, words, given, output in steps:
            words += next((v for k, v in SMALLER.items() if k in module), [])
            if module.endswith(".py"):
                done = program(workshop / module, *words, cwd=workshop)
            elif given is None:  # forks of one process that has imported TensorFlow
                done = run(module, *words, cwd=workshop)
            else:
                (workshop / "stdin.txt").write_text(given)
                with open(workshop / "stdin.txt") as stream:
                    done = run(module, *words, cwd=workshop, stdin=stream)
            assert done.returncode == 0, f"{code}\n{done.stderr[-3000:]}"
            if output:
                (workshop / output).write_text(done.stdout)
    for name in ("work/classifier", "work/own", "work/glue", "my_classifier"):
        assert "eval_accuracy = " in (workshop / name / "eval_results.txt").read_text()
    assert (workshop / "work/glue/submit_results.tsv").stat().st_size
    assert "300 rows of my_test.csv" in (workshop / "my_classifier/report.md").read_text()
    assert (workshop / "my_model/model/albert_config.json").exists()
    assert (workshop / "albert_hf/model.safetensors").exists()
    assert "eval_accuracy_high = " in (workshop / "work/race/predict_results.txt").read_text()


def shown_after(page: str, code: str) -> str:
    """Returns the output that a page shows: comments of an example's prints, or the block after it."""
    if comments := re.findall(r"^print\(.*\)  # (.*)$", code, re.M):
        return "\n".join(comments)
    after = (REPO / page).read_text(encoding="utf-8").partition(code)[2]
    return re.match(r"```\s+```text\n(.*?)```", after, re.DOTALL)[1]


def assert_shown(page: str, code: str, printed: str):
    """Compares an output with that of the page: the words exactly, the numbers within 0.02."""
    (words, numbers), (their_words, their_numbers) = (
        (NUMBER.sub("#", text).split(), [float(number) for number in NUMBER.findall(text)])
        for text in (shown_after(page, code), printed)
    )
    assert words == their_words and numbers == pytest.approx(their_numbers, abs=0.02), printed


@pytest.mark.parametrize("page", [
    "README.md", "docs/guides/embeddings.md", "docs/start/first_classifier.md",
    pytest.param("docs/guides/tune_classifier.md", marks=pytest.mark.slow),  # half a minute of `fit`
])
def test_the_python_of_the_first_pages_runs_and_prints_what_they_show(
    page, classified, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(classified.out, "work/classifier")
    for code in [code for language, code in examples(page) if language == "python"]:
        exec(code, {})
        printed = capsys.readouterr().out
        if "work/classifier" in code:  # depends on the reader's classifier
            assert printed.count("probability") >= 1 and len(printed.splitlines()) == 3
        else:
            assert_shown(page, code, printed)


@NEEDS_JAX
@pytest.mark.slow
def test_the_readmes_python_runs_unchanged_on_jax(tmp_path):
    [code] = [code for language, code in examples("README.md") if language == "python"]
    (tmp_path / "readme.py").write_text(code)
    done = program(tmp_path / "readme.py", cwd=tmp_path, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    assert_shown("README.md", code, done.stdout)


def test_masks_are_filled_as_the_page_shows(capsys):
    page = "docs/guides/embeddings.md"
    [code] = [code for language, code in examples(page) if language == "bash" and "fill_mask" in code]
    [(_, arguments, _, _)] = commands(code)
    assert flags.run_command(
        fill_mask.__doc__, fill_mask.define_flags, fill_mask.main,
        ["albert-fill-mask", *arguments], takes_arguments=True,
    ) == 0
    assert_shown(page, code, capsys.readouterr().out)


def test_every_example_is_on_a_page_that_the_tests_run():
    """Commands that need the network, other machines or another toolkit are marked sh."""
    for page in PAGES:
        found = [each for each in examples(page.relative_to(REPO))
                 if each[0] != "mermaid"]
        assert {language for language, _ in found} <= {"bash", "python", "sh", "text"}, page
        is_run = str(page.relative_to(REPO)) in GUIDES
        assert is_run or not {"bash", "python"} & {language for language, _ in found}, page
        for code in (code for language, code in found if language == "bash"):
            assert commands(code), page
    assert set(GUIDES) <= {str(page.relative_to(REPO)) for page in PAGES}
    for language, code in examples("README.md"):
        assert language != "bash" or max(map(len, code.splitlines())) <= 46, code  # a phone shows this


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_notebook_runs_from_top_to_bottom_on_its_own(tmp_path):
    """Plots are saved instead of shown, and the output files are checked at the end."""
    show = (
        "import matplotlib.pyplot as plt\n"
        "def _show():\n"
        "    for number in plt.get_fignums():\n"
        f"        plt.figure(number).savefig(rf'{tmp_path}/{{_cell}}.png')\n"
        "    plt.close('all')\n"
        "plt.show = _show\n"
    )
    for name in ("tour", "own_labels"):
        notebook = json.loads((REPO / f"docs/notebooks/{name}.ipynb").read_text(encoding="utf-8"))
        cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
        cells = [f"_cell = '{name}-{i}'\n{code}" for i, code in enumerate(cells)]
        script = tmp_path / f"{name}.py"
        script.write_text("\n".join([show, *cells]), encoding="utf-8")
        done = program(script, cwd=tmp_path, MPLBACKEND="Agg",
                       ALBERT_NOTEBOOK_DIR=str(tmp_path / name))
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    pictures = sorted(tmp_path.glob("*.png"))
    assert len(pictures) == 2 and all(path.stat().st_size > 5000 for path in pictures)
    results = json.loads((tmp_path / "tour/classifier/eval_results.json").read_text())
    assert results["eval_accuracy"] > 0.35  # chance is 0.2: five labels, all as frequent
    assert len((tmp_path / "tour/answers.jsonl").read_text().splitlines()) == 3
    assert (tmp_path / "own_labels/own_labels/config.json").exists()
