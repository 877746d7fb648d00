"""Weights' files made without safetensors."""

import json
import struct
from collections.abc import Mapping, Sequence


def safetensors_file(tensors: Mapping[str, Sequence[float]]) -> bytes:
    """Return a file with vectors of 32-bit floats."""
    header, data = {}, b""
    for name, values in tensors.items():
        begin, data = len(data), data + struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
