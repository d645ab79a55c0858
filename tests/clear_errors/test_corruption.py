"""A storm of damage over every file that is read: the right answer or one clear line.

Where a format has checksums (bundles, records, zip, our sealed JSON), a result
that differs without a word is a failure too; where it has none (text, JSON of
others, safetensors, SentencePiece models), only crashes and hangs are.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers import LENGTH, PREDICTIONS, VOCAB, write_config, write_pretraining_records
from invariants import snapshot

from albert import evaluate_squad
from albert.config import AlbertConfig
from albert.errors import UserError
from albert.formats import (
    checkpoints,
    huggingface,
    model_card,
    pretrained,
    run_states,
)
from albert.formats.model_metadata import Metadata
from albert.formats.weights import Weights
from albert.modeling import AlbertForPreTraining, named_weights
from albert.pretraining_data import pipeline
from albert.records import feature_cache, tfrecord
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.tasks import conll, glue, race
from albert.tasks.pretraining import PretrainingTask
from albert.tasks.squad import features as squad_features
from albert.tasks.squad import metrics as squad
from albert.text import documents
from albert.tokenization import FullTokenizer, check_special_pieces
from albert.training import checkpoint_store, evaluation
import jobs

SECONDS = 60
QUICK, THOROUGH = 8, 130  # mutations of a file in the fast and in the slow suite
TEXT = "w1 w2, (w3) 2010, w4 ÄÖ\u2028 w5"
ODD_VALUES = (
    None, "x", -1, 0, 1.5, float("nan"), 10**30, True, [], {}, [[1]], [None], {"a": []}, "\ud800",
)


@dataclasses.dataclass(frozen=True)
class Reader:
    """How a file is made and read, and whether its format notices damage."""

    files: tuple[str, ...]  # to be damaged, one at a time
    make: Callable[[pathlib.Path], None]
    read: Callable[[pathlib.Path], Any]
    is_checked: bool = False


# --- What is read, and how ---


def config_of(folder: pathlib.Path) -> AlbertConfig:
    return AlbertConfig.from_json_file(write_config(folder))


def model_of(folder: pathlib.Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    model = AlbertForPreTraining(config_of(folder))
    return {
        name: rng.normal(size=w.shape).astype("float32") for name, w in named_weights(model).items()
    }


def all_tensors(weights: Weights) -> dict[str, bytes]:
    return {name: np.asarray(weights.read(name)).tobytes() for name in weights.shapes}


def make_checkpoint(folder):
    tensors = model_of(folder) | {"global_step": np.int64(3)}
    checkpoint_store.save(str(folder), 3, tensors, {
        "task": "pretraining", "records_seen": 12, "config": config_of(folder).to_dict(),
        "window": {"sums": [0.5, 1.0], "steps": 1}, "flags": {"seed": 1},
        "loss_scale": [1.0, 0.0], "recent_losses": [1.0], "skipped": {
            "recent": 3, "bad": [1], "consecutive": 0},
    }, 0)


def read_checkpoint(folder):
    return all_tensors(checkpoints.open_weights(str(folder / "model.ckpt-3")))


def make_records(folder):
    write_pretraining_records(folder / "x.tfrecord", 12)


def read_records(folder):
    path, spec = str(folder / "x.tfrecord"), PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    return RecordFiles([path]).check(spec, VOCAB).counts, list(tfrecord.read_records(path))


def read_cache(folder):
    rows = ({"x": np.array([i, i])} for i in range(9))
    spec = FeatureSpec({"x": ("int64", 2)})
    path = feature_cache.cached_records(str(folder), "dev", rows, spec, {"made": "from"})
    return list(tfrecord.read_records(path))


def make_wordpiece(folder):
    jobs.write_vocabulary(folder)


def read_wordpiece(folder):
    tokenizer = FullTokenizer(str(folder / "vocab.txt"), True)
    check_special_pieces(tokenizer)  # as every command does
    return tokenizer.encode_text(TEXT), tokenizer.start_pieces(), tokenizer.cls_id


def make_spm(folder):
    from albert.text import vocabulary

    text = folder / "text"
    text.write_text("\n".join(f"w{i} abc w{i % 7}, 20{i}, hello world" for i in range(300)))
    settings = vocabulary.Settings(vocab_size=90, character_coverage=1.0)
    (folder / "spm.model").write_bytes(vocabulary.train([str(text)], settings))
    text.unlink()


def read_spm(folder):
    tokenizer = FullTokenizer(None, True, str(folder / "spm.model"))
    check_special_pieces(tokenizer)
    return tokenizer.encode_text(TEXT), tokenizer.start_pieces(), tokenizer.cls_id


def read_config(folder):
    return AlbertConfig.from_json_file(str(folder / "albert_config.json")).to_dict()


def make_tsv(folder):
    jobs.write_task(folder)


def read_tsv(folder):
    return glue.read_examples(glue.TASKS["sst-2"], str(folder), "train")


def make_race(folder):
    place = folder / "RACE/train/middle"
    place.mkdir(parents=True)
    (place / "1.txt").write_text(json.dumps({
        "article": "w1 w2", "questions": ["w3 _", "w4?"], "id": "middle1.txt",
        "options": [["a", "b", "c", "d"]] * 2, "answers": ["A", "D"],
    }))
    jobs.write_vocabulary(folder)


def read_race(folder):
    tokenizer = FullTokenizer(str(folder / "vocab.txt"), True)
    questions = race.read_questions(str(folder), "train", tokenizer, ["middle"])
    list(race.question_rows(questions, tokenizer, 16, 8))
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
    tokenizer = FullTokenizer(str(folder / "vocab.txt"), True)
    found = []
    for is_training in (True, False):
        examples = squad_features.read_examples(str(folder / "dev.json"), is_training)
        found += squad_features.make_windows(
            examples, tokenizer, max_seq_length=24, doc_stride=8, max_query_length=4,
            is_training=is_training,
        )
    return found


def make_answers(folder):
    make_squad(folder)
    files.write_json(str(folder / "answers.json"), {f"q{i}": "w2" for i in range(3)})


def read_answers(folder):
    found = evaluate_squad._by_id(str(folder / "answers.json"), "predictions_file", str, "text")
    return squad.evaluate_v2(squad_features.read_answers(str(folder / "dev.json")), found)


def make_theirs(folder):
    config = config_of(folder)
    tensors = huggingface.tensors_to_theirs(config, model_of(folder), "AlbertForPreTraining")
    huggingface.serialize(tensors, str(folder / "model.safetensors"))
    ids = {"pad": 0, "cls": 2, "sep": 3}
    files.write_json(str(folder / "config.json"),
                     huggingface.config_to_theirs(config, Metadata("AlbertForPreTraining"), ids, None))
    files.write_json(str(folder / "tokenizer_config.json"), {"do_lower_case": True})


def read_theirs(folder):
    source = pretrained.open_path(str(folder))
    return source.config, source.vocabulary.text, source.metadata, all_tensors(source.weights())


def make_shards(folder):
    make_theirs(folder)
    os.rename(folder / "model.safetensors", folder / "a.safetensors")
    names = huggingface.tensors_to_theirs(
        config_of(folder), model_of(folder), "AlbertForPreTraining"
    )
    files.write_json(str(folder / "model.safetensors.index.json"),
                     {"weight_map": dict.fromkeys(names, "a.safetensors")})


def make_module(folder):
    import tensorflow as tf

    module = tf.Module()
    module.weights = {n: tf.Variable(v) for n, v in model_of(folder).items()}
    tf.saved_model.save(module, str(folder))
    (folder / "albert_config.json").rename(folder / "assets/albert_config.json")
    jobs.write_vocabulary(folder / "assets")
    files.write_json(str(folder / "assets/tokenization.json"), {"do_lower_case": False})


def read_module(folder):
    module = pretrained.open_module(str(folder))
    return module.config, module.vocabulary.text, all_tensors(module.weights())


def make_best(folder):
    files.write_sealed_json(str(folder / "best.json"), {"metric": "a", "step": 3, "value": 0.5})


def make_results(folder):
    for name in ("", "sst-2", "stsb"):
        files.write_json(str(folder / name / "eval_results.json"), {
            "eval_accuracy": 0.5, "pearson": 0.25, "spearmanr": 0.75, "global_step": 3,
            "eval_loss": 1.0,
        })


def read_results(folder):
    beside = run_states.results_beside(str(folder / "model.ckpt-3"), 3)
    results = files.read_json_object(str(folder / "eval_results.json"))
    return model_card._table(beside), results


def make_conll(folder):
    rows = [("w1", "B-PER"), ("w2", "I-PER"), ("w3", "O"), ("", ""), ("w4", "B-LOC"), ("w5", "O")]
    (folder / "train.txt").write_text("".join(f"{' '.join(row).strip()}\n" for row in rows * 5))


def read_conll(folder):
    return conll.read_sentences(str(folder / "train.txt"))


def make_corpus(folder):
    jobs.write_corpus(folder, 4)
    jobs.write_vocabulary(folder)


def read_corpus(folder):
    tokenizer = FullTokenizer(str(folder / "vocab.txt"), True)
    counts = documents.ReadingCounts()
    found = documents.read_documents([str(folder / "corpus.txt")], tokenizer.preprocess, counts)
    return [tokenizer.encode_text(line) for document in found for line in document]


def make_work(folder):
    entries = [json.dumps([[[number, 9]], [1, 2, 3, 4, [5]]]).encode() for number in (1, 2)]
    (folder / "train.journal").write_bytes(
        b"".join(b"%08x %s\n" % (zlib.crc32(entry), entry) for entry in entries)
    )


def read_work(folder):
    # What a killed run left, damaged, is as if it was not there.
    with open(folder / "train.journal", "rb") as stream:
        return pipeline.read_journal(stream)[0]


READERS = {
    "results": Reader(("eval_results.json",), make_results, read_results),
    "conll": Reader(("train.txt",), make_conll, read_conll),
    "corpus": Reader(("corpus.txt",), make_corpus, read_corpus),
    "work": Reader(
        ("train.journal",), make_work, read_work,
    ),
    "checkpoint": Reader(
        ("model.ckpt-3.index", "model.ckpt-3.data-00000-of-00001"), make_checkpoint,
        read_checkpoint, is_checked=True,
    ),
    "run_state": Reader(
        ("model.ckpt-3.json",), make_checkpoint,
        lambda folder: run_states.read_run_state(str(folder / "model.ckpt-3")), is_checked=True,
    ),
    "records": Reader(
        ("x.tfrecord", "x.tfrecord.manifest.json"), make_records, read_records, is_checked=True,
    ),
    "cache": Reader(
        ("dev*.tf_record", "dev*.manifest.json"), read_cache, read_cache, is_checked=True,
    ),
    "wordpiece": Reader(("vocab.txt",), make_wordpiece, read_wordpiece),
    "sentencepiece": Reader(("spm.model",), make_spm, read_spm),
    "config": Reader(("albert_config.json",), config_of, read_config),
    "tsv": Reader(("SST-2/train.tsv",), make_tsv, read_tsv),
    "race": Reader(("RACE/train/middle/1.txt",), make_race, read_race),
    "squad": Reader(("dev.json",), make_squad, read_squad),
    "squad answers": Reader(("answers.json", "dev.json"), make_answers, read_answers),
    "hugging face": Reader(
        ("model.safetensors", "config.json", "tokenizer_config.json"), make_theirs, read_theirs
    ),
    "shards": Reader(("model.safetensors.index.json", "a.safetensors"), make_shards, read_theirs),
    "module variables": Reader(
        ("variables/variables.index", "variables/variables.data-00000-of-00001"), make_module,
        read_module, is_checked=True,
    ),
    "module assets": Reader(
        ("assets/albert_config.json", "assets/tokenization.json", "saved_model.pb"), make_module,
        read_module,
    ),
    "best": Reader(
        ("best.json",), make_best, lambda folder: evaluation.read_best(str(folder)), is_checked=True
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """{reader: folder}, each with sound files."""
    folders = {}
    for name, reader in READERS.items():
        folders[name] = tmp_path_factory.mktemp(name.replace(" ", "-"))
        reader.make(folders[name])
    return folders


# --- How it is damaged ---


def mutations(content: bytes, others: dict[str, bytes], count: int, seed: int) -> Iterator[
    tuple[str, Callable[[pathlib.Path], None]]
]:
    """Yields about `count` (what, how) of one file; the more telling ones first."""
    rng, size = random.Random(seed), len(content)

    def put(new: bytes):
        return lambda path: path.write_bytes(new)

    def in_place(make):
        def replace(path):
            path.unlink()
            make(path)
        return replace

    most_telling = [
        ("empty", put(b"")),
        ("cut in half", put(content[: size // 2])),
        ("one bit of the middle", put(flipped(content, size // 2, 1))),
        ("a directory", in_place(os.mkdir)),
        ("last byte lost", put(content[:-1])),
        ("first byte lost", put(content[1:])),
        ("gone", os.unlink),
        ("first bit", put(flipped(content, 0, 1))),
        ("last bit", put(flipped(content, size - 1, 0x80))),
        ("a link to nowhere", in_place(lambda path: os.symlink("/nowhere/at/all", path))),
        ("a link to itself", in_place(lambda path: os.symlink(path, path))),
        ("doubled", put(content * 2)),
        ("zeros", put(bytes(size))),
        ("noise", put(rng.randbytes(size))),
        ("junk at the end", put(content + b"\0junk")),
        ("not UTF-8", put(content[: size // 3] + b"\xff\xfe\x80" + content[size // 3 :])),
        ("a byte-order mark", put(b"\xef\xbb\xbf" + content)),
        ("deeply nested", put(b"[" * 100_000)),
        ("many digits", put(b'{"a": ' + b"9" * 6000 + b"}")),
        *((f"swapped with {name}", put(other)) for name, other in others.items()),
        *((f"cut at {at}", put(content[:at])) for at in (1, 2, 3, 4, 7, 8, 9, 11, 12, 16, size - 4)
          if 0 < at < size),
    ]
    structured = list(json_mutations(content, rng))
    rng.shuffle(structured)
    telling = [*most_telling[:9], *structured[: count // 3], *most_telling[9:], *structured]
    yield from telling[: count * 2 // 3]
    for _ in range(count - min(len(telling), count * 2 // 3)):
        at, bits = rng.randrange(size), 1 << rng.randrange(8)
        yield f"bits {bits:#x} of byte {at}", put(flipped(content, at, bits))


def flipped(content: bytes, at: int, bits: int) -> bytes:
    return content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


def json_mutations(content: bytes, rng: random.Random):
    """Yields JSON files whose values are of another kind, or absent, anywhere in them."""
    try:
        value = json.loads(content)
    except ValueError:
        return
    places = list(places_in(value))
    for place in rng.sample(places, min(len(places), 40)):
        for odd in [*rng.sample(ODD_VALUES, 4), ABSENT]:
            changed = json.loads(content)
            if isinstance(changed, dict):
                changed.pop("content_sha256", None)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            with contextlib.suppress(KeyError):
                if odd is ABSENT:
                    del inner[place[-1]]
                else:
                    inner[place[-1]] = odd
            text = json.dumps(changed).encode()
            yield f"{place} is {odd!r}", lambda path, text=text: path.write_bytes(text)


ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()


def places_in(value, place=()):
    items = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ())
    for key, inner in items:
        yield (*place, key)
        yield from places_in(inner, (*place, key))


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
    """Damages each file of a reader in `count` ways; returns how many there were."""
    reader, done, failures = READERS[name], 0, []
    folder = scratch / "work"
    shutil.copytree(sound[name], folder)
    right = reader.read(folder)
    others = {
        other: next(sound[other].glob(READERS[other].files[0])).read_bytes()
        for other in READERS if other != name
    }
    for pattern in reader.files:
        path = next(folder.glob(pattern))
        content = path.read_bytes()
        for what, damage in mutations(content, others, count, seed=len(pattern)):
            shutil.rmtree(folder)
            shutil.copytree(sound[name], folder)
            damage(path)
            before = snapshot(folder)
            case = f"{path.name}: {what}"
            try:
                with at_most(SECONDS):
                    found = reader.read(folder)
            except BaseException as error:  # noqa: BLE001 (any other is what is looked for)
                if not is_clear(error):
                    failures.append(f"{case}: {type(error).__name__}: {error}")
            else:
                # Changed by hand, without its seal, JSON is as good as any other; a
                # run_state or manifest that is not there is one of the original toolkit.
                is_excused = what.startswith("(") or what == "gone"
                if reader.is_checked and not is_excused and found != right:
                    failures.append(f"{case}: another result without a word")
            if name != "cache" and snapshot(folder) != before:  # that is made anew
                failures.append(f"{case}: files were changed")
            done += 1
    assert not failures, "\n".join([f"{len(failures)} of {done}:", *failures[:20]])
    return done


@pytest.mark.parametrize("name", READERS)
def test_damage_gives_the_right_answer_or_one_clear_line(name, sound, tmp_path):
    assert weather(name, sound, tmp_path, QUICK) >= QUICK


def peak_kilobytes() -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


@pytest.mark.slow
def test_two_thousand_mutations(sound, tmp_path):
    done, failed = {}, []
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # begins the peak of memory anew
    before = peak_kilobytes()
    for name in READERS:
        try:
            done[name] = weather(name, sound, tmp_path / name, THOROUGH)
        except AssertionError as error:
            failed.append(str(error).partition("\nassert ")[0])
    assert not failed, "\n".join(failed)
    print(f"{sum(done.values()):,} mutations: {done}")
    assert sum(done.values()) >= 2000
    assert peak_kilobytes() - before < 2 << 20
