from pathlib import Path

import pytest

from slurm_energy.errors import AuthenticationError, WireError
from slurm_energy.wire import authentication
from slurm_energy.wire.authentication import MAX_AGE_SECONDS, ReplayGuard, Verified, load_key, sign, verify
from slurm_energy.wire.codec import Message, decode, encode

KEY = b"k" * 32
BODY = '{"format":1,"reports":[],"note":"ü %41 \\n"}'.encode()
NOW = 1_800_000_000.0


def check(message: Message, key: bytes | None = KEY, now: float = NOW, replay: ReplayGuard | None = None) -> Verified:
    return verify(message, key=key, replay=replay or ReplayGuard(), now_seconds=now)


def test_signed_body_comes_back_over_the_wire() -> None:
    message = decode(encode(sign(BODY, key=KEY, now_seconds=NOW)))
    assert (message.verb, check(message).body, check(message).user_id) == ("report", BODY, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("body", "{}"),
        ("mac", "0" * 64),
        ("mac", ""),
        ("mac", "ü"),
        ("nonce", "0" * 32),
        ("nonce", "short"),
        ("timestamp", "1800000001.000"),
        ("timestamp", "nan"),
        ("timestamp", "1e9"),
        ("auth", "none"),
        ("auth", "munge"),
    ],
)
def test_changed_message_is_refused(field: str, value: str) -> None:
    message = sign(BODY, key=KEY, now_seconds=NOW)
    with pytest.raises(AuthenticationError):
        check(Message(message.verb, {**message.fields, field: value}))


def test_other_key_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="key differs"):
        check(sign(BODY, key=b"x" * 32, now_seconds=NOW))


@pytest.mark.parametrize("shift", [MAX_AGE_SECONDS + 1, -MAX_AGE_SECONDS - 1])
def test_old_and_future_messages_are_refused(shift: float) -> None:
    with pytest.raises(AuthenticationError, match="clocks agree"):
        check(sign(BODY, key=KEY, now_seconds=NOW), now=NOW + shift)


def test_message_is_taken_once() -> None:
    replay, message = ReplayGuard(), sign(BODY, key=KEY, now_seconds=NOW)
    check(message, replay=replay)
    with pytest.raises(AuthenticationError, match="before"):
        check(message, replay=replay, now=NOW + 10)


def test_replay_guard_forgets_what_is_too_old_to_be_taken_anyway() -> None:
    replay = ReplayGuard(keep_seconds=100.0)
    assert replay.first_time("a", 0.0) and not replay.first_time("a", 99.0) and replay.first_time("a", 101.0)


def test_site_with_munge_takes_no_shared_key() -> None:
    with pytest.raises(AuthenticationError, match="this site uses munge"):
        check(sign(BODY, key=KEY, now_seconds=NOW), key=None)


@pytest.mark.parametrize("credential", ["", "MUNGE:ü:", "x"])
def test_message_without_credential_is_refused(credential: str) -> None:
    with pytest.raises(AuthenticationError, match="no munge credential"):
        check(Message("report", {"auth": "munge", "credential": credential}), key=None)


def test_missing_munge_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "_TOOL_FOLDERS", ("/nonexistent",))
    with pytest.raises(AuthenticationError, match="munge is in none of /nonexistent"):
        sign(BODY)


def test_body_over_munges_limit_is_refused() -> None:
    with pytest.raises(WireError, match="munge"):
        sign(b"x" * 600_000)


def test_key_of_the_site(tmp_path: Path) -> None:
    path = tmp_path / "report.key"
    path.write_bytes(KEY + b"\n")
    path.chmod(0o640)
    assert load_key(path) == KEY


@pytest.mark.parametrize(("content", "mode", "message"), [(KEY, 0o644, "chmod"), (b"short", 0o600, "at least 32")])
def test_key_that_protects_nothing_is_refused(tmp_path: Path, content: bytes, mode: int, message: str) -> None:
    path = tmp_path / "report.key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(AuthenticationError, match=message):
        load_key(path)


def test_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError, match=r"report\.key cannot be read"):
        load_key(tmp_path / "report.key")
