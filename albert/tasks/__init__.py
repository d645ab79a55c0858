"""Tasks: what distinguishes one experiment from another. Read `task.py` first."""
