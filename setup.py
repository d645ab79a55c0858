"""Package metadata; `pip install -e .` makes the `albert` package and its commands available."""

import pathlib
import re
import shutil

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
VERSION = re.search(r'__version__ = "(.+?)"', (HERE / "albert/__init__.py").read_text())[1]
URL = ""  # the repository's address, such as https://github.com/OWNER/NAME; unknown while it is empty
NOTEBOOKS = ["matplotlib>=3.9"]
TENSORFLOW_HUB = ["setuptools<81"]  # it imports pkg_resources, which later versions lack
TEST = NOTEBOOKS + TENSORFLOW_HUB + [
    "tokenizers>=0.20",  # runs the code of an ONNX file's card
    "pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100",
    "backports.zstd>=1; python_version < '3.14'", "pyarrow>=17",
    "jax>=0.7; python_version >= '3.11'",
]


def index_page(readme: str, url: str) -> str:
    """Returns the README for a package index, where relative links lead nowhere.

    They become addresses of this version's files or, without the repository's, plain text.
    """
    picture = r"!\[[^]]*\]\((?!\w+:)[^)]+\)"
    if not url:
        return re.sub(r"\[([^][]*)\]\((?![\w]+:|#)[^)]+\)", r"\1", re.sub(picture + r"\n?", "", readme))
    readme = re.sub(picture, lambda found: found[0].replace("](", f"]({url}/raw/v{VERSION}/"), readme)
    return re.sub(r"\]\((?!\w+:|#)", f"]({url}/blob/v{VERSION}/", readme)


class BuildWithConfigs(build_py):
    """Copies configs/, which is beside the package in the repository, into the package of a wheel.

    The grids of scripts/ablate.py stay out, as the script does.

    Mapping it as a package would make the editable install an import hook, which loses to a folder
    called `albert` in the working directory. A plain path wins.
    """

    def run(self):
        super().run()
        if not self.editable_mode:
            shutil.copytree(HERE / "configs", pathlib.Path(self.build_lib, "albert/configs"),
                            dirs_exist_ok=True, ignore=shutil.ignore_patterns("ablations"))


setup(
    name="albert-keras",  # the name `albert` on the package index is another project's
    version=VERSION,
    description="ALBERT (A Lite BERT) for Keras 3, on TensorFlow 2 and JAX",
    long_description=index_page((HERE / "README.md").read_text(encoding="utf-8"), URL),
    long_description_content_type="text/markdown",
    author="The albert authors",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    url=URL or None,
    project_urls={"Changes": f"{URL}/blob/v{VERSION}/CHANGELOG.md", "Issues": f"{URL}/issues"} if URL else {},
    keywords=["ALBERT", "BERT", "Keras", "TensorFlow", "JAX", "NLP", "language model", "pretraining",
              "fine-tuning", "text classification", "embeddings"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    cmdclass={"build_py": BuildWithConfigs},
    packages=find_packages(include=["albert", "albert.*"]),
    package_dir={"": "."},
    package_data={"albert": ["examples/*", "models/*/*", "models/*/*/*", "cli/*.html", "formats/cards/*", "py.typed", "*.pyi"]},
    install_requires=[
        "tensorflow>=2.20,<2.22",
        "keras>=3.12,<4",
        "tensorflow-hub>=0.16.1",
        "sentencepiece>=0.2.1",
        "sentencex>=1.0.30",
        "absl-py>=2.1",
        "google-crc32c>=1.6",
        "protobuf>=6.31",
        "ml_dtypes>=0.5",
        "numpy>=2.0",
        "scipy>=1.11",
        "scikit-learn>=1.4.2",
        "onnxruntime>=1.20",  # computes the answers of sessions and commands
        "safetensors>=0.5",
        "markdown-it-py>=3",  # Keras brings it, too
        "fsspec>=2024.12",
        "filelock>=4",
        "huggingface_hub>=1",
    ],
    extras_require={
        # TensorFlow on NVIDIA GPUs: not tested. JAX is, with `jax-cuda`.
        "gpu": ["tensorflow[and-cuda]>=2.20,<2.22"],
        # JAX as the engine: on CPUs, NVIDIA GPUs and TPUs. It needs Python 3.11.
        "jax": ["jax>=0.7"],
        "jax-cuda": ["jax[cuda13]>=0.8"],
        "jax-tpu": ["jax[tpu]>=0.7"],
        "openvino": ["openvino>=2026.4"],  # answers in bfloat16
        "hub": TENSORFLOW_HUB,  # --albert_hub_module_handle=https://...
        "notebooks": NOTEBOOKS,
        "torch": ["torch>=2.10"],  # reads pytorch_model.bin
        "beam": ["apache-beam>=2.60"],
        # A Dask cluster for the tests, which are skipped without it.
        "beam-dask": ["apache-beam[dask]>=2.60"],
        # Text compressed with zstd, which Python supports from 3.14 on.
        "zstd": ["backports.zstd>=1; python_version < '3.14'"],
        "parquet": ["pyarrow>=17"],  # text in Parquet tables
        # Cloud storage: s3://, gs://, abfs://, hdfs:// (which also needs Hadoop's library).
        "s3": ["fsspec>=2024.12", "s3fs>=2024.12"],
        "gcs": ["fsspec>=2024.12", "gcsfs>=2024.12"],
        "azure": ["fsspec>=2024.12", "adlfs>=2024.12"],
        "hdfs": ["fsspec>=2024.12", "pyarrow>=17"],
        # An S3 server for the tests, which are skipped without it.
        "remote-test": ["s3fs>=2024.12", "moto[server]>=5"],
        # Packages that tests compare our numbers with; the tests are skipped without them.
        "interop": ["transformers>=5", "torch>=2.5", "keras-hub>=0.30", "onnx>=1.17"],
        # The site (docs/conf.py).
        "docs": ["sphinx>=8", "furo>=2024.8", "myst-nb>=1.3", "sphinxcontrib-mermaid>=1"],
        "release": ["build>=1.2", "twine>=6.1", "setuptools>=77"],  # to build and check packages
        "test": TEST,
        "dev": TEST + ["ruff>=0.9", "tensorboard>=2.19"],
    },
    entry_points={
        "console_scripts": [
            "albert-convert-hf = albert.convert_hf:cli",
            "albert-create-pretraining-data = albert.create_pretraining_data:cli",
            "albert-export-checkpoints = albert.export_checkpoints:cli",
            "albert-export-model = albert.export_model:cli",
            "albert-export-to-tfhub = albert.export_to_tfhub:cli",
            "albert-extract-features = albert.extract_features:cli",
            "albert-fill-mask = albert.fill_mask:cli",
            "albert-predict = albert.predict:cli",
            "albert-pretrain-from-text = albert.pretrain_from_text:cli",
            "albert-run-classifier = albert.run_classifier:cli",
            "albert-run-pretraining = albert.run_pretraining:cli",
            "albert-run-race = albert.run_race:cli",
            "albert-run-squad = albert.run_squad:cli",
            "albert-run-squad-v1 = albert.run_squad_v1:cli",
            "albert-run-squad-v2 = albert.run_squad_v2:cli",
            "albert-run-token-classifier = albert.run_token_classifier:cli",
            "albert-train-sentencepiece = albert.train_sentencepiece:cli",
        ]
    },
)
