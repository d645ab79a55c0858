"""Architecture and vocabulary that a pretraining run starts from. No engine at import.

The run itself reads ids. The vocabulary is stored with the checkpoints, for whatever opens them.
"""

import dataclasses
import logging
import os
from collections.abc import Sequence

from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError, FlagError
from albert.formats import checkpoints, huggingface, pretrained, tokenizer_files
from albert.formats.pretrained import Pretrained
from albert.formats.tokenizer_files import Vocabulary
from albert.formats.weights import Weights
from albert.pretraining_data import cooccurrence
from albert.records.record_files import RecordFiles
from albert.records.manifests import Manifest
from albert.storage import files, filesystem
from albert.tokenization import FullTokenizer, TextSettings, check_vocabulary, tokenizer_digest

log = logging.getLogger("albert")

_GELUS = {"gelu": "gelu (tanh form)", "gelu_erf": "gelu (exact, erf)"}


def open_start(values: flags.FlagValues) -> Pretrained | None:
    """Returns the model that --init_checkpoint names; None for bare weights or without the flag."""
    if not values.init_checkpoint:
        return None
    try:
        return pretrained.open_path(values.init_checkpoint, "init_checkpoint")
    except CheckpointError:
        if not values.albert_config_file:
            raise
        return None  # a checkpoint without any files next to it is enough


def architecture(values: flags.FlagValues, start: Pretrained | None) -> AlbertConfig:
    """Returns the architecture: from the flag, the model to start from, or the run's directory."""
    of_run = os.path.join(values.output_dir, "albert_config.json")
    if values.albert_config_file:
        config = huggingface.read_config(values.albert_config_file)
    elif start:
        config = start.config
    elif os.path.isfile(of_run):
        return AlbertConfig.from_json_file(of_run)
    else:
        raise FlagError("--albert_config_file is required (or the directory of a model as "
                        "--init_checkpoint)")
    if start:
        act, theirs = (_GELUS.get(act, act) for act in (
            (one.hidden_act or "linear").lower() for one in (config, start.config)
        ))
        log.info("starting from %s; activation: %s", start.path, act)
        if act != theirs:
            log.warning("%s has the activation %s, which --albert_config_file replaces by %s",
                        start.path, theirs, act)
    return config


def vocabulary(
    values: flags.FlagValues, config: AlbertConfig, start: Pretrained | None,
    sources: Sequence[RecordFiles],
) -> FullTokenizer | None:
    """Returns the records' vocabulary: that of the flags, else the copy next to the records.

    A run that has it already needs neither. Warns if there is none.
    """
    path, manifest = _made_with(sources)
    settings = flags.text_settings(values)
    of_records = _next_to(path, manifest)
    _check_settings(start, of_records, manifest, path)
    if values.spm_model_file or values.vocab_file:
        flags.refuse_together(values, "spm_model_file", "vocab_file")
        tokenizer = of_records.override(values.spm_model_file, values.vocab_file, settings).open()
        check_vocabulary(tokenizer, config)
        if manifest.tokenizer_sha256 not in (None, tokenizer.sha256):
            raise FlagError(f"{path} was not made with {tokenizer.path}"
                            f"{''.join(f' and this --{name}' for name in settings)}: give the "
                            "records' vocabulary, or leave it out")
        return tokenizer
    of_run = tokenizer_files.find(values.output_dir) if os.path.isdir(values.output_dir) else None
    for found in (of_records, of_run):
        if found and not found.problem:
            tokenizer = found.open()
            if manifest.tokenizer_sha256 in (None, tokenizer.sha256):
                check_vocabulary(tokenizer, config)
                log.info("vocabulary: %s", filesystem.address_of(tokenizer.path))
                return tokenizer
    log.warning("%s will have no vocabulary: give that of %s with --spm_model_file or --vocab_file",
                values.output_dir, path)
    return None


def _check_settings(
    start: Pretrained | None, of_records: Vocabulary, manifest: Manifest, path: str
) -> None:
    """Refuses records whose text was preprocessed differently than the start's tokenizer does."""
    theirs = start.vocabulary if start else Vocabulary()
    file, text = theirs.spm_model_file or theirs.vocab_file, of_records.text
    if file and text != theirs.text and manifest.tokenizer_sha256 == tokenizer_digest(
        files.sha256(file), bool(theirs.spm_model_file), text
    ):
        differing = dataclasses.asdict(theirs.text).items() - dataclasses.asdict(text).items()
        listed = ", ".join(f"{name}={value}" for name, value in sorted(differing))
        raise FlagError(f"{path}: made without {listed}, which the tokenizer of {start.path} has: "
                        f"make the records with --spm_model_file={file}")


def keep_vocabulary(tokenizer: FullTokenizer, output_dir: str) -> None:
    """Writes the vocabulary and its settings into a run's directory."""
    # A vocabulary copied there by hand has no settings.
    before = tokenizer_files.find(output_dir, tokenizer.settings)
    if before and checkpoints.newest_or_best(output_dir):
        if (old := before.open()).sha256 != tokenizer.sha256:
            raise DataError(f"{output_dir} holds checkpoints with the vocabulary "
                            f"{os.path.basename(old.path)}, but these records have another: use "
                            "another --output_dir")
    tokenizer_files.write(tokenizer, output_dir)


def _made_with(sources: Sequence[RecordFiles]) -> tuple[str, Manifest]:
    """Returns a record file whose manifest names the vocabulary, and the manifest."""
    made: dict[str, tuple[str, Manifest]] = {}
    for path, manifest in (one for source in sources for one in source.manifests()):
        if manifest.tokenizer_sha256:
            made.setdefault(manifest.tokenizer_sha256, (path, manifest))
    if len(made) > 1:
        (one, _), (two, _), *_ = made.values()
        raise DataError(f"{one} and {two} were made with different vocabularies or case flags")
    return next(iter(made.values()), (sources[0].paths[0], Manifest()))


def _next_to(path: str, manifest: Manifest) -> Vocabulary:
    """Returns the copy of the vocabulary next to a record file, or its settings alone."""
    recorded = manifest.vocabulary
    text = tokenizer_files.text_settings(recorded, f"{path}: manifest") if recorded else TextSettings()
    if not isinstance(name := recorded.get("beside"), str):
        return Vocabulary(text=text)
    scheme, mark, rest = filesystem.address_of(path).rpartition("://")
    copy = scheme + mark + os.path.normpath(os.path.join(os.path.dirname(rest), name))
    if not filesystem.exists(copy):
        return Vocabulary(text=text)
    copy, is_spm = filesystem.local_copy(copy, "input_file"), bool(recorded.get("spm_model_file"))
    return Vocabulary(copy if is_spm else None, None if is_spm else copy, text)


def of_cooccurrence(
    source: RecordFiles, task, tokenizer: FullTokenizer | None, config: AlbertConfig, seed: int
) -> Weights:
    """Returns token embeddings that are computed from the records when training starts.

    Raises:
      FlagError: the vocabulary is unknown, and with it the ids of special tokens.
    """
    if tokenizer is None:
        raise FlagError("--init_embeddings=cooccurrence needs the records' vocabulary: give "
                        "--spm_model_file or --vocab_file")
    start = cooccurrence.Start(source, task.feature_spec(), tokenizer.special_ids, config, seed)
    return Weights("co-occurrence", start, list(start.shapes))
