"""The text of an HTML page, without markup and pictures."""

from html.parser import HTMLParser

_HIDDEN = ("script", "style")
_INLINE = ("a", "abbr", "b", "button", "cite", "code", "em", "i", "span", "strong")
"""Tags that do not begin a new line of text."""

_SHOWN = ("alt", "title", "aria-label")
"""Attributes that a reader gets to see or hear."""


class _Text(HTMLParser):
    """Collects lines of text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = [""]
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in _HIDDEN
        self._break(tag)
        for name, value in attrs:
            if name in _SHOWN and value:
                self.lines += [f"[{name}] {value}", ""]

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in _HIDDEN
        self._break(tag)

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.lines[-1] += data

    def _break(self, tag: str) -> None:
        if tag not in _INLINE:
            self.lines.append("")


def page_text(html: str) -> str:
    """Return the visible text, one block a line, with single spaces."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in parser.lines)
    return "".join(f"{line}\n" for line in lines if line)
