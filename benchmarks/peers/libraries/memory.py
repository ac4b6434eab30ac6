"""Memory of the process, as reported by Linux."""

from pathlib import Path


def resident_bytes() -> int:
    return _status_bytes("VmRSS")


def peak_bytes() -> int:
    return _status_bytes("VmHWM")


def reset_peak() -> None:
    """Reset the peak to the current memory (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = next(line for line in lines if line.startswith(field))
    return 1024 * int(found.split()[1])
