"""Pretrains a model on your text within a number of hours.

  python -m albert.pretrain_from_text --input_file=my_text.txt --hours=3 --output_dir=out

It chooses vocabulary, architecture, batch, learning rate and steps, and runs train_sentencepiece,
create_pretraining_data and run_pretraining; the log shows each as you would type it. The first half minute
of training shows how fast the machine is. Every command then accepts out/model, and out/report.md says what
the model has learned. Stop it at any time: rerun the command and it resumes. For English text,
--start_from=small_en starts from a pretrained model. With --teacher, a small model learns from an
encoder of the text's language, such as a sentence-transformers model, in minutes instead of days.
"""

import collections
import dataclasses
import hashlib
import importlib
import logging
import os
import shlex
import time
from collections.abc import Sequence
from typing import Any

from albert import engines
from albert.cli import corpus_flags, earlier_run, flags, remote_paths, text_plan, text_report
from albert.errors import FlagError
from albert.formats import pretrained
from albert.records.manifests import Manifest, is_complete
from albert.runtime import workers
from albert.runtime.progress import duration
from albert.storage import cloud, files, locks
from albert.text import corpus_files, vocabulary
from albert.text.cleaning import LostMarks
from albert.text.documents import ReadingCounts, read_documents
from albert.training.metrics import read_metrics

log = logging.getLogger("albert")

_DECIDED = ("hours", "start_from", "teacher", "do_lower_case", "keep_accents", "seed", *corpus_flags.FLAGS)
_MANY_MARKS = 0.02  # fraction of letters with accents or marks, above which they are kept
_TRAINED = 0.95  # fraction of the time left; evaluations and checkpoints take the rest
_MIN_TRAINED = 0.1  # fraction of --hours, even where the data took all of it
_STARTED_RATE = 0.4  # of the rate for random weights (docs/guides/another_language.md)


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "input_file", None, f"Text: {corpus_flags.WHERE}. Required.", use="texts")
    corpus_flags.define_flags(values, with_sentences=False)
    flags.define("float", values, "hours", 1.0, "Total time in hours that the plan aims at.", above=0)
    flags.define("path", values, "output_dir", None, "Output directory. Required.", use="directory")
    flags.define("path", values, "start_from", None,
                 f"Model to start from, with its vocabulary: {flags.A_MODEL}. Default: random weights.",
                 use="model")
    flags.define("path", values, "teacher", None,
                 "Encoder to learn from, with the part of its vocabulary that the text uses: "
                 f"{flags.A_MODEL}.", use="model")
    flags.define("bool", values, "do_lower_case", True, "Lower-case the text.")
    flags.define("bool", values, "keep_accents", None,
                 "Keep accents and other marks, as Vietnamese, Hindi or Japanese needs. Default: if more "
                 "than 2 % of the letters have any.")
    flags.define("integer", values, "seed", 12345, "Seed of all random numbers.",
                 lower_bound=0, upper_bound=flags.MAX_SEED)


@dataclasses.dataclass
class Plan:
    """The choices, saved after each step, so that a resumed run makes the same ones."""

    flags: dict[str, Any]  # as typed
    text_sha256: str
    text_bytes: int = 0
    characters: int = 0  # that get a separate token
    keep_accents: bool = False
    notes: list[str] = dataclasses.field(default_factory=list)  # how letters change
    size: str = ""
    vocab_size: int = 0
    mixed_precision: str = "float32"
    tokens_per_second: int = 0
    sequences: int = 0  # of the complete training
    training: dict[str, float] = dataclasses.field(default_factory=dict)  # flags of batch, rate and steps

    def save(self, directory: str) -> None:
        files.write_json(os.path.join(directory, earlier_run.PLAN), dataclasses.asdict(self))
        cloud.push()


def main(values: flags.FlagValues) -> None:
    flags.require(values, "input_file", "output_dir")
    flags.refuse_together(values, "start_from", "teacher")
    out, form = values.output_dir, corpus_flags.form_of(values)
    paths = corpus_files.find(values.input_file, "input_file")
    is_begun = os.path.exists(os.path.join(out, earlier_run.PLAN))
    if os.path.isdir(out) and not is_begun and pretrained.layout_of(out):
        raise FlagError(f"--output_dir={out} holds another model or run: use another directory")
    with locks.hold(out):
        _make(values, paths, out, form)


def _make(values: flags.FlagValues, paths: Sequence[str], out: str, form: corpus_files.Form) -> None:
    started, plan_file = time.monotonic(), os.path.join(out, earlier_run.PLAN)

    def seconds_left() -> float:
        return values.hours * 3600 - (time.monotonic() - started)

    # === The plan: a new one, or that of the output directory ===
    decided = {name: value for name, value in flags.to_dict(values).items() if name in _DECIDED}
    plan = Plan(decided, hashlib.sha256(repr(list(map(files.sha256, paths))).encode()).hexdigest())
    if os.path.exists(plan_file):
        new, plan = plan, Plan(**files.read_json_object(plan_file))
        for name, value in decided.items():
            if (before := plan.flags.get(name)) != value:
                raise FlagError(f"--{name}={value}, but {out} was started with {before}: "
                                "use another --output_dir")
        if plan.text_sha256 != new.text_sha256:
            raise FlagError(f"--input_file={values.input_file} has changed since {out} was "
                            "started: put it back, or use another --output_dir")
    start, teacher = (getattr(values, flag) and pretrained.open_path(getattr(values, flag), flag)
                      for flag in ("start_from", "teacher"))
    theirs = (start or teacher) and (start or teacher).vocabulary
    is_lower = theirs.text.do_lower_case if theirs else values.do_lower_case
    text_flags = ["--split_sentences", *(f"--{name}={values[name].value}" for name in corpus_flags.FLAGS
                                         if values[name].present)]

    # === The text: how much there is, and in which letters ===
    if not plan.text_bytes:
        characters, marks = collections.Counter[str](), LostMarks()
        for document in read_documents(paths, str, ReadingCounts(), form=form):
            for line in document:
                characters.update(line)
                marks.add(line)
                plan.text_bytes += len(line.encode("utf-8", "replace")) + 1
        plan.characters = text_plan.covered(characters)
        plan.keep_accents = values.keep_accents
        if theirs:  # WordPiece keeps accents with capitals
            plan.keep_accents = theirs.text.keep_accents if theirs.spm_model_file else not is_lower
        elif values.keep_accents is None:
            plan.keep_accents = marks.fraction > _MANY_MARKS
        hint = "" if theirs else f"; --{'no' * plan.keep_accents}keep_accents changes that"
        plan.notes = ["Capitals are lower-cased"] * is_lower + [
            f"{marks}, which are {'kept' if plan.keep_accents else 'dropped'}{hint}"] * bool(marks.fraction)
        log.info("%s", "; ".join(plan.notes))
    tokens = plan.text_bytes / text_plan.BYTES_PER_TOKEN

    # === The architecture ===
    if not plan.size:
        size = text_plan.STUDENT
        if start:
            size = text_plan.nearest(start.config)
        elif not teacher:
            engines.start(engines.choose())
            size = text_plan.choose_size(tokens, text_plan.assumed_flops() * seconds_left())
        plan.size = size.name
        plan.mixed_precision = "bfloat16" if workers.bfloat16_gain() else "float32"
        plan.save(out)
    size = text_plan.size_of(plan.size)
    config = start.config if start else text_plan.student_of(teacher.config) if teacher else size.config
    size = dataclasses.replace(
        size, length=min(size.length, config.max_position_embeddings),
        rate=size.rate * (_STARTED_RATE if start else 1), least_warmup=100 if teacher else 1,
    )

    # === The vocabulary ===
    kind = "vocab_file" if theirs and not theirs.spm_model_file else "spm_model_file"
    if start:
        vocabulary_file, plan.vocab_size = getattr(theirs, kind), config.vocab_size
    elif teacher:
        prefix = os.path.join(out, "vocabulary")
        vocabulary_file = prefix + (".txt" if kind == "vocab_file" else ".model")
        if not plan.vocab_size:
            documents = read_documents(paths, str, ReadingCounts(), form=form)
            lines = (line for document in documents for line in document)
            plan.vocab_size = vocabulary.write_used(teacher.required_tokenizer(), lines, prefix)
    else:
        vocabulary_file = os.path.join(out, "spm.model")
        if not plan.vocab_size:
            wanted = text_plan.vocabulary_size(size, tokens, plan.characters)
            _run("train_sentencepiece", f"--input={values.input_file}", *text_flags,
                 f"--model_prefix={out}/spm", f"--do_lower_case={str(is_lower).lower()}",
                 f"--keep_accents={str(plan.keep_accents).lower()}", f"--vocab_size={wanted}",
                 "--nohard_vocab_limit", f"--seed={values.seed}")
            with open(os.path.join(out, "spm.vocab"), encoding="utf-8") as stream:
                plan.vocab_size = sum(1 for _ in stream)
    config = dataclasses.replace(config, vocab_size=plan.vocab_size)
    config_file = os.path.join(out, "albert_config.json")
    with files.atomic_write(config_file) as stream:
        stream.write(config.to_json_string())
    plan.save(out)

    # === Records ===
    train, held_out = (os.path.join(out, "records", f"{name}.tfrecord") for name in ("train", "held_out"))
    if not all(map(is_complete, (train, held_out))):
        _run("create_pretraining_data", f"--input_file={values.input_file}", *text_flags,
             f"--{kind}={vocabulary_file}", f"--do_lower_case={str(is_lower).lower()}",
             f"--output_file={train}", f"--eval_output_file={held_out}",
             f"--held_out_fraction={text_plan.held_out_fraction(tokens)}",
             f"--max_seq_length={size.length}", "--nostatic_masks", f"--random_seed={values.seed}",
             # A teacher of sentences was not trained on pairs.
             *(["--single_sentences", "--sentence_objective=none"] if teacher else ["--full_sequences"]))
        cloud.push()
    manifest = Manifest.read(train)
    used = manifest.info["report"]["tokens"] / manifest.info["report"]["records"] + 2  # with [CLS] and [SEP]
    tokens = round(manifest.records * used)
    counted = dataclasses.replace(size, length=round(used))  # steps and speed count no padding

    # === Training, of which the first half minute shows how fast this machine is ===
    model = os.path.join(out, "model")
    new = [f"--init_checkpoint={flags.as_typed(values, 'start_from')}"] if start else [
        f"--albert_config_file={config_file}", f"--{kind}={vocabulary_file}",
        f"--do_lower_case={str(is_lower).lower()}"]
    if teacher:
        new += [f"--teacher={flags.as_typed(values, 'teacher')}", "--init_from_teacher"]
    elif not start:
        new.append("--init_embeddings=cooccurrence")

    def train_model(training: dict[str, float], *more: str) -> None:
        _run("run_pretraining", f"--input_file={train}", f"--output_dir={model}", *new, "--do_train",
             f"--max_seq_length={size.length}", f"--optimizer={size.optimizer}", "--masked_lm_budget=0.15",
             f"--mixed_precision={plan.mixed_precision}", "--mask_token_share=1", "--keep_checkpoint_max=2",
             f"--seed={values.seed}", *(f"--{name}={value}" for name, value in training.items()), *more)

    if not plan.training:
        minimum = _MIN_TRAINED * values.hours * 3600
        if seconds_left() < minimum:
            log.warning("preparing the data took most of --hours; training takes %s more", duration(minimum))
        assumed = text_plan.assumed_flops() / text_plan.token_flops(counted, config)
        training = text_plan.training_flags(counted, tokens, assumed, max(_TRAINED * seconds_left(), minimum))
        until = text_plan.measured_steps(counted, training, assumed)
        train_model(training, f"--until_step={until}")
        *_, last = (line for line in read_metrics(model, "train") if line.get("tokens_per_second"))
        plan.tokens_per_second = round(last["tokens_per_second"])
        trained = until * training["train_batch_size"] * counted.length / plan.tokens_per_second
        seconds = max(_TRAINED * seconds_left(), minimum) + trained
        plan.training = text_plan.training_flags(counted, tokens, plan.tokens_per_second, seconds)
        others = plan.training["num_train_steps"] - until
        plan.sequences = until * training["train_batch_size"] + others * plan.training["train_batch_size"]
        plan.save(out)
    epochs = plan.sequences * counted.length / tokens
    planned = (
        f"{config.num_hidden_layers} x {config.hidden_size} (layers x width), {config.vocab_size:,} "
        f"vocabulary entries; {plan.training['num_train_steps']:,} steps of "
        f"{plan.training['train_batch_size']} sequences of {counted.length} tokens: "
        f"{epochs:.1f} epochs of {plan.text_bytes / 1e6:,.1f} MB of text, "
        f"{duration(epochs * tokens / plan.tokens_per_second)} at {plan.tokens_per_second:,} tokens/s"
    )
    log.info("plan: %s", planned)
    train_model(plan.training, "--do_eval", f"--eval_input_file={held_out}")

    # === Report ===
    notes = [planned, text_report.coverage(train), *plan.notes]
    log.info("report: %s", text_report.write(out, model, held_out, notes))


def _run(name: str, *arguments: str) -> None:
    """Runs a command in this process, as its command line would."""
    log.info("%s", shlex.join(["python", "-m", f"albert.{name}", *arguments]))
    command = importlib.import_module(f"albert.{name}")
    values = flags.parse(command.define_flags, [name, *arguments])
    with remote_paths.local_paths(values):
        command.main(values)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
