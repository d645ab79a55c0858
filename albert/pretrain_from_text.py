"""Pretrains a model on your text within a number of hours.

  python -m albert.pretrain_from_text --input_file=my_text.txt --hours=3 --output_dir=out

It measures the machine's speed, chooses vocabulary, architecture, batch, learning rate and steps, and
runs prepare_text, train_sentencepiece, create_pretraining_data and run_pretraining; the log shows
each as you would type it. Every command then accepts out/model, and out/report.md says what the model
has learned. Stop it at any time: rerun the command and it resumes. For English text,
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

import numpy as np

from albert.cli import (
    corpus_flags, earlier_run, flags, remote_paths, text_plan, text_report, training_speed,
)
from albert.cli.text_plan import Size, Text
from albert.config import AlbertConfig
from albert.errors import FlagError
from albert.formats import layouts, pretrained, used_vocabulary
from albert.records import manifests
from albert.runtime import processor, workers
from albert.runtime.progress import duration
from albert.storage import files, filesystem, locks
from albert.text import corpus_files, vocabulary
from albert.text.cleaning import LostMarks
from albert.training import costs

log = logging.getLogger("albert")

_DECIDED = ("input_file", "hours", "start_from", "teacher", "do_lower_case", "keep_accents", "seed",
            *corpus_flags.FLAGS)
_MANY_MARKS = 0.02  # fraction of letters with accents or marks, above which they are kept
_MEASURED = 5.0  # seconds of steps to time
_TRAINED = 0.95  # fraction of the time left; evaluations and checkpoints take the rest
_MIN_TRAINED = 0.1  # fraction of --hours, even where the data took all of it
_STARTED_RATE = 0.4  # of the rate for random weights (docs/guides/another_language.md)


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "input_file", None, f"Text: {corpus_flags.WHERE}. Required.",
                 use="texts")
    corpus_flags.define_flags(values)
    flags.define("float", values, "hours", 1.0,
                 "Total time in hours that the plan aims at.", above=0)
    flags.define("path", values, "output_dir", None, "Output directory. Required.", use="directory")
    flags.define("path", values, "start_from", None,
                 f"Model to start from, with its vocabulary: {flags.A_MODEL}. Default: random weights.",
                 use="model")
    flags.define("path", values, "teacher", None,
                 "Encoder to learn from, with the part of its vocabulary that the text uses: "
                 f"{flags.A_MODEL}.", use="model")
    flags.define("bool", values, "do_lower_case", True, "Lower-case the text.")
    flags.define("bool", values, "keep_accents", False,
                 "Keep accents and other marks, as Vietnamese, Hindi or Japanese needs. Default: if "
                 "more than 2 % of the letters have any.")
    flags.define("integer", values, "seed", 12345, "Seed of all random numbers.",
                 lower_bound=0, upper_bound=flags.MAX_SEED)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "input_file", "output_dir")
    flags.refuse_together(values, "start_from", "teacher")
    paths = corpus_files.find(values.input_file, "input_file")
    for path in paths:
        files.refuse_overwriting(os.path.join(values.output_dir, "text", "corpus.txt"), path)
    is_begun = os.path.exists(os.path.join(values.output_dir, earlier_run.PLAN))
    if os.path.isdir(values.output_dir) and not is_begun and layouts.layout_of(values.output_dir):
        raise FlagError(f"--output_dir={values.output_dir} holds another model or run: use another directory")
    with locks.hold(values.output_dir):
        _make(values, paths)


def _make(values: flags.FlagValues, paths: Sequence[str]) -> None:
    started, out = time.monotonic(), values.output_dir
    plan = _Plan.of(values, paths)
    text_flags = [f"--{name}={values[name].value}" for name in corpus_flags.FLAGS
                  if values[name].present]
    corpus = os.path.join(out, "text", "corpus.txt")
    if not os.path.exists(os.path.join(out, "text", "stats.json")):
        _run("prepare_text", f"--input_file={values.input_file}", f"--output_dir={out}/text",
             *text_flags)
    text = text_of(corpus)
    plan.choose(text, values.hours * 3600 - (time.monotonic() - started), corpus)
    vocabulary_flags = plan.vocabulary(values, corpus)
    train, held_out = (os.path.join(out, "records", f"{name}.tfrecord")
                       for name in ("train", "held_out"))
    if not all(map(manifests.is_complete, (train, held_out))):
        _run("create_pretraining_data", f"--input_file={corpus}", *vocabulary_flags,
             f"--output_file={train}", f"--eval_output_file={held_out}",
             f"--held_out_fraction={text_plan.held_out_fraction(text)}",
             f"--max_seq_length={plan.length}", "--nostatic_masks", "--full_sequences",
             "--document_layout=blank_lines", f"--random_seed={values.seed}")
    text = dataclasses.replace(text, counted=manifests.Manifest.read(train).records * plan.length)
    plan.set_steps(text, _TRAINED * (values.hours * 3600 - (time.monotonic() - started)))
    model = os.path.join(out, "model")
    start = vocabulary_flags
    if values.start_from:  # which has the vocabulary
        start = [f"--init_checkpoint={flags.as_typed(values, 'start_from')}"]
    _run("run_pretraining", f"--input_file={train}", f"--eval_input_file={held_out}",
         f"--output_dir={model}", *start, *plan.training_flags(values),
         f"--seed={values.seed}")
    notes = [plan.as_text(text), text_report.coverage(train), *plan.chosen.get("notes", ())]
    log.info("report: %s", text_report.write(out, model, held_out, notes, plan.epochs(text)))


def _run(name: str, *arguments: str) -> None:
    """Runs a command in this process, as its command line would."""
    log.info("%s", shlex.join(["python", "-m", f"albert.{name}", *arguments]))
    command = importlib.import_module(f"albert.{name}")
    values = flags.parse(command.define_flags, [name, *arguments])
    with remote_paths.local_paths(values):
        command.main(values)


def text_of(corpus: str) -> Text:
    """Returns the properties of a corpus that the plan depends on."""
    characters: collections.Counter[str] = collections.Counter()
    with open(corpus, encoding="utf-8") as stream:
        while part := stream.read(1 << 20):
            characters.update(part)
    shares = np.cumsum(sorted(characters.values(), reverse=True)) / max(characters.total(), 1)
    covered = int(np.searchsorted(shares, vocabulary.Settings.character_coverage)) + 1
    return Text(os.path.getsize(corpus), covered)


def _digest_of(paths: Sequence[str]) -> str:
    """Returns a digest of the files' contents."""
    contents = [
        cloud.stamp(path) if cloud.is_remote(path) else files.sha256(path)
        for path in paths
    ]
    return hashlib.sha256(repr(contents).encode()).hexdigest()


class _Plan:
    """The choices, stored in plan.json, so that a resumed run makes the same ones."""

    def __init__(self, path: str, chosen: dict[str, Any], values: flags.FlagValues):
        self.path, self.chosen = path, chosen
        gain = processor.bfloat16_gain()
        self._precision = chosen.get("mixed_precision", "bfloat16" if gain else "float32")
        self._start, self._teacher = (
            getattr(values, flag) and pretrained.open_path(getattr(values, flag), flag)
            for flag in ("start_from", "teacher")
        )

    @classmethod
    def of(cls, values: flags.FlagValues, paths: Sequence[str]) -> "_Plan":
        """Returns the plan of the output directory, or a new one.

        Raises:
          FlagError: it was made for other flags, or for another text in the files `paths`.
          UserError: the model does not exist.
        """
        path = os.path.join(values.output_dir, earlier_run.PLAN)
        text = _digest_of(paths)
        given = {name: value for name, value in flags.to_dict(values).items() if name in _DECIDED}
        if not os.path.exists(path):
            return cls(path, {"flags": given, "text_sha256": text}, values)
        chosen = files.read_json_object(path)
        for name, value in given.items():
            if (before := chosen.get("flags", {}).get(name)) != value:
                raise FlagError(f"--{name}={value}, but {values.output_dir} was started with {before}: "
                                "use another --output_dir")
        if "text_sha256" not in chosen:
            log.warning("%s does not record its text: cannot check that it is the same", path)
        elif chosen["text_sha256"] != text:
            raise FlagError(f"--input_file={values.input_file} has changed since {values.output_dir} was "
                            "started: put it back, or use another --output_dir")
        return cls(path, chosen, values)

    @property
    def config(self) -> AlbertConfig:
        """The architecture, with the size of the chosen vocabulary."""
        if self._start:
            return self._start.config
        if self._teacher:
            config = text_plan.student_of(self._teacher.config)
        else:
            config = text_plan.size_of(self.chosen["size"]).config
        return dataclasses.replace(config, vocab_size=self.chosen["vocab_size"])

    @property
    def length(self) -> int:
        return self.chosen["max_seq_length"]

    def choose(self, text: Text, seconds: float, corpus: str) -> None:
        """Chooses size and vocabulary, and measures the speed of training."""
        if "size" in self.chosen:
            return
        sizes = text_plan.SIZES
        log.info("measuring how fast this machine trains ...")
        if self._start:
            size = text_plan.nearest(self._start.config)
        elif self._teacher:
            size = text_plan.STUDENT
        else:
            rate = self._tokens_per_second(sizes[1], sizes[1].config)
            size = text_plan.choose_size(text.tokens, rate * text_plan.token_flops(sizes[1]) * seconds)
        self.chosen |= {
            "size": size.name, "optimizer": size.optimizer, "mixed_precision": self._precision,
        }
        if self._teacher:
            prefix = os.path.join(os.path.dirname(self.path), "vocabulary")
            self.chosen["vocab_size"] = used_vocabulary.write_used(
                self._teacher.required_tokenizer(), corpus, prefix)
        else:
            self.chosen["vocab_size"] = text_plan.vocabulary_size(size, text)
        config = self.config
        length = min(size.length, config.max_position_embeddings)
        size = dataclasses.replace(size, length=length)
        self.chosen |= {"vocab_size": config.vocab_size, "max_seq_length": length,
                        "tokens_per_second": round(self._tokens_per_second(size, config))}
        files.write_json(self.path, self.chosen)
        log.info("%s: %d x %d (layers x width), %s tokens in the vocabulary; %s tokens/s here",
                 size.name if not self._start else self._start.path, config.num_hidden_layers,
                 config.hidden_size, f"{config.vocab_size:,}",
                 f"{self.chosen['tokens_per_second']:,}")

    def _tokens_per_second(self, size: Size, config: AlbertConfig) -> float:
        with workers.preemptible("rerun the command to start again"):
            rate = training_speed.measure(
                config, batch=size.batch, length=size.length, predictions=size.predictions,
                optimizer=size.optimizer, precision=self._precision, seconds=_MEASURED,
            )
        if not self._teacher:
            return rate
        # A teacher only computes forwards, a third of a step's work.
        of_teacher, own = map(costs.compute_parameters, (self._teacher.config, config))
        return rate / (1 + of_teacher / own / 3)

    def vocabulary(self, values: flags.FlagValues, corpus: str) -> list[str]:
        """Returns the flags of the vocabulary, which is trained if it does not exist."""
        if model := self._start or self._teacher:
            theirs = model.vocabulary
            name = "spm_model_file" if theirs.spm_model_file else "vocab_file"
            text = theirs.text  # WordPiece keeps accents with capitals
            is_kept = text.keep_accents if theirs.spm_model_file else not text.do_lower_case
            self._note_letters(corpus, text.do_lower_case, is_kept)
            lower = f"--do_lower_case={str(text.do_lower_case).lower()}"
            if self._start:
                return [f"--{name}={getattr(theirs, name)}", lower]
            self._write_config(values.output_dir)
            prefix = os.path.join(values.output_dir, "vocabulary")
            return [f"--{name}={prefix}{'.model' if theirs.spm_model_file else '.txt'}", lower]
        lower = f"--do_lower_case={str(values.do_lower_case).lower()}"
        prefix = os.path.join(values.output_dir, "spm")
        if not os.path.exists(f"{prefix}.model"):
            keeps = self._note_letters(corpus, values.do_lower_case, flags.given(values, "keep_accents"))
            _run("train_sentencepiece", f"--input={corpus}", f"--model_prefix={prefix}", lower,
                 f"--keep_accents={str(keeps).lower()}",
                 f"--vocab_size={self.chosen['vocab_size']}", "--nohard_vocab_limit",
                 f"--seed={values.seed}")
        with open(f"{prefix}.vocab", encoding="utf-8") as stream:
            self.chosen["vocab_size"] = sum(1 for _ in stream)
        self._write_config(values.output_dir)
        return [f"--spm_model_file={prefix}.model", lower]

    def _write_config(self, directory: str) -> None:
        self._config_file = os.path.join(directory, "albert_config.json")
        with files.atomic_write(self._config_file) as stream:
            stream.write(self.config.to_json_string())

    def _note_letters(self, corpus: str, is_lower: bool, keep_accents: bool | None) -> bool:
        """Notes how letters change; returns whether accents are kept, by default if there are many."""
        marks = LostMarks()
        with open(corpus, encoding="utf-8") as stream:
            all(map(marks.add, stream))
        if keep_accents is None:
            keep_accents = marks.fraction > _MANY_MARKS
        ways = ("dropped; --keep_accents keeps", "kept; --nokeep_accents drops")
        self.chosen["notes"] = ["Capitals are lower-cased"] * is_lower + [
            f"{marks}, which are {ways[keep_accents]} them"] * bool(marks.fraction)
        files.write_json(self.path, self.chosen)
        log.info("%s", "; ".join(self.chosen["notes"]))
        return keep_accents

    def set_steps(self, text: Text, seconds: float) -> None:
        """Chooses batch, rate and steps by the time left."""
        if "training" in self.chosen:
            return
        minimum = _MIN_TRAINED * self.chosen["flags"]["hours"] * 3600
        if seconds < minimum:
            log.warning("preparing the data took most of --hours; training takes another %s",
                        duration(minimum))
            seconds = minimum
        size = text_plan.size_of(self.chosen["size"])
        size = dataclasses.replace(
            size, length=self.length, rate=size.rate * (_STARTED_RATE if self._start else 1)
        )
        self.chosen["training"] = text_plan.training_flags(
            size, text.tokens, self.chosen["tokens_per_second"], seconds
        )
        files.write_json(self.path, self.chosen)
        log.info("%s", self.as_text(text))

    def training_flags(self, values: flags.FlagValues) -> Sequence[str]:
        """Returns run_pretraining's flags."""
        new = []
        if self._teacher:
            new = [f"--teacher={flags.as_typed(values, 'teacher')}", "--init_from_teacher"]
        elif not self._start:
            new = ["--init_embeddings=cooccurrence"]
        if not self._start:
            new.append(f"--albert_config_file={self._config_file}")
        return [
            *new, "--do_train", "--do_eval", f"--max_seq_length={self.length}",
            f"--optimizer={self.chosen['optimizer']}",
            f"--mixed_precision={self.chosen['mixed_precision']}", "--masked_lm_budget=0.15",
            "--mask_token_share=1", "--keep_checkpoint_max=2",
            *(f"--{name}={value}" for name, value in self.chosen["training"].items()),
        ]

    def epochs(self, text: Text) -> float:
        """Returns how often the text is read."""
        training = self.chosen["training"]
        tokens = training["num_train_steps"] * training["train_batch_size"] * self.length
        return tokens / max(text.tokens, 1)

    def as_text(self, text: Text) -> str:
        """Returns the plan as a sentence."""
        training, config, epochs = self.chosen["training"], self.config, self.epochs(text)
        rate = self.chosen["tokens_per_second"]
        return (
            f"{config.num_hidden_layers} x {config.hidden_size} (layers x width), {config.vocab_size:,} "
            f"vocabulary entries; {training['num_train_steps']:,} steps of "
            f"{training['train_batch_size']} x {self.length} tokens: "
            f"{epochs:.1f} epochs of {text.num_bytes / 1e6:,.1f} MB of text, "
            f"{duration(epochs * text.tokens / max(rate, 1))} at {rate:,} tokens/s"
        )


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
