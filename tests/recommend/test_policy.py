"""The decision table as data: closed words, a site's rows, what a broken row says."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace
from importlib import resources

import pytest

from nccl_slurm.errors import ConfigError
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.recommend.fault import of_event
from nccl_slurm.recommend.policy import DECODED, REGISTER_MEANS, default, load
from nccl_slurm.recommend.step import next_step
from tests.attribute.scenarios import HANG
from tests.recommend.past import DAY, boot, fault, machine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

POLICY = default()


def test_nvidias_table_for_nvlink_is_whole() -> None:
    assert Counter(row.xid for row in POLICY.nvlink5) == {144: 6, 145: 33, 146: 20, 147: 2, 148: 1, 149: 31, 150: 2}
    assert {row.nvidia for row in POLICY.nvlink5} == {*DECODED}
    assert {row.means for row in POLICY.nvlink4} == {*REGISTER_MEANS}
    bits = [(row.register, bit) for row in POLICY.nvlink4 for bit in row.bits]
    assert len(bits) == len(set(bits)) == 42
    assert all(0 <= bit < 32 for _, bit in bits)


def test_every_fault_row_has_a_source_and_names_that_no_other_has() -> None:
    names = Counter((name, row.match) for row in POLICY.faults for name in row.names)
    assert names.most_common(1)[0][1] == 1
    patterns = {row.id for row in load_rows().rows}
    for row in POLICY.faults:
        assert row.source
        name = row.id.partition("/")[0]
        assert not name.startswith("kernel.") or name in patterns, name
        assert row.action != "replace" or row.final


def test_every_limit_is_read_by_the_code() -> None:
    folder = resources.files("nccl_slurm").joinpath("recommend")
    code = "".join(path.read_text() for path in folder.iterdir() if path.name.endswith(".py"))
    for name, limit in POLICY.limits.items():
        assert f'limit("{name}")' in code, name
        assert limit.means and limit.source


SITE = """
[[limit]]
id = "repeat-window-d"
value = 30
source = "us"

[[fault]]
id = "gpu.remap-pending"
hardware = true
action = "investigate"
source = "us"

[[xid]]
code = 79
mnemonic = "X"
class = "gpu-hw-lost"
role = "cause"
nvidia = "RESTART_BM"
action = "investigate"
source = "us"
"""


def test_a_site_overrides_rows_and_limits() -> None:
    site = load([SITE])
    assert site.limit("repeat-window-d") == 30
    row = site.row("gpu.remap-pending")
    assert row is not None and (row.action, row.after) == ("investigate", ())
    assert site.row("gpu.remapped-pending") is None  # the site's row has no other names
    found = next_step([of_event(fault(HANG, 79))], machine(), site)
    assert found is not None and found.action == "investigate"
    assert len(site.faults) == len(POLICY.faults)


XID = '[[xid]]\ncode = 79\nclass = "gpu-hw-lost"\nrole = "cause"\naction = "reboot"\n'
FAULT = '[[fault]]\nid = "gpu.hot"\naction = "investigate"\nsource = "us"\n'
NVLINK4 = '[[nvlink4]]\nregister = 1\nbits = [2]\nmeans = "signal"\n'
NVLINK5 = '[[nvlink5]]\nxid = 144\nunit = ["X"]\nnvidia = "IGNORE"\ninvestigatory = "IGNORE"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[limit]]\nid = "repeat-window"\nvalue = 1\nsource = "us"', "limit 'repeat-window': unknown; known are"),
        ('[[limit]]\nid = "open-nodes"\nvalue = "two"\nsource = "us"', "value must be a number"),
        ('[[limit]]\nid = "open-nodes"\nvalue = -1\nsource = "us"', "value must be a number"),
        ('[[fault]]\nid = "x"\naction = "reboot"\nsource = "us"', "need hardware = true"),
        ('[[fault]]\nid = "x"\naction = "investigate"\nafter = ["replace"]\nsource = "us"', "need hardware = true"),
        ('[[fault]]\nid = "x"\naction = "burn"\nsource = "us"', "action 'burn' is none of"),
        ('[[fault]]\nid = "x"\naction = "none"', "source must be text"),
        ('[[fault]]\nid = "x"\naction = "none"\nsource = "us"\nthen = "y"', "unknown key 'then'"),
        ('[[xid]]\ncode = 79\nclass = "gpu"', "Xid 79: class 'gpu' is none of"),
        ('[[nvlink4]]\nregister = 1\nbits = [2]\nmeans = "odd"', "means 'odd' is none of"),
        ('[[nvlink5]]\nxid = 144\nnvidia = "IGNORE"\ninvestigatory = "IGNORE"', "needs a number and units"),
        (f'{XID}final = "false"\nsource = "us"', "Xid 79: final must be true or false"),
        (XID, "Xid 79: source must be text"),
        (f'{XID}source = "us"\nlinked = 550', "Xid 79: linked must be text"),
        (f'{XID}source = "us"'.replace("79", "true"), "Xid True: code must be a whole number from 1 to 9999"),
        (f'{XID}source = "us"'.replace("79", "-79"), "Xid -79: code must be a whole number from 1 to 9999"),
        (f'{XID}source = "us"'.replace("gpu-hw-lost", "gpu-app-fault"), "reboot and replace need a class of hardware"),
        (f'{FAULT}final = "yes"', "fault 'gpu.hot': final must be true or false"),
        (f'{FAULT}hardware = "true"', "fault 'gpu.hot': hardware must be true or false"),
        (f"{FAULT}stands = 1", "fault 'gpu.hot': stands must be true or false"),
        (f'{FAULT}match = [""]', "match must be a list of texts"),
        (FAULT.replace("gpu.hot", "kernel.xid"), "Xids are told by their codes: write [[xid]]"),
        ('[[falt]]\nid = "x"', "'falt': unknown; did you mean fault?; a file has [[fault]], [[limit]]"),
        ("open-nodes = 100", "'open-nodes': unknown; a file has"),
        ('[[limit]]\nid = "open-share"\nvalue = 50\nsource = "us"', "value is a share, it must be from 0 to 1"),
        (f"{NVLINK4}report = 'x'", "report must be a whole number from 0 to 1000"),
        (f"{NVLINK4}".replace("[2]", "[[1]]"), "bits must be a whole number from 0 to 31"),
        (f"{NVLINK4}".replace("[2]", "[99]"), "bits must be a whole number from 0 to 31"),
        (f"{NVLINK4}".replace("register = 1", "register = 99"), "register must be a whole number from 1 to 7"),
        (f"{NVLINK5}reason = [1]", "reason must be a whole number from 0 to 63"),
        (f"{NVLINK5}status = '1'", "status must be a whole number from 0 to"),
        (f"{NVLINK5}".replace("144", "79"), "xid must be a whole number from 144 to 150"),
        ("fault = 3", "[[fault]] must be an array of tables"),
        ("[[fault", "not TOML"),
    ],
    ids=lambda value: None,
)
def test_a_broken_row_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load([text])


def test_a_fault_that_nobody_tells_is_a_slip_of_the_pen() -> None:
    for name in ("gpu.hot", "gpu.hot/very", "kernel.own"):
        load([FAULT.replace("gpu.hot", name)], {"kernel.own"})
    with pytest.raises(ConfigError, match=r"fault 'gpu.remap-pendng': .* did you mean gpu.remap-pending\?"):
        load([FAULT.replace("gpu.hot", "gpu.remap-pendng")], {"kernel.own"})


def test_a_window_of_the_site_decides_what_a_reboot_did() -> None:
    old = machine(fault(HANG - 20 * DAY, 79), boot(HANG - 19 * DAY))
    now = [of_event(fault(HANG, 79))]
    assert next_step(now, old, POLICY).action == "reboot"  # type: ignore[union-attr]
    limit = replace(POLICY.limits["repeat-window-d"], value=30)
    wide = replace(POLICY, limits={**POLICY.limits, limit.id: limit})
    assert next_step(now, old, wide).action == "replace"  # type: ignore[union-attr]


def test_the_packaged_files_hold_these_tables_alone() -> None:
    for name, tables in (("xid", {"xid"}), ("faults", {"fault", "limit"}), ("nvlink", {"nvlink4", "nvlink5"})):
        text = resources.files("nccl_slurm").joinpath(f"data/{name}.toml").read_text("utf-8")
        assert set(tomllib.loads(text)) == tables
