"""Rejects Keras backends that albert does not support. Import it before Keras."""

from albert import engines

engines.require_backend()
