"""Names that tell lines apart."""

from collections.abc import Sequence

Particulars = tuple[str, ...]


def told_apart(found: Sequence[tuple[str, Particulars]]) -> list[str]:
    """Each name, and in brackets those of its particulars in which others of that name differ."""
    names = []
    for name, particulars in found:
        rivals = [others for called, others in found if called == name]
        differing = [
            each for k, each in enumerate(particulars) if len({other[k] for other in rivals}) > 1
        ]
        names.append(f"{name} ({', '.join(differing)})" if differing else name)
    return names
