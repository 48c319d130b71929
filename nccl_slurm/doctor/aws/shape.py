"""What the AWS checks are made of: one class, and the words that several of them say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from nccl_slurm.doctor.aws.observed import Aws, NoCluster
from nccl_slurm.doctor.aws.rows import Word
from nccl_slurm.doctor.check import Area, Finding, NotObserved, Proof

__all__ = ["AwsCheck", "call", "several", "told_of", "unread"]

_SHOWN = 5


@dataclass
class AwsCheck:
    """``look`` may raise `NotObserved`; where nothing here is of HyperPod the check does not apply. All findings have
    the values ``cluster``, ``region`` and ``log_group``; values that are not known are missing."""

    id: str
    title: str
    look: Callable[[Aws], Iterable[Finding]]
    explains: Sequence[str] = ()
    sources: Sequence[str] = ()
    area: Area = "aws"

    def judge(self, observed: Aws) -> Iterable[Finding]:
        place = {"cluster": observed.place.cluster or observed.place.arn or "", "region": observed.region}
        place["log_group"] = observed.place.log_group or ""
        try:
            for finding in self.look(observed):
                told = {key: value for key, value in {**place, **finding.values}.items() if value}
                yield replace(finding, values=told)
        except NoCluster as error:
            yield Finding(self.id, "NOT-APPLICABLE", str(error))
        except NotObserved as error:
            yield Finding(self.id, "UNKNOWN", str(error), values={key: value for key, value in place.items() if value})


def call(aws: Aws, service: str, command: str, line: str, *arguments: str) -> Proof:
    """What was read, as a person would ask for it."""
    words = ["aws", service, command, *arguments]
    words += ["--cluster-name", aws.place.cluster or aws.place.arn or "?"] if service == "sagemaker" else []
    words += ["--region", aws.region] if aws.region else []
    return Proof(" ".join(words), line)


def told_of(aws: Aws, check: str, row: Word, text: str, instance: str | None, *, lasting: bool = False) -> Finding:
    """Of one instance or of none. What was said of one that is in the cluster no more is history, and of one that is
    no chosen node's a note, unless it is ``lasting``: what stopped it may stop the next one."""
    nodes = aws.nodes_of(instance)
    where = f" (instance {instance})" if instance and not nodes else ""
    if row.status in ("FAIL", "WARN") and not lasting and aws.is_gone(instance):
        text = f"{text}{where}; the instance is no longer in the cluster"
        return Finding(check, "WARN", text, "P2", values={"instance_id": instance or ""})
    if row.status in ("FAIL", "WARN") and not lasting and aws.is_of_others(instance):
        text = f"{text}{where}; that of no chosen node"
        return Finding(check, "WARN", text, "P2", values={"instance_id": instance or ""})
    return Finding(check, row.status, text + where, row.priority, nodes=nodes, values={"instance_id": instance or ""})


def several(names: Sequence[str]) -> str:
    """``a, b and 3 more``"""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def unread(check: str, what: str, cut: str) -> list[Finding]:
    """A list that is not whole: what is not in it is not known."""
    return [Finding(check, "UNKNOWN", f"{what}: {cut}; the rest is not known")] if cut else []
