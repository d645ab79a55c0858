"""The answers of `predict` in a file: kept as they are computed, published when they are complete.

No TensorFlow.
"""

import glob
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from albert.cli import answering
from albert.storage import files, locks

log = logging.getLogger("albert")

Answer = Any  # as JSON; None for an input without text


def identity_of(inputs: Sequence[Any], origin: str, **settings: Any) -> str:
    """Returns a digest of everything on which answers depend.

    Args:
      inputs: as JSON.
      origin: path, or prefix of the paths, of the model's weights.
    """
    weights = [
        (path, os.stat(path).st_size, os.stat(path).st_mtime_ns)
        for path in sorted(glob.glob(glob.escape(origin) + "*"))
    ]
    text = json.dumps([inputs, weights, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write(
    path: str, identity: str, count: int, answers_from: Callable[[int], Iterable[Answer]],
    publish: Callable[[Iterator[Answer]], None] | None = None,
) -> None:
    """Publishes `count` answers in a file, after those that an interrupted run computed.

    Until all are there, they are in the file's work folder.

    Args:
      identity: of `identity_of`; answers of another identity are dropped, which is logged.
      answers_from: computes the answers from a number on.
      publish: writes all answers to `path`, by default as lines of JSON.
    """
    job = os.path.join(locks.work_folder_of(path), "job")
    if os.path.exists(job) and open(job, encoding="utf-8").read() != identity:
        log.warning("%s: input, model or flags are not those of the interrupted run: starts again", path)
    with locks.work_folder([path], identity) as folder:
        kept = os.path.join(folder, "answers.jsonl")
        with open(kept, "a+b") as stream:
            done = _complete_lines(stream)
            if done:
                log.info("%s: resumes after %s of %s answers", path, f"{done:,}", f"{count:,}")
            try:
                for answer in answers_from(done):
                    stream.write(answering.as_json(answer).encode("utf-8", "replace") + b"\n")
                    stream.flush()
            except BaseException:
                if not os.path.getsize(kept):  # nothing to resume
                    os.unlink(kept)
                raise
        if publish:
            with open(kept, "rb") as lines:
                publish(map(json.loads, lines))
        else:
            files.publish_copy(kept, path)


def _complete_lines(stream) -> int:
    """Returns the number of lines, and removes the part of one at the end."""
    stream.seek(0)
    content = stream.read()
    stream.truncate(content.rfind(b"\n") + 1)
    return content.count(b"\n")
