"""Makes one-line mistakes in copies of the repository, and checks that a fast test fails on each.

  python scripts/maintainers/mutations.py --only=storage

Prints a line for each mutation: the test that failed, or SURVIVED. Exits with 1 if any survived.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

REPO = pathlib.Path(__file__).resolve().parents[2]


class Mutation(NamedTuple):
    """A mistake: `old`, which is in the file once, becomes `new`; one of the test modules fails."""

    file: str  # below albert/
    old: str
    new: str
    tests: str  # their names


CRASHES, MASKS = "test_crashes", "test_masking test_pairs test_pair_records"
MUTATIONS = [Mutation(*row) for row in (
    # What a power cut or a kill leaves
    ("storage/files.py", "    for source, _ in moves:\n        fsync(source)\n", "", CRASHES),
    ("storage/files.py", "os.replace(source, path)", "shutil.copyfile(source, path)", CRASHES),
    ("storage/files.py", "(moves[:-1], moves[-1:])", "(moves[-1:], moves[:-1])", CRASHES),
    ("storage/files.py", "        _fsync_names(path for _, path in group)\n", "", CRASHES),
    ("storage/files.py", "    _fsync_names(removed)\n", "", CRASHES),
    ("storage/files.py", "for name in (*names, *directories):", "for name in names:", CRASHES),
    ("storage/files.py", "                fsync(os.path.dirname(path))\n", "", CRASHES),
    ("storage/locks.py", "        fsync(os.path.dirname(folder))", "        pass", CRASHES),
    ("pretraining_data/pipeline.py", "                os.fsync(stream.fileno())\n", "", CRASHES),
    ("pretraining_data/pipeline.py", "            stream.truncate(output.bytes)\n", "", CRASHES),
    ("pretraining_data/outputs.py", "        records.remove_manifest(output.path)\n",
     "        pass\n", CRASHES + " test_interrupted_records"),
    # Masks and pairs
    ("pretraining_data/masking.py", "* special_ids.vocab_size", "* (special_ids.vocab_size - 1)",
     MASKS),
    ("pretraining_data/masking.py", "weights = 1.0 / np.arange(1, ", "weights = 0.5 ** np.arange(1, ",
     MASKS),
    ("pretraining_data/masking.py", "np.minimum(settings.max_predictions_per_seq, np.maximum(1, wanted))",
     "np.minimum(settings.max_predictions_per_seq, wanted)", MASKS),
    ("pretraining_data/masking.py", "number < share + (1 - share) / 2", "number < share + (1 - share) / 3",
     MASKS),
    ("pretraining_data/masking.py", "return _unpack_taken(taken, width) & ~covered, is_first",
     "return _unpack_taken(taken, width), is_first", MASKS),
    ("pretraining_data/masking.py", "if not settings.mask_across_segments:\n            starts_word",
     "if False:\n            starts_word", MASKS),
    ("pretraining_data/dynamic_masking.py", " & (segments[:, 1] > 0)", "", MASKS),
    ("pretraining_data/dynamic_masking.py", "np.minimum(positions / self.num_records, 1.0)",
     "positions / self.num_records", MASKS),
    ("pretraining_data/pairs.py", '"both": (0.25, 0.25)', '"both": (0.25, 0.1875)', MASKS),
    ("pretraining_data/pairs.py", "rng.random() < settings.short_seq_prob",
     "rng.random() > settings.short_seq_prob", "test_pairs"),
    ("pretraining_data/held_out.py", "self._due[size] -= characters", "self._due[size] = 0",
     "test_held_out"),
    # Records and batches
    ("records/data_order.py", 'child_seed(seed, "order", epoch))', 'child_seed(seed, "order", 0))',
     "test_data_order test_batches"),
    ("records/data_order.py", 'child_seed(seed, "order", epoch, group)', 'child_seed(seed, "order", epoch)',
     "test_data_order test_batches"),
    ("records/data_order.py", "first = position + worker", "first = position",
     "test_data_order test_batches"),
    ("records/tfrecord.py", "if len(starts) != count or end != size:", "if len(starts) != count:",
     "test_records test_batches test_damage"),
    ("records/tfrecord.py", "return size if masked_crc32c(header[:8]) == crc else None", "return size",
     "test_records test_batches test_damage"),
    ("records/packing.py", "np.where(mask > 0, numbers, -numbers)", "np.broadcast_to(numbers, mask.shape)",
     "test_packing"),
    ("records/packing.py", "read = np.maximum(read, positions.max(axis=1) + 1)",
     "read = np.maximum(read, positions.max(axis=1))", "test_packing test_input_pipeline"),
    ("records/batches.py", "rows = max(rows // micro_batches, ", "rows = max(rows, ", "test_batches"),
    # Text and tokens
    ("text/documents.py", "counts.cut_documents += not is_end", "counts.cut_documents += is_end",
     "test_create_pretraining_data test_corpus_files"),
    ("text/documents.py", "is_end |= is_line_end and is_blank and layout != FILES",
     "is_end |= is_line_end and is_blank", "test_create_pretraining_data test_corpus_files"),
)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="part of the file or the mutation")
    only = parser.parse_args().only
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "repository")
        shutil.copytree(REPO, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__"))
        os.symlink(REPO.parent / "shared", pathlib.Path(folder, "shared"))
        for mutation in MUTATIONS:
            if only in mutation.file or only in mutation.old:
                killer = killer_of(mutation, copy)
                survivors += killer is None
                change = f"{mutation.old.strip()} -> {mutation.new.strip() or '(nothing)'}"
                print(f"{mutation.file}: {change}: {killer or 'SURVIVED'}", flush=True)
    return survivors > 0


def killer_of(mutation: Mutation, copy: pathlib.Path) -> str | None:
    """Returns the first test that fails with the mutation; None if none does."""
    path = copy / "albert" / mutation.file
    text = path.read_text("utf-8")
    if text.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.file}: not there, or there twice: {mutation.old}")
    path.write_text(text.replace(mutation.old, mutation.new), "utf-8")
    modules = [next((copy / "tests").rglob(f"{name}.py")) for name in mutation.tests.split()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *modules], cwd=copy, capture_output=True,
        text=True, env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    path.write_text(text, "utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) tests/(.+?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode and not failed:
        raise SystemExit(f"{mutation.file}: the tests did not run:\n{done.stdout}\n{done.stderr}")
    return failed and failed[1]


if __name__ == "__main__":
    sys.exit(main())
