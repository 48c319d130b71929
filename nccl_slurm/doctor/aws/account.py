"""Whose credentials these are, and what runs the cluster's jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_slurm.doctor.aws.observed import Aws
from nccl_slurm.doctor.aws.rows import load
from nccl_slurm.doctor.aws.shape import AwsCheck, call
from nccl_slurm.doctor.check import Finding, NotObserved

__all__ = ["CREDENTIALS", "ORCHESTRATOR"]

_CREDENTIALS, _ORCHESTRATOR = "aws.credentials", "aws.orchestrator"


def _credentials(aws: Aws) -> Iterator[Finding]:
    """Another account's credentials would answer for another cluster of the same name."""
    told = aws.identity()
    account, who = str(told.get("Account") or ""), str(told.get("Arn") or "")
    if not account:
        raise NotObserved("sts get-caller-identity told no account")
    proof = call(aws, "sts", "get-caller-identity", f"Account {account}, {who}")
    values = {"account": account}
    if aws.place.account and aws.place.account != account:
        text = f"the credentials are of account {account}, the cluster is of {aws.place.account}"
        yield Finding(_CREDENTIALS, "WARN", text, "P1", proofs=(proof,), values=values)
    else:
        yield Finding(_CREDENTIALS, "PASS", f"account {account}", proofs=(proof,), values=values)


def _orchestrator(aws: Aws) -> Iterator[Finding]:
    """By the service's word, else by what HyperPod wrote on this host or Slurm's own answer; never by a kubeconfig that
    happens to lie there."""
    told = aws.cluster().orchestrator
    proof = call(aws, "sagemaker", "describe-cluster", f"Orchestrator: {told or 'no such field in the reply'}")
    if told == "eks":
        yield _eks(aws)
    elif told == "slurm":
        yield Finding(_ORCHESTRATOR, "PASS", "Slurm", proofs=(proof,))
    elif (aws.place.manager or "").lower() == "slurm":
        yield Finding(_ORCHESTRATOR, "PASS", "Slurm, by provisioning_parameters.json", proofs=(proof,))
    elif aws.slurm:
        yield Finding(_ORCHESTRATOR, "PASS", "Slurm: it answers here", proofs=(proof,))
    else:
        yield Finding(
            _ORCHESTRATOR, "UNKNOWN", "DescribeCluster tells none, and no Slurm answers here", proofs=(proof,)
        )


def _eks(aws: Aws) -> Finding:
    rows = load()
    covered, uncovered = "; ".join(rows.covered), "; ".join(rows.uncovered)
    text = f"an EKS cluster. Covered: {covered}. Not covered, look there yourself: {uncovered}"
    proof = call(aws, "sagemaker", "describe-cluster", "Orchestrator: Eks")
    return Finding(_ORCHESTRATOR, "WARN", text, "P2", proofs=(proof,))


CREDENTIALS = AwsCheck(_CREDENTIALS, "AWS credentials, and the account of the cluster", _credentials)
ORCHESTRATOR = AwsCheck(_ORCHESTRATOR, "Slurm or EKS, by the service's own word", _orchestrator)
