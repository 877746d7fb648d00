"""The site's slurm.conf as `install` and `uninstall` change it, or say what a person has to change in it."""

from fnmatch import fnmatchcase
from pathlib import Path

from slurm_energy.cli.installing.files import PlannedFile
from slurm_energy.cli.installing.roles import InstallOptions
from slurm_energy.cli.installing.slurm_conf import (
    EARLIER_HOOK_PATTERNS,
    HOOK_PATH,
    ConfFile,
    describe_changes,
    has_pattern,
    hook_values,
    names_energy,
    read_conf_files,
    site_hooks,
    with_energy,
    without_energy,
)
from slurm_energy.cli.site import read_slurm_conf, under
from slurm_energy.errors import ConfigError

_SITE_HOOK_NAMES = {
    # slurmd runs them from Z to A: ours is the last prolog and the first epilog.
    "prolog": ("00-slurm-energy.sh", "00-slurm-energy", "slurm-energy.sh", "slurm-energy"),
    "epilog": ("zz-slurm-energy.sh", "zz-slurm-energy", "99-slurm-energy.sh", "99-slurm-energy", "slurm-energy.sh"),
}


class SiteConf:
    """slurm.conf of one host, with what it includes.

    Attributes:
        path: Of slurm.conf, seen from the host's own root.
        keys: Its keys in lower case with their last value.
    """

    def __init__(self, path: Path, options: InstallOptions, remarks: list[str]) -> None:
        self.path = path
        self.keys = read_slurm_conf(path, options.root)
        self._options = options
        self._remarks = remarks

    def files(self) -> tuple[ConfFile, ...]:
        """Return slurm.conf and the files that it includes, as they are now."""
        return read_conf_files(self.path, self._options.root)

    @property
    def plugstack(self) -> Path:
        """The file that names SPANK plugins."""
        named = self.keys.get("plugstackconfig")
        return Path(named) if named else self.path.parent / "plugstack.conf"

    @property
    def would_drain_without_files(self) -> bool:
        """Whether slurm.conf has the pattern of an earlier version, which does not match on a node without files."""
        return any(
            value in EARLIER_HOOK_PATTERNS for key in ("Prolog", "Epilog") for value in hook_values(self.files(), key)
        )

    @property
    def asks_at_submission(self) -> bool:
        """Whether slurm.conf still names the plugin: slurmctld does not start without its file then."""
        return names_energy(self.files())

    def lines(self, *, add: bool) -> list[str]:
        """Return what a person has to change in slurm.conf where no program does."""
        files = self.files()
        if not files:
            return []
        after = self._with_energy(files) if add else without_energy(files)
        return list(describe_changes({file.path: file.text for file in files}, after))

    def edited(self) -> list[PlannedFile]:
        """Return slurm.conf and what it includes with our words in them, where they may be edited.

        Raises:
            ConfigError: it should be edited and cannot be read.
        """
        files = self.files()
        if not files:
            if self._options.edit_slurm_conf:
                raise ConfigError(f"{under(self._options.root, self.path)} cannot be read, so it is not edited")
            return []
        self._remark_on_site_hooks(files)
        return self.changes(self._with_energy(files))

    def paths(self) -> list[Path]:
        """Return the paths of slurm.conf and of what it includes."""
        return [file.path for file in self.files()]

    def changes(self, after: tuple[ConfFile, ...]) -> list[PlannedFile]:
        """Return slurm.conf and what it includes, where they change and may be edited."""
        if not self._options.edit_slurm_conf:
            return []
        before = {file.path: file.text for file in self.files()}
        return [
            PlannedFile(
                path=file.path,
                content=file.text.encode("utf-8", "surrogateescape"),
                mode=under(self._options.root, file.path).stat().st_mode & 0o777,
            )
            for file in after
            if before[file.path] != file.text
        ]

    def _with_energy(self, files: tuple[ConfFile, ...]) -> tuple[ConfFile, ...]:
        word = "lua" if self._options.job_submit == "lua" else "energy"
        return with_energy(files, several_hooks=self._has_own_line(files), job_submit=word)

    def _has_own_line(self, files: tuple[ConfFile, ...]) -> bool:
        """Return whether ours may stand in lines beside the site's own scripts: not where one of them calls ours."""
        if not self._options.several_hooks:
            return False
        for key in ("Prolog", "Epilog"):
            for own in site_hooks(files, key):
                try:
                    text = under(self._options.root, Path(own)).read_text(encoding="utf-8", errors="replace")
                except OSError:
                    continue
                if str(HOOK_PATH) in text:
                    return False
        return True

    def _remark_on_site_hooks(self, files: tuple[ConfFile, ...]) -> None:
        """Say how ours join the site's own hooks, which stay active."""
        for key in ("Prolog", "Epilog"):
            for own in site_hooks(files, key):
                if place_among(own, key) is not None:
                    self._remarks.append(
                        f"{key}={own} is this site's own and stays: install on the nodes adds ours there"
                    )
                    continue
                if self._has_own_line(files) and not has_pattern(own):
                    continue
                where = "end" if key == "Prolog" else "start"
                self._remarks.append(
                    f"{key}={own} is this site's own and stays. Put at its {where}:  "
                    f"[ ! -x {HOOK_PATH} ] || {HOOK_PATH}"
                )


def place_among(pattern: str, key: str) -> Path | None:
    """Return where a hook of ours is found by the site's own pattern; None when it names one script."""
    folder, name = Path(pattern).parent, Path(pattern).name
    if not has_pattern(pattern) or any(letter in str(folder) for letter in "*?["):
        return None
    candidates = (*_SITE_HOOK_NAMES[key.lower()], name.replace("*", "slurm-energy"))
    return next((folder / ours for ours in candidates if fnmatchcase(ours, name) and not has_pattern(ours)), None)
