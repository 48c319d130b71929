"""NCCL's own lines and those of its OFI plugin, from 2.18 on."""

from __future__ import annotations

from nccl_slurm.testing.lines import stamp
from nccl_slurm.testing.place import Place

__all__ = [
    "closed",
    "completion",
    "info",
    "init",
    "memlock",
    "modify_qp",
    "ofi_request",
    "ofi_setup",
    "peer_lost",
    "port_error",
    "refused",
    "shm_full",
    "version",
    "versions_differ",
    "warn",
]


def _who(place: Place, rank: int) -> str:
    return f"{place.scenario.host(rank)}:{place.pid(rank)}:{place.pid(rank) + 88} [{place.scenario.local(rank)}] "


def info(place: Place, rank: int, at: float, text: str) -> str:
    """Stamped only where NCCL_DEBUG_TIMESTAMP_LEVELS has INFO (capture sets ALL), from 2.26 on."""
    scenario = place.scenario
    when = stamp.bracketed(at) if scenario.stamps and scenario.nccl >= (2, 26) else ""
    return f"{when}{_who(place, rank)}NCCL INFO {text}"


def warn(place: Place, rank: int, at: float, where: str, text: str, function: str = "") -> list[str]:
    """An empty line comes first; the function stands there from 2.30 on."""
    scenario = place.scenario
    when = stamp.bracketed(at) if scenario.stamps and scenario.nccl >= (2, 26) else ""
    inside = f" ({function})" if function and scenario.nccl >= (2, 30) else ""
    return ["", f"{when}{_who(place, rank)}{where}{inside} NCCL WARN {text}"]


def version(place: Place, other: str | None = None) -> str:
    return f"NCCL version {other or '.'.join(map(str, place.scenario.nccl)) + '.5'}+cuda12.8"


def init(place: Place, rank: int, at: float, *, done: bool = True) -> list[str]:
    """The start of one rank: bootstrap, devices, network, the communicator of all ranks, a channel."""
    scenario = place.scenario
    using = "Bootstrap : Using" if scenario.nccl < (2, 24) else "Bootstrap: Using"
    texts = [f"{using} eth0:{place.address(scenario.host(rank))}<0>", *_network(place, rank)]
    texts += [f"{_communicator(place, rank)} - Init START"]
    if done:
        texts += [_channel(place, rank), f"{_communicator(place, rank)} - Init COMPLETE"]
    return [info(place, rank, at, text) for text in texts]


def _network(place: Place, rank: int) -> list[str]:
    scenario = place.scenario
    oob = f"OOB eth0:{place.address(scenario.host(rank))}<0>"
    if scenario.network == "IB":
        return [f"NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; {oob}", "Using network IB"]
    if scenario.network == "Socket":
        device = f"[0]eth0:{place.address(scenario.host(rank))}<0>"
        return ["NET/IB : No device found.", f"NET/Socket : Using {device}", "Using network Socket"]
    start = ["NET/OFI Initializing aws-ofi-nccl 1.9.1-aws", "NET/OFI Selected Provider is efa (found 4 nics)"]
    return [*start, "Using network AWS Libfabric"]


def _communicator(place: Place, rank: int) -> str:
    scenario = place.scenario
    local = scenario.local(rank)
    call = "" if scenario.nccl < (2, 21) else "ncclCommInitRank "
    return (
        f"{call}comm 0x55d0{rank:04x}a1 rank {rank} nranks {scenario.world} cudaDev {local} nvmlDev {local} "
        f"busId {place.bus_number(rank)} commId 0xa1b2c3d4e5f60718"
    )


def _channel(place: Place, rank: int) -> str:
    scenario = place.scenario
    peer = (rank + 1) % scenario.world
    ends = f"Channel 00/0 : {rank}[{scenario.local(rank)}] -> {peer}[{scenario.local(peer)}]"
    if scenario.host(peer) == scenario.host(rank):
        return f"{ends} via P2P/CUMEM"
    path = {"IB": "NET/IB/0/GDRDMA", "Socket": "NET/Socket/0", "AWS Libfabric": "NET/AWS Libfabric/0/GDRDMA"}
    return f"{ends} [send] via {path[scenario.network]}"


# --- warnings: the text alone, which torch repeats as *Last error*


def completion(place: Place, peer: int, direction: str, status: int = 12, vendor: int = 129) -> str:
    """``peer``: the rank at the other end, of whom the address of its node's TCP side is told."""
    nccl, host = place.scenario.nccl, place.scenario.host(peer)
    where = f"{place.address(host)}<{place.port(peer)}>"
    if nccl < (2, 20):
        text = f"NET/IB : Got completion from peer {where} with error {status}, opcode 0, len 0, vendor err {vendor}"
        return f"{text} ({direction})"
    gids = f"localGid fe80::a288:1 remoteGidsfe80::a288:{peer % 250 + 2}"
    if nccl < (2, 22):
        text = f"NET/IB : Got completion from peer {where} with status={status} opcode=0 len=0 vendor err {vendor}"
        return f"{text} ({direction}) {gids}"
    if nccl < (2, 29):
        text = f"NET/IB: Got completion from peer {where} with status={status} opcode=0 len=0 vendor err {vendor}"
        return f"{text} ({direction}) {gids} hca mlx5_0"
    name = "IBV_WC_WR_FLUSH_ERR" if status == 5 else "IBV_WC_RETRY_EXC_ERR"
    text = f"NET/IB: Got completion from peer {where} with status={name}({status}) opcode=IBV_WC_RDMA_WRITE(1)"
    return f"{text} vendor_err={vendor}  {gids.replace('remoteGids', 'remoteGids ')} hca mlx5_0"


def port_error(place: Place, device: str) -> str:
    nccl = place.scenario.nccl
    if nccl < (2, 20):
        return "NET/IB : Got async event : port error"
    if nccl < (2, 29):
        return f"NET/IB : {device}:1 Got async event : port error"
    return f"NET/IB : {device}:1 Got non-fatal async event: port error(10)"


def closed(place: Place, peer: int) -> str:
    return f"socketProgress: Connection closed by remote peer {place.scenario.host(peer)}.cluster<{place.port(peer)}>"


def peer_lost(place: Place, peer: int) -> str:
    where = f"{place.address(place.scenario.host(peer))}<{place.port(peer)}>"
    return f"socketProgressOpt: Call to recv from {where} failed : Connection reset by peer"


def refused(place: Place, peer: int) -> str:
    where = f"{place.address(place.scenario.host(peer))}<{place.port(peer)}>"
    nccl = place.scenario.nccl
    if nccl < (2, 20):
        return f"socketStartConnect: Connect to {where} failed : Connection refused"
    if nccl < (2, 27):
        code = "returned 111(Connection refused) errno 115(Operation now in progress)"
        return f"socketPollConnect: Connect to {where} {code}"
    why = "returned Connection refused, exceeded error retry count after 35 attempts"
    return f"socketPollConnect: connect to {where} {why}"


def modify_qp(place: Place, rank: int, peer: int) -> str:
    nccl = place.scenario.nccl
    if nccl < (2, 19):
        return "Call to ibv_modify_qp failed with error Connection timed out"
    if nccl < (2, 24):
        return "Call to ibv_modify_qp failed with error Connection timed out errno 110"
    near, far = (place.address(place.scenario.host(one)) for one in (rank, peer))
    return (
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, "
        f"local GID index 3, local GID ::ffff:{near}, remote GID ::ffff:{far}"
    )


def memlock(place: Place) -> str:
    how = "with error Cannot allocate memory" if place.scenario.nccl < (2, 24) else "with 12 Cannot allocate memory"
    return f"Call to ibv_reg_mr_iova2 failed {how}"


def shm_full(place: Place, rank: int) -> str:
    errno = ", error: No space left on device (28)" if place.scenario.nccl >= (2, 20) else ""
    return f"Error: failed to extend /dev/shm/nccl-aB{rank:04x} to 9637892 bytes{errno}"


def versions_differ(rank: int, own: int, other: int, theirs: int) -> str:
    return f"Mismatched NCCL version detected : rank {rank} version {own} rank {other} version {theirs}"


def ofi_request() -> str:
    return "NET/OFI Request 0x7f10 completed with error. RC: 113. Error: 2 (UNDELIVERABLE). Completed length: 0"


def ofi_setup() -> str:
    return "NET/OFI Couldn't find any optimal provider"
