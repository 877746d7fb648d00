"""Our words in slurm.conf: what goes in comes out again, and nothing of the site's own changes on the way."""

import re
from pathlib import Path

import pytest

from slurm_energy.cli.installing.slurm_conf import (
    HEADER,
    ConfFile,
    describe_changes,
    keeps_alloc,
    names_energy,
    read_conf_files,
    with_energy,
    without_energy,
)
from slurm_energy.cli.site import read_slurm_conf
from slurm_energy.errors import ConfigError

MAIN = Path("/etc/slurm/slurm.conf")


def conf(text: str) -> tuple[ConfFile, ...]:
    return (ConfFile(path=MAIN, text=text),)


def lines(files: tuple[ConfFile, ...]) -> list[str]:
    return [line for file in files for line in file.text.splitlines() if not line.startswith("#")]


SITES = {
    "nothing of its own": "ClusterName=c\nNodeName=n1\n",
    "other plugins and flags": "JobSubmitPlugins=lua,throttle\nPrologFlags=X11\nNodeName=n1\n",
    "blanks, cases and quotes": ' jobsubmitplugins = "lua" # ours\nPROLOGFLAGS=x11\nprologflag=1\n# Prolog=/x\n',
    "hooks of its own": "Prolog=/site/p.sh\nEpilog=/site/e.d/*\nPrologFlags=Alloc,Contain\n",
    "several hooks": "Prolog=/site/a\nClusterName=c\nProlog=/site/b\nEpilog=/site/e1\nEpilog=/site/e2\n",
    "several keys in a line": "ClusterName=c JobSubmitPlugins=lua PrologFlags=X11\n",
    "DOS lines": "ClusterName=c\r\nJobSubmitPlugins=lua\r\nNodeName=n1\r\n",
    "an empty file": "",
}


@pytest.mark.parametrize("several", [False, True], ids=["one hook line", "several hook lines"])
@pytest.mark.parametrize("text", SITES.values(), ids=SITES.keys())
def test_what_was_added_is_taken_away_and_nothing_else(text: str, several: bool) -> None:
    added = with_energy(conf(text), several_hooks=several)
    assert names_energy(added)
    assert with_energy(added, several_hooks=several) == added
    assert without_flag(without_energy(added)) == text
    assert not names_energy(without_energy(added))
    assert without_energy(without_energy(added)) == without_energy(added)


def without_flag(files: tuple[ConfFile, ...]) -> str:
    """Return slurm.conf without the Alloc that uninstall leaves."""
    text = re.sub(r"\nPrologFlags=Alloc # slurm-energy(?=\n)|^PrologFlags=Alloc # slurm-energy\n", "", files[0].text)
    return re.sub(r"(PrologFlags=X11),Alloc # slurm-energy", r"\1", text, flags=re.IGNORECASE)


def test_alloc_stays_since_a_slurmd_that_still_has_it_drains_its_node_when_slurmctld_has_it_no_more() -> None:
    site, own = conf("ClusterName=c\n"), conf("PrologFlags=Alloc\n")
    assert lines(without_energy(with_energy(site, several_hooks=True))) == [
        "ClusterName=c",
        "PrologFlags=Alloc # slurm-energy",
    ]
    assert keeps_alloc(without_energy(with_energy(site, several_hooks=True)))
    assert not keeps_alloc(with_energy(own, several_hooks=True)) and not keeps_alloc(site)


def test_energy_comes_last_and_prologs_of_the_site_go_on_first() -> None:
    text = "JobSubmitPlugins=lua\nProlog=/site/a\nEpilog=/site/e\n"
    assert lines(with_energy(conf(text), several_hooks=True)) == [
        "JobSubmitPlugins=lua,energy # slurm-energy",
        "Prolog=/site/a",
        "Prolog=/bin/tru[e_] # slurm-energy",
        "Epilog=/bin/tru[e_] # slurm-energy",
        "Epilog=/site/e",
        "PrologFlags=Alloc # slurm-energy",
    ]
    alone = lines(with_energy(conf(text), several_hooks=False))
    assert [line for line in alone if "log=" in line] == ["Prolog=/site/a", "Epilog=/site/e"]


@pytest.mark.parametrize(
    ("present", "left"),
    [
        ("JobSubmitPlugins=energy", []),
        ("JobSubmitPlugins=energy,lua", ["JobSubmitPlugins=lua"]),
        ("JobSubmitPlugins=lua,job_submit/energy,throttle # all", ["JobSubmitPlugins=lua,throttle # all"]),
        ("ClusterName=c JobSubmitPlugins=energy", ["ClusterName=c"]),
        ("PrologFlags=Alloc", ["PrologFlags=Alloc"]),
        ("PrologFlags=Alloc # slurm-energy", ["PrologFlags=Alloc # slurm-energy"]),
        ("Prolog=/etc/slurm-energy/prolog.d/*", []),
        ("Epilog=/bin/tru[e_]", []),
        ("Epilog=/site/e.sh", ["Epilog=/site/e.sh"]),
        ("Include slurm-energy.conf", []),
        ("include /etc/slurm/slurm-energy.conf", []),
        ("Include nodes.conf", ["Include nodes.conf"]),
    ],
)
def test_a_line_that_held_nothing_else_goes_as_a_whole(present: str, left: list[str]) -> None:
    assert lines(without_energy(conf(f"{present}\n"))) == left


def test_an_earlier_version_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nJobSubmitPlugins=lua\nInclude slurm-energy.conf\n")
    (tmp_path / "slurm-energy.conf").write_text("JobSubmitPlugins=lua,energy\nProlog=/etc/slurm-energy/prolog.d/*\n")
    files = with_energy(read_conf_files(tmp_path / "slurm.conf"), several_hooks=False)
    assert [file.path.name for file in files] == ["slurm.conf"]
    assert lines(files)[:2] == ["ClusterName=c", "JobSubmitPlugins=lua,energy # slurm-energy"]
    (direct,) = with_energy(conf("Prolog=/etc/slurm-energy/prolog.d/*\n"), several_hooks=False)
    assert direct.text.startswith("Prolog=/bin/tru[e_]\n")


def test_a_key_is_changed_in_the_included_file_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nInclude plugins.conf\n")
    (tmp_path / "plugins.conf").write_text("JobSubmitPlugins=lua\n")
    before = read_conf_files(tmp_path / "slurm.conf")
    after = with_energy(before, several_hooks=False)
    assert after[1].text == "JobSubmitPlugins=lua,energy # slurm-energy\n"
    assert "JobSubmitPlugins" not in after[0].text
    left = without_energy(after)
    assert (without_flag(left), left[1]) == (before[0].text, before[1])


def test_included_files_are_found_where_slurm_looks_for_them(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "slurm.conf").write_text("ClusterName=Alps\nInclude site/common.conf\n")
    (tmp_path / "site" / "common.conf").write_text('PrologFlags=X11\ninclude "plugins-%c.conf" # beside slurm.conf\n')
    (tmp_path / "plugins-alps.conf").write_text("JobSubmitPlugins=lua\n")
    assert read_slurm_conf(tmp_path / "slurm.conf")["jobsubmitplugins"] == "lua"
    after = with_energy(read_conf_files(tmp_path / "slurm.conf"), several_hooks=False)
    (changed,) = [file for file in after if "JobSubmitPlugins" in file.text]
    assert (changed.path.name, changed.text) == ("plugins-alps.conf", "JobSubmitPlugins=lua,energy # slurm-energy\n")


def test_a_pattern_of_the_site_has_ours_in_its_folder_and_no_second_line() -> None:
    after = lines(with_energy(conf("Prolog=/site/prolog.d/*\n"), several_hooks=True))
    assert [line for line in after if line.startswith("Prolog=")] == ["Prolog=/site/prolog.d/*"]


def test_a_value_that_goes_on_in_the_next_line_is_left_to_a_person() -> None:
    with pytest.raises(ConfigError, match="line 1: write JobSubmitPlugins in a line of its own"):
        with_energy(conf("JobSubmitPlugins=lua,\\\nthrottle\n"), several_hooks=False)


def test_the_lines_are_told_without_our_marks() -> None:
    before = conf("JobSubmitPlugins=lua\n")
    told = list(describe_changes({MAIN: before[0].text}, with_energy(before, several_hooks=False)))
    assert told == [
        f"{MAIN}: remove  JobSubmitPlugins=lua",
        f"{MAIN}: add     JobSubmitPlugins=lua,energy",
        f"{MAIN}: add     PrologFlags=Alloc",
        f"{MAIN}: add     Prolog=/bin/tru[e_]",
        f"{MAIN}: add     Epilog=/bin/tru[e_]",
    ]
    assert len(HEADER) == 2
