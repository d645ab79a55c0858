"""Writes graphs in ONNX's format, and computes them with onnxruntime, in bfloat16 with OpenVINO.

The package `onnx`, whose import takes a quarter of a second, is not needed.
"""

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from albert.records.protobuf import field, varint

_VERSIONS = 9, 20  # of the format and of the operations; of 2023
# In order of preference. Others that onnxruntime may offer compile a program for each shape.
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")
TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9}  # ONNX's numbers of types

Size = str | int  # of a dimension: any, which has a name, or a number
Call = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]  # of a model, from its inputs by name


def _number(number: int, value: int) -> bytes:
    """Returns a protobuf field of an integer."""
    return varint(number << 3) + varint(value % (1 << 64))


class Graph:
    """Nodes and constants of a graph. A value is its name; numbers and lists become constants."""

    def __init__(self):
        self._nodes: list[bytes] = []
        self._numbers = itertools.count()  # of values
        self.num_bytes = 0  # of the constants
        self._constants: dict[str, list[Any]] = {}  # the parts of each one's bytes

    def constant(self, name: str, make: Callable[[], np.ndarray]) -> str:
        """Returns the name of a constant, which is made once."""
        if name not in self._constants:
            array = np.asarray(make(), order="C")
            start = b"".join([
                *(_number(1, size) for size in array.shape), _number(2, TYPES[array.dtype.name]),
                field(8, name.encode()), _start(9, array.nbytes),
            ])
            # Joined once at the end: weights are large.
            content = array.reshape(-1).view(np.uint8).data
            self.num_bytes += array.nbytes
            self._constants[name] = [_start(5, len(start) + array.nbytes) + start, content]
        return name

    def op(self, kind: str, *inputs: Any, outputs: int | Sequence[str] = 1, **attributes: Any) -> Any:
        """Adds an operation; returns its output, or a list of several.

        Args:
          outputs: their number or their names.
        """
        if isinstance(outputs, int):
            outputs = [f"{kind}_{next(self._numbers)}" for _ in range(outputs)]
        self._nodes.append(field(1, b"".join([
            *(field(1, self._name(one).encode()) for one in inputs),
            *(field(2, name.encode()) for name in outputs), field(4, kind.encode()),
            *(field(5, _attribute(*pair)) for pair in attributes.items()),
        ])))
        return outputs[0] if len(outputs) == 1 else outputs

    def _name(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        array = np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        return self.constant(f"{array.dtype}{array.tolist()}", lambda: array)

    def repeated(self, count: int, x: str, sizes: Sequence[Size], body: Callable[[str], str]) -> str:
        """Returns x, whose dimensions have these sizes, after `count` times `body`, in a loop."""
        outside, self._nodes = self._nodes, []
        number, more, state = (f"{name}_{next(self._numbers)}" for name in ("number", "more", "state"))
        still, result = self.op("Identity", more), body(state)
        inside = [
            *self._nodes, field(2, b"loop"), field(11, _tensor(number, "int64", ())),
            field(11, _tensor(more, "bool", ())), field(11, _tensor(state, "float32", sizes)),
            field(12, _tensor(still, "bool", ())), field(12, _tensor(result, "float32", sizes)),
        ]
        self._nodes = outside
        return self.op("Loop", count, "", x, body=b"".join(inside))

    def serialized(
        self, inputs: Mapping[str, Sequence[Size]], outputs: Mapping[str, Sequence[Size]],
        metadata: Mapping[str, str],
    ) -> bytes:
        """Returns the file.

        Args:
          inputs: the dimensions of each; all are int32.
          outputs: of float32, but int32 if they are named `*_index`.
        """
        graph = [*self._nodes, field(2, b"albert"), *itertools.chain(*self._constants.values())]
        graph += [field(11, _tensor(name, "int32", sizes)) for name, sizes in inputs.items()]
        for name, sizes in outputs.items():
            kind = "int32" if name.endswith("_index") else "float32"
            graph.append(field(12, _tensor(name, kind, sizes)))
        pairs = (field(1, key.encode()) + field(2, value.encode()) for key, value in metadata.items())
        return b"".join([
            _number(1, _VERSIONS[0]), field(2, b"albert"), field(8, _number(2, _VERSIONS[1])),
            *(field(14, pair) for pair in pairs), _start(7, sum(map(len, graph))), *graph,
        ])


def _start(number: int, size: int) -> bytes:
    """Returns the start of a field of bytes."""
    return varint(number << 3 | 2) + varint(size)


def _tensor(name: str, kind: str, sizes: Sequence[Size]) -> bytes:
    """Returns the description of an input or output."""
    shape = b"".join(
        field(1, field(2, size.encode()) if isinstance(size, str) else _number(1, size))
        for size in sizes
    )
    kind = _number(1, TYPES[kind]) + field(2, shape)
    return field(1, name.encode()) + field(2, field(1, kind))


def _attribute(name: str, value: Any) -> bytes:
    start = field(1, name.encode())
    if isinstance(value, float):
        return start + varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return start + _number(3, value) + _number(20, 2)
    if isinstance(value, str):
        return start + field(4, value.encode()) + _number(20, 3)
    if isinstance(value, bytes):  # a graph
        return start + field(6, value) + _number(20, 5)
    return start + b"".join(_number(8, one) for one in value) + _number(20, 7)


def opened(content: bytes) -> Call:
    """Returns a function that computes the outputs of an ONNX file.

    On a GPU if the package `onnxruntime-gpu` is installed, else on the CPU.
    """
    import onnxruntime  # only here: every command would take longer to start

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    available = onnxruntime.get_available_providers()
    session = onnxruntime.InferenceSession(
        content, options, providers=[name for name in _PROVIDERS if name in available]
    )
    inputs = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]

    def compute(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = session.run(outputs, {name: batch[name] for name in inputs})
        return dict(zip(outputs, values, strict=True))

    return compute


def opened_in_bfloat16(content: bytes) -> Call:
    """Returns the same function in bfloat16, by OpenVINO on the CPU.

    A processor without instructions for bfloat16 computes in float32: it would be slower.
    """
    import openvino

    from albert.runtime.workers import bfloat16_gain

    core = openvino.Core()
    model = core.compile_model(core.read_model(model=content), "CPU", {
        "INFERENCE_PRECISION_HINT": "bf16" if bfloat16_gain() else "f32",
        "ENABLE_CPU_PINNING": "NO",  # other processes may use the same cores
    })
    inputs = [one.any_name for one in model.inputs]

    def compute(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        # A request of its own, as other threads may compute at the same time.
        found = model.create_infer_request().infer({name: batch[name] for name in inputs})
        # An output is also called by operations, as in Add_93; capitals precede small letters.
        return {max(output.names): values for output, values in found.items()}

    return compute
