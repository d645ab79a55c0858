"""The direction of the dependencies, read from the imports."""

import ast
import graphlib
import pathlib
import re

from helpers import REPO

PACKAGE = REPO / "albert"
# The rooms, each with those whose modules it may import. What lies at the top of the package
# without being a command is listed by its name.
PUBLIC = {
    "albert_tokenizer", "config", "engines", "errors", "model_base", "modeling", "optimization",
    "tokenization",
}
DATA = {"runtime", "storage", "text", "records"}
ROOMS = {
    "runtime": set(),
    "storage": set(),
    "text": {"runtime", "storage"},
    "records": {"runtime", "storage", "text"},
    "pretraining_data": DATA,
    "model": DATA,
    "formats": {*DATA, "model"},
    "tasks": {*DATA, "model", "formats", "pretraining_data"},
    "tasks.squad": {*DATA, "model", "formats", "tasks"},
    "training": {*DATA, "model", "formats", "tasks"},
    "export": {*DATA, "model", "formats", "tasks", "inference"},
    "inference": {*DATA, "model", "formats", "tasks", "tasks.squad", "training"},
    "cli": {
        *DATA, "model", "formats", "tasks", "tasks.squad", "training", "pretraining_data",
        "inference",
    },
}


def modules() -> dict[str, pathlib.Path]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
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


def room(name: str) -> str:
    return name.rpartition(".")[0]


def commands() -> set[str]:
    at_the_top = {name for name in modules() if not room(name)}
    return at_the_top - PUBLIC - {"__init__"}


def in_room(*rooms: str) -> list[str]:
    return sorted(name for name in modules() if room(name) in rooms)


def reached_at_import(name: str) -> dict[str, str]:
    """Returns each top-level package that importing a module imports, with who does it."""
    known, seen, queue, found = modules(), set(), [name], {}
    while queue:
        if (current := queue.pop()) not in seen:
            seen.add(current)
            found |= {n.split(".")[0]: current for n in imports(known[current], everywhere=False)}
            queue += ours(known[current], everywhere=False)
    return found


def test_every_room_says_what_each_of_its_modules_is_for():
    for name in ROOMS:
        told = ast.get_docstring(ast.parse(modules()[f"{name}.__init__"].read_text("utf-8")))
        of_it = {m.rpartition(".")[2] for m in in_room(name)} - {"__init__"}
        assert set(re.findall(r"^ *(\w+)  ", told, re.M)) == of_it, name


def test_a_room_imports_only_from_the_rooms_below_it():
    for name in modules():
        if (here := room(name)) in ROOMS:
            there = {room(n) for n in ours(modules()[name])} - {"", here}
            up = there - ROOMS[here]
            assert not up, f"{name} imports from {sorted(up)}"


def test_no_module_and_no_room_imports_itself_by_a_detour():
    # Imports inside of functions count too: they hide a circle, and do not break it.
    arrows = {name: ours(path) - {name} for name, path in modules().items()}
    graphlib.TopologicalSorter(arrows).prepare()
    rooms: dict[str, set[str]] = {name: set() for name in ROOMS}
    for name in in_room(*ROOMS):
        here = room(name)
        there = {room(n) for n in arrows[name]} - {"", here}
        rooms[here] |= there
    graphlib.TopologicalSorter(rooms).prepare()


def test_nothing_imports_a_command():
    for name, path in modules().items():
        assert not ours(path) & commands() - {name}, name


def test_only_the_commands_and_what_they_share_read_flags():
    for name, path in modules().items():
        if name not in commands() and room(name) != "cli":
            assert "cli.flags" not in ours(path), name


def test_the_data_know_no_model():
    for name in in_room(*DATA, "pretraining_data"):
        assert "modeling" not in ours(modules()[name]), name


def test_the_trainer_knows_no_concrete_task():
    for name in in_room("training"):
        assert {n for n in ours(modules()[name]) if n.startswith("tasks")} <= {"tasks", "tasks.task"}


def test_a_command_answers_before_tensorflow_is_imported():
    for name in commands():
        heavy = {"tensorflow", "keras", "matplotlib"} & set(reached := reached_at_import(name))
        assert not heavy, f"{name} imports {heavy} through {[reached[n] for n in heavy]}"


def test_the_model_knows_keras_and_not_tensorflow():
    for_tensorflow = {f"model.{name}" for name in ("layer_loop", "fast_block", "islands", "dropout")}
    for name in set(in_room("model")) - for_tensorflow | {"modeling", "model_base"}:
        assert "tensorflow" not in {n.split(".")[0] for n in imports(modules()[name], True)}, name
    assert "keras" in imports(modules()["modeling"], everywhere=False)


def test_the_product_uses_no_tensorflow_1_and_no_keras_2():
    for name, path in modules().items():
        text = path.read_text(encoding="utf-8")
        assert "compat.v1" not in text and "tf_keras" not in text, name


def test_optional_packages_are_imported_in_one_place_each_and_not_at_its_top():
    places = {
        "tensorflow_text": "export.text_graph", "tf2onnx": "export.model_conversion",
        "onnxruntime": "inference.onnx_file",
        "apache_beam": "pretraining_data.beam", "zstandard": "text.text_files",
        "sentencex": "text.sentences", "pyarrow": "text.structured_files",
        "rensa": "text.filters", "py3langid": "text.filters",
    }
    for name, path in modules().items():
        assert not {n.split(".")[0] for n in imports(path, everywhere=False)} & set(places), name
        for package, home in places.items():
            found = package in {n.split(".")[0] for n in imports(path, everywhere=True)}
            is_home = name.startswith(home) if home.endswith("_") else name == home
            assert found == is_home, f"{package} in {name}"


def test_libraries_that_can_end_a_process_beside_tensorflow_are_imported_apart():
    apart = {"torch", "transformers", "keras_hub"}
    for path in [*PACKAGE.rglob("*.py"), *(REPO / "tests").rglob("*.py")]:
        top, all_of_it = (
            {n.split(".")[0] for n in imports(path, everywhere) if n} & apart
            for everywhere in (False, True)
        )
        # Theirs are imported inside of functions, which another process runs (tests/support/apart.py).
        assert not top and (not all_of_it or path.name.startswith("their_")), path
        if path != pathlib.Path(__file__):
            assert not re.search(rf"importorskip\(.({'|'.join(apart)})\b", path.read_text("utf-8"))
