"""Static checks of the source: the direction of imports, links, names that pages mention."""

import ast
import functools
import graphlib
import importlib
import json
import pathlib
import re

import pytest
from absl import flags as absl_flags
from helpers import REPO, setup_arguments

import albert

PACKAGE, DOCS = REPO / "albert", REPO / "docs"
PAGES = [REPO / "README.md", REPO / "CHANGELOG.md", REPO / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]

# --- Imports ---

# Each subpackage, with those that it may import from. Top-level modules that are not commands
# are listed by name.
PUBLIC = {
    "albert_tokenizer", "config", "engines", "errors", "model_base", "modeling", "optimization",
    "tokenization",
}
DATA = {"runtime", "storage", "text", "records"}
MODELS = DATA | {"model", "formats", "tasks"}
ROOMS = {
    "runtime": set(), "storage": set(), "text": {"runtime", "storage"},
    "records": {"runtime", "storage", "text"}, "pretraining_data": DATA, "model": DATA,
    "formats": DATA | {"model"}, "tasks": DATA | {"model", "formats", "pretraining_data"},
    "training": MODELS, "export": MODELS | {"inference"}, "inference": MODELS | {"training"},
    "cli": MODELS | {"training", "pretraining_data", "inference"},
}
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
SHARED = "finetune"  # by the commands that fine-tune
COMMANDS = {name for name in MODULES if "." not in name} - PUBLIC - {"__init__", "__main__", SHARED}
OPTIONAL = {
    "apache_beam": "pretraining_data.beam", "backports": "text.text_files",
    "sentencex": "text.sentences", "openvino": "inference.onnx_graph",
    "pyarrow": "text.structured_files",
}


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: pathlib.Path, everywhere: bool) -> set[str]:
    """Returns the imported modules: at the top level only, or everywhere."""
    tree, found = tree_of(path), set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages(path, everywhere=True) -> set[str]:
    return {(name or "").split(".")[0] for name in imports(path, everywhere)}


def ours(name: str, everywhere: bool = True) -> set[str]:
    found = imports(MODULES[name], everywhere)
    return {n.removeprefix("albert.") for n in found if n and "albert" in n} & set(MODULES)


def room(name: str) -> str:
    return name.rpartition(".")[0]


def test_a_room_imports_only_from_those_below_it_and_tells_what_its_modules_are_for():
    for name, path in MODULES.items():
        here = room(name)
        if here in ROOMS:
            up = {room(n) for n in ours(name)} - {"", here} - ROOMS[here]
            assert not up, f"{name} imports from {sorted(up)}"
        # run_squad_v1 and run_squad_v2 are run_squad.
        shared = {"run_squad"} if name.startswith("run_squad_v") else set()
        assert not ours(name) & COMMANDS - {name} - shared, f"{name} imports a command"
        if name not in {*COMMANDS, SHARED} and here != "cli":
            assert "cli.flags" not in ours(name), f"{name} reads flags"
        if here in {*DATA, "pretraining_data"}:
            assert "modeling" not in ours(name), name
        if here == "training":  # it must not know any concrete task
            assert {n for n in ours(name) if n.startswith("tasks")} <= {"tasks", "tasks.task"}
    for name in ROOMS:
        told = ast.get_docstring(ast.parse(MODULES[f"{name}.__init__"].read_text("utf-8")))
        of_it = {n.rpartition(".")[2] for n in MODULES if room(n) == name} - {"__init__"}
        assert set(re.findall(r"^ *(\w+)  ", told, re.M)) == of_it, name


def test_no_module_and_no_room_imports_itself_by_a_detour():
    # Imports inside functions count too: they hide a cycle, and do not break it.
    arrows = {name: ours(name) - {name} for name in MODULES}
    graphlib.TopologicalSorter(arrows).prepare()
    rooms = {name: set() for name in ROOMS}
    for name in (name for name in MODULES if room(name) in ROOMS):
        rooms[room(name)] |= {room(n) for n in arrows[name]} - {"", room(name)}
    graphlib.TopologicalSorter(rooms).prepare()


def test_libraries_are_imported_only_where_they_belong():
    for name in COMMANDS:  # which must start without importing TensorFlow
        seen, queue = set(), [name]
        while queue:
            if (current := queue.pop()) not in seen:
                seen.add(current)
                heavy = {"tensorflow", "keras", "matplotlib"} & packages(MODULES[current], False)
                assert not heavy, f"{name} imports {heavy} through {current}"
                queue += ours(current, everywhere=False)
    names = ("islands", "dropout")
    for_tensorflow = {f"model.{name}" for name in names}
    for name, path in MODULES.items():
        of_model = room(name) == "model" or name in ("modeling", "model_base")
        if of_model and name not in for_tensorflow:
            assert "tensorflow" not in packages(path), name
        text = path.read_text(encoding="utf-8")
        assert "compat.v1" not in text and "tf_keras" not in text, name
        assert not packages(path, everywhere=False) & set(OPTIONAL), name
        assert packages(path) & set(OPTIONAL) == {p for p, home in OPTIONAL.items() if home == name}
    # Libraries that can crash a process that uses TensorFlow are imported in another process.
    apart = {"torch", "transformers", "keras_hub"}
    for path in [*MODULES.values(), *(REPO / "tests").rglob("*.py")]:
        text = path.read_text("utf-8")
        if any(package in text for package in apart):
            assert not packages(path, everywhere=False) & apart, path
            assert path.name.startswith("their_") or not packages(path) & apart, path
            assert not re.search(r"importorskip\(.(torch|transformers|keras_hub)\b", text), path


# --- Pages ---


def test_every_flag_of_every_command_on_every_page_is_one_of_its_own():
    shown, scripts = 0, "|".join(COMMANDS).replace("_", "-")
    for page in PAGES:
        text = page.read_text("utf-8").replace("\\\n", " ")
        text = re.sub(rf"\balbert-({scripts})(?= )",
                      lambda m: f"python -m albert.{m[1].replace('-', '_')}", text)
        for module, rest in re.findall(r"^.*?python -m (albert\.(?!examples)[a-z_12]+)(.*)$", text, re.M):
            values, shown = absl_flags.FlagValues(), shown + 1
            importlib.import_module(module).define_flags(values)
            for name in re.findall(r"--(\w+)", rest.split(" -- ")[0]):
                assert {name, name.removeprefix("no")} & set(values), f"{page}: {module} {name}"
    assert shown > 40


def anchors(page: pathlib.Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_and_pictures_lead_somewhere_and_every_page_is_linked():
    linked, shown = set(), set()
    for page in PAGES:
        for mark, text, target in re.findall(r"(!?)\[(.*?)\]\((\S+?)\)", page.read_text("utf-8")):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            assert file.exists() and file.is_relative_to(REPO), f"{page}: {target}"
            assert not anchor or anchor in anchors(file), f"{page}: {target}"
            assert not mark or len(text) > 20, f"{page}: {target}"  # the alt text describes it
            (shown if mark else linked).add(file)
    assert set(PAGES[1:]) <= linked and shown == set((DOCS / "pictures").iterdir())


def test_pictures_show_the_figures_of_the_evidence():
    texts = {path.name: path.read_text("utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    for work in json.loads((DOCS / "evidence/speed.json").read_text("utf-8"))["works"]:
        assert work["work"] in texts["speed.svg"]
        for rate in work["speeds"].values():
            assert f"{rate / work['speeds'][work['baseline']]:.1f}×" in texts["speed.svg"], work
    report = json.loads((DOCS / "evidence/report.json").read_text("utf-8"))
    for cell in sum(report["scores"][1:], []):
        assert cell.partition(" with")[0] in texts["report.svg"], cell


def test_what_pages_name_is_there(monkeypatch):
    readme = (REPO / "README.md").read_text("utf-8")
    changes = (REPO / "CHANGELOG.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 100 and f"Version {albert.__version__}." in readme
    assert re.search(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", changes, re.M)[1] == albert.__version__
    told = (REPO / "scripts/maintainers/README.md").read_text(encoding="utf-8")
    for path in (REPO / "scripts/maintainers").glob("*.py"):
        assert f"| `{path.name}` |" in told and f"scripts/maintainers/{path.name}" in told
    told = (REPO / "CONTRIBUTING.md").read_text("utf-8").partition("## The packages")[2]
    names = set(re.findall(r"`([a-z_/]+(?:\.py)?)`", told.partition("## Rules")[0]))
    assert len(names) > 40
    for name in names - {"finetune"}:  # a benchmark
        places = [REPO / place / name for place in (
            ".", "albert", "albert/pretraining_data", "albert/records")]
        places += (REPO / "tests").rglob(name.rpartition("/")[2])
        assert any(p.exists() or p.with_suffix(".py").exists() for p in places), name
    monkeypatch.syspath_prepend(REPO / "scripts/maintainers")
    import reference

    for name, page in reference.PAGES.items():
        assert page() == (reference.FOLDER / name).read_text("utf-8"), (
            f"docs/reference/{name}: run python scripts/maintainers/reference.py"
        )


def test_the_common_errors_are_those_of_the_code():
    code = "".join(path.read_text("utf-8") for path in MODULES.values())
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    table = (DOCS / "reference/exit_codes.md").read_text("utf-8").partition("## Common errors")[2]
    errors = re.findall(r"^\| `(.+?)` \|", table, re.M)
    assert len(errors) == 14 and not [error for error in errors if error not in code]


def test_every_promise_of_reliability_has_a_test_that_is_there():
    text = (DOCS / "evidence/reliability.md").read_text("utf-8")
    assert "docs/evidence/reliability.md" in (REPO / "README.md").read_text("utf-8")
    functions = {
        path.stem: {node.name for node in ast.parse(path.read_text("utf-8")).body
                    if isinstance(node, ast.FunctionDef)}
        for path in (REPO / "tests").rglob("test_*.py")
    }
    tests = {}
    for line in (REPO / "tests/docs/promises.txt").read_text("utf-8").splitlines():
        number, *names = line.split()
        tests[number] = names
        for module, _, test in (name.partition("::") for name in names):
            assert test in functions[module], f"{number}: {module}::{test}"
    promises = re.findall(r"^\| (\d+) \| (\S.*) \|$", text, re.M)
    assert [number for number, _ in promises] == [str(n) for n in range(1, len(promises) + 1)]
    assert {number for number, _ in promises} == {number for number, names in tests.items() if names}
    for script in re.findall(r"scripts/maintainers/\w+\.py", text):
        assert (REPO / script).is_file(), script


@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").iterdir()), ids=lambda path: path.stem)
def test_a_notebook_is_plain_python_with_what_it_prints_and_draws_on_no_machine(path):
    notebook = json.loads(path.read_text("utf-8"))
    ids = [cell["id"] for cell in notebook["cells"]]
    assert notebook["nbformat"] == 4 and len(set(ids)) == len(ids)
    for cell in (cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        code, outputs = "".join(cell["source"]), cell["outputs"]
        compile(code, cell["id"], "exec")
        kinds = {kind for output in outputs for kind in output.get("data", ())}
        told = any(output["output_type"] == "stream" for output in outputs)
        assert told == bool(re.search(r"^ *print\(", code, re.M)), cell["id"]
        assert ("image/png" in kinds) == ("plt.show()" in code), cell["id"]
        for output in outputs:
            assert output["output_type"] != "error" and output.get("name") != "stderr"
            told = "".join([*output.get("text", ()), *output.get("data", {}).get("text/plain", ())])
            assert not re.search(r"/(home|root|tmp|work|Users)/|Traceback", told), told


def test_setup_names_every_package_and_every_command_and_the_types_every_name():
    folders = {path.parent for path in MODULES.values()}
    assert set(setup_arguments()["packages"]) == {
        ".".join(folder.relative_to(REPO).parts) for folder in folders
    }
    assert all((folder / "__init__.py").exists() for folder in folders)
    with_cli = {name for name in COMMANDS
                if re.search(r"^cli = ", MODULES[name].read_text("utf-8"), re.M)}
    assert set(setup_arguments()["entry_points"]["console_scripts"]) == {
        f"albert-{name.replace('_', '-')} = albert.{name}:cli" for name in with_cli
    }
    tree = tree_of(PACKAGE / "__init__.pyi")
    names = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == set(dir(albert)) - {"__version__"}
    for name in names:
        getattr(albert, name)
