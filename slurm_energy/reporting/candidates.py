"""Candidates as an administrator reads them: a list, and a page on one with its score sheet and its history."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from slurm_energy.domain.promotion import LivePolicy, PolicyEvent
from slurm_energy.learning.nightly.administration import CandidateLine, CandidateStory
from slurm_energy.learning.nightly.sequential import CanaryReport
from slurm_energy.reporting.visible import visible

_MAX_TEXT = 160


def live_lines(live: LivePolicy, configured: str) -> Iterator[str]:
    """Yield which policies decide now."""
    yield f"decides          {live.champion_id or f'{configured} (configured)'}"
    if live.challenger_id and live.stage is not None:
        share = f", {live.canary_share:.0%} of the users" if live.canary_share else ""
        yield f"beside it        {live.challenger_id} ({live.stage.value}{share}) since {moment(live.since_seconds)}"
    if live.paused:
        yield "promotion        paused: no candidate gets farther; one that is worse is taken back anyway"


def list_lines(lines: Sequence[CandidateLine]) -> Iterator[str]:
    """Yield a line for each candidate."""
    for one in lines:
        gate = "not judged" if one.passed is None else "passed" if one.passed else "not passed"
        value = "" if one.value is None else f" {one.value:.3f}"
        stage = one.stage.value if one.stage else "?"
        yield f"{one.candidate_id:<26} {stage:<10} {moment(one.made_at_seconds)}  gate {gate}{value}  {cut(one.last)}"


def story_lines(story: CandidateStory) -> Iterator[str]:
    """Yield the page on a candidate."""
    line, document = story.line, story.document
    data: Mapping[str, Any] = document.get("data", {})
    yield f"candidate        {line.candidate_id}"
    yield f"stage            {line.stage.value if line.stage else '?'}: {cut(line.last)}"
    made_of = f"{data.get('jobs')} jobs, {data.get('measured_jobs')} measured"
    yield f"made             {moment(line.made_at_seconds)} from {made_of}"
    yield f"history          {moment(data.get('from_seconds'))} to {moment(data.get('until_seconds'))}"
    yield f"brings           {', '.join(line.parts) or 'nothing of its own'}"
    if document.get("policy"):
        yield f"policy           {visible(str(document['policy']))}"
    yield f"folder           {visible(story.folder)}"
    for note in data.get("notes", ()):
        yield f"note             {visible(str(note))}"
    figures: Mapping[str, float] = document.get("figures", {})
    if figures:
        yield ""
        yield "On the held-out days, against the live policy"
        yield from _figure_lines(figures)
    yield ""
    yield from _sheet_lines(story.sheet)
    if story.shadow is not None:
        counts = story.shadow
        yield ""
        rest = f"{counts.errors} without an answer, {counts.late} late"
        yield f"In shadow: differs in {counts.differing} of {counts.decisions} decisions, {rest}"
    if story.canary is not None:
        yield ""
        yield from report_lines(story.canary)
    yield ""
    yield "History"
    for event in story.events:
        yield f"  {_event(event)}"


def compared_lines(one: CandidateStory, other: CandidateStory | None) -> Iterator[str]:
    """Yield two candidates side by side; None is the configured policy."""
    second = "configured policy" if other is None else other.line.candidate_id
    yield f"{'':<24} {one.line.candidate_id:<28} {second}"
    for name, first, then in _compared(one, other):
        yield f"{name:<24} {first:<28} {then}{'' if first == then else '   <-'}"


def _compared(one: CandidateStory, other: CandidateStory | None) -> Iterator[tuple[str, str, str]]:
    def of(story: CandidateStory | None, key: str) -> str:
        return "-" if story is None else visible(str(story.document.get(key) or "-"))

    stage = "-" if other is None or other.line.stage is None else other.line.stage.value
    yield "stage", one.line.stage.value if one.line.stage else "?", stage
    yield "made", moment(one.line.made_at_seconds), "-" if other is None else moment(other.line.made_at_seconds)
    yield "brings", ", ".join(one.line.parts) or "-", "-" if other is None else ", ".join(other.line.parts) or "-"
    mine, theirs = (dict(_prices(of(story, "policy"))) for story in (one, other))
    for name in dict.fromkeys((*mine, *theirs)):
        yield name, mine.get(name, "-"), theirs.get(name, "-")
    figures: Mapping[str, float] = one.document.get("figures", {})
    others: Mapping[str, float] = {} if other is None else other.document.get("figures", {})
    for name in dict.fromkeys((*figures, *others)):
        values = [f"{found[name]:.5g}" if name in found else "-" for found in (figures, others)]
        yield name.replace("_", " "), values[0], values[1]


def _prices(text: str) -> Iterator[tuple[str, str]]:
    name, _, rest = text.partition(":")
    yield "policy", name
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        yield f"  {key}", value


def _figure_lines(figures: Mapping[str, float]) -> Iterator[str]:
    for name, words, unit in (
        ("held_out_joules", "energy", "J"),
        ("held_out_turnaround_seconds", "mean turnaround", "s"),
        ("held_out_failed_share", "jobs not completed", ""),
    ):
        own, live = figures.get(name), figures.get(f"incumbent_{name}")
        if own is None or live is None:
            continue
        change = f" ({100.0 * (own / live - 1.0):+.2f} %)" if live else ""
        yield f"  {words:<20} {own:,.4g} {unit} against {live:,.4g} {unit}{change}"
    if "named_clocks" in figures:
        yield f"  {'names with a clock':<20} {figures['named_clocks']:.0f}, measured by their own runs"


def _sheet_lines(sheet: Mapping[str, Any] | None) -> Iterator[str]:
    if sheet is None:
        yield "Gate: not judged yet"
        return
    passed, value = sheet.get("passed"), sheet.get("value")
    number = f", value {value:.3f}" if isinstance(value, int | float) else ""
    yield f"Gate: {'passed' if passed else 'not passed'}{number}"
    if isinstance(sheet.get("hyperscore"), int | float):
        yield f"  HyperScore        {sheet['hyperscore']:.1f}"
    if sheet.get("needs_person"):
        yield "  very different from the live policy: a person must approve it (policy approve)"
    document = sheet.get("sheet")
    found: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
    weights: Mapping[str, Any] = found.get("weights") or {}
    for stage in found.get("stages", ()):
        yield from _stage_lines(stage, weights)
    review = found.get("review") or ()
    if review:
        yield "  decisions to look at first"
    for item in review:
        what = (
            f"{item.get('job', '?')}: {item.get('incumbent') or 'as Slurm does'} -> {item.get('candidate') or 'same'}"
        )
        yield f"    {item.get('why', ''):<10} {cut(what)}"


def _stage_lines(stage: Mapping[str, Any], weights: Mapping[str, Any]) -> Iterator[str]:
    name, verdict = str(stage.get("stage", "?")), str(stage.get("verdict", "?"))
    score, weight = stage.get("score"), weights.get(name)
    figures = "" if not isinstance(score, int | float) else f" score {score:.2f}"
    figures += f" weight {weight:.2f}" if isinstance(weight, int | float) else ""
    yield f"  {visible(name):<16} {verdict.upper() if verdict == 'stopped' else verdict:<10}{figures}"
    yield f"    {cut(str(stage.get('summary', '')))}"
    for label, one in (stage.get("intervals") or {}).items():
        yield f"    {visible(str(label))}: {one['mean']:+.4g} [{one['low']:+.4g}, {one['high']:+.4g}]"
    for note in stage.get("notes") or ():
        yield f"    {cut(str(note))}"


def report_lines(report: CanaryReport) -> Iterator[str]:
    """Yield what a canary's jobs say so far."""
    yield f"In canary: {report.verdict.value}: {cut(report.reason)}"
    for one in report.comparisons:
        interval = f"[{100.0 * one.low:+.1f}, {100.0 * one.high:+.1f}]"
        yield (
            f"  {one.name:<14} {100.0 * one.difference:+.2f} % {interval} of {one.jobs} jobs against {one.live_jobs}, "
            f"{one.users} users"
        )


def _event(event: PolicyEvent) -> str:
    moved = ""
    if event.before is not event.after and event.after is not None:
        moved = f"{event.before.value if event.before else 'new'} -> {event.after.value}: "
    said = event.evidence.get("comment") or ""
    rating = f" {event.evidence['rating']} of 5" if "rating" in event.evidence else ""
    comment = f": {cut(str(said))}" if said else ""
    return f"{moment(event.at_seconds)}  {visible(event.actor):<14} {moved}{cut(event.reason)}{rating}{comment}"


def moment(seconds: Any) -> str:
    """Return a time as people read it here."""
    if not isinstance(seconds, int | float) or seconds <= 0.0:
        return "-"
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def cut(text: str) -> str:
    """Return a text at a length for a line."""
    shown = visible(text)
    return shown if len(shown) <= _MAX_TEXT else f"{shown[: _MAX_TEXT - 3]}..."
