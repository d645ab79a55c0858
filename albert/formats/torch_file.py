"""Converts PyTorch's `pytorch_model.bin` to safetensors, in a separate process."""

import os
import subprocess
import sys

from albert.errors import CheckpointError
from albert.formats import cache
from albert.storage import files

# The error prints it, to be run elsewhere. weights_only builds tensors and nothing else; that of earlier
# versions can be made to corrupt memory (CVE-2026-24747).
_CONVERT = (
    "import sys, torch; from safetensors.torch import save_file; source, target = sys.argv[1:]; "
    "assert torch.__version__ >= (2, 10), 'PyTorch is older than 2.10'; "
    "save_file({name: value.clone().contiguous() for name, value in "
    "torch.load(source, map_location='cpu', weights_only=True).items()}, target)"
)


def converted(path: str) -> str:
    """Returns the safetensors file of a `pytorch_model.bin`, made once, in the cache.

    Raises:
      CheckpointError: PyTorch is not installed; the file is damaged, or holds anything but tensors.
    """

    def fill(folder: str) -> None:
        command = [sys.executable, "-c", _CONVERT, path, os.path.join(folder, "model.safetensors")]
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace"
        )
        if ran.returncode:
            # The last error is the unpickler's; what stands around it is advice to run the file's code.
            errors = [line for line in ran.stderr.splitlines() if "rror: " in line]
            reason = [f"PyTorch ended with {ran.returncode}", *errors][-1]
            reason = reason.partition(" was not an allowed global")[0]
            raise CheckpointError(
                f"cannot read {path}: {reason}: convert it with PyTorch 2.10 or later: "
                f'python -c "{_CONVERT}" pytorch_model.bin model.safetensors'
            )

    try:
        folder = cache.cached("pytorch", files.sha256(path), fill)
    except OSError as error:
        raise CheckpointError(f"cannot convert {path}: {error}") from error
    return os.path.join(folder, "model.safetensors")
