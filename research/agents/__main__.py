"""Train the agents that the results page holds against rules, then run its comparisons and write it.

    python -m research.agents --folder build/agents --write docs/reference/results.md [...]

Agents that were trained into the folder at this revision by the same recipe are not trained again, and one that was
interrupted is continued; --same-as REVISION says that agents of that revision will do too. What is behind --folder goes
to `research.results`.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic

from research.results.__main__ import main as run_results
from research.results.provenance import are_same, revision

_RECIPES = Path(__file__).parent
_SMALL = {"hidden": "24", "quantiles": "8", "device_layers": "1"}
NETWORKS = {
    "hierarchical": {**_SMALL, "pooling": '"coarsening"'},
    "flat": {**_SMALL, "hierarchy": '"flat"'},
    "vector": {**_SMALL, "hierarchy": '"vector"', "attention": '"none"'},
    "spatial": {**_SMALL, "pooling": '"coarsening"', "propagation": '"spatial"'},
    "spectral": {**_SMALL, "pooling": '"coarsening"', "propagation": '"spectral"'},
}
"""Values in TOML, by the name of a form."""
_TEACHER = ("--world", "lab-open", "--teacher", "price:V=20", "--hours", "24", "--epochs", "6", "--seed", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One training."""

    label: str
    recipe: str
    """File beside this one; empty for imitation."""
    network: str
    section: str
    policy: str
    """Text of the policy, with {} for the checkpoint."""
    begins_as: str = ""
    """Name of the agent whose weights it begins with."""
    world: str = ""
    """In the place of the recipe's."""

    @property
    def name(self) -> str:
        """Name of its folder."""
        return "-".join(part for part in (self.recipe or "imitation", self.network, self.world) if part)

    def checkpoint(self, folder: Path) -> Path:
        """Return where its checkpoint is."""
        return folder / self.name / "last" if self.recipe else folder / self.name

    def option(self, folder: Path) -> str:
        """Return how the results command takes it."""
        return f"{self.label}::{self.section}::{self.policy.format(self.checkpoint(folder))}"


def _agents() -> Iterator[Agent]:
    chooser = "gnn:checkpoint={}"
    imitation = Agent(label="imitation", recipe="", network="hierarchical", section="agents", policy=chooser)
    yield imitation
    yield Agent(
        label="chsac",
        recipe="chsac",
        network="hierarchical",
        section="agents",
        policy=chooser,
        begins_as=imitation.name,
    )
    for network in ("hierarchical", "flat", "vector"):
        label = f"policy gradient, {network}"
        yield Agent(label=label, recipe="policy-gradient", network=network, section="agents", policy=chooser)
    yield Agent(  # the same network, asked to save
        label="policy gradient, hierarchical, saver",
        recipe="policy-gradient",
        network="hierarchical",
        section="agents",
        policy="gnn:checkpoint={},mode=saver",
    )
    for network in NETWORKS:
        yield Agent(
            label=f"tum128 prices, {network}",
            recipe="prices",
            network=network,
            section="forms",
            policy="learned-price:checkpoint={},V=200",
        )
    for kind in ("training", "scientific"):
        yield Agent(
            label=f"prices learned on {kind} jobs",
            recipe="prices",
            network="hierarchical",
            section="tum128-scientific",
            policy="learned-price:checkpoint={},V=200",
            world=f"tum128-{kind}",
        )


AGENTS = tuple(_agents())


def train(agent: Agent, folder: Path, same_revisions: Sequence[str] = ()) -> None:
    """Train one agent, unless it is there and made at the same revision, by the same recipe and from the same weights.

    Raises:
        subprocess.CalledProcessError: the training failed; it has said why.
    """
    target, made_by = folder / agent.name, folder / f"{agent.name}.made-by"
    settings = folder / f"{agent.name}.toml"
    text, options = _settings(agent, folder)
    recipe = _recipe_digest(agent, folder, text, options)
    known_revision, _, known_recipe = (made_by.read_text(encoding="utf-8") if made_by.exists() else "").partition("\n")
    is_same = known_recipe == recipe and are_same(known_revision, revision(), same_revisions)
    if is_same and agent.checkpoint(folder).exists():  # it is only there after the last round, and whole
        return
    resumes = is_same and (target / "state.pt").exists()
    if not resumes:
        shutil.rmtree(target, ignore_errors=True)
    settings.write_text(text, encoding="utf-8")
    made_by.write_text(f"{revision()}\n{recipe}", encoding="utf-8")  # before, so that what is interrupted goes on
    options = ["--resume", str(target)] if resumes else [*options, str(settings), "--output", str(target)]
    program = (sys.executable, "-m", "slurm_energy.cli.main")  # of this checkout
    begin = monotonic()
    # On the CPU, where the same seed gives the same agent.
    subprocess.run([*program, "train", "--device", "cpu", *options], check=True, stdout=subprocess.DEVNULL)
    sys.stderr.write(f"trained {agent.name} in {monotonic() - begin:.0f} s\n")


def _settings(agent: Agent, folder: Path) -> tuple[str, list[str]]:
    """Return the text of an agent's settings, and the options of its training, of which the last takes their file."""
    network = "\n".join(f"{key} = {value}" for key, value in NETWORKS[agent.network].items()) + "\n"
    if not agent.recipe:
        return network, [*_TEACHER, "--network"]
    text = (_RECIPES / f"{agent.recipe}.toml").read_text(encoding="utf-8")
    world = ["--world", agent.world] if agent.world else []
    if agent.begins_as:  # and takes the form of that network
        return text, [*world, "--start-from", str(folder / agent.begins_as), "--config"]
    return f"{text}\n[network]\n{network}", [*world, "--config"]


def _recipe_digest(agent: Agent, folder: Path, text: str, options: Sequence[str]) -> str:
    """Return a digest of an agent's settings, options and first weights."""
    before = folder / f"{agent.begins_as}.made-by"
    begun = before.read_text(encoding="utf-8") if agent.begins_as else ""
    plain = [option.replace(str(folder), "") for option in options]  # the same in every folder
    return sha256("\0".join((text, *plain, begun)).encode()).hexdigest() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, then run the comparisons; return 1 when something could not be."""
    parser = argparse.ArgumentParser(prog="python -m research.agents", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--folder", type=Path, required=True, metavar="FOLDER", help="where trained agents are kept")
    parser.add_argument("--same-as", action="append", default=[], metavar="REVISION", help="keep agents of it too")
    given, rest = parser.parse_known_args(arguments)
    rest += [word for name in given.same_as for word in ("--same-as", name)]
    given.folder.mkdir(parents=True, exist_ok=True)
    for agent in AGENTS:
        try:
            train(agent, given.folder, given.same_as)
        except subprocess.CalledProcessError as error:
            sys.stderr.write(f"{agent.name} could not be trained: {error}\n")
            return 1
    return run_results([*rest, *(part for agent in AGENTS for part in ("--policy", agent.option(given.folder)))])


if __name__ == "__main__":
    sys.exit(main())
