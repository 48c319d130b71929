"""The evidence of one run, indexed by rank and host: what each rank said, how it ended, which hosts may be named."""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.agents import Agents
from nccl_slurm.attribute.clocks import Clocks, Moment
from nccl_slurm.attribute.ending import STAMP_S, Ending, ending_of
from nccl_slurm.attribute.sorts import Sorts
from nccl_slurm.attribute.tasks import Tasks, world_told
from nccl_slurm.info import runs
from nccl_slurm.model import Culprit, Evidence, Fact, Rank

__all__ = ["Scene"]

#: What most nodes have.
_GPUS_OF_A_NODE = 8
#: srun's words for tasks that a signal ended.
_SIGNALS = {**reading.SIGNAL_WORDS, "Out Of Memory": 9}


class Scene:
    """Read-only view of `Evidence`. Ranks here are global ranks."""

    def __init__(self, evidence: Evidence, sorts: Sorts | None = None) -> None:
        self.evidence = evidence
        self.job = evidence.job
        self.facts = evidence.facts
        self.sorts = Sorts(evidence.facts) if sorts is None else sorts.of(evidence.facts)
        self.table = {rank.rank: rank for rank in evidence.ranks}
        told = world_told(evidence)
        self.world = told if told is not None else self._world_of_agents()
        self.tasks = Tasks(self.sorts, self.job, self.world)
        if self.tasks_are_ranks:
            self.facts = tuple(_by_its_task(fact) for fact in evidence.facts)
        self.agents = Agents(self.facts, self.table, self.world, self.sorts.of(self.facts))
        self.facts = self.agents.read(self.facts)
        self.sorts = self.sorts.of(self.facts)
        self._leave_later_attempts()

    def _leave_later_attempts(self) -> None:
        """What failed first counts: ranks that waited in the first attempt and in the second waited for two things."""
        later = [fact for fact in self.facts if self.agents.is_later(fact)] if self.agents.first_exits else ()
        if not later:
            return
        gone, dumped = {id(fact) for fact in later}, {fact.rank for fact in later if fact.kind == reading.DUMPED}
        self.facts = tuple(fact for fact in self.facts if id(fact) not in gone)
        self.sorts = Sorts(self.facts)
        self.table = {rank: replace(row, progress={}) if rank in dumped else row for rank, row in self.table.items()}

    # --- who there is

    @cached_property
    def listed_by_agents(self) -> int | None:
        """Ranks in the failure tables of torchrun's agents, if they are 0 to n without a hole.

        A table lists all workers of its node but those that had finished with exit 0 (measured with torch 2.13).
        """
        failures = self.sorts.of_kind(reading.FAILURE)
        ranks = {fact.rank for fact in failures if fact.rank is not None}
        return len(ranks) if ranks and ranks == set(range(len(ranks))) else None

    def _world_of_agents(self) -> int | None:
        """That number where the tables of all nodes are there: each table has one root cause."""
        failures = self.sorts.of_kind(reading.FAILURE)
        roots = {fact.rank for fact in failures if reading.number(fact.data, "root") == 1}
        nodes = len(self.job.nodes) if self.job else 0
        return self.listed_by_agents if nodes and len(roots) >= nodes else None

    @cached_property
    def seen(self) -> frozenset[int]:
        """Ranks that left any trace of their own."""
        spoke = {rank for rank in self.said if rank >= 0}
        return frozenset(spoke | {rank.rank for rank in self.evidence.ranks if _left_trace(rank)} | set(self.exits))

    @cached_property
    def expected(self) -> frozenset[int]:
        """All ranks of the job where its world size is known, else those seen."""
        return self.seen if self.world is None else self.seen | frozenset(range(self.world))

    def known(self, rank: int) -> bool:
        """The run has this rank: it left a trace, or the world size says so; for logs alone also an analyser's word."""
        if rank in self.table or rank in self.seen:
            return True
        if self.world is not None:
            return 0 <= rank < self.world
        return self.job is None and rank in self._analysed

    @cached_property
    def ranks_are_of_a_group(self) -> bool:
        """All known ranks are on one node of several, fewer than GPUs, and NCCL's lines alone number them: so do
        those of a group that each node has one of (tensor parallel), where the other nodes' lines are lost."""
        if self.job is None or self.world is None or len(self.job.nodes) < 2 or len(self.seen) != self.world:
            return False
        if self.job.gpus is not None and self.job.gpus <= self.world:
            return False
        hosts = {self.host(rank) for rank in self.seen}
        labelled = any(fact.producer not in reading.NUMBER_BY_NCCL for facts in self.said.values() for fact in facts)
        return len(hosts) == 1 and None not in hosts and not labelled

    @cached_property
    def _analysed(self) -> frozenset[int]:
        facts = self.sorts.of_kind(*reading.ANALYSER_MISSING, *reading.BARRIERS, *reading.STALLS)
        told = {rank for fact in facts for rank in reading.numbers(fact.data.get("missing"))}
        told |= {rank for fact in self.sorts.of_kind(*reading.PACE) for rank in reading.slow_ranks(fact, 0)}
        return frozenset(rank for rank in told if rank >= 0)

    # --- hosts

    @cached_property
    def _nodes(self) -> dict[str, str]:
        """Names under which the run's nodes may appear (full, first label) → the name that Slurm uses."""
        names = [node.name for node in self.evidence.nodes] + list(self.job.nodes if self.job else ())
        return {**{name.split(".", 1)[0]: name for name in names}, **{name: name for name in names}}

    def node(self, host: str | None) -> str | None:
        """The run's node behind ``host``; None for a host outside the run. Logs without a job know no node list."""
        if host is None:
            return None
        if self.job is None and not self._nodes:
            return host
        return self._nodes.get(host) or self._nodes.get(host.split(".", 1)[0])

    def host(self, rank: int | None) -> str | None:
        """Node of a rank by the ranks table, else by the one host in the rank's own facts, else of its agent."""
        if rank is None:
            return None
        if rank in self.table and self.table[rank].host:
            return self.node(self.table[rank].host)
        words = [*self.said.get(rank, ()), *(self.by_task.get(rank, ()) if self.tasks_are_ranks else ())]
        hosts = {fact.host for fact in words if fact.host}
        return self.node(hosts.pop() if len(hosts) == 1 else self.agents.host(rank))

    @cached_property
    def heard_hosts(self) -> frozenset[str]:
        """Nodes of the run that some line or rank comes from."""
        told = {self.node(host) for host in {fact.host for fact in self.facts}}
        return frozenset(host for host in told | {self.host(rank) for rank in self.seen} if host)

    def is_machine(self, host: str | None) -> bool:
        """Logs without a job take the first folder's name for a host; it is one where a producer that prints hosts
        names it, or one that differs from it in digits alone."""
        return host is not None and (self.job is not None or _kind_of_host(host) in self._named_machines)

    @cached_property
    def _named_machines(self) -> frozenset[str]:
        said = self.sorts.where(lambda fact: fact.producer in reading.TELL_HOSTS)
        own = {fact.host for fact in said if fact.host and fact.host in fact.text}
        told = {fact.data.get(key) for fact in said for key in ("host", "hosts", "node", "hung_node")}
        kernel = {fact.host for fact in said if fact.file in self.kernel_logs}
        return frozenset(_kind_of_host(name) for name in own | told | kernel if isinstance(name, str))

    def was_on(self, host: str | None, rank: int, evidence: Collection[str]) -> bool:
        """Root speaks of this node in one of the facts, or they or other files of the rank were read on it. Logs
        without a job, and runs of one node, know no better."""
        if self.job is None or (self.job.nodes and len(self.job.nodes) == 1):
            return True
        row = self.table.get(rank)
        if row is not None and any(name.startswith(f"{host}/") for name in row.files):
            return True
        cited = [fact for fact in self.facts if fact.id in evidence and self.node(fact.host) == host]
        return any(fact.trust == "root" or (fact.file or "").startswith(f"{host}/") for fact in cited)

    @cached_property
    def span(self) -> tuple[float, float] | None:
        """First and last time in the job's own lines; of a wait when it began. None where no line has a time."""
        rows = [time for row in self.table.values() for time in (row.first, row.last)]
        said = [fact for fact in self.facts if fact.producer not in reading.MACHINE_PRODUCERS]
        told = [*rows, *(fact.time for fact in said), *map(reading.waited_since, said)]
        times = [time for time in told if time is not None]
        return (min(times), max(times)) if times else None

    @cached_property
    def places(self) -> frozenset[str] | None:
        """Where the job ran, by its own lines; None where they don't place each of its ranks."""
        hosts = [self.host(rank) for rank in self.expected]
        if not hosts or None in hosts:
            return None
        said = {fact.host for fact in self.facts if fact.producer not in reading.MACHINE_PRODUCERS}
        return frozenset(host for host in {*hosts, *map(self.node, said)} if host)

    @cached_property
    def clocks(self) -> Clocks:
        return Clocks(self.evidence.nodes, alone=self._on_one_node)

    def moment(self, fact: Fact) -> Moment | None:
        """When that was and by whose clock; None where the line has none."""
        if fact.time is None:
            return None
        host = self.node(fact.host) or self.host(fact.rank)
        return Moment(fact.time, fact.uncertainty_s or 0.0, host, reading.is_zoned(fact))

    def is_later(self, fact: Fact, than: Fact) -> bool | None:
        """By their lines in one file, else by their times as far as clocks go; None where that can't be told."""
        if fact.file is not None and fact.file == than.file and fact.line is not None and than.line is not None:
            return fact.line > than.line
        one, two = self.moment(fact), self.moment(than)
        if one is None or two is None:
            return None
        return True if self.clocks.earlier(two, one, 0.0) else False if self.clocks.earlier(one, two, 0.0) else None

    @cached_property
    def _on_one_node(self) -> bool:
        """By Slurm's list; logs alone: no second host is named, nor more ranks than most nodes have GPUs."""
        if self.job is not None and self.job.nodes:
            return len(self.job.nodes) == 1
        hosts = {fact.host for fact in self.facts if fact.host} | {row.host for row in self.table.values() if row.host}
        return len(hosts) < 2 and max(self.expected, default=0) < _GPUS_OF_A_NODE

    def culprit(self, rank: int, why: str, facts: Iterable[str]) -> Culprit:
        row = self.table.get(rank)
        return Culprit(why, rank, self.host(rank), row.gpu if row else None, tuple(facts))

    # --- what each rank said

    @cached_property
    def said(self) -> dict[int, list[Fact]]:
        by_rank: dict[int, list[Fact]] = defaultdict(list)
        for fact in self.facts:
            if fact.rank is not None:
                by_rank[fact.rank].append(fact)
        return dict(by_rank)

    @cached_property
    def wait_lines(self) -> list[Fact]:
        """Words of any rank, named or not, that it waited until the timeout."""
        return [fact for fact in self.sorts.where(reading.may_be_wait) if reading.is_wait(fact)]

    @cached_property
    def waits(self) -> dict[int, list[Fact]]:
        """Rank → its own words that it waited in a collective until the timeout."""
        return self.words(self.wait_lines)

    @cached_property
    def lost(self) -> dict[int, list[Fact]]:
        """Rank → its own words that the other side of a connection went away: it was in a collective then."""
        return self.words(self.sorts.where(reading.is_peer_lost))

    @cached_property
    def uses_nccl(self) -> bool:
        """Some line is NCCL's or that of torch's watchdog over it; gloo has none."""
        return self.sorts.any(reading.is_of_nccl)

    @cached_property
    def stricken(self) -> frozenset[int]:
        """Ranks to whom NCCL told that a transfer failed: they were in a collective then."""
        return frozenset(self.words(self.sorts.where(reading.is_failed_transfer)))

    @cached_property
    def consequences(self) -> dict[int, list[Fact]]:
        """Rank → waits, lost peers and aborts: the marks of a rank that was not the first."""
        maybe = self.sorts.where(lambda fact: fact.role == "consequence" or reading.may_be_wait(fact))
        return self.words(fact for fact in maybe if fact.role == "consequence" or reading.is_wait(fact))

    @cached_property
    def causes(self) -> dict[int, list[Fact]]:
        """Rank → its own words that are causes by their form."""
        return self.words(self.sorts.where(lambda fact: fact.role == "cause"))

    def words(self, facts: Iterable[Fact]) -> dict[int, list[Fact]]:
        """By rank, in the order in which the ranks are first heard of; without those of no rank."""
        found: dict[int, list[Fact]] = {}
        for fact in facts:
            if fact.rank is not None:
                found.setdefault(fact.rank, []).append(fact)
        return {rank: found[rank] for rank in self.said if rank in found} if found else {}

    def kernel_words(self, rank: int) -> list[Fact]:
        """What the kernel says of the program on this rank's GPU (illegal access and the like, no hardware fault)."""
        row = self.table.get(rank)
        if row is None or row.gpu is None or self._users[self.host(rank), row.gpu] > 1:
            return []
        return self._app_faults.get((self.host(rank), row.gpu), [])

    @cached_property
    def _users(self) -> Counter[tuple[str | None, str]]:
        """(node, GPU) → ranks that ran there: with several the kernel's word fits any of them."""
        return Counter((self.host(rank), row.gpu) for rank, row in self.table.items() if row.gpu)

    @cached_property
    def _app_faults(self) -> dict[tuple[str | None, object], list[Fact]]:
        """(node, PCI id of the GPU) → facts."""
        faults: dict[tuple[str | None, object], list[Fact]] = defaultdict(list)
        for fact in self.sorts.where(lambda fact: fact.hint == "gpu-app-fault"):
            if self.is_app_fault(fact):
                faults[self.node(fact.host), str(fact.data.get("pci"))].append(fact)
        return dict(faults)

    def is_app_fault(self, fact: Fact) -> bool:
        """Root's word about a program on a GPU of the run, whose rank it can't know."""
        by_root = fact.trust == "root" and fact.hint == "gpu-app-fault" and fact.rank is None
        return by_root and self.node(fact.host) is not None

    def spoke(self, rank: int) -> bool:
        """It told of a failure or a loss itself: more than the exit status that others tell of it."""
        said = (fact for fact in self.said.get(rank, ()) if not reading.tells_only_an_exit(fact))
        return any(fact.role in ("cause", "consequence") for fact in said)

    @cached_property
    def reacted(self) -> bool:
        """Anybody, named or not, speaks of waiting in a collective or of a lost peer."""
        return self.timed_out or self.sorts.any(reading.is_peer_lost)

    @cached_property
    def timed_out(self) -> bool:
        return bool(self.wait_lines) or self.sorts.any(reading.is_told)

    @cached_property
    def mismatched(self) -> bool:
        return self.sorts.any(lambda fact: fact.hint == "collective-mismatch")

    @cached_property
    def mixed_files(self) -> frozenset[str | None]:
        """Files that hold more than the words of machines: no kernel logs."""
        others = self.sorts.where(lambda fact: fact.producer not in reading.MACHINE_PRODUCERS)
        return frozenset(fact.file for fact in others)

    @cached_property
    def files_of_waits(self) -> frozenset[str] | None:
        return self.own_files(self.waits)

    @cached_property
    def kernel_logs(self) -> frozenset[str | None]:
        """Files of nothing but words of machines that are no rank's."""
        said = self.sorts.where(lambda fact: fact.producer in reading.MACHINE_PRODUCERS)
        ranks = {file for row in self.table.values() for file in row.files}
        return frozenset(fact.file for fact in said) - self.mixed_files - ranks

    @cached_property
    def has_own_words(self) -> bool:
        """Whether anything of a job was read: more than what machines and their tools (nvidia-smi) say."""
        return bool(self.table) or self.sorts.any(lambda fact: fact.producer not in reading.TOOLS)

    def own_files(self, others: Mapping[int, Sequence[Fact]]) -> frozenset[str] | None:
        """The kinds of files in which most of ``others`` have these words each to itself; None where they share one."""
        writers: dict[str, set[int]] = defaultdict(set)
        for other, facts in others.items():
            for fact in facts:
                if fact.file is not None:
                    writers[fact.file].add(other)
        own = {file: ranks for file, ranks in writers.items() if len(ranks) == 1}
        if len(own) < 2 or 2 * len(set().union(*own.values())) <= len(others):
            return None
        return frozenset(map(_kind_of_file, own))

    def would_be_heard(self, rank: int, kinds: frozenset[str] | None) -> bool:
        """Where ranks have files of their own (`own_files`), a lost one looks like silence: then it has to be there."""
        row = self.table.get(rank)
        return kinds is None or (row is not None and any(_kind_of_file(file) in kinds for file in row.files))

    # --- how the run and each rank ended

    @cached_property
    def completed(self) -> bool:
        """Slurm says so, and of all its steps."""
        job = self.job
        return job is not None and job.state == "COMPLETED" and not any(step.exit or step.signal for step in job.steps)

    @cached_property
    def ending(self) -> Ending:
        """Not by a word below which another run goes on in the same file: that is not how these logs end."""
        ends = self.sorts.where(reading.is_end_of_run)
        resumed = runs.resumed(self.facts) if ends and self.evidence.mixed else {}
        return ending_of(self.job, [fact for fact in ends if fact.file not in resumed])

    def ended_before(self, fact: Fact) -> bool | None:
        """Whether the run was ended from outside before that: by their lines in one file, else by time; None where
        that can't be told."""
        line = self.ending.lines.get(fact.file) if fact.file is not None else None
        if line is not None and fact.line is not None:
            return fact.line > line
        moment, end = self.moment(fact), self.ending.moment
        if moment is None or end is None:
            return None
        return not self.clocks.earlier(moment, end._replace(host=self.node(end.host)), STAMP_S)

    @cached_property
    def exits(self) -> dict[int, int]:
        """By the tables of the last attempt, or of the first one where that is told: what failed first counts."""
        if self.agents.first_exits is not None:
            return {rank: _signed(code) for rank, code in self.agents.first_exits.items()}
        exits = {rank.rank: _signed(rank.exit) for rank in self.evidence.ranks if rank.exit is not None}
        exits = {**dict.fromkeys(self.agents.finished, 0), **exits}
        if self.tasks_are_ranks:
            ends = {task: self._task_end(facts) for task, facts in self.by_task.items() if task not in exits}
            exits.update((task, code) for task, code in ends.items() if code is not None)
        return exits

    @property
    def by_task(self) -> dict[int, list[Fact]]:
        """Task number → srun's lines about how it ended."""
        return self.tasks.ends

    @property
    def tasks_are_ranks(self) -> bool:
        return self.tasks.are_ranks

    def _task_end(self, facts: Sequence[Fact]) -> int | None:
        """srun's line of a SIGKILL tells whether the step was being ended. slurmstepd's word does not, so by time: -15
        where another task of the step had failed before, None where that may be."""
        code = _signed(self._task_exit(facts[0]))
        if facts[0].kind != reading.TASK_ENDED or code != -9:
            return code
        if len(facts) > 1:
            return -15 if any(_signed(self._task_exit(fact)) == -15 for fact in facts[1:]) else code
        own = self.moment(facts[0])
        firsts = self._first_ends
        if own is None or firsts is None:
            return None
        nearest = [firsts[own.host], *heapq.nsmallest(2, firsts.values(), key=self._earliest)]
        if any(self.clocks.earlier(first, own, STAMP_S) for first in nearest):
            return -15
        return None if any(self._may_follow(own, first) for first in nearest) else code

    def _earliest(self, moment: Moment) -> float:
        return self.clocks.corrected(moment) - self.clocks.error(moment.host)

    def _may_follow(self, own: Moment, first: Moment) -> bool:
        """By more than the ends of one blow lie apart."""
        error = 0.0 if own.host == first.host else self.clocks.error(own.host) + self.clocks.error(first.host)
        return self.clocks.corrected(own) - self.clocks.corrected(first) + error > STAMP_S

    @cached_property
    def _first_ends(self) -> dict[str | None, Moment] | None:
        """Node → the first abnormal end that its slurmstepd saw; None where one has no time."""
        first: dict[str | None, Moment] = {}
        for fact in self.facts:
            if fact.kind == reading.TASK_ENDED and fact.data.get("exitcode") != 0:
                moment = self.moment(fact)
                if moment is None:
                    return None
                if moment.host not in first or moment.time < first[moment.host].time:
                    first[moment.host] = moment
        return first

    def _task_exit(self, fact: Fact) -> int:
        """srun's words for a task: an exit code, or a signal's name. Killed while the step was ended already: -15."""
        code = reading.number(fact.data, "exitcode")
        if code is not None:
            return code
        number = -next((number for word, number in _SIGNALS.items() if word in fact.text), 15)
        return -15 if number == -9 and self._step_was_ending(fact) else number

    def was_killed_with_step(self, fact: Fact) -> bool:
        """srun's word on tasks that SIGKILL ended while their step was being ended already."""
        return fact.data.get("signal") == "Killed" and fact.producer == "slurm" and self._step_was_ending(fact)

    def _step_was_ending(self, fact: Fact) -> bool:
        first = self._step_endings.get(fact.file)
        return first is not None and fact.line is not None and first < fact.line

    @cached_property
    def _step_endings(self) -> dict[str | None, int]:
        """File → first line at which srun ends a step; a task that was killed may be the first or one of the others."""
        first: dict[str | None, int] = {}
        for fact in self.sorts.of_kind(*reading.STEP_ENDING):
            if fact.line is not None and fact.data.get("signal") != "Killed":
                first[fact.file] = min(fact.line, first.get(fact.file, fact.line))
        return first

    @cached_property
    def agent_pids(self) -> frozenset[int]:
        """Workers that torchrun's agent ended because another one had failed."""
        kills = (reading.number(fact.data, "pid") for fact in self.sorts.where(reading.is_agent_kill))
        return frozenset(pid for pid in kills if pid is not None)

    @cached_property
    def forced_pids(self) -> frozenset[int]:
        forced = self.sorts.where(lambda fact: reading.is_agent_kill(fact, forced=True))
        kills = (reading.number(fact.data, "pid") for fact in forced)
        return frozenset(pid for pid in kills if pid is not None)

    @cached_property
    def ended_by_agent(self) -> frozenset[int]:
        """Ranks that an agent ended with SIGTERM or SIGKILL: their end follows another failure.

        By exit status, by pid, else by count: when the agents ended at least as many workers of unknown rank as there
        are ranks without any other end, then those ranks are these workers.
        """
        certain = {rank for rank in self.expected if self._killed_by_agent(rank)}
        named = {row.pid for row in self.table.values() if row.pid is not None}
        open_ends = {r for r in self.expected - certain if r not in self.exits and r not in self.consequences}
        spare = self.agent_pids - named
        return frozenset(certain | open_ends if len(open_ends) <= len(spare) else certain)

    def _killed_by_agent(self, rank: int) -> bool:
        code = self.exits.get(rank)
        row = self.table.get(rank)
        pid = row.pid if row else None
        if code == -15 or (code is None and pid is not None and pid in self.agent_pids):
            return True
        return code == -9 and (self._forced(pid) or rank in self.agents.forced)

    def _forced(self, pid: int | None) -> bool:
        """An agent that had to use SIGKILL; where the rank's pid is unknown any forced kill may have been this one."""
        return bool(self.forced_pids) if pid is None else pid in self.forced_pids


def _by_its_task(fact: Fact) -> Fact:
    task = reading.number(fact.data, "task")
    return fact if task is None or fact.rank is not None else replace(fact, rank=task)


def _left_trace(rank: Rank) -> bool:
    return bool(rank.exit is not None or rank.last is not None or rank.last_line or rank.progress or rank.files)


def _kind_of_file(name: str) -> str:
    """Its own name without its numbers: ``rank_3.log`` and ``rank_4.log`` are of one kind."""
    return re.sub(r"\d+", "", name.rpartition("/")[2])


def _kind_of_host(name: str) -> str:
    """The first label without its numbers: ``n1``, ``n2.example.org`` and srun's ``n[1-2]`` are of one kind."""
    return re.sub(r"[\d\[\],-]+", "", name.partition(".")[0])


def _signed(code: int) -> int:
    """A shell's 128 + signal number as minus the signal; torch and srun print such codes of wrapped ranks."""
    return 128 - code if 128 < code <= 128 + 31 else code
