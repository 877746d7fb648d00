"""How a user asks the daemons of several clusters what his job would cost there, and how their answers are trusted.

The question is signed as a node's report is: a munge credential that names the user and that the cluster's munge opens,
or an HMAC by the shared key, whose holder is trusted to say for whom he asks. The body names the cluster that is asked:
another one that it is shown to refuses it. The answer comes back in a credential of the daemon's that the user alone
can open, or signed by the key; it holds the nonce of the question.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_energy.domain.cluster_offer import ClusterOffer, is_cluster_name
from slurm_energy.domain.plain import from_plain
from slurm_energy.errors import DaemonUnavailable, DeadlineExceeded, SlurmEnergyError, ValueRangeError, WireError
from slurm_energy.wire.client import exchange_tcp
from slurm_energy.wire.codec import MAX_DECIDE_BYTES, Message, decode, encode

if TYPE_CHECKING:
    from slurm_energy.wire.authentication import Verified

MAX_REASON_CHARACTERS = 200
Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferRequest:
    """What an authenticated user asks."""

    user_id: int
    cluster: str
    """That he means to ask."""
    nonce: str
    fields: Mapping[str, str]
    """The job, as `preview` takes it; empty where only the daemon's name, version and clock are asked for."""


def decode_offer_request(verified: "Verified") -> OfferRequest:
    """Return the question of an authenticated body.

    Raises:
        WireError: it is none.
    """
    message = decode(verified.body, MAX_DECIDE_BYTES)
    fields = dict(message.fields)
    cluster, nonce = fields.pop("for_cluster", ""), fields.pop("nonce", "")
    stated = fields.pop("uid", "")
    if message.verb != "offer" or not is_cluster_name(cluster) or not (nonce.isascii() and nonce.isalnum()):
        raise WireError("an authenticated message asks for no offer")
    if len(nonce) != 2 * _NONCE_BYTES:
        raise WireError(f"the nonce of a question for an offer has {len(nonce)} characters, {2 * _NONCE_BYTES} are due")
    user_id = verified.user_id
    if user_id is None:  # the key names no user: who holds it is trusted to say for whom he asks
        if not (stated.isascii() and stated.isdigit() and len(stated) <= 10):
            raise WireError(f"uid {stated[:40]!r} of a question for an offer is not a number")
        user_id = int(stated)
    return OfferRequest(user_id=user_id, cluster=cluster, nonce=nonce, fields=fields)


_NONCE_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks, and how he is authenticated."""

    key: bytes | None
    """The shared key; None for munge."""
    daemon_user_ids: Collection[int]
    """Whom a daemon may run as."""
    user_id: int


def ask_offer(
    cluster: str, addresses: Sequence[Address], fields: Mapping[str, str], asker: Asker, deadline_seconds: float
) -> Mapping[str, object]:
    """Return what a cluster's daemon answers: the document of its offer, or of itself where `fields` are empty.

    Args:
        cluster: Its name.
        addresses: Of its daemons, tried in order.
        fields: The job.
        asker: Who asks.
        deadline_seconds: For all of it.

    Raises:
        SlurmEnergyError: no answer in time, not authenticated, refused, or no such document.
    """
    from slurm_energy.wire.authentication import check_answer, sign  # noqa: PLC0415  # loads subprocess and hmac

    end = time.monotonic() + deadline_seconds
    failed: SlurmEnergyError = WireError(f"cluster {cluster} has no address")
    for at, address in enumerate(addresses):
        left = end - time.monotonic()
        if left <= 0.0:
            raise DeadlineExceeded(f"no answer within {deadline_seconds:g} s")
        nonce = os.urandom(_NONCE_BYTES).hex()
        body = encode(Message("offer", {**fields, "for_cluster": cluster, "nonce": nonce, "uid": str(asker.user_id)}))
        request = sign(body, key=asker.key, tool_seconds=left, verb="offer")
        try:
            share = max(0.001, end - time.monotonic()) / (len(addresses) - at)
            reply = exchange_tcp(address, request, max(0.001, end - time.monotonic()), share)
        except (DaemonUnavailable, WireError) as error:
            failed = error
            continue
        if reply.verb != "ok":
            raise WireError(reply.fields.get("reason", "refused without a reason")[:MAX_REASON_CHARACTERS])
        left = max(0.001, end - time.monotonic())
        text = check_answer("offer", reply, nonce, asker.key, asker.daemon_user_ids, tool_seconds=left)
        return _document(text, cluster)
    raise failed


def _document(text: str, cluster: str) -> Mapping[str, object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError("the answer is no JSON") from error
    if not isinstance(document, dict):
        raise WireError("the answer is no JSON object")
    named = document.get("cluster")
    if named != cluster:
        raise WireError(f"the answer is of cluster {str(named)[:40]!r}, {cluster!r} was asked")
    return document


def offer_of_document(document: Mapping[str, object]) -> ClusterOffer:
    """Return the offer of an answer, every figure of it inside its bound.

    Raises:
        WireError: it is none.
    """
    try:
        return from_plain(ClusterOffer, dict(document), "offer")
    except ValueRangeError as error:
        raise WireError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What came in time."""

    documents: Mapping[str, Mapping[str, object]]
    """By cluster, in the order asked."""
    left_out: Mapping[str, str]
    """Why another one gave none."""


def ask_all(
    addresses: Mapping[str, Sequence[Address]],
    fields: Mapping[str, str],
    asker: Asker,
    deadline_seconds: float,
    ask: Callable[..., Mapping[str, object]] = ask_offer,
) -> Answers:
    """Return what several clusters answer, all asked at once; whatever hangs, this ends at the deadline.

    Args:
        addresses: Of each cluster's daemons.
        fields: The job.
        asker: Who asks.
        deadline_seconds: For all together.
        ask: `ask_offer`, or what stands in for it.
    """
    end = time.monotonic() + deadline_seconds
    found: dict[str, Mapping[str, object]] = {}
    failed: dict[str, str] = {}
    lock = threading.Lock()

    def one(cluster: str) -> None:
        try:
            document = ask(cluster, addresses[cluster], fields, asker, max(0.001, end - time.monotonic()))
        except DeadlineExceeded:
            pass  # said below, with the deadline of all
        except SlurmEnergyError as error:
            with lock:
                failed[cluster] = str(error)
        except Exception as error:  # noqa: BLE001  # of a name server, say: one cluster is left out, and the job goes on
            with lock:
                failed[cluster] = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARACTERS]
        else:
            with lock:
                found[cluster] = document

    threads = [threading.Thread(target=one, args=(cluster,), daemon=True) for cluster in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    with lock:
        late = f"no answer within {deadline_seconds:g} s"
        return Answers(
            documents={cluster: found[cluster] for cluster in addresses if cluster in found},
            left_out={cluster: failed.get(cluster, late) for cluster in addresses if cluster not in found},
        )
