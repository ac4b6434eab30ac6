"""Names given by users, made fit for a picture or a line."""

_LONGEST = 40


def plain(name: str, longest: int = _LONGEST) -> str:
    """On one line, printable, and not too long."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"
