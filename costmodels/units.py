"""The only home of 1e9 and 2**30, and how bytes and seconds are written for people."""

GB = 1e9
GIB = 2**30
MIB = 2**20
TFLOPS = 1e12


def format_bytes(size_bytes: float) -> str:
    """`size_bytes` in GiB, as memory is always shown."""
    return f"{size_bytes / GIB:.1f} GiB"


def format_seconds(seconds: float) -> str:
    """`seconds` with the unit that keeps three digits readable."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} us"


def format_count(count: float) -> str:
    """`count` with a K, M, B or T suffix (powers of 1000)."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(count) >= scale:
            return f"{count / scale:.3g}{suffix}"
    return f"{count:g}"
