"""Pretrains ALBERT on records made by albert.create_pretraining_data.

  python -m albert.run_pretraining --input_file='records/train*.tfrecord' \\
      --eval_input_file=records/heldout.tfrecord --output_dir=out \\
      --albert_config_file=base_v2 --do_train --do_eval

Rerun the command and it resumes from the newest checkpoint of --output_dir.
"""

import dataclasses
import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Any

from albert import engines
from albert.cli import earlier_run, flags, run_flags
from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError, FlagError
from albert.formats import checkpoints, huggingface, model_card, pretrained, tokenizer_files
from albert.formats.pretrained import Pretrained
from albert.formats.tokenizer_files import Vocabulary
from albert.formats.weights import Weights
from albert.pretraining_data import cooccurrence, dynamic_masking
from albert.pretraining_data.masking import MaskingSettings, num_to_predict
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.tokenization import FullTokenizer, check_vocabulary, tokenizer_digest
from albert.training.metrics import log_results, write_results

log = logging.getLogger("albert")

_WITHOUT_MASKS = 0.5  # of the sequences that a teacher reads, to learn their embeddings


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags with its defaults, and a few new ones."""
    define = flags.define
    # === Files ===
    define("path", values, "albert_config_file", None,
           "Architecture: a JSON file, or the name of a released model, such as base_v2. Default: that of "
           "the model in --init_checkpoint, else of --output_dir.", use="file")
    define("path", values, "input_file", None,
           "Records to train on: comma-separated globs. Required.", use="records")
    define("path", values, "eval_input_file", None,
           "Records to evaluate on. Default: --input_file, as in the original.", use="records")
    define("path", values, "init_checkpoint", None,
           f"Model to start from, without step and optimizer state: {flags.A_MODEL}.", use="model")
    define("enum", values, "init_embeddings", "random",
           "Initial token embeddings without --init_checkpoint; cooccurrence: computed from the "
           "co-occurrence of tokens in --input_file, which takes a minute, saves a fifth of 10,000 steps, "
           "and needs the vocabulary.", enum_values=["random", "cooccurrence"])
    define("path", values, "teacher", None,
           "Encoder whose hidden states the model learns to compute, besides masked tokens, on "
           f"records with its vocabulary or a part of it: {flags.A_MODEL}.", use="model")
    define("bool", values, "init_from_teacher", False,
           "Start from the weights of --teacher, adapted to the architecture, whose layers "
           "must have the same sizes.")
    define("bool", values, "init_from_group0", False,
           "Initialize every parameter group from group 0 of --init_checkpoint.")
    define("bool", values, "allow_partial_init", False,
           "Allow an --init_checkpoint that lacks encoder weights, which are then random.")
    # === Records and actions ===
    define("integer", values, "max_seq_length", 512,
           "Length of the records' sequences in tokens, as in create_pretraining_data.", lower_bound=1)
    define("integer", values, "max_predictions_per_seq", 20,
           "Maximum masked tokens per sequence, as in create_pretraining_data; with "
           "--masked_lm_budget, by default what that needs.", lower_bound=1)
    define("bool", values, "do_train", True, "Train.")
    define("bool", values, "do_eval", False,
           "Evaluate every checkpoint of the training or, without --do_train, the newest of "
           "--output_dir, else --init_checkpoint.")
    define("integer", values, "train_batch_size", 4096,
           "Sequences per training step, on all devices together.", lower_bound=1)
    define("integer", values, "input_processes", 1,
           "Processes that read and mask the training records, for several GPUs; batches stay the same.",
           lower_bound=1)
    define("integer", values, "eval_batch_size", 64, "Sequences per evaluation batch.", lower_bound=1)
    define("integer", values, "max_eval_steps", 100,
           "Batches per evaluation, with repetition if data are few; 0: all data once.", lower_bound=0)
    define("float", values, "masked_lm_budget", 0.0,
           "Fraction of the tokens to mask (0.15 in the paper), drawn each time a record is read, for "
           "records made with --nostatic_masks; 0: the records hold masks.", lower_bound=0, upper_bound=1)
    define("path", values, "spm_model_file", None,
           "SentencePiece model of the records, to store in --output_dir. Default: the copy "
           "next to them.", use="file")
    define("path", values, "vocab_file", None,
           "WordPiece vocabulary of the records, like --spm_model_file.", use="file")
    flags.define_text_flags(values, "Whether the records are lower-cased, unless their manifest says "
                      "otherwise.")
    # === Optimizer and schedule ===
    define("enum", values, "optimizer", "lamb",
           "Optimizer: LAMB, for large batches; Adam with weight decay; or Muon (LAMB with orthogonal "
           "updates of the layers' matrices).", enum_values=["adamw", "lamb", "muon"])
    define("float", values, "learning_rate", 0.00176,
           "Peak learning rate, reached after the warm-up; for batches of N sequences, multiply "
           "it by sqrt(N / 4096).", above=0)
    define("float", values, "poly_power", 1.0,
           "Power of the learning rate's polynomial decay; 1: linear.", lower_bound=0)
    define("integer", values, "num_decay_steps", 0,
           "Final steps in which the learning rate decays, after staying at its peak (a run "
           "stopped before them by --until_step can be extended with more --num_train_steps); "
           "0: decay from the start, as in the original.", lower_bound=0)
    define("integer", values, "num_train_steps", 125000, "Total number of training steps.", lower_bound=1)
    define("integer", values, "num_warmup_steps", 3125,
           "Steps in which the learning rate rises from 0 to --learning_rate; with another "
           "--num_train_steps, by default 2.5 % of it.", lower_bound=0)
    define("integer", values, "until_step", 0,
           "Stop at this step, with the learning rate schedule of --num_train_steps, to resume "
           "later, for example with longer sequences; 0: train to the end.", lower_bound=0)
    define("integer", values, "start_warmup_step", 0, "Step at which the warm-up begins.", lower_bound=0)
    # === Those of other commands, too ===
    run_flags.define_masking_flags(values)
    run_flags.define_run_flags(values, save_checkpoints_steps=5000)
    run_flags.define_device_flags(values)


def main(values: flags.FlagValues) -> None:
    # === Flags ===
    flags.require(values, "input_file", "output_dir")
    if not (values.do_train or values.do_eval):
        raise FlagError("at least one of --do_train and --do_eval is required")
    for name in ("init_embeddings", "teacher", "spm_model_file", "vocab_file", *flags.TEXT_FLAGS):
        if values[name].present and not values.do_train:
            raise FlagError(f"--{name} needs --do_train")
    starts = [name for name in ("init_checkpoint", "init_embeddings", "init_from_teacher")
              if values[name].value not in (None, "", "random", False)]
    if len(starts) > 1:
        raise FlagError(f"pass only one of --{' and --'.join(starts)}")
    if values.init_from_teacher and not values.teacher:
        raise FlagError("--init_from_teacher needs --teacher")
    run_flags.check_device_flags(values)
    warmup = flags.given(values, "num_warmup_steps")
    if warmup is None:  # the same part of the steps as of 125,000
        warmup = min(values.num_train_steps * values.num_warmup_steps // 125_000,
                     max(values.num_train_steps - values.num_decay_steps, 0))
    used = {"start_warmup_step": values.start_warmup_step, "num_warmup_steps": warmup,
            "num_decay_steps": values.num_decay_steps}
    if sum(used.values()) > values.num_train_steps:
        listed = " + ".join(f"--{name}={steps}" for name, steps in used.items() if steps)
        raise FlagError(f"{listed} exceeds --num_train_steps={values.num_train_steps}")

    # === Architecture: of the flag, the model to start from, or the run's directory ===
    start, of_run = None, os.path.join(values.output_dir, "albert_config.json")
    if values.init_checkpoint:
        try:
            start = pretrained.open_path(values.init_checkpoint, "init_checkpoint")
        except CheckpointError:
            if not values.albert_config_file:
                raise  # else a checkpoint without any files next to it is enough
    if values.albert_config_file:
        config = huggingface.read_config(values.albert_config_file)
    elif start:
        config = start.config
    elif os.path.isfile(of_run):
        config = AlbertConfig.from_json_file(of_run)
    else:
        raise FlagError("--albert_config_file is required (or the directory of a model as --init_checkpoint)")
    if start:
        log.info("starting from %s; activation: %s", start.path, config.hidden_act)
        if config.hidden_act != start.config.hidden_act:
            log.warning("%s has the activation %s, which --albert_config_file replaces by %s",
                        start.path, start.config.hidden_act, config.hidden_act)
    config.check_length(values.max_seq_length, "the model")
    teacher = pretrained.open_path(values.teacher, "teacher") if values.teacher else None
    if teacher:
        teacher.config.check_length(values.max_seq_length, values.teacher)

    # === Records ===
    train_files = RecordFiles.of_flag(values.input_file, "input_file") if values.do_train else None
    eval_flag = "eval_input_file" if values.eval_input_file else "input_file"
    eval_files = RecordFiles.of_flag(values[eval_flag].value, eval_flag) if values.do_eval else None
    sources = [source for source in (train_files, eval_files) if source]
    for source in sources:
        source.check_vocabulary(config.vocab_size)
    objective, *none = dynamic_masking.sentence_objectives(sources[0])

    # === Masks: in the records, or drawn as they are read ===
    budget, predictions = values.masked_lm_budget, values.max_predictions_per_seq
    if budget:
        needed = int(num_to_predict(values.max_seq_length, MaskingSettings(values.max_seq_length, budget)))
        if not values["max_predictions_per_seq"].present:
            predictions = needed
        elif predictions < needed:
            raise FlagError(f"--max_predictions_per_seq={predictions} is less than the {needed} predictions "
                            f"of --masked_lm_budget={budget:g}: leave it out")
    elif unused := [name for name in run_flags.MASKING_FLAGS if values[name].present]:
        raise FlagError(f"--{unused[0]} has no effect without --masked_lm_budget: the records hold masks")
    settings = MaskingSettings(predictions, budget, **flags.select(values, run_flags.MASKING_FLAGS))
    masks: dict[str, Any] = {"masks": None, "eval_masks": None}
    # Evaluations draw the same masks in every run.
    for source, name, seed in (train_files, "masks", values.seed), (eval_files, "eval_masks", 0):
        drawn = source and dynamic_masking.dynamic_masking(
            source, values.max_seq_length, settings, seed, _WITHOUT_MASKS if teacher else 0.0
        )
        if drawn and not budget:
            raise DataError(f"{source.paths[0]} holds pairs without masks: pass --masked_lm_budget=0.15")
        if source and not drawn and teacher:
            raise DataError(f"{source.paths[0]} holds masks: a teacher reads records of --nostatic_masks")
        masks[name] = drawn
    if budget and train_files and not masks["masks"]:
        raise DataError(f"{train_files.paths[0]} was not made with --nostatic_masks (or its manifest is "
                        "lost): leave --masked_lm_budget at 0")
    if budget and eval_files and not masks["eval_masks"]:
        # --max_predictions_per_seq applies to masks drawn here; masked records have their own.
        masks["eval_predictions_per_seq"] = eval_files.length_of("masked_lm_positions")
        share = values.mask_token_share
        others = [path for path, manifest in eval_files.manifests()
                  if manifest.flags.get("mask_token_share", share) != share]
        if others:
            log.warning("%s was made with another --mask_token_share than this run's %g: compare its results "
                        "only with those of runs that do the same", others[0], share)

    # === Vocabulary: the run reads ids, but whoever opens the model needs it ===
    tokenizer = _vocabulary(values, config, start, sources) if values.do_train else None

    # === The run that is resumed ===
    digest = sources[0].tokenizer_sha256 or (tokenizer and tokenizer.sha256)
    conditions = {"task": "pretraining", "seed": values.seed, "vocabulary or tokenizer setting": digest}
    if train_files:
        content = repr([fingerprint[1:] for fingerprint in train_files.fingerprints()])
        conditions["training data"] = {
            "sha256": hashlib.sha256(content.encode()).hexdigest(), "examples": train_files.count,
            "flags": {"input_file": flags.as_typed(values, "input_file")},
        }
        last_step = min(values.until_step or values.num_train_steps, values.num_train_steps)
        earlier_run.check_directory(values.output_dir, config, conditions, may_continue_to=last_step)

    init, mode = None, "encoder"
    if values.init_checkpoint:
        init = start.weights() if start else pretrained.open_any_weights(values.init_checkpoint)
        mode = "group0" if values.init_from_group0 else "partial" if values.allow_partial_init else mode

    # === Engine: it takes seconds to import, so everything else is checked first ===
    engines.start(engines.choose(values))
    from albert.optimization import OptimizerConfig
    from albert.tasks import teacher as teachers
    from albert.tasks.pretraining import PretrainingTask
    from albert.training import evaluate, loop
    from albert.training.run import RunConfig, current

    run = RunConfig(**flags.select(values, RunConfig))
    optimizer = OptimizerConfig(
        values.optimizer, **flags.select(values, OptimizerConfig) | {"num_warmup_steps": warmup}
    )
    with current().scope(values):
        task = PretrainingTask(
            values.max_seq_length, predictions, **masks, sentence_objective=objective,
            some_have_no_pair=bool(none),
        )
        if teacher:
            task = dataclasses.replace(
                task, teacher=teachers.Teacher(teacher, tokenizer, values.mixed_precision),
                best_metric="teacher_similarity",
            )

        # === Weights to start from ===
        is_resumed = bool(checkpoints.list_steps(values.output_dir))
        if values.init_embeddings == "cooccurrence" and not is_resumed:
            vectors = cooccurrence.initial_embeddings(
                train_files, task.feature_spec(), tokenizer.special_ids, config, values.seed
            )
            init, mode = Weights.of("co-occurrence", {cooccurrence.NAME: vectors}), "any"
        elif values.init_from_teacher and not is_resumed:
            init, mode = teachers.initial_weights(task.teacher, config, train_files), "any"

        # === Train ===
        last = None
        if values.do_train:
            if tokenizer and current().is_chief:  # first, so that a killed run's directory is complete
                tokenizer_files.write(tokenizer, files.make_dirs(run.output_dir))
            recorded = flags.to_dict(values) | {
                "conditions": conditions, "max_predictions_per_seq": predictions,
                "num_warmup_steps": warmup,
            }
            if tokenizer:
                recorded["do_lower_case"] = tokenizer.do_lower_case
            if teacher and teacher.metadata.pooling:
                recorded["pooling"] = teacher.metadata.pooling
            evaluations = loop.train(
                task, config, run, optimizer, train_files, eval_files=eval_files, init=init,
                warm_start_mode=mode, flags=recorded,
            )
            last = evaluations[max(evaluations)] if evaluations else None
        if not current().is_chief:
            return

        # === Evaluate the newest checkpoint of output_dir, else --init_checkpoint ===
        if values.do_eval:
            if not last:
                saved = list(checkpoints.list_steps(run.output_dir).values())
                if not saved and init is None:
                    raise FlagError(f"--do_eval: no checkpoint in {run.output_dir}: pass --init_checkpoint")
                weights = checkpoints.open_weights(saved[-1], "output_dir") if saved else init
                last = evaluate.evaluate(task, config, run, eval_files, weights)
                log_results(last.results)
                if saved:
                    evaluate.keep_if_best(task, run, eval_files, saved[-1], last.results)
            log.info("results: %s", write_results(files.make_dirs(run.output_dir), last.results))

        # === The model's card ===
        if values.do_train:
            weights = checkpoints.open_weights(checkpoints.newest_or_best(run.output_dir))
            model_card.of_weights(run.output_dir, weights, config, has_tokenizer=bool(tokenizer))
        log.info("done; checkpoints, metrics.jsonl and TensorBoard summaries: %s", run.output_dir)


def _vocabulary(
    values: flags.FlagValues, config: AlbertConfig, start: Pretrained | None, sources: Sequence[RecordFiles]
) -> FullTokenizer | None:
    """Returns the records' vocabulary: that of the flags, the copy next to the records, or the run's.

    Raises:
      FlagError: it is not the records', the model to start from preprocessed text differently, or there
        is none and the run needs it.
    """
    of_records, digest, path = tokenizer_files.of_records(sources)
    theirs = start.vocabulary if start else Vocabulary()
    file = theirs.spm_model_file or theirs.vocab_file
    if file and of_records.text != theirs.text and digest == tokenizer_digest(
        files.sha256(file), bool(theirs.spm_model_file), of_records.text
    ):
        differing = dataclasses.asdict(theirs.text).items() - dataclasses.asdict(of_records.text).items()
        listed = ", ".join(f"{name}={value}" for name, value in sorted(differing))
        raise FlagError(f"{path}: made without {listed}, which the tokenizer of {start.path} has: "
                        f"make the records with --spm_model_file={file}")
    tokenizer = None
    if values.spm_model_file or values.vocab_file:
        flags.refuse_together(values, "spm_model_file", "vocab_file")
        tokenizer = of_records.override(*flags.vocabulary_given(values)).open()
        if digest not in (None, tokenizer.sha256):
            settings = "".join(f" and this --{name}" for name in flags.text_settings(values))
            raise FlagError(f"{path} was not made with {tokenizer.path}{settings}: pass the records' "
                            "vocabulary, or leave it out")
    else:
        for vocabulary in (of_records, tokenizer_files.find(values.output_dir)):
            if not tokenizer and vocabulary and not vocabulary.problem:
                opened = vocabulary.open()
                tokenizer = opened if digest in (None, opened.sha256) else None
    if tokenizer:
        check_vocabulary(tokenizer, config)
        log.info("vocabulary: %s", tokenizer.path)
        return tokenizer
    if values.teacher or values.init_embeddings != "random":
        name = "teacher" if values.teacher else "init_embeddings=cooccurrence"
        raise FlagError(f"--{name} needs the records' vocabulary: pass --spm_model_file or --vocab_file")
    log.warning("%s will have no vocabulary: pass that of %s with --spm_model_file or --vocab_file",
                values.output_dir, path)
    return None


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()
