"""One run of the doctor: choose nodes and checks, read all nodes at the same time, judge, fold.

The edge of the package: everything it calls is pure but `slurm` (asks Slurm), `reach` (asks nodes), the reader of a
job's output, and AWS.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from nccl_slurm.config import Config
from nccl_slurm.doctor import choose, registry, sources, sweep
from nccl_slurm.doctor.aws.place import find
from nccl_slurm.doctor.check import AREAS, Area, Check, Finding, NotObserved
from nccl_slurm.doctor.checks.scheduler.nodes import NODE_STATE
from nccl_slurm.doctor.checks.scheduler.observed import SlurmObserved
from nccl_slurm.doctor.choose import Choice
from nccl_slurm.doctor.fold import folded
from nccl_slurm.doctor.judge import UNREACHABLE, has_ranks, observation_of, of_node, safely, silent_nodes
from nccl_slurm.doctor.observation import Fleet, JobObserved, Observation, unpacked
from nccl_slurm.doctor.outputs import texts
from nccl_slurm.doctor.reach import Answer, Here, Way, ask_all
from nccl_slurm.doctor.read.scontrol import node_fields
from nccl_slurm.doctor.result import Looked, Result
from nccl_slurm.doctor.roles import addresses_of, compute_nodes, controller_hosts, database_hosts
from nccl_slurm.doctor.site import SOURCES, is_hyperpod, site_of
from nccl_slurm.doctor.slurm import AskedSlurm
from nccl_slurm.doctor.waves import Gate, Waves, by_look
from nccl_slurm.doctor.ways import Ways
from nccl_slurm.doctor.wish import Wish, narrowed, wanted
from nccl_slurm.errors import InputError, NcclSlurmError, SlurmError, SlurmUnreachable
from nccl_slurm.hosts import fold
from nccl_slurm.install.slurmconf import values
from nccl_slurm.recommend.site import Site
from nccl_slurm.scheduler import text
from nccl_slurm.scheduler.client import NodeState

__all__ = ["Wish", "chosen", "run"]

Told = Callable[[int, int], None]


def run(
    wish: Wish,
    config: Config,
    told: Told = lambda done, of: None,
    *,
    slurm: AskedSlurm | None = None,
    ways: Callable[[str], Sequence[Way]] | None = None,
) -> Result:
    """``ways`` stand in for those to real nodes. Raises InputError, ConfigError, SlurmError, NotYours, UnknownJob:
    where nothing can be looked at."""
    start, clock = time.time(), time.monotonic()
    checks = wanted(wish, list(registry.checks(*AREAS)))
    if wish.local:
        doctor: _Run = _Here(wish, config, checks)
    else:
        doctor = _Doctor(wish, config, checks, slurm=slurm or AskedSlurm.by(config), ways=ways)
    found = doctor.findings(told)
    names = [check.id for check in checks]
    explains = {check.id: tuple(check.explains) for check in checks}
    return Result(
        at=start,
        seconds=time.monotonic() - clock,
        findings=folded(found, explains, names),
        checks={check.id: check.title for check in checks},
        cluster=doctor.cluster,
        job=wish.job,
        looked=doctor.looked,
        left_out=doctor.left_out,
        site=doctor.site,
        compute=doctor.compute,
        since=doctor.since,
        narrowed=doctor.narrowed,
    )


def chosen(wish: Wish, config: Config) -> Mapping[str, sweep.Room]:
    """The nodes that would be looked at, as Slurm knows them. Looks at none. Raises as `run`."""
    doctor = _Doctor(wish, config, (), slurm=AskedSlurm.by(config), ways=None)
    choice, known = doctor._choice(), doctor.nodes()
    fields = node_fields(doctor.slurm.said_or_raise("nodes"))
    return {node: sweep.room(known.get(node), fields.get(node, {})) for node in choice.nodes}


@dataclass
class _Run:
    """What both ways have in common. ``looked``, ``left_out`` ... are filled by `findings`."""

    wish: Wish
    config: Config
    checks: Sequence[Check[Any]]
    looked: Looked = field(default_factory=Looked)
    left_out: list[str] = field(default_factory=list)
    cluster: str | None = None
    site: Site = field(default_factory=Site)
    compute: frozenset[str] = frozenset()
    since: float | None = None
    narrowed: Sequence[str] = ()

    def findings(self, told: Told) -> list[Finding]:
        raise NotImplementedError

    def of(self, *wanted: Area) -> list[Check[Any]]:
        return [check for check in self.checks if check.area in wanted]

    def keys(self, *wanted: Area) -> set[str]:
        return {key for check in self.of(*wanted) for key in check.sources}

    def manifest(self, node: str, job: int | None, options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return sources.manifest(
            self.keys("node", "job", "fleet", "scheduler") | SOURCES,
            job=None if job is None else str(job),
            limit_s=self.wish.limit_s,
            sysroot=self.wish.sysroot.replace("%n", node),
            bin_folder=self.wish.commands.replace("%n", node),
            options=options,
        )


@dataclass
class _Here(_Run):
    """This node alone: neither Slurm nor a configuration is asked for."""

    def findings(self, told: Told) -> list[Finding]:
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        job = _raw(self.wish.job)
        program = sources.program(self.manifest(node, job, {"ras": {"status": True}}))
        told(0, 1)
        (answer,) = ask_all([node], lambda _: [Here(sys.executable)], lambda _: program, limit_s=self.wish.limit_s)
        told(1, 1)
        try:
            seen = replace(unpacked(answer.data, node, "local"), since=self.wish.since) if not answer.why else None
        except NotObserved as error:
            answer, seen = replace(answer, why=str(error)), None
        if seen is None:
            self.looked = Looked([node], silent={node: answer.why})
            return silent_nodes(self.of("node"), [answer])
        self.narrowed = narrowed(self.wish)
        self.looked = Looked([node], ways={"local": [node]}, with_ranks=[node] if has_ranks(seen) else [])
        self.since = self.wish.since
        found = [one for check in self.of("node") for one in of_node(check, seen)]
        view = JobObserved(
            str(self.wish.job), job or 0, Fleet({node: seen}), output_why="not read with --local", part=True
        )
        return found + [one for check in self.of("job") for one in safely(check, view)]


def _raw(job: str | None) -> int | None:
    """Of a part of an array the raw id is another one, which only Slurm knows."""
    if job is None:
        return None
    if not job.isdigit():
        raise InputError(f"--local takes the raw job id ($SLURM_JOB_ID), not {job}")
    return int(job)


def _by_name(said: str) -> Mapping[str, NodeState]:
    return {node.name: node for node in text.read_nodes(said)}


def _with_ending(answer: Answer, waves: Waves) -> Answer:
    """srun's own words do not tell that a prolog failed."""
    return replace(answer, why=f"{waves.ending(answer.node)} ({answer.why})") if answer.node in waves.out else answer


@dataclass
class _Doctor(_Run):
    """From a host with Slurm's commands."""

    slurm: AskedSlurm = field(kw_only=True)
    ways: Callable[[str], Sequence[Way]] | None = field(kw_only=True)
    _hyperpod: bool = False
    _by_look: Mapping[str, str] = field(default_factory=dict)

    def findings(self, told: Told) -> list[Finding]:
        given = texts(self.wish.bandwidth, "--bandwidth")
        before = texts(self.wish.bandwidth_before, "--bandwidth-before")
        choice = self._choice_or_blind()
        aws = self._aws(choice)
        fleet, found = self._look(choice, told) if choice.nodes else (Fleet({}), [])
        self.narrowed = [*narrowed(self.wish, choice.start), *self._without_ranks(choice)]
        fleet = replace(fleet, bandwidth=given, bandwidth_before=before)
        if choice.raw_id is not None:
            view = self._job_view(choice, fleet)
            found += [one for check in self.of("job") for one in safely(check, view)]
        if choice.nodes or self.wish.bandwidth:
            told_already = not fleet.nodes and fleet.silent  # node by node
            checks = [check for check in self.of("fleet") if not (told_already and check.id == UNREACHABLE)]
            found += [one for check in checks for one in safely(check, fleet)]
        if self.of("scheduler"):
            found += self._of_slurm(fleet)
        self._tell_site(choice)
        return found + aws.result()

    # which nodes

    def _choice(self) -> Choice:
        wish = self.wish
        if wish.job:
            choice = self._of_job(wish.job)
        elif wish.nodes:
            choice = choose.listed(wish.nodes, self.nodes())
        else:
            choice = choose.all_idle(self.nodes()) if wish.all_idle else Choice(())
        return choose.sampled(choice, wish.sample)

    def _choice_or_blind(self) -> Choice:
        """Where Slurm itself is what is broken, its own checks go on, and nodes given by name are visited by SSH.

        Raises as `_choice` where nothing would be left to look at.
        """
        try:
            return self._choice()
        except SlurmError as error:
            if self.slurm.bin_folder is None or not self.of("scheduler"):
                raise
            self.left_out.append(f"nodes and job as Slurm knows them: {error}")
            if self.wish.nodes:
                return choose.sampled(choose.given(self.wish.nodes), self.wish.sample)
            self.looked = Looked(blind=True)
            return Choice(())

    def _of_job(self, job: str) -> Choice:
        live = self.slurm.jobs()
        if any(one.id == job and one.state == "RUNNING" for one in live):
            return choose.of_job(job, live, ())
        try:
            accounted = self.slurm.accounted(job)
        except SlurmError as error:
            accounted = ()
            self.left_out.append(f"accounting: {error}")
        choice = choose.of_job(job, live, accounted)
        if more := choose.beside(job, choice.job or choice.ended, live, accounted):
            self.left_out.append(more)
        return choice

    def nodes(self) -> Mapping[str, NodeState]:
        """Raises SlurmUnreachable."""
        return _by_name(self.slurm.said_or_raise("nodes"))

    def _known(self) -> Mapping[str, NodeState]:
        """None where Slurm does not answer."""
        try:
            return self.nodes()
        except SlurmUnreachable:
            return {}

    def _fields(self) -> Mapping[str, Mapping[str, str]]:
        """As `_known`."""
        return node_fields(said) if isinstance(said := self.slurm.said("nodes"), str) else {}

    # what they say

    def _look(self, choice: Choice, told: Told) -> tuple[Fleet, list[Finding]]:
        """Each node is judged as it comes, and only what other checks need of it is kept. Where no check reads anything
        there, nothing is started."""
        if not any(check.sources or check.id == UNREACHABLE for check in self.checks):
            self.looked = Looked(list(choice.nodes), choice.of, unasked=True)
            return Fleet({}), []
        kept = self.keys("job", "fleet", "scheduler")
        fields, by_default = self._fields(), Ways(self.slurm, self.config, self.wish.ssh)
        ways = self.ways or by_default.to(choice, self._known(), fields)
        self.since = since = self.wish.since if self.wish.since is not None else choice.start
        until = choice.ended.end if choice.ended is not None and self.wish.since is None else None
        with_ranks: list[str] = []
        seen: dict[str, Observation] = {}
        silent: list[Answer] = []
        found: list[Finding] = []
        by_way: dict[str, list[str]] = {}
        gate = Gate(lambda: _by_name(self.slurm.again("nodes")), Waves(self.slurm.reasons))
        owner = choice.job.user or str(choice.job.uid) if choice.job is not None else ""
        told(0, len(choice.nodes))
        for answer in self._answers(choice, ways, gate):
            try:
                one = observation_of(answer, since, fields.get(answer.node, {}), owner, until)
                found += [finding for check in self.of("node") for finding in of_node(check, one)]
                seen[answer.node] = one.only(kept)
                self._hyperpod |= is_hyperpod(one)
                with_ranks += [answer.node] if has_ranks(one) else []
                by_way.setdefault(answer.way, []).append(answer.node)
            except NotObserved as error:
                silent.append(replace(answer, why=str(error)))
            told(len(seen) + len(silent), len(choice.nodes))
        found += self._of_own_jobs(gate)
        silent = [_with_ending(one, gate.waves) for one in silent]
        whys = {one.node: one.why for one in silent}
        self.left_out += by_default.no_ssh if whys else []
        self.looked = Looked(list(choice.nodes), choice.of, by_way, whys, with_ranks)
        return Fleet(seen, whys), [*found, *silent_nodes(self.of("node"), silent)]

    def _of_own_jobs(self, gate: Gate) -> list[Finding]:
        """Nodes that went out of work by them are told whatever checks are chosen."""
        gate.close()
        waves = gate.waves
        if lasting := waves.lasting():
            self.left_out.append(f"how the look's own jobs ended on {fold(lasting)}: Slurm does not tell yet")
        self._by_look = {node: by_look(state, waves.reasons) for node, state in waves.out.items()}
        said, judged_later = self.slurm.said("nodes"), any(check.id == NODE_STATE.id for check in self.checks)
        if not waves.out or judged_later or not isinstance(said, str):
            return []
        texts, out = {"nodes": said}, frozenset(waves.out)
        seen = SlurmObserved(time.time(), texts, chosen=out, reasons=waves.reasons, by_look=self._by_look)
        return list(NODE_STATE.judge(seen))

    def _without_ranks(self, choice: Choice) -> Iterator[str]:
        """Of a job that runs the ranks are the half of what there is to see."""
        without = sorted(set(choice.nodes) - set(self.looked.with_ranks)) if choice.job is not None else []
        if without and not self.looked.unasked:
            yield f"no rank of the job was seen on {fold(without)}"

    def _answers(self, choice: Choice, ways: Callable[[str], Sequence[Way]], gate: Gate) -> Iterator[Answer]:
        """Nodes that may have to wait for their turn come last: they hold no place of another one."""
        munge = ["munge", "-n", *self.slurm.munge_socket()]
        plain: dict[str, dict[str, Any]] = {"hooks": {"globs": self._hooks()}, "munge": {"argv": munge}}
        asks_all = {**plain, "ras": {"status": True}}

        def program(node: str) -> bytes:
            options = asks_all if choice.raw_id is not None and node == choice.nodes[0] else plain
            return sources.program(self.manifest(node, choice.raw_id, options))

        order = sorted(choice.nodes, key=lambda node: any(way.name == "job" for way in ways(node)))
        wish = self.wish
        return ask_all(order, ways, program, limit_s=wish.limit_s, at_once=wish.at_once, place=gate.place)

    def _hooks(self) -> list[str]:
        """What slurmd runs, as slurm.conf names it: paths and patterns."""
        from nccl_slurm.install.slurmconf import parse_config

        config = parse_config(said) if isinstance(said := self.slurm.said("config"), str) else None
        named = (*config.prolog, *config.epilog, *config.task_prolog) if config else ()
        named = (*named, *(one.path for one in self.slurm.plugins() if one.required))
        return [path for path in named if path.startswith("/")]

    # what follows

    def _job_view(self, choice: Choice, fleet: Fleet) -> JobObserved:
        assert self.wish.job is not None and choice.raw_id is not None
        part = choice.of is not None or (choice.job is not None and choice.job.het_job_id is not None)
        view = JobObserved(self.wish.job, choice.raw_id, fleet, choice.job, part=part)
        if choice.job is None:
            return replace(view, output_why=choice.why_unread)
        return self._with_output(view) if self.of("job") else view

    def _with_output(self, view: JobObserved) -> JobObserved:
        """As `nccl-slurm watch` reads it, with the owner's rights."""
        from nccl_slurm.cli.rules import pattern_texts
        from nccl_slurm.daemon.output import Wanted
        from nccl_slurm.daemon.watch import script_paths
        from nccl_slurm.live.watch import output_reader

        job = view.live
        assert job is not None
        try:
            paths = [job.stdout, job.stderr, *script_paths(self.slurm.client, job)]
            with output_reader(pattern_texts(self.config)) as reader:
                named = list(dict.fromkeys(path for path in paths if path))
                parsed, files = reader.read_now(Wanted(named, job.start or 0.0), job.uid or 0)
        except (NcclSlurmError, OSError) as error:
            return replace(view, output_why=str(error))
        if not files:
            why = next((gap.why for gap in parsed.gaps), "no file of it could be read")
            return replace(view, output_why=f"job output: {why}")
        return replace(view, output=parsed)

    def _of_slurm(self, fleet: Fleet) -> list[Finding]:
        observed = self.slurm.observed(time.time(), fleet, frozenset(self.looked.chosen), self._by_look)
        return [one for check in self.of("scheduler") for one in safely(check, observed)]

    def _aws(self, choice: Choice) -> Future[list[Finding]]:
        """Beside the nodes: its calls wait for another network."""
        done: Future[list[Finding]] = Future()
        if not self.of("aws"):
            done.set_result([])
            return done
        observe = importlib.import_module("nccl_slurm.doctor.aws.checks").observe
        now = time.time()
        since = self.wish.since if self.wish.since is not None else choice.start or now - 86400.0
        states = self._states(choice)
        where = {"cluster": self.wish.cluster, "region": self.wish.region}
        told = {"since": since, "until": now, "nodes": states, "by_choice": bool(choice.nodes)}
        seen = observe(self.config, slurm=True, **told, **where)
        self.left_out += [f"AWS by the environment's region: {seen.place.unused}"] if seen.place.unused else []
        pool = ThreadPoolExecutor(1)
        return pool.submit(lambda: [one for check in self.of("aws") for one in safely(check, seen)])

    def _states(self, choice: Choice) -> Sequence[NodeState]:
        known = self._known()
        return [known[node] for node in choice.nodes if node in known] or list(known.values())

    def _tell_site(self, choice: Choice) -> None:
        """For commands: of which kind the site is, and which nodes certainly run no controller, database or login."""
        config = self.slurm.said("config")
        if not isinstance(config, str):
            return
        try:
            settings = text.read_config(config)
        except SlurmError as error:
            self.left_out.append(str(error))
            return
        self.cluster = settings.cluster
        controllers = tuple(one.host for one in self._controllers())
        site = self.config.site
        place = find(cluster=self.wish.cluster, region=self.wish.region, configured=(site.aws_cluster, site.region))
        states = self._states(choice)
        hyperpod, reasons = self._hyperpod, self.slurm.reasons
        self.site = site_of(settings, site, place, controllers, hyperpod=hyperpod, nodes=states, reasons=reasons)
        named = values(config)
        others = {*settings.database_hosts, *site.login_nodes, *site.database_hosts}
        others |= {host for each in database_hosts(named) for host in each}
        if controllers:
            every = controller_hosts(named, controllers)
            self.compute = compute_nodes(states, every, others, addresses_of)

    def _controllers(self) -> Sequence[Any]:
        said = self.slurm.said("ping")
        return text.read_controllers(said) if isinstance(said, str) else ()
