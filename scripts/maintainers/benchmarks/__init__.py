"""What `scripts/maintainers/benchmark.py` is made of: sides in processes of their own, which take turns."""
