"""Where a simulated rank is: its process id, its node's address, its GPU. Process ids repeat between nodes."""

from __future__ import annotations

from nccl_slurm.testing.scenario import Scenario

__all__ = ["Place"]

#: PCI buses of the GPUs of a node.
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
#: Nodes have as many process ids as this; a few thousand nodes share them.
_PIDS = 3_000


class Place:
    """``attempt``: torchrun's restart number, which changes the process ids."""

    def __init__(self, scenario: Scenario, attempt: int = 0) -> None:
        self.scenario = scenario
        self.attempt = attempt
        self._number = {host: number for number, host in enumerate(scenario.nodes)}
        self._base: dict[str, int] = {}

    def agent_pid(self, host: str) -> int:
        if host not in self._base:
            self._base[host] = 4_000 + self.scenario.random("pid", host).randrange(_PIDS) * 20
        return self._base[host]

    def pid(self, rank: int) -> int:
        return self.agent_pid(self.scenario.host(rank)) + 1 + self.scenario.local(rank) + 100 * self.attempt

    def address(self, host: str) -> str:
        number = self._number[host]
        return f"10.{number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"

    def port(self, rank: int) -> int:
        return 40_000 + self.scenario.local(rank) * 11

    def bus(self, rank: int) -> str:
        """As in the kernel's lines: ``0000:1b:00``."""
        local = self.scenario.local(rank)
        return f"{local // len(_BUSES):04x}:{_BUSES[local % len(_BUSES)]:02x}:00"

    def bus_number(self, rank: int) -> str:
        """As in NCCL's lines: ``1b000``."""
        local = self.scenario.local(rank)
        return f"{(local // len(_BUSES) << 20) + (_BUSES[local % len(_BUSES)] << 12):x}"

    def elastic_folder(self, host: str) -> str:
        """Each agent makes its own below --log-dir."""
        return f"{self.scenario.job_id}_{self.scenario.random('elastic', host).randrange(36**6):08x}"

    def clock(self, host: str, at: float) -> float:
        """What the node's own clock shows at that moment."""
        return at + self.scenario.offsets[host]
