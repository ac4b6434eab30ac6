"""One file of tensors and a manifest: never half-written, never trusted, nothing in it is code."""

from directgp.files.container import Contents, read_file, write_file
from directgp.files.digest import as_json, digest, on_cpu
from directgp.files.kind import FileKind

__all__ = ["Contents", "FileKind", "as_json", "digest", "on_cpu", "read_file", "write_file"]
