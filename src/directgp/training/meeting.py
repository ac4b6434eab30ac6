"""Where processes meet, apart from those of an attempt before."""

import secrets
import time

from torch.distributed.distributed_c10d import PrefixStore, Store

_LOOKS_EVERY = 0.02


def fresh_store(store: Store, rank: int, size: int, timeout: float) -> Store:
    """A part of a store that no earlier attempt has written to.

    torchrun keeps one store through its restarts, with the addresses of processes that are gone.
    So the first process names a room, each other one leaves a word of its own there, and believes
    the room once the first has repeated that word: an attempt before this one cannot know it.

    Parameters
    ----------
    store : Store
        Common to the processes of all attempts.
    rank, size : int
        Which process this is, of how many.
    timeout : float
        Seconds to wait for the others.

    Raises
    ------
    RuntimeError
        Not all came in time.
    """
    word = secrets.token_hex(8)
    room = _open_room(store, word, size) if rank == 0 else _find_room(store, word, rank, timeout)
    return PrefixStore(room, store)


def _open_room(store: Store, room: str, size: int) -> str:
    store.set("room", room)
    words = [store.get(f"{room}/{rank}").decode() for rank in range(1, size)]
    store.set(f"{room}/words", " ".join(words))
    return room


def _find_room(store: Store, word: str, rank: int, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        room = store.get("room").decode()
        store.set(f"{room}/{rank}", word)
        words = f"{room}/words"
        if store.check([words]) and word in store.get(words).decode().split():
            return room
        time.sleep(_LOOKS_EVERY)
    raise RuntimeError(f"the first process did not answer within {timeout:g} seconds")
