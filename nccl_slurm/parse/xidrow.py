"""One row of ``data/xid.toml``: what an Xid code means and what may be done for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from nccl_slurm.errors import ConfigError
from nccl_slurm.model import ACTIONS, CLASSES

__all__ = ["IMMEDIATE", "INVESTIGATORY", "ROLES", "Xid", "xid_row"]

ROLES = ("cause", "consequence", "context", "benign")
#: NVIDIA's buckets, as its catalog spells them.
IMMEDIATE = (
    "(blank)",
    "CHECK_MECHANICALS",
    "CHECK_UVM",
    "CONTACT_SUPPORT",
    "IGNORE",
    "RESET_GPU",
    "RESTART_APP",
    "RESTART_BM",
    "RESTART_VM",
    "UPDATE_SWFW",
    "WORKFLOW_NVLINK5_ERR",
    "WORKFLOW_NVLINK_ERR",
    "WORKFLOW_XID_45",
    "WORKFLOW_XID_48",
    "XID_154",
)
#: ``-``: the catalog names nothing. RESTART_FM: of Xid 45 that stands alone.
INVESTIGATORY = (
    "-",
    "CHECK_APP/CUDA",
    "CONTACT_SUPPORT",
    "IGNORE",
    "IGNORE_SYMPATHETIC",
    "INVESTIGATE_LINK_SI",
    "INVESTIGATE_SW",
    "INVESTIGATE_SW_USER",
    "RESTART_FM",
    "SYMPATHETIC_REPORT_SOLO",
    "UPDATE_SWFW",
    "WORKFLOW_NVLINK5_ERR",
    "WORKFLOW_XID_13",
    "WORKFLOW_XID_31",
    "WORKFLOW_XID_48",
    "XID_137_FLOW",
)
_TEXT = ("mnemonic", "role", "nvidia", "action", "source", "investigatory", "applies", "linked")
_FLAGS = ("final", "fleet", "unused")


@dataclass(frozen=True)
class Xid:
    """One Xid code: NVIDIA's mnemonic and buckets, our class, and what it says of the node.

    ``hint`` is the failure class, ``unknown`` for none. ``after``: the step where the fault came back on the same GPU
    after one reboot, after two, …; empty: ``action``. ``final``: no reboot helps. ``fleet``: on several nodes at a time
    it is the driver. ``unused``: not to be seen from Ampere on. ``linked``: the driver from which Xid 154 goes with it.
    """

    code: int
    mnemonic: str
    hint: str
    role: str
    nvidia: str
    action: str
    source: str
    investigatory: str = "-"
    applies: str = ""
    linked: str = ""
    after: tuple[str, ...] = ()
    final: bool = False
    fleet: bool = False
    unused: bool = False


def xid_row(value: Mapping[str, Any]) -> Xid:
    """Raises ConfigError with the code where a key is unknown or a word is none of its set.

    A site's row may name buckets of its own: only the package's are held against NVIDIA's, by test.
    """
    code = value.get("code")
    for key in value:
        if key not in ("code", "class", "after", *_TEXT, *_FLAGS):
            raise ConfigError(f"Xid {code}: unknown key {key!r}")
    if not isinstance(code, int):
        raise ConfigError(f"Xid {code!r}: code must be a number")
    for key, words in (("class", CLASSES), ("role", ROLES), ("action", ACTIONS)):
        if key in value and value[key] not in words:
            raise ConfigError(f"Xid {code}: {key} {value[key]!r} is none of {', '.join(words)}")
    lacking = [key for key in ("class", "role", "action") if key not in value]
    if lacking:
        raise ConfigError(
            f"Xid {code}: {', '.join(lacking)} missing; a row takes the place of the whole packaged one, so copy that "
            "from nccl_slurm/data/xid.toml and change it"
        )
    values: dict[str, Any] = {"mnemonic": "", "nvidia": "", "source": ""}
    values.update({key: str(value[key]) for key in _TEXT if key in value})
    values.update({key: bool(value.get(key)) for key in _FLAGS})
    return Xid(code=code, hint=str(value["class"]), after=_after(value.get("after", []), code), **values)


def _after(value: Any, code: int) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(one in ACTIONS for one in value):
        raise ConfigError(f"Xid {code}: after must be a list of {', '.join(ACTIONS)}")
    return tuple(value)
