"""The text of a log's file: UTF-8, or UTF-16 by its byte order mark, as it is or in gzip.

Of a longer file only the end is kept, where the run is in its steady state, and its beginning.

Source: RFC 1952 (2.3.1, gzip's first bytes), RFC 2781 (3.2, byte order marks).
"""

import gzip
import stat
import zlib
from pathlib import Path
from typing import BinaryIO

MAX_LOG_BYTES = 4 * 2**20  # 10,000 lines of Megatron-LM
BEGINNING_BYTES = 2**18
MAX_UNPACKED = 2**28  # of a file in gzip, which is unpacked from its beginning: half a second
_GZIP = b"\x1f\x8b"
_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


class NoText(ValueError):
    """What is at a path has no text that is read, in a few words."""


def end_and_beginning(path: Path) -> tuple[str, str]:
    """The end of the file, and its beginning where that is not in it; raises `NoText`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise NoText("not a file; name the log itself")
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            data, head = _unpacked(file) if packed else _ends(file)
    except OSError as error:
        raise NoText(f"cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error):
        raise NoText("gzip that is cut or damaged; name the log itself") from None
    encoding = _MARKS.get((head or data)[:2], "utf-8")
    text, beginning = (
        each.decode(encoding, errors="replace").removeprefix("\ufeff") for each in (data, head)
    )
    if "\0" in text:
        raise NoText("a binary file")
    return text, beginning


def _ends(file: BinaryIO) -> tuple[bytes, bytes]:
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(BEGINNING_BYTES) if size > MAX_LOG_BYTES else b""
    file.seek(_start_of_end(size))
    return file.read(MAX_LOG_BYTES), head


def _unpacked(file: BinaryIO) -> tuple[bytes, bytes]:
    data, dropped, head = bytearray(), 0, b""
    with gzip.GzipFile(fileobj=file) as inside:
        while part := inside.read(MAX_LOG_BYTES):
            head = head or part[:BEGINNING_BYTES]
            data += part
            start = _start_of_end(dropped + len(data))
            del data[: start - dropped]
            dropped = start
            if dropped > MAX_UNPACKED:
                raise NoText(f"gzip of over {MAX_UNPACKED >> 20} MiB; unpack it and name the log")
    return bytes(data), head if dropped else b""


def _start_of_end(size: int) -> int:
    """Where the part that is kept begins: at a whole character of UTF-16."""
    return max(0, size - MAX_LOG_BYTES + 1) // 2 * 2


def finished(text: str) -> str:
    """The lines that end, and a last one that ends as JSON does: any other may be cut."""
    if text.endswith(("\n", "\r", "}", "]")):
        return text
    return text[: max(text.rfind("\n"), text.rfind("\r")) + 1]
