"""Types of what users give and get.

While the code runs they say nothing: what cannot be used is refused in words of ours, also where
types are checked at run time.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike as ArrayLike

    ValidationData = Sequence[ArrayLike]
else:
    ArrayLike = ValidationData = Any
