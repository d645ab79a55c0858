"""The migration page for other toolkits: its old and new lines give the same results."""

import pathlib
import re

import numpy as np
import pytest
from helpers import REPO, SIZES

import albert
from albert.modeling import named_weights
from albert.tokenization import FullTokenizer

PAGE = (REPO / "docs/start/old_checkpoints.md").read_text("utf-8")
SIZES = SIZES | {"vocab_size": 8, "num_hidden_layers": 1}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "text", "another"]
IDS = np.array([[2, 5, 6, 3]])
INPUTS = {"input_ids": IDS, "attention_mask": np.array([[1, 1, 1, 0]])}


def rows(section: str) -> dict[str, list[str]]:
    """Returns {old line: new lines of Python} of a section; "the same" is the old line."""
    text = PAGE.split(f"## From {section}")[1].split("\n## ")[0].partition("| old line")[2]
    found = {}
    for old, new in re.findall(r"^\| `(.+?)`.*? \| (.+) \|$", text, re.M):
        found[old] = [old] * new.startswith("the same") + [
            line for line in re.findall(r"`([^`]+)`", new) if not line.startswith("python ")
        ]
    return found


def assert_same(value, expected, line):
    for one, other in zip(value, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=line)


def weights(model) -> list[np.ndarray]:
    return [weight.numpy() for _, weight in sorted(named_weights(model).items())]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder of a classifier `d`, and the classifier."""
    folder = tmp_path_factory.mktemp("coming")
    classifier = albert.AlbertForSequenceClassification(albert.AlbertConfig(**SIZES), 2)
    classifier.save_pretrained(str(folder / "d"))
    (folder / "d/vocab.txt").write_text("\n".join(WORDS))
    return folder, classifier


def test_lines_of_hugging_face_give_what_the_saved_model_gives(models, monkeypatch):
    folder, classifier = models
    monkeypatch.chdir(folder)
    encoder = albert.AlbertModel.from_pretrained("d")
    known = {"albert": albert, "d": "d", "texts": ["one text", "another"], "inputs": INPUTS,
             "tokenizer": albert.AlbertTokenizer.from_pretrained("d"),
             "ids": IDS, "mask": INPUTS["attention_mask"]}
    [logits] = classifier(INPUTS)["logits"].numpy()
    outputs = {name: value.numpy() for name, value in encoder(INPUTS).items()}
    whole = outputs["sequence_output"]
    expected = {
        "last_hidden_state": whole, "pooler_output": outputs["pooled_output"], "logits": [logits],
    }
    compared = set()
    for old, lines in rows("Hugging Face").items():
        for line in lines:
            compared.add(line)
            is_classifier = "logits" in old
            known["model"] = albert.from_pretrained("d") if is_classifier else encoder
            value = eval(line, known)
            if name := re.search(r"\.(last_hidden_state|pooler_output|logits)$", old):
                assert_same(np.atleast_1d(value), expected[name[1]], line)
            elif old.endswith("hidden_states"):
                assert len(value) == SIZES["num_hidden_layers"] + 1
                assert_same(value[-1], whole, line)
            elif old.startswith("tokenizer("):
                assert value["input_ids"].numpy().tolist() == [[2, 5, 6, 3], [2, 7, 3, 0]]
                assert value["input_mask"].numpy().tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
            elif old.startswith("pipeline("):
                assert [set(answer) for answer in value] == [
                    {"label", "probability", "probabilities"}
                ] * 2 and all(answer["probability"] > 0.5 for answer in value)
            elif old.startswith("SentenceTransformer("):
                assert value.shape[0] == 2
            elif "add_tokens" in old:
                assert value == 2 and len(known["tokenizer"]) == len(WORDS) + 2
                assert known["tokenizer"].encode("[e1] text one") == [2, 8, 9, 3]
            elif "Tokenizer" in old:
                assert np.ravel(value("text one")["input_ids"]).tolist() == [2, 6, 5, 3]
            else:
                assert type(value).__name__ == line.split(".")[1].replace(
                    "from_pretrained(d)", "AlbertForSequenceClassification")
                theirs = encoder if "TFAlbertModel" in old else classifier
                assert_same(weights(value), weights(theirs), line)
    assert len(compared) >= 12


def test_lines_of_tf_hub_give_one_models_outputs(hub_module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, path in zip(("unpacked_module", "new_module"), hub_module, strict=True):
        pathlib.Path(name).symlink_to(path)
    lines = [line for lines in rows("TF-Hub").values() for line in lines if "albert." in line]
    assert len(lines) == 2
    found = []
    for line in lines:
        names = ("input_ids", "input_mask", "segment_ids")
        given = [IDS, INPUTS["attention_mask"], 0 * IDS]
        outputs = eval(line, {"albert": albert})(dict(zip(names, given, strict=True)))
        found.append([outputs[name] for name in ("pooled_output", "sequence_output")])
    for line, outputs in zip(lines, found, strict=True):
        assert_same(outputs, found[0], line)


def test_lines_of_the_original_name_what_is_there(models):
    folder, _ = models
    lines = [line for lines in rows("the original").values() for line in lines]
    vocabulary = str(folder / "d/vocab.txt")
    made = albert.tokenization.FullTokenizer(vocabulary, True, None)
    assert type(made) is FullTokenizer and made.tokenize("One text") == ["one", "text"]
    for name in ("tokenization.FullTokenizer", "AlbertModel", "optimization.Lamb"):
        assert any(line.startswith(f"albert.{name}") for line in lines) and eval(f"albert.{name}")
