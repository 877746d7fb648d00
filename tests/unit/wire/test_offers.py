"""Questions for offers: who may ask, what an answer must prove, and that the slowest cluster holds up none."""

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from slurm_energy.errors import AuthenticationError, DaemonUnavailable, SlurmEnergyError, WireError
from slurm_energy.wire import offers
from slurm_energy.wire.authentication import ReplayGuard, Verified, check_answer, prove_answer, sign, verify
from slurm_energy.wire.codec import Message, encode
from slurm_energy.wire.offers import Asker, ask_all, ask_offer, decode_offer_request, offer_of_document

KEY = b"0123456789abcdef0123456789abcdef"
NONCE = "ab" * 16
ASKER = Asker(key=KEY, daemon_user_ids={0}, user_id=1000)


def body(**fields: str) -> bytes:
    return encode(Message("offer", {"for_cluster": "a", "nonce": NONCE, "uid": "1000", "name": "train", **fields}))


def test_the_user_is_the_one_whom_munge_names_and_not_whom_he_says() -> None:
    asked = decode_offer_request(Verified(body=body(uid="0"), user_id=1000))
    assert (asked.user_id, asked.cluster, dict(asked.fields)) == (1000, "a", {"name": "train"})


def test_the_holder_of_the_key_says_for_whom_he_asks() -> None:
    message = sign(body(uid="1234"), key=KEY, verb="offer")
    verified = verify(message, key=KEY, replay=ReplayGuard(), allowed_user_ids=None)
    assert decode_offer_request(verified).user_id == 1234


@pytest.mark.parametrize(
    "change", [{"uid": "root"}, {"uid": ""}, {"nonce": "short"}, {"for_cluster": "a,b"}, {"for_cluster": ""}]
)
def test_a_malformed_question_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(WireError):
        decode_offer_request(Verified(body=body(**change), user_id=None))


def test_a_report_is_no_question_and_a_question_is_no_report() -> None:
    with pytest.raises(WireError):
        decode_offer_request(Verified(body=b'{"format": 1, "reports": []}', user_id=0))
    from slurm_energy.wire.node_status import decode_delivery  # the other side, for this test alone

    with pytest.raises(WireError):
        decode_delivery(body())


def test_an_answer_proves_its_question_and_kind() -> None:
    text = json.dumps({"cluster": "a"})
    reply = Message("ok", {"offer": text, **prove_answer("offer", NONCE, text, KEY)})
    assert check_answer("offer", reply, NONCE, KEY, {0}, tool_seconds=1.0) == text
    for wrong in (
        ("offer", reply, "cd" * 16, KEY),
        ("offer", reply, NONCE, KEY[::-1]),
        ("offer", Message("ok", {**reply.fields, "offer": text.replace("a", "b")}), NONCE, KEY),
        ("offer", Message("ok", {"offer": text, **prove_answer("newest", NONCE, text, KEY)}), NONCE, KEY),
    ):
        kind, message, nonce, key = wrong
        with pytest.raises(AuthenticationError):
            check_answer(kind, message, nonce, key, {0}, tool_seconds=1.0)


class FakeClusters:
    """Daemons behind addresses: what each does with a question."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, replies: Mapping[int, Any]) -> None:
        self.asked: list[int] = []
        self._replies = replies
        monkeypatch.setattr(offers, "exchange_tcp", self._exchange)

    def _exchange(self, address: tuple[str, int], request: Message, _seconds: float, _connect: float) -> Message:
        self.asked.append(address[1])
        found = self._replies[address[1]]
        if isinstance(found, Exception):
            raise found
        verified = verify(request, key=KEY, replay=ReplayGuard(), allowed_user_ids=None)
        text = found if isinstance(found, str) else json.dumps(found)
        return Message("ok", {"offer": text, **prove_answer("offer", decode_offer_request(verified).nonce, text, KEY)})


def test_the_next_address_of_a_cluster_is_asked_where_the_first_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeClusters(monkeypatch, {1: DaemonUnavailable("away"), 2: {"cluster": "a", "version": "1"}})
    assert ask_offer("a", [("h", 1), ("h", 2)], {}, ASKER, 5.0)["version"] == "1"
    assert fake.asked == [1, 2]
    with pytest.raises(SlurmEnergyError, match="away"):
        ask_offer("a", [("h", 1)], {}, ASKER, 5.0)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({"cluster": "b"}, "is of cluster 'b', 'a' was asked"),
        ([1], "no JSON object"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ({}, "of cluster 'None'"),
    ],
)
def test_an_answer_of_another_cluster_or_none_at_all_is_refused(
    monkeypatch: pytest.MonkeyPatch, answer: object, complaint: str
) -> None:
    FakeClusters(monkeypatch, {1: answer})
    with pytest.raises(WireError, match=complaint):
        ask_offer("a", [("h", 1)], {}, ASKER, 5.0)


def test_a_figure_that_is_no_number_is_refused() -> None:
    with pytest.raises(WireError, match="offer"):
        offer_of_document(json.loads('{"cluster": "a", "version": "1", "now_seconds": NaN}'))


def test_one_that_hangs_and_one_that_fails_are_left_out_and_the_others_kept_in_order() -> None:
    hang = threading.Event()

    def ask(cluster: str, *_rest: object) -> Mapping[str, object]:
        if cluster == "slow":
            hang.wait(60.0)
        if cluster == "bad":
            raise WireError("speaks another version")
        if cluster == "odd":
            raise RuntimeError("unforeseen")
        return {"cluster": cluster}

    began = time.monotonic()
    answers = ask_all({"b": (), "slow": (), "bad": (), "odd": (), "a": ()}, {}, ASKER, 0.2, ask)
    hang.set()
    assert time.monotonic() - began < 30.0
    assert list(answers.documents) == ["b", "a"]
    assert answers.left_out == {
        "slow": "no answer within 0.2 s",
        "bad": "speaks another version",
        "odd": "RuntimeError: unforeseen",
    }
