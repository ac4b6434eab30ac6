"""Define the manifest of a model file."""

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    StringConstraints,
    model_validator,
)

from directgp.training.result import Status

FORMAT = 1
MAX_DEPTH = 8
"""Kernels inside each other; gpytorch takes time exponential in it to find a batch shape."""

MAX_PARTS = 64
"""Kernels side by side in a sum or a product."""

Name = Annotated[str, StringConstraints(max_length=200)]
ParamName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$", max_length=100)]
Text = Annotated[str, StringConstraints(max_length=10_000)]
Number = int | FiniteFloat
Plain = None | bool | int | float | str
ConstraintName = Literal["Positive", "GreaterThan", "LessThan", "Interval"]


class Strict(BaseModel):
    """A frozen model with strict types and no extra keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class KernelSpec(Strict):
    """A gpytorch kernel and the kernels inside it; the tensors give the sizes."""

    kind: Name
    options: dict[Name, Number]
    constraints: dict[Name, ConstraintName]
    parts: Annotated[list["KernelSpec"], Field(max_length=MAX_PARTS)]

    @model_validator(mode="after")
    def _shallow(self) -> "KernelSpec":
        if self.depth() > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} kernels inside each other")
        return self

    def depth(self) -> int:
        """Kernels inside each other, this one counted."""
        return 1 + max((part.depth() for part in self.parts), default=0)

    def size(self) -> int:
        """Kernels in all."""
        return 1 + sum(part.size() for part in self.parts)


class MeanSpec(Strict):
    """A gpytorch mean."""

    kind: Name
    constraints: dict[Name, ConstraintName]


class PosteriorSpec(Strict):
    """A sparse posterior and its prior."""

    kernel: KernelSpec
    mean: MeanSpec
    nugget: Annotated[FiniteFloat, Field(ge=0)]
    frozen: list[Name]


class LikelihoodSpec(Strict):
    """A likelihood, without exposures."""

    kind: Name
    frozen: list[Name]


class ChoiceSpec(BaseModel):
    """A rule or a point loss: its class, and its settings under their own names."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    __pydantic_extra__: dict[str, "bool | int | float | Name | ChoiceSpec | None"]

    kind: Name


class PlainParam(Strict):
    """A value that JSON can hold."""

    type: Literal["plain"]
    value: Plain


class SequenceParam(Strict):
    """A list or a tuple of values that JSON can hold."""

    type: Literal["list", "tuple"]
    values: list[Plain]


class ArrayParam(Strict):
    """A numpy array, which is the tensor of the parameter's name."""

    type: Literal["array"]


class KernelParam(Strict):
    """A kernel as a user gave it."""

    type: Literal["kernel"]
    kernel: KernelSpec
    frozen: list[Name]


class LikelihoodParam(Strict):
    """A likelihood as a user gave it."""

    type: Literal["likelihood"]
    likelihood: LikelihoodSpec


class RuleParam(Strict):
    """A rule."""

    type: Literal["rule"]
    rule: ChoiceSpec


class LossParam(Strict):
    """A point loss."""

    type: Literal["loss"]
    loss: ChoiceSpec


ParamSpec = Annotated[
    PlainParam | SequenceParam | ArrayParam | KernelParam | LikelihoodParam | RuleParam | LossParam,
    Field(discriminator="type"),
]


class StageSpec(Strict):
    """The result of a stage of training."""

    stage: Name
    status: Annotated[Status, Field(strict=False)]
    reason: Text
    steps: int
    evaluations: int
    loss: float
    losses: list[float]
    jitter: float
    at_floor: list[Name]
    ends_training: bool


class ClassesSpec(Strict):
    """The labels of a classifier."""

    dtype: Annotated[str, StringConstraints(pattern=r"^[<>|](b1|[iu][1248]|f[248]|U\d{1,4}|O)$")]
    labels: Annotated[list[bool | int | float | Text], Field(min_length=1, max_length=1000)]


class Manifest(Strict):
    """All of a model but its tensors."""

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    versions: dict[Name, Name]
    estimator: Literal["SparseGPRegressor", "SparseGPClassifier", "SparseGPCountRegressor"]
    params: dict[ParamName, ParamSpec]
    posterior: PosteriorSpec
    likelihood: LikelihoodSpec
    classes: ClassesSpec | None
    feature_names: list[Text] | None
    stages: list[StageSpec]
    record: dict[str, JsonValue]
