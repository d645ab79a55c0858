"""The package as published and installed: from a wheel, elsewhere, with all its parts and commands."""

import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest
import yaml
from helpers import REPO, assert_one_clear_line, program, setup_arguments, setup_module

import albert
from albert.errors import CheckpointError
from albert.formats import hub

COMMANDS = [line.split(" = ")[0] for line in setup_arguments()["entry_points"]["console_scripts"]]
OF_A_CLONE = ("albert", "configs", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
OF_THE_SOURCES = (*OF_A_CLONE, "docs", "scripts", "tests", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md",
                  "requirements.txt", "run_glue.sh")


def run(*command, cwd) -> str:
    """Runs a program without this repository; returns its output."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clone(folder: pathlib.Path, names=OF_A_CLONE) -> None:
    """Copies what an installation needs, so that the repository gets no build folder."""
    folder.mkdir(exist_ok=True)
    for path in (REPO / name for name in names):
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder)


def pip_install(folder: pathlib.Path, *what) -> pathlib.Path:
    """Installs into a new environment, which has the dependencies of this one; returns its bin."""
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    paths = {"base": str(folder / "environment"), "platbase": str(folder / "environment")}
    site = pathlib.Path(sysconfig.get_path("purelib", "venv", paths))
    # Dependencies come from this environment, without its own installation of albert.
    ours = re.compile(r"(__editable__.*)?albert(_keras)?\b.*|.*\.pth|.*\.egg-link")
    folders = {sysconfig.get_path("purelib"), *(path for path in sys.path if "site-packages" in path)}
    for found in (found for place in folders for found in pathlib.Path(place).iterdir()):
        if not ours.fullmatch(found.name) and not (site / found.name).exists():
            (site / found.name).symlink_to(found)
    run(sys.executable, *pip, f"--python={folder / 'environment/bin/python'}", "install",
        "--no-deps", "--no-index", "--no-build-isolation", *what, cwd=folder)
    return folder / "environment/bin"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The folder with what is published: a source distribution, and the wheel built from it."""
    pytest.importorskip("build", reason="build and twine are not installed (extra: release)")
    folder = tmp_path_factory.mktemp("published")
    clone(folder / "source", OF_THE_SOURCES)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=folder / "source")
    shutil.rmtree(folder / "source")
    return folder


@pytest.fixture(scope="module")
def installed(published, tmp_path_factory):
    """The commands folder of an environment with our wheel installed and no repository."""
    [wheel] = published.glob("albert_keras-*.whl")
    return pip_install(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="module")
def editable(tmp_path_factory):
    """The commands folder of an environment with `pip install -e albert`, typed above the clone."""
    folder = tmp_path_factory.mktemp("editable")
    clone(folder / "albert")
    return pip_install(folder, "-e", folder / "albert")


@pytest.mark.slow
def test_what_is_published_passes_twine_and_has_a_licence_and_the_sources_have_the_tests(published):
    run(sys.executable, "-m", "twine", "check", "--strict", *published.iterdir(), cwd=published)
    [sources], [wheel] = published.glob("*.tar.gz"), published.glob("*.whl")
    with tarfile.open(sources) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    for name in OF_THE_SOURCES:
        for path in [REPO / name, *(REPO / name).rglob("*")]:
            assert str(path.relative_to(REPO)) in files or "__pycache__" in str(path), path
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = (archive.read(n).decode() for n in archive.namelist() if n.endswith("/METADATA"))
    for line in ("License-Expression: Apache-2.0", "License-File: LICENSE", f"Version: {albert.__version__}",
                 "Classifier: Programming Language :: Python :: 3.13"):
        assert f"\n{line}\n" in metadata
    required = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.M)
    assert "tensorflow-hub" in required and not {"setuptools", "matplotlib"} & set(required)


@pytest.mark.slow
@pytest.mark.parametrize("installation", ["editable", "installed"])
@pytest.mark.parametrize("inside", ["", "albert", "albert/albert", "elsewhere"])
def test_the_package_works_in_and_above_a_clone_of_its_name_and_elsewhere(
    request, tmp_path, installation, inside
):
    commands = request.getfixturevalue(installation)
    clone(tmp_path / "albert")
    (tmp_path / "elsewhere").mkdir()
    above = commands.parents[1] if installation == "editable" else tmp_path
    where = above / inside if inside != "elsewhere" else tmp_path / "elsewhere"
    assert "--top_k" in run(commands / "python", "-m", "albert.fill_mask", "--help", cwd=where)
    # With `python -c`, the working directory comes first on the path.
    code = "import albert; print(albert.from_pretrained, albert.AlbertConfig.released('tiny'))"
    printed = run(commands / "python", "-c", code, cwd=where)
    assert "from_pretrained" in printed and "hidden_size" in printed
    assert "--top_k" in run(commands / "albert-fill-mask", "--help", cwd=where)


@pytest.mark.slow
def test_a_wheel_installed_elsewhere_has_all_of_the_package_and_its_commands_work(
    installed, tmp_path
):
    code = (
        "import importlib.metadata, pathlib, albert\n"
        "assert importlib.metadata.version('albert-keras') == albert.__version__\n"
        "root = pathlib.Path(albert.__file__).parent\n"
        "print(*(path.relative_to(root) for path in root.rglob('*') if path.is_file()))\n"
        "print(root)\n"
    )
    *found, place = run(installed / "python", "-c", code, cwd=tmp_path).split()
    assert pathlib.Path(place).is_relative_to(installed.parent)
    models = [path for path in (REPO / "albert/models").rglob("*") if path.is_file()]
    wanted = {
        str(path.relative_to(REPO / "albert"))
        for path in [*(REPO / "albert").rglob("*.py*"), *models] if path.suffix != ".pyc"
    } | {str(path.relative_to(REPO)) for path in (REPO / "configs").rglob("*") if path.is_file()
         and path.parent.name != "ablations"}  # their script is not in it
    cards = (REPO / "albert/formats/cards").iterdir()
    wanted |= {"py.typed", "cli/report_page.html", *(f"formats/cards/{path.name}" for path in cards)}
    wanted |= {f"examples/{name}" for name in ("LICENSE", "train.csv", "test.csv")}
    assert {path for path in found if "__pycache__" not in path} == wanted
    assert all((installed / command).is_file() for command in COMMANDS)
    assert run(installed / "albert-predict", "--version", cwd=tmp_path) == f"albert {albert.__version__}\n"
    for name, rows in (("train", 500), ("test", 300)):
        [header, *texts] = run(installed / "python", "-m", "albert.examples", name, cwd=tmp_path).splitlines()
        assert header == "text,label" and len(texts) == rows


@pytest.mark.parametrize("url", ["", "https://github.com/OWNER/NAME"])
def test_links_and_pictures_of_the_index_page_lead_somewhere_or_are_plain_text(url):
    readme = (REPO / "README.md").read_text("utf-8")
    page = setup_module()["index_page"](readme, url)
    assert not re.findall(r"\]\((?!https://|#)|(?:src|href)=.(?!https://)", page)
    at = f"{url}/blob/v{albert.__version__}/"
    assert bool(url) == (f"[changes]({at}CHANGELOG.md)" in page)
    assert bool(url) == (f"]({url}/raw/v{albert.__version__}/docs/pictures/" in page)
    # The words stay.
    def words(text):
        return re.sub(r"!\[[^]]*\]\(\S+?\)|\]\(\S+?\)|\[", "", text).replace("]", "").split()
    assert words(page) == words(readme)


def test_the_citation_is_of_this_version_and_without_an_address_nobody_is_asked_to_report_anything():
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == albert.__version__ and citation["license"] == "Apache-2.0"
    if setup_module()["URL"]:
        return
    asks = re.compile(r"report (it|this)\b|write to the maintainers", re.I)
    for folder, kind in (("albert", "*.py"), ("docs", "*.md"), ("", "README.md")):
        for path in (REPO / folder).rglob(kind) if folder else [REPO / kind]:
            assert not asks.search(path.read_text("utf-8")), path


def test_python_m_albert_lists_the_commands_and_every_command_prints_the_version(capsys, monkeypatch):
    version = f"albert {albert.__version__}\n"
    main = importlib.import_module("albert.__main__").main
    monkeypatch.setattr(sys, "argv", ["albert"])
    main()
    printed = capsys.readouterr().out
    assert printed.startswith(version) and re.findall(r"^  (\S+) +\w", printed, re.M) == [
        name.removeprefix("albert-") for name in COMMANDS]
    monkeypatch.setattr(sys, "argv", ["albert", "predict"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "albert.NAME" in assert_one_clear_line(capsys.readouterr().err)
    for line in COMMANDS:
        module = importlib.import_module(line.replace("-", ".", 1).replace("-", "_"))
        with pytest.raises(SystemExit, match="0"):
            module.cli([line, "--version"])
        assert capsys.readouterr().out == version
    code = ("import runpy, sys; sys.argv[1:] = ['--version']\n"
            "try: runpy.run_module('albert.run_classifier', run_name='__main__')\n"
            "finally: assert not {'tensorflow', 'keras', 'jax'} & set(sys.modules)")
    done = program("-c", code)
    assert (done.returncode, done.stdout) == (0, version)


def test_without_pkg_resources_an_address_of_tf_hub_is_one_line(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow_hub", raising=False)
    monkeypatch.setitem(sys.modules, "pkg_resources", None)
    said = "^--x: cannot fetch https://.*pkg_resources.*; download it and"
    with pytest.raises(CheckpointError, match=said):
        hub.fetch("https://example.com/albert", "--x")
