"""predict, fill_mask and extract_features: the answers of the commands and of sessions, and refusals.

test_fine_tuning and test_run_squad cover words, choices and passages.
"""

import io
import itertools
import json
import os
import pathlib
import shutil
import sys
import types

import answers
import helpers
import jobs
import numpy as np
import pytest
from helpers import run_here
from invariants import snapshot
from jobs import ask

import albert
from albert import convert_hf, extract_features, fill_mask, modeling, predict
from albert.cli import answering, flags
from albert.config import AlbertConfig
from albert.formats import pretrained
from albert.formats.metadata import Metadata
from albert.inference import fine_tuned, predictors

LABELS = ("yes", "no")


def run(module, *arguments) -> int:
    """Runs a command, of whose arguments those of fill_mask are texts."""
    return flags.run_command(
        module.__doc__, module.define_flags, module.main, ["x", *map(str, arguments)], module is fill_mask
    )


def refused(capsys, *arguments, command=predict) -> str:
    capsys.readouterr()  # discards earlier output
    assert run(command, *arguments) == 2
    return helpers.assert_one_clear_line(capsys.readouterr().err)


def close(answers):
    """Returns answers to compare with those of other batches, with a tolerance."""
    return [one and {**one, "probability": pytest.approx(one["probability"], abs=1e-5),
                     "probabilities": pytest.approx(one["probabilities"], abs=1e-5)}
            for one in answers]


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(2)

    def text():
        return " ".join(rng.choice(jobs.WORDS, rng.integers(1, 30)))

    return [f"{text()}\t{text() if i % 4 else ''}" for i in range(11)]


@pytest.fixture(scope="module")
def classifier(run_once, pairs):
    """The output directory of a classifier of pairs from --train_file; nothing else is left."""

    def flags_of(folder):
        for split in ("train", "dev", "test"):
            first = "w9 " * (split == "dev")  # other texts than those of the training
            rows = [f"{first}{pair}\t{LABELS[i % 2] if split != 'test' else '?'}"
                    for i, pair in enumerate(pairs)]
            (folder / f"{split}.tsv").write_text("\n".join(["a\tb\tlabel", *rows]) + "\n")
        flags = jobs.classifier_flags(folder, max_seq_length=40, train_step=2, learning_rate=0.01)
        helpers.write_config(folder, **jobs.TUNED, max_position_embeddings=64)
        return [
            *flags, *(f"--{split}_file={folder}/{split}.tsv" for split in ("train", "dev", "test")),
            "--data_dir=", "--task_name=", "--save_checkpoints_steps=2", "--text_column=a",
            "--text_pair_column=b", "--label_column=label", "--label_list=yes,no",
        ]

    out = run_once("pairs", jobs.classify, flags_of, "--do_train", "--do_eval", "--do_predict").out
    (out.parent / "vocab.txt").unlink(missing_ok=True)
    return out


def test_pairs_are_classified_as_in_the_file_in_batches_or_alone(classifier, pairs, tmp_path):
    rows = (classifier / "test_results.tsv").read_text().splitlines()
    expected = np.array([[float(x) for x in row.split("\t")] for row in rows])
    submitted = (classifier / "submit_results.tsv").read_text().splitlines()
    assert submitted == ["index\tprediction", *(
        f"{i}\t{LABELS[row.argmax()]}" for i, row in enumerate(expected)
    )]
    answers = ask(tmp_path, classifier, pairs)
    found = [[answer["probabilities"][label] for label in LABELS] for answer in answers]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for answer, row in zip(answers, expected, strict=True):
        assert answer["label"] == LABELS[row.argmax()]
        assert answer["probability"] == max(answer["probabilities"].values())
    # An empty line has no pair: its answer is null.
    alone = ask(tmp_path, classifier, [pairs[0], "", *pairs[1:], ""], "--batch_size=1")
    assert alone == close([answers[0], None, *answers[1:], None])
    # The head answers for the labels that it was trained for, in whatever order they are typed.
    assert ask(tmp_path, classifier, pairs, "--label_list=no,yes") == close(answers)


TIED = np.array([[0.1, np.nextafter(np.float32(0.1), np.float32(1)), 0.0]], np.float32)


def test_white_space_is_read_as_in_training(classifier):
    session = albert.open_session(str(classifier))
    expected, *others = session.classify([
        ("w1 w2", "w3"), ("w1\x0cw2", " w3"), ("w1 \x85\n w2", "w3\x0b")])  # which WordPiece leaves out
    assert close(others) == [expected] * 2


def test_the_label_is_that_of_the_greatest_logit_where_probabilities_are_equal():
    labeller = fine_tuned.TokenClassifier(None, ("O", "B-X", "B-Y"))
    assert labeller.decode(("w1", [(0, 2)], [np.array([0])]), [{"logits": TIED}])["labels"] == ["B-X"]
    for predictor in (
        fine_tuned.TextClassifier(None, ("a", "b", "c")), fine_tuned.ChoicePredictor(None, ("A", "B", "C")),
    ):
        outputs = predictor.compute(lambda batch: {"logits": batch}, TIED)
        answer = predictor.decode(None, [{name: values[0] for name, values in outputs.items()}])
        probabilities = list(answer["probabilities"].values())
        assert probabilities[0] == probabilities[1] == answer["probability"]
        assert answer["label"] == predictor.labels[1]


def test_words_keep_punctuation_inside_them():
    text = 'He said: "don\'t pay $3.50 in U.S.A.!" (état-major cafe\u0301)'
    found = fine_tuned.word_pattern().findall(text)
    assert found == ["He", "said", ":", '"', "don't", "pay", "$", "3.50", "in", "U.S.A", ".", "!",
                     '"', "(", "état-major", "cafe\u0301", ")"]
    found = fine_tuned.word_pattern().findall("我住ABC公司, v1.0")
    assert found == ["我", "住", "ABC", "公", "司", ",", "v1.0"]
    words = fine_tuned.TokenClassifier(None)
    assert words.read("w1\tw2".split(words.separator), "in.txt:2") == ["w1\tw2"]  # a tab is a space


def test_a_label_of_half_a_probability_is_given():
    session = types.SimpleNamespace(source=types.SimpleNamespace(metadata=Metadata()))
    several = fine_tuned.MultiLabelClassifier(session, ("a", "b"))
    answer = several.decode(None, [several.compute(dict, {"logits": np.array([0.0, -1e-3])})])
    assert answer["labels"] == ["a"] and answer["probabilities"]["a"] == 0.5


def test_the_flags_of_a_session_arrive_there(classifier, tmp_path, monkeypatch):
    opened, kind = [], answering.AnsweringSession
    monkeypatch.setattr(
        answering, "AnsweringSession", lambda *given: opened.append(kind(*given)) or opened[-1]
    )
    ask(tmp_path, classifier, ["w1\tw2"], "--max_seq_length=11", "--batch_size=3", "--mixed_precision=int8")
    [session] = opened
    assert (session.max_seq_length, session.batch_size, session.dtype) == (11, 3, "int8")


def test_a_large_input_is_told_once_which_precisions_are_faster(classifier, tmp_path, monkeypatch, caplog):
    lines = ["w1\tw2"] * 5
    measured = {"float32": (1.0, []), "int8": (3.04, []), "bfloat16": (0.9, [])}
    monkeypatch.setattr(predict.precision, "compare", lambda *given, **options: measured)
    for many, options, count in ((5, (), 0), (4, ("--mixed_precision=int8",), 0), (4, (), 1)):
        monkeypatch.setattr(predict, "MANY", many)
        ask(tmp_path, classifier, lines, *options)
        assert caplog.text.count("would be") == count
    assert "5 inputs: --mixed_precision=int8 would be 3.0 times as fast" in caplog.text


# --- The output file ---


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.csv"])
def test_an_interrupted_prediction_leaves_the_earlier_answers_and_nothing_else(
    name, classifier, tmp_path, monkeypatch
):
    lines = [f"w{i} w{i + 1},w{i + 2}" for i in range(20)]
    path, out, answers = tmp_path / "in.csv", tmp_path / name, fine_tuned.TextClassifier.predict
    path.write_text("\n".join(["text,text_pair", *lines]) + "\n")
    given = f"--model={classifier}", f"--input_file={path}", f"--output_file={out}"
    assert helpers.run_here(predict, *given) == 0
    before = snapshot(tmp_path)

    def dies(predictor, inputs, progress=None):
        yield from itertools.islice(answers(predictor, inputs, progress), 7)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fine_tuned.TextClassifier, "predict", dies)
        assert helpers.run_here(predict, *given) == 130
    assert snapshot(tmp_path) == before
    assert helpers.run_here(predict, *given) == 0
    assert snapshot(tmp_path).keys() == before.keys()


def test_a_model_that_computes_nan_ends_in_one_line_and_no_file(classifier, tmp_path, capsys):
    model = modeling.AlbertForSequenceClassification.from_pretrained(str(classifier))
    model.classifier.output_bias.assign([np.nan, 0.0])
    model.save_pretrained(str(tmp_path / "nan"))
    jobs.write_vocabulary(tmp_path / "nan")
    (tmp_path / "in.txt").write_text("w1\tw2\n")
    for more in ([], [f"--output_file={tmp_path}/out.jsonl"]):
        line = refused(capsys, f"--model={tmp_path}/nan", f"--input_file={tmp_path}/in.txt", *more)
        assert "holds NaN or infinity: the training diverged" in line
    assert not (tmp_path / "out.jsonl").exists() and not [*tmp_path.glob(".out*")]


# --- Other directories ---

HEADS = {
    "AlbertForSequenceClassification": ("w1 w2 w3\tw4 w5 w6", "label"),
    "AlbertForTokenClassification": ("w1w2w3 w4", "words"),
    "AlbertForMultipleChoice": ("w1 w2 w3\tw4 _ w5?\tw1\tw2\tw3 w7 w8\tw4", "label"),
    "AlbertForQuestionAnswering": ("w1 w2 w3?\tw4 w5 w6 w7", "answer"),
    "AlbertForBeamQuestionAnswering": ("w1 w2 w3?\tw4 w5 w6 w7", "best_answer"),
}


@pytest.fixture(scope="module")
def saved(made_once) -> pathlib.Path:
    """Directories written by save_pretrained, one per head."""

    def make(folder):
        config = AlbertConfig.from_dict(helpers.SIZES)
        for name in (*HEADS, "AlbertForPreTraining", "twins", "bare", "untold"):
            kind = getattr(modeling, name, modeling.AlbertForSequenceClassification)
            is_of_labels = kind.__name__.endswith(("SequenceClassification", "TokenClassification"))
            model = kind(config, **{"num_labels": 3} if is_of_labels else {})
            if name == "twins":
                model.label_names = ("same", "same", "other")
            model.save_pretrained(str(folder / name))
            if name != "bare":
                jobs.write_vocabulary(folder / name)
        shutil.rmtree(folder / "untold")
        (folder / "untold").mkdir()
        jobs.write_vocabulary(folder / "untold")
        pretrained.save(model, str(folder / "untold"), is_archive=True)
        os.remove(folder / "untold/model.ckpt-best.json")  # which names its class

    return made_once("heads", make)[0]


def test_a_model_that_tells_nothing_of_its_training_answers_also_in_short_rows(saved, tmp_path):
    for name, (line, key) in HEADS.items():
        (answer,) = ask(tmp_path, saved / name, [line], "--max_seq_length=4")
        assert answer[key]


def test_labels_are_numbers_or_given_or_those_of_hugging_faces_layout(saved, tmp_path):
    texts = saved / "AlbertForSequenceClassification"
    (answer,) = ask(tmp_path, texts, ["w1\tw2"])
    assert list(answer["probabilities"]) == ["0", "1", "2"]
    bare = saved / "bare", ["w1\tw2"], f"--vocab_file={texts}/vocab.txt"
    assert list(ask(tmp_path, *bare)[0]["probabilities"]) == ["0", "1", "2"]
    (answer,) = ask(tmp_path, texts, ["w1"], "--task=multi_label_classification")
    assert set(answer) == {"labels", "probabilities"}
    words, given = saved / "AlbertForTokenClassification", "--label_list=O,B-X,I-X"
    lines = ["w1 w2 w3", "w4"]
    ours = ask(tmp_path, words, lines, given, "--task=token_classification")
    assert {label for answer in ours for label in answer["labels"]} <= {"O", "B-X", "I-X"}
    (tmp_path / "in.csv").write_text("\n".join(["text", *lines]))
    table = f"--input_file={tmp_path}/in.csv", f"--output_file={tmp_path}/out.jsonl"
    assert 0 == run_here(predict, f"--model={words}", given, *table)
    rows = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [row["predicted_labels"] for row in rows] == [answer["labels"] for answer in ours]
    assert 0 == run_here(
        convert_hf, f"--albert_directory={words}", f"--output_dir={tmp_path}/hf",
        f"--vocab_file={words}/vocab.txt",
    )
    jobs.change_json(tmp_path / "hf/config.json", id2label={"0": "O", "1": "B-X", "2": "I-X"})
    assert ask(tmp_path, tmp_path / "hf", lines) == ours


OF_TEXTS, PRETRAINED = "AlbertForSequenceClassification", "AlbertForPreTraining"
REFUSED = [
    (PRETRAINED, ["--task=classification"], "has no head for classification"),
    (PRETRAINED, [], "is pretrained, not fine-tuned: fine-tune it, or try"),
    ("untold", [], "does not say what it was fine-tuned for: pass --task="),
    ("bare", [], "has no vocabulary: pass --spm_model_file or --vocab_file"),
    ("twins", [], "names a label twice (same; same; other): pass --label_list"),
    (PRETRAINED, ["--task=question_answering"], "has no head for question_answering"),
    (OF_TEXTS, ["--task=token_classification"], "was fine-tuned for classification"),
    (OF_TEXTS, ["--label_list=a,b"], "has 3 labels, not 2 (a; b)"),
    ("pairs", ["--label_list=ham,spam"], "was trained for the labels yes; no, not ham; spam: leave"),
    (OF_TEXTS, ["--is_tokenized"], "--is_tokenized has no effect"),
    ("AlbertForQuestionAnswering", ["--label_list=a,b"],
     "--label_list has no effect on question_answering"),
    (OF_TEXTS, ["--task=translation"], "--task"),
    (OF_TEXTS, ["--spm_model_file=a", "--vocab_file=b"],
     "pass only one of --spm_model_file and --vocab_file"),
    (OF_TEXTS, ["--input_file={}/three.txt"], "three.txt:2, split at tabs: 3 texts, expected 1 or 2"),
    (OF_TEXTS, ["--input_file={}/bad.txt"], "bad.txt:1: not UTF-8 text"),
    ("pairs", [], "in.txt:1, split at tabs: 1 text, expected 2"),
    *(("pairs", ["--input_file={}/in" + kind, "--output_file={}/out" + wanted], f"out{wanted}: answers")
      for kind, wanted in ((".csv", ".parquet"), (".txt", ".csv"), (".csv", ".jsonl.gz"), (".csv", ".xlsx"))),
    ("singles", ["--input_file={}/three.txt"], "three.txt:2, split at tabs: 3 texts, expected 1"),
]


def test_what_cannot_be_predicted_is_refused(saved, classifier, tuned, capsys, tmp_path):
    (tmp_path / "in.txt").write_text("w1\n")
    (tmp_path / "in.csv").write_text("a,b\nw1,w2\n")
    (tmp_path / "three.txt").write_text("w1\nw1\tw2\tw3\n")
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    models = {"pairs": classifier, "singles": tuned("classifier").out}
    for name, arguments, message in REFUSED:
        line = refused(
            capsys, f"--model={models.get(name, saved / name)}", f"--input_file={tmp_path}/in.txt",
            f"--output_file={tmp_path}/out.jsonl",
            *(argument.replace("{}", str(tmp_path)) for argument in arguments),
        )
        assert message in line and not [*tmp_path.glob("*out*")]


def test_a_process_reads_its_standard_input_and_answers_in_utf_8(classifier, tmp_path):
    assert 0 == run_here(convert_hf, f"--albert_directory={classifier}", f"--output_dir={tmp_path}/named")
    names = {"schön": 0, "日本": 1}
    by_id = {str(i): name for name, i in names.items()}
    jobs.change_json(tmp_path / "named/config.json", label2id=names, id2label=by_id)
    process = helpers.start("albert.predict", f"--model={tmp_path}/named", "--input_file=-", stdin=-1,
                            env={"PYTHONIOENCODING": "latin-1"}, encoding="utf-8")
    out, err = process.communicate("text\ttext_pair\nw1\tw2\nw3\t\n", timeout=300)  # without a header
    assert process.returncode == 0, err
    assert [set(json.loads(line)["probabilities"]) for line in out.splitlines()] == [{"schön", "日本"}] * 3


# --- fill_mask and extract_features ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pretrained and a fine-tuned model."""
    place = tmp_path_factory.mktemp("models")
    answers.saved(place / PRETRAINED, PRETRAINED)
    answers.saved(place / OF_TEXTS, OF_TEXTS, 2)
    return place


def fill(capsys, model, *arguments) -> list[str]:
    capsys.readouterr()
    assert run(fill_mask, f"--model={model}", *arguments) == 0
    return capsys.readouterr().out.splitlines()


TEXTS = ["w1 [MASK] w3", "[MASK] w2 " + "w5 " * 37 + "[MASK]", "w7 [MASK]"]


def test_texts_are_arguments_lines_of_a_file_or_of_the_standard_input(folder, capsys, tmp_path, monkeypatch):
    model, as_json = folder / PRETRAINED, ("--format=json", "--top_k=3")
    expected = albert.open_session(model).fill_mask(TEXTS, top_k=3)
    lines = fill(capsys, model, *as_json, *TEXTS)
    found = [json.loads(line) for line in lines]
    assert found == [{"text": text, "masks": masks} for text, masks in zip(TEXTS, expected, strict=True)]
    (tmp_path / "in.txt").write_text("\n".join([TEXTS[0], "", *TEXTS[1:], " ", ""]))
    of_file = [json.loads(line) for line in fill(capsys, model, *as_json, f"--input_file={tmp_path}/in.txt")]
    empty = [{"text": text, "masks": []} for text in ("", " ")]
    assert of_file == [found[0], empty[0], *found[1:], empty[1]]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(TEXTS).encode())))
    assert fill(capsys, model, *as_json) == lines
    # As a table
    lines = fill(capsys, model, "--top_k=2", *TEXTS)
    assert [line for line in lines if line in TEXTS] == TEXTS
    second = lines[lines.index(TEXTS[1]) + 1 : lines.index(TEXTS[2])]
    pieces = [[f"    {one['probability']:.4f}  {one['piece']}" for one in mask[:2]] for mask in expected[1]]
    assert second == ["  [MASK] 1", *pieces[0], "  [MASK] 2", *pieces[1]]


def test_pieces_of_equal_probabilities_are_ordered_by_their_logits():
    logits = np.zeros((1, 1, 40), np.float32)
    logits[..., 20], logits[..., 30] = 0.1, np.nextafter(np.float32(0.1), np.float32(1))
    filler = object.__new__(predictors.MaskFiller)
    filler.top_k, tokenizer = 2, types.SimpleNamespace(mask_id=4, vocab_size=40)
    filler.session = types.SimpleNamespace(tokenizer=tokenizer)
    found = filler.compute(lambda batch: {"prediction_logits": logits}, {"input_ids": np.array([[2, 4, 3]])})
    assert found["ids"].tolist() == [[[30, 20]]] and len({*found["probabilities"].ravel().tolist()}) == 1


LINES = ["w1 w2", "", "w9 " * 60, *(f"w{i % 35} w{i % 7} w3" * (1 + i % 9) for i in range(30))]


def extract(folder, tmp_path, name, *arguments):
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    assert 0 == run(
        extract_features, f"--model={folder / PRETRAINED}", f"--input_file={tmp_path}/in.txt",
        f"--output_file={tmp_path}/{name}", *arguments,
    )
    return tmp_path / name


def test_vectors_are_the_sessions_in_the_order_of_the_lines(folder, tmp_path, monkeypatch):
    """However lines are batched."""
    session = albert.open_session(folder / PRETRAINED)
    for pooling in ("pooled", "cls", "mean"):
        expected = session.embed(LINES, pooling=pooling)
        path = extract(folder, tmp_path, "x.npz", f"--pooling={pooling}", "--batch_size=4")
        vectors = np.load(path)["vectors"]
        np.testing.assert_allclose(vectors, expected, atol=2e-5)
        monkeypatch.setattr(predictors, "CHUNK", 7)
    path = extract(folder, tmp_path, "x.jsonl", "--pooling=mean", "--batch_size=3")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["text"] for line in lines] == LINES
    np.testing.assert_allclose([line["vector"] for line in lines], expected, atol=2e-5)


NO_MASKS = [
    (PRETRAINED, ["no mask"], "argument 1: no [MASK] in the text"),
    (PRETRAINED, ["[MASK]", "w1 " * 70 + "[MASK]"],
     "argument 2: 73 tokens with [CLS] and [SEP], at most 64 fit"),
    (PRETRAINED, ["[MASK] \udcff"], "argument 1: not UTF-8 text"),
    (PRETRAINED, ["--max_seq_length=65", "[MASK]"],
     "--max_seq_length=65 exceeds max_position_embeddings 64"),
    (PRETRAINED, ["--top_k=41", "[MASK]"], "the vocabulary has 40 tokens"),
    (PRETRAINED, ["--input_file=/nowhere"], "no such file"),
    (PRETRAINED, ["--input_file=/nowhere", "[MASK]"], "not both"),
    (OF_TEXTS, ["[MASK]"], "has no masked-LM head"),
    ("", ["[MASK]"], "holds neither albert_config.json"),
    (PRETRAINED, ["--model=", "[MASK]"], "--model"),
]
NO_FEATURES = [
    (PRETRAINED, ["--output_file=x.txt"], "ends neither in .jsonl nor in .npz"),
    (PRETRAINED, ["--input_file={}/bad.txt"], "bad.txt:2: not UTF-8 text"),
    (PRETRAINED, ["--input_file={}/empty.txt"], "empty.txt: empty input"),
]


def test_masks_and_vectors_that_cannot_be_had_are_refused(folder, capsys, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "in.txt").write_text("w1\n")
    files = f"--input_file={tmp_path}/in.txt", f"--output_file={tmp_path}/x.npz"
    for module, given, cases in ((fill_mask, (), NO_MASKS), (extract_features, files, NO_FEATURES)):
        for model, arguments, message in cases:
            arguments = [argument.replace("{}", str(tmp_path)) for argument in arguments]
            line = refused(capsys, f"--model={folder / model}", *given, *arguments, command=module)
            assert message in line
    assert not (tmp_path / "x.npz").exists()
