"""Facts as the parser makes them of NCCL's and torch's INFO lines."""

from __future__ import annotations

from typing import Any

from nccl_slurm.model import Fact
from nccl_slurm.parse.finding import find
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.parse.prefix import strip

ROWS = load_rows()


def read(text: str, *, rank: int | None = None, host: str | None = None, line: int = 1, **more: Any) -> Fact:
    """``text`` must be a line that a row knows."""
    prefix = strip(text)
    finding = find(prefix.text, ROWS)
    assert finding is not None, text
    data = {**finding.data, **({} if prefix.pid is None else {"writer_pid": prefix.pid})}
    return Fact(
        kind=finding.kind,
        text=text,
        producer=finding.producer,
        role=finding.role,
        trust="job",
        hint=finding.hint,
        file=more.get("file", f"nccl.{host or prefix.host}.{prefix.pid}.log"),
        line=line,
        rank=finding.rank if rank is None else rank,
        host=host or prefix.host,
        data=data,
        id=more.get("id", f"f{line}"),
    )


def info(rank: int, words: str, *, host: str | None = None, line: int = 1) -> Fact:
    """An INFO line of a rank; two ranks a node unless ``host`` is given."""
    node = host or f"n{rank // 2 + 1}"
    return read(f"{node}:{800 + rank}:{900 + rank} [{rank % 2}] NCCL INFO {words}", rank=rank, line=line)


def init(
    rank: int, phase: str, *, size: int = 4, comm: str = "0xa", shared: str = "commId 0xc0", line: int = 1
) -> Fact:
    words = f"comm {comm}{rank} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 busId 1b000 {shared}"
    return info(rank, f"ncclCommInitRank {words} - Init {phase}", line=line)


def channel(source: int, target: int, via: str, *, line: int = 1) -> Fact:
    return info(source, f"Channel 00/0 : {source}[0] -> {target}[0] [send] via {via}", line=line)
