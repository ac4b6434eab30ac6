"""Write requirements.lock: the versions of constraints.txt with the sha256 of each of their files.

Needs uv. torch and the libraries that only it needs are left out: its builds for CPUs come from
different places, with different sums.
"""

import subprocess
from pathlib import Path

EXTRAS = ("all", "dev")
"""What the Makefile installs for `demo` and `test`."""

LEFT_OUT = ("torch==", "triton==", "nvidia-", "cuda-")

HEADER = """\
# Versions and sums of what the Makefile installs, torch excepted. Written by tools/lock.py.
"""


def main() -> None:
    """Write the file."""
    command = ["uv", "pip", "compile", "pyproject.toml", "-c", "constraints.txt", "--universal"]
    command += ["--python-version", "3.11.7", "--generate-hashes", "--no-header", "--no-annotate"]
    command += [word for extra in EXTRAS for word in ("--extra", extra)]
    compiled = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # Each package is one line, continued by its sums.
    packages = compiled.replace("\\\n", "\0").splitlines()
    pinned = [line for line in packages if line and not line.startswith((*LEFT_OUT, "#"))]
    Path("requirements.lock").write_text(HEADER + "\n".join(pinned).replace("\0", "\\\n") + "\n")


if __name__ == "__main__":
    main()
