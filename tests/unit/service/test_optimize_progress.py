"""Who waits at a terminal sees who works; everywhere else nothing is written."""

import io

from service.cli.optimize import watching


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_agent_that_works_and_the_search() -> None:
    screen = Terminal()
    with watching(screen) as watch:
        assert watch.event
        assert watch.progress
        watch.event({"kind": "started", "node": "proposal"})
        watch.progress(0.5)
    assert "proposal agent: searching every legal plan" in screen.getvalue()


def test_after_the_search_the_agent_looks_further() -> None:
    screen = Terminal()
    with watching(screen) as watch:
        assert watch.event
        watch.event({"kind": "started", "node": "proposal"})
        watch.event({"kind": "tool", "node": "proposal", "tool": "search_plans"})
    assert "proposal agent: looking for more plans" in screen.getvalue()


def test_a_file_gets_nothing() -> None:
    log = io.StringIO()
    with watching(log) as watch:
        assert (watch.event, watch.progress) == (None, None)
    assert log.getvalue() == ""
