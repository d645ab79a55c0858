"""What a run must share with the checkpoints that it resumes or evaluates. No TensorFlow."""

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from albert.errors import DataError, FlagError
from albert.formats import checkpoints
from albert.formats.metadata import MULTI_LABEL, REGRESSION, Metadata, read_run_state
from albert.formats.pretrained import Layout, layout_of
from albert.storage import files

log = logging.getLogger("albert")

PLAN = "plan.json"  # of a run of pretrain_from_text, in its output directory


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The examples that a run trains on."""

    sha256: str  # of texts and labels, or of record files
    examples: int
    flags: Mapping[str, Any]  # those that select the examples

    def difference(self, run_state: Mapping[str, Any]) -> str:
        """Returns what changed since a run that was trained on other data."""
        flags = run_state.get("flags", {})
        before = flags.get("training_data", {})
        changed = [
            f"--{name} was {flags[name]}, is {value}" for name, value in self.flags.items()
            if name in flags and flags[name] != value
        ]
        if before.get("examples") != self.examples:
            changed.append(f"{before.get('examples')} examples then, {self.examples} now")
        return ", ".join(changed) or f"as many examples, {self.examples}, but other texts, labels or order"


@dataclasses.dataclass(frozen=True)
class Identity:
    """The meaning of the ids in a run's records, and its training data. None is not compared."""

    task: str
    tokenizer_sha256: str | None = None
    do_lower_case: bool | None = None
    labels: tuple[str, ...] | None = None  # in the order of their ids; empty for a regression
    num_choices: int | None = None
    threshold: float | None = None  # given, a text may have several labels
    seed: int | None = None
    training: TrainingData | None = None
    is_split: bool = False  # whether the rest of the training data is evaluated on
    may_continue_to: int = 0  # before this step, other files may follow (as with longer sequences)

    def recorded(self) -> dict[str, Any]:
        """Returns the values that a run records with each checkpoint in addition to its flags."""
        names = ("tokenizer_sha256", "do_lower_case", "num_choices")
        values = {name: getattr(self, name) for name in names}
        if self.training:
            values["training_data"] = {
                "sha256": self.training.sha256, "examples": self.training.examples
            }
        return {name: value for name, value in values.items() if value is not None}

    def check(self, origin: str, is_resumed: bool = False) -> None:
        """Refuses a checkpoint that was trained on other data, or with ids that mean something else.

        What isn't recorded with the checkpoint is not compared. Another task with the same labels
        may evaluate it, but not resume its training. New data may be evaluated, except where
        evaluated rows might have been trained on.
        """
        run_state = read_run_state(origin)
        metadata = Metadata.from_dict(run_state.get("metadata", {}), origin)
        kind, flags = metadata.problem_type, run_state.get("flags", {})
        labels = () if kind == REGRESSION else metadata.label_names
        number_of_labels = {None: None, REGRESSION: None, MULTI_LABEL: "several"}.get(kind, "one")
        for name, before, now, is_of_training in (
            ("task", metadata.task, self.task, True),
            ("number of labels", number_of_labels if self.labels else None,
             "one" if self.threshold is None else "several", False),
            ("label_list", labels, self.labels, False),
            ("do_lower_case", flags.get("do_lower_case"), self.do_lower_case, False),
            # Each option gets a separate logit.
            ("number of options", flags.get("num_choices"), self.num_choices, True),
            ("vocabulary or tokenizer setting", flags.get("tokenizer_sha256"), self.tokenizer_sha256, False),
            ("seed", flags.get("seed"), self.seed, True),
        ):
            is_compared = None not in (before, now) and (is_resumed or not is_of_training)
            if is_compared and not files.is_same_json(before, now):
                what = f"another {name} ({str(before)[:80]}, not {str(now)[:80]})"
                raise FlagError(f"{origin} was trained with {what}: use another --output_dir")
        if self.training and metadata.task == self.task:
            self._check_training(origin, run_state, is_resumed)

    def _check_training(self, origin: str, run_state: Mapping[str, Any], is_resumed: bool) -> None:
        flags = run_state.get("flags", {})
        if flags.get("training_data", {}).get("sha256") == self.training.sha256:
            return
        what = self.training.difference(run_state)
        if is_resumed and run_state.get("step", 0) < self.may_continue_to and any(
            flags.get(name) != value for name, value in self.training.flags.items()
        ):
            log.warning("%s: training continues on other data (%s)", origin, what)
        elif is_resumed or self.is_split:
            raise DataError(f"{origin} was trained on other data ({what}): use another --output_dir")
        else:
            log.warning("%s was trained on other data (%s), which may have the evaluated rows", origin,
                        what)


def check_directory(directory: str, identity: Identity) -> None:
    """Refuses to train in a directory with another model, or with a run whose ids mean other things.

    Call it before writing anything, so that the directory stays unchanged.
    """
    if not os.path.isdir(directory):
        return
    if os.path.lexists(os.path.join(directory, PLAN)):
        raise FlagError(f"--output_dir={directory} holds a run of pretrain_from_text: use another directory")
    steps = checkpoints.list_steps(directory)
    best = os.path.join(directory, checkpoints.BEST)
    is_run = steps or os.path.lexists(os.path.join(directory, "best.json"))
    if layout_of(directory) in (Layout.HUGGING_FACE, Layout.HUB_MODULE) or (
        checkpoints.exists(best) and not is_run
    ):
        raise FlagError(
            f"--output_dir={directory} holds a model that is not a run's checkpoint: use another "
            "directory, or that model would be overwritten, or opened instead of the new one"
        )
    for prefix in _comparable(best, *reversed(steps.values())):
        identity.check(prefix, is_resumed=True)


def _comparable(best: str, *newest_first: str) -> Iterator[str]:
    """Yields the best and the newest checkpoint whose run state is readable."""
    for group in ([best], newest_first):
        for prefix in group:
            try:
                if read_run_state(prefix):
                    yield prefix
                    break
            except DataError:
                continue  # resuming renames it
