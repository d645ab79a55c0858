"""The direction of the dependencies, read from the imports."""

import ast
import pathlib
import re

import pytest
from helpers import REPO

PACKAGE = REPO / "albert"
COMMANDS = {
    "create_pretraining_data", "evaluate_squad", "export_checkpoints", "export_model",
    "export_to_tfhub", "extract_features", "fill_mask", "glue_report", "model_info", "predict",
    "run_classifier", "run_pretraining", "run_race", "run_squad", "run_squad_v1", "run_squad_v2",
    "run_token_classifier",
}
# What may touch flags: the commands and what they share.
FLAG_USERS = COMMANDS | {"fine_tuning", "flags", "inference", "question_answering"}
# Importable before TensorFlow, so that usage errors answer at once.
LIGHT = COMMANDS | {
    "albert_tokenizer", "beam_pipeline", "config", "documents", "errors", "features", "files",
    "fine_tuning", "flags", "inference", "masking", "metrics.choice", "metrics.entities",
    "metrics.glue", "metrics.squad", "model_card", "model_facts", "model_size", "original_draws",
    "own_text.labelled_task", "pair_records", "prediction_files", "predictors",
    "question_answering", "records", "sidecars", "squad_alignment", "squad_decode",
    "squad_features", "squad_records", "tasks.conll", "tasks.glue", "tasks.race", "tasks.tsv",
    "text_files", "tfrecord", "tokenization", "tokenizer_files", "training_plan", "vocabulary",
}


def modules() -> dict[str, pathlib.Path]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }


def imports(path: pathlib.Path, everywhere: bool) -> set[str]:
    """Returns the imported modules: at the top, or everywhere."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if everywhere else tree.body
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(path: pathlib.Path, everywhere: bool = True) -> set[str]:
    known = modules()
    names = {n.removeprefix("albert.") for n in imports(path, everywhere) if "albert" in n}
    return names & set(known)


@pytest.mark.parametrize("name", sorted(modules()))
def test_only_commands_read_flags(name):
    if name not in FLAG_USERS:
        assert "flags" not in ours(modules()[name])


@pytest.mark.parametrize("name", [n for n in sorted(modules()) if n.startswith("tasks.")])
def test_a_task_knows_neither_trainer_nor_command(name):
    assert not ours(modules()[name]) & ({"trainer", "input_pipeline", "checkpoints"} | FLAG_USERS)


@pytest.mark.parametrize("name", ["trainer", "evaluation", "run_config", "steps"])
def test_the_trainer_knows_no_concrete_task(name):
    tasks = {n for n in ours(PACKAGE / f"{name}.py") if n.startswith("tasks")}
    assert tasks <= {"tasks", "tasks.task"}


@pytest.mark.parametrize("name", sorted(modules()))
def test_nothing_but_a_command_imports_a_command(name):
    assert not ours(modules()[name]) & COMMANDS - {name}


@pytest.mark.parametrize("name", sorted(LIGHT))
def test_light_modules_import_no_tensorflow(name):
    known, seen, queue = modules(), set(), [name]
    while queue:
        current = queue.pop()
        if current in seen:
            continue
        seen.add(current)
        top = imports(known[current], everywhere=False)
        heavy = {n.split(".")[0] for n in top} & {"tensorflow", "keras", "matplotlib"}
        assert not heavy, f"{name} imports {heavy} through {current}"
        queue += ours(known[current], everywhere=False)


@pytest.mark.parametrize("name", ["layers", "modeling"])
def test_the_model_imports_keras_and_not_tensorflow(name):
    names = {n.split(".")[0] for n in imports(PACKAGE / f"{name}.py", everywhere=True)}
    assert "keras" in names and "tensorflow" not in names


def test_the_product_uses_no_tensorflow_1_and_no_keras_2():
    for name, path in modules().items():
        text = path.read_text(encoding="utf-8")
        assert "compat.v1" not in text and "tf_keras" not in text, name


def test_optional_packages_are_imported_in_one_place_each_and_not_at_its_top():
    places = {
        "tensorflow_text": "text_graph", "tf2onnx": "model_conversion",
        "onnxruntime": "model_conversion", "apache_beam": "beam_pipeline",
        "zstandard": "text_files",
    }
    for name, path in modules().items():
        assert not {n.split(".")[0] for n in imports(path, everywhere=False)} & set(places), name
        for package, home in places.items():
            found = package in {n.split(".")[0] for n in imports(path, everywhere=True)}
            assert found == (name == home), f"{package} in {name}"


def test_libraries_that_can_end_a_process_beside_tensorflow_are_imported_apart():
    apart = {"torch", "transformers", "keras_hub"}
    for path in [*PACKAGE.rglob("*.py"), *(REPO / "tests").rglob("*.py")]:
        top, all_of_it = (
            {n.split(".")[0] for n in imports(path, everywhere) if n} & apart
            for everywhere in (False, True)
        )
        # Theirs are imported inside of functions, which another process runs (tests/apart.py).
        assert not top and (not all_of_it or path.name.startswith("their_")), path
        if path != pathlib.Path(__file__):
            assert not re.search(rf"importorskip\(.({'|'.join(apart)})\b", path.read_text("utf-8"))
