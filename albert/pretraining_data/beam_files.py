"""Files wherever Beam's file systems reach; without Beam, on this machine."""

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from albert.errors import DataError, first_line
from albert.records import records
from albert.storage import files, temporaries
from albert.text import text_files


def is_remote(path: str) -> bool:
    """Whether a path is of another file system than this machine's."""
    return "://" in path


def find_inputs(pattern: str, flag: str) -> list[str]:
    """Does what `files.find_files` does, for remote files too."""
    if not is_remote(pattern):
        return files.find_files(pattern, flag)
    found = sorted(found.path for found in match(pattern, flag))
    if not found:
        raise DataError(f"--{flag}: no file matches {pattern}")
    return found


def size_of_input(path: str) -> int:
    """Returns the bytes of a file that `find_inputs` found."""
    if not is_remote(path):
        return os.path.getsize(path)
    return match(path, "input_file")[0].size_in_bytes


def open_input(path: str, flag: str) -> contextlib.AbstractContextManager[BinaryIO]:
    """Does what `text_files.open_raw` does, for remote files too."""
    return open_file(path) if is_remote(path) else text_files.open_raw(path, flag)


def refuse_foreign_output(path: str) -> None:
    """Does what `records.refuse_foreign` does, for remote files too."""
    if not is_remote(path):
        records.refuse_foreign(path)
        return
    where = records.manifest_path(path)
    if file_systems().exists(path) and not file_systems().exists(where):
        raise DataError(
            f"{path} is not overwritten: there is no {where}; remove it, or name another"
        )


def match(pattern: str, flag: str) -> list:
    try:
        return file_systems().match([pattern])[0].metadata_list
    except Exception as error:  # whatever a file system's library raises
        raise DataError(f"--{flag}: {pattern}: {first_line(error)}") from error


@contextlib.contextmanager
def working_directories(outputs: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yields {directory of outputs: a temporary one in it}; the temporary ones go at the end."""
    works: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for path in outputs:
            directory, work = os.path.dirname(path), f"{path}.work"
            if directory in works:
                continue
            if is_remote(path):
                works[directory] = temporaries.temporary_name(work)
                stack.callback(delete_remote, works[directory])
            else:
                works[directory] = stack.enter_context(temporaries.temporary_dir(work))
        yield works


def file_systems():
    from apache_beam.io.filesystems import FileSystems

    if FileSystems._pipeline_options is None:  # without any, S3 is not opened
        from apache_beam.options.pipeline_options import PipelineOptions

        FileSystems.set_options(PipelineOptions([]))
    return FileSystems


def open_file(path: str) -> BinaryIO:
    from apache_beam.io.filesystem import CompressionTypes

    try:
        return file_systems().open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or first_line(error)}") from error


@contextlib.contextmanager
def create(path: str) -> Iterator[BinaryIO]:
    """Yields a file that becomes `path` when the block ends well.

    Two machines may do the same piece of work, one of them given up for lost:
    each writes a file of its own, and the last one's name counts.
    """
    from apache_beam.io.filesystem import CompressionTypes

    stem, _, ending = path.rpartition(".")
    own = f"{stem}.{uuid.uuid4().hex}.{ending}"
    with file_systems().create(own, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
        yield stream
        if not is_remote(path):
            stream.flush()
            os.fsync(stream.fileno())
    file_systems().rename([own], [path])


def write(path: str, content: bytes) -> None:
    with create(path) as stream:
        stream.write(content)


def read(path: str) -> bytes:
    with open_file(path) as stream:
        return stream.read()


def delete(path: str) -> None:
    """Removes a file, if it is there."""
    if file_systems().exists(path):
        file_systems().delete([path])


def delete_remote(directory: str) -> None:
    """Removes a directory, which in some file systems is but a part of its files' names."""
    for item in match(f"{directory}/*", "output_file"):
        delete(item.path)
    delete(directory)
