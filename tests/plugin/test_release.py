"""A plugin states the release of the Slurm that loads it, and does nothing where jobs are laid out otherwise."""

import shutil
import subprocess
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "plugin"
BOTH = ("job_submit_energy.so", "spank_energy.so")

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/usr/include/slurm/slurm.h").exists(),
    reason="needs a C compiler and libslurm-dev",
)

# Stands for slurmctld or sbatch: it has loaded some plugins already and now loads ours, as Slurm does.
_HOST = r"""
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
static void say(const char *format, va_list list) { vprintf(format, list); printf("\n"); }
void slurm_error(const char *format, ...) { va_list l; va_start(l, format); printf("error: "); say(format, l); }
void slurm_info(const char *format, ...) { va_list l; va_start(l, format); printf("info: "); say(format, l); }
#ifdef API_VERSION
long slurm_api_version(void) { return API_VERSION; }
#endif
int main(int argc, char **argv)
{
	for (int i = 2; i < argc; i++)
		if (!dlopen(argv[i], RTLD_LAZY | RTLD_GLOBAL))
			return printf("%s\n", dlerror()), 1;
	for (int round = 0; round < 2; round++) {	/* Slurm may unload a plugin and load it again */
		void *ours = dlopen(argv[1], RTLD_LAZY);
		if (!ours)
			return printf("%s\n", dlerror()), 1;
		printf("states %06x\n", *(uint32_t *) dlsym(ours, "plugin_version"));
		int (*init)(void) = (int (*)(void)) dlsym(ours, "init");
		int (*submit)(void *, uint32_t, char **) = (int (*)(void *, uint32_t, char **)) dlsym(ours, "job_submit");
		int (*modify)(void *, void *, uint32_t, char **) =
			(int (*)(void *, void *, uint32_t, char **)) dlsym(ours, "job_modify");
		if (init && round == 0) {
			char *message = NULL;
			/* a job of another layout: whoever looks at it is killed */
			void *job = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			printf("init %d\n", init());
			fflush(stdout);
			printf("submit %d modify %d\n", submit(job, 1000, &message), modify(job, NULL, 1000, &message));
		}
		dlclose(ours);
	}
	return 0;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both plugins for two releases, whatever this machine has, and the programs that load them."""
    place = tmp_path_factory.mktemp("release")
    build(place, "22.05.8", 0x160508)
    build(place, "23.02.5", 0x170205)
    for name, flags in {"plain": [], "of-22.05": ["-DAPI_VERSION=0x260000"]}.items():
        for asks in ("yes", "no"):
            source = place / f"{name}-{asks}.c"
            source.write_text(_HOST if asks == "yes" else _HOST.replace("init && round == 0", "0 && init"))
            run(["cc", "-rdynamic", *flags, "-o", str(source.with_suffix("")), str(source), "-ldl"])
    return place


def build(place: Path, name: str, number: int) -> None:
    include = place / f"include-{name}" / "slurm"
    include.mkdir(parents=True)
    for header in Path("/usr/include/slurm").iterdir():
        if header.name != "slurm_version.h":
            (include / header.name).symlink_to(header)
    text = Path("/usr/include/slurm/slurm_version.h").read_text()
    lines = [line for line in text.splitlines() if "define SLURM_VERSION_NUMBER" not in line]
    (include / "slurm_version.h").write_text("\n".join([*lines, f"#define SLURM_VERSION_NUMBER {number:#x}", ""]))
    command = ["make", "--no-print-directory", "-s", "-C", str(PLUGIN), f"BUILD={place / name}"]
    run([*command, f"SLURM_INCLUDE={include.parent}"])


def run(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def slurms_plugin(folder: Path, kind: str, number: int) -> Path:
    name = kind.replace("/", "_")
    source = folder / f"{name}.c"
    source.write_text(
        f'#include <stdint.h>\nconst char plugin_name[] = "x", plugin_type[] = "{kind}";\n'
        f"const uint32_t plugin_version = {number:#x};\n"
    )
    library = folder / f"{name}-{number:x}.so"
    run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)])
    return library


def loaded(folder: Path, name: str, *others: Path, built: str = "22.05.8", host: str = "plain-no") -> list[str]:
    return run([str(folder / host), str(folder / built / name), *map(str, others)]).splitlines()


@pytest.mark.parametrize("number", [0x160508, 0x160509, 0x160500, 0x16050B])
@pytest.mark.parametrize("name", BOTH)
def test_a_plugin_states_the_micro_release_of_its_slurm(folder: Path, name: str, number: int) -> None:
    assert loaded(folder, name, slurms_plugin(folder, "auth/munge", number)) == [f"states {number:06x}"] * 2


@pytest.mark.parametrize("number", [0x170200, 0x170207, 0x1A0503, 0x150808])
def test_job_submit_looks_at_no_job_of_another_release(folder: Path, number: int) -> None:
    slurms = slurms_plugin(folder, "auth/munge", number)
    stated, said, begun, answered, again = loaded(folder, "job_submit_energy.so", slurms, host="plain-yes")
    assert stated == again == f"states {number:06x}"
    running = f"{number >> 16}.{number >> 8 & 255:02d}.{number & 255}"
    assert said.startswith(f"error: job_submit/energy: compiled for Slurm 22.05.8, this is {running}: ")
    assert (begun, answered) == ("init 0", "submit 0 modify 0")


def test_plugins_that_slurm_has_not_checked_to_the_last_digit_are_not_believed(folder: Path) -> None:
    spank = slurms_plugin(folder, "spank", 0x160501)
    own = slurms_plugin(folder, "job_submit/energy", 0x160502)
    right = slurms_plugin(folder, "select/cons_tres", 0x160509)
    assert loaded(folder, "job_submit_energy.so", spank, own, right)[0] == "states 160509"


@pytest.mark.parametrize("name", BOTH)
def test_where_nothing_tells_a_plugin_states_what_it_was_compiled_for(folder: Path, name: str) -> None:
    assert loaded(folder, name)[0] == "states 160508"


@pytest.mark.parametrize(("built", "stated"), [("22.05.8", "160508"), ("23.02.5", "160500")])
def test_libslurm_tells_where_sbatch_loads_spank_before_any_other_plugin(folder: Path, built: str, stated: str) -> None:
    assert loaded(folder, "spank_energy.so", built=built, host="of-22.05-no")[0] == f"states {stated}"
