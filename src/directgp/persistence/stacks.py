"""Convert the trees of a stack to specs and tensors."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from directgp.errors import ModelFileError, UnsupportedError
from directgp.persistence.schema import ScaleSpec, SourceSpec, StackSpec
from directgp.stack import Stack, Trees
from directgp.stack.scales import Scale
from directgp.stack.sources import FittedSource
from directgp.stack.stack import FoldedSource


def stack_spec(stack: Stack) -> StackSpec:
    """Return the spec of a stack; raise `UnsupportedError` unless all its models are trees."""
    return StackSpec(
        sources=list(map(_source_spec, stack.sources)), num_features=stack.num_features
    )


def _source_spec(source: FoldedSource) -> SourceSpec:
    if not all(isinstance(fitted.model, Trees) for fitted in source.folds):
        refuse_estimators(source.names)
    scales = [fitted.scale for fitted in source.folds]
    return SourceSpec(
        names=list(source.names),
        folds=[ScaleSpec(link=scale.link, low=scale.low, high=scale.high) for scale in scales],
    )


def refuse_estimators(names: Sequence[str]) -> None:
    """Raise `UnsupportedError` for estimators of the user in a stack."""
    raise UnsupportedError(
        f"A model with {', '.join(names)} in its stack cannot be saved, because a file holds no"
        " code. Fit with stack='trees' or stack=None, or keep the model with joblib.dump and load"
        " it with the same versions of all libraries."
    )


def stack_tensors(stack: Stack) -> dict[str, Tensor]:
    """Return the arrays of the trees by source, fold and name."""
    return {
        f"{i}.{k}.{name}": torch.from_numpy(array.copy())
        for i, source in enumerate(stack.sources)
        for k, fitted in enumerate(source.folds)
        if isinstance(fitted.model, Trees)
        for name, array in fitted.model.arrays().items()
    }


def load_stack(spec: StackSpec, tensors: Mapping[str, Tensor]) -> Stack:
    """Return the stack of a spec; raise if the arrays of the trees do not belong together."""
    tensors_of_sources = numbered(tensors)
    sources = []
    for i, source in enumerate(spec.sources):
        tensors_of_folds = numbered(tensors_of_sources.get(str(i), {}))
        folds = [
            FittedSource(
                _trees(tensors_of_folds.get(str(k), {}), len(source.names), spec.num_features),
                Scale(scale.link, scale.low, scale.high),
            )
            for k, scale in enumerate(source.folds)
        ]
        sources.append(FoldedSource(tuple(source.names), tuple(folds)))
    return Stack(tuple(sources), spec.num_features)


def numbered(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each part, by the number before the first point of their names."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, rest = name.partition(".")
        parts.setdefault(number, {})[rest] = tensor
    return parts


def _trees(tensors: Mapping[str, Tensor], width: int, num_features: int) -> Trees:
    arrays = {name: tensor.clone().numpy() for name, tensor in tensors.items()}
    trees = Trees.from_arrays(arrays, num_features)
    if len(trees.baseline) != width:
        raise ModelFileError(f"trees have {len(trees.baseline)} outputs for {width} columns")
    return trees
