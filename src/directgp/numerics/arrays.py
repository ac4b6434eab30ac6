"""Linear algebra for numpy arrays and torch tensors, with results in given arrays."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import lru_cache, wraps
from itertools import pairwise
from mmap import mmap
from threading import Lock, RLock, local
from typing import Any, ParamSpec, TypeVar

import numpy as np
import scipy.special
import torch
from scipy.linalg import blas, lapack
from threadpoolctl import ThreadpoolController
from torch import Tensor

from directgp.numerics.fixed_sizes import constant, recording
from directgp.numerics.linalg import jittered_cholesky

Array = Any
"""A numpy array with two axes or one, or a tensor of any shape."""


def tensor_of(array: Array) -> Tensor:
    """Return a tensor that shares the memory of an array."""
    return array if isinstance(array, Tensor) else torch.from_numpy(np.asarray(array))


def array_of(tensor: Tensor) -> Array:
    """Return a numpy array that shares the memory of a tensor.

    Returns the tensor itself on a GPU, and while a step is recorded.
    """
    return tensor.detach().numpy() if tensor.is_cpu and not recording() else tensor.detach()


P = ParamSpec("P")
Result = TypeVar("Result")


def without_warnings(function: Callable[P, Result]) -> Callable[P, Result]:
    """Turn off numpy's warnings of NaN and infinity in a function whose callers check for them."""

    @wraps(function)
    def silent(*arguments: P.args, **named: P.kwargs) -> Result:
        with np.errstate(all="ignore"):
            return function(*arguments, **named)

    return silent


_BUFFERS = 2**27
"""Bytes that OpenBLAS needs for its buffers and the stacks of its threads."""


def require_buffers() -> None:
    """Raise `MemoryError` if a limit of the address space leaves no room for buffers."""
    try:
        mmap(-1, _BUFFERS).close()
    except OSError as error:
        raise MemoryError from error


_filtering = RLock()


@contextmanager
def ignoring(*categories: type[Warning]) -> Iterator[None]:
    """Ignore warnings of these categories, in all threads.

    The filters belong to the process. A lock admits one thread at a time: two threads that save
    and restore the filters in alternation would leave a filter in place.
    """
    with _filtering, warnings.catch_warnings():
        for category in categories:
            warnings.simplefilter("ignore", category)
        yield


_limiting = Lock()
_counting = Lock()


class _OfThread(local):
    """State of the current thread."""

    inside = False
    """Whether it is in `one_thread`."""


class _OfProcess:
    """State of all threads."""

    inside = 0
    """Number of threads in `one_thread`."""

    outside = 1
    """Number of threads of torch that the first of them saw."""


_of_thread = _OfThread()
_of_process = _OfProcess()


def _torch_threads() -> int:
    """Return the number of threads of torch that was set outside of `one_thread`."""
    number = torch.get_num_threads()
    if number == 1 < _of_process.outside:
        # This thread may have started while others were in `one_thread`: ask a new one.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.get_num_threads).result()
    return number


@lru_cache(maxsize=1)
def _blas_libraries() -> ThreadpoolController:
    """Return the controller of BLAS's threads; made once, as it searches all libraries."""
    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and torch to one thread: small arrays take up to ten times longer with more.

    The number of threads of BLAS belongs to the process. Of several threads in this context, the
    first one sets the number and restores it at its end. torch's number belongs to each thread, but
    a new thread starts with the number that was set last, which is 1 while another thread is here.
    So a thread that has 1 restores the number that the first one saw, even if it has set 1 itself.
    """
    if _of_thread.inside:
        yield
        return
    before = torch.get_num_threads()
    with _counting:
        if _of_process.inside == 0:
            _of_process.outside = _torch_threads()
        if before == 1:
            before = _of_process.outside
        _of_process.inside += 1
    first = _limiting.acquire(blocking=False)
    _of_thread.inside = True
    try:
        with _blas_libraries().limit(limits=1, user_api="blas") if first else nullcontext():
            torch.set_num_threads(1)
            yield
    finally:
        torch.set_num_threads(before)
        _of_thread.inside = False
        with _counting:
            _of_process.inside -= 1
        if first:
            _limiting.release()


def library_of(array: Array) -> Any:
    """Return torch or numpy."""
    return torch if isinstance(array, Tensor) else np


def special_of(array: Array) -> Any:
    """Return the special functions of torch or of scipy."""
    return torch.special if isinstance(array, Tensor) else scipy.special


def zeros(shape: int | tuple[int, ...], template: Array) -> Array:
    """Return zeros with the dtype and device of another array."""
    if isinstance(template, Tensor):
        return template.new_zeros(shape)
    return np.zeros(shape, template.dtype)


def plus_product(C: Array, A: Array, B: Array) -> Array:
    """Compute C + A·B elementwise."""
    if isinstance(C, Tensor):
        return torch.addcmul(C, A, B)
    product = A * B
    return np.add(product, C, out=product)


def exp_in_place(array: Array) -> Array:
    """Replace x by e^x, by torch, which has vector instructions for it on every processor."""
    tensor_of(array).exp_()
    return array


def clip_in_place(array: Array, bound: float) -> Array:
    """Clip to [−bound, bound]."""
    if isinstance(array, Tensor):
        return array.clamp_(-bound, bound)
    return np.maximum(np.minimum(array, bound, out=array), -bound, out=array)


def columns_of(array: Array, positions: Sequence[int]) -> Array:
    """Return these columns: a view if they are adjacent."""
    if (adjacent := _slice_of(positions)) is not None:
        return array[..., adjacent]
    if isinstance(array, Tensor):
        return array.index_select(-1, _index_of(positions, array))
    return array[..., [*positions]]


def add_to_columns(array: Array, positions: Sequence[int], values: Array) -> None:
    """Add values to these columns."""
    if (adjacent := _slice_of(positions)) is not None:
        array[..., adjacent] += values
    elif isinstance(array, Tensor):
        array.index_add_(-1, _index_of(positions, array), values)
    else:
        array[..., [*positions]] += values


def _slice_of(positions: Sequence[int]) -> slice | None:
    """Return adjacent positions as a slice."""
    first = positions[0] if positions else 0
    adjacent = [*positions] == [*range(first, first + len(positions))]
    return slice(first, first + len(positions)) if adjacent else None


def _index_of(positions: Sequence[int], like: Tensor) -> Tensor:
    """Return positions as a tensor; a recorded step cannot copy them to the device."""
    key = "positions", tuple(positions)
    return constant(key, lambda: torch.tensor([*positions], device=like.device))


def limit_to_zero(array: Array) -> Array:
    """Replace positive values by 0."""
    if isinstance(array, Tensor):
        return array.clamp_(max=0.0)
    return np.minimum(array, 0.0, out=array)


def diagonal_of(matrix: Array) -> Array:
    """Return a view of the diagonal."""
    if isinstance(matrix, Tensor):
        return matrix.diagonal(dim1=-2, dim2=-1)
    return np.einsum("ii->i", matrix)


def column_squares(A: Array) -> Array:
    """Return Σ_i A_ij²."""
    if isinstance(A, Tensor):
        return A.square().sum(-2)
    return np.einsum("ij,ij->j", A, A)


def factorise(K: Array, checked: bool) -> tuple[Array, Array, Tensor]:
    """Return L of K = L Lᵀ, L⁻¹, and the jitter of `jittered_cholesky`, in float64."""
    if isinstance(K, Tensor):
        L, jitter = jittered_cholesky(K, checked=checked)
        m = K.shape[-1]
        eye = constant(("identity", m), lambda: torch.eye(m, dtype=K.dtype, device=K.device))
        return L, torch.linalg.solve_triangular(L, eye, upper=False), jitter
    # Pass the transpose, which LAPACK need not copy: K is symmetric.
    factor, info = lapack.dpotrf(K.T, lower=1)
    jitter = _NO_JITTER
    if info != 0 or not np.isfinite(np.einsum("ii->", factor)):
        cholesky = jittered_cholesky(torch.from_numpy(K))
        factor = np.asfortranarray(cholesky.L.numpy())
        jitter = cholesky.jitter
    return factor, lapack.dtrtri(factor, lower=1)[0], jitter


_NO_JITTER = torch.zeros((), dtype=torch.float64)


# Triangular products. BLAS multiplies arrays. Tensors are multiplied in bands of rows, each as long
# as its nonzero part: with four bands this is ⅝ of the work.

_MAX_BANDS = 4
"""Largest number of bands of a triangle."""

_ROWS = 32
"""Fewest rows of a band that save time on a CPU."""

_DEVICE_ROWS = 128
"""Fewest rows of a band that save time on a GPU."""


def triangular_times(T: Array, B: Array, out: Array, *, upper: bool) -> Array:
    """Compute T B, written to `out`, for a T that is zero beyond its lower or upper triangle."""
    if isinstance(out, Tensor):
        for first, last in _bands(T):
            inner = slice(first, None) if upper else slice(last)
            torch.matmul(T[..., first:last, inner], B[..., inner, :], out=out[..., first:last, :])
        return out
    return _blas_product(T, B, out, upper, left=True)


def solve_lower(L: Array, B: Array, out: Array) -> Array:
    """Compute L⁻¹ B, written to `out`, for a lower triangular L."""
    if isinstance(out, Tensor):
        return torch.linalg.solve_triangular(L, B, upper=False, out=out)
    return _blas_product(L, B, out, upper=False, left=True, inverse=True)


def times_triangular(B: Array, T: Array, out: Array) -> Array:
    """Compute B T, written to `out`, for a T that is zero above its diagonal."""
    if isinstance(out, Tensor):
        return torch.matmul(B, T, out=out)
    return _blas_product(T, B, out, upper=False, left=False)


def _blas_product(
    T: Array, B: Array, out: Array, upper: bool, left: bool, inverse: bool = False
) -> Array:
    """Write T B or B T, or the same with T⁻¹, to a contiguous array."""
    out[...] = B
    kind = "trsm" if inverse else "trmm"
    letter = "d" if out.dtype == np.float64 else "s"
    # Compute outᵀ Tᵀ or Tᵀ outᵀ: BLAS has columns where numpy has rows. The arguments are alpha, a,
    # b, side, lower, trans_a, diag and overwrite_b.
    by_columns = T.flags.f_contiguous
    function = getattr(blas, letter + kind)
    function(1.0, T if by_columns else T.T, out.T, left, upper != by_columns, by_columns, 0, 1)
    return out


LowerViews = list[tuple[Array, Array, Array]]
"""Parts of a sum and of the two factors, for `add_lower_product`."""


def lower_product_views(out: Array, A: Array, B: Array) -> LowerViews:
    """Return views for the lower triangle of A Bᵀ; rows of A beyond those of B are whole."""
    views = []
    for first, last in _bands(B):
        rows = slice(first, last if last < B.shape[-2] else None)
        views.append((out[..., rows, :last], A[..., rows, :], B[..., :last, :].swapaxes(-1, -2)))
    return views


def add_lower_product(views: LowerViews, first: bool) -> None:
    """Add the lower triangle of A Bᵀ to a sum, or begin the sum with it."""
    for out, A, B in views:
        add_product(out, A, B, first)


def add_product(out: Array, A: Array, B: Array, first: bool) -> None:
    """Add A B to a sum, or begin the sum with it."""
    if first:
        matmul = torch.matmul if isinstance(out, Tensor) else np.matmul
        matmul(A, B, out=out)
    elif isinstance(out, Tensor) and out.ndim == 2:
        torch.addmm(out, A, B, out=out)
    else:
        out += A @ B


def congruence(C: Array, U: Array) -> Array:
    """Compute U C Uᵀ for a symmetric C and an upper triangular U."""
    if isinstance(C, Tensor):
        return U @ C @ U.mT
    half = _blas_product(U, C, np.empty(C.shape, C.dtype), upper=True, left=True)
    return _blas_product(U, half.T, np.empty(C.shape, C.dtype), upper=True, left=True)


def _bands(triangle: Array) -> list[tuple[int, int]]:
    m = triangle.shape[-2]
    on_device = isinstance(triangle, Tensor) and triangle.is_cuda
    enough = m // (_DEVICE_ROWS if on_device else _ROWS)
    number = max(1, min(_MAX_BANDS, enough))
    if on_device and number < _MAX_BANDS:
        number = 1
    ends = [m * band // number for band in range(number + 1)]
    return [*pairwise(ends)]
