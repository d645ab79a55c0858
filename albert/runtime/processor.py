"""The processor's support for bfloat16."""

# Instructions, as named in /proc/cpuinfo, and the speed-up of a training step in bfloat16 over
# float32: measured with TensorFlow on two cores, see docs/evidence/performance.md.
_GAINS = {"amx_bf16": 2.0, "avx512_bf16": 1.7}


def bfloat16_gain(cpuinfo: str = "/proc/cpuinfo") -> float | None:
    """Returns the speed-up of training in bfloat16 on this machine; None if there is none."""
    try:
        with open(cpuinfo) as stream:
            words = {word for line in stream if line.startswith("flags") for word in line.split()}
    except OSError:
        return None
    return next((gain for name, gain in _GAINS.items() if name in words), None)
