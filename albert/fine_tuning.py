"""What the fine-tuning commands share: the encoder they start from, and what they evaluate.

No TensorFlow at import; a command has checked its input before it is loaded.
"""

import logging

from albert import files, flags
from albert.config import AlbertConfig
from albert.errors import FlagError

log = logging.getLogger("albert")


def define_encoder_flags(values: flags.FlagValues) -> None:
    """Where architecture, vocabulary and weights come from."""
    flags.define("string", values, "albert_config_file", None, "Architecture (JSON).")
    flags.define("string", values, "spm_model_file", None, "SentencePiece model of the encoder.")
    flags.define("string", values, "vocab_file", None,
                 "WordPiece vocabulary, for an encoder without SentencePiece model.")
    flags.define("bool", values, "do_lower_case", True, "Whether the encoder is lower-cased.")
    flags.define("string", values, "init_checkpoint", None,
                 "Checkpoint whose weights (not step or moments) start the training.")
    flags.define("string", values, "albert_hub_module_handle", None,
                 "TF-Hub module that gives architecture, vocabulary and first weights.")
    flags.define("string", values, "checkpoint", None,
                 "Fine-tuned checkpoint to evaluate, predict with or export; by default the best "
                 "of --output_dir, else its newest, else --init_checkpoint.")
    flags.define("integer", values, "max_seq_length", 512, "Longest input; longer ones are cut.")


def check_encoder_flags(values: flags.FlagValues) -> None:
    """Raises a FlagError for encoder flags that are missing or contradict each other."""
    if not values.albert_hub_module_handle:
        if not values.albert_config_file:
            raise FlagError("--albert_config_file or --albert_hub_module_handle is needed")
        if not (values.spm_model_file or values.vocab_file):
            raise FlagError("--spm_model_file is required (or --vocab_file for WordPiece)")
    elif values.init_checkpoint:
        raise FlagError("give one of --init_checkpoint and --albert_hub_module_handle")
    if values.checkpoint and values.do_train:
        raise FlagError(
            "--checkpoint has no effect with --do_train; did you mean --init_checkpoint?"
        )
    if values.max_seq_length < 4:
        raise FlagError(f"--max_seq_length={values.max_seq_length} is too short; 4 is the least")


def open_encoder(values: flags.FlagValues):
    """Returns (config, tokenizer, hub module or None), which are known to fit each other.

    Raises:
      UserError: a file is missing or malformed, the vocabulary is of another
        size than the config's, or --max_seq_length exceeds its positions.
    """
    from albert import tokenization

    module = None
    if values.albert_hub_module_handle:
        flags.import_tensorflow()
        from albert import hub

        module = hub.resolve(values.albert_hub_module_handle)
        config, source = module.config, module
        origin = values.albert_hub_module_handle
    else:
        origin = files.require_file(values.albert_config_file, "albert_config_file")
        config, source = AlbertConfig.from_json_file(origin), values
        flag = "spm_model_file" if values.spm_model_file else "vocab_file"
        files.require_file(getattr(values, flag), flag)
    if values.max_seq_length > config.max_position_embeddings:
        raise FlagError(
            f"--max_seq_length={values.max_seq_length} exceeds max_position_embeddings "
            f"{config.max_position_embeddings} of {origin}"
        )
    tokenizer = tokenization.FullTokenizer(
        source.vocab_file, source.do_lower_case, source.spm_model_file
    )
    tokenization.check_vocabulary(tokenizer, config)
    return config, tokenizer, module


def initial_weights(values: flags.FlagValues, module):
    """Returns what training starts from: the module, --init_checkpoint, or None for random."""
    from albert import checkpoints

    if module is not None:
        return module.weights()
    return checkpoints.open_weights(values.init_checkpoint) if values.init_checkpoint else None


def finished_weights(values: flags.FlagValues, init):
    """Returns what to evaluate: --checkpoint, else the best, the newest, --init_checkpoint."""
    from albert import checkpoints

    if values.checkpoint:
        return checkpoints.open_weights(values.checkpoint, "checkpoint")
    own = checkpoints.newest_or_best(values.output_dir)
    if own:
        return checkpoints.open_weights(own, "output_dir")
    if init is None:
        raise FlagError(
            f"no checkpoint in {values.output_dir}: train first (--do_train) or give --checkpoint"
        )
    return init


def evaluate(task, config, run, path, weights, results) -> None:
    """Writes the results of the checkpoint; `results` are its own if they are of its step."""
    from albert import checkpoints, summaries, trainer

    step = checkpoints.read_sidecar(weights.origin).get("step")
    if not results or results["global_step"] != step:
        results = trainer.evaluate(task, config, run, [path], weights)
        summaries.log_results(results)
    log.info("results of %s: %s", weights.origin, summaries.write_results(run.output_dir, results))
