"""Damage to every file that is read: the right result or one clear line.

If a format has checksums (bundles, records, zip, our sealed JSON), a result that silently
differs is a failure too; if it has none (text, others' JSON, safetensors, SentencePiece
models), only crashes and hangs are.
"""

import contextlib
import json
import pathlib
import re
import shutil
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import jobs
import numpy as np
import pytest
from damage import mutations
from helpers import LENGTH, PREDICTIONS, SIZES, VOCAB, write_config, write_pretraining_records
from invariants import snapshot
from record_files_made import payloads_of

from albert.config import AlbertConfig
from albert.errors import UserError
from albert.formats import checkpoints, hf_weights, huggingface, metadata, pretrained
from albert.formats.metadata import Metadata
from albert.modeling import AlbertForPreTraining, named_weights
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.tasks import glue, race, squad, table, words
from albert.tasks.pretraining import PretrainingTask
from albert.text import documents, vocabulary
from albert.tokenization import FullTokenizer, check_special_pieces
from albert.training import evaluate, store

SECONDS = 60
THOROUGH = 130  # mutations per file in the slow suite
TEXT = "w1 w2, (w3) 2010, w4 ÄÖ\u2028 w5"
CONFIG = AlbertConfig(**SIZES)


class Reader(NamedTuple):
    """How a file is made and read, and whether its format detects damage."""

    files: str  # to be damaged, one at a time
    make: Callable[[pathlib.Path], Any]
    read: Callable[[pathlib.Path], Any]
    is_checked: bool = False
    quick: int = 8  # mutations per file in the fast suite


# --- The readers ---


def a_model() -> dict[str, np.ndarray]:
    rng, weights = np.random.default_rng(0), named_weights(AlbertForPreTraining(CONFIG))
    return {name: rng.normal(size=w.shape).astype("float32") for name, w in weights.items()}


def all_tensors(weights) -> dict[str, bytes]:
    return {name: np.asarray(weights.read(name)).tobytes() for name in weights.shapes}


def wordpiece(folder):
    return FullTokenizer(str(folder / "vocab.txt"), True)


def make_checkpoint(folder):
    store.save(str(folder), 3, a_model() | {"global_step": np.int64(3)}, {
        "metadata": {"task": "pretraining"}, "records_seen": 12, "config": CONFIG.to_dict(),
        "flags": {"seed": 1}, "loss_scale": [1.0, 0.0],
    }, 0)


def read_records(folder):
    path, spec = str(folder / "x.tfrecord"), PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    return RecordFiles([path]).check(spec, VOCAB).counts, payloads_of(path)


def make_spm(folder):
    text = folder / "text"
    text.write_text("\n".join(f"w{i} abc w{i % 7}, 20{i}, hello world" for i in range(300)))
    settings = vocabulary.Settings(vocab_size=90, character_coverage=1.0)
    (folder / "spm.model").write_bytes(vocabulary.train([str(text)], settings))
    text.unlink()


def answers_of(tokenizer):
    check_special_pieces(tokenizer)  # as every command does
    return tokenizer.encode_text(TEXT), tokenizer.start_pieces(), tokenizer.cls_id


def make_race(folder):
    place = folder / "RACE/train/middle"
    place.mkdir(parents=True)
    files.write_json(str(place / "1.txt"), {
        "article": "w1 w2", "questions": ["w3 _", "w4?"], "id": "middle1.txt",
        "options": [["a", "b", "c", "d"]] * 2, "answers": ["A", "D"],
    })
    jobs.write_vocabulary(folder)


def read_race(folder):
    questions = race.read_questions(str(folder), "train", wordpiece(folder), ["middle"])
    list(race.question_rows(questions, wordpiece(folder), 16, 8))
    return questions


def make_squad(folder):
    (folder / "dev.json").write_text(json.dumps({"version": "v2.0", "data": [{
        "title": "t", "paragraphs": [{"context": "w1 w2 w3 w4 " * 9, "qas": [
            {"id": f"q{i}", "question": "w5 w6?", "is_impossible": i == 1,
             "answers": [{"text": "w2", "answer_start": 3}] * (i != 1)} for i in range(3)
        ]}],
    }]}))
    jobs.write_vocabulary(folder)


def read_squad(folder):
    found = []
    for is_training in (True, False):
        questions = squad.read_questions(str(folder / "dev.json"), is_training)
        windows = squad.make_windows(
            questions, wordpiece(folder), max_seq_length=24, doc_stride=8, max_query_length=4
        )
        found.append((questions, list(windows)))
    return found


def make_theirs(folder):
    theirs = hf_weights.to_theirs(CONFIG, a_model(), "AlbertForPreTraining")
    hf_weights.write(str(folder / "model.safetensors"), theirs)
    for name, content in {
        "config.json": huggingface.config_to_theirs(
            CONFIG, Metadata("AlbertForPreTraining"), {"pad": 0, "cls": 2, "sep": 3}, None),
        "tokenizer_config.json": {"do_lower_case": True},
    }.items():
        files.write_json(str(folder / name), content)


def read_theirs(folder):
    source = pretrained.open_path(str(folder))
    return source.config, source.vocabulary.text, source.metadata, all_tensors(source.weights())


def make_module(folder):
    import tensorflow as tf

    module = tf.Module()
    module.weights = {n: tf.Variable(v) for n, v in a_model().items()}
    tf.saved_model.save(module, str(folder))
    write_config(folder / "assets")
    jobs.write_vocabulary(folder / "assets")
    files.write_json(str(folder / "assets/tokenizer_config.json"), {"do_lower_case": False})


def read_module(folder):
    module = pretrained.open_module(str(folder))
    return module.config, module.vocabulary.text, all_tensors(module.weights())


def make_corpus(folder):
    jobs.write_corpus(folder, 4)
    jobs.write_vocabulary(folder)


def read_corpus(folder):
    tokenizer, counts = wordpiece(folder), documents.ReadingCounts()
    found = documents.read_documents([str(folder / "corpus.txt")], tokenizer.preprocess, counts)
    return [tokenizer.encode_text(line) for document in found for line in document]


OBJECTS = [f"w{i} w{i % 7}. é {'x' * (i % 40)}\nw{i + 1}" for i in range(60)]


def make_json_lines(folder):
    lines = [json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(OBJECTS)]
    (folder / "a.jsonl").write_text("".join(lines))


def read_json_lines(folder):
    """Reads documents, and checks that none is lost without a word."""
    found = count_objects(folder / "a.jsonl")
    content = (folder / "a.jsonl").read_bytes()
    assert not content.startswith(b"{") or found == sum(map(holds_a_text, content.split(b"\n")))


def make_parquet(folder):
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.table({"text": OBJECTS}), folder / "a.parquet", row_group_size=13, write_page_checksum=True
    )


def holds_a_text(line: bytes) -> bool:
    value = json.loads(line.decode("utf-8", "surrogateescape").strip(" \t\r\n") or "{}")
    return bool(value.get("text") and value["text"].strip())


def read_parquet(folder) -> int:
    """Counts objects; what does not begin as Parquet is read as another form."""
    found = count_objects(folder / "a.parquet")
    return found if (folder / "a.parquet").read_bytes().startswith(b"PAR1") else len(OBJECTS)


def count_objects(path) -> int:
    return len(list(documents.read_documents([str(path)], str, documents.ReadingCounts())))


READERS = {
    "json lines": Reader("a.jsonl", make_json_lines, read_json_lines, quick=150),
    "parquet": Reader("a.parquet", make_parquet, read_parquet, is_checked=True, quick=150),
    "table": Reader(
        "a.parquet", make_parquet,
        lambda d: len(table.read_table(str(d / "a.parquet"), "train_file").texts(0)), is_checked=True,
    ),
    "results": Reader(
        "eval_results.json",
        lambda d: files.write_json(f"{d}/eval_results.json", {"eval_accuracy": 0.5, "global_step": 3}),
        lambda d: files.read_json_object(f"{d}/eval_results.json"),
    ),
    "words": Reader(
        "train.txt", jobs.token_flags, lambda d: words.read_sentences(str(d / "train.txt"))
    ),
    "corpus": Reader("corpus.txt", make_corpus, read_corpus),
    "checkpoint": Reader(
        "model.ckpt-3.index model.ckpt-3.data-00000-of-00001", make_checkpoint,
        lambda d: all_tensors(checkpoints.open_weights(str(d / "model.ckpt-3"))), is_checked=True,
    ),
    "run_state": Reader(
        "model.ckpt-3.json", make_checkpoint,
        lambda d: metadata.read_run_state(str(d / "model.ckpt-3")), is_checked=True,
    ),
    "records": Reader(
        "x.tfrecord x.tfrecord.manifest.json",
        lambda d: write_pretraining_records(d / "x.tfrecord", 12), read_records, is_checked=True,
    ),
    "wordpiece": Reader("vocab.txt", jobs.write_vocabulary, lambda d: answers_of(wordpiece(d))),
    "sentencepiece": Reader(
        "spm.model", make_spm, lambda d: answers_of(FullTokenizer(None, True, f"{d}/spm.model"))
    ),
    "config": Reader(
        "albert_config.json", write_config,
        lambda d: AlbertConfig.from_json_file(str(d / "albert_config.json")).to_dict(),
    ),
    "tsv": Reader(
        "SST-2/train.tsv", jobs.write_task,
        lambda d: glue.read_examples(glue.TASKS["sst-2"], str(d), "train"),
    ),
    "race": Reader("RACE/train/middle/1.txt", make_race, read_race),
    "squad": Reader("dev.json", make_squad, read_squad),
    "hugging face": Reader(
        "model.safetensors config.json tokenizer_config.json", make_theirs, read_theirs
    ),
    "module variables": Reader(
        "variables/variables.index variables/variables.data-00000-of-00001", make_module,
        read_module, is_checked=True,
    ),
    "module assets": Reader(
        "assets/albert_config.json assets/tokenizer_config.json saved_model.pb", make_module,
        read_module,
    ),
    "best": Reader(
        "best.json",
        lambda d: files.write_sealed_json(
            f"{d}/best.json", {"metric": "a", "step": 3, "value": 0.5}),
        lambda d: evaluate.read_best(str(d)), is_checked=True,
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """{reader: folder}, each with undamaged files."""
    folders, made = {}, {}
    for name, reader in READERS.items():
        if reader.make not in made:
            made[reader.make] = tmp_path_factory.mktemp(name.replace(" ", "-"))
            reader.make(made[reader.make])
        folders[name] = made[reader.make]
    return folders


# --- The damage ---


@contextlib.contextmanager
def at_most(seconds: int):
    def stop(*_):
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def is_clear(error: BaseException) -> bool:
    """Whether a command would end with exit code 2 and one line (see flags.run_command)."""
    if isinstance(error, UserError):
        return bool(str(error)) and "\n" not in str(error)
    return isinstance(error, OSError) and error.filename is not None


def weather(name: str, sound: dict[str, pathlib.Path], scratch: pathlib.Path, count: int) -> int:
    """Damages each file of a reader in `count` ways; returns the number of mutations."""
    reader, done, failures, folder = READERS[name], 0, [], scratch / "work"
    shutil.copytree(sound[name], folder)
    right = reader.read(folder)
    others = {
        other: next(sound[other].glob(READERS[other].files.split()[0])).read_bytes()
        for other in READERS if other != name
    }
    for pattern in reader.files.split():
        path = next(folder.glob(pattern))
        content = path.read_bytes()
        for done, (what, damage) in enumerate(mutations(content, others, count, seed=len(pattern)), done + 1):
            shutil.rmtree(folder)
            shutil.copytree(sound[name], folder)
            damage(path)
            before, case = snapshot(folder), f"{path.name}: {what}"
            try:
                with at_most(SECONDS):
                    found = reader.read(folder)
            except BaseException as error:  # noqa: BLE001 (any other is a finding)
                if not is_clear(error):
                    failures.append(f"{case}: {type(error).__name__}: {error}")
            else:
                # JSON edited by hand, without its seal, is as good as any other; without a
                # run_state or manifest, a file counts as the original toolkit's.
                is_excused = what.startswith("(") or what == "gone"
                if reader.is_checked and not is_excused and found != right:
                    failures.append(f"{case}: another result without a word")
            if snapshot(folder) != before:
                failures.append(f"{case}: files were changed")
    assert not failures, "\n".join([f"{len(failures)} of {done}:", *failures[:20]])
    return done


@pytest.mark.parametrize("name", READERS)
def test_damage_gives_the_right_answer_or_one_clear_line(name, sound, tmp_path):
    assert weather(name, sound, tmp_path, READERS[name].quick) >= READERS[name].quick


@pytest.mark.slow
def test_two_thousand_mutations(sound, tmp_path):
    def peak_kilobytes() -> int:
        status = pathlib.Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])

    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the memory peak
    before = peak_kilobytes()
    assert sum(weather(name, sound, tmp_path / name, THOROUGH) for name in READERS) >= 2000
    assert peak_kilobytes() - before < 2 << 20
