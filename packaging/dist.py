"""Build wheel and sdist with their checksums: python packaging/dist.py --output dist."""

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
CHECKSUMS = "SHA256SUMS"


def build(output: Path) -> list[Path]:
    """Build wheel and sdist; those of earlier builds are removed."""
    output.mkdir(parents=True, exist_ok=True)
    for old in (*output.glob("slurm_energy-*.whl"), *output.glob("slurm_energy-*.tar.gz")):
        old.unlink()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(output.resolve())],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return sorted((*output.glob("slurm_energy-*.whl"), *output.glob("slurm_energy-*.tar.gz")))


def write_checksums(output: Path) -> Path:
    """Write the SHA-256 sum of every file in the folder, for `sha256sum --check SHA256SUMS`."""
    names = sorted(path.name for path in output.iterdir() if path.is_file() and path.name != CHECKSUMS)
    lines = [f"{hashlib.sha256((output / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (output / CHECKSUMS).write_text("".join(lines))
    return output / CHECKSUMS


def main() -> int:
    """Build from the command line."""
    parser = argparse.ArgumentParser(description="Build wheel and sdist, with the checksums of all files there.")
    parser.add_argument("--output", type=Path, default=Path("dist"))
    given = parser.parse_args()
    for path in (*build(given.output), write_checksums(given.output)):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
