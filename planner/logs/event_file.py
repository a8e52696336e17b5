"""Scalars out of TensorBoard's event files, without the tensorboard package.

    record   length (uint64), its checksum (uint32), `length` bytes, their checksum (uint32)
    bytes    protobuf `Event`: 1 wall_time (double), 2 step (int64), 5 summary
    summary  repeated 1 value: 1 tag (string), 2 simple_value (float), which SummaryWriter writes

Little-endian. Checksums are CRC-32C, which the standard library does not have: they are passed
over, and a record that does not parse ends the file, as one that is still being written does.
Of a file longer than `MAX_EVENT_BYTES` the beginning is read: a record is found by the one before.

Source: tensorflow `core/lib/io/record_writer.h`, `core/util/event.proto`,
`core/framework/summary.proto`.
"""

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

MAX_EVENT_BYTES = 16 * 2**20
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Field = tuple[int, int, Any]
"""Number, wire type, and value: an integer, or bytes."""


def scalars(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """A row for each scalar: step, wall time, and the value under its tag."""
    for data in _records(file):
        try:
            yield from _scalars(data)
        except (IndexError, struct.error, ValueError):
            return


def _records(file: BinaryIO) -> Iterator[bytes]:
    read = 0
    while len(head := file.read(12)) == 12:
        (length,) = struct.unpack("<Q", head[:8])
        read += 16 + length
        if read > MAX_EVENT_BYTES:
            return
        data = file.read(length)
        if len(data) < length or len(file.read(4)) < 4:
            return
        yield data


def _scalars(event: bytes) -> Iterator[dict[str, Any]]:
    wall_time_s, step, summaries = None, 0, []
    for number, kind, value in _fields(event):
        if (number, kind) == (1, FIXED64):
            (wall_time_s,) = struct.unpack("<d", value)
        elif (number, kind) == (2, VARINT):
            step = value
        elif (number, kind) == (5, BYTES):
            summaries.append(value)
    for summary in summaries:
        for number, kind, value in _fields(summary):
            if (number, kind) == (1, BYTES) and (scalar := _scalar(value)):
                yield {"step": step, "wall_time": wall_time_s, scalar[0]: scalar[1]}


def _scalar(value: bytes) -> tuple[str, float] | None:
    found = {(number, kind): part for number, kind, part in _fields(value)}
    tag, simple = found.get((1, BYTES)), found.get((2, FIXED32))
    if tag is None or simple is None:
        return None
    return tag.decode("utf-8"), struct.unpack("<f", simple)[0]


def _fields(data: bytes) -> Iterator[Field]:
    """The fields of one protobuf message; raises `ValueError` or `IndexError` for what is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind not in (FIXED64, BYTES, FIXED32):
            raise ValueError(f"wire type {kind}")
        length = {FIXED64: 8, FIXED32: 4}.get(kind)
        if length is None:
            length, at = _varint(data, at)
        if at + length > len(data):
            raise IndexError
        yield number, kind, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number without end")
