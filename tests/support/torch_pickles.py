"""Files as `torch.save` writes them, written without PyTorch."""

import io
import zipfile
from typing import Any, NamedTuple


class Name(NamedTuple):
    """A class or function that a pickle names."""

    module: str
    name: str


class Storage(NamedTuple):
    """A part of the file, as a pickle names it."""

    key: str
    count: int
    kind: str = "FloatStorage"


class Call(NamedTuple):
    """A call in a pickle, and the state that its opcode BUILD then gives to the result."""

    function: Any
    arguments: tuple
    state: Any = None


CONTENT = bytes(range(1, 91)) * 44  # of each storage: 990 floats


def tensor(shape=(9,), strides=(1,), offset=0, storage=Storage("0", 990), state=None) -> Call:
    rebuild = Name("torch._utils", "_rebuild_tensor_v2")
    ordered = Call(Name("collections", "OrderedDict"), ())
    return Call(rebuild, (storage, offset, shape, strides, False, ordered), state)


def pickled(value: Any) -> bytes:
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    """Returns the opcodes that put a value on the stack, in the order in which PyTorch writes them."""
    match value:
        case None | True | False:
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        case Name(module, name):
            return f"c{module}\n{name}\n".encode()
        case Storage(key, count, kind):
            return _opcodes(("storage", Name("torch", kind), key, "cpu", count)) + b"Q"
        case Call(function, arguments, state):
            build = b"" if state is None else _opcodes(state) + b"b"
            return _opcodes(function) + _opcodes(arguments) + b"R" + build
        case int():
            number = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + bytes([len(number)]) + number
        case str():
            return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()
        case dict():
            items = b"".join(_opcodes(key) + _opcodes(x) for key, x in value.items())
            return b"}(" + items + b"u"
    return b"(" + b"".join(map(_opcodes, value)) + b"t"


def torch_zip(pickle: bytes, storages: dict[str, bytes] | None = None) -> bytes:
    """Returns the file that `torch.save` writes, by default with one storage of CONTENT."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/byteorder", "little")
        for key, content in (storages or {"0": CONTENT}).items():
            archive.writestr(f"archive/data/{key}", content)
        archive.writestr("archive/version", "3\n")
    return out.getvalue()
