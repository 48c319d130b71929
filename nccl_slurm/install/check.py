"""``install.sh --check``: proves on this controller and on all nodes that what slurm.conf will name is there and runs,
then prints the lines. Changes nothing; slurm.conf is edited by a person.

Exit status: 0 lines printed or none needed, 1 something is not proven or is refused, 2 usage.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence

from nccl_slurm.errors import InputError, NcclSlurmError
from nccl_slurm.install import advice, spank
from nccl_slurm.install.captureconf import known_keys
from nccl_slurm.install.daemonconf import checked
from nccl_slurm.install.facts import ask_slurm, find_slurm
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.plan import SPOOL
from nccl_slurm.install.proof import Wanted, doubts, patterns, unproven
from nccl_slurm.install.reach import Probe, Reached, Slurm, ask_here, by_srun, by_ssh, srun_commands, ssh_command
from nccl_slurm.install.site import Answer, merged
from nccl_slurm.install.slurmconf import Node, SlurmConfig, parse_config
from nccl_slurm.install.wiring import Found, joint_folder, plan

__all__ = ["run"]


@dataclass(frozen=True)
class _Options:
    layout: Layout
    nodes: str | None
    excepted: str | None
    ssh: bool
    slurm_bin: str | None
    slurm_conf: str | None
    dry_run: bool


def run(arguments: Sequence[str]) -> int:
    try:
        return _check(_options(arguments))
    except SystemExit as end:  # argparse: 0 after --help, 2 on wrong usage
        return int(end.code or 0)
    except NcclSlurmError as error:
        print(f"install.sh: {advice.plain(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1


def _options(arguments: Sequence[str]) -> _Options:
    parser = argparse.ArgumentParser(prog="install.sh --check", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--prefix", default=Layout.prefix, help="the code (%(default)s)")
    parser.add_argument("--hooks", default=Layout.hooks, help="the hooks, on each host's own disk (%(default)s)")
    parser.add_argument("--conf", default=Layout.conf, help="the configuration (%(default)s)")
    parser.add_argument("--nodes", metavar="LIST", help="nodes to prove, as Slurm writes them (all)")
    parser.add_argument("--except", dest="excepted", metavar="LIST", help="nodes to leave out: nothing is said of them")
    parser.add_argument("--ssh", action="store_true", help="reach nodes by ssh as root in place of srun")
    parser.add_argument("--slurm-bin", metavar="DIR", help="Slurm's commands (PATH and the usual places)")
    parser.add_argument("--slurm-conf", metavar="FILE", help="slurm.conf that Slurm's commands shall use")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands that ask the hosts; run none of them"
    )
    chosen = parser.parse_args(list(arguments))
    layout = Layout(chosen.prefix, chosen.hooks, chosen.conf)
    return _Options(
        layout, chosen.nodes, chosen.excepted, chosen.ssh, chosen.slurm_bin, chosen.slurm_conf, chosen.dry_run
    )


def _check(options: _Options) -> int:
    folder, layout = find_slurm(options.slurm_bin), options.layout
    config = parse_config(ask_slurm(folder, options.slurm_conf))
    slurm = Slurm(folder or "", options.slurm_conf)
    nodes, unasked = _nodes(slurm, options)
    joint = [joint_folder(layout, key) for key in ("Prolog", "Epilog")]
    asked = [*patterns(layout, config, joint), _plugin(layout, config)]
    probe = Probe(layout.capture_conf, layout.hooks, config.user, asked)
    if options.dry_run:
        return _show_commands(slurm, probe, nodes, options)
    here = ask_here(probe)
    reached = by_ssh(probe, nodes) if options.ssh else by_srun(slurm, probe, nodes)
    return _judge(slurm, config, here, reached, unasked, options)


def _nodes(slurm: Slurm, options: _Options) -> tuple[list[Node], list[str]]:
    """To ask, and left unasked by ``--nodes`` though lines would hold for them too. Raises InputError: none to ask."""
    left_out = set(slurm.expanded(options.excepted)) if options.excepted else set()
    every = [node for node in slurm.nodes(None) if node.name not in left_out]
    chosen = {node.name for node in slurm.nodes(options.nodes)} if options.nodes else {node.name for node in every}
    nodes = [node for node in every if node.name in chosen]
    if not nodes:
        raise InputError("no nodes are left to prove; see --nodes and --except")
    return nodes, [node.name for node in every if node.name not in chosen]


def _show_commands(slurm: Slurm, probe: Probe, nodes: Sequence[Node], options: _Options) -> int:
    print(f"here:   {shlex.join(['/bin/sh', *probe.arguments('controller')])} <{probe.path}")
    by_ssh_each = [ssh_command(probe, node) for node in nodes] if options.ssh else []
    for command in by_ssh_each or srun_commands(slurm, probe, nodes):
        print(f"nodes:  {shlex.join(command)} <{probe.path}")
    print("Each makes and removes one folder in the spool and one file in SHARED/tmp.")
    return 0


def _judge(
    slurm: Slurm, config: SlurmConfig, here: Answer, reached: Reached, unasked: Sequence[str], options: _Options
) -> int:
    answers = {**reached.answers, "": here}
    systemd = all(answer.yes("systemd") for answer in reached.answers.values())
    wiring = plan(config, Found(merged(answers), systemd), options.layout)
    wanted = Wanted(options.layout, config, wiring, _digests(answers.values()), known_keys(options.layout))
    at_fault = _at_fault(reached, wanted, unasked if wiring.lines else ())
    daemons = checked(options.layout)
    faults_here = [*unproven(here, wanted, controller=True), *daemons.errors]
    proven = not faults_here and not any(at_fault.values()) and not wiring.refusals
    _say("Refused", wiring.refusals)
    _say("This controller", faults_here)
    _say("Nodes", _by_node(at_fault, slurm))
    _say("Worth a look", _by_node({name: doubts(one, wanted) for name, one in reached.answers.items()}, slurm))
    plugin = _spank(slurm, config, reached, options.layout) if proven else []
    _say("Know that", [*wiring.remarks, *daemons.warnings, *_other_controllers(config), *_left_out(options), *plugin])
    whole = slurm.folded(reached.answers) if proven else ""
    told = advice.lines(wiring, config, options.layout) if proven else _not_yet(advice.before(wiring, options.layout))
    print(
        "\n".join(map(advice.plain, [*([f"Proven on this controller and on {whole}.", ""] if proven else []), *told]))
    )
    return 0 if proven else 1


def _plugin(layout: Layout, config: SlurmConfig) -> str:
    return os.path.join(layout.spank, spank.release_name(config))


def _spank(slurm: Slurm, config: SlurmConfig, reached: Reached, layout: Layout) -> list[str]:
    """It is optional: a node without it is no fault."""
    name = _plugin(layout, config)
    absent = [node for node, answer in reached.answers.items() if not answer.matches(name)]
    spools = {answer.conf.get("NCCL_SLURM_SPOOL") or SPOOL for answer in reached.answers.values()}
    spool = spools.pop() if len(spools) == 1 else "SPOOL"
    return [spank.advice(config, layout, spool, slurm.folded(absent) if absent else "")]


def _at_fault(reached: Reached, wanted: Wanted, unasked: Sequence[str]) -> dict[str, list[str]]:
    """Node → what is not proven of it."""
    found = {name: unproven(answer, wanted, controller=False) for name, answer in reached.answers.items()}
    found.update((name, [f"not proven: {why}"]) for name, why in reached.silent.items())
    found.update((name, ["not proven: was not asked (--nodes)"]) for name in unasked)
    return found


def _not_yet(first: Sequence[str]) -> list[str]:
    return [*first, "No lines yet: they are printed when all of the above is mended (--except LIST leaves nodes out)."]


def _digests(answers: Iterable[Answer]) -> dict[str, str]:
    """Path → the content that most hosts have."""
    counts: dict[str, Counter[str]] = {}
    for answer in answers:
        for one in (one for files in answer.files.values() for one in files if one.digest):
            counts.setdefault(one.path, Counter())[one.digest] += 1
    return {path: count.most_common(1)[0][0] for path, count in counts.items()}


def _by_node(sentences: Mapping[str, Sequence[str]], slurm: Slurm) -> list[str]:
    nodes: dict[str, list[str]] = {}
    for name, told in sentences.items():
        for sentence in dict.fromkeys(told):
            nodes.setdefault(sentence, []).append(name)
    return [f"{slurm.folded(names)}: {sentence}" for sentence, names in nodes.items()]


def _other_controllers(config: SlurmConfig) -> list[str]:
    if len(config.controllers) < 2:
        return []
    return [f"controllers are {', '.join(config.controllers)}: EpilogSlurmctld runs on whichever leads; check each"]


def _left_out(options: _Options) -> list[str]:
    if not options.excepted:
        return []
    return [f"nothing is proven of {options.excepted}: a file that is missing there drains it or fails its tasks"]


def _say(title: str, sentences: Sequence[str]) -> None:
    if sentences:
        print("\n".join([f"{title}:", *(f"  {advice.plain(sentence)}" for sentence in sentences), ""]))
