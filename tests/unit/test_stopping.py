"""Stopping: the first signal asks, the second interrupts, time runs out, and handlers are put back."""

import math
import os
import signal
import threading

import pytest

from metadr import stopping
from metadr.stopping import Stop

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def own_handlers():
    """Handlers that can be told from any other; pytest's own are put back."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    for each in SIGNALS:
        signal.signal(each, handler)
    yield
    for each, old in before.items():
        signal.signal(each, old)


def handler(number: int, frame: object) -> None:
    raise AssertionError(f"signal {number} was not meant for this handler")


def handlers() -> list[object]:
    return [signal.getsignal(each) for each in SIGNALS]


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_the_second_interrupts(number, capfd, monkeypatch):
    monkeypatch.setattr(stopping.os, "isatty", lambda descriptor: descriptor == 2)
    with Stop() as stop:
        assert not stop()
        send(number)
        assert stop()
        assert capfd.readouterr().err == "\nStopping at the next checkpoint. A second Ctrl-C interrupts at once.\n"
        assert stop.interrupted
        assert not stop.out_of_time
        with pytest.raises(KeyboardInterrupt):
            send(number)
        assert stop()


def test_the_second_signal_may_be_another():
    with Stop() as stop:
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert stop.interrupted


def test_handlers_are_put_back():
    with Stop() as stop:
        assert handlers() == [stop._ask, stop._ask]
    assert handlers() == [handler, handler]


def test_handlers_are_put_back_after_an_error():
    with pytest.raises(ZeroDivisionError), Stop():
        _ = 1 / 0
    assert handlers() == [handler, handler]


def test_one_stop_within_another_hears_alone():
    with Stop() as outer:
        with Stop() as inner:
            send(signal.SIGINT)
        assert inner.interrupted
        assert not outer.interrupted
        send(signal.SIGINT)
        assert outer.interrupted


def test_time_runs_out(clock):
    stop = Stop(minutes=1.5)
    clock(89)
    assert not stop()
    assert stop.seconds_left() == 1
    clock(1)
    assert stop()
    assert stop.out_of_time
    assert not stop.interrupted


def test_no_time_at_all_is_out_at_once(clock):
    assert Stop(minutes=0)()


def test_without_a_limit_time_never_runs_out(clock):
    stop = Stop()
    clock(1e9)
    assert not stop()
    assert not stop.out_of_time
    assert stop.seconds_left() == math.inf


def test_outside_the_main_thread_only_the_time_counts(clock):
    """Python lets no other thread set handlers."""
    seen: list[object] = []

    def other() -> None:
        with Stop(minutes=1) as stop:
            seen.extend([handlers(), stop()])
            clock(61)
            seen.append(stop())
        seen.append(handlers())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [[handler, handler], False, True, [handler, handler]]
