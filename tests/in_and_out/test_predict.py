"""predict: what the commands predict in files is what it says of the same texts."""

import json
import os
import shutil

import helpers
import numpy as np
import pytest
import test_run_race
from test_convert_hf import convert
from test_run_token_classifier import VOCABULARY as NER_VOCABULARY
from test_run_token_classifier import write_conll

from albert import (
    convert_hf,
    export_checkpoints,
    modeling,
    predict,
    run_classifier,
    run_race,
    run_squad_v1,
    run_squad_v2,
    run_token_classifier,
)
from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import DataError
from albert.formats import pretrained
from albert.inference import predictors
from albert.tasks import entity_metrics as entities

WORDS = [f"w{i}" for i in range(35)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LARGE = {"max_position_embeddings": 64, "initializer_range": 0.3}
STEPS = ["--train_step=2", "--warmup_step=1", "--save_checkpoints_steps=2", "--train_batch_size=4",
         "--learning_rate=0.01"]


def train(module, folder, vocabulary, *arguments):
    """Runs a command with prediction; returns its output directory, all that is left."""
    source = folder / "words.txt"
    source.write_text("\n".join(vocabulary))
    config = helpers.write_config(folder, **LARGE | {"vocab_size": len(vocabulary)})
    values = flags.parse(module.define_flags, [
        "x", f"--albert_config_file={config}", f"--vocab_file={source}",
        f"--output_dir={folder}/out", "--do_train", "--do_predict", *STEPS, *arguments,
    ])
    module.main(values)
    source.unlink()  # the output directory is complete by itself
    return folder / "out"


def ask(folder, model, lines, *arguments) -> list[dict]:
    (folder / "lines.txt").write_text("".join(line + "\n" for line in lines))
    predict.main(flags.parse(predict.define_flags, [
        "x", f"--model={model}", f"--input_file={folder}/lines.txt",
        f"--output_file={folder}/answers.jsonl", "--batch_size=4", *arguments,
    ]))
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


def refused(capsys, *arguments) -> str:
    capsys.readouterr()  # what was said before
    code = flags.run_command(
        predict.__doc__, predict.define_flags, predict.main, ["x", *map(str, arguments)]
    )
    assert code == 2
    return helpers.assert_one_clear_line(capsys.readouterr().err)


def probabilities(folder):
    rows = (folder / "test_results.tsv").read_text().splitlines()
    return np.array([[float(x) for x in row.split("\t")] for row in rows])


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(2)

    def text():
        return " ".join(rng.choice(WORDS, rng.integers(1, 30)))

    return [(text(), text() if i % 4 else "") for i in range(11)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, pairs):
    """An output directory of classification of pairs, of --train_file."""
    folder = tmp_path_factory.mktemp("classifier")
    for split in ("train", "dev", "test"):
        rows = [f"{a}\t{b}\t{('yes', 'no')[i % 2]}" for i, (a, b) in enumerate(pairs)]
        (folder / f"{split}.tsv").write_text("\n".join(["a\tb\tlabel", *rows]) + "\n")
    return train(
        run_classifier, folder, VOCABULARY,
        *(f"--{split}_file={folder}/{split}.tsv" for split in ("train", "dev", "test")),
        "--do_eval",
        "--text_column=a", "--text_pair_column=b", "--label_column=label",
        "--label_list=yes,no", "--max_seq_length=40",
    )


def test_classification_of_pairs(classifier, pairs, tmp_path):
    answers = ask(tmp_path, classifier, [f"{a}\t{b}" for a, b in pairs])
    expected = probabilities(classifier)
    found = [[answer["probabilities"][label] for label in ("yes", "no")] for answer in answers]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for answer, row in zip(answers, expected, strict=True):
        assert answer["label"] == ("yes", "no")[row.argmax()]
        assert answer["probability"] == max(answer["probabilities"].values())


def test_one_text_at_a_time_gives_the_answers_of_a_batch(classifier, pairs, tmp_path):
    lines = [f"{a}\t{b}" for a, b in pairs]
    alone, together = (
        [list(answer["probabilities"].values()) for answer in ask(tmp_path, classifier, lines, size)]
        for size in ("--batch_size=1", "--batch_size=8")
    )
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_an_empty_line_is_answered_with_null_where_two_texts_are_needed(
    classifier, pairs, tmp_path
):
    first, second = (f"{a}\t{b}" for a, b in pairs[:2])
    answers = ask(tmp_path, classifier, [first, "", second, ""])
    assert answers[1] is None and answers[3] is None
    assert [answers[0], answers[2]] == [
        {**one, "probability": pytest.approx(one["probability"], abs=1e-5),
         "probabilities": pytest.approx(one["probabilities"], abs=1e-5)}
        for one in ask(tmp_path, classifier, [first, second])
    ]


def test_labels_given_with_commas_may_have_blanks_in_them(classifier, pairs, tmp_path):
    (answer,) = ask(
        tmp_path, classifier, ["w1\tw2"], "--label_list=very good,bad"
    )
    assert list(answer["probabilities"]) == ["very good", "bad"]


TIED = np.array([[0.1, np.nextafter(np.float32(0.1), np.float32(1)), 0.0]], np.float32)


def test_the_label_is_that_of_the_greatest_logit_where_probabilities_are_equal():
    class Model:
        def __call__(self, batch, training):
            return {"logits": batch}

    labeller = predictors.TokenClassifier(None, ("O", "B-X", "B-Y"))
    outputs = labeller.compute(Model(), TIED)
    (found,) = labeller.decode([("w1", [(0, 2)], [np.array([0])])], [[outputs]])
    assert found["labels"] == ["B-X"]
    for predictor in (
        predictors.TextClassifier(None, ("a", "b", "c")),
        predictors.ChoicePredictor(None, ("A", "B", "C")),
    ):
        outputs = {name: x[0] for name, x in predictor.compute(Model(), TIED).items()}
        (answer,) = predictor.decode(None, [[outputs]])
        probabilities = list(answer["probabilities"].values())
        assert probabilities[0] == probabilities[1] == answer["probability"]
        assert answer["label"] == predictor.labels[1]


def test_a_checkpoint_may_be_named(classifier, pairs, tmp_path):
    lines = [f"{a}\t{b}" for a, b in pairs]
    assert ask(tmp_path, f"{classifier}/model.ckpt-2", lines) == ask(tmp_path, classifier, lines)


@pytest.mark.slow
def test_regression_of_a_task_of_glue(tmp_path, pairs):
    for split in ("train", "dev", "test"):
        rows = ["x\t" * 7 + f"{a}\t{b}" + ("" if split == "test" else f"\t{i % 6}")
                for i, (a, b) in enumerate(pairs)]
        (tmp_path / "STS-B").mkdir(exist_ok=True)
        (tmp_path / f"STS-B/{split}.tsv").write_text("\n".join(["h\t" * 9 + "score", *rows]) + "\n")
    out = train(run_classifier, tmp_path, VOCABULARY, "--task_name=STS-B",
                f"--data_dir={tmp_path}", "--max_seq_length=40")
    answers = ask(tmp_path, out, [f"{a}\t{b}" for a, b in pairs])
    np.testing.assert_allclose([a["value"] for a in answers], probabilities(out)[:, 0], atol=1e-5)


def test_words_are_labelled_as_in_the_file(tmp_path):
    write_conll(tmp_path)
    out = train(run_token_classifier, tmp_path, NER_VOCABULARY, f"--data_dir={tmp_path}",
                "--max_seq_length=40", "--train_step=60", "--warmup_step=6",
                "--train_batch_size=16", "--learning_rate=0.005", "--albert_dropout=0", "--classifier_dropout=0")
    sentences = [
        [line.split() for line in group.splitlines()]
        for group in (out / "test_predictions.txt").read_text().split("\n\n") if group
    ][1:]
    answers = ask(tmp_path, out, [" ".join(row[0] for row in s) for s in sentences] + [" "],
                  "--is_tokenized")
    assert len({row[-1] for s in sentences for row in s}) > 1
    for sentence, answer in zip(sentences, answers[:-1], strict=True):
        assert answer["words"] == [row[0] for row in sentence]
        assert answer["labels"] == [row[-1] for row in sentence]
        assert len(answer["probabilities"]) == len(sentence)
    assert answers[-1] == {"words": [], "labels": [], "probabilities": [], "entities": []}
    # Raw text: punctuation is apart, and entities are told with their places.
    text = "W1.  N3 M2. N1 M1 N2, N5."
    (raw,) = ask(tmp_path, out, [text])
    words = raw["words"]
    assert words == ["W1", ".", "N3", "M2", ".", "N1", "M1", "N2", ",", "N5", "."]
    expected = entities.find_entities(raw["labels"])
    assert expected
    for entity, (kind, first, last) in zip(raw["entities"], expected, strict=True):
        assert entity["type"] == kind
        assert entity["text"].replace(" ", "") == "".join(words[first : last + 1])
        assert text[entity["start"] : entity["end"]] == entity["text"]


def test_words_keep_punctuation_inside_them():
    found = predictors.WORD.findall('He said: "don\'t pay $3.50 in U.S.A.!" (état-major)')
    assert found == ["He", "said", ":", '"', "don't", "pay", "$", "3.50", "in", "U.S.A", ".", "!",
                     '"', "(", "état-major", ")"]


def test_multiple_choice(tmp_path):
    test_run_race.write_race(tmp_path)
    out = train(run_race, tmp_path, VOCABULARY, f"--data_dir={tmp_path}", "--nodo_eval",
                "--max_seq_length=40", "--max_qa_length=6")
    lines = []
    for level in ("middle", "high"):
        for path in sorted((tmp_path / "RACE/test" / level).iterdir()):
            for line in path.read_text().splitlines():
                one = json.loads(line)
                lines += [
                    "\t".join([one["article"], question, *options])
                    for question, options in zip(one["questions"], one["options"], strict=True)
                ]
    answers = ask(tmp_path, out, lines)
    found = [[answer["probabilities"][letter] for letter in "ABCD"] for answer in answers]
    np.testing.assert_allclose(found, probabilities(out), atol=1e-5)


@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_question_answering(tmp_path, capsys, version):
    rng = np.random.default_rng(5)
    paragraphs = []
    for i in range(8):
        context = " ".join(rng.choice(WORDS, 10 + 12 * (i % 5)))  # some in several windows
        answer = context.split()[3]
        qa = {"id": str(i), "question": f"w{i} w1?", "is_impossible": False,
              "answers": [{"text": answer, "answer_start": context.index(answer)}]}
        paragraphs.append({"context": context, "qas": [qa]})
    path = tmp_path / "data.json"
    data = {"version": "v", "data": [{"title": "t", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(data))
    blind = tmp_path / "blind.json"
    for paragraph in paragraphs:
        paragraph["qas"][0] |= {"answers": []}
        del paragraph["qas"][0]["is_impossible"]
    blind.write_text(json.dumps(data))
    out = train(
        (run_squad_v1, run_squad_v2)[version - 1], tmp_path, VOCABULARY, f"--train_file={path}",
        f"--predict_file={blind}", "--max_seq_length=40", "--doc_stride=16",
        "--max_query_length=8", "--max_answer_length=5",
    )
    nbest = json.loads((out / "nbest_predictions.json").read_text())
    answers = ask(tmp_path, out, [f"{p['qas'][0]['question']}\t{p['context']}" for p in paragraphs])
    for i, answer in enumerate(answers):
        best = answer["best_answer"] if version == 2 else answer["answer"]
        assert best == nbest[str(i)][0]["text"]
        assert answer["probability"] == pytest.approx(nbest[str(i)][0]["probability"], abs=1e-4)
    if version == 2:
        odds = json.loads((out / "null_odds.json").read_text())
        found = [answer["no_answer_score"] for answer in answers]
        np.testing.assert_allclose(found, [odds[str(i)] for i in range(8)], atol=1e-4)
        written = json.loads((out / "predictions.json").read_text())
        assert [answer["answer"] for answer in answers] == [written[str(i)] for i in range(8)]
    # A place of the passage is left beside the longest question, or none.
    lines = [f"w1 {'w2 ' * 20}?\tw3 w4"]
    assert ask(tmp_path, out, lines, "--max_seq_length=12")[0]["answer"] in ("w3", "w4", "w3 w4")
    (tmp_path / "in.txt").write_text(lines[0])
    capsys.readouterr()
    line = refused(capsys, f"--model={out}", f"--input_file={tmp_path}/in.txt",
                   "--max_seq_length=11")
    assert line.endswith(
        "--max_seq_length=11 is too short for passages: the model was trained with questions "
        "of up to 8 tokens, so it must be at least 12"
    )


# --- A model that was taken out and saved again ---


def edited(classifier, folder, change) -> str:
    """Returns a copy of the classifier with what lies beside its checkpoints changed by hand."""
    shutil.copytree(classifier, folder / "edited")
    for path in (folder / "edited").glob("model.ckpt-*.json"):
        values = json.loads(path.read_text())
        del values["content_sha256"]
        change(values)
        path.write_text(json.dumps(values))
    return str(folder / "edited")


@pytest.mark.slow
def test_a_classifier_that_was_saved_or_converted_gives_the_same_answers(
    classifier, pairs, tmp_path
):
    lines = [f"{a}\t{b}" for a, b in pairs]
    expected = ask(tmp_path, classifier, lines)
    assert {answer["label"] for answer in expected} <= {"yes", "no"}
    model = modeling.AlbertForSequenceClassification.from_pretrained(str(classifier))
    model.save_pretrained(str(tmp_path / "saved"))
    shutil.copy(classifier / "vocab.txt", tmp_path / "saved")
    for command in (
        [f"--albert_directory={classifier}", f"--output_dir={tmp_path}/theirs"],
        [f"--hf_directory={tmp_path}/theirs", f"--output_dir={tmp_path}/back"],
        [f"--albert_directory={tmp_path}/saved", f"--output_dir={tmp_path}/of_saved"],
    ):
        assert convert(*command) == 0
    clean = tmp_path / "clean"
    assert 0 == flags.run_command(
        "", export_checkpoints.define_flags, export_checkpoints.main,
        ["x", f"--albert_directory={classifier}", "--checkpoint_name=model.ckpt-2",
         f"--export_path={clean}/model.ckpt-best"],
    )
    for name in ("albert_config.json", "vocab.txt"):
        shutil.copy(classifier / name, clean)
    for name in ("saved", "theirs", "back", "of_saved", "clean"):
        assert ask(tmp_path, tmp_path / name, lines) == expected, name


def test_a_cased_classifier_is_cased_wherever_it_goes(classifier, tmp_path):
    model = edited(classifier, tmp_path, lambda v: v["flags"].update(do_lower_case=False))
    os.unlink(f"{model}/tokenizer_config.json")  # as a run that was stopped leaves it
    (answer,) = ask(tmp_path, model, ["W1\tW2"])
    assert answer != ask(tmp_path, model, ["w1\tw2"])[0]
    assert answer == ask(tmp_path, classifier, ["W1\tW2"], "--nodo_lower_case")[0]
    assert convert(f"--albert_directory={model}", f"--output_dir={tmp_path}/theirs") == 0
    assert ask(tmp_path, tmp_path / "theirs", ["W1\tW2"]) == [answer]


@pytest.mark.parametrize("layout", ["ours", "theirs"])
def test_labels_that_do_not_exclude_each_other_are_judged_one_by_one(layout, tmp_path):
    config = AlbertConfig.from_dict(helpers.SIZES | {"initializer_range": 0.5})
    model = modeling.AlbertForSequenceClassification(config, num_labels=3)
    model.output_bias.assign([9.0, -9.0, 0.5])
    model.label_names, model.problem_type = ("x", "y", "z"), "multi_label_classification"
    folder = tmp_path / "ours"
    model.save_pretrained(str(folder))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    if layout == "theirs":
        folder = tmp_path / "theirs"
        assert convert(f"--albert_directory={tmp_path}/ours", f"--output_dir={folder}") == 0
        theirs = json.loads((folder / "config.json").read_text())
        assert theirs["problem_type"] == "multi_label_classification"
    inputs = {"input_ids": np.array([[2, 6, 7, 3]])}
    logits = np.asarray(model(inputs)["logits"])[0]
    (answer,) = ask(tmp_path, folder, ["w1 w2"])
    expected = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(list(answer["probabilities"].values()), expected, atol=1e-5)
    assert answer["labels"] == [n for n, p in answer["probabilities"].items() if p >= 0.5]
    assert {"x"} <= set(answer["labels"]) and "y" not in answer["labels"]


def test_a_regression_of_theirs_answers_with_numbers(tmp_path):
    config = AlbertConfig.from_dict(helpers.SIZES)
    for count, key in ((1, "value"), (2, "values")):
        model = modeling.AlbertForSequenceClassification(config, num_labels=count)
        model.problem_type = "regression"
        model.save_pretrained(str(tmp_path / f"ours{count}"))
        (tmp_path / f"ours{count}/vocab.txt").write_text("\n".join(VOCABULARY))
        theirs = tmp_path / f"theirs{count}"
        assert convert(f"--albert_directory={tmp_path}/ours{count}", f"--output_dir={theirs}") == 0
        (answer,) = ask(tmp_path, theirs, ["w1 w2"])
        logits = np.asarray(model({"input_ids": np.array([[2, 6, 7, 3]])})["logits"])[0]
        found = answer[key] if count == 1 else list(answer[key].values())
        np.testing.assert_allclose(found, logits[0] if count == 1 else logits, atol=1e-5)


def test_two_labels_of_one_name_are_not_made_one(tmp_path, capsys):
    model = modeling.AlbertForSequenceClassification(AlbertConfig.from_dict(helpers.SIZES), 2)
    model.label_names = ("same", "same")
    model.save_pretrained(str(tmp_path / "model"))
    (tmp_path / "model/vocab.txt").write_text("\n".join(VOCABULARY))
    (tmp_path / "in.txt").write_text("w1\n")
    line = refused(capsys, f"--model={tmp_path}/model", f"--input_file={tmp_path}/in.txt")
    assert "names a label twice (same same): give --label_list" in line


def test_a_classifier_that_does_not_say_its_problem_may_be_told(saved, tmp_path):
    (answer,) = ask(tmp_path, saved / "AlbertForSequenceClassification", ["w1"],
                    "--task=multi_label_classification")
    assert set(answer) == {"labels", "probabilities"}


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("max_seq_length", "x", "flags: max_seq_length must be a whole number above 0, got 'x'"),
        ("max_seq_length", -3, "flags: max_seq_length must be a whole number above 0"),
        ("label_list", 7, "flags: label_list must be a text, got 7"),
        ("do_lower_case", "no", "flags: do_lower_case must be true or false, got 'no'"),
        ("text_pair_column", [1], "flags: text_pair_column must be a text"),
        ("classifier_dropout", 2, "flags: classifier_dropout must be a number from 0 to 1"),
        ("n_best_size", "20", "flags: n_best_size must be a whole number above 0, got '20'"),
    ],
)
def test_a_record_of_the_training_with_a_bad_value_is_refused_by_file_and_key(
    flag, value, message, classifier, tmp_path, capsys
):
    model = edited(classifier, tmp_path, lambda values: values["flags"].update({flag: value}))
    (tmp_path / "in.txt").write_text("w1\tw2\n")
    line = refused(capsys, f"--model={model}", f"--input_file={tmp_path}/in.txt")
    assert "model.ckpt-best.json: " in line and message in line


@pytest.mark.parametrize("key", ["architecture", "task", "config", "step"])
def test_no_kind_of_value_beside_a_checkpoint_is_a_traceback(key, classifier, tmp_path, capsys):
    for number, value in enumerate(([], {"a": 1}, None, "x", 3.5, True)):
        (tmp_path / str(number)).mkdir()
        model = edited(classifier, tmp_path / str(number), lambda v: v.update({key: value}))
        (tmp_path / "in.txt").write_text("w1\tw2\n")
        code = flags.run_command(predict.__doc__, predict.define_flags, predict.main, [
            "x", f"--model={model}", f"--input_file={tmp_path}/in.txt",
            f"--output_file={tmp_path}/out.jsonl",
        ])
        said = capsys.readouterr().err
        if code:
            assert code == 2
            helpers.assert_one_clear_line(said)


# --- Other directories ---


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Directories of save_pretrained, one with each head."""
    folder = tmp_path_factory.mktemp("saved")
    config = AlbertConfig.from_dict(helpers.SIZES)
    for name, options in (
        ("AlbertForSequenceClassification", {"num_labels": 3}),
        ("AlbertForTokenClassification", {"num_labels": 3}),
        ("AlbertForPreTraining", {}),
        ("AlbertForMultipleChoice", {}),
        ("AlbertForQuestionAnswering", {}),
        ("AlbertForBeamQuestionAnswering", {}),
    ):
        getattr(modeling, name)(config, **options).save_pretrained(str(folder / name))
        (folder / name / "vocab.txt").write_text("\n".join(VOCABULARY))
    untold = folder / "untold"
    untold.mkdir()
    pretrained.write_archive(
        str(untold), modeling.AlbertForSequenceClassification(config, num_labels=3)
    )
    os.remove(untold / "model.ckpt-best.json")  # which tells its class
    (untold / "vocab.txt").write_text("\n".join(VOCABULARY))
    return folder


def test_a_saved_model_tells_its_head_and_its_labels_are_numbers_or_given(saved, tmp_path):
    (answer,) = ask(tmp_path, saved / "AlbertForSequenceClassification", ["w1\tw2"])
    assert list(answer["probabilities"]) == ["0", "1", "2"]
    (answer,) = ask(tmp_path, saved / "AlbertForTokenClassification", ["w1 w2"],
                    "--label_list=O,B-X,I-X", "--task=token_classification")
    assert set(answer["labels"]) <= {"O", "B-X", "I-X"}


@pytest.mark.parametrize("length", [4, *(
    pytest.param(n, marks=pytest.mark.slow) for n in (5, 16)
)])
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("AlbertForSequenceClassification", "w1 w2 w3\tw4 w5 w6"),
        ("AlbertForTokenClassification", "w1w2w3 w4"),
        ("AlbertForMultipleChoice", "w1 w2 w3\tw4 _ w5?\tw1\tw2\tw3 w7 w8\tw4"),
        ("AlbertForQuestionAnswering", "w1 w2 w3?\tw4 w5 w6 w7"),
        ("AlbertForBeamQuestionAnswering", "w1 w2 w3?\tw4 w5 w6 w7"),
    ],
)
def test_a_model_that_tells_nothing_of_its_training_answers_at_every_length(
    saved, tmp_path, name, line, length
):
    (answer,) = ask(tmp_path, saved / name, [line], f"--max_seq_length={length}")
    keys = {"Token": "words", "Beam": "best_answer", "Answer": "answer", "": "label"}
    assert answer[next(key for part, key in keys.items() if part in name)]


def test_hugging_faces_layout_with_its_label_names(saved, tmp_path):
    assert 0 == helpers.run_here(
        convert_hf, f"--albert_directory={saved}/AlbertForTokenClassification",
        f"--output_dir={tmp_path}/hf", "--architecture=AlbertForTokenClassification",
        f"--vocab_file={saved}/AlbertForTokenClassification/vocab.txt",
    )
    config = json.loads((tmp_path / "hf/config.json").read_text())
    config["id2label"] = {"0": "O", "1": "B-X", "2": "I-X"}
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    lines = ["w1 w2 w3", "w4"]
    ours = ask(tmp_path, saved / "AlbertForTokenClassification", lines, "--label_list=O,B-X,I-X")
    assert ask(tmp_path, tmp_path / "hf", lines) == ours


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("AlbertForPreTraining", ["--task=classification"], "has no head for classification"),
        ("AlbertForPreTraining", [], "is pretrained, not fine-tuned: fine-tune it, or try"),
        ("untold", [], "does not say what it was fine-tuned for: give --task="),
        ("AlbertForPreTraining", ["--task=question_answering"],
         "has no head for question_answering"),
        ("AlbertForSequenceClassification", ["--task=token_classification"],
         "was fine-tuned for classification"),
        ("AlbertForSequenceClassification", ["--label_list=a,b"], "has 3 labels, not 2 (a b)"),
        ("AlbertForSequenceClassification", ["--is_tokenized"], "--is_tokenized has no effect"),
        ("AlbertForQuestionAnswering", ["--label_list=a,b"],
         "--label_list has no effect on question_answering"),
        ("AlbertForSequenceClassification", ["--task=translation"], "--task"),
        ("AlbertForSequenceClassification", ["--spm_model_file=a", "--vocab_file=b"],
         "give one of --spm_model_file and --vocab_file"),
        ("AlbertForSequenceClassification", ["--max_seq_length=17"],
         "exceeds max_position_embeddings 16"),
        ("AlbertForSequenceClassification", ["--input_file={}/three.txt"],
         "three.txt:2: 3 tab-separated texts, expected 1 or 2"),
        ("AlbertForSequenceClassification", ["--input_file={}/bad.txt"],
         "bad.txt:1: not UTF-8 text"),
        ("none", [], "--model: no such directory"),
    ],
)
def test_what_cannot_be_predicted_is_refused(saved, capsys, tmp_path, name, arguments, message):
    (tmp_path / "in.txt").write_text("w1\n")
    (tmp_path / "three.txt").write_text("w1\nw1\tw2\tw3\n")
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    line = refused(
        capsys, f"--model={saved}/{name}", f"--input_file={tmp_path}/in.txt",
        f"--output_file={tmp_path}/out.jsonl",
        *(argument.replace("{}", str(tmp_path)) for argument in arguments),
    )
    assert message in line
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
def test_a_line_for_single_texts_has_no_tab(capsys, tmp_path):
    for split in ("train", "dev", "test"):
        rows = [f"{WORDS[i]} w1\t{('yes', 'no')[i % 2]}" for i in range(8)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["a\tlabel", *rows]) + "\n")
    out = train(
        run_classifier, tmp_path, VOCABULARY,
        *(f"--{split}_file={tmp_path}/{split}.tsv" for split in ("train", "dev", "test")),
        "--do_eval",
        "--text_column=a", "--label_list=yes,no", "--max_seq_length=40",
    )
    assert ask(tmp_path, out, ["w1 w2"])
    (tmp_path / "in.txt").write_text("w1 w2\nw1\tw2\n")
    line = refused(capsys, f"--model={out}", f"--input_file={tmp_path}/in.txt")
    assert line.endswith("in.txt:2: 2 tab-separated texts, expected 1")


def test_how_many_texts_a_line_has_is_the_tasks():
    single = predictors.TextClassifier(None, min_texts=1, max_texts=1)
    with pytest.raises(DataError, match="in.txt:2: 2 texts, expected 1$"):
        single.check(single.columns("w1\tw2"), "in.txt:2")
    words = predictors.TokenClassifier(None)
    words.check(words.columns("w1\tw2"), "in.txt:2")  # between words, a tab is a blank


def test_a_line_for_pairs_needs_two_texts(classifier, capsys, tmp_path):
    (tmp_path / "in.txt").write_text("w1\tw2\nw1\n")
    line = refused(capsys, f"--model={classifier}", f"--input_file={tmp_path}/in.txt")
    assert line.endswith("in.txt:2: 1 tab-separated texts, expected 2")


def test_a_directory_without_vocabulary_is_told(classifier, capsys, tmp_path):
    os.symlink(classifier, tmp_path / "model")
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in classifier.iterdir():
        if path.name != "vocab.txt" and path.is_file():
            os.symlink(path, copy / path.name)
    (tmp_path / "in.txt").write_text("w1\tw2\n")
    line = refused(capsys, f"--model={copy}", f"--input_file={tmp_path}/in.txt")
    assert line.endswith("has no vocabulary: give --spm_model_file or --vocab_file")
    (answer,) = ask(tmp_path, copy, ["w1\tw2"], f"--vocab_file={classifier}/vocab.txt")
    assert answer == ask(tmp_path, classifier, ["w1\tw2"])[0]


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_as_a_process_it_reads_the_standard_input(classifier, name):
    process = helpers.start(
        "albert.predict", f"--model={classifier}", f"--input_file={name}", stdin=-1
    )
    out, err = process.communicate("w1\tw2\nw3\t\n", timeout=300)
    assert process.returncode == 0, err
    assert [json.loads(line)["label"] in ("yes", "no") for line in out.splitlines()] == [True] * 2


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_crash(classifier):
    process = helpers.start("albert.predict", f"--model={classifier}", stdin=-1)
    process.stdout.close()
    process.stdin.write("w1\tw2\n" * 50)
    process.stdin.close()
    error = process.stderr.read()
    assert process.wait(timeout=300) == 2
    assert helpers.assert_one_clear_line(error).endswith("was closed before the end")
