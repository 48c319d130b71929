"""When the daemon visits which node for its records, and that a node which hangs holds nothing up."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from nccl_slurm.collect.fetch import Fetcher, Landing, Offer, Visit, landing_of
from nccl_slurm.collect.ssh import Target
from nccl_slurm.config import Config, Ssh
from nccl_slurm.daemon.loop import Daemon
from nccl_slurm.errors import ConfigError
from tests.cluster.processes import wait_until
from tests.collect.test_shared import record as empty_record
from tests.daemon.test_loop import FAILED, Lab


class Nodes(Fetcher):
    """Nodes that hold records by name, in place of SSH. ``hanging`` nodes answer when the daemon closes."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.landing = Landing(landing_of(config))
        self.holds: dict[str, dict[str, str]] = {}
        self.hanging: set[str] = set()
        self.away: set[str] = set()
        self.broken = ""
        self.visits: list[tuple[str, frozenset[int]]] = []
        self._end = threading.Event()

    def prepare(self) -> None:
        if self.broken:
            raise ConfigError(self.broken)
        self.landing.prepare()

    def visit(self, target: Target, wanted: Collection[int] | None, known: Collection[Offer] = ()) -> Visit:
        self.visits.append((target.node, frozenset(wanted or ())))
        if target.node in self.hanging:
            self._end.wait(120.0)
        if target.node in self.hanging | self.away:
            return Visit(target.node, why=f"{target.node}: no answer")
        mine = {
            name: text
            for name, text in self.holds.get(target.node, {}).items()
            if int(name.split(".")[0]) in (wanted or ())
        }
        new = [(name, len(text)) for name, text in mine.items() if (name, len(text)) not in known]
        for name, _ in new:
            half = Path(landing_of_new(self)).parent / f"{name}.half"
            half.write_text(mine[name])
            half.rename(Path(landing_of_new(self), name))
        return Visit(target.node, len(mine), tuple(new))

    def close(self) -> None:
        self._end.set()


def landing_of_new(nodes: Nodes) -> str:
    return str(Path(nodes.landing._folder) / "new")


class SshLab(Lab):
    """A daemon that fetches; ``shared``: beside a shared folder."""

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self.with_shared = shared
        super().__init__(folder)

    def restart(self) -> None:
        paths = self.config.paths if self.with_shared else dataclasses.replace(self.config.paths, shared="")
        self.config = dataclasses.replace(self.config, paths=paths, ssh=Ssh(user="fetcher", at_once=4))
        self.nodes = Nodes(self.config)
        self.daemon = Daemon(
            self.config, self.slurm, self.store, self.clock, self.output, self.slurm.settings(), fetcher=self.nodes
        )

    def holds(self, node: str, job: int, at: float) -> None:
        name = f"{job}.{int(at)}.{node}.json"
        content = empty_record(cluster="c", job_id=job, node=node, written=at)
        self.nodes.holds.setdefault(node, {})[name] = json.dumps(content)

    def run_until(self, ready: object, seconds: float = 400.0, step: float = 1.0) -> bool:
        """Ticks; visits are threads of their own, so a tick alone may be too soon to see what they brought."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.daemon.tick()
            wait_until(lambda: not self.at_work(), 60.0)
            if ready():  # type: ignore[operator]
                return True
            self.clock.sleep(step)
        return False

    def at_work(self) -> bool:
        fetching = self.daemon._fetching
        assert fetching is not None
        return any(
            node.visit is not None and not node.visit.done()
            for name, node in fetching._nodes.items()
            if name not in self.nodes.hanging
        )

    def ended(self, nodes: str = "n[1-2]") -> int:
        job = self.slurm.submit(nodes, comment="mine")
        self.run(3)
        self.slurm.end(job, "FAILED", **FAILED)
        self.hint(job)
        return job


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[SshLab]:
    made = SshLab(tmp_path)
    yield made
    made.daemon.close()
    made.store.close()


def records(lab: Lab, job: int) -> list[str]:
    return sorted(row.node for row in lab.store.records("c", job, 1))


def test_records_are_fetched_when_the_run_has_ended_and_the_verdict_follows(lab: SshLab) -> None:
    job = lab.ended()
    assert lab.nodes.visits == []
    for node in ("n1", "n2"):
        lab.holds(node, job, lab.clock.now() - 3)
    assert lab.run_until(lambda: lab.verdict(job) is not None, 50.0)  # earlier than settle_s would end the wait
    assert records(lab, job) == ["n1", "n2"] and "report" in lab.comment(job)
    assert [node["record"] for node in lab.verdict(job)["nodes"]] == ["present", "present"]  # type: ignore[index]
    assert sorted(lab.nodes.visits) == [("n1", frozenset({job})), ("n2", frozenset({job}))]


def test_nobody_is_visited_for_what_the_shared_folder_brought(tmp_path: Path) -> None:
    lab = SshLab(tmp_path, shared=True)
    job = lab.ended()
    lab.record(job, "n1")
    assert lab.run_until(lambda: bool(lab.nodes.visits), 60.0)
    lab.holds("n2", job, lab.clock.now() - 10)
    assert lab.run_until(lambda: records(lab, job) == ["n1", "n2"])
    assert {node for node, _ in lab.nodes.visits} == {"n2"}
    lab.daemon.close()
    lab.store.close()


def test_a_node_that_hangs_costs_itself_alone(lab: SshLab) -> None:
    lab.nodes.hanging = {"n1"}
    job = lab.ended()
    lab.holds("n2", job, lab.clock.now() - 3)
    assert lab.run_until(lambda: records(lab, job) == ["n2"])
    assert lab.run_until(lambda: lab.verdict(job) is not None)
    assert [node for node, _ in lab.nodes.visits].count("n1") == 1


def test_no_more_nodes_at_once_than_are_allowed(lab: SshLab) -> None:
    lab.nodes.hanging = {f"n{number}" for number in range(1, 9)}
    job = lab.ended("n[1-8]")
    lab.run(30)
    assert wait_until(lambda: len(lab.nodes.visits) == 4, 30.0)
    assert lab.run_until(lambda: lab.verdict(job) is not None)
    assert len(lab.nodes.visits) == 4


def test_visits_that_bring_nothing_become_rare_and_a_late_record_counts(lab: SshLab) -> None:
    job = lab.ended("n1")
    began = lab.clock.now() - 3
    assert lab.run_until(lambda: lab.verdict(job) is not None)
    assert not lab.run_until(lambda: False, 1800.0, step=10.0)
    assert 5 < len(lab.nodes.visits) < 20
    lab.holds("n1", job, began)
    assert lab.run_until(lambda: records(lab, job) == ["n1"], 1500.0, step=10.0)
    assert lab.run_until(lambda: lab.verdict(job)["nodes"][0]["record"] == "late", 60.0)  # type: ignore[index]
    count = len(lab.nodes.visits)
    assert not lab.run_until(lambda: False, 1300.0, step=10.0)
    assert len(lab.nodes.visits) <= count + 1


def test_a_run_that_was_judged_without_a_record_is_asked_for_again_soon(lab: SshLab) -> None:
    job = lab.ended("n1")
    began = lab.clock.now() - 3
    assert lab.run_until(lambda: lab.verdict(job) is not None)
    lab.holds("n1", job, began)
    assert lab.run_until(lambda: records(lab, job) == ["n1"], 150.0, step=2.0)


def test_after_a_day_nobody_is_asked_any_more(lab: SshLab) -> None:
    job = lab.ended("n1")
    assert lab.run_until(lambda: lab.verdict(job) is not None)
    lab.clock.sleep(25 * 3600.0)
    lab.run(3)
    count = len(lab.nodes.visits)
    assert not lab.run_until(lambda: False, 1300.0, step=10.0)
    assert len(lab.nodes.visits) <= count + 1


def test_a_new_run_is_asked_for_at_once_where_the_node_answers(lab: SshLab) -> None:
    first = lab.ended("n1")
    assert not lab.run_until(lambda: False, 700.0, step=10.0)
    second = lab.ended("n1")
    lab.holds("n1", second, lab.clock.now() - 3)
    assert lab.run_until(lambda: records(lab, second) == ["n1"], 30.0)
    assert records(lab, first) == []


def test_a_daemon_that_comes_back_asks_for_what_is_missing(lab: SshLab) -> None:
    job = lab.ended("n1")
    began = lab.clock.now() - 3
    assert lab.run_until(lambda: lab.verdict(job) is not None)
    lab.daemon.close()
    lab.restart()
    lab.holds("n1", job, began)
    assert lab.run_until(lambda: records(lab, job) == ["n1"], 60.0)


def test_what_came_is_judged_as_what_the_shared_folder_brings(lab: SshLab) -> None:
    """A node can't speak for a job that it did not run."""
    job = lab.ended("n1")
    name = f"{job}.{int(lab.clock.now())}.n7.json"
    lab.run(8)
    lab.nodes.landing.prepare()
    content = empty_record(cluster="c", job_id=job, node="n7", written=lab.clock.now())
    (Path(landing_of_new(lab.nodes)) / name).write_text(json.dumps(content))
    lab.run(3)
    assert records(lab, job) == [] and (Path(landing_of(lab.config)) / "quarantine" / name).exists()
    assert any("not in the list" in note.text for note in lab.store.notes())


def test_what_is_wrong_is_told_once_by_the_node_and_at_once_by_the_settings(lab: SshLab) -> None:
    lab.nodes.away = {"n1"}
    job = lab.ended("n1")
    assert lab.run_until(lambda: lab.verdict(job) is not None)
    told = [note for note in lab.store.notes() if note.kind == "fetch"]
    assert [(note.text, note.count) for note in told] == [("n1: no answer", 1)]
    lab.nodes.broken = "ssh.key_file: gone; make one"
    lab.run(3)
    assert any(note.text.startswith("ssh.key_file: gone") for note in lab.store.notes())


def test_a_node_that_slurm_calls_down_is_no_news(lab: SshLab) -> None:
    lab.nodes.away = {"n1"}
    job = lab.ended("n1")
    lab.slurm.set_node("n1", "DOWN")
    assert lab.run_until(lambda: lab.verdict(job) is not None)
    assert lab.nodes.visits and not [note for note in lab.store.notes() if note.kind == "fetch"]
