"""Values that change during a run, given as VALUE:STEP,...: each applies up to its STEP.

After the last STEP a final value applies, which is given separately.
"""

from albert.errors import FlagError

Schedule = tuple[tuple[int, int], ...]  # (value, last step for which it holds), in order


def read(text: str | None, flag: str, what: str) -> Schedule:
    """Returns the schedule that a flag gives.

    Args:
      what: the name of the value, such as LAYERS.

    Raises:
      FlagError: the text is not such a list.
    """
    if not text:
        return ()
    try:
        stages = [tuple(map(int, stage.split(":"))) for stage in text.split(",")]
        values, ends = zip(*stages, strict=True)
    except ValueError as error:
        raise FlagError(f"--{flag}={text}: give {what}:STEP,{what}:STEP,...") from error
    if list(ends) != sorted(set(ends)) or ends[0] < 1 or min(values) < 1:
        raise FlagError(f"--{flag}={text}: steps must increase, and {what.lower()} be at least 1")
    return tuple(stages)
