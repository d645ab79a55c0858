"""What is done in a directory of temporary files, so that a run goes on with what a killed one left.

One process appends a line for each file that is whole and on the disk. A line that is torn or
damaged is as if it was not there: its work is done again.
"""

import json
import os
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO

from albert.errors import UserError

NAME = "journal"


class Journal:
    """The journal of one directory, appended to by this process alone."""

    def __init__(self, directory: str):
        self._directory = directory
        self._path = os.path.join(directory, NAME)
        self._done = read_journal(directory)
        self._stream: BinaryIO | None = None

    def __len__(self) -> int:
        """Returns how many files of earlier runs are as they were written."""
        return sum(self.result(name) is not None for name in self._done)

    def result(self, name: str) -> list | None:
        """Returns what was noted of a file in an earlier run, if it is as it was written."""
        return result_of(self._done, self._directory, name)

    def note(self, name: str, result: Sequence[Any]) -> None:
        """Notes that a file is on the disk.

        Raises:
          UserError: it cannot be written.
        """
        size = os.path.getsize(os.path.join(self._directory, name))
        text = json.dumps([name, size, list(result)])
        try:
            if self._stream is None:
                self._stream = open(self._path, "ab", buffering=0)
            # Not synced: a note that is lost costs a little work. What comes after a torn one is
            # on a line of its own.
            self._stream.write(f"\n{zlib.crc32(text.encode()):08x} {text}".encode())
        except OSError as error:
            raise UserError(f"cannot write {self._path} ({error.strerror})") from error

    def close(self) -> None:
        """Closes the file."""
        if self._stream is not None:
            self._stream.close()


Notes = dict[str, tuple[int, list]]  # {name of a file: (its bytes, what was noted of it)}


def read_journal(directory: str) -> Notes:
    """Returns the notes of a directory; none if there is no journal."""
    found: Notes = {}
    try:
        with open(os.path.join(directory, NAME), "rb") as stream:
            for line in stream:
                check, _, text = line.rstrip(b"\n").partition(b" ")
                if check == f"{zlib.crc32(text):08x}".encode() and text:
                    name, size, result = json.loads(text)
                    found[name] = size, result
    except OSError:
        pass
    return found


def result_of(notes: Notes, directory: str, name: str) -> list | None:
    """Returns what was noted of a file, if it is as it was written, else None."""
    try:
        size, result = notes[name]
        return result if os.path.getsize(os.path.join(directory, name)) == size else None
    except (KeyError, OSError):
        return None
