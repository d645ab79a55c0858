"""ALBERT (A Lite BERT, arXiv 1909.11942) for TensorFlow 2 and Keras 3."""

__version__ = "0.1.0"
