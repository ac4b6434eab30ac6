"""Define the manifest of a model file."""

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    JsonValue,
    StringConstraints,
    Tag,
    model_validator,
)

from directgp.kernels.parsing import MAX_TEXT
from directgp.registry import ColumnKind
from directgp.training.result import Count, Name, StageSpec, Strict, Text

FORMAT = 1
"""Format of a model of one output."""

FORMAT_OF_SEVERAL = 2
"""Format of a model of several outputs, which the first versions do not read."""

FORMAT_WITH_TABLE = 3
"""Format with a description of a table, which earlier versions do not read."""

FORMAT_WITH_MEMBERS = 4
"""Format of a mixture of several models, or with a stack, which earlier versions do not read."""

FORMAT_WITH_COLUMNS = 5
"""Format with columns that are not plain numbers, which earlier versions do not read."""

FORMAT_WITH_EXPRESSIONS = 6
"""Format with a kernel that is an expression, which earlier versions do not read."""

LAST_FORMAT = FORMAT_WITH_EXPRESSIONS
"""The largest format that this version reads."""

MAX_OUTPUTS = 1000
"""Largest number of outputs."""

MAX_DEPTH = 8
"""Largest depth of nested kernels: gpytorch's time for a batch shape is exponential in it."""

MAX_PARTS = 64
"""Kernels of one sum or product."""

MAX_KERNELS = 100
"""Kernels in total."""

ParamName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$", max_length=100)]
Number = int | FiniteFloat
Plain = None | bool | int | float | str
ConstraintName = Literal["Positive", "GreaterThan", "LessThan", "Interval"]


class KernelSpec(Strict):
    """A gpytorch kernel with its parts; the tensors give the sizes."""

    kind: Name
    options: dict[Name, Number]
    constraints: dict[Name, ConstraintName]
    parts: Annotated[list["KernelSpec"], Field(max_length=MAX_PARTS)]

    @model_validator(mode="after")
    def _small(self) -> "KernelSpec":
        depth = 0
        level = [self]
        total = 0
        while level:
            depth = depth + 1
            total = total + len(level)
            level = [part for kernel in level for part in kernel.parts]
        if depth > MAX_DEPTH or total > MAX_KERNELS:
            raise ValueError(f"more than {MAX_DEPTH} nested kernels, or {MAX_KERNELS} in total")
        return self


ExpressionText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT)]
"""Text of an expression of kernels."""


class ExpressionSpec(Strict):
    """A kernel that is an expression; the tensors give the sizes."""

    expression: ExpressionText
    """The text, with positions of columns."""

    coded: list[Count]
    """Positions of the columns that hold codes of levels, in order."""


def _kind_of_kernel(spec: object) -> str:
    """Return which spec a kernel in a manifest has."""
    is_expression = isinstance(spec, ExpressionSpec) or (
        isinstance(spec, dict) and "expression" in spec
    )
    return "expression" if is_expression else "gpytorch"


AnyKernelSpec = Annotated[
    Annotated[KernelSpec, Tag("gpytorch")] | Annotated[ExpressionSpec, Tag("expression")],
    Discriminator(_kind_of_kernel),
]


MAX_LATENTS = 1000
"""Latent functions of a model file."""


class MeanSpec(Strict):
    """A gpytorch mean."""

    kind: Name
    constraints: dict[Name, ConstraintName]


class PosteriorSpec(Strict):
    """A sparse posterior and its prior."""

    kernel: AnyKernelSpec
    """The kernel."""

    mean: MeanSpec
    """The prior mean."""

    nugget: Annotated[FiniteFloat, Field(ge=0)]
    """Relative variance of the noise of u."""

    frozen: list[Name]
    """Parameters that are not trained."""

    num_latent: Annotated[int, Field(ge=1, le=MAX_LATENTS)] = 1
    """Number of latent functions; 1 in files of earlier versions."""


class LikelihoodSpec(Strict):
    """A likelihood, without row values."""

    kind: Name
    """Name of the class."""

    frozen: list[Name]
    """Parameters that are not trained."""

    settings: dict[Name, FiniteFloat] = Field(default_factory=dict)
    """Constructor arguments that are not trained; files of earlier versions have none."""

    @model_validator(mode="after")
    def _small(self) -> "LikelihoodSpec":
        if self.settings.get("num_classes", 2) > MAX_LATENTS:
            raise ValueError(f"more than {MAX_LATENTS} classes")
        return self


class ChoiceSpec(BaseModel):
    """The class of a rule or a point loss, and its settings by name."""

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


class MappingParam(Strict):
    """A mapping of names or numbers to values that JSON can hold."""

    type: Literal["mapping"]
    keys: list[int | Text]
    values: list[Plain]


class ArrayParam(Strict):
    """A numpy array; its values are a tensor."""

    type: Literal["array"]


class KernelParam(Strict):
    """A kernel of the user."""

    type: Literal["kernel"]
    kernel: KernelSpec
    frozen: list[Name]


class ExpressionParam(Strict):
    """An expression of kernels of the user."""

    type: Literal["expression"]
    expression: ExpressionText


class LikelihoodParam(Strict):
    """A likelihood of the user."""

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
    PlainParam
    | SequenceParam
    | MappingParam
    | ArrayParam
    | KernelParam
    | ExpressionParam
    | LikelihoodParam
    | RuleParam
    | LossParam,
    Field(discriminator="type"),
]


MAX_MEMBERS = 1000
"""Members of a mixture."""


class MemberSpec(Strict):
    """A further member of a mixture."""

    posterior: PosteriorSpec
    """The posterior."""

    likelihood: LikelihoodSpec
    """The likelihood."""


class ScaleSpec(Strict):
    """The scale of the predictions of a stack; the ends of its range may be infinite."""

    link: Literal["identity", "log", "logit"]
    """The function after the clipping."""

    low: float
    """Smallest value before the link."""

    high: float
    """Largest value before the link."""


class SourceSpec(Strict):
    """A source of a stack; the arrays of its trees are tensors."""

    names: Annotated[list[Text], Field(min_length=1, max_length=MAX_LATENTS)]
    """Names of its columns."""

    folds: Annotated[list[ScaleSpec], Field(min_length=1, max_length=1000)]
    """Scale of the trees of each fold."""


class StackSpec(Strict):
    """Boosted trees, whose predictions are further columns of the inputs."""

    sources: Annotated[list[SourceSpec], Field(min_length=1, max_length=1000)]
    """The sources, in the order of their columns."""

    num_features: Count
    """Number of columns of the rows."""


MAX_LEVELS = 1_000_000
"""Levels of a column."""


class ColumnSpec(Strict):
    """A column of the training table, and its levels by value."""

    name: Text
    """Name of the column."""

    kind: ColumnKind
    """What the values are."""

    unit: Literal["", "days", "degrees north", "degrees east"]
    """Unit of the numbers."""

    levels: Annotated[list[bool | int | FiniteFloat | Text | None], Field(max_length=MAX_LEVELS)]
    """Levels in the order of their codes; the last one may be None, for a missing value."""


class ClassesSpec(Strict):
    """The labels of a classifier."""

    dtype: Annotated[str, StringConstraints(pattern=r"^[<>|](b1|[iu][1248]|f[248]|U\d{1,4}|O)$")]
    labels: Annotated[list[bool | int | float | Text], Field(min_length=1, max_length=1000)]


class Manifest(Strict):
    """A model without its tensors."""

    format: Annotated[int, Field(ge=FORMAT, le=LAST_FORMAT)]
    versions: dict[Name, Name]
    estimator: Literal["SparseGPRegressor", "SparseGPClassifier", "SparseGPCountRegressor"]
    params: dict[ParamName, ParamSpec]
    posterior: PosteriorSpec
    likelihood: LikelihoodSpec
    classes: ClassesSpec | None
    feature_names: list[Text] | None
    stages: list[StageSpec]
    record: dict[str, JsonValue]
    # A description of the table that the model was trained on, for the command line.
    table: dict[str, JsonValue] | None = None
    # The further members of a mixture, in the order of their weights.
    members: list[MemberSpec] = Field(default_factory=list, max_length=MAX_MEMBERS)
    stack: StackSpec | None = None
    # The columns of the training table; None if all are plain numbers.
    columns: list[ColumnSpec] | None = None
    # The models of further outputs.
    others: list["Manifest"] = Field(default_factory=list, max_length=MAX_OUTPUTS)
