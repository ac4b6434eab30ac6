"""The reading thread ends, and its errors are raised where rows are used."""

import gc
import signal
import threading
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from directgp.datasets.streams import Batch, RowStream
from directgp.datasets.streams.stream import Buffer, ReadAhead
from directgp.errors import InvalidInputError
from tests.unit.datasets.streams.small_files import drawn, numbered, numbers


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("directgp rows")]


@pytest.fixture(autouse=True, scope="module")
def only_new_objects_are_collected() -> Iterator[None]:
    """A search through all objects of the libraries takes longer than a test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for thread in readers():
        thread.join(5)
    assert not readers()


def started(tmp_path: Path) -> RowStream:
    stream = numbered(tmp_path, [[30, 30], [40]], buffer_rows=10).batches(7, 0)
    stream.next()
    assert len(readers()) == 1
    return stream


def test_close_ends_the_thread_and_may_be_repeated(tmp_path: Path) -> None:
    stream = started(tmp_path)
    stream.close()
    assert not readers()
    stream.close()
    with pytest.raises(InvalidInputError, match=r"The stream must be open\. Got next\(\) after cl"):
        stream.next()


def test_earlier_readers_are_not_kept(tmp_path: Path) -> None:
    with numbered(tmp_path, [[30, 30], [40]], buffer_rows=10).batches(7, 0) as stream:
        state = stream.state()
        earlier = []
        for _ in range(3):
            stream.restore(state)
            stream.next()
            earlier.append(weakref.ref(stream._ahead))
        stream.restore(state)
        gc.collect()
        assert [reader() for reader in earlier] == [None] * 3


def test_garbage_collection_ends_the_thread(tmp_path: Path) -> None:
    stream = started(tmp_path)
    del stream
    gc.collect()
    assert not readers()


def test_garbage_collection_of_a_cycle_ends_the_thread(tmp_path: Path) -> None:
    cycle: list[Any] = [started(tmp_path)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert not readers()


def test_nothing_is_read_before_the_first_batch(tmp_path: Path) -> None:
    with numbered(tmp_path, [[30]]).batches(7, 0):
        assert not readers()


def test_no_more_than_three_buffers_are_held() -> None:
    read: list[int] = []
    ended = threading.Event()

    def buffers() -> Generator[Buffer, None, None]:
        try:
            for start in range(0, 1000, 10):
                read.append(start)
                yield Buffer(start, Batch(np.zeros((10, 1)), np.zeros(10)))
        finally:
            ended.set()

    ahead = ReadAhead(buffers())
    for position in range(0, 500, 5):
        buffer = ahead.at(position)
        assert buffer is not None and buffer.start <= position < buffer.stop
        # The one in use, and two that are read ahead.
        assert len(read) <= position // 10 + 3
    ahead.close()
    assert ended.is_set()


def test_rows_read_before_an_error_are_returned() -> None:
    def buffers() -> Generator[Buffer, None, None]:
        yield Buffer(0, Batch(np.zeros((10, 1)), np.zeros(10)))
        raise MemoryError("no room")

    ahead = ReadAhead(buffers())
    assert ahead.at(9) is not None
    for _ in range(2):
        with pytest.raises(MemoryError, match="no room"):
            ahead.at(10)
    ahead.close()


@pytest.mark.parametrize("call", range(1, 8))
def test_an_interrupt_loses_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Wherever in a batch of several buffers it arrives."""
    rows = numbered(tmp_path, [[30, 30], [40]], buffer_rows=10)
    with rows.batches(25, 0) as stream:
        expected = drawn(stream, 200)
    whole, calls = ReadAhead.at, 0

    def interrupted(self: ReadAhead, position: int) -> Buffer | None:
        nonlocal calls
        calls += 1
        buffer = whole(self, position)
        if calls == call:
            raise KeyboardInterrupt
        return buffer

    monkeypatch.setattr(ReadAhead, "at", interrupted)
    found: list[NDArray[np.int64]] = []
    with rows.batches(25, 0) as stream:
        while len(found) < 8:
            try:
                found.append(numbers(stream.next()))
            except KeyboardInterrupt:
                pass
    assert calls > call
    np.testing.assert_array_equal(np.concatenate(found), expected)


def test_a_forked_process_starts_its_own_reader(tmp_path: Path) -> None:
    rows = numbered(tmp_path, [[30, 30], [40]], buffer_rows=10)
    with rows.batches(7, 0) as stream:
        expected = drawn(stream, 70)
    with rows.batches(7, 0) as stream:
        stream.next()
        parent = stream._ahead
        with pytest.MonkeyPatch.context() as patch:
            # The process number is how a reader notices a fork.
            patch.setattr("os.getpid", lambda: -1)
            np.testing.assert_array_equal(drawn(stream, 63), expected[7:])
            assert len(readers()) == 2
            stream.close()
            assert len(readers()) == 1
        assert parent is not None
        parent.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Programs in the background of a shell are started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_waiting() -> None:
    go_on = threading.Event()

    def stuck() -> Generator[Buffer, None, None]:
        go_on.wait()
        yield Buffer(0, Batch(np.zeros((10, 1)), np.zeros(10)))

    ahead = ReadAhead(stuck())
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ahead.at(0)
    timer.join()
    go_on.set()
    assert ahead.at(0) is not None
    ahead.close()
