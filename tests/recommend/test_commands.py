"""Exact commands, by kind of site."""

from __future__ import annotations

import shlex

import pytest

from nccl_slurm.history.reasons import packaged
from nccl_slurm.recommend.commands import as_it_stands, batch, commands
from nccl_slurm.recommend.site import NodeNow, Site, kind_of

ID = "i-0123456789abcdef0"
LOOK = "scontrol show node n2"
HIT = 'squeue --nodelist=n2 --states=RUNNING,SUSPENDED,COMPLETING --format="%i %u %D %j"'
REASON = "nccl-slurm: gpu-hw-lost, report 42"
ARN = "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdef012345"
HYPERPOD = Site(kind="hyperpod", aws_cluster="ml-1", region="us-west-2")
API = (
    "--cluster-name ml-1 --region us-west-2 --node-ids i-0123456789abcdef0  # in place of the line above, not after it"
)


@pytest.mark.parametrize(
    ("site", "action", "identity", "expected"),
    [
        (Site(), "investigate", ID, (LOOK,)),
        (Site(), "reboot", ID, (LOOK, HIT, f'scontrol reboot ASAP nextstate=RESUME reason="{REASON}" n2')),
        (Site(reboots=True), "reboot", ID, (LOOK, HIT, f'scontrol reboot ASAP nextstate=RESUME reason="{REASON}" n2')),
        (
            Site(reboots=False),
            "reboot",
            ID,
            (
                LOOK,
                HIT,
                f'scontrol update nodename=n2 state=drain reason="{REASON}, reboot"'
                "  # slurm.conf has no RebootProgram: reboot it by hand once its jobs ended, then set it to resume",
            ),
        ),
        (Site(), "replace", ID, (LOOK, HIT, f'scontrol update nodename=n2 state=drain reason="{REASON}, replace"')),
        (
            HYPERPOD,
            "reboot",
            ID,
            (
                LOOK,
                HIT,
                'sudo scontrol update node=n2 state=fail reason="Action:Reboot"',
                f"aws sagemaker batch-reboot-cluster-nodes {API}",
            ),
        ),
        (
            HYPERPOD,
            "replace",
            ID,
            (
                LOOK,
                HIT,
                'sudo scontrol update node=n2 state=fail reason="Action:Replace"',
                f"aws sagemaker batch-replace-cluster-nodes {API}",
            ),
        ),
        (
            Site(kind="hyperpod", aws_cluster=ARN),
            "reboot",
            ID,
            (
                LOOK,
                HIT,
                'sudo scontrol update node=n2 state=fail reason="Action:Reboot"',
                f"aws sagemaker batch-reboot-cluster-nodes --cluster-name {ARN} --region us-west-2 --node-ids {ID}"
                "  # in place of the line above, not after it",
            ),
        ),
        (HYPERPOD, "replace", "n2", (LOOK, HIT, 'sudo scontrol update node=n2 state=fail reason="Action:Replace"')),
        (HYPERPOD, "replace", None, (LOOK, HIT, 'sudo scontrol update node=n2 state=fail reason="Action:Replace"')),
        (HYPERPOD, "investigate", ID, (LOOK,)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_commands(site: Site, action: str, identity: str | None, expected: tuple[str, ...]) -> None:
    found = commands(action, "n2", REASON, site, identity)
    assert found == expected
    assert all(shlex.split(line, comments=True) for line in found)


OUT = "nextstate=DOWN"
BACK = "nextstate=RESUME"


@pytest.mark.parametrize(
    ("state", "reason", "next_state", "said"),
    [
        ("IDLE", None, BACK, ""),
        (None, None, BACK, ""),
        ("IDLE+DRAIN", "fan 3 | alice", OUT, "stays down"),
        ("DOWN", "NHC: check_hw_mcelog: x", OUT, "stays down"),
        ("IDLE+FAIL", "disk", OUT, "stays down"),
        ("IDLE", "fan 3 | alice", BACK, ""),  # a reason alone keeps no job away
        ("IDLE+DRAIN", "Kill task failed", BACK, ""),  # Slurm's own finding, which the reboot mends
        ("DOWN", "Node unexpectedly rebooted", BACK, ""),
        ("IDLE+DRAIN", "nccl-slurm: gpu-hw-lost, report 4", BACK, ""),
        ("DOWN+NOT_RESPONDING", "Not responding", BACK, "does not answer"),
        ("IDLE+DRAIN+NOT_RESPONDING", "fan 3 | alice", OUT, "does not answer"),
    ],
)
def test_a_reboot_leaves_out_what_another_took_out(
    state: str | None, reason: str | None, next_state: str, said: str
) -> None:
    plain = commands("reboot", "n2", REASON, Site(), ID)
    told = as_it_stands(plain, NodeNow(state, reason), packaged())
    assert told[:-1] == plain[:-1] and shlex.split(told[-1], comments=True)[3] == next_state
    assert said in told[-1] and ("#" in told[-1]) is bool(said)
    assert as_it_stands(told, NodeNow(state, reason), packaged()) == told
    hyperpod = commands("reboot", "n2", REASON, HYPERPOD, ID)
    assert as_it_stands(hyperpod, NodeNow(state, reason), packaged()) == hyperpod


def test_a_batch_has_25_ids_at_most_and_each_once() -> None:
    ids = [f"i-{number:017x}" for number in range(60)]
    calls = batch("reboot", [*ids, *ids[:5], "n7", "i-xyz", "i-0123456789abcdef0; reboot"], HYPERPOD)
    assert [len(call.split("--node-ids ")[1].split()) for call in calls] == [25, 25, 10]
    assert " ".join(call.split("--node-ids ")[1] for call in calls).split() == ids


@pytest.mark.parametrize(("cluster", "region"), [("", ""), ("ml; rm -rf /", "us-west-2; x"), ("-x", "uswest")])
def test_what_is_not_known_or_not_safe_stays_a_word_to_fill_in(cluster: str, region: str) -> None:
    (call,) = batch("replace", [ID], Site("hyperpod", cluster, region))
    assert call == (f"aws sagemaker batch-replace-cluster-nodes --cluster-name CLUSTER --region REGION --node-ids {ID}")


@pytest.mark.parametrize(
    ("configured", "types", "kind"),
    [
        ("", [None, "compute"], "hyperpod"),
        ("", [None, None], "slurm"),
        ("", [], "slurm"),
        ("slurm", ["compute"], "slurm"),
        ("hyperpod", [], "hyperpod"),
    ],
)
def test_kind_of_site(configured: str, types: list[str | None], kind: str) -> None:
    records = [{"machine": {"role": {"node_type": one, "slurmctld_running": False}}} for one in types]
    assert kind_of(configured, records) == kind
