"""Masking of records that hold no masks, in pretraining. No engine."""

import logging
from typing import Any

from albert.cli import flags, run_flags
from albert.errors import DataError, FlagError
from albert.pretraining_data import dynamic_masking
from albert.pretraining_data.dynamic_masking import DynamicMasking
from albert.pretraining_data.masking import MaskingSettings, num_to_predict
from albert.records.record_files import RecordFiles

log = logging.getLogger("albert")

_WITHOUT_MASKS = 0.5  # of the sequences that a teacher reads, to learn their embeddings


def num_predictions(values: flags.FlagValues) -> int:
    """Returns --max_predictions_per_seq, by default the number that --masked_lm_budget needs."""
    if not values.masked_lm_budget:
        if name := next((name for name in run_flags.MASKING_FLAGS if values[name].present), None):
            raise FlagError(
                f"--{name} has no effect without --masked_lm_budget: the records hold masks"
            )
        return values.max_predictions_per_seq
    settings = MaskingSettings(values.max_seq_length, values.masked_lm_budget)
    needed = int(num_to_predict(values.max_seq_length, settings))
    given = flags.given(values, "max_predictions_per_seq")
    if given is not None and given < needed:
        raise FlagError(
            f"--max_predictions_per_seq={given} is less than the {needed} predictions of "
            f"{values.masked_lm_budget:g} of {values.max_seq_length} tokens: leave it out, or lower "
            "--masked_lm_budget"
        )
    return needed if given is None else given


def masks(
    values: flags.FlagValues, source: RecordFiles, is_training: bool
) -> DynamicMasking | None:
    """Returns the dynamic masking of these files, or None if they hold masks."""
    pairs = dynamic_masking.files_without_masks(source)
    others = [path for path in source.paths if path not in pairs]
    if pairs and others:
        raise DataError(
            f"--{source.flag}: {pairs[-1]} holds pairs without masks, {others[-1]} does not: "
            "they cannot be read together"
        )
    if not pairs:
        if values.masked_lm_budget and is_training:
            raise DataError(
                f"{others[0]} was not made with --nostatic_masks (or its manifest is lost): leave "
                "--masked_lm_budget at 0"
            )
        if values.teacher:
            raise DataError(f"{others[0]} holds masks: a teacher reads records made with --nostatic_masks")
        return None
    if not values.masked_lm_budget:
        raise DataError(f"{pairs[0]} holds pairs without masks: pass --masked_lm_budget=0.15")
    settings = MaskingSettings(
        num_predictions(values), values.masked_lm_budget,
        **flags.select(values, run_flags.MASKING_FLAGS),
    )
    return dynamic_masking.dynamic_masking(
        source, values.max_seq_length, settings,
        values.seed if is_training else 0,  # evaluations draw the same masks in every run
        _WITHOUT_MASKS if values.teacher else 0.0,
    )


def task_settings(
    values: flags.FlagValues, train_files: RecordFiles | None, eval_files: RecordFiles | None
) -> dict[str, Any]:
    """Returns the arguments of a `PretrainingTask` that depend on records and flags."""
    settings: dict[str, Any] = {
        "max_seq_length": values.max_seq_length,
        "max_predictions_per_seq": num_predictions(values),
        "masks": train_files and masks(values, train_files, True),
        "eval_masks": eval_files and masks(values, eval_files, False),
    }
    objective, *none = dynamic_masking.sentence_objectives(train_files or eval_files)
    settings |= {"sentence_objective": objective, "some_have_no_pair": bool(none)}
    if values.masked_lm_budget and eval_files and not settings["eval_masks"]:
        # --max_predictions_per_seq applies to masks drawn here; masked records have their own.
        settings["eval_predictions_per_seq"] = eval_files.length_of("masked_lm_positions")
        shares = (
            (path, manifest.flags.get("mask_token_share", values.mask_token_share))
            for path, manifest in eval_files.manifests()
        )
        for path, share in shares:
            if share != values.mask_token_share:
                log.warning("%s was made with --mask_token_share=%g, but this run trains with %g: "
                            "compare its results only with those of runs that do the same",
                            path, share, values.mask_token_share)
                break
    return settings
