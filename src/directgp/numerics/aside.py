"""Work that a device does beside other work."""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import final

import torch

_streams: dict[torch.device, torch.cuda.Stream] = {}


@final
class Aside:
    """What is asked for inside goes on beside what follows, until `join`; on a CPU, before it.

    Arrays made inside may be used after `join`, and freed at any time: every such work waits for
    all that was asked for before it, and so for all that used memory it takes over. Arrays made
    outside and used inside must be kept until `join`.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = _stream_of(device) if device.type == "cuda" else None
        self._inside: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> "Aside":
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            self._inside = torch.cuda.stream(self._stream)
        self._inside.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside.__exit__(kind, error, trace)

    def join(self) -> None:
        """What follows waits for what was done inside."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


def _stream_of(device: torch.device) -> torch.cuda.Stream:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]
