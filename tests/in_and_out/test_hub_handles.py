"""`--albert_hub_module_handle` in every fine-tuning command, compared with the checkpoint itself."""

import json

import jobs
import numpy as np
import pytest
from helpers import assert_one_clear_line, run_here

from albert import run_classifier, run_race, run_squad_v1, run_squad_v2, run_token_classifier

COMMANDS = {
    run_classifier: (jobs.classifier_flags, ["--do_train"]), run_race: (jobs.race_flags, []),
    run_token_classifier: (jobs.token_flags, ["--do_train"]),
    run_squad_v1: (jobs.squad_flags, []), run_squad_v2: (jobs.squad_flags, []),
}
DROPPED = ("--vocab_file", "--albert_config_file", "--output_dir", "--do_predict")
# The original's tutorial passes this instead of a real file.
OF_MODULE = "--spm_model_file=from_tf_hub"


def flags_without_model(module, folder) -> list[str]:
    flags_of, more = COMMANDS[module]
    return [*(flag for flag in flags_of(folder) if not flag.startswith(DROPPED)), *more]


def test_a_module_alone_has_no_classifier(hub_module, tmp_path, capsys):
    flags = [*flags_without_model(run_classifier, tmp_path), "--nodo_train", "--do_predict"]
    more = f"--albert_hub_module_handle={hub_module[1]}", f"--output_dir={tmp_path}/out"
    assert jobs.classify(*flags, *more) == 2
    assert "has no output_weights, output_bias" in assert_one_clear_line(capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize("module", COMMANDS)
def test_a_module_is_fine_tuned_as_its_checkpoint(module, hub_module, tmp_path):
    source, handle = hub_module
    flags = flags_without_model(module, tmp_path)
    origins = {
        "module": [f"--albert_hub_module_handle={handle}", OF_MODULE],
        "checkpoint": [
            f"--albert_config_file={source}/albert_config.json", "--nodo_lower_case",
            f"--spm_model_file={source}/30k-clean.model",
            f"--init_checkpoint={source}/model.ckpt-best",
        ],
    }
    losses = []
    for name, origin in origins.items():
        out = tmp_path / name
        code = run_here(module, *flags, *origin, f"--output_dir={out}", "--log_steps=1")
        assert code == 0
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        losses.append([line["loss"] for line in lines if line["kind"] == "train"])
    assert len(losses[0]) >= 4
    np.testing.assert_allclose(*losses, atol=1e-4)
