"""Our reading of the #SBATCH lines of real scripts beside the real sbatch."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from measured_data import MEASURED

from slurm_energy.slurm.sbatch_options import script_directives

HEADERS = MEASURED / "sbatch_headers" / "sbatch_headers.jsonl"


SLURM_CONF = """ClusterName=c
SlurmctldHost=localhost(127.0.0.1)
AuthType=auth/munge
NodeName=n CPUs=1
PartitionName=a Nodes=n
"""


def words_that_sbatch_found(script: Path, slurm_conf: Path) -> list[str]:
    """Return the words of #SBATCH lines from the real sbatch's debug output; it is ended before it calls anybody."""
    process = subprocess.Popen(
        ["sbatch", "-vvv", "--test-only", str(script)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "SLURM_CONF": str(slurm_conf)},
    )
    assert process.stderr is not None
    words: list[str] = []
    with process:
        for raw in process.stderr:
            line = raw.decode("utf-8", "surrogateescape").rstrip("\n")
            found = re.match(r'sbatch: debug2: Found in script, argument "(.*)"\Z', line)
            if found is not None:
                words.append(found.group(1))
            if line.startswith(("sbatch: defined options", "sbatch: fatal", "sbatch: error")):
                break
        process.kill()
    return words


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="Slurm's sbatch is not installed")
def test_real_headers_give_the_words_that_the_real_sbatch_finds(tmp_path: Path) -> None:
    slurm_conf = tmp_path / "slurm.conf"
    slurm_conf.write_text(SLURM_CONF, encoding="utf-8")
    script = tmp_path / "job.sh"
    compared = 0
    for line in HEADERS.read_text(encoding="utf-8").splitlines():
        header = json.loads(line)
        text = "\n".join([header["shebang"], *header["directives"], ""])
        script.write_text(text, encoding="utf-8")
        assert list(script_directives(text).components[0]) == words_that_sbatch_found(script, slurm_conf), header[
            "path"
        ]
        compared += 1
    assert compared == 149
