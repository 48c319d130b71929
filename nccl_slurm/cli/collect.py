"""``nccl-slurm collect JOBID|NODES``: fetches node records by SSH now, for the daemon to take in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.lookup import check_store, open_store
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.collect.fetch import Fetcher, Visit
from nccl_slurm.collect.ssh import Target
from nccl_slurm.config import Config
from nccl_slurm.errors import ConfigError, InputError, RemoteError, SlurmError, UnknownJob
from nccl_slurm.hosts import expand
from nccl_slurm.scheduler.client import USER_ID

__all__ = ["command", "need_ssh", "targets_of"]


@dataclass(frozen=True)
class _Wish:
    """``jobs``: raw job ids, None for all."""

    nodes: Sequence[str]
    jobs: frozenset[int] | None


@click.command()
@click.argument("subject", metavar="JOBID|NODES")
@click.option("--run", type=click.IntRange(min=1), help="A run of a requeued job (default: the newest).")
@json_option
@config_option
def command(subject: str, run: int | None, as_json: bool, config_path: str | None) -> None:
    """Fetch by SSH what nodes hold: the missing records of a job, or all of some nodes (root or the daemon's user).

    Exit status 1: a node could not be visited. The daemon takes in what came.
    """
    loaded = config.load(config_path)
    need_ssh(loaded)
    wish = _wish(subject, run, loaded)
    visits = _visits(loaded, wish)
    if as_json:
        click.echo(json.dumps([_json(one) for one in visits]))
    else:
        click.echo(_text(visits))
    if failed := sum(one.why is not None for one in visits):
        raise RemoteError(f"{failed} of {len(visits)} nodes could not be visited to the end; see the lines above")


def need_ssh(loaded: Config) -> None:
    """Raises ConfigError."""
    if not loaded.ssh.user:
        raise ConfigError(f"{loaded.source}: ssh.user is empty: no node is visited; set the account and its key")


def targets_of(loaded: Config, nodes: Sequence[str]) -> list[Target]:
    """With Slurm's addresses; where Slurm does not answer a node's name has to do."""
    addresses: Mapping[str, str | None] = {}
    try:
        from nccl_slurm.scheduler.cli_client import CliClient

        client = CliClient(loaded.slurm.bin, loaded.slurm.conf, loaded.slurm.timeout_s)
        addresses = {state.name: state.address for state in client.nodes()}
    except SlurmError as error:
        click.echo(f"nccl-slurm: {error}; going by the nodes' names", err=True)
    return [Target(node, addresses.get(node) or node) for node in nodes]


def _wish(subject: str, run: int | None, loaded: Config) -> _Wish:
    if USER_ID.fullmatch(subject):
        return _of_job(subject, run, loaded)
    if run is not None:
        raise click.UsageError("--run goes with a JOBID")
    try:
        nodes = expand(subject)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return _Wish(nodes, None)


def _of_job(jobid: str, number: int | None, loaded: Config) -> _Wish:
    check_store(loaded)
    store = open_store(loaded)
    try:
        runs = [run for run in store.runs_of(jobid) if number in (None, run.run)]
        if not runs:
            raise UnknownJob(f"job {jobid} is unknown here; give NODES to fetch all that they hold")
        run = runs[-1]
        if run.end is None:
            raise InputError(f"job {jobid} runs: its records come when it has ended; `nccl-slurm probe NODE` looks now")
        there = store.record_nodes(run.cluster, run.raw_id, run.run)
        return _Wish([node for node in run.nodes if node not in there], frozenset({run.raw_id}))
    finally:
        store.close()


def _visits(loaded: Config, wish: _Wish) -> list[Visit]:
    if not wish.nodes:
        return []
    fetcher, targets = Fetcher(loaded), targets_of(loaded, wish.nodes)
    fetcher.prepare()
    with ThreadPoolExecutor(loaded.ssh.at_once) as pool:
        try:
            return list(pool.map(lambda target: fetcher.visit(target, wish.jobs), targets))
        finally:
            fetcher.close()


def _json(visit: Visit) -> dict[str, Any]:
    records = [{"name": name, "bytes": size} for name, size in visit.fetched]
    return {"node": visit.node, "offered": visit.offered, "fetched": records, "why": visit.why}


def _text(visits: Sequence[Visit]) -> str:
    from nccl_slurm.report.visible import visible

    if not visits:
        return "no record is missing"
    lines = []
    for one in visits:
        lines += [f"{one.node}: fetched {name}, {size:,} bytes" for name, size in one.fetched]
        if one.why is not None:
            lines.append(one.why if one.why.startswith(f"{one.node}:") else f"{one.node}: {one.why}")
        elif not one.fetched:
            lines.append(f"{one.node}: nothing offered")
    count = sum(len(one.fetched) for one in visits)
    return "\n".join(visible(line, 600) for line in [*lines, f"{count} records; the daemon takes them in"])
