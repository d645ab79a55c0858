"""Every command in the original's README runs as printed.

Paths replace its dots, and additional flags at the end reduce sizes that would need a data centre.
`run_race` also gets --data_dir, since the original's feature files have no effect.
"""

import re

import jobs
import pytest
from helpers import run_here, write_config, write_pretraining_records, write_weights

from albert import run_classifier, run_pretraining, run_race, run_squad_v1, run_squad_v2
from albert.cli import flags
from albert.config import AlbertConfig

MODULES = {m.__name__.split(".")[1]: m for m in (
    run_classifier, run_pretraining, run_race, run_squad_v1, run_squad_v2,
)}
SQUAD = "--max_seq_length=48 --doc_stride=16 --max_query_length=12 --train_batch_size=4"
REDUCED = {
    "run_pretraining": "--train_batch_size=4 --eval_batch_size=4 --max_seq_length=12 "
    "--max_predictions_per_seq=3 --num_train_steps=2 --num_warmup_steps=1 --max_eval_steps=1",
    "run_classifier": "--max_seq_length=32 --train_step=2 --warmup_step=1 "
    "--save_checkpoints_steps=2 --train_batch_size=4",
    "run_race": "--max_seq_length=16 --max_qa_length=6 --train_batch_size=2 --train_step=2 "
    "--warmup_step=1",
    "run_squad_v1": SQUAD, "run_squad_v2": SQUAD,
}


@pytest.fixture(scope="module")
def printed(golden_path) -> dict[str, list[str]]:
    """{command: its flags in the README, with the dots filled in}."""
    text = golden_path("original_readme.md").read_text(encoding="utf-8")
    found = re.findall(r"python -m albert\.(\w+) \\\n((?: +--.*\n)+)", text)
    # The pretraining example quotes the optimizer for the shell.
    return {name: re.sub(r" \\$", "", block, flags=re.M).replace("'", "").split()
            for name, block in found}


def write_files(folder, golden_path) -> dict[str, str]:
    """Writes the files behind the README's dots; returns {flag: value}."""
    config = write_config(
        folder, vocab_size=30000, max_position_embeddings=64, num_hidden_layers=1
    )
    model = write_weights(
        folder / "model.ckpt-best", AlbertConfig.from_json_file(config).to_dict())
    (folder / "MNLI").mkdir()
    labels = ("entailment", "neutral", "contradiction")
    for name in ("train", "dev_matched", "test_matched"):
        rows = [["h"] * 15, *([str(i), *["x"] * 7, f"the cat {i}", "a dog", *["x"] * 4,
                               labels[i % 3]] for i in range(8))]
        (folder / f"MNLI/{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return {
        "albert_config_file": config, "init_checkpoint": model, "data_dir": str(folder),
        "spm_model_file": str(golden_path("spm/30k-clean.model")),
        "input_file": write_pretraining_records(folder / "x.tfrecord", vocab_size=30000),
        "train_file": jobs.write_squad(folder), "predict_file": jobs.write_squad(folder),
    }


def filled_in(name, printed, golden_path, tmp_path) -> list[str]:
    """Returns the flags of a command with paths instead of dots, and fewer steps."""
    known = write_files(tmp_path, golden_path) | {"output_dir": str(tmp_path / "out")}
    if name == "run_race":
        known |= dict.fromkeys(("train_file", "eval_file"), str(tmp_path / "race"))  # no effect
        jobs.write_race(tmp_path)
    for feature in ("train_feature_file", "predict_feature_file", "predict_feature_left_file"):
        known[feature] = str(tmp_path / feature)
    given = [re.sub(r"^--(\w+)=\.\.\.$", lambda m: f"--{m[1]}={known[m[1]]}", flag)
             for flag in printed[name]]
    assert given and not any("..." in flag for flag in given)
    needed = [f"--data_dir={tmp_path}"] if name == "run_race" else []
    return [*given, *needed, *REDUCED[name].split()]


@pytest.mark.parametrize("name", MODULES)
def test_a_command_as_printed_begins_to_train(name, printed, golden_path, tmp_path, begin):
    begin(lambda *given: run_here(MODULES[name], *given), *filled_in(name, printed, golden_path, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_a_command_runs_as_printed(name, printed, golden_path, tmp_path):
    assert run_here(MODULES[name], *filled_in(name, printed, golden_path, tmp_path)) == 0
    assert " = " in (tmp_path / "out/eval_results.txt").read_text()
    if name.startswith("run_squad"):
        assert (tmp_path / "out/predictions.json").exists()
        assert not (tmp_path / "predict_feature_file").exists()


def test_every_command_of_the_readme_is_tried_and_takes_the_flags_as_printed(printed):
    assert set(printed) == set(MODULES)
    for name, given in printed.items():
        assert flags.parse(MODULES[name].define_flags, [name, *given]).output_dir == "..."
