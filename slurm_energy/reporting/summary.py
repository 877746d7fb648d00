"""What a job used in a few lines for its user, and what can be done about what was wasted."""

from collections.abc import Iterator

from slurm_energy.domain.report import EnergyReport, ExplainRecord
from slurm_energy.reporting.quantities import duration_text, energy_text, kwh_text, mass_text, percent_text, sum_text
from slurm_energy.reporting.visible import visible

IDLE_SHARE = 0.05
"""Utilisation under which a GPU did nothing."""
LOW_SHARE = 0.30
SHORT_SHARE = 0.25
"""Of the time limit, under which a shorter one is worth a line."""
MIN_SECONDS = 300.0
"""A shorter run says nothing of the work."""


def summary_lines(story: ExplainRecord, report: EnergyReport) -> list[str]:
    """Return what a job used and what that cost.

    Args:
        story: All that is recorded of the job.
        report: Of the same job alone, with prices.
    """
    job, use = story.job, report.total.use
    name = f" {visible(job.name, 40)}" if job.name else ""
    lines = [f"Energy of job {job.job_id}{name}", f"  GPUs        {sum_text(job.gpu)}"]
    if job.gpu.joules is not None:
        lines[-1] += f" ({kwh_text(job.gpu.joules)})"
    if job.host.joules is not None:
        lines.append(f"  Processors  {energy_text(job.host.joules)} (the job's part of its nodes')")
    if use.utilisation is not None:
        lines.append(f"  GPU use     {percent_text(use.utilisation)} of the time")
    if use.idle_gpu_joules and job.gpu.joules:
        share = percent_text(use.idle_gpu_joules / job.gpu.joules)
        lines.append(f"  Idle        {energy_text(use.idle_gpu_joules)}, {share} of it, while GPUs did nothing")
    if use.cost is not None and report.facility.currency:
        lines.append(f"  Cost        {use.cost:.2f} {report.facility.currency}")
    if use.co2_grams is not None:
        lines.append(f"  CO2         {mass_text(use.co2_grams)}")
    if job.saving_joules is not None and use.saving_low_joules is not None and use.saving_high_joules is not None:
        low, high = energy_text(use.saving_low_joules), energy_text(use.saving_high_joules)
        lines.append(f"  Saved       {energy_text(job.saving_joules)} ({low} to {high}) by the chosen clock, predicted")
    lines.extend(f"  Unknown     {visible(reason)}" for reason in job.unknown_reasons[:2])
    return lines


def advice_lines(story: ExplainRecord) -> list[str]:
    """Return what the user can do; nothing where nothing was wasted, or nothing is known of it."""
    return list(_advice(story))


def _advice(story: ExplainRecord) -> Iterator[str]:
    job = story.job
    last = max((gpu.restart_count for gpu in story.gpus), default=0)
    uses = [gpu.utilisation for gpu in story.gpus if gpu.restart_count == last]
    known = [use for use in uses if use is not None]
    if job.run_seconds is None or job.run_seconds < MIN_SECONDS:
        return
    if known and len(known) == len(uses):
        idle = sum(use < IDLE_SHARE for use in known)
        if idle == len(known):
            yield "The GPUs did nothing: use a partition without GPUs, or check that the program finds its GPUs."
        elif idle:
            yield f"{idle} of {len(known)} GPUs did nothing: ask for {len(known) - idle}."
        elif sum(known) / len(known) < LOW_SHARE:
            share = percent_text(sum(known) / len(known))
            yield f"The GPUs worked {share} of the time: the program waits for something else, most often for its data."
    limit = None if story.decision is None else story.decision.asked.time_limit_minutes
    if limit and job.attempts <= 1 and job.run_seconds < SHORT_SHARE * limit * 60.0:
        took, asked = duration_text(job.run_seconds), duration_text(limit * 60.0)
        yield f"It took {took} of {asked} (--time): a shorter limit lets a job start earlier."
