"""Metrics as the benchmarks define them: numpy in, numbers out, no TensorFlow."""
