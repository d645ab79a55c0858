"""The package as it is installed: its commands, its parts, a wheel somewhere else."""

import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest
from helpers import REPO, setup_arguments

COMMANDS = dict(
    re.fullmatch(r"(\S+) = (\S+)", line).groups()
    for line in setup_arguments()["entry_points"]["console_scripts"]
)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_console_script_names_a_command_of_its_name(name):
    module, _, function = COMMANDS[name].partition(":")
    assert name == module.replace(".", "-").replace("_", "-")
    assert callable(getattr(importlib.import_module(module), function))


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
    }
    assert all((folder / "__init__.py").exists() for folder in folders)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of commands of an environment where a wheel of ours is, and no repository."""
    folder = tmp_path_factory.mktemp("installed")
    # A copy, so that the repository gets no build folder.
    shutil.copytree(REPO / "albert", folder / "source/albert",
                    ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "README.md", "LICENSE"):
        shutil.copy(REPO / name, folder / "source")

    def run(*command):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    run(sys.executable, *pip, "wheel", "--no-deps", "--no-build-isolation", "-w", "wheels",
        str(folder / "source"))
    [wheel] = (folder / "wheels").glob("albert-*.whl")
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    paths = {"base": str(folder / "environment"), "platbase": str(folder / "environment")}
    site = pathlib.Path(sysconfig.get_path("purelib", "venv", paths))
    # What we need of others is that of this environment, without its own installation of us.
    ours = re.compile(r"(__editable__.*)?albert\b.*|.*\.pth|.*\.egg-link")
    for found in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if not ours.fullmatch(found.name):
            (site / found.name).symlink_to(found)
    python = str(folder / "environment/bin/python")
    run(sys.executable, *pip, f"--python={python}", "install", "--no-deps", "--no-index",
        str(wheel))
    shutil.rmtree(folder / "source")
    return folder / "environment/bin"


def test_a_wheel_installed_elsewhere_has_all_of_the_package(installed, tmp_path):
    code = (
        "import pkgutil, albert\n"
        "for found in pkgutil.walk_packages(albert.__path__, 'albert.'): print(found.name)\n"
        "print(albert.__file__)\n"
    )
    done = subprocess.run(
        [installed / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"]},
    )
    *modules, place = done.stdout.split()
    assert pathlib.Path(place).is_relative_to(installed.parent), done.stderr
    assert set(modules) == {
        ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")
        for path in (REPO / "albert").rglob("*.py")
    } - {"albert"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_an_installed_wheel_explains_itself(name, installed, tmp_path):
    done = subprocess.run(
        [installed / name, "--help"], cwd=tmp_path, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"]},
    )
    module = importlib.import_module(COMMANDS[name].partition(":")[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(module.__doc__.partition("\n")[0]) and "--flagfile" in done.stdout
