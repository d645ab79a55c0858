"""`--albert_hub_module_handle` in every command that fine-tunes, beside the checkpoint itself.

run_classifier has its own test, with a module of the original too.
"""

import json

import jobs
import numpy as np
import pytest
from helpers import run_here

from albert import run_race, run_squad_v1, run_squad_v2, run_token_classifier

COMMANDS = {
    run_race: (jobs.race_flags, []), run_token_classifier: (jobs.token_flags, ["--do_train"]),
    run_squad_v1: (jobs.squad_flags, []), run_squad_v2: (jobs.squad_flags, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("module", COMMANDS)
def test_a_module_is_fine_tuned_as_its_checkpoint(module, hub_module, tmp_path):
    source, handle = hub_module
    flags_of, more = COMMANDS[module]
    dropped = ("--vocab_file", "--albert_config_file", "--output_dir", "--do_predict")
    flags = [flag for flag in flags_of(tmp_path) if not flag.startswith(dropped)]
    origins = {
        "module": [f"--albert_hub_module_handle={handle}"],
        "checkpoint": [
            f"--albert_config_file={source}/albert_config.json", "--nodo_lower_case",
            f"--spm_model_file={source}/30k-clean.model",
            f"--init_checkpoint={source}/model.ckpt-best",
        ],
    }
    losses = []
    for name, origin in origins.items():
        out = tmp_path / name
        code = run_here(module, *flags, *more, *origin, f"--output_dir={out}", "--log_steps=1")
        assert code == 0
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        losses.append([line["loss"] for line in lines if line["kind"] == "train"])
    assert len(losses[0]) == 4
    np.testing.assert_allclose(*losses, atol=1e-4)
