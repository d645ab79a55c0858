"""The package as installed: from a wheel, elsewhere, with all its parts and commands."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pydoc_data import topics

import pytest
from helpers import REPO, setup_arguments



def run(*command, cwd) -> str:
    """Runs a program without this repository; returns its output."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clone(folder: pathlib.Path) -> None:
    """Copies what an installation needs, so that the repository gets no build folder."""
    for name in ("albert", "configs"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPO / name, folder)


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
def installed(tmp_path_factory):
    """The commands folder of an environment with our wheel installed and no repository."""
    folder = tmp_path_factory.mktemp("installed")
    clone(folder / "source")
    # Build from a source distribution, which must therefore be complete too.
    run(sys.executable, "setup.py", "-q", "sdist", cwd=folder / "source")
    [packed] = (folder / "source/dist").iterdir()
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "packed", filter="data")
    [source] = (folder / "packed").iterdir()
    run(sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", folder / "wheels", cwd=source)
    [wheel] = (folder / "wheels").glob("albert_keras-*.whl")
    commands = pip_install(folder, wheel)
    shutil.rmtree(folder / "source")
    shutil.rmtree(folder / "packed")
    return commands


@pytest.fixture(scope="module")
def editable(tmp_path_factory):
    """The commands folder of an environment with `pip install -e albert`, typed above the clone."""
    folder = tmp_path_factory.mktemp("editable")
    clone(folder / "albert")
    return pip_install(folder, "-e", folder / "albert")


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
    # A notebook and `python -c` have the working directory first on their path.
    code = "import albert; print(albert.from_pretrained, albert.AlbertConfig.released('tiny'))"
    printed = run(commands / "python", "-c", code, cwd=where)
    assert "from_pretrained" in printed and "hidden_size" in printed
    assert "--top_k" in run(commands / "albert-fill-mask", "--help", cwd=where)


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
    } | {str(path.relative_to(REPO)) for path in (REPO / "configs").rglob("*") if path.is_file()}
    cards = (REPO / "albert/formats/cards").iterdir()
    wanted |= {"py.typed", "cli/report_page.html", *(f"formats/cards/{path.name}" for path in cards)}
    assert {path for path in found if "__pycache__" not in path} == wanted
    for line in setup_arguments()["entry_points"]["console_scripts"]:
        assert (installed / line.split(" = ")[0]).is_file(), line

    text = "\n\n".join(list(topics.topics.values())[:25]).replace("`", "")
    (tmp_path / "my_text.txt").write_text(text, encoding="utf-8")
    for command in (
        "train-sentencepiece --input=my_text.txt --split_sentences --model_prefix=spm --vocab_size=400",
        "create-pretraining-data --input_file=my_text.txt --split_sentences --spm_model_file=spm.model"
        " --output_file=train.tfrecord --max_seq_length=32 --max_predictions_per_seq=5"
        " --dupe_factor=1 --num_processes=1",
    ):
        name, *flags = command.split()
        run(installed / f"albert-{name}", *flags, cwd=tmp_path)
    manifest = json.loads((tmp_path / "train.tfrecord.manifest.json").read_text())
    assert manifest["records"] > 10
