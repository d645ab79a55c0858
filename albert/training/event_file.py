"""Files of scalars that TensorBoard reads: TFRecord frames around `Event` messages."""

import os
import socket
import struct
import time

from albert.records.protobuf import field, varint
from albert.records.tfrecord import frame_records


class EventFile:
    """Appends scalars to a new file in a directory. Raises an OSError where it cannot."""

    def __init__(self, directory: str):
        os.makedirs(directory, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}.v2"
        self.path = os.path.join(directory, name)
        self._stream = open(self.path, "ab")
        self._write(field(3, b"brain.Event:2"))  # file_version

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes an event with these scalars."""
        summary = b"".join(
            # tag, simple_value
            field(1, field(1, name.encode()) + b"\x15" + struct.pack("<f", value))
            for name, value in values.items()
        )
        self._write(b"\x10" + varint(step) + field(5, summary))

    def close(self) -> None:
        self._stream.close()

    def _write(self, content: bytes) -> None:
        wall_time = b"\x09" + struct.pack("<d", time.time())
        self._stream.write(frame_records([wall_time + content]))
        self._stream.flush()
