"""Linear algebra on arrays and tensors equals plain products and factors."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_info
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError
from directgp.numerics.arrays import (
    add_lower_product,
    add_product,
    clip_in_place,
    column_squares,
    congruence,
    diagonal_of,
    exp_in_place,
    factorise,
    lower_product_views,
    one_thread,
    tensor_of,
    times_triangular,
    triangular_times,
)

Convert = Callable[[Tensor], Any]

SIZES = [1, 7, 64, 131, 201, 514]
"""From whole products to four bands, of unequal heights too."""

LIBRARIES: dict[str, Convert] = {
    "rows": lambda x: np.ascontiguousarray(x.numpy()),
    "columns": lambda x: np.asfortranarray(x.numpy()),
    "tensor": lambda x: x,
}
each_library = pytest.mark.parametrize("library", LIBRARIES)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
each_size = pytest.mark.parametrize("m", SIZES)
each_batch = pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def buffer(library: str, *shape: int, dtype: torch.dtype) -> Any:
    """A buffer as the callers make it: NaN where nothing is written, with rows in one piece."""
    empty = torch.full(shape, torch.nan, dtype=dtype)
    return empty if library == "tensor" else empty.numpy()


def assert_close(found: Any, expected: Tensor) -> None:
    """Up to the rounding of a sum of a few hundred products."""
    scale = max(1.0, torch.linalg.vector_norm(expected, torch.inf) if expected.numel() else 0.0)
    tolerance = 1e3 * torch.finfo(expected.dtype).eps * float(scale)
    assert tensor_of(found).dtype == expected.dtype
    torch.testing.assert_close(tensor_of(found), expected, rtol=0, atol=tolerance)


def check_triangular_products(
    library: str, m: int, dtype: torch.dtype, batch: tuple[int, ...] = ()
) -> None:
    convert = LIBRARIES[library]
    T, B, C = (random(*batch, m, k, seed=k, dtype=dtype) for k in (m, 3, m))
    for triangle, upper in ((T.tril(), False), (T.triu(), True)):
        out = buffer(library, *batch, m, 3, dtype=dtype)
        given = convert(triangle), convert(B)
        assert triangular_times(*given, out=out, upper=upper) is out
        assert_close(out, triangle @ B)
        assert_close(given[0], triangle)
        assert_close(given[1], B)
    wide = random(*batch, 3, m, seed=5, dtype=dtype)
    out = buffer(library, *batch, 3, m, dtype=dtype)
    assert times_triangular(convert(wide), convert(T.tril()), out=out) is out
    assert_close(out, wide @ T.tril())
    symmetric, U = C + C.mT, T.triu()
    given = convert(symmetric), convert(U)
    assert_close(congruence(*given), U @ symmetric @ U.mT)
    assert_close(given[0], symmetric)


@each_library
@each_dtype
@each_size
def test_triangular_products(library: str, dtype: torch.dtype, m: int) -> None:
    check_triangular_products(library, m, dtype)


@each_batch
@each_dtype
@pytest.mark.parametrize("m", [7, 131])
def test_triangular_products_of_a_batch(batch: tuple[int, ...], dtype: torch.dtype, m: int) -> None:
    check_triangular_products("tensor", m, dtype, batch)


@each_library
def test_a_transposed_triangle(library: str) -> None:
    """Lᵀ as a view of L, which has columns where L has rows."""
    L, B = random(40, 40).tril(), random(40, 5, seed=1)
    given = LIBRARIES[library](L).swapaxes(-1, -2)
    out = buffer(library, 40, 5, dtype=torch.float64)
    triangular_times(given, LIBRARIES[library](B), out=out, upper=True)
    assert_close(out, L.mT @ B)
    C = random(40, 40, seed=2)
    symmetric = C + C.mT
    assert_close(congruence(LIBRARIES[library](symmetric), given), L.mT @ symmetric @ L)


def test_a_triangle_of_one_prior_serves_a_batch() -> None:
    T, B = random(131, 131).tril(), random(3, 131, 4, seed=1)
    out = torch.empty_like(B)
    assert_close(triangular_times(T, B, out=out, upper=False), T @ B)


@each_library
def test_zeros_beyond_the_triangle_are_not_read(library: str) -> None:
    """BLAS reads none of them, products of bands skip those of whole bands."""
    m = 128
    L, B = torch.ones(m, m, dtype=torch.float64).tril(), torch.ones(m, 1, dtype=torch.float64)
    L[: m // 4, -1] = torch.nan
    out = buffer(library, m, 1, dtype=torch.float64)
    triangular_times(LIBRARIES[library](L), LIBRARIES[library](B), out=out, upper=False)
    assert_close(out, torch.arange(1.0, m + 1).double().unsqueeze(-1))


@each_library
@each_dtype
@each_size
@pytest.mark.parametrize("more", [0, 1])
def test_lower_products(library: str, dtype: torch.dtype, m: int, more: int) -> None:
    """The first call begins a sum, the next adds to it; a row more than B has is whole."""
    check_lower_products(library, m, more, dtype)


@each_batch
@pytest.mark.parametrize("m", [7, 131])
def test_lower_products_of_a_batch(batch: tuple[int, ...], m: int) -> None:
    check_lower_products("tensor", m, 1, torch.float64, batch)


def check_lower_products(
    library: str, m: int, more: int, dtype: torch.dtype, batch: tuple[int, ...] = ()
) -> None:
    convert = LIBRARIES[library]
    A, B = random(*batch, m + more, 5, dtype=dtype), random(*batch, m, 5, seed=1, dtype=dtype)
    out = buffer(library, *batch, m + more, m, dtype=dtype)
    views = lower_product_views(out, convert(A), convert(B))
    for number, first in ((1, True), (2, False), (1, True)):
        add_lower_product(views, first=first)
        expected = number * (A @ B.mT)
        assert_close(tensor_of(out)[..., :m, :].tril(), expected[..., :m, :].tril())
        assert_close(tensor_of(out)[..., m:, :], expected[..., m:, :])


@each_library
@each_dtype
def test_sums_of_products(library: str, dtype: torch.dtype) -> None:
    check_sums_of_products(library, dtype)


@each_batch
def test_sums_of_products_of_a_batch(batch: tuple[int, ...]) -> None:
    check_sums_of_products("tensor", torch.float64, batch)


def check_sums_of_products(library: str, dtype: torch.dtype, batch: tuple[int, ...] = ()) -> None:
    A, B = random(*batch, 4, 6, dtype=dtype), random(*batch, 6, 3, seed=1, dtype=dtype)
    out = buffer(library, *batch, 4, 3, dtype=dtype)
    given = LIBRARIES[library](A), LIBRARIES[library](B)
    for number, first in ((1, True), (2, False), (3, False), (1, True)):
        add_product(out, *given, first)
        assert_close(out, number * (A @ B))


@each_library
@each_dtype
def test_entries(library: str, dtype: torch.dtype) -> None:
    A = random(6, 6, dtype=dtype)
    given = LIBRARIES[library](A.clone())
    assert_close(column_squares(given), A.square().sum(-2))
    view = diagonal_of(given)
    view += 1
    assert_close(given, A + torch.eye(6, dtype=dtype))
    given = LIBRARIES[library](A.clone())
    assert clip_in_place(given, 0.5) is given
    assert_close(given, A.clamp(-0.5, 0.5))
    assert exp_in_place(given) is given
    assert_close(given, A.clamp(-0.5, 0.5).exp())


def test_entries_of_a_batch() -> None:
    A = random(2, 3, 5, 5)
    assert_close(column_squares(A), A.square().sum(-2))
    given = A.clone()
    diagonal_of(given).sub_(1)
    assert_close(given, A - torch.eye(5, dtype=torch.float64))


def test_an_array_and_its_tensor_share_memory() -> None:
    array = np.zeros((2, 3))
    tensor_of(array)[1, 2] = 7.0
    assert array[1, 2] == 7
    tensor = torch.zeros(2)
    assert tensor_of(tensor) is tensor


def gram(*points: float) -> Tensor:
    x = torch.tensor(points, dtype=torch.float64)
    return torch.exp(-((x[:, None] - x) ** 2))


@each_library
def test_factors(library: str) -> None:
    K = gram(-2.0, 0.0, 0.7, 3.0)
    given = LIBRARIES[library](K)
    L, inverse, jitter = factorise(given, checked=True)
    expected = torch.linalg.cholesky(K)
    assert float(jitter) == 0
    assert_close(L, expected)
    assert_close(inverse, torch.linalg.inv(expected))
    # Exact zeros: products with the inverse may use all of it.
    for triangle in (tensor_of(L), tensor_of(inverse)):
        assert torch.equal(triangle, triangle.tril())
    assert torch.equal(tensor_of(given), K)


def test_factors_of_a_batch() -> None:
    K = torch.stack([gram(-2.0, 0.0, 0.7), gram(0.0, 1.0, 1.5)])
    L, inverse, jitter = factorise(K, checked=True)
    assert jitter.tolist() == [0, 0]
    assert_close(L, torch.linalg.cholesky(K))
    assert_close(inverse @ L, torch.eye(3, dtype=torch.float64).expand(2, 3, 3))


@each_library
def test_a_singular_matrix_gets_the_jitter_that_is_reported(library: str) -> None:
    K = gram(0.0, 0.0, 0.0, 1.0)
    L, inverse, jitter = factorise(LIBRARIES[library](K), checked=True)
    assert 0 < float(jitter) < 1e-8
    L, inverse, eye = tensor_of(L), tensor_of(inverse), torch.eye(4, dtype=torch.float64)
    assert_close(L @ L.mT, K + jitter * eye)
    torch.testing.assert_close(inverse @ L, eye, rtol=0, atol=1e-9)
    assert torch.equal(L, L.tril()) and torch.equal(inverse, inverse.tril())


@each_library
def test_what_cannot_be_factorised(library: str) -> None:
    with pytest.raises(NumericalError, match="positive definite"):
        factorise(LIBRARIES[library](-torch.eye(3, dtype=torch.float64)), checked=True)
    K = torch.eye(3, dtype=torch.float64)
    K[1, 0] = K[0, 1] = torch.nan
    with pytest.raises(InvalidInputError, match="K must be finite"):
        factorise(LIBRARIES[library](K), checked=True)


def test_without_the_check_no_jitter_is_tried() -> None:
    L, _, jitter = factorise(torch.zeros(2, 2, dtype=torch.float64), checked=False)
    assert float(jitter) == 0 and not bool((L @ L.mT).any())


def blas_threads() -> list[int]:
    """Of numpy's and scipy's libraries, whose number of threads is the process's."""
    blas = [lib for lib in threadpool_info() if lib.get("threading_layer") == "pthreads"]
    return [lib["num_threads"] for lib in blas]


@pytest.mark.parametrize("first_leaves", ["first", "last"])
def test_threads_are_restored_whoever_leaves_first(first_leaves: str) -> None:
    entered, leave = Event(), Event()

    def other() -> None:
        with one_thread():
            entered.set()
            leave.wait(10)

    limit = ThreadpoolController().limit(limits=2, user_api="blas")
    try:
        here, torch_before, thread = blas_threads(), torch.get_num_threads(), Thread(target=other)
        with one_thread():
            thread.start()
            assert entered.wait(10)
            assert set(blas_threads()) == {1} and torch.get_num_threads() == 1
            if first_leaves == "last":
                leave.set()
                thread.join()
        leave.set()
        thread.join()
        assert blas_threads() == here and torch.get_num_threads() == torch_before
    finally:
        limit.restore_original_limits()


def threads_of_a_new_thread() -> int:
    """The number that torch gives to threads from now on."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


@pytest.mark.parametrize("enters", ["beside", "after", "within"])
def test_a_thread_that_starts_beside_another_restores_its_number(
    enters: str, two_threads: None
) -> None:
    """It starts with the one thread of the other; new threads and itself have two at the end."""
    started, enter, entered, leave = Event(), Event(), Event(), Event()
    seen = []

    def other() -> None:
        seen.append(torch.get_num_threads())
        started.set()
        enter.wait(10)
        with one_thread(), one_thread():
            entered.set()
            leave.wait(10)
        seen.append(torch.get_num_threads())

    thread = Thread(target=other)
    with one_thread():
        thread.start()
        assert started.wait(10)
        if enters != "after":
            enter.set()
            assert entered.wait(10)
        if enters == "within":
            leave.set()
            thread.join()
            with one_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
    enter.set()
    leave.set()
    thread.join()
    assert seen == [1, 2]
    assert torch.get_num_threads() == threads_of_a_new_thread() == 2


def test_a_thread_beside_another_keeps_a_number_of_its_own(two_threads: None) -> None:
    seen = []

    def other() -> None:
        torch.set_num_threads(3)
        with one_thread():
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())

    thread = Thread(target=other)
    with one_thread():
        thread.start()
        thread.join()
    assert seen == [1, 3] and torch.get_num_threads() == 2


def test_one_thread_that_the_user_sets_stays(two_threads: None) -> None:
    with one_thread():
        pass
    torch.set_num_threads(1)
    with one_thread():
        pass
    assert torch.get_num_threads() == threads_of_a_new_thread() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
@pytest.mark.parametrize(("megabytes", "enough"), [(64, False), (256, True)])
def test_memory_is_required_under_a_limit(megabytes: int, enough: bool) -> None:
    code = (
        "import resource\n"
        "from directgp.numerics.arrays import require_buffers\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"limit = used + {megabytes} * 2**20\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "require_buffers()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode == 0) == enough
    assert ended.stderr.endswith("MemoryError\n") != enough
