"""Labelled texts to try a classifier on: what a Python function does, and the kind of its module.

`python -m albert.examples train` and `test` print 500 and 300 rows as CSV. The texts are from the
docstrings of Python's standard library (PSF licence, https://docs.python.org/3/license.html);
scripts/maintainers/make_examples.py of commit 267f3c0d made the files.
"""
