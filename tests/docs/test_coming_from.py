"""The new lines of the page for those who come from another toolkit: each of them runs."""

import re

import numpy as np
import pytest
import tensorflow as tf
from helpers import REPO, SIZES

import albert
from albert.export import hub_export

PAGE = REPO / "docs/guides/coming_from.md"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "text", "another"]
ROW = re.compile(r"^\| (.+?) \| (.+) \|$", re.MULTILINE)


def new_lines(section: str) -> list[str]:
    """Returns the Python of a section's right column; of "the same" that of its left one."""
    text = PAGE.read_text().split(f"## From {section}")[1].split("\n## ")[0]
    found = []
    for old, new in ROW.findall(text):
        code = re.match(r"`([^`]+)`", old if new.startswith("the same") else new)
        if code and code[1].startswith(("albert.", "model(", "tokenizer(")):
            found.append(code[1])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory `d` of ours, and the modules that the page names."""
    folder = tmp_path_factory.mktemp("coming")
    config = albert.AlbertConfig(**SIZES | {"vocab_size": len(WORDS)})
    model = albert.AlbertForPreTraining(config)
    classifier = albert.AlbertForSequenceClassification(config, 2)
    for name, one in (("d", classifier), ("unpacked_module", model)):
        one.save_pretrained(str(folder / name))
        (folder / name / "vocab.txt").write_text("\n".join(WORDS))
    vocabulary = str(folder / "d/vocab.txt")
    hub_export.export_module(model, [vocabulary], str(folder / "new_module"), do_lower_case=True)
    return folder


@pytest.mark.parametrize("section, least", [
    ("Hugging Face", 10), ("TF-Hub", 2), ("the original", 1)
])
def test_every_new_line_runs(section, least, folder, monkeypatch):
    monkeypatch.chdir(folder)
    ids = np.array([[2, 5, 6, 3]])
    known = {
        "albert": albert, "d": "d", "path": "d", "texts": ["one text", "another"],
        "tokenizer": albert.AlbertTokenizer.from_pretrained("d"),
        "i": ids, "m": np.ones_like(ids), "s": np.zeros_like(ids), "inputs": {"input_ids": ids},
        "ids": ids, "mask": np.ones_like(ids), "labels": [1],
    }
    lines = new_lines(section)
    assert len(lines) >= least
    for line in lines:
        kind = "AlbertForSequenceClassification" if "logits" in line or "loss" in line else "AlbertModel"
        known["model"] = getattr(albert, kind).from_pretrained("d")
        if "(...)" in line:  # names what to use
            assert eval(line.replace("(...)", ""), known)
            continue
        result = eval(line, known)
        if line.startswith("model("):
            value = result[-1] if isinstance(result, list | tuple) else result
            value = value if not isinstance(value, dict) else value["pooled_output"]
            assert np.isfinite(value).all()
        elif "tokenizer(" in line:
            assert all(isinstance(value, tf.Tensor) for value in result.values())
        else:
            assert result is not None
