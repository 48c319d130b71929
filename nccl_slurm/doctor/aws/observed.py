"""All that the AWS checks look at, asked when a check wants it and then kept; a failure is kept too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from nccl_slurm.doctor.aws.client import Pages
from nccl_slurm.doctor.aws.cluster import Cluster, Event, Instance, read_cluster, read_event, read_instance
from nccl_slurm.doctor.aws.findings import AGENT, DEEP_CHECKS, DETECTION, Detection, Result, read_detection, read_result
from nccl_slurm.doctor.aws.instances import Map, NamedNode, join
from nccl_slurm.doctor.aws.place import Place
from nccl_slurm.doctor.check import NotObserved

__all__ = ["Asks", "Aws", "Listed", "NoCluster"]

_T = TypeVar("_T")
#: DescribeClusterNode is one call an instance: only for those whose name the list does not tell.
_DESCRIBED_MAX = 50
#: Security groups in one call; a cluster has 5 at most, an instance group as many.
_GROUPS_MAX = 100
#: Lines of health agents that are looked through for who wrote, and instances that are then asked one by one.
_LINES_ENOUGH = 10_000
_AGENTS_MAX = 50


class NoCluster(NotObserved):
    """Nothing here is of HyperPod: the checks do not apply."""


class Asks(Protocol):
    """`client.Client`, or a stand-in."""

    region: str | None

    def ask(self, service: str, operation: str, **parameters: Any) -> Mapping[str, Any]: ...
    def pages(
        self, service: str, operation: str, items: str, *, enough: int | None = None, **parameters: Any
    ) -> Pages: ...


@dataclass(frozen=True)
class Listed(Generic[_T]):
    """``cut``: why there may be more than ``items``; empty: these are all."""

    items: Sequence[_T]
    cut: str = ""


@dataclass
class Aws:
    """``since``, ``until``: the window of events and log lines, seconds since 1970 UTC. ``nodes``: those of Slurm that
    were chosen, or all of them where it is not ``by_choice``; empty: Slurm did not tell. ``slurm``: whether Slurm
    answered, None: it was not asked."""

    place: Place
    client: Asks
    since: float
    until: float
    nodes: Sequence[NamedNode] = ()
    slurm: bool | None = None
    by_choice: bool = True
    _kept: dict[str, Any] = field(default_factory=dict)
    _asked: int = 0

    @property
    def region(self) -> str:
        return self.place.region or self.client.region or ""

    def name(self) -> str:
        """What calls are given: the ARN names the cluster in any account's list of names. Raises NoCluster."""
        told = self.place.arn or self.place.cluster
        if told:
            return told
        if not self.place.hyperpod:
            raise NoCluster("no HyperPod cluster is known here: give --cluster, or site.aws_cluster in nccl-slurm.toml")
        raise NotObserved(
            f"which cluster this is is not known ({self.place.unread}): give --cluster, or run it as root"
        )

    def identity(self) -> Mapping[str, Any]:
        self.name()
        return self._once("identity", lambda: self.client.ask("sts", "get_caller_identity"))

    def cluster(self) -> Cluster:
        return self._once("cluster", lambda: read_cluster(self._sagemaker("describe_cluster")))

    def instances(self) -> Listed[Instance]:
        """Of the cluster, with the addresses of those few whose host name the list does not tell."""
        return self._once("instances", self._instances)

    def events(self) -> Listed[Event]:
        """In the window, by the service's own filter."""
        window = {"EventTimeAfter": self.since, "EventTimeBefore": self.until}
        return self._once("events", lambda: self._list("list_cluster_events", "Events", read_event, **window))

    def detections(self) -> Listed[Detection]:
        found = self._once("detections", lambda: self._lines(AGENT, f'"{DETECTION}"'))
        told = [read_detection(event) for event in found.items]
        return Listed([one for one in told if one is not None], found.cut)

    def agents_wrote(self) -> frozenset[str]:
        """Instances whose health agent wrote in the window: the last part of a stream's name.

        Of a long log a part is read: see `agent_wrote`."""
        found = self._once("agents", lambda: self._lines(AGENT, "", enough=_LINES_ENOUGH).items)
        return frozenset(_agent_of(event) for event in found)

    def agent_wrote(self, instance: str) -> bool:
        """Whether this instance's did; False too where nobody could be asked."""
        if instance in self.agents_wrote():
            return True
        group = next((one.group for one in self.instances().items if one.id == instance), None)
        self._asked += 1
        if not group or self._asked > _AGENTS_MAX:
            return False
        stream = f"{AGENT}{group}/{instance}"
        try:
            return self._once(stream, lambda: bool(self._lines(stream, "", enough=1).items))
        except NotObserved:
            return False

    def results(self) -> Listed[Result]:
        found = self._once("results", lambda: self._lines(DEEP_CHECKS, ""))
        return Listed([read_result(event) for event in found.items], found.cut)

    def security_groups(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """By id; what the service does not give is missing there."""
        asked = tuple(sorted(set(ids)))[:_GROUPS_MAX]
        return self._once(f"groups {asked}", lambda: self._security_groups(asked))

    def subnets(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        asked = tuple(sorted(set(ids)))[:_GROUPS_MAX]
        return self._once(f"subnets {asked}", lambda: self._subnets(asked))

    def map(self) -> Map:
        """Raises NotObserved where neither the file nor the API tells any instance."""
        return self._once("map", self._map)

    def nodes_of(self, instance: str | None) -> tuple[str, ...]:
        """Slurm's name of an instance; empty where none is known: the id is no host."""
        try:
            name = self.map().node(instance)
        except NotObserved:
            return ()
        return (name,) if name else ()

    def is_gone(self, instance: str | None) -> bool:
        """Whether it certainly is in the cluster no more: replaced, or taken away."""
        try:
            listed = self.instances()
        except NotObserved:
            return False
        return bool(instance and listed.items) and not listed.cut and all(one.id != instance for one in listed.items)

    def is_of_others(self, instance: str | None) -> bool:
        """Whether it certainly is that of no node that somebody chose: the instances of all of these are known."""
        if not (self.by_choice and self.nodes and instance):
            return False
        try:
            known = self.map().instance
        except NotObserved:
            return False
        return all(node.name in known for node in self.nodes) and instance not in known.values()

    def _sagemaker(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        return self.client.ask("sagemaker", operation, ClusterName=self.name(), **parameters)

    def _list(
        self, operation: str, items: str, read: Callable[[Mapping[str, Any]], _T | None], **parameters: Any
    ) -> Listed[_T]:
        pages = self.client.pages("sagemaker", operation, items, ClusterName=self.name(), MaxResults=100, **parameters)
        return Listed([one for one in map(read, pages.items) if one is not None], pages.cut)

    def _instances(self) -> Listed[Instance]:
        listed = self._list("list_cluster_nodes", "ClusterNodeSummaries", read_instance)
        once = {one.id: one for one in listed.items}  # what joins or leaves meanwhile may be on two pages
        nameless = {one.id for one in once.values() if one.host is None and one.address is None}
        for_sure = {number: self._described(number) for number in sorted(nameless)[:_DESCRIBED_MAX]}
        return Listed([for_sure.get(one.id) or one for one in once.values()], listed.cut)

    def _described(self, instance: str) -> Instance | None:
        """Best effort: who lacks the permission for it still has the list."""
        try:
            reply = self._sagemaker("describe_cluster_node", NodeId=instance)
        except NotObserved:
            return None
        details = reply.get("NodeDetails")
        return read_instance(details) if isinstance(details, Mapping) else None

    def _lines(self, prefix: str, pattern: str, enough: int | None = None) -> Listed[Mapping[str, Any]]:
        """Events of the streams that begin so. A page may be empty and yet have a next one (FilterLogEvents)."""
        group = self.log_group()
        asked: dict[str, Any] = {"filterPattern": pattern} if pattern else {}
        asked |= {"startTime": int(self.since * 1000), "endTime": int(self.until * 1000)}
        asked |= {"logGroupName": group, "logStreamNamePrefix": prefix}
        pages = self.client.pages("logs", "filter_log_events", "events", enough=enough, **asked)
        return Listed([one for one in pages.items if self._wanted(one, prefix)], pages.cut)

    def _wanted(self, event: Mapping[str, Any], prefix: str) -> bool:
        """A service that does not filter is not believed."""
        at = event.get("timestamp")
        inside = not isinstance(at, int) or self.since <= at / 1000 <= self.until
        return inside and str(event.get("logStreamName") or "").startswith(prefix)

    def log_group(self) -> str:
        if self.place.log_group:
            return self.place.log_group
        told = self.cluster()  # kept
        group = Place(cluster=told.name, arn=told.arn).log_group
        if group is None:
            raise NotObserved("DescribeCluster told no ARN, so the log group is not known")
        return group

    def _security_groups(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        pages = self.client.pages("ec2", "describe_security_groups", "SecurityGroups", GroupIds=list(ids))
        return {str(one.get("GroupId")): one for one in pages.items}

    def _subnets(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        pages = self.client.pages("ec2", "describe_subnets", "Subnets", SubnetIds=list(ids))
        return {str(one.get("SubnetId")): one for one in pages.items}

    def _map(self) -> Map:
        members = self.place.members
        try:
            instances: Sequence[Instance] = self.instances().items
        except NotObserved:
            if not members:
                raise
            instances = ()
        return join(self.nodes, members, instances)

    def _once(self, key: str, ask: Callable[[], _T]) -> _T:
        if key not in self._kept:
            try:
                self._kept[key] = ask()
            except NotObserved as error:
                self._kept[key] = error
        kept = self._kept[key]
        if isinstance(kept, NotObserved):
            raise kept
        found: _T = kept
        return found


def _agent_of(event: Mapping[str, Any]) -> str:
    return str(event.get("logStreamName") or "").rstrip("/").rsplit("/", 1)[-1]
