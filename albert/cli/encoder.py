"""The encoder that fine-tuning starts from: architecture, vocabulary, weights. No TensorFlow."""

import dataclasses
import logging
import os

from albert import engines, tokenization
from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import FlagError
from albert.formats import huggingface, model_hub, pretrained
from albert.formats.metadata import metadata_at
from albert.formats.tokenizer_files import Vocabulary
from albert.formats.weights import Weights

log = logging.getLogger("albert")

FROM_HUB = "from_tf_hub"  # what the original's commands give as --spm_model_file with a module


@dataclasses.dataclass(frozen=True)
class Encoder:
    """The encoder that fine-tuning starts from; its parts are checked to match."""

    config: AlbertConfig
    tokenizer: tokenization.FullTokenizer
    weights: Weights | None  # None: random ones
    trained_labels: tuple[str, ...] | None  # for which the weights were trained, if they say it


def open_encoder(values: flags.FlagValues, max_seq_length: int | None) -> Encoder:
    """Opens the encoder that the flags name."""
    check_encoder_flags(values)
    source, given = None, flags.vocabulary_given(values)
    if values.albert_hub_module_handle:
        engines.import_tensorflow()  # which fetches an address
        origin = values.albert_hub_module_handle
        source = pretrained.open_module(origin)
        config, vocabulary = source.config, source.vocabulary
        for name, asked in flags.text_settings(values).items():
            if asked != getattr(vocabulary.text, name):
                log.warning("--%s=%s: no effect, the module's vocabulary has its own", name, asked)
    elif values.albert_config_file and any(given[:2]):
        origin = values.albert_config_file
        config = huggingface.read_config(origin)
        vocabulary = Vocabulary().override(*given)
    else:
        origin = values.init_checkpoint
        source = pretrained.open_path(origin, "init_checkpoint")
        config = source.config
        if values.albert_config_file:
            config = huggingface.read_config(values.albert_config_file)
        vocabulary = source.vocabulary.override(*given)
        if not vocabulary:
            raise FlagError(f"{origin} has no vocabulary: pass --spm_model_file or --vocab_file")
        log.info("architecture and vocabulary: %s", flags.as_typed(values, "init_checkpoint"))
    config.check_length(max_seq_length, origin)
    tokenizer = vocabulary.open()
    tokenization.check_vocabulary(tokenizer, config)
    if values.albert_dropout is not None:
        config = config.with_dropout(values.albert_dropout)
    if source is not None:
        return Encoder(config, tokenizer, source.weights(), source.metadata.label_names)
    if not values.init_checkpoint:
        return Encoder(config, tokenizer, None, None)
    weights = pretrained.open_any_weights(values.init_checkpoint)
    return Encoder(config, tokenizer, weights, metadata_at(weights.origin).label_names)


def check_encoder_flags(values: flags.FlagValues) -> None:
    """Raises a FlagError for encoder flags that are missing or contradict each other."""
    if values.albert_hub_module_handle:
        if values.init_checkpoint:
            raise FlagError("pass only one of --init_checkpoint and --albert_hub_module_handle")
        names = [
            name for name in ("albert_config_file", "spm_model_file", "vocab_file")
            if getattr(values, name) != FROM_HUB
        ]
        if ineffective := flags.given_as_typed(values, *names):  # the original's commands have them
            log.warning("%s: no effect with --albert_hub_module_handle: the module has its own",
                        ", ".join(ineffective))
        return
    # A model's directory provides what the flags leave out.
    start = values.init_checkpoint or ""
    config = os.path.join(os.path.dirname(start), pretrained.CONFIG_FILE)
    is_model = bool(start) and (
        model_hub.is_model(start) or os.path.isfile(config) or not values.albert_config_file
    )
    if not (values.albert_config_file or is_model):
        raise FlagError("--init_checkpoint is required: small_en, which is built in, albert/albert-base-v2, "
                        "or the directory of a model (or --albert_config_file for random weights)")
    if not (values.spm_model_file or values.vocab_file or is_model):
        raise FlagError("--spm_model_file is required (or --vocab_file for WordPiece)")
    if values.spm_model_file and values.vocab_file:
        log.warning("--vocab_file: no effect with --spm_model_file")
