"""Who can write the database cannot make a worker run code by it."""

import stat
from pathlib import Path

import ormsgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import EXT_CONSTRUCTOR_SINGLE_ARG, JsonPlusSerializer

from graph.state import SessionInfo, state_serializer
from service.checkpoints import KEY_FILE, SignedSerializer, open_checkpoints
from service.settings import Settings
from tools.errors import DataError

INFO = SessionInfo(id="s1", started_at=1.0)


def crafted(witness: Path) -> bytes:
    """Calls os.mkdir when it is read."""
    call = ormsgpack.packb(("os", "mkdir", str(witness)))
    return ormsgpack.packb(ormsgpack.Ext(EXT_CONSTRUCTOR_SINGLE_ARG, call))


@pytest.mark.filterwarnings("ignore")
def test_a_crafted_checkpoint_runs_code_in_langgraphs_default_and_is_refused_here(tmp_path: Path) -> None:
    first, second = tmp_path / "default", tmp_path / "ours"
    JsonPlusSerializer().loads_typed(("msgpack", crafted(first)))
    assert first.exists()
    signed = SignedSerializer(state_serializer(), b"key")
    for data in (crafted(second), bytes(32) + crafted(second)):
        with pytest.raises(DataError, match="not signed"):
            signed.loads_typed(("msgpack", data))
    state_serializer().loads_typed(("msgpack", crafted(second)))
    assert not second.exists()


def test_what_was_signed_is_read_and_nothing_that_differs_from_it() -> None:
    signed = SignedSerializer(state_serializer(), b"key")
    kind, data = signed.dumps_typed(INFO)
    assert signed.loads_typed((kind, data)) == INFO
    changed = [
        data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in range(0, len(data), 7)
    ]
    for wrong in [(kind, other) for other in (*changed, data[:-1], b"")] + [("json", data)]:
        with pytest.raises(DataError):
            signed.loads_typed(wrong)
    with pytest.raises(DataError):
        SignedSerializer(state_serializer(), b"another key").loads_typed((kind, data))


def test_the_key_of_an_installation_stays_and_is_its_users_only(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, _env_file=None)
    with open_checkpoints(settings) as saver:
        kept = saver.serde.dumps_typed(INFO)
    with open_checkpoints(settings) as saver:
        assert saver.serde.loads_typed(kept) == INFO
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    other = settings.model_copy(update={"data_dir": tmp_path / "other"})
    with open_checkpoints(other) as saver, pytest.raises(DataError):
        saver.serde.loads_typed(kept)
