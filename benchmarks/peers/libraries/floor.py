"""Lower bound of the step time: only the large operations of a step."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.peers.cases import Arrays
from benchmarks.peers.libraries.torch_base import TorchLibrary
from benchmarks.peers.protocol import Message, serve


class Floor(TorchLibrary):
    """K_uf and its exp, Cholesky, A = L⁻¹K_uf, SᵀA, A diag(g) Aᵀ, dK_uf, and dZ from it."""

    def version(self) -> str:
        return f"raw operations of torch {torch.__version__}"

    def set_up(self, arrays: Arrays) -> None:
        t = self.tensors(arrays)
        self._Z, self._X = t["Z"] / t["lengthscale"], t["X"] / t["lengthscale"]
        self._S = t["u_chol"]
        K = torch.exp(-0.5 * torch.cdist(self._Z, self._Z).square())
        self._Kuu = K + self.nugget * torch.eye(len(K), dtype=K.dtype, device=K.device)
        self._run = self._step if self.device == "cpu" else self._recorded()

    def loss(self) -> float:
        raise NotImplementedError("The floor has no loss.")

    def steps(self, number: int) -> None:
        for _ in range(number):
            self._run()

    def _recorded(self) -> Callable[[], None]:
        """Return the step as a CUDA graph with one launch, like ours."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph.replay

    def _step(self) -> None:
        K = (self._Z @ self._X.mT).exp_()
        L = torch.linalg.cholesky_ex(self._Kuu).L
        A = torch.linalg.solve_triangular(L, K, upper=False)
        T = self._S.mT @ A
        H = T @ A.mT
        dK = H @ T
        self._dZ = dK @ self._X

    def predict(self, X: Tensor, block: int) -> None:
        L = torch.linalg.cholesky_ex(self._Kuu).L
        for rows in X.split(block):
            K = (self._Z @ rows.mT).exp_()
            self._T = self._S.mT @ torch.linalg.solve_triangular(L, K, upper=False)

    def do_matmul_rate(self, size: int, number: int) -> Message:
        """Return the multiply-adds per second of a product of square matrices."""
        a = torch.rand(size, size, device=self.device)
        a @ a
        since = self.now()
        for _ in range(number):
            a @ a
        rate = number * size**3 / (self.now() - since)
        where = "CPU" if self.device == "cpu" else torch.cuda.get_device_name()
        return {"rate": rate, "device": where}


if __name__ == "__main__":
    serve(Floor())
