"""A first installation on a host wants to be told where records go; nothing is touched before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nccl_slurm.errors import InputError, InstallError
from nccl_slurm.install.facts import Facts, gather
from nccl_slurm.install.main import check_shared_was_asked
from nccl_slurm.install.options import parse


@pytest.fixture(scope="module")
def known() -> Facts:
    """Of this host, on which nothing is installed."""
    return replace(gather(parse(["--node", "--root", "/nonexistent/tree"])), capture_conf=None)


@pytest.mark.parametrize("role", ["--node", "--controller"])
def test_without_shared_it_asks(known: Facts, role: str) -> None:
    with pytest.raises(InstallError, match="nothing was changed: without --shared SHARED records stay on the nodes, "):
        check_shared_was_asked(parse([role]), known)


@pytest.mark.parametrize(
    "more", [["--shared", "/fsx/x"], ["--no-shared"], ["--dry-run"], ["--root", "/image"]], ids=lambda more: more[0]
)
def test_what_answers_it(known: Facts, more: list[str]) -> None:
    check_shared_was_asked(parse(["--node", *more]), known)


def test_a_host_that_has_settings_was_asked_before(known: Facts) -> None:
    check_shared_was_asked(parse(["--node"]), replace(known, capture_conf="NCCL_SLURM_SPOOL=/x\n"))


def test_both_contradict_each_other() -> None:
    with pytest.raises(InputError, match="contradict"):
        parse(["--node", "--shared", "/fsx/x", "--no-shared"])
    with pytest.raises(InputError, match="means nothing"):
        parse(["--uninstall", "--no-shared"])
