"""Lists: sessions keep their filters in their addresses; every figure of a device has its source."""

from service.web.hardware import device_lines, facts_of
from service.web.sessions import session_list
from tools.hardware import device_names, get_device


def test_filters_stay_in_the_addresses_of_a_list() -> None:
    view = session_list([], {"completed": 3, "failed": 1}, {"q": "70b x", "state": "failed"}, None, "next")
    assert view.next_address == "/?state=failed&q=70b+x&cursor=next"
    assert [(tab.name, tab.address, tab.is_chosen) for tab in view.tabs] == [
        ("all", "/?q=70b+x", False),
        ("completed", "/?state=completed&q=70b+x", False),
        ("failed", "/?state=failed&q=70b+x", True),
    ]


def test_every_device_and_every_figure_has_its_source() -> None:
    assert [line.device.name for line in device_lines()] == list(device_names())
    for name in device_names():
        assert all(fact.source for fact in facts_of(get_device(name))), name
