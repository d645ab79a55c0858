"""Refuses a backend of Keras that albert does not run on. Import it before Keras."""

from albert import engines

engines.require_backend()
