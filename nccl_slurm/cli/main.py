"""The command ``nccl-slurm``. Subcommands are imported when used: a report must not pay for the daemon's imports.

Exit status: 0 done, 1 it can't be read or reached, 2 usage or configuration, 3 not yours, 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence

import click

from nccl_slurm import __version__
from nccl_slurm.errors import ConfigError, NcclSlurmError, NotYours, SlurmUnreachable, StoreError

__all__ = ["EXIT_STATUS", "cli", "main"]

#: Standard output is a file on a full, failed or over-quota disk.
OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG})

#: Subcommand -> its module under nccl_slurm.cli, which holds ``command``.
COMMANDS = {
    "report": "report",
    "watch": "watch",
    "explain": "explain",
    "prompt": "prompt",
    "repro": "repro",
    "bundle": "bundle",
    "jobs": "jobs",
    "nodes": "nodes",
    "drains": "drains",
    "review": "review",
    "collect": "collect",
    "probe": "probe",
    "doctor": "doctor",
    "status": "status",
    "config": "config",
    "rules": "rules",
    "forget": "forget",
    "daemon": "daemon",
}

#: The one table error -> exit status; the message is the error's own text. First match wins.
EXIT_STATUS: tuple[tuple[type[NcclSlurmError], int], ...] = ((NotYours, 3), (ConfigError, 2), (NcclSlurmError, 1))

#: For messages that are another program's own words and so name no remedy.
REMEDIES: tuple[tuple[type[NcclSlurmError], str], ...] = (
    (SlurmUnreachable, "see that Slurm is up, and that slurm.conf and slurm.bin in nccl-slurm.toml are right"),
    (StoreError, "see that store.url in nccl-slurm.toml is right, and its server or disk there"),
)


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"nccl_slurm.cli.{COMMANDS[cmd_name]}")
        command: click.Command = module.command
        return command


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nccl-slurm")
def cli() -> None:
    """Who stalled first in a distributed GPU job on Slurm, why, and what to do with the node."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs the command and exits with the documented status; never shows a traceback."""
    _open_what_is_closed()
    try:
        given = None if arguments is None else list(arguments)
        status = cli.main(args=given, prog_name="nccl-slurm", standalone_mode=False)
        sys.stdout.flush()
        if isinstance(status, int) and status:  # of a command that ended by Context.exit
            sys.exit(status)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except click.ClickException as error:
        _show_usage(error)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # the reader (head, less) went away: nothing is wrong, but nothing more can be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except NcclSlurmError as error:
        _show(_with_remedy(error))
        sys.exit(next(status for kind, status in EXIT_STATUS if isinstance(error, kind)))
    except Exception as error:
        if isinstance(error, OSError) and error.errno in OUTPUT_ERRORS:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            _show(f"the output could not be written: {error.strerror}; make room or give it another place")
            sys.exit(1)
        # a fault of ours: users get one line, whoever mends it sets the variable
        if os.environ.get("NCCL_SLURM_TRACEBACK"):
            raise
        _show(f"internal error: {type(error).__name__}: {error}; NCCL_SLURM_TRACEBACK=1 shows where, please report it")
        sys.exit(1)


def _open_what_is_closed() -> None:
    """What was closed by the caller (``>&-``) takes nothing: else the next file that is opened would be there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 # until the process ends


def _show(line: str) -> None:
    from nccl_slurm.report.visible import visible

    click.echo(f"nccl-slurm: {visible(line)}", err=True)


def _show_usage(error: click.ClickException) -> None:
    """One line; a command that was given no subcommand prints its help instead (click 8.2 on)."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return
    context = getattr(error, "ctx", None)
    _show(f"{error.format_message().rstrip('.')}; see {context.command_path if context else 'nccl-slurm'} --help")


def _with_remedy(error: NcclSlurmError) -> str:
    text = str(error)
    remedy = next((remedy for kind, remedy in REMEDIES if isinstance(error, kind)), None)
    return text if remedy is None or "; " in text else f"{text}; {remedy}"


if __name__ == "__main__":
    main()
