"""The only home of 1e9 and 2**30, and how bytes, seconds and bandwidths are written by people."""

import re
from collections.abc import Iterable
from itertools import groupby

GB = 1e9
TB = 1e12
GIB = 2**30
MIB = 2**20
TFLOPS = 1e12
TRILLION = 1e12
SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86400.0


def format_bytes(size_bytes: float) -> str:
    """`size_bytes` in GiB, as memory is always shown; in MiB what would be a zero of these."""
    if 0 < abs(size_bytes) < 0.05 * GIB:
        return f"{size_bytes / MIB:.3g} MiB"
    return f"{size_bytes / GIB:,.1f} GiB"


def format_seconds(seconds: float) -> str:
    """`seconds` with the unit that keeps three digits readable; no sign before a rounded zero."""
    if seconds < 0:
        shown = format_seconds(-seconds)
        return shown if shown == "0 us" else f"-{shown}"
    if seconds >= 999.995:  # what two digits round up to 1000
        return f"{seconds:,.0f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} us"


def format_count(count: float) -> str:
    """`count` with a K, M, B or T suffix (powers of 1000)."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(count) >= 0.9995 * scale:  # what three digits round up to it
            return f"{count / scale:.3g}{suffix}"
    return f"{count:g}"


def format_probability(probability: float) -> str:
    """In whole per cent behind its preposition: "of 87%"; never as sure as 0% or 100%."""
    said = f"{probability:.0%}"
    return {"0%": "below 1%", "100%": "above 99%"}.get(said, f"of {said}")


def in_runs(numbers: Iterable[int]) -> str:
    """Numbers in order, equal neighbours together: "6, 2 x 7, 6"."""
    runs = [(number, len(list(group))) for number, group in groupby(numbers)]
    return ", ".join(f"{count} x {number}" if count > 1 else str(number) for number, count in runs)


def counted(number: int, noun: str, several: str = "") -> str:
    """`number` with its noun: "1 GPU", "1,024 GPUs"; the plural takes an s, or is `several`."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def parse_bandwidth(text: str) -> float:
    """Bytes per second of "400Gb/s" (bits), "50GB/s" (bytes) or "3.35 TB/s".

    Raises `ValueError` with the accepted forms.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(b|B)(?:/s|ps)\s*", text)
    if not match or float(match[1]) == 0:
        raise ValueError(f"{text!r} is not a bandwidth: write 400Gb/s (bits) or 50GB/s (bytes)")
    scale = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match[2]]
    return float(match[1]) * scale / (8 if match[3] == "b" else 1)


def parse_headroom(text: str, whole_bytes: float) -> float:
    """Bytes of "8GiB", "8GB", "10%" of `whole_bytes`, less than all of it, or "0".

    Raises `ValueError` with the accepted forms.
    """
    if text.strip() == "0":
        return 0.0
    match = re.fullmatch(r"\s*(\d{1,6}(?:\.\d+)?)\s*(%|GiB|GB)\s*", text)
    if not match:
        raise ValueError(f"{text!r} is not a headroom: write 8GiB, 8GB or 10%")
    unit_bytes = {"%": whole_bytes / 100, "GiB": GIB, "GB": GB}[match[2]]
    size_bytes = float(match[1]) * unit_bytes
    if size_bytes >= whole_bytes:
        raise ValueError(f"{text!r} leaves nothing of {format_bytes(whole_bytes)}; take less")
    return size_bytes
