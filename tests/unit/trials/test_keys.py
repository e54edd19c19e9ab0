"""Names of jobs: legal for every engine, one for each trial."""

from hypothesis import given
from hypothesis import strategies as st

from tools.launch.job import check_key
from tools.trials.order import run_key, trial_key

NAMES = st.text(st.sampled_from("abz09-_."), min_size=1, max_size=90)


def test_a_session_of_the_service_is_read_from_the_key() -> None:
    assert trial_key("0" * 32 + ".1", 3) == "0" * 32 + "-1-3"


@given(NAMES, st.integers(0, 63), st.integers(1, 9))
def test_every_key_is_legal_for_a_launcher(session: str, number: int, run: int) -> None:
    check_key(run_key(trial_key(session, number), run))


@given(NAMES, NAMES, st.integers(0, 63), st.integers(0, 63))
def test_two_trials_never_share_a_key(one: str, other: str, first: int, second: int) -> None:
    same = (one, first) == (other, second)
    assert (trial_key(one, first) == trial_key(other, second)) == same
