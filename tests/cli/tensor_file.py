"""Safetensors files and 16-bit floats for the tests, written independently of the program's."""

import json
import struct

import numpy as np

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


def raw_file(header, data=b""):
    """The bytes of a file from a header, as text or as a dict."""
    text = header if isinstance(header, str) else json.dumps(header)
    return struct.pack("<Q", len(text.encode())) + text.encode() + data


def write(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, data = {"__metadata__": {"by": "a test"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    path.write_bytes(raw_file(header, data))


def read(path):
    """name -> (dtype, shape, bytes); asserts that the file keeps to the format."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0, f"the data begin at byte {8 + length}, no multiple of 8"
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        assert begin == end, f"hole or overlap before {name}"
        assert stop - begin == SIZES[entry["dtype"]] * int(
            np.prod(entry["shape"], dtype=np.int64)
        ), name
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), data[begin:stop])
        end = stop
    assert end == len(data), "bytes at the end belong to no tensor"
    return tensors


def encode(dtype, values):
    """The nearest values of a dtype, as bytes."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


def decode(tensor):
    dtype, shape, content = tensor
    if dtype == "F32":
        return np.frombuffer(content, np.float32).reshape(shape)
    if dtype == "F16":
        return np.frombuffer(content, np.float16).reshape(shape).astype(np.float32)
    bits = np.frombuffer(content, np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).reshape(shape)
