"""Slurm releases that the machine does not have, from later Debian suites: made by debootstrap, kept between test runs.

Daemons of such a release run in a mount name space in which its /usr stands in place of the machine's. /etc, /var,
/proc and the rest stay, so that users, host names, the scratch folder and the checkout are what they are outside; hooks
and jobs find the programs of that Debian. Slurm's commands also run outside, as any user, by the loader of that /usr.

By hand: ``python -m tests.cluster.releases 24.11 26.05`` makes them where they are absent or broken.

A release that somebody has built is taken from the prefix that NCCL_SLURM_TEST_PREFIX names (/opt/slurm).
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.client import PATH, ClusterError

__all__ = ["SUITES", "Prefix", "Root", "find", "missing", "own", "read_sources"]

#: Release → the Debian suite that has it. What another suite has by now is told when it is made.
SUITES = {"24.11": "trixie", "26.05": "forky"}
PREFIX = os.environ.get("NCCL_SLURM_TEST_PREFIX", "")
BASE = Path(os.environ.get("NCCL_SLURM_TEST_RELEASES_FOLDER", "/var/tmp/nccl-slurm-releases"))
#: The last four are for jobs and tests, and the time zone that /etc/localtime may name. libslurm-dev: what a compiler
#: needs for a SPANK plugin of this release.
PACKAGES = (
    *("slurmctld", "slurmd", "slurmdbd", "slurm-client", "libslurm-dev", "munge", "mariadb-server"),
    *("python3", "hostname", "procps", "tzdata"),
)
SCRIPTS = Path("/usr/share/debootstrap/scripts")
COMMANDS = (
    *("sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "sdiag", "sinfo"),
    *("sprio", "squeue", "sreport", "srun", "sshare", "sstat", "strigger"),
)

_ONE_LINE = re.compile(r"deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)\s+(.+)")


@dataclass(frozen=True)
class Root:
    """One release. ``folder/root`` is the Debian, ``folder/bin`` has Slurm's commands for the world outside."""

    release: str
    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def plugins(self) -> Path:
        """For PluginDir: the same path inside and outside."""
        return _libraries(self.folder / "root") / "slurm-wlm"

    @property
    def headers(self) -> Path:
        """Where ``slurm/spank.h`` is."""
        return self.folder / "root" / "usr" / "include"

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` inside, as the same process; it needs root. Mounts that the caller's
        name space gets later are seen where that one shares them (see `mounts.private_mounts`)."""
        root = shlex.quote(str(self.folder / "root"))
        mounts = [
            f"mount --rbind /usr/local {root}/usr/local",
            f"mount --rbind {root}/etc/alternatives /etc/alternatives",
            f"mount --rbind {root}/usr /usr",
        ]
        script = " && ".join([*mounts, 'exec "$@"'])
        return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, "sh", *command]

    def works(self) -> bool:
        """It is complete, and its daemons start and are of this release."""
        whole = self.bin.is_dir() and (self.headers / "slurm" / "spank.h").exists()
        return whole and _version(self.inside(["slurmctld", "-V"])) == self.release


@dataclass(frozen=True)
class Prefix:
    """One release that was built, with ``bin``, ``sbin`` and ``lib/slurm``; munge and MariaDB are the machine's."""

    release: str
    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def plugins(self) -> Path:
        return self.folder / "lib" / "slurm"

    @property
    def headers(self) -> Path:
        return self.folder / "include"

    def inside(self, command: Sequence[str]) -> list[str]:
        return ["env", f"PATH={self.folder}/sbin:{self.folder}/bin:{PATH}", *command]


def _prefix(release: str) -> Prefix | None:
    if not PREFIX or _version([f"{PREFIX}/sbin/slurmctld", "-V"]) != release:
        return None
    return Prefix(release, Path(PREFIX))


def own() -> str | None:
    """The machine's own release: ``22.05``; None where it has no Slurm."""
    return _version(["slurmctld", "-V"])


def missing(release: str) -> str | None:
    """Why this machine can't have the release, None where it can."""
    if _prefix(release):
        return None
    if release not in SUITES:
        return f"no suite is known that has Slurm {release} (known: {', '.join(SUITES)})"
    if os.geteuid() != 0:
        return "a root folder can be made by root alone"
    if Root(release, BASE / release).works():
        return None
    if shutil.which("debootstrap", path=PATH) is None:
        return "debootstrap is not installed"
    return None if _mirror() else "the apt sources of this machine name no Debian mirror"


def find(release: str) -> Root | Prefix:
    """The release's root, made first where it is absent or broken, which takes minutes. Raises ClusterError."""
    if built := _prefix(release):
        return built
    if why := missing(release):
        raise ClusterError(f"Slurm {release}: {why}")
    BASE.mkdir(mode=0o755, exist_ok=True)
    if BASE.is_symlink() or BASE.stat().st_uid != 0:
        raise ClusterError(f"{BASE} is not root's")
    made = Root(release, BASE / release)
    with (BASE / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.works():
            _make(made)
    return made


def _make(root: Root) -> None:
    """Beside its place, and renamed when it is complete."""
    part = root.folder.with_name(f"{root.release}.part")
    for folder in (part, root.folder):
        shutil.rmtree(folder, ignore_errors=True)
    part.mkdir(mode=0o755)
    _bootstrap(part / "root", SUITES[root.release])
    _write_commands(part, root.folder)
    part.rename(root.folder)
    if not root.works():
        has = _version(root.inside(["slurmctld", "-V"]))
        raise ClusterError(f"Debian {SUITES[root.release]} has Slurm {has or 'that does not start'}: {root.folder}")


def _bootstrap(folder: Path, suite: str) -> None:
    """As Debian installs it, but no service is started, and files are not fsynced."""
    address, key = _mirror() or ("", "")
    keyring = [f"--keyring={key}"] if key else []
    script = [] if (SCRIPTS / suite).exists() else [str(SCRIPTS / "sid")]  # a suite younger than debootstrap
    _run(["debootstrap", "--variant=minbase", *keyring, suite, str(folder), address, *script])
    policy = folder / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    (folder / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
    inside = ["sh", "-ec", 'mount --rbind /proc "$1/proc"; exec chroot "$@"', "sh", str(folder)]
    _run([*inside, "apt-get", "-q", "-y", "--no-install-recommends", "install", *PACKAGES])
    _run([*inside, "apt-get", "clean"])


def _run(command: Sequence[str]) -> None:
    """Mounts that a killed command leaves are gone with its name space."""
    env = {"PATH": PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **_proxies()}
    private = ["unshare", "--mount", "--propagation", "private", *command]
    done = subprocess.run(private, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        told = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ClusterError(f"{shlex.join(command)} ended with {done.returncode}:\n{told}")


def _proxies() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}


def _write_commands(part: Path, final: Path) -> None:
    """Each starts the loader of that Debian: neither the machine's C library nor its Slurm's is looked at."""
    (part / "bin").mkdir(mode=0o755)
    library = _libraries(part / "root")
    loader = next((part / "root/usr").glob("lib*/ld-linux*.so.*"))
    where = [str(final / path.relative_to(part)) for path in (loader, library / "slurm-wlm", library, part / "root")]
    for name in COMMANDS:
        start = f"exec {where[0]} --library-path {where[1]}:{where[2]} {where[3]}/usr/bin/{name}"
        (part / "bin" / name).write_text(f'#!/bin/sh\n{start} "$@"\n')
        (part / "bin" / name).chmod(0o755)


def _libraries(root: Path) -> Path:
    """Debian's folder for the machine's architecture: usr/lib/x86_64-linux-gnu …"""
    return next((root / "usr/lib").glob("*/slurm-wlm")).parent


def _version(command: Sequence[str]) -> str | None:
    """``slurm-wlm 24.11.5`` → ``24.11``; None where it does not run."""
    try:
        told = subprocess.run(command, env={"PATH": PATH}, capture_output=True, text=True).stdout
    except OSError:
        return None
    found = re.match(r"slurm\S* (\d+\.\d+)", told)
    return found[1] if found else None


# The mirror: that of the machine's own Debian


def _mirror() -> tuple[str, str] | None:
    """Its address and its key file; an empty name where the entry names none (debootstrap knows Debian's)."""
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    for entry in _entries():
        words = {key: value.split() for key, value in entry.items()}
        if suite in words.get("suites", ()) and "main" in words.get("components", ()):
            keys = [word for word in words.get("signed-by", ()) if os.path.isfile(word)]
            return words["uris"][0], keys[0] if keys else ""
    return None


def _entries() -> Iterator[Mapping[str, str]]:
    apt = Path("/etc/apt")
    for path in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))):
        if path.suffix in (".list", ".sources") and path.is_file():
            yield from read_sources(path.read_text(errors="replace"))


def read_sources(text: str) -> Iterator[Mapping[str, str]]:
    """Entries of binary packages, in both forms of sources.list(5): names in lower case, keys only as files."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = {key.lower(): value for key, value in re.findall(r"(?m)^([\w-]+):[ \t]*(.*)$", stanza)}
        if "deb" in fields.get("types", "").split():
            yield fields
    for options, uri, suite, components in re.findall(rf"(?m)^{_ONE_LINE.pattern}$", text):
        signed = re.search(r"\bsigned-by=(\S+)", options)
        yield {
            "uris": uri,
            "suites": suite,
            "components": components,
            "signed-by": signed[1].replace(",", " ") if signed else "",
        }


def main(releases: Sequence[str]) -> int:
    for release in releases or tuple(SUITES):
        began = time.monotonic()
        try:
            root = find(release)
        except ClusterError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"Slurm {release}: {root.folder} ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
