"""``nccl-slurm probe NODE``: the node's state now, by SSH, or by a step beside a job that runs there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.config import Config
from nccl_slurm.errors import InputError, RemoteError, SlurmUnreachable, UnknownJob
from nccl_slurm.hosts import HOST
from nccl_slurm.model import READER_STEP
from nccl_slurm.scheduler.cli_client import CliClient
from nccl_slurm.scheduler.client import USER_ID

__all__ = ["command"]

_MAX_BYTES = 8 << 20
#: Beside the time that a GPU query takes on the node.
_SRUN_S = 90.0


def _job(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not USER_ID.fullmatch(value):
        raise click.UsageError(f"{value!r} is no job id, give it as squeue shows it: 42, 42_1 or 43+1")
    return value


@click.command()
@click.argument("node", metavar="NODE")
@click.option("--job", metavar="JOBID", callback=_job, help="By srun beside this running job, in place of SSH.")
@json_option
@config_option
def command(node: str, job: str | None, as_json: bool, config_path: str | None) -> None:
    """Take a snapshot of NODE now: machine, GPUs, ports, disks, load, and what could not be seen (admins).

    With --job it runs as a step of that job and as its owner, whom root becomes; it shows in the job's list of steps.
    """
    loaded = config.load(config_path)
    if not HOST.match(node):
        raise click.UsageError(f"{node!r} is no name of a node")
    data = _by_ssh(loaded, node) if job is None else _by_srun(loaded, node, job)
    told = _checked(data, node)
    click.echo(json.dumps(told) if as_json else "\n".join(_lines(told)))


def _by_ssh(loaded: Config, node: str) -> bytes:
    from nccl_slurm.cli.collect import need_ssh, targets_of
    from nccl_slurm.collect.fetch import visitor_of

    need_ssh(loaded)
    visitor = visitor_of(loaded)
    visitor.check()
    (target,) = targets_of(loaded, [node])
    data = b""
    with visitor.session(target) as session:
        for chunk in session.ask("snapshot"):
            data += chunk
            if len(data) > _MAX_BYTES:
                raise RemoteError(f"{node}: its answer is larger than 8 MiB")
    return data


def _by_srun(loaded: Config, node: str, job: str) -> bytes:
    """The step ends with 0 whatever happens, hence `sh -c`: one that fails changes the job's derived exit code."""
    options = [f"--jobid={job}", f"--job-name={READER_STEP}", "--overlap", f"--nodelist={node}", "--nodes=1"]
    options += ["--ntasks=1", "--mem=0", "--quiet"]
    asked = ["/bin/sh", "-c", f"{loaded.ssh.command} serve snapshot || :"]
    environment = {"PATH": "/usr/bin:/bin", **({"SLURM_CONF": loaded.slurm.conf} if loaded.slurm.conf else {})}
    try:
        done = subprocess.run(
            [f"{loaded.slurm.bin}/srun", *options, "--export=NONE", "--chdir=/", *asked],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=_SRUN_S,
            **_as_owner(loaded, job),
        )
    except OSError as error:
        raise SlurmUnreachable(f"srun: {error.strerror}; see slurm.bin in nccl-slurm.toml") from None
    except subprocess.TimeoutExpired:
        raise RemoteError(f"{node}: srun gave no answer within {_SRUN_S:g} s; it was ended") from None
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode or not done.stdout:
        raise RemoteError(f"{node}: {_why(loaded, said, job)}")
    return bytes(done.stdout[:_MAX_BYTES])


def _why(loaded: Config, said: Sequence[str], job: str) -> str:
    """srun's or the shell's last word (dash: ``not found``, bash: ``No such file or directory``), and the remedy."""
    last = said[-1] if said else "no answer"
    program = loaded.ssh.command.split(" ", 1)[0]
    if program in last and ("not found" in last or "No such file" in last):
        return (
            f"{program} is not there; install the node's part (install.sh --node), or set ssh.command to where "
            "nccl-slurm-node is"
        )
    return f"srun: {last}; does job {job} run there?"


def _as_owner(loaded: Config, job: str) -> dict[str, Any]:
    """Slurm lets nobody but a job's owner make a step in it, root not either: root becomes that user. For Popen."""
    from nccl_slurm.live.step import as_owner

    if os.geteuid() != 0:
        return {}
    client = CliClient(loaded.slurm.bin, loaded.slurm.conf, loaded.slurm.timeout_s)
    uid = next((one.uid for one in client.jobs() if job in (one.id, str(one.raw_id))), None)
    if uid is None:
        raise UnknownJob(f"job {job} does not run; give one that runs on that node, as squeue shows it")
    return as_owner(uid, job)


def _checked(data: bytes, node: str) -> dict[str, Any]:
    """As a record's parts, by the schema of records: what a node says is believed in its shape alone."""
    from nccl_slurm import schema

    try:
        told = json.loads(data)
        parts = {key: told[key] for key in ("machine", "gaps")}
        snapshot, said = told["snapshot"], str(told["node"])
    except (ValueError, RecursionError, TypeError, KeyError):
        raise InputError(f"{node}: its answer is no snapshot; is nccl-slurm-node there as new as this one?") from None
    try:
        text = json.dumps({**_EMPTY, **parts, "node": node, "snapshots": {"before": None, "after": snapshot}})
        schema.loads(text.encode(), "node-record/1")
    except ValueError as error:
        raise InputError(f"{node}: its answer is no snapshot: {error}") from None
    return {"node": node, "calls_itself": said[:255], **parts, "snapshot": snapshot}


_EMPTY: dict[str, Any] = {
    "schema": "nccl-slurm/node-record/1",
    "cluster": None,
    "job_id": 1,
    "closed_by": "sweep",
    "written": 0.0,
    "writer": {"version": "0", "python": "0", "patterns": None},
    "prolog": None,
    "epilog": None,
    "clock": {"source": "unknown", "offset_s": None, "synchronized": None},
    "kernel_events": [],
    "facts": [],
    "ranks": [],
    "task_exits": [],
    "files": [],
    "world_size": None,
    "lines_unknown": 0,
    "bytes_read": 0,
}


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    from nccl_slurm.report.visible import visible

    for line in _text(told):
        yield visible(line, 400)


def _text(told: Mapping[str, Any]) -> Iterator[str]:
    machine, snapshot = told["machine"], told["snapshot"]
    if told["calls_itself"] != told["node"]:
        yield f"it calls itself {told['calls_itself']}"
    yield f"{told['node']}: machine {machine['identity']} ({machine['identity_source']}), kernel {machine['kernel']}"
    for part, value in snapshot.items():
        if part not in ("start", "end") and value is not None:
            for one in value if isinstance(value, list) and all(isinstance(one, dict) for one in value) else [value]:
                yield f"{part}: {_words(one)}"
    for gap in told["gaps"]:
        yield f"not observed: {gap['source']}: {gap['why']}"


def _words(value: object) -> str:
    """A dash is what was not observed."""
    if isinstance(value, dict):
        return ", ".join(
            f"{key} {f'({_words(one)})' if isinstance(one, dict) else _words(one)}" for key, one in value.items()
        )
    if isinstance(value, list):
        return " ".join(map(_words, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return str(value)
