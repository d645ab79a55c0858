"""Every command of the original's README runs as it is printed there.

Paths are filled in for its dots, and sizes that need a data centre reduced by
flags behind the printed ones.
"""

import json
import re

import numpy as np
import pytest
from helpers import write_config, write_pretraining_records
from helpers import dataset

from albert import modeling, run_classifier, run_pretraining, run_race, run_squad_v1, run_squad_v2
from albert.cli import flags
from albert.config import AlbertConfig
from albert.formats import checkpoint_files
from albert.records import records
from albert.records.features import classification_spec

MODULES = {m.__name__.split(".")[1]: m for m in (
    run_classifier, run_pretraining, run_race, run_squad_v1, run_squad_v2,
)}
REDUCED = {
    "run_pretraining": [
        "--train_batch_size=4", "--eval_batch_size=4", "--max_seq_length=12",
        "--max_predictions_per_seq=3", "--num_train_steps=2", "--num_warmup_steps=1",
        "--max_eval_steps=1",
    ],
    "run_classifier": [
        "--max_seq_length=32", "--train_step=2", "--warmup_step=1", "--save_checkpoints_steps=2",
        "--train_batch_size=4",
    ],
    "run_squad_v1": [
        "--max_seq_length=48", "--doc_stride=16", "--max_query_length=12", "--train_batch_size=4",
    ],
    "run_race": [
        "--max_seq_length=16", "--max_qa_length=6", "--train_batch_size=2", "--train_step=2",
        "--warmup_step=1",
    ],
}
REDUCED["run_squad_v2"] = REDUCED["run_squad_v1"]


@pytest.fixture(scope="module")
def printed(golden_path) -> dict[str, list[str]]:
    text = golden_path("original_readme.md").read_text(encoding="utf-8")
    found = re.findall(r"python -m albert\.(\w+) \\\n((?: +--.*\n)+)", text)
    return {
        name: re.sub(r" \\$", "", block, flags=re.MULTILINE).split() for name, block in found
    }


@pytest.fixture(scope="module")
def files(golden_path, tmp_path_factory):
    """What the dots of the README stand for."""
    folder = tmp_path_factory.mktemp("files")
    config = write_config(folder, vocab_size=30000, max_position_embeddings=64)
    model = modeling.AlbertForPreTraining(AlbertConfig.from_json_file(config))
    tensors = {name: w.numpy() for name, w in modeling.named_weights(model).items()}
    checkpoint_files.write(str(folder / "model.ckpt-best"), tensors)
    for version in (1, 2):
        (folder / f"squad-v{version}.json").write_text(json.dumps(dataset(True, version == 2)))
    mnli = folder / "MNLI"
    mnli.mkdir()
    labels = ("entailment", "neutral", "contradiction")
    for name in ("train", "dev_matched", "test_matched"):
        rows = [
            "\t".join([str(i), *["x"] * 7, f"the cat {i}", "a dog", *["x"] * 4, labels[i % 3]])
            for i in range(8)
        ]
        (mnli / f"{name}.tsv").write_text("\n".join(["\t".join(["h"] * 15), *rows]) + "\n")
    spec = classification_spec(16, False, 4)
    for name in ("race-train", "race-dev"):
        rows = (
            {
                "input_ids": np.full(64, 7), "input_mask": np.ones(64, int),
                "segment_ids": np.zeros(64, int), "label_ids": i % 4, "is_real_example": 1,
            }
            for i in range(4)
        )
        records.write_records(str(folder / f"{name}.tfrecord"), rows, spec, {})
    write_pretraining_records(folder / "pretraining.tfrecord", vocab_size=30000)
    return folder, {
        "albert_config_file": config, "init_checkpoint": str(folder / "model.ckpt-best"),
        "spm_model_file": str(golden_path("spm/30k-clean.model")), "data_dir": str(folder),
        "input_file": str(folder / "pretraining.tfrecord"),
    }


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow if "squad" in name or "race" in name else ())
    for name in MODULES
])
def test_a_command_runs_as_printed(name, printed, files, tmp_path):
    folder, paths = files
    version = 2 if name.endswith("v2") else 1
    squad = str(folder / f"squad-v{version}.json")
    race = {"train_file": str(folder / "race-train.tfrecord"),
            "eval_file": str(folder / "race-dev.tfrecord")}
    known = paths | (race if name == "run_race" else {"train_file": squad, "predict_file": squad})
    known |= {"output_dir": str(tmp_path / "out")}
    for feature in ("train_feature_file", "predict_feature_file", "predict_feature_left_file"):
        known[feature] = str(tmp_path / feature)

    def filled(flag: str) -> str:
        key, _, value = flag.removeprefix("--").partition("=")
        return f"--{key}={known[key]}" if value == "..." else flag.replace("'", "")

    arguments = [filled(flag) for flag in printed[name]]
    assert arguments and not any("..." in flag for flag in arguments)
    module = MODULES[name]
    # The optimizer of the pretraining example stands in quotes for the shell.
    code = flags.run_command(
        module.__doc__, module.define_flags, module.main, [name, *arguments, *REDUCED[name]]
    )
    assert code == 0
    results = (tmp_path / "out/eval_results.txt").read_text()
    assert " = " in results
    if name.startswith("run_squad"):
        assert (tmp_path / "out/predictions.json").exists()
        assert (tmp_path / "predict_feature_file").exists()
        assert not (tmp_path / "predict_feature_left_file").exists()


def test_every_command_of_the_readme_is_tried(printed):
    assert set(printed) == set(MODULES)
