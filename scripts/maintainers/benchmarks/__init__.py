"""The parts of `scripts/maintainers/benchmark.py`: sides that run in separate processes and take turns."""
