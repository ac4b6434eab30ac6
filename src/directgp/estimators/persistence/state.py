"""What a file keeps of a fitted estimator."""

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.result import StageResult

Label = bool | int | float | str


@final
@dataclass(frozen=True)
class ModelState:
    """A fitted estimator in parts."""

    estimator: str
    """The name of its class."""

    params: dict[str, Any]
    """Constructor parameters: None, bools, numbers, strings, lists and tuples of these, arrays,
    gpytorch kernels, likelihoods, rules and point losses."""

    posterior: SparsePosterior
    likelihood: Likelihood

    arrays: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """What was learnt beside the model, such as scalings; finite."""

    classes: list[Label] | None = None
    """The labels of a classifier, in order."""

    classes_dtype: str | None = None
    """`dtype.str` of the labels: of kind b, i, u, f, U, or O where they are strings."""

    feature_names: list[str] | None = None
    stages: tuple[StageResult, ...] = ()

    record: dict[str, Any] = field(default_factory=dict)
    """Further facts as JSON knows them; floats come back exactly, NaN and infinities too."""

    versions: dict[str, str] = field(default_factory=dict)
    """The libraries that wrote the file; filled in as it is written."""

    def labels(self) -> NDArray[Any] | None:
        """The classes as an array of their dtype."""
        return None if self.classes is None else np.array(self.classes, self.classes_dtype)
