"""Every class through every layout: the same weights, names and settings come back."""

import pathlib
import shutil

import keras
import numpy as np
import pytest
import sentencepiece
import test_convert_hf
from test_export_to_tfhub import command as export_to_tfhub

import albert
from albert import modeling, run_classifier
from albert.cli import encoder, flags
from albert.formats import pretrained
from albert.formats.model_classes import is_labelled
from albert.formats.model_metadata import MULTI_LABEL
from albert.tokenization import FullTokenizer, TextSettings

HEADS = test_convert_hf.HEADS | {
    "AlbertForBeamQuestionAnswering": {"start_n_top": 3, "end_n_top": 2, "classifier_dropout": 0.2},
    "AlbertForSequenceClassification": {"num_labels": 3, "classifier_dropout": 0.3},
}
LAYOUTS = ("saved", "archive", "prefix", "there and back", "module")
# Its weights are all of a module's.
IN_MODULES = ("AlbertModel", "AlbertForMaskedLM", "AlbertForPreTraining")
TEXTS = {
    "cased": TextSettings(do_lower_case=False, keep_accents=True), "uncased": TextSettings(),
}
SENTENCE = "Café  the Quick brown क्‍ष"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("round_trip")
    lines = ["Café the Quick brown fox jumps over the lazy dog", "क्‍ष pack my box"] * 9
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(folder / "spm"), vocab_size=60,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        hard_vocab_limit=False, minloglevel=2, normalization_rule_name="identity",
    )
    return folder


@pytest.fixture(scope="module")
def source(home):
    """Returns the directory of a class, made once: (kind, case, has names) -> directory."""
    made: dict[tuple, pathlib.Path] = {}

    def make(kind: str, case: str, is_named: bool) -> pathlib.Path:
        key = kind, case, is_named
        if key not in made:
            made[key] = home / f"ours{len(made)}"
            tokenizer = albert.AlbertTokenizer(
                FullTokenizer(
                    None, TEXTS[case].do_lower_case, str(home / "spm.model"),
                    keep_accents=TEXTS[case].keep_accents,
                )
            )
            model = random_model(kind, tokenizer.vocab_size)
            if is_named:
                model.label_names = [f"name {i}, of some" for i in range(model.num_labels)]
                if kind == "AlbertForSequenceClassification":
                    model.problem_type = MULTI_LABEL
            model.save_pretrained(str(made[key]))
            tokenizer.save_pretrained(str(made[key]))
        return made[key]

    return make


def random_model(kind: str, vocab_size: int) -> keras.Model:
    sizes = test_convert_hf.SIZES | {"vocab_size": vocab_size}
    model = getattr(albert, kind)(albert.AlbertConfig(**sizes), **HEADS[kind])
    rng = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    return model


def travelled(layout: str, start: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Returns (directory, path to open) of the model at `start` in another layout."""
    folder = start.with_name(f"{start.name} {layout}")
    if layout == "module" and not folder.exists():
        assert 0 == export_to_tfhub(f"--albert_directory={start}", f"--export_path={folder}")
    elif layout in ("archive", "prefix"):
        folder = start.with_name(f"{start.name} archive")
        if not folder.exists():
            assert 0 == test_convert_hf.convert(f"--hf_directory={start}", f"--output_dir={folder}")
    elif layout == "there and back" and not folder.exists():
        archive, _ = travelled("archive", start)
        arguments = f"--albert_directory={archive}", f"--output_dir={folder}"
        assert 0 == test_convert_hf.convert(*arguments)
    elif layout == "saved":
        folder = start
    return folder, str(folder / "model.ckpt-best" if layout == "prefix" else folder)


def cases():
    for layout in LAYOUTS:
        for kind in HEADS:
            if layout == "module" and kind not in IN_MODULES:
                continue
            is_converted = layout in ("archive", "prefix", "there and back")
            if is_converted and kind == "AlbertForBeamQuestionAnswering":
                continue  # they have no such class
            for case in TEXTS:
                for is_named in (False, True)[: 1 + is_labelled(kind)]:
                    # Of the rest one of each: what is known of a model is one code for all.
                    is_quick = case == "cased" and is_named == is_labelled(kind) and (
                        layout == "there and back" or kind == "AlbertForSequenceClassification"
                        or (layout, kind) == ("saved", "AlbertModel")
                    )
                    marks = [] if is_quick else [pytest.mark.slow]
                    yield pytest.param(layout, kind, case, is_named, marks=marks)


@pytest.mark.parametrize(("layout", "kind", "case", "is_named"), list(cases()))
def test_what_is_known_of_a_model_comes_back_with_its_weights(
    layout, kind, case, is_named, source, tmp_path
):
    start = source("AlbertForPreTraining" if layout == "module" else kind, case, is_named)
    folder, path = travelled(layout, start)
    before = getattr(albert, kind).from_pretrained(str(start))
    model = getattr(albert, kind).from_pretrained(path)
    model.trainable = False
    model.save_pretrained(str(tmp_path / "again"))
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(folder))
    tokenizer.save_pretrained(str(tmp_path / "again"))
    again = getattr(albert, kind).from_pretrained(str(tmp_path / "again"), name="other")
    for one in (model, again):
        assert_same_weights(one, before)
        assert one.get_config().keys() >= HEADS[kind].keys()
        if layout != "module":
            assert {k: one.get_config()[k] for k in HEADS[kind]} == HEADS[kind]
        if is_labelled(kind):
            names = tuple(f"name {i}, of some" for i in range(one.num_labels))
            assert one.label_names == (names if is_named else None)
        if kind == "AlbertForSequenceClassification":
            assert one.problem_type == (MULTI_LABEL if is_named else None)
    ours = albert.AlbertTokenizer.from_pretrained(str(start))
    for one in (tokenizer, albert.AlbertTokenizer.from_pretrained(str(tmp_path / "again"))):
        assert one.tokenizer.settings == TEXTS[case]
        assert one.encode(SENTENCE) == ours.encode(SENTENCE)
        assert one.model_max_length == ours.model_max_length


def assert_same_weights(found: keras.Model, expected: keras.Model) -> None:
    found, expected = modeling.named_weights(found), modeling.named_weights(expected)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        without_there = name.startswith("bert/pooler/")  # some of their classes have none
        if not (without_there and not np.array_equal(found[name], weight)):
            np.testing.assert_array_equal(found[name], weight, err_msg=name)


def test_cased_and_uncased_texts_differ(source):
    cased, uncased = (
        albert.AlbertTokenizer.from_pretrained(str(source("AlbertModel", case, False)))
        for case in TEXTS
    )
    assert "é" in "".join(cased.tokenize(SENTENCE)) and "्" in "".join(cased.tokenize(SENTENCE))
    assert "é" not in "".join(uncased.tokenize(SENTENCE))
    assert cased.encode("the Quick") != uncased.encode("the Quick")


def test_a_model_knows_how_texts_are_prepared_where_its_vocabulary_comes_later(source, tmp_path):
    start = source("AlbertForTokenClassification", "cased", True)
    model = albert.AlbertForTokenClassification.from_pretrained(str(start))
    model.save_pretrained(str(tmp_path / "bare"))
    shutil.copy(start / "spiece.model", tmp_path / "bare")
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(tmp_path / "bare"))
    assert tokenizer.tokenizer.settings == TEXTS["cased"]


def test_what_is_fine_tuned_from_a_directory_reads_its_texts_as_it_does(source):
    start = source("AlbertModel", "cased", False)
    arguments = ["x", f"--init_checkpoint={start}", "--max_seq_length=8"]
    for more, expected in (
        ([], TEXTS["cased"]),
        ([f"--spm_model_file={start}/spiece.model"], TEXTS["cased"]),
        (["--do_lower_case"], TextSettings(do_lower_case=True, keep_accents=True)),
    ):
        values = flags.parse(run_classifier.define_flags, [*arguments, *more])
        assert encoder.open_encoder(values, 8).tokenizer.settings == expected


def test_a_card_tells_the_names_of_the_labels(source):
    start = source("AlbertForTokenClassification", "cased", True)
    for layout in ("saved", "archive", "there and back"):
        folder, _ = travelled(layout, start)
        assert '["name 0, of some", "name 1, of some"' in (folder / "README.md").read_text()


def test_a_pretrained_model_that_becomes_another_forgets_what_it_was(source, tmp_path):
    start = source("AlbertForPreTraining", "cased", False)
    model = albert.AlbertForTokenClassification.from_pretrained(str(start), num_labels=2)
    model.label_names = ("O", "B-X")
    model.save_pretrained(str(tmp_path / "tagger"))
    metadata = pretrained.open_path(str(tmp_path / "tagger")).metadata
    assert metadata.architecture == "AlbertForTokenClassification"
    assert metadata.label_names == ("O", "B-X") and metadata.task is None
    with pytest.raises(ValueError, match="3 names of 2 labels"):
        model.label_names = ("O", "B-X", "I-X")
