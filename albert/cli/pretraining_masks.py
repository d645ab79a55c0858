"""How a pretraining run masks records that hold no masks of their own. No engine."""

import dataclasses
import logging

from albert.cli import flags, run_flags
from albert.errors import DataError, FlagError
from albert.pretraining_data import dynamic_masking
from albert.pretraining_data.dynamic_masking import DynamicMasking
from albert.pretraining_data.masking import MaskingSettings, num_to_predict
from albert.records.record_files import RecordFiles

log = logging.getLogger("albert")


def check_flags(values: flags.FlagValues) -> None:
    """Raises a FlagError for flags without effect, and for too few predictions."""
    if values.masked_lm_budget:
        _set_predictions(values)
        return
    names = ("last_masked_lm_budget", *run_flags.MASKING_FLAGS)
    given = [name for name in names if values[name].present]
    if given:
        raise FlagError(
            f"--{given[0]} has no effect without --masked_lm_budget: the records hold masks"
        )


def _set_predictions(values: flags.FlagValues) -> None:
    """Sets --max_predictions_per_seq to what --masked_lm_budget needs, if it is not given.

    Raises:
      FlagError: fewer are given.
    """
    share = max(values.masked_lm_budget, values.last_masked_lm_budget or 0.0)
    settings = MaskingSettings(values.max_seq_length, share)
    needed = int(num_to_predict(values.max_seq_length, settings))
    given = flags.given(values, "max_predictions_per_seq")
    if given is not None and given < needed:
        raise FlagError(
            f"--max_predictions_per_seq={given} is less than the {needed} predictions of "
            f"{share:g} of {values.max_seq_length} tokens: leave it out, or lower "
            "--masked_lm_budget"
        )
    values.max_predictions_per_seq = needed if given is None else given


def masks(
    values: flags.FlagValues, use: str, source: RecordFiles, num_rows: int
) -> DynamicMasking | None:
    """Returns how the masks of these files are drawn, or None if they hold masks.

    Args:
      use: `masks` of the training, or `eval_masks`.
      num_rows: sequences that the whole training reads.

    Raises:
      DataError: records with and without masks together, or not those that the flags ask for.
    """
    # An evaluation draws the same masks in every run.
    seed = values.seed if use == "masks" else 0
    pairs = dynamic_masking.files_without_masks(source)
    others = [path for path in source.paths if path not in pairs]
    if pairs and others:
        raise DataError(
            f"--{source.flag}: {pairs[-1]} holds pairs without masks, {others[-1]} does not: "
            "they cannot be read together"
        )
    if not pairs:
        if values.masked_lm_budget and use == "masks":
            raise DataError(
                f"{others[0]} was not made with --nostatic_masks (or its manifest is lost): leave "
                "--masked_lm_budget at 0"
            )
        return None
    if not values.masked_lm_budget:
        raise DataError(f"{pairs[0]} holds pairs without masks: pass --masked_lm_budget=0.15")
    first, last = values.masked_lm_budget, values.last_masked_lm_budget or values.masked_lm_budget
    is_training = use == "masks"
    settings = MaskingSettings(
        values.max_predictions_per_seq, first if is_training else last,
        **flags.select(values, run_flags.MASKING_FLAGS),
    )
    found = dynamic_masking.dynamic_masking(source, values.max_seq_length, settings, seed)
    if not is_training or first == last:
        return found
    return dataclasses.replace(found, last_masked_lm_prob=last, num_records=num_rows)


def compare(values: flags.FlagValues, source: RecordFiles) -> None:
    """Warns where an evaluation asks for another kind of masks than training shows."""
    for path, manifest in source.manifests():
        share = manifest.flags.get("mask_token_share", values.mask_token_share)
        if share != values.mask_token_share:
            log.warning(
                "%s was made with --mask_token_share=%g, and this run trains with %g: its figures "
                "compare with no run that trains otherwise", path, share, values.mask_token_share,
            )
            return
