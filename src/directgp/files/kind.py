"""What a file is, and the words in which it is refused."""

from dataclasses import dataclass
from typing import NoReturn, final

from directgp.errors import DirectGPError


@final
@dataclass(frozen=True)
class FileKind:
    """A kind of file, such as a checkpoint or a model."""

    name: str
    """What users call it."""

    writer: str
    """The function that writes it."""

    key: str
    """Where in the metadata the manifest is; no two kinds share it."""

    schema: int
    """Version of the layout that is written, and the only one that is read."""

    error: type[DirectGPError]
    """Raised where such a file cannot be written or read."""

    if_unreadable: str
    """What to do about a path that cannot be read."""

    if_damaged: str
    """What to do about a file that is not what it claims to be."""

    if_other_schema: str
    """What to do about a file of another layout."""

    def unwritable(self, path: str, cause: Exception) -> NoReturn:
        """Say that the file could not be written."""
        raise self.error(
            f"The {self.name} {path} could not be written: {cause}."
            " Give a file in a folder that exists, can be written to and has space;"
            f" a {self.name} that was there has not been damaged."
        ) from cause

    def unreadable(self, path: str, cause: Exception) -> NoReturn:
        """Say that nothing could be read at the path."""
        raise self.error(
            f"The {self.name} {path} could not be read: {cause}. {self.if_unreadable}"
        ) from cause

    def damaged(self, path: str, what: str, cause: Exception | None = None) -> NoReturn:
        """Say what is wrong with the contents."""
        raise self.error(
            f"{path} cannot be loaded as a {self.name}: {what}. {self.if_damaged}"
        ) from cause

    def check_schema(self, path: str, schema: object) -> None:
        """Refuse another layout."""
        if schema != self.schema:
            raise self.error(
                f"{path} is a {self.name} of schema {schema!r}, and this version of directgp"
                f" reads schema {self.schema}. {self.if_other_schema}"
            )
