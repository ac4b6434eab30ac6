"""Where the cells of a reproduction are run: on which workers, and on which device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from directgp.cli.compare_running import cores
from directgp.cli.reproduce_request import ReproduceRequest
from directgp.experiments.paper.cells import PaperCell
from directgp.experiments.pools import InProcess, Pool, Processes


@final
@dataclass(frozen=True)
class Place:
    """Workers, and "cpu" or "cuda" on each."""

    pool: Pool
    device: str


def place_of(request: ReproduceRequest, cells: Sequence[PaperCell]) -> Place:
    """What the request means; nothing is started yet."""
    if request.engine == "ray":
        return _on_ray(request)
    from directgp.estimators.settings import device_of

    device = device_of(request.device, "reproduce", max(cell.size for cell in cells)).type
    if request.engine == "inline":
        return Place(InProcess(), device)
    return Place(Processes(request.jobs or (cores() if device == "cpu" else 1)), device)


def _on_ray(request: ReproduceRequest) -> Place:
    """Its machines need not be like this one: a cell has a GPU where it is given one."""
    from directgp.experiments.ray_pool import RayCluster

    pool = RayCluster(
        address=request.address,
        workers=request.jobs or cores(),
        cpus=request.cpus,
        gpus=request.gpus,
    )
    given = request.gpus > 0 and request.device != "cpu"
    return Place(pool, "cuda" if given else "cpu")
