"""Languages that need their accents and marks: the same ids from the vocabulary to the answers."""

import json
import random
import shutil

import apart
import jobs
import keras
import their_transformers
from helpers import assert_one_clear_line, parse_with_tensorflow, run_here, write_config

import albert
from albert import train_sentencepiece
from albert.formats import tokenizer_files
from albert.text import spm_model
from albert.text.cleaning import LostMarks
from albert.tokenization import FullTokenizer

# Pairs of sentences that differ only in their marks, and their labels.
PAIRS = {
    "Vietnamese": ("con mà đi chợ", "con má đi chợ"),
    "Hindi": ("वह कल घर गया", "वह कल् घर गया"),
    "Japanese": ("窓のガラスを見た", "窓のカラスを見た"),
    "German": ("das war schön gesagt", "das war schon gesagt"),
}
OTHERS = (
    "người ta nói tiếng việt ở đây mỗi ngày", "cô ấy đã đọc quyển sách này rồi",
    "मैं हर दिन हिन्दी की किताब पढ़ता हूँ", "यह लड़की बाज़ार में सब्ज़ी खरीदती है",
    "私は毎日日本語の本を読みます", "彼女はデパートでパンとバターを買いました",
    "die mädchen hören über die straße große züge", "wir müssen früh aufstehen und frühstücken",
)
TEXTS = [text for pair in PAIRS.values() for text in pair]


def write_corpus(path) -> str:
    texts = [*TEXTS, *OTHERS]
    documents = ("\n".join(f"{texts[(d + n) % 16]} {n}." for n in range(8)) for d in range(32))
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return str(path)


def train(folder, name, *flags):
    size = 140 if "--keep_accents" in flags else 125
    return run_here(
        train_sentencepiece, f"--input={write_corpus(folder / 'corpus.txt')}",
        f"--model_prefix={folder / name}", f"--vocab_size={size}", "--character_coverage=1", *flags,
    )


def records(folder, model, *flags):
    return jobs.create_data(
        f"--input_file={folder / 'corpus.txt'}", f"--output_file={folder / 'r.tfrecord'}",
        f"--spm_model_file={model}", "--max_seq_length=24", "--max_predictions_per_seq=4",
        "--dupe_factor=1", "--num_processes=1", *flags,
    )


def ids_of(path, spec):
    return {tuple(row[row > 0].tolist()) for row in parse_with_tensorflow(path, spec)["input_ids"]}


def test_marks_are_kept_from_the_vocabulary_to_the_answers(tmp_path):
    """Only one command needs the flag."""
    assert train(tmp_path, "spm", "--keep_accents") == 0
    model = tmp_path / "spm.model"
    ours = albert.AlbertTokenizer.from_pretrained(model)
    assert ours.tokenizer.settings.keep_accents
    expected = {text: ours.tokenizer.encode_text(text) for text in TEXTS}
    for one, other in PAIRS.values():
        assert expected[one] != expected[other]
        for text in (one, other):
            assert ours.decode(expected[text]) == text and 1 not in expected[text]

    assert records(tmp_path, model) == 0
    manifest = json.loads((tmp_path / "r.tfrecord.manifest.json").read_text())["info"]
    sha256 = ours.tokenizer.sha256
    assert manifest["tokenizer_sha256"] == sha256 and manifest["flags"]["keep_accents"] is True
    config = write_config(tmp_path, **jobs.TUNED, vocab_size=140, max_position_embeddings=64)
    assert jobs.pretrain(
        f"--albert_config_file={config}", f"--input_file={tmp_path / 'r.tfrecord'}", "--do_train",
        f"--output_dir={tmp_path / 'pretrained'}", "--max_seq_length=24",
        "--max_predictions_per_seq=4", "--train_batch_size=4", "--num_train_steps=1",
        "--num_warmup_steps=0", "--save_checkpoints_steps=1",
    ) == 0
    rows = [f"{text},{i % 2}" for i, text in enumerate(TEXTS * 3)]
    for name, some in (("my", rows), ("dev", ["etwas anderes,0"])):
        text = "\n".join(["text,label", *some]) + "\n"
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    assert jobs.classify(
        f"--train_file={tmp_path / 'my.csv'}", f"--dev_file={tmp_path / 'dev.csv'}",
        f"--init_checkpoint={tmp_path / 'pretrained'}", f"--output_dir={tmp_path / 'out'}",
        "--train_step=2", "--warmup_step=0", "--save_checkpoints_steps=2", "--learning_rate=0.01",
    ) == 0
    session = albert.open_session(tmp_path / "out")
    for folder in ("pretrained", "out"):
        assert albert.AlbertTokenizer.from_pretrained(tmp_path / folder).tokenizer.sha256 == sha256
    assert session.tokenizer.sha256 == sha256
    for pair in PAIRS.values():
        one, other = session.classify(list(pair))
        assert one["probability"] != other["probability"]


SPACES = [
    " ", "  ", *"\t\n\x0b\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2028\u2029\u202f\u205f\u3000",
    *"\u200b\ufeff\u180e\x00\xad",
]
WORDS = ["The", "boys", "2010,", "naïve", "ﬁne", "…", "’s", "１２", "½", "a\u0301", "\u0301", "日本", "İ",
         "Σας", "(hi)", "``", "1,000", "ⅷ", "™", "ｶﾞ"]


def test_transformers_makes_the_same_ids_whatever_white_space_there_is(golden_path, tmp_path):
    apart.needs("transformers", "torch", extra="interop")
    rng = random.Random(0)
    texts = [before + "a" + space + after
             for space in SPACES for before in ("", space) for after in ("", "b")]
    texts += [
        "".join(rng.choice(SPACES if rng.random() < 0.45 else WORDS) for _ in range(rng.randrange(7)))
        for _ in range(2500)
    ]
    for remove_space in (True, False):
        ours = FullTokenizer(
            None, spm_model_file=str(golden_path("spm/30k-clean.model")), remove_space=remove_space)
        folder = tmp_path / str(remove_space)
        folder.mkdir()
        tokenizer_files.write(ours, str(folder))
        with apart.process() as call:
            theirs = call(their_transformers.encode, str(folder), texts)
        assert theirs == [ours.encode_text(text) for text in texts]


def test_text_whose_marks_go_is_warned_of_and_a_contradiction_refused(tmp_path, capfd):
    assert train(tmp_path, "plain") == 0
    said = capfd.readouterr().err
    assert "corpus.txt: " in said and "% of the letters have accents or marks (" in said
    assert "--keep_accents" in said
    plain = albert.AlbertTokenizer.from_pretrained(tmp_path / "plain.model").tokenizer
    assert plain.encode_text("schön") == plain.encode_text("schon")
    assert train(tmp_path, "kept", "--keep_accents", "--nodo_lower_case") == 0
    assert "have accents" not in capfd.readouterr().err
    for name, is_kept in (("plain", False), ("kept", True)):  # as a directory without other settings
        (tmp_path / f"{name}-alone").mkdir()
        shutil.copy(tmp_path / f"{name}.model", tmp_path / f"{name}-alone/spiece.model")
        assert tokenizer_files.find(str(tmp_path / f"{name}-alone")).text.keep_accents == is_kept
    for flag in ("--nokeep_accents", "--do_lower_case"):
        assert records(tmp_path, tmp_path / "kept.model", flag) == 2
        message = assert_one_clear_line(capfd.readouterr().err)
        assert f"{flag}: {tmp_path / 'kept.model'} was trained differently" in message
    assert not (tmp_path / "r.tfrecord").exists()


def test_a_model_file_sets_nothing_else(tmp_path):
    path = tmp_path / "odd.model"
    path.write_bytes(b"\n\x20nmt_nfkc;remove_space=0;keep_accents=1")
    assert spm_model.trained_with(str(path)) == {}
    path.write_bytes(b"\n\x20nmt_nfkc;keep_accents=1;evil=1")
    assert spm_model.trained_with(str(path)) == {"keep_accents": True}


def test_a_few_marks_are_not_warned_of(caplog):
    for line, is_warned in (("the café " + "x" * 193, False), ("the café " + "x" * 192, True)):
        caplog.clear()
        marks = LostMarks()
        assert marks.add(line)
        marks.warn("my.txt")
        assert ("my.txt: 0.5 % of the letters have accents" in caplog.text) == is_warned


def test_records_of_text_prepared_otherwise_than_the_models_are_refused(tmp_path, capsys):
    """A foreign directory whose settings mention accents, and whose model file does not."""
    assert train(tmp_path, "plain") == 0
    keras.utils.set_random_seed(1)
    config = albert.AlbertConfig.from_json_file(
        write_config(tmp_path, **jobs.TUNED, vocab_size=125, max_position_embeddings=64)
    )
    theirs = tmp_path / "theirs"
    albert.AlbertForPreTraining(config).save_pretrained(str(theirs))
    shutil.copy(tmp_path / "plain.model", theirs / "spiece.model")
    (theirs / "tokenizer_config.json").write_text(json.dumps({"keep_accents": True}))
    start = [f"--input_file={tmp_path / 'r.tfrecord'}", "--do_train", "--max_seq_length=24",
             f"--init_checkpoint={theirs}", "--max_predictions_per_seq=4", "--num_train_steps=1",
             "--num_warmup_steps=0"]
    assert records(tmp_path, tmp_path / "plain.model") == 0
    capsys.readouterr()
    assert jobs.pretrain(*start, f"--output_dir={tmp_path / 'out'}") == 2
    message = assert_one_clear_line(capsys.readouterr().err)
    assert "made without keep_accents=True, which the tokenizer of" in message
    assert not (tmp_path / "out").exists()
    # The settings next to a model file count.
    for path in tmp_path.glob("r.tfrecord*"):
        path.unlink()
    assert records(tmp_path, theirs / "spiece.model") == 0
    tokenizer = albert.AlbertTokenizer.from_pretrained(theirs).tokenizer
    manifest = json.loads((tmp_path / "r.tfrecord.manifest.json").read_text())["info"]
    assert manifest["tokenizer_sha256"] == tokenizer.sha256 and tokenizer.settings.keep_accents


def test_tokens_of_ones_own_are_never_split_nor_lower_cased(tmp_path, capsys):
    assert train(tmp_path, "spm", "--user_defined_symbols=[E1],[/E1]") == 0
    tokenizer = albert.AlbertTokenizer.from_pretrained(tmp_path / "spm.model")
    one, other = (tokenizer.convert_tokens_to_ids(t) for t in ("[E1]", "[/E1]"))
    assert (one, other) == (13, 14)
    for text in ("Das [E1]war[/E1] SCHON", "das [E1] war [/E1] schon"):
        ids = tokenizer.tokenizer.encode_text(text)
        assert ids.count(one) == ids.count(other) == 1
        found = tokenizer(text, return_offsets_mapping=True)
        spans = dict(zip(found["input_ids"], found["offset_mapping"], strict=True))
        assert text[slice(*spans[one])] == "[E1]" and text[slice(*spans[other])] == "[/E1]"
    tokenizer.save_pretrained(tmp_path / "saved")
    again = albert.AlbertTokenizer.from_pretrained(tmp_path / "saved").tokenizer
    assert again.encode_text(text) == ids and again.sha256 == tokenizer.tokenizer.sha256
    assert train(tmp_path, "no", "--user_defined_symbols=a b") == 2
    assert "--user_defined_symbols=a b: " in assert_one_clear_line(capsys.readouterr().err)
    # The original's README names symbols that are in each vocabulary.
    assert train(tmp_path, "plain") == train(
        tmp_path, "original", '--user_defined_symbols=(,),",-,.,–,£,€'
    ) == 0
    assert (tmp_path / "plain.model").read_bytes() == (tmp_path / "original.model").read_bytes()


def test_a_token_with_capitals_that_a_vocabulary_is_extended_by_is_found(whole, tmp_path):
    words = [*jobs.SPECIALS, *jobs.WORDS, "[E1]"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    shutil.copytree(whole.out, tmp_path / "old")
    jobs.write_vocabulary(tmp_path / "old")
    assert run_here(
        jobs.script("extend_vocabulary", "scripts"), f"--model={tmp_path / 'old'}",
        f"--vocab_file={tmp_path / 'vocab.txt'}",
        f"--output_dir={tmp_path / 'new'}",
    ) == 0
    tokenizer = albert.AlbertTokenizer.from_pretrained(tmp_path / "new")
    new = len(words) - 1
    assert tokenizer.tokenizer.encode_text("W1 [E1]w2 [e1") [:3] == [6, new, 7]
    found = tokenizer("W1 [E1]", return_offsets_mapping=True)
    assert found["offset_mapping"][1:3] == [[0, 2], [3, 7]]
