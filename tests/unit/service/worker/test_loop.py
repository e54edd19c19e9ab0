"""A loop goes on after a failure, and stops when it is told."""

import threading

from service.worker.jobs import Loop


def test_one_failure_does_not_end_a_loop() -> None:
    turns: list[int] = []
    enough = threading.Event()

    def work() -> None:
        turns.append(len(turns))
        if len(turns) == 1:
            raise ValueError("once")
        if len(turns) == 3:
            enough.set()

    loop = Loop("test", every_s=0.001, work=work)
    loop.start()
    assert enough.wait(30)
    loop.stop()
    assert len(turns) >= 3
    assert not loop.is_running()


def test_a_loop_that_never_began_can_be_stopped() -> None:
    Loop("test", every_s=1, work=lambda: None).stop()
