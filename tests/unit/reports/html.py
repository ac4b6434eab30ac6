"""Parse a page as a screen reader does."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "source", "img", "br"}


@dataclass
class Element:
    """A tag with its attributes and all the text within."""

    tag: str
    attributes: dict[str, str]
    inside: tuple[str, ...]
    """Tags around it."""

    text: str = ""


@dataclass
class Page(HTMLParser):
    """All elements of a page, in order."""

    elements: list[Element] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> "Page":
        page = cls()
        HTMLParser.__init__(page)
        page.feed(text)
        page.close()
        assert not page.open, [element.tag for element in page.open]
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        around = tuple(element.tag for element in self.open)
        element = Element(tag, {name: value or "" for name, value in attrs}, around)
        self.elements.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        return [
            element
            for element in self.elements
            if element.tag == tag
            and all(element.attributes.get(name) == value for name, value in attributes.items())
        ]

    def rows(self, table: int = 0) -> list[list[str]]:
        """The body of a table, cell by cell."""
        found: list[list[list[str]]] = []
        for element in self.elements:
            if element.tag == "tbody":
                found.append([])
            elif element.tag == "tr" and "tbody" in element.inside:
                found[-1].append([])
            elif element.tag in ("td", "th") and "tbody" in element.inside:
                found[-1][-1].append(element.text)
        return found[table]
