"""Every saved or exported model has a card that describes it and its use."""

import contextlib
import io
import os
import re
import shutil

import jobs
import pytest
from helpers import run_here
from hf_models import HEADS, SIZES, convert

import albert
from albert import export_checkpoints, run_pretraining
from albert.cli import flags
from albert.config import AlbertConfig
from albert.formats import model_card, pretrained
from albert.formats.metadata import Metadata
from albert.tokenization import FullTokenizer


def code_of(card: str) -> str:
    return card.split("```python\n")[1].split("```")[0]


def use(folder, code: str) -> str:
    """Executes a card's code in `folder`, which holds the model's directory; returns its output."""
    out, before = io.StringIO(), os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out):
            exec(code, {})
    finally:
        os.chdir(before)
    return out.getvalue()


def test_a_trained_directory_tells_what_it_was_trained_on(whole):
    card = (whole.out / "README.md").read_text()
    model = albert.AlbertForPreTraining.from_pretrained(str(whole.out))
    for fact in (
        "# out\n", "pipeline_tag: fill-mask", "| hidden size | 16 |", "| --input_file | ", "train.tfrecord",
        f"| parameters | {model.count_params():,} |", ", version ",
        "1909.11942", "Limitations",
    ):
        assert fact in card, fact
    shown = set(re.findall(r"^\| --(\w+) \|", card, re.M))
    assert shown <= set(flags.parse(run_pretraining.define_flags, [""]))
    assert "unknown" not in card
    use(whole.out.parent, code_of(card))


KINDS = [name for name in albert.__all__ if name.startswith("AlbertFor") or name == "AlbertModel"]
MASKS = "fill-mask", 'session.fill_mask(["A [MASK]."])'
ASKED = {  # the pipeline of Hugging Face's hub, and what the card asks: answers, not logits
    "AlbertModel": ("feature-extraction", 'session.embed(["A text."])'),
    "AlbertForSequenceClassification": ("text-classification", 'session.classify(["A text."])'),
    "AlbertForTokenClassification": ("token-classification", 'session.tag(["A text."])'),
    "AlbertForMultipleChoice": (
        "multiple-choice", 'session.choose([("A text.", "A question?", "1", "2")])'),
    "AlbertForQuestionAnswering": ("question-answering", "session.answer("),
    "AlbertForBeamQuestionAnswering": ("question-answering", "session.answer("),
}


@pytest.mark.parametrize("kind, has_tokenizer", [
    *((kind, True) for kind in KINDS), ("AlbertModel", False), ("AlbertForMultipleChoice", False),
])
def test_the_code_of_every_classs_card_runs_and_the_hub_knows_its_pipeline(kind, has_tokenizer, tmp_path):
    sizes = SIZES | {"num_hidden_layers": 1, "max_position_embeddings": 128}
    model = getattr(albert, kind)(AlbertConfig(**sizes), **HEADS.get(kind, {}))
    (tmp_path / "vocab.txt").write_text("\n".join([*jobs.SPECIALS, *map(str, range(55))]))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), True, None) if has_tokenizer else None
    pretrained.save(model, str(tmp_path / "saved"), tokenizer)
    card = (tmp_path / "saved/README.md").read_text()
    pipeline, call = ASKED.get(kind, MASKS)
    assert "Data and settings are not recorded" in card and card.startswith("---\ntags:\n- albert\n")
    assert f"pipeline_tag: {pipeline}\n" in card and (call in card) == has_tokenizer
    assert f"| parameters | {model.count_params():,} |" in card and len(card.splitlines()) < 70
    printed = use(tmp_path, code_of(card))
    assert bool(printed) == has_tokenizer and "nan" not in printed


def test_a_card_has_the_results_of_its_checkpoint(finished, tmp_path):
    exported = f"--albert_directory={finished.out}"
    for name, results, line in (
        ("one", {"loss": 0.4444}, "| loss | 0.4444 |"), ("none", {}, "No evaluation of this checkpoint"),
    ):
        jobs.change_json(finished.out / "model.ckpt-best.json", results=results)
        path = f"--export_path={tmp_path / name}/model.ckpt-best"
        assert run_here(export_checkpoints, exported, path) == 0
        card = (tmp_path / name / "README.md").read_text()
        assert "without those of the optimizer" in card and "| --input_file | " in card and line in card


def test_a_conversion_has_a_card_for_those_who_will_use_it(whole, tmp_path):
    assert convert(f"--albert_directory={whole.out}", f"--output_dir={tmp_path}/theirs") == 0
    theirs = (tmp_path / "theirs/README.md").read_text()
    assert 'AlbertForPreTraining.from_pretrained("theirs")' in theirs
    assert "Converted from `out`, bit for bit" in theirs and "| --input_file | " in theirs
    shutil.move(tmp_path / "theirs", tmp_path / "model")
    assert convert(f"--hf_directory={tmp_path}/model", f"--output_dir={tmp_path}/ours") == 0
    ours = (tmp_path / "ours/README.md").read_text()
    assert "Converted from `model`" in ours
    use(tmp_path, code_of(ours))


def test_a_card_names_the_released_model_that_it_began_with_and_the_labels(tmp_path):
    metadata = Metadata("AlbertForSequenceClassification", label_names=("a", "b"))
    state = {"step": 7, "flags": {"init_checkpoint": "albert/albert-base-v2"}}
    config = AlbertConfig(**SIZES)
    model_card.write(str(tmp_path), config, metadata, name="mine", parameters=1, run_state=state)
    card = (tmp_path / "README.md").read_text()
    for fact in ("base_model: albert/albert-base-v2\n", "# mine\n",
                 "| --init_checkpoint | albert/albert-base-v2 |", '["a", "b"]'):
        assert fact in card, fact
    metadata = Metadata("AlbertForSequenceClassification", num_texts=2)
    model_card.write(str(tmp_path), config, metadata, parameters=1, has_tokenizer=True)
    assert 'session.classify([("A text.", "Another one.")])' in (tmp_path / "README.md").read_text()
