"""What doctor says of the clusters among which energy-sbatch chooses."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_energy import __version__
from slurm_energy.cli.doctor import several_clusters
from slurm_energy.cli.doctor.finding import HostFacts, Verdict
from slurm_energy.cli.site import CommandResult
from slurm_energy.config import ClustersConfig, Config
from slurm_energy.wire.offers import Answers

ADDRESSES = {"a": "a.example:8470", "b": "b.example:8470"}


def facts(**clusters: Any) -> HostFacts:
    config = replace(Config(), clusters=ClustersConfig(**clusters))
    return HostFacts(config=config, roles=(), environment={}, slurm_conf=Path("/none"), conf={}, slurm_version=None)


def said(
    monkeypatch: pytest.MonkeyPatch,
    documents: Mapping[str, Mapping[str, object]],
    left_out: Mapping[str, str] | None = None,
    known: str = "a\nb\n",
    **clusters: Any,
) -> list[tuple[Verdict, str]]:
    monkeypatch.setattr(
        several_clusters, "ask_all", lambda *_given: Answers(documents=documents, left_out=left_out or {})
    )
    result = CommandResult(ok=bool(known), stdout=known, complaint="" if known else "refused")
    monkeypatch.setattr(several_clusters, "slurm_command", lambda *_given: result)
    found = several_clusters.several_clusters_checks(facts(**({"addresses": ADDRESSES} | clusters)))
    return [(finding.verdict, finding.found) for finding in found]


def answer(**changes: object) -> dict[str, object]:
    return {"version": __version__, "now_seconds": time.time(), **changes}


def test_a_site_without_clusters_hears_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, {}, addresses={}) == []


def test_all_is_well_where_each_answers_and_slurmdbd_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = said(monkeypatch, {"a": answer(), "b": answer()})
    assert [verdict for verdict, _ in found] == [Verdict.OK] * 3


@pytest.mark.parametrize(
    ("made", "verdict", "words"),
    [
        (lambda: answer(now_seconds=time.time() - 4000.0), Verdict.FAIL, "clock is 4"),
        (lambda: answer(now_seconds=time.time() + 4000.0), Verdict.FAIL, "clock is"),
        (lambda: answer(version="0.0.1"), Verdict.WARN, "daemon is 0.0.1"),
        (lambda: answer(version=None), Verdict.FAIL, "neither its version nor its time"),
        (lambda: answer(now_seconds="now"), Verdict.FAIL, "neither its version nor its time"),
        (lambda: answer(now_seconds=True), Verdict.FAIL, "neither its version nor its time"),
    ],
)
def test_what_is_wrong_with_one_is_said(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[], dict[str, object]], verdict: Verdict, words: str
) -> None:
    found = said(monkeypatch, {"a": made(), "b": answer()})
    assert found[0][0] is verdict and words in found[0][1]


def test_one_without_answer_address_or_place_in_slurmdbd_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    found = said(monkeypatch, {"a": answer()}, {"b": "no answer within 10 s"}, known="a\n", names=("a", "c", "d e"))
    failed = [words for verdict, words in found if verdict is Verdict.FAIL]
    assert any("'d e' in [clusters] is no name" in words for words in failed)
    assert any("clusters.addresses has no c" in words for words in failed)
    assert any("b at b.example:8470: no answer" in words for words in failed)
    assert any("slurmdbd knows no cluster c, d e, b" in words for words in failed)


def test_without_slurmdbd_its_word_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, {"a": answer(), "b": answer()}, known="")[-1][0] is Verdict.SKIP
