"""BERT encoders are read as ALBERTs, and compute what transformers and sentence-transformers compute."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from helpers import run_here
from jobs import change_json
from safetensors.numpy import load_file, save_file

import albert
from albert import convert_hf, export_model, extract_features, run_classifier
from albert.errors import CheckpointError, ConfigError, DataError
from albert.formats import huggingface
from albert.tokenization import FullTokenizer

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MODELS = {  # outputs by transformers' names, the class, the names of labels
    "model": (("last_hidden_state", "pooler_output"), "AlbertModel", None),
    "pretraining": (("prediction_logits", "seq_relationship_logits"), "AlbertForPreTraining", None),
    "masked_lm": (("logits",), "AlbertForMaskedLM", None),
    "classifier": (("logits",), "AlbertForSequenceClassification", ("bad", "fine", "good")),
    "words": (("logits",), "AlbertForTokenClassification", ("O", "B-PER", "I-PER")),
    "questions": (("start_logits", "end_logits"), "AlbertForQuestionAnswering", None),
}
OURS = {"seq_relationship_logits": "sop_logits"}


@pytest.fixture(scope="module")
def bert(golden_path):
    return golden_path("bert")


@pytest.fixture
def copy(bert, tmp_path):
    return shutil.copytree(bert / "model", tmp_path / "bert")


@pytest.fixture(scope="module")
def texts(bert):
    return json.loads((bert / "model/texts.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def vectors(bert):
    with np.load(bert / "model/embeddings.npz") as arrays:
        return arrays[arrays.files[0]]


def assert_computes(folder, name, bert, atol=1e-5):
    """Compares the outputs of the model in a folder with transformers'."""
    outputs, kind, labels = MODELS[name]
    model, golden = albert.from_pretrained(folder), np.load(bert / name / "io.npz")
    assert type(model).__name__ == kind and model.metadata.label_names == labels
    found = model(**{key: golden[key] for key in INPUTS}, output_hidden_states=True)
    for output in outputs:
        np.testing.assert_allclose(found[OURS.get(output, output)], golden[output], atol=atol, rtol=0)
    for layer, states in enumerate(found["hidden_states"]):
        np.testing.assert_allclose(states, golden[f"hidden_{layer}"], atol=atol, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_each_class_computes_what_transformers_does(name, bert):
    assert_computes(bert / name, name, bert)


def test_a_saved_or_converted_model_computes_the_same(bert, tmp_path):
    for name in ("pretraining", "classifier"):
        albert.from_pretrained(bert / name).save_pretrained(tmp_path / name)
        assert_computes(tmp_path / name, name, bert)
        given = f"--hf_directory={bert / name}", f"--output_dir={tmp_path}/{name}_tf"
        assert run_here(convert_hf, *given) == 0
        assert_computes(tmp_path / f"{name}_tf", name, bert)


@pytest.mark.parametrize("old", [False, True], ids=["new names", "old names"])
def test_names_of_every_version_are_read(old, bert, tmp_path):
    shutil.copytree(bert / "pretraining", tmp_path / "bert")
    path = tmp_path / "bert/model.safetensors"
    tensors = load_file(path)
    tensors["bert.embeddings.position_ids"] = np.arange(40)[None]
    decoder = "cls.predictions.decoder.weight"
    if old:
        tensors = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"):
            value for name, value in tensors.items() if not name.startswith("cls.predictions.decoder.")
        }
    else:
        tensors[decoder] = tensors["bert.embeddings.word_embeddings.weight"]
    save_file(tensors, path)
    assert_computes(tmp_path / "bert", "pretraining", bert)
    if not old:
        save_file(tensors | {decoder: tensors[decoder] + 1}, path)
        with pytest.raises(CheckpointError, match="separate output matrix"):
            albert.from_pretrained(tmp_path / "bert")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_read_with_and_without_the_prefix(dtype, bert, copy):
    path = copy / "model.safetensors"
    tensors = {name: value.astype(dtype) for name, value in load_file(path).items()}
    save_file({f"bert.{name.removeprefix('bert.')}": value for name, value in tensors.items()}, path)
    assert_computes(copy, "model", bert, atol=0.3 if dtype is ml_dtypes.bfloat16 else 0.03)


@pytest.mark.parametrize("change, message", [
    ({"model_type": "roberta"}, "model_type is 'roberta'; only 'albert' and 'bert'"),
    ({"is_decoder": True}, "is_decoder is true; only encoders"),
    ({"add_cross_attention": True}, "add_cross_attention is true"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
    ({"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05"),
    ({"hidden_act": "silu"}, "hidden_act 'silu'"),
])
def test_what_we_do_not_compute_is_refused(change, message, copy):
    change_json(copy / "config.json", **change)
    with pytest.raises(ConfigError, match=message):
        albert.from_pretrained(copy)


def test_missing_keys_of_a_configuration_are_those_of_bert_base():
    config = huggingface.config_from_theirs({"model_type": "bert"}, "config.json")
    assert (config.vocab_size, config.hidden_size, config.embedding_size) == (30522, 768, 768)
    assert (config.num_hidden_layers, config.num_hidden_groups, config.num_attention_heads) == (12, 12, 12)
    assert (config.intermediate_size, config.hidden_act) == (3072, "gelu_erf")
    assert config.hidden_dropout_prob == 0.1


# === Tokens ===


def test_tokens_are_those_of_transformers(bert, copy):
    golden = json.loads((bert / "model/tokens.json").read_text("utf-8"))
    (copy / "tokenizer_config.json").unlink()  # its file alone
    (copy / "vocab.txt").rename(copy / "words")
    words = (copy / "words").read_text("utf-8").splitlines()
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                  "strip_accents": None, "lowercase": True}
    (copy / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": i, "content": words[i], "special": True} for i in range(5)],
        "normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate(words)}},
    }))
    for folder in (bert / "model", copy):
        tokenizer = albert.AlbertTokenizer.from_pretrained(folder)
        for text, ids in golden["texts"].items():
            encoded = tokenizer(text, return_offsets_mapping=True)
            assert encoded["input_ids"] == ids == tokenizer.encode(text)
            for i, (begin, end) in zip(ids[1:-1], encoded["offset_mapping"][1:-1], strict=True):
                if i in (tokenizer.sep_token_id, tokenizer.mask_token_id):
                    assert text[begin:end] == tokenizer.convert_ids_to_tokens(i)
        for first, second, ids, types in golden["pairs"]:
            encoded = tokenizer(first, second)
            assert (encoded["input_ids"], encoded["segment_ids"]) == (ids, types)
    change_json(copy / "tokenizer.json", normalizer=normalizer | {"clean_text": False})
    with pytest.raises(DataError, match="differs from BERT's"):
        albert.AlbertTokenizer.from_pretrained(copy)


def test_special_tokens_in_a_text_stay_text_for_an_albert(bert, tmp_path):
    shutil.copy(bert / "model/vocab.txt", tmp_path)
    albert_tokenizer = albert.AlbertTokenizer.from_pretrained(tmp_path)
    of_bert = albert.AlbertTokenizer.from_pretrained(bert / "model")
    assert albert_tokenizer.encode("a [SEP] b").count(albert_tokenizer.sep_token_id) == 1
    assert of_bert.encode("a [SEP] b [sep]").count(of_bert.sep_token_id) == 2
    of_bert.save_pretrained(tmp_path / "saved")
    again = albert.AlbertTokenizer.from_pretrained(tmp_path / "saved")
    assert again.tokenizer.sha256 == of_bert.tokenizer.sha256 != albert_tokenizer.tokenizer.sha256


def test_a_word_of_more_than_100_characters_is_unknown_to_a_bert(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "x", "##x"]))
    for as_in_bert, longest in ((True, 100), (False, 200)):
        tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), as_in_bert=as_in_bert)
        assert tokenizer.tokenize("x" * longest) == ["x", *["##x"] * (longest - 1)]
        assert tokenizer.tokenize("x" * (longest + 1)) == ["[UNK]"]


def test_a_vocabulary_of_xlm_r_is_read_from_its_tokenizer_json(copy, tmp_path):
    """Its ids are those of the SentencePiece model plus one, and <s>, <pad>, </s>, <unk> come first."""
    import sentencepiece

    sentences = ["Die Bären laufen, 10, 20, dann 30.", "Привет мир", "The bears run, too."] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_prefix=str(tmp_path / "spm"), vocab_size=80,
        character_coverage=1.0, split_by_number=False, hard_vocab_limit=False, minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    pieces = [[model.id_to_piece(i), model.get_score(i)] for i in range(3, model.get_piece_size())]
    vocab = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], *pieces, ["<mask>", 0.0]]
    special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": len(vocab) - 1}
    (copy / "vocab.txt").unlink()
    (copy / "sentencepiece.bpe.model").write_bytes(b"whose ids are others")
    (copy / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": i, "content": t, "special": True} for t, i in special.items()],
        "normalizer": None, "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        ]},
    }))
    (copy / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "XLMRobertaTokenizer", "cls_token": "<s>", "eos_token": "</s>",
        "mask_token": {"content": "<mask>", "lstrip": True}, "pad_token": "<pad>",
    }))
    tokenizer = albert.AlbertTokenizer.from_pretrained(copy)
    text = "The bears, 10, laufen Привет € мир"
    expected = [i + 1 if i else 3 for i in model.encode(text)]
    assert 3 in expected and len(expected) > 10
    assert tokenizer.encode(text) == [0, *expected, 2]
    masked = [special["<mask>"] if part == "<mask>" else [i + 1 for i in model.encode(part)]
              for part in ("The", "<mask>", "run")]
    assert tokenizer.encode("The <mask> run") == [0, *masked[0], masked[1], *masked[2], 2]
    # A table may have more rows than there are tokens.
    assert len(vocab) < 116 and albert.open_session(copy).embed(text).shape == (32,)
    tokenizer.save_pretrained(tmp_path / "saved")
    again = albert.AlbertTokenizer.from_pretrained(tmp_path / "saved")
    assert again.encode(text) == tokenizer.encode(text)
    assert again.special_tokens_map == tokenizer.special_tokens_map


# === Embeddings ===


def test_embeddings_are_those_of_sentence_transformers_and_stay_so_when_saved(
    bert, texts, vectors, tmp_path
):
    folder = tmp_path / "saved"
    albert.from_pretrained(bert / "model").save_pretrained(folder)
    albert.AlbertTokenizer.from_pretrained(bert / "model").save_pretrained(folder)
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        assert (folder / name).is_file()
    assert run_here(convert_hf, f"--hf_directory={bert / 'model'}", f"--output_dir={tmp_path / 'tf'}") == 0
    for path in (bert / "model", folder, tmp_path / "tf"):
        session = albert.open_session(path)
        np.testing.assert_allclose(session.embed(texts), vectors, atol=1e-5)
        assert session.max_seq_length == 40
    plain = session.embed(texts, pooling="mean")
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(plain / lengths, vectors, atol=1e-5)
    assert np.abs(lengths - 1).min() > 0.1
    (tmp_path / "in").write_text("".join(f"{text}\n" for text in texts))
    for flags, expected in (([], vectors), (["--pooling=mean"], plain)):
        out = tmp_path / f"{len(flags)}.npz"
        assert run_here(extract_features, f"--model={folder}", f"--input_file={tmp_path / 'in'}",
                        f"--output_file={out}", *flags) == 0
        np.testing.assert_allclose(np.load(out)["vectors"], expected, atol=1e-5)


def test_the_files_decide_on_pooling_and_length(copy, texts):
    pooling, modules = copy / "1_Pooling/config.json", copy / "modules.json"
    model, tokenizer = albert.from_pretrained(copy), albert.AlbertTokenizer.from_pretrained(copy)
    change_json(copy / "sentence_bert_config.json", max_seq_length=6)
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")

    def opened(*chosen, **values):
        flags = {f"pooling_mode_{name}": name in chosen for name in names}
        pooling.write_text(json.dumps({"word_embedding_dimension": 32} | (values or flags)))
        return albert.open_session(copy)

    modules.write_text(json.dumps(json.loads(modules.read_text())[:2]))  # without Normalize
    rows = tokenizer(texts, padding=True, max_length=6, return_tensors="np")
    states = np.asarray(model(**rows).last_hidden_state)
    for session in (opened("cls_token"), opened(pooling_mode="cls")):
        np.testing.assert_allclose(session.embed(texts), states[:, 0], atol=1e-5)
    for session, name in (
        (opened("max_tokens"), "'max'"), (opened("cls_token", "mean_tokens"), "'cls and mean'"),
        (opened(pooling_mode="lasttoken"), "'lasttoken'"),
    ):
        with pytest.raises(CheckpointError, match=f"embeddings by {name}, which is not supported"):
            session.embed(texts)
        assert session.embed("a", pooling="mean").shape == (32,)
    modules.write_text(json.dumps([
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ]))
    with pytest.raises(CheckpointError, match=r"'mean\+dense'"):
        opened("mean_tokens").embed(texts)
    modules.write_text('[{"path": ""}, 5]')
    with pytest.raises(DataError, match="modules.json, or a file that it names, is malformed"):
        opened("mean_tokens")


# === As a user ===


def test_a_bert_is_fine_tuned(bert, tmp_path):
    table = tmp_path / "my.csv"
    table.write_text("text,label\n" + "".join(
        f"the {('good', 'bad')[i % 2]} boy {i},{('yes', 'no')[i % 2]}\n" for i in range(40)))
    assert run_here(
        run_classifier, f"--init_checkpoint={bert / 'model'}", f"--train_file={table}",
        f"--output_dir={tmp_path / 'out'}", "--num_train_epochs=1", "--cross_validation=0",
    ) == 0
    answer = albert.open_session(tmp_path / "out").classify("the good boy")
    assert set(answer["probabilities"]) == {"yes", "no"}


def test_an_onnx_file_computes_the_same(bert, tmp_path):
    import onnxruntime  # not at the top: it starts a thread, which forks would lose

    golden, path = np.load(bert / "classifier/io.npz"), tmp_path / "bert.onnx"
    assert run_here(export_model, f"--model_dir={bert / 'classifier'}", f"--export_path={path}") == 0
    names = ("input_ids", "input_mask", "segment_ids")
    inputs = {ours: golden[key].astype(np.int32) for ours, key in zip(names, INPUTS, strict=True)}
    (logits,) = onnxruntime.InferenceSession(str(path)).run(["logits"], inputs)
    np.testing.assert_allclose(logits, golden["logits"], atol=1e-5)
