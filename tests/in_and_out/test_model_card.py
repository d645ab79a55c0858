"""Every model that is saved or exported says what it is, and how it is used."""

import contextlib
import io
import json
import os

import pytest
from helpers import write_config, write_pretraining_records
from test_convert_hf import HEADS, SIZES, convert, random_model

import albert
from albert import export_checkpoints, export_model, run_pretraining
from albert.cli import flags
from albert.config import AlbertConfig
from albert.formats import pretrained
from albert.tokenization import FullTokenizer

PRETRAIN = (
    "--max_seq_length=12", "--max_predictions_per_seq=3", "--train_batch_size=4",
    "--num_train_steps=2", "--num_warmup_steps=0", "--eval_batch_size=4", "--max_eval_steps=1",
)


def run(module, *arguments) -> None:
    code = flags.run_command(
        module.__doc__, module.define_flags, module.main, ["command", *map(str, arguments)]
    )
    assert code == 0


def use(folder, card: str) -> str:
    """Executes a card's code beside the model's directory; returns what it prints."""
    out, before = io.StringIO(), os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out):
            exec(card.split("```python\n")[1].split("```")[0], {})
    finally:
        os.chdir(before)
    return out.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What `run_pretraining` leaves behind."""
    folder = tmp_path_factory.mktemp("card")
    records = write_pretraining_records(folder / "r.tfrecord")
    run(run_pretraining, f"--albert_config_file={write_config(folder)}", f"--input_file={records}",
        f"--output_dir={folder / 'out'}", "--do_eval", *PRETRAIN)
    return folder / "out"


def test_a_trained_directory_tells_what_it_was_trained_on_and_how_good_it_is(trained):
    card = (trained / "README.md").read_text()
    results = json.loads((trained / "eval_results.json").read_text())
    model = albert.AlbertForPreTraining.from_pretrained(str(trained))
    for fact in (
        "# AlbertForPreTraining (out)", "| hidden size | 16 |", "--input_file=", "r.tfrecord",
        f"| parameters | {model.count_params():,} |", "Step 2 of the task `pretraining`",
        f"| masked_lm_accuracy | {results['masked_lm_accuracy']:.4f} |", "1909.11942",
        "Limitations",
    ):
        assert fact in card, fact
    use(trained.parent, card)


def test_a_model_saved_from_python_has_a_card_whose_code_runs(tmp_path):
    model = random_model("AlbertForSequenceClassification")
    model.save_pretrained(str(tmp_path / "saved"))
    card = (tmp_path / "saved/README.md").read_text()
    assert "Saved from a Python program" in card and "scores of labels" in card
    assert f"| parameters | {model.count_params():,} |" in card
    use(tmp_path, card)


KINDS = [name for name in albert.__all__ if name.startswith("AlbertFor") or name == "AlbertModel"]


@pytest.mark.parametrize("has_tokenizer", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_code_of_every_classs_card_runs(kind, has_tokenizer, tmp_path):
    model = getattr(albert, kind)(AlbertConfig(**SIZES), **HEADS.get(kind, {}))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(SIZES["vocab_size"]))]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(pieces[: SIZES["vocab_size"]]))
    tokenizer = FullTokenizer(str(vocabulary), True, None) if has_tokenizer else None
    pretrained.save(model, str(tmp_path / "saved"), tokenizer)
    printed = use(tmp_path, (tmp_path / "saved/README.md").read_text())
    assert bool(printed) == has_tokenizer and "nan" not in printed


def test_an_exported_checkpoint_has_a_card_and_another_readme_is_left_alone(trained, tmp_path):
    run(export_checkpoints, f"--albert_directory={trained}",
        f"--export_path={tmp_path}/clean/model.ckpt-best")
    card = (tmp_path / "clean/README.md").read_text()
    assert "ALBERT checkpoint" in card and "--input_file=" in card
    (tmp_path / "README.md").write_text("mine")
    run(export_checkpoints, f"--albert_directory={trained}", f"--export_path={tmp_path}/model.ckpt")
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_litert_file_has_a_card_that_tells_its_difference_and_its_use(trained, tmp_path):
    run(export_model, f"--model_dir={trained}", f"--export_path={tmp_path}/encoder.tflite")
    card = (tmp_path / "encoder.README.md").read_text()
    assert "pooled_output` (differs by up to" in card and "int32 [1, 16]" in card
    code = card.split("```python\n")[1].split("```")[0]
    row = "np.ones((1, 16), np.int32)"
    inputs = f"import numpy as np\nids = mask = segments = {row}\n"
    use(tmp_path, f"```python\n{inputs}{code}```")


def test_a_conversion_has_a_card_for_those_who_will_use_it(trained, tmp_path):
    assert convert(f"--albert_directory={trained}", f"--output_dir={tmp_path}/theirs") == 0
    theirs = (tmp_path / "theirs/README.md").read_text()
    assert 'AlbertForPreTraining.from_pretrained("theirs")' in theirs
    assert "from transformers import" in theirs and "--input_file=" in theirs
    assert convert(f"--hf_directory={tmp_path}/theirs", f"--output_dir={tmp_path}/ours") == 0
    ours = (tmp_path / "ours/README.md").read_text()
    assert "Converted from `theirs`" in ours
    use(tmp_path, ours)
