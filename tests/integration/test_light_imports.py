"""What starts at every job, command or daemon imports nothing that is slow or may be missing."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from served_cluster import lab
from weights_samples import safetensors_file

from slurm_energy.cli.main import NOUNS
from slurm_energy.graph import schema
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.checkpoint_files import DOCUMENT_FILE, WEIGHTS_FILE, CheckpointMetadata, sha256
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import create_network
from slurm_energy.policy.gnn.serving import PricedPolicy

COEFFICIENT_READERS = ("coefficients", "mig", "saturation")
FITTING = {"click", "numpy", "rich", "scipy"}
TORCH = {"safetensors", "torch", "torch_geometric"}
LIGHT = {
    "daemon.app": TORCH,
    "daemon.policy.process": TORCH,
    "policy.registry": TORCH,
    "policy.site.check": TORCH,
    "node.main": TORCH,
    "cli.main": TORCH,
    "domain.report": {"sqlalchemy"},
    "store.schema": {"alembic"},
    "store.reports": {"alembic"},
    "energy_model.catalog": {"json", "numpy", "pathlib", "scipy", "torch"},
    **{f"energy_model.{name}": FITTING for name in COEFFICIENT_READERS},
}
"""Module of the package, and what it must not import."""


@pytest.mark.parametrize("module", LIGHT)
def test_module_imports_nothing_heavy(module: str) -> None:
    look = f"import sys, slurm_energy.{module}; print(sorted({LIGHT[module]!r} & set(sys.modules)))"
    # Without site, which imports pathlib and json by itself where a package is installed in editable form.
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {look}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_is_fast_because_it_imports_no_command() -> None:
    probe = (
        "import sys\nfrom slurm_energy.cli.main import main\ncode = main(['--help'])\n"
        "heavy = {'sqlalchemy', 'rich', 'jinja2', 'torch', 'alembic', 'pynvml', 'asyncio'}\n"
        "sys.exit(code or ','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "report" in done.stdout


def test_completing_a_command_imports_none_of_them() -> None:
    code = (
        "import os, sys; from slurm_energy.cli.main import main\n"
        "try: main([])\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('slurm_energy.cli.')))"
    )
    environment = os.environ | {
        "_SLURM_ENERGY_COMPLETE": "bash_complete",
        "COMP_WORDS": "slurm-energy ",
        "COMP_CWORD": "1",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    *words, modules = done.stdout.splitlines()
    assert words == [f"plain,{noun}" for noun in sorted(NOUNS)]
    assert modules == "['slurm_energy.cli.main']"


def test_looking_for_torch_imports_none_of_it() -> None:
    script = (
        "import sys; from slurm_energy.config import Config; from slurm_energy.daemon.decide import create_decider;"
        "print(create_decider(Config()).policy.name, sorted({'safetensors', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "gnn []\n"
    hidden = "import sys; sys.modules.update(dict.fromkeys(('torch', 'safetensors')));" + script
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("oracle ")


COMPARE = """
import sys
if sys.argv[1] == "light":
    from slurm_energy.node import quick_start
    quick_start.install()
import dataclasses, importlib, pkgutil
import slurm_energy.node as node
from slurm_energy.wire.report import encode_report, decode_report
for module in pkgutil.iter_modules(node.__path__):
    if module.name != "main":
        importlib.import_module("slurm_energy.node." + module.name)
import slurm_energy.device.nvml, slurm_energy.config
seen = []
for name, module in sorted(sys.modules.items()):
    if name.startswith("slurm_energy.") and ".quick_start" not in name:
        for thing in vars(module).values():
            if isinstance(thing, type) and thing.__module__ == name and dataclasses.is_dataclass(thing):
                known = dataclasses.MISSING
                seen.append((name, thing.__qualname__, [
                    (item.name, str(item.type), item.default is known, item.default_factory is known, item.compare,
                     item.repr, item.kw_only) for item in dataclasses.fields(thing)
                ]))
print(len(seen))
print(seen)
print(repr(slurm_energy.config.parse_config({"node": {"log_path": "/x"}}, source="x", environment={}).node))
"""


def test_every_class_of_the_hooks_has_the_same_fields_under_both() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-I", "-c", COMPARE, which], capture_output=True, text=True, check=True, timeout=120
        ).stdout
        for which in ("usual", "light")
    ]
    assert said[0] == said[1]
    assert int(said[0].splitlines()[0]) > 40


READ_SETTINGS = """
import sys
if sys.argv[1] == "light":
    from slurm_energy.node import quick_start
    quick_start.install(without_typing=True)
from slurm_energy.config import parse_config
from slurm_energy.errors import ConfigError
for given in ({}, {"gpu_numbering": "minor", "site_locked_clocks_mhz": {"a100": 1200}}, {"gpu_numbering": "x"},
              {"site_locked_clocks_mhz": 3}, {"set_clocks": 1}, {"time_scale": 2}, {"sampler": "off"}):
    try:
        print(repr(parse_config({"node": given}, source="x", environment={"SLURM_ENERGY_NODE_LOG_PATH": "/x"}).node))
    except ConfigError as error:
        print(error)
print(sys.modules["typing"].__name__)
"""


def test_settings_are_read_alike_with_the_stand_in_for_typing() -> None:
    said = {
        which: subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{READ_SETTINGS}", which],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.splitlines()
        for which in ("usual", "light")
    }
    assert said["usual"].pop() == "typing"
    assert said["light"].pop() == "slurm_energy.node.quick_start.typing_names"
    assert said["light"] == said["usual"]


IMPORT_ALL = """
from slurm_energy.node import quick_start
quick_start.install(without_typing=True)
import importlib, pkgutil
for package in ("node", "device", "wire", "domain"):
    for module in pkgutil.iter_modules(importlib.import_module(f"slurm_energy.{package}").__path__):
        importlib.import_module(f"slurm_energy.{package}.{module.name}")
import argparse, importlib.metadata, inspect, logging, random, subprocess, tempfile, tomllib
"""


def test_what_a_hook_rarely_needs_can_be_imported_beside_the_stand_ins_too() -> None:
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{IMPORT_ALL}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


SLOW_TO_IMPORT = {
    *("inspect", "ast", "tokenize", "tomllib", "datetime", "ipaddress", "urllib.parse", "subprocess", "shutil"),
    *("tempfile", "random", "logging", "argparse", "ctypes.util", "asyncio", "typing"),
}


MODULES = """
import os, sys
from slurm_energy.node import main
watcher, leave = os.getpid(), os._exit
def leaving(status):
    if os.getpid() != watcher:
        open(sys.argv[2], "w").write(" ".join(module.__name__ for module in sys.modules.values()))
    leave(status)
os._exit = leaving
main.main()
"""


@pytest.mark.parametrize("verb", ["prolog", "epilog"])
def test_hook_imports_nothing_that_is_slow(tmp_path: Path, verb: str) -> None:
    settings = tmp_path / "slurm-energy.toml"
    settings.write_text(
        f'[node]\nspool_directory = "{tmp_path}/spool"\nrun_directory = "{tmp_path}/run"\nlog_path = ""\n'
    )
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURM_ENERGY_CONFIG": str(settings)}
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path[:0] = {sys.path!r}\n{MODULES}",
        verb,
        str(tmp_path / "modules"),
    ]
    subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    loaded = set((tmp_path / "modules").read_text().split())
    assert {"slurm_energy.node.hooks", "pynvml"} <= loaded
    assert ("slurm_energy.node.closing" in loaded) == (verb == "epilog")  # a prolog does not pay for it
    assert loaded & SLOW_TO_IMPORT == set()


WITHOUT_TORCH = "import sys; sys.modules.update(dict.fromkeys(('torch', 'torch_geometric', 'safetensors')));"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint as far as it is looked at here: whether the tensors are the network's needs torch."""
    weights = safetensors_file({"weight": [1.0, 2.0], "bias": [0.5]})
    metadata = CheckpointMetadata(
        name="gnn",
        version="1",
        architecture=NetworkConfig(),
        training_data_sha256="0" * 64,
        created_at_seconds=1.0,
        schema_version=schema.SCHEMA_VERSION,
        weights_sha256=sha256(weights),
    )
    made = tmp_path / "checkpoint"
    made.mkdir()
    (made / DOCUMENT_FILE).write_text(json.dumps(metadata.document()))
    (made / WEIGHTS_FILE).write_bytes(weights)
    return made


def test_the_check_and_the_daemons_decider_need_no_torch(folder: Path, tmp_path: Path) -> None:
    settings = tmp_path / "energy.toml"
    settings.write_text(
        f'[policy]\nname = "gnn"\ncheckpoint = "{folder}"\n[daemon]\nstate_directory = "{tmp_path}/state"\n'
    )
    check = f"from slurm_energy.daemon.app import main; sys.exit(main(['--check-config', '--config', '{settings}']))"
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH + check], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "configuration is good\n"), done.stderr


def test_without_torch_a_learned_policy_cannot_be_made_and_the_message_says_what_to_install(folder: Path) -> None:
    script = (
        "from dataclasses import replace; from slurm_energy.config import Config, PolicyConfig;"
        "from slurm_energy.policy.registry import create_policy;"
        f"create_policy(replace(Config(), policy=PolicyConfig(name='gnn', checkpoint={str(folder)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH + script], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("slurm_energy.errors.PolicyError: policy gnn cannot be loaded")
    assert last.endswith("pip install './slurm-energy[daemon]'")


def test_prices_that_were_detached_from_their_network_are_read_without_torch(tmp_path: Path) -> None:
    network = create_network(NetworkConfig(hidden=12, heads=6, policy="prices"), seed=3)
    policy = PricedPolicy(network, ClusterGraph(), version="1")
    policy.warm_up(lab())
    (tmp_path / "detached").write_bytes(pickle.dumps(policy.detached()))
    script = f"import pickle; print(pickle.load(open({str(tmp_path / 'detached')!r}, 'rb')).name)"
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH + script], capture_output=True, text=True, check=True)
    assert done.stdout == "gnn\n"


def test_without_numpy_a_rule_is_a_fault_that_says_what_to_install_and_the_exact_policies_decide() -> None:
    script = (
        "from dataclasses import replace; from slurm_energy.config import Config, PolicyConfig;"
        "from slurm_energy.policy.registry import create_policy, policy_fault;"
        "make = lambda name: create_policy(replace(Config(), policy=PolicyConfig(name=name)));"
        "print(*(make(name).name for name in ('oracle', 'fixed-clock', 'slurm-default')));"
        "print('numpy' in sys.modules, policy_fault('total-cost:V=1'))"
    )
    blocked = "import sys; sys.modules['numpy'] = None; "
    done = subprocess.run([sys.executable, "-c", blocked + script], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "oracle fixed-clock slurm-default"
    assert second.startswith("True policy total-cost:V=1 needs numpy, which is not installed: pip install")
    assert second.endswith("'./slurm-energy[daemon]'")
