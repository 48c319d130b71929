"""systemd units, tmpfiles and logrotate lines with this installation's paths, and which systemctl calls are due."""

from __future__ import annotations

from typing import Iterable, Mapping

from nccl_slurm.install.layout import Layout

__all__ = ["NAMES", "calls", "daemon_unit", "log_rotation", "node_unit", "temporary_files"]

#: Role → units that are enabled; files in etc/systemd that go with them.
NAMES: Mapping[str, tuple[str, ...]] = {
    "node": ("nccl-slurm-boot.service", "nccl-slurm-node.timer"),
    "controller": ("nccl-slurm.service",),
}
_SHARED_LINE = "#ReadWritePaths=/fsx/nccl-slurm"


def node_unit(text: str, layout: Layout) -> str:
    """Also right for the timer, which names no path."""
    text = text.replace("/opt/nccl-slurm/slurm/nccl-slurm-node", layout.node_program)
    text = text.replace("RequiresMountsFor=/opt/nccl-slurm\n", f"RequiresMountsFor={layout.prefix}\n")
    return text.replace("/etc/nccl-slurm/capture.conf", layout.capture_conf)


def daemon_unit(text: str, layout: Layout, shared: str, events: str) -> str:
    program = f"{layout.venv}/bin/nccl-slurm daemon"
    config = "" if layout.conf == Layout().conf else f" --config {layout.daemon_conf}"
    text = text.replace("/opt/nccl-slurm/venv/bin/nccl-slurm daemon", program + config)
    text = text.replace("ReadWritePaths=-/var/spool/nccl-slurm\n", f"ReadWritePaths=-{events}\n")
    return text.replace(_SHARED_LINE, f"ReadWritePaths=-{shared}" if shared else _SHARED_LINE)


def temporary_files(role: str, spool: str, events: str, slurm_user: str) -> str:
    """tmpfiles.d(5): folders that are there after a boot, whatever a site does with /var/spool."""
    lines = {
        "node": [f"d {spool} 0711 root root -"],
        "controller": [f"d {events} 0700 {slurm_user} - -"],
    }
    return "\n".join(lines[role]) + "\n"


def log_rotation(text: str, layout: Layout) -> str:
    return text.replace("/var/lib/nccl-slurm", layout.state)


def calls(role: str, enabled: Iterable[str], active: Iterable[str], changed: Iterable[str]) -> list[list[str]]:
    """Arguments of systemctl, in order; none where all runs as it should. ``changed``: paths that were touched."""
    touched = list(changed)
    due: list[list[str]] = []
    if any(path.endswith((".service", ".timer")) for path in touched):
        due.append(["daemon-reload"])
    for name in NAMES[role]:
        due += _of_unit(name, name in set(enabled), name in set(active), bool(touched))
    return due


def _of_unit(name: str, enabled: bool, active: bool, changed: bool) -> list[list[str]]:
    if not enabled:
        return [["enable", "--now", name]]
    if name == "nccl-slurm-boot.service":  # has done its work and ended; the next boot starts it
        return []
    if not active:
        return [["start", name]]
    return [["restart", name]] if changed and name == "nccl-slurm.service" else []
