"""What a pretraining run starts from: its architecture and its vocabulary. No engine at import.

The run itself reads ids and needs no vocabulary. It is stored with the checkpoints, so that
whatever opens the run's directory finds it.
"""

import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence

from albert.cli import flags
from albert.config import AlbertConfig, config_file
from albert.errors import CheckpointError, ConfigError, DataError, FlagError, UserError
from albert.formats import checkpoints, huggingface, pretrained, tokenizer_files
from albert.formats.pretrained import Pretrained
from albert.formats.tokenizer_files import Vocabulary
from albert.records.record_files import RecordFiles
from albert.records.records import Manifest
from albert.storage import files, filesystem
from albert.tokenization import FullTokenizer, check_vocabulary, identity

log = logging.getLogger("albert")

_CONFIG = "albert_config.json"
_FORMS = {"gelu": "gelu, the tanh form", "gelu_erf": "gelu, the exact one (erf)"}


def open_start(values: flags.FlagValues) -> Pretrained | None:
    """Returns the model that --init_checkpoint names, None for bare weights and without it."""
    if not values.init_checkpoint:
        return None
    try:
        return pretrained.open_path(values.init_checkpoint, "init_checkpoint")
    except CheckpointError:
        if not values.albert_config_file:
            raise
        return None  # a checkpoint beside which nothing lies is enough


def architecture(values: flags.FlagValues, start: Pretrained | None) -> AlbertConfig:
    """Returns the architecture of the flag, of what the run starts from, or of its directory.

    Raises:
      FlagError: none of them has it.
    """
    own = os.path.join(values.output_dir, _CONFIG)
    if values.albert_config_file:
        config = _config_of(values.albert_config_file)
    elif start:
        config = start.config
    elif os.path.isfile(own):
        return AlbertConfig.from_json_file(own)
    else:
        raise FlagError("--albert_config_file is required (or the directory of a model as "
                        "--init_checkpoint)")
    if start:
        act = (config.hidden_act or "linear").lower()
        log.info("start from %s; activation: %s", start.path, _FORMS.get(act, act))
        if act != (theirs := (start.config.hidden_act or "linear").lower()):
            log.warning("%s has the activation %s, and --albert_config_file another, which is "
                        "taken: %s", start.path, _FORMS.get(theirs, theirs), _FORMS.get(act, act))
    return config


def _config_of(value: str) -> AlbertConfig:
    """Returns what --albert_config_file names: a file of ours or of Hugging Face's, or a name."""
    path = files.require_file(config_file(value), "albert_config_file")
    if (theirs := files.read_json_object(path)).get("model_type"):
        return huggingface.config_from_theirs(theirs, value)
    return AlbertConfig.from_json_file(path)


def vocabulary(
    values: flags.FlagValues, config: AlbertConfig, start: Pretrained | None,
    sources: Sequence[RecordFiles],
) -> FullTokenizer | None:
    """Returns the vocabulary of the records: of the flags, else the first one that is theirs.

    It is looked for where the records were made, in the model that the run starts from, and in
    --output_dir. Says so if there is none.

    Raises:
      UserError: the one of the flags is unusable, or not that of the records, or of another size
      than the architecture's; DataError: the records were made with different ones.
    """
    path, manifest = _made_with(sources)
    wanted = manifest.tokenizer_sha256
    lower = flags.given(values, "do_lower_case")
    if values.spm_model_file or values.vocab_file:
        if values.spm_model_file and values.vocab_file:
            raise FlagError("give one of --spm_model_file and --vocab_file")
        which = "spm_model_file" if values.spm_model_file else "vocab_file"
        files.require_file(getattr(values, which), which)
        text = _of_records(manifest, path).text
        given = Vocabulary(text=text).override(values.spm_model_file, values.vocab_file, lower)
        tokenizer = given.open()
        check_vocabulary(tokenizer, config)
        if wanted and tokenizer.sha256 != wanted:
            raise FlagError(f"{path} was not made with {tokenizer.path}"
                            f"{'' if lower is None else ' and this --do_lower_case'}: give the "
                            "vocabulary of the records, or none")
        return tokenizer
    looked = []
    for found in _candidates(manifest, path, start, values.output_dir):
        where = found.spm_model_file or found.vocab_file
        looked.append(filesystem.address_of(where))
        if wanted is None:
            found = found.override(None, None, lower)
        elif wanted != _identity_of(found):
            continue
        try:
            tokenizer = found.open()
            check_vocabulary(tokenizer, config)
        except (ConfigError, DataError) as error:
            looked[-1] += f" ({error})"
            continue
        log.info("vocabulary: %s", filesystem.address_of(where))
        return tokenizer
    log.warning("%s will have no vocabulary: give the records' with --spm_model_file or "
                "--vocab_file%s", values.output_dir,
                f"; theirs is none of {', '.join(dict.fromkeys(looked))}" if looked else "")
    return None


def keep_vocabulary(tokenizer: FullTokenizer, output_dir: str) -> None:
    """Writes the vocabulary and its settings into a run's directory.

    Raises:
      DataError: the directory holds checkpoints of another vocabulary.
    """
    # One that was copied there by hand has no settings.
    before = tokenizer_files.find(output_dir, tokenizer.settings)
    where = before.spm_model_file or before.vocab_file
    if where and _identity_of(before) != tokenizer.sha256 and checkpoints.newest_or_best(
        output_dir
    ):
        raise DataError(f"{output_dir} holds checkpoints with the vocabulary "
                        f"{os.path.basename(where)}, and these records have another: give another "
                        "--output_dir")
    tokenizer_files.write(tokenizer, output_dir)


def _made_with(sources: Sequence[RecordFiles]) -> tuple[str, Manifest]:
    """Returns (a record file, its manifest), of those that name their vocabulary."""
    made: dict[str, tuple[str, Manifest]] = {}
    for path, manifest in (one for source in sources for one in source.manifests()):
        if manifest.tokenizer_sha256:
            made.setdefault(manifest.tokenizer_sha256, (path, manifest))
    if len(made) > 1:
        (one, _), (two, _), *_ = made.values()
        raise DataError(f"{one} and {two} were made with different vocabularies or case flags")
    return next(iter(made.values()), (sources[0].paths[0], Manifest()))


def _of_records(manifest: Manifest, path: str) -> Vocabulary:
    """Returns the vocabulary of a manifest, by the path that it had when the records were made."""
    told = manifest.vocabulary
    paths = {name: told.get(name) for name in ("spm_model_file", "vocab_file")}
    if not all(value is None or isinstance(value, str) for value in paths.values()):
        return Vocabulary()
    text = tokenizer_files.text_settings(told, f"{path}: manifest")
    vocab = None if paths["spm_model_file"] else paths["vocab_file"]
    return Vocabulary(paths["spm_model_file"], vocab, text)


def _candidates(
    manifest: Manifest, path: str, start: Pretrained | None, output_dir: str
) -> Iterator[Vocabulary]:
    """Yields the vocabularies that may be the records', those files that are there."""
    told = _of_records(manifest, path)
    name = "spm_model_file" if told.spm_model_file else "vocab_file"
    beside = manifest.vocabulary.get("beside")
    of_records = filesystem.address_of(path)
    scheme, mark, rest = of_records.rpartition("://")
    moved = isinstance(beside, str) and scheme + mark + os.path.normpath(
        os.path.join(os.path.dirname(rest), beside)
    )
    for where in (moved, getattr(told, name)):
        # A manifest may be a stranger's: it must not lead from local records to cloud storage.
        if where and not (filesystem.is_remote(where) and not mark) and (found := _local(where)):
            yield dataclasses.replace(told, **{name: found})
    if start and (start.vocabulary.spm_model_file or start.vocabulary.vocab_file):
        yield start.vocabulary
    if os.path.isdir(output_dir) and (own := tokenizer_files.find(output_dir)) and not own.problem:
        yield own


def _identity_of(vocabulary: Vocabulary) -> str:
    is_spm = bool(vocabulary.spm_model_file)
    path = vocabulary.spm_model_file or vocabulary.vocab_file
    return identity(files.sha256(path), is_spm, vocabulary.text)


def _local(path: str) -> str | None:
    """Returns the path of a file here or elsewhere, None if there is none."""
    try:
        found = filesystem.local_copy(path, "input_file")
    except UserError:
        return None
    return found if os.path.isfile(found) else None
