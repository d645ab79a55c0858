"""`--albert_hub_module_handle` in every command that fine-tunes, beside the checkpoint itself.

run_classifier has its own test, with a module of the original too.
"""

import json

import helpers
import numpy as np
import pytest
import test_run_race
import test_run_squad
import test_run_token_classifier

from albert import export_to_tfhub, run_race, run_squad_v1, run_squad_v2
from albert import run_token_classifier as run_tokens
from albert.cli import flags
from albert.config import AlbertConfig

workshop = test_run_squad.workshop  # a fixture
WORDPIECE = {
    run_race: (
        test_run_race.VOCABULARY, test_run_race.write_race,
        ["--max_seq_length=16", "--max_qa_length=6", "--warmup_step=1", "--nodo_eval"],
    ),
    run_tokens: (
        test_run_token_classifier.VOCABULARY, test_run_token_classifier.write_conll,
        ["--max_seq_length=40", "--do_train"],
    ),
}
TRAINING = ["--train_step=3", "--train_batch_size=4", "--log_steps=1", "--learning_rate=0.01"]


def run(module, *arguments) -> None:
    code = flags.run_command(
        module.__doc__, module.define_flags, module.main, ["command", *map(str, arguments)]
    )
    assert code == 0


def make_model(folder, vocabulary_flag: str) -> dict[str, list[str]]:
    """Writes a random model and the module made of it; returns the flags of each."""
    from albert import modeling

    config = AlbertConfig.from_json_file(str(folder / "albert_config.json"))
    modeling.AlbertForPreTraining(config).save_pretrained(str(folder / "model"))
    run(export_to_tfhub, f"--albert_directory={folder}/model", vocabulary_flag,
        f"--export_path={folder}/module")
    return {
        "checkpoint": [f"--albert_config_file={folder}/albert_config.json", vocabulary_flag,
                       f"--init_checkpoint={folder}/model"],
        "module": [f"--albert_hub_module_handle={folder}/module"],
    }


def losses(folder) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [x["loss"] for x in map(json.loads, lines) if x["kind"] == "train"]


@pytest.mark.slow
@pytest.mark.parametrize("module", WORDPIECE, ids=["race", "token_classifier"])
def test_a_module_is_fine_tuned_as_its_checkpoint(module, tmp_path):
    vocabulary, write, more = WORDPIECE[module]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    write(tmp_path)
    helpers.write_config(tmp_path, vocab_size=len(vocabulary), max_position_embeddings=48)
    origins = make_model(tmp_path, f"--vocab_file={tmp_path}/vocab.txt")
    for name, origin in origins.items():
        run(module, *origin, f"--data_dir={tmp_path}", f"--output_dir={tmp_path}/from_{name}",
            *more, *TRAINING)
    assert len(losses(tmp_path / "from_module")) == 3
    np.testing.assert_allclose(
        losses(tmp_path / "from_module"), losses(tmp_path / "from_checkpoint"), atol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "module"),
    [(1, run_squad_v1), (2, run_squad_v2)],
)
def test_a_module_reads_passages_as_its_checkpoint(version, module, workshop, tmp_path):
    (tmp_path / "albert_config.json").write_text((workshop / "albert_config.json").read_text())
    origins = make_model(tmp_path, f"--spm_model_file={workshop}/spm.model")
    for name, origin in origins.items():
        run(module, *origin, f"--output_dir={tmp_path}/from_{name}", "--do_train", *TRAINING,
            f"--train_file={workshop}/dev-v{version}.json", "--max_seq_length=48",
            "--max_query_length=12", "--doc_stride=8")
    assert len(losses(tmp_path / "from_module")) == 3
    np.testing.assert_allclose(
        losses(tmp_path / "from_module"), losses(tmp_path / "from_checkpoint"), atol=1e-4
    )
