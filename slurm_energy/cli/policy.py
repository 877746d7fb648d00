"""`slurm-energy policy`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings
from slurm_energy.cli.retrain import actor_name
from slurm_energy.config import Config
from slurm_energy.errors import CandidateError, StoreError
from slurm_energy.policy.automatic import AUTOMATIC, checkpoint_folder, chosen_policy
from slurm_energy.policy.checkpoint_files import check_files
from slurm_energy.policy.registry import LEARNED, create_policy, known_policy_names, masked_parts, policy_summary
from slurm_energy.policy.rules.settings import policy_name

if TYPE_CHECKING:
    from slurm_energy.learning.nightly.administration import CandidateDesk

COMMENT = click.option("--comment", metavar="TEXT", default="", help="Why; kept in the history.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")
LEARNED_SUMMARY = "The hierarchical graph network of policy.checkpoint; it comes with the package."


@click.group(epilog="Example: slurm-energy policy list")
def policy() -> None:
    """List, compare, promote or take back policies."""


@contextmanager
def _desk(config: Config) -> "Iterator[CandidateDesk]":
    from slurm_energy.learning.nightly.administration import candidate_desk  # noqa: PLC0415  # SQL only when needed

    with candidate_desk(config) as found:
        yield found


@policy.command(name="list", epilog="Example: slurm-energy policy list --json")
@JSON_OPTION
def list_policies(as_json: bool) -> int:
    """List every policy, the configured one marked, and this cluster's candidates with their stages."""
    from slurm_energy.reporting.candidates import list_lines, live_lines  # noqa: PLC0415  # SQL only when needed

    config = settings()
    configured = policy_name(chosen_policy(config).config.policy.name)
    try:
        with _desk(config) as desk:
            lines, live, trouble = desk.lines(), desk.live(), ""
    except StoreError as error:
        lines, live, trouble = [], None, str(error)
    if as_json:
        print_json(
            {
                "policies": [{"name": name, "configured": name == configured} for name in known_policy_names()],
                "champion": None if live is None else live.champion_id or None,
                "challenger": None if live is None else live.challenger_id or None,
                "stage": None if live is None or live.stage is None else live.stage.value,
                "paused": live is not None and live.paused,
                "candidates": [
                    {
                        "id": one.candidate_id,
                        "stage": one.stage.value if one.stage else None,
                        "made_at_seconds": one.made_at_seconds,
                        "passed": one.passed,
                        "value": one.value,
                    }
                    for one in lines
                ],
            }
        )
        return 0
    for name in known_policy_names():
        summary = LEARNED_SUMMARY if name in LEARNED else policy_summary(name)
        click.echo(f"{'*' if name == configured else ' '} {name:<15} {summary}")
    click.echo()
    if live is None:
        click.echo(f"candidates are not known: {trouble}", err=True)
        return 0
    for line in (*live_lines(live, configured), *list_lines(lines)):
        click.echo(line)
    if not lines:
        click.echo("no candidate yet: slurm-energy retrain makes one of this cluster's history")
    return 0


@policy.command(epilog="Example: slurm-energy policy show oracle")
@click.argument("name", required=False)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a candidate's score sheet to this file, as a page with plots.",
)
@JSON_OPTION
def show(name: str | None, page: Path | None, as_json: bool) -> int:
    """Show a policy's version and what it does, or a candidate's score sheet and history by its id.

    Without a name the configured policy: under policy.name = "auto" that is what auto selects on this host.
    """
    config = settings()
    if name is not None and name != AUTOMATIC and policy_name(name) not in known_policy_names():
        return _write_sheet(config, name, page) if page is not None else _show_candidate(config, name, as_json)
    if page is not None:
        raise click.UsageError("--html is for a candidate's score sheet: name a candidate, see policy list")
    choice = chosen_policy(config)
    configured = choice.config.policy.name
    chosen = configured if name is None or name == AUTOMATIC else name
    version, summary = _version_and_summary(config, chosen)
    facts = {
        "name": chosen,
        "version": version,
        "configured": chosen == configured,
        "automatic": config.policy.name == AUTOMATIC,
        "summary": summary,
        "masked": masked_parts(chosen),
        "default_mode": config.policy.default_mode,
        "max_slowdown": config.policy.max_slowdown,
        "saver_max_slowdown": config.policy.saver_max_slowdown,
        "slowdown_bound": config.policy.slowdown_bound,
        "min_saving_per_slowdown": config.policy.min_saving_per_slowdown,
        "routing_open": config.routing.open,
    }
    if as_json:
        print_json(facts)
        return 0
    for key, value in facts.items():
        if value == "":
            continue
        click.echo(f"{key.replace('_', ' '):<20}{value}")
    if choice.note:
        click.echo(choice.note, err=True)
    return 0


def _write_sheet(config: Config, candidate_id: str, page: Path) -> int:
    """Write a candidate's score sheet as a page."""
    from slurm_energy.evaluation.gate.sheet import ScoreSheet  # noqa: PLC0415  # the gate's libraries only when needed
    from slurm_energy.reporting.score_sheet import score_sheet_html  # noqa: PLC0415  # plots only when needed

    with _desk(config) as desk:
        found = desk.story(candidate_id).sheet
    if found is None:
        raise CandidateError(f"candidate {candidate_id} was not judged by the gate yet: it has no score sheet")
    sheet = ScoreSheet.from_json(json.dumps(found.get("sheet")))
    page.write_text(score_sheet_html(sheet), encoding="utf-8")
    click.echo(f"{page}: score sheet of candidate {candidate_id}")
    return 0


def _show_candidate(config: Config, candidate_id: str, as_json: bool) -> int:
    from slurm_energy.reporting.candidates import story_lines  # noqa: PLC0415  # SQL only when needed

    with _desk(config) as desk:
        story = desk.story(candidate_id)
    if as_json:
        print_json(
            {
                "id": candidate_id,
                "stage": story.line.stage.value if story.line.stage else None,
                "folder": story.folder,
                "document": dict(story.document),
                "score_sheet": None if story.sheet is None else dict(story.sheet),
                "canary": None if story.canary is None else story.canary.document(),
                "history": [
                    {
                        "at_seconds": event.at_seconds,
                        "before": event.before.value if event.before else None,
                        "after": event.after.value if event.after else None,
                        "actor": event.actor,
                        "reason": event.reason,
                        "evidence": dict(event.evidence),
                    }
                    for event in story.events
                ],
            }
        )
        return 0
    for line in story_lines(story):
        click.echo(line)
    return 0


@policy.command(epilog="Example: slurm-energy policy compare 20260301-021500-1f2e3d4c 20260302-021500-5a6b7c8d")
@click.argument("first")
@click.argument("second", required=False)
def compare(first: str, second: str | None) -> int:
    """Show two candidates side by side; without SECOND the parent of FIRST."""
    from slurm_energy.reporting.candidates import compared_lines  # noqa: PLC0415  # SQL only when needed

    with _desk(settings()) as desk:
        one = desk.story(first)
        parent = second or one.parent_id
        other = desk.story(parent) if parent else None
    for line in compared_lines(one, other):
        click.echo(line)
    return 0


@policy.command(epilog="Example: sudo -u slurm slurm-energy policy promote 20260301-021500-1f2e3d4c")
@click.argument("candidate")
@COMMENT
@YES
def promote(candidate: str, comment: str, yes: bool) -> int:
    """Bring a candidate one stage farther: shadow, canary, active.

    In shadow it decides beside the live policy and nothing is applied; in canary it decides the jobs of
    nightly.canary_share of the users; active it decides all.
    """
    with _desk(settings()) as desk:
        line = desk.story(candidate).line
        if line.passed is not True and not yes:
            judged = "was not judged by the gate" if line.passed is None else "did not pass the gate"
            click.confirm(f"Candidate {candidate} {judged}. Promote it anyway?", abort=True, err=True)
        elif not yes:
            click.confirm(
                f"Promote candidate {candidate} ({line.stage.value if line.stage else '?'})?", abort=True, err=True
            )
        stage = desk.promote(candidate, actor_name(), comment)
    click.echo(f"candidate {candidate} is {stage.value}; the daemon follows within seconds")
    return 0


@policy.command(epilog="Example: sudo -u slurm slurm-energy policy rollback --comment 'jobs time out'")
@click.argument("candidate", required=False)
@COMMENT
@YES
def rollback(candidate: str | None, comment: str, yes: bool) -> int:
    """Take a candidate back; without an id the one beside the live policy, else the live one.

    What decided before decides again, within seconds.
    """
    config = settings()
    with _desk(config) as desk:
        live = desk.live()
        chosen = candidate or live.challenger_id or live.champion_id
        if chosen and not yes:
            click.confirm(f"Take candidate {chosen} back?", abort=True, err=True)
        after = desk.roll_back(chosen, actor_name(), comment)
    click.echo(f"{chosen} is taken back; {after.champion_id or 'the configured policy'} decides")
    return 0


@policy.command(epilog="Example: sudo -u slurm slurm-energy policy pause")
def pause() -> int:
    """Let no candidate get farther; one that is worse is taken back anyway."""
    with _desk(settings()) as desk:
        changed = desk.pause(actor_name(), paused=True)
    click.echo("promotion is paused" if changed else "promotion was paused already")
    return 0


@policy.command(epilog="Example: sudo -u slurm slurm-energy policy resume")
def resume() -> int:
    """Let candidates get farther again after `pause`."""
    with _desk(settings()) as desk:
        changed = desk.pause(actor_name(), paused=False)
    click.echo("promotion is resumed" if changed else "promotion was not paused")
    return 0


@policy.command(epilog="Example: sudo -u slurm slurm-energy policy archive")
@click.argument("candidates", nargs=-1)
def archive(candidates: tuple[str, ...]) -> int:
    """Pack candidates' folders away; without ids those beyond the newest nightly.keep.

    Their history stays in the database. To use one again, unpack its file where its folder was.
    """
    with _desk(settings()) as desk:
        packed = desk.archive(candidates)
    for path in packed:
        click.echo(str(path))
    if not packed:
        click.echo("nothing to pack away", err=True)
    return 0


@policy.command(epilog="Example: slurm-energy policy approve 20260301-021500-1f2e3d4c --comment 'looks right'")
@click.argument("candidate")
@COMMENT
def approve(candidate: str, comment: str) -> int:
    """Say that a candidate may get as far as its evidence carries it (nightly.promote = "approved")."""
    return _say(candidate, "approve", comment)


@policy.command(epilog="Example: slurm-energy policy reject 20260301-021500-1f2e3d4c --comment 'too slow for us'")
@click.argument("candidate")
@COMMENT
def reject(candidate: str, comment: str) -> int:
    """Stop a candidate for good; where it decides jobs it is taken back."""
    return _say(candidate, "reject", comment)


@policy.command(epilog="Example: slurm-energy policy rate 20260301-021500-1f2e3d4c 4 --comment 'good on a100'")
@click.argument("candidate")
@click.argument("rating", type=click.IntRange(1, 5))
@COMMENT
def rate(candidate: str, rating: int, comment: str) -> int:
    """Say how good a candidate is, from 1 (bad) to 5 (good); kept for the gate."""
    return _say(candidate, "rate", comment, rating)


def _say(candidate: str, word: str, comment: str, rating: int | None = None) -> int:
    with _desk(settings()) as desk:
        desk.say(candidate, word, actor_name(), comment, rating)
        line = desk.story(candidate).line
    click.echo(f"kept; candidate {candidate} is {line.stage.value if line.stage else '?'}")
    return 0


def _version_and_summary(config: Config, name: str) -> tuple[str, str]:
    """Return version and summary; of a learned policy from its files, since torch is for the process that serves it."""
    if name not in LEARNED:
        built = create_policy(replace(config, policy=replace(config.policy, name=name)))
        return built.version, policy_summary(policy_name(name))
    if not config.policy.checkpoint:
        return "none: policy.checkpoint is empty", LEARNED_SUMMARY
    return check_files(checkpoint_folder(config)).version, LEARNED_SUMMARY
