"""The package as it is installed: its commands, its parts, a wheel somewhere else."""

import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pydoc_data import topics

import pytest
from helpers import REPO, run_here, setup_arguments

from albert.config import RELEASED

COMMANDS = dict(
    re.fullmatch(r"(\S+) = (\S+)", line).groups()
    for line in setup_arguments()["entry_points"]["console_scripts"]
)


def test_every_console_script_names_a_command_of_its_name_which_explains_itself(capsys):
    for name, place in COMMANDS.items():
        module, _, function = place.partition(":")
        assert name == module.replace(".", "-").replace("_", "-")
        command = importlib.import_module(module)
        assert callable(getattr(command, function)), name
        assert run_here(command, "--help") == 0, name
        said = capsys.readouterr().out
        assert said.startswith(command.__doc__.partition("\n")[0]) and "--flagfile" in said, name


def test_every_command_has_a_console_script():
    with_cli = {
        f"albert.{path.stem}:cli" for path in (REPO / "albert").glob("*.py")
        if re.search(r"^cli = ", path.read_text("utf-8"), re.M)
    }
    assert set(COMMANDS.values()) == with_cli


def test_setup_names_every_package_of_the_tree():
    folders = {path.parent for path in (REPO / "albert").rglob("*.py")}
    assert set(setup_arguments()["packages"]) == {
        ".".join(folder.relative_to(REPO).parts) for folder in folders
    } | {"albert.configs"}
    assert all((folder / "__init__.py").exists() for folder in folders)


def run(*command, cwd) -> str:
    """Runs a program without this repository; returns what it printed."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of commands of an environment where a wheel of ours is, and no repository."""
    folder = tmp_path_factory.mktemp("installed")
    # A copy, so that the repository gets no build folder.
    for name in ("albert", "configs"):
        shutil.copytree(REPO / name, folder / "source" / name,
                        ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "README.md", "LICENSE"):
        shutil.copy(REPO / name, folder / "source")
    # By way of a source distribution, which so has to hold all of it too.
    run(sys.executable, "setup.py", "-q", "sdist", cwd=folder / "source")
    [packed] = (folder / "source/dist").iterdir()
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    run(sys.executable, *pip, "wheel", "--no-deps", "--no-build-isolation", "-w", "wheels",
        packed, cwd=folder)
    [wheel] = (folder / "wheels").glob("albert-*.whl")
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    paths = {"base": str(folder / "environment"), "platbase": str(folder / "environment")}
    site = pathlib.Path(sysconfig.get_path("purelib", "venv", paths))
    # What we need of others is that of this environment, without its own installation of us.
    ours = re.compile(r"(__editable__.*)?albert\b.*|.*\.pth|.*\.egg-link")
    for found in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if not ours.fullmatch(found.name):
            (site / found.name).symlink_to(found)
    run(sys.executable, *pip, f"--python={folder / 'environment/bin/python'}", "install",
        "--no-deps", "--no-index", wheel, cwd=folder)
    shutil.rmtree(folder / "source")
    return folder / "environment/bin"


def test_a_wheel_installed_elsewhere_has_all_of_the_package_and_its_commands(installed, tmp_path):
    code = (
        "import pathlib, albert\n"
        "root = pathlib.Path(albert.__file__).parent\n"
        "print(*(path.relative_to(root) for path in root.rglob('*') if path.is_file()))\n"
        "print(root)\n"
    )
    *found, place = run(installed / "python", "-c", code, cwd=tmp_path).split()
    assert pathlib.Path(place).is_relative_to(installed.parent)
    wanted = {str(path.relative_to(REPO / "albert")) for path in (REPO / "albert").rglob("*.py")}
    wanted |= {
        str(path.relative_to(REPO)) for path in (REPO / "configs").rglob("*") if path.is_file()
    }
    wanted |= {
        str(path.relative_to(REPO / "albert"))
        for path in (REPO / "albert/models").rglob("*") if path.is_file()
    }
    assert {path for path in found if "__pycache__" not in path} == wanted
    assert all((installed / name).is_file() for name in COMMANDS)


def test_commands_of_an_installed_wheel_work_without_the_repository(installed, tmp_path):
    text = "\n\n".join(list(topics.topics.values())[:25]).replace("`", "")
    (tmp_path / "my_text.txt").write_text(text, encoding="utf-8")
    run(installed / "albert-prepare-text", "--input_file=my_text.txt", "--output_dir=text",
        cwd=tmp_path)
    run(installed / "albert-train-sentencepiece", "--input=text/corpus.txt",
        "--model_prefix=spm", "--vocab_size=400", cwd=tmp_path)
    run(installed / "albert-create-pretraining-data", "--input_file=text/corpus.txt",
        "--spm_model_file=spm.model", "--output_file=train.tfrecord", "--max_seq_length=32",
        "--max_predictions_per_seq=5", "--dupe_factor=1", "--num_processes=1", cwd=tmp_path)
    manifest = json.loads((tmp_path / "train.tfrecord.manifest.json").read_text())
    assert manifest["records"] > 10
    told = json.loads(run(
        installed / "albert-model-info", f"--albert_config_file={','.join(RELEASED)}",
        "--format=json", cwd=tmp_path,
    ))
    sizes = [model["parameters"]["backbone"] for model in told["models"]]
    assert len(sizes) == len(RELEASED) and sizes[0] == sizes[1] == 11_683_584
