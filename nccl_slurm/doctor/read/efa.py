"""EFA as libfabric and the installer tell it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Provider", "domains", "installer", "installer_version", "providers"]

_FIELD = re.compile(r"\s*(provider|fabric|domain|version|type|protocol): (\S{1,80})\s*\Z")
_ENDING = re.compile(r"-(?:rdm|dgrm)\Z")
_INSTALLER = re.compile(r"EFA installer version: ([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})")
_PACKAGE = re.compile(r"([a-z][a-z0-9_+-]{1,60})[-_ ]v?([0-9]{1,4}(?:\.[0-9a-z]{1,20}){1,4})", re.IGNORECASE)


@dataclass(frozen=True)
class Provider:
    name: str
    fabric: str = ""
    domain: str = ""
    type: str = ""
    version: str = ""


def providers(text: str) -> list[Provider]:
    """``fi_info``: one block each ``provider:`` line begins."""
    found: list[dict[str, str]] = []
    for field in filter(None, map(_FIELD.match, text.splitlines())):
        if field.group(1) == "provider":
            found.append({"name": field.group(2)})
        elif found:
            found[-1].setdefault(field.group(1), field.group(2))
    return [Provider(**{key: one[key] for key in one if key != "protocol"}) for one in found[:4096]]


def domains(found: Sequence[Provider], name: str = "efa") -> set[str]:
    """Cards: ``rdmap49s0-rdm`` and ``rdmap49s0-dgrm`` are one."""
    return {_ENDING.sub("", one.domain) for one in found if one.name == name and one.domain}


def installer_version(text: str) -> str | None:
    """``/opt/amazon/efa_installed_packages``."""
    found = _INSTALLER.search(text)
    return found.group(1) if found else None


def installer(text: str) -> dict[str, str]:
    """Its packages: ``libfabric-aws-1.22.0amzn1.0`` and the like, by name."""
    words = (word for line in text.splitlines() if not line.startswith("#") for word in line.split()[:4])
    found = (_PACKAGE.match(word) for word in words)
    return {one.group(1).lower(): one.group(2) for one in found if one}
