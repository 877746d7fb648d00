"""The clusters among which energy-sbatch chooses: each one's daemon, version, clock, and whether slurmdbd knows it."""

import time
from collections.abc import Iterator, Mapping, Sequence

from slurm_energy import __version__
from slurm_energy.cli.doctor.finding import Finding, HostFacts, fail, ok, several, skip, warn
from slurm_energy.cli.sbatch.clusters import asker_of, cluster_addresses
from slurm_energy.cli.site import slurm_command
from slurm_energy.domain.cluster_offer import is_cluster_name
from slurm_energy.errors import SlurmEnergyError
from slurm_energy.wire.authentication import MAX_AGE_SECONDS
from slurm_energy.wire.offers import Address, Asker, ask_all

SUBJECT = "several clusters"
MAX_SKEW_SECONDS = 30.0
"""Beyond it a start and a tariff are stated wrongly; beyond five minutes no question is authenticated."""
DEADLINE_SECONDS = 10.0


def several_clusters_checks(situation: HostFacts) -> Iterator[Finding]:
    """Yield how each cluster of [clusters] answers; nothing where the site has none."""
    config = situation.config
    names = tuple(dict.fromkeys((*config.clusters.names, *config.clusters.addresses)))
    if not names:
        return
    for name in names:
        if not is_cluster_name(name):
            yield fail(SUBJECT, f"{name!r} in [clusters] is no name of a cluster", "write names as in ClusterName")
    addresses, without = cluster_addresses([name for name in names if is_cluster_name(name)], config)
    for name, reason in without.items():
        yield fail(SUBJECT, reason, f"add {name} to clusters.addresses, HOST:PORT of its daemon's report port")
    try:
        asker = asker_of(config)
    except SlurmEnergyError as error:
        yield skip(SUBJECT, str(error), "run this as root, or set node.authentication to munge")
        return
    yield from _daemons(addresses, asker)
    yield _known_to_slurmdbd(situation, names)


def _daemons(addresses: Mapping[str, Sequence[Address]], asker: Asker) -> Iterator[Finding]:
    began = time.time()
    answers = ask_all(addresses, {}, asker, DEADLINE_SECONDS)
    took = time.time() - began
    for name, reason in answers.left_out.items():
        where = ", ".join(f"{host}:{port}" for host, port in addresses[name])
        yield fail(
            SUBJECT,
            f"{name} at {where}: {reason}",
            f"check there: systemctl status slurm-energyd, daemon.report_host, the firewall, cluster.name = {name}, "
            "one munge key on all clusters",
        )
    for name, document in answers.documents.items():
        version, at = document.get("version"), document.get("now_seconds")
        if not isinstance(version, str) or isinstance(at, bool) or not isinstance(at, int | float):
            yield fail(SUBJECT, f"{name}'s daemon says neither its version nor its time", "update slurm-energy there")
            continue
        skew = max(0.0, began - at, at - began - took)
        if skew > MAX_SKEW_SECONDS:
            yield fail(
                SUBJECT,
                f"{name}'s clock is {skew:.0f} s off from this host's",
                f"synchronise both; from {MAX_AGE_SECONDS:.0f} s on no question is authenticated",
            )
        elif version != __version__:
            yield warn(
                SUBJECT,
                f"{name}'s daemon is {version[:40]}, this host has {__version__}",
                "update one of them: offers are understood between releases, but not all figures may be there",
            )
        else:
            yield ok(SUBJECT, f"{name}'s daemon answers, {version}, its clock fits")


def _known_to_slurmdbd(situation: HostFacts, names: Sequence[str]) -> Finding:
    """Return whether `sbatch -M` can reach every cluster."""
    said = slurm_command(situation.config, "sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster")
    if not said.ok:
        return skip(SUBJECT, f"slurmdbd does not answer: {said.complaint}", "sbatch -M needs slurmdbd")
    known = {line.strip() for line in said.stdout.splitlines()}
    missing = [name for name in names if name not in known]
    if missing:
        return fail(
            SUBJECT,
            f"slurmdbd knows no cluster {several(missing)}: sbatch -M would fail",
            "write names as in ClusterName of slurm.conf; a cluster registers when its slurmctld starts",
        )
    return ok(SUBJECT, f"slurmdbd knows {several(names)}")
