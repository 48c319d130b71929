"""The guide: a section for every finding, commands that hostile values can't change, pointers that lead somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.cli.main import cli
from nccl_slurm.doctor import guide, registry
from nccl_slurm.doctor.check import AREAS, Finding
from nccl_slurm.doctor.check import ID as CHECK_ID
from nccl_slurm.doctor.checks.scheduler import shape
from nccl_slurm.doctor.table import table
from nccl_slurm.doctor.variables import unread
from nccl_slurm.errors import InputError
from nccl_slurm.explain.catalogue import catalogue
from nccl_slurm.explain.lookup import look_up
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.recommend.site import NodeNow, Site

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
ROWS = load_rows()
ENTRIES = catalogue(ROWS)
SECTIONS = guide.sections()
COMMANDS = [(one.id, command) for one in SECTIONS.values() for command in one.commands]
OF_FINDINGS = [one for one in SECTIONS.values() if CHECK_ID.fullmatch(one.id)]
SCENARIOS = [one for one in SECTIONS.values() if one.id.startswith("scenario.")]
#: What the doctor fills in by itself: `Finding.nodes`, the job that was asked for, the site's settings.
ALWAYS = {"node", "nodes", "peer", "job", "cluster", "region"}
#: Of the job itself, in each of its findings (`checks.job.asked`).
OF_A_JOB = {"batch_job"}
#: Of the process that a proof names.
OF_A_PROOF = {"pid"}
#: What `checks.job.ranks.about` gives.
OF_A_RANK = {"name", "host", "pid"}
#: Nothing that takes a node, a daemon or a job away, or gives it back, is printed by the guide.
HEAVY = re.compile(
    r"\b(?:update|reboot|replace|drain|resume|scancel|shutdown|poweroff|pkill|rm|mkfs\S*|delete|terminate)\b|state="
    r"|\bkill -|slurmctld -c|systemctl (?:re)?start|systemctl stop|iptables -F|nft flush"
)


def registered() -> Iterator[tuple[str, str]]:
    """(id of a check, module that judges it)."""
    for area in AREAS:
        for name in registry.FAMILIES.get(area, ()):
            module = f"nccl_slurm.doctor.checks.{name}"
            yield from ((check.id, module) for check in importlib.import_module(module).CHECKS)
    for check in registry.checks("aws"):
        yield check.id, vars(check)["look"].__module__


REGISTERED = dict(registered())


def test_there_are_checks() -> None:
    assert len(REGISTERED) >= 40


@pytest.mark.parametrize("check", [one.id for one in registry.checks(*AREAS)])
def test_every_check_has_a_section(check: str) -> None:
    one = guide.section(check)
    parts = (one.title, one.symptom, one.proof, one.cause, one.remedy, one.verify, one.blast_radius, one.source)
    assert all(parts) and one.commands


def test_a_section_is_whole() -> None:
    for one in (*OF_FINDINGS, *SCENARIOS):
        assert all((one.title, one.symptom, one.proof, one.cause, one.remedy, one.verify, one.blast_radius, one.source))


def test_all_scenarios_are_there() -> None:
    assert len(SCENARIOS) == 21


def test_sections_name_sections_that_are_there() -> None:
    for one in SECTIONS.values():
        text = " ".join((one.symptom, one.proof, one.cause, one.remedy, one.verify))
        named = {word for word in re.findall(r"`([a-z]+\.[a-z0-9-]+)`", text) if word.split(".")[0] in AREAS}
        assert (named | set(one.related)) - set(SECTIONS) == set(), one.id


def test_an_unknown_section_is_refused() -> None:
    with pytest.raises(InputError, match="has no section"):
        guide.section("node.nothing")


def test_figures_are_those_of_the_tables() -> None:
    limit, slurm = table(), shape.threshold
    told = {
        "node.memlock": (f"Below {limit['memlock-least-mib']:g} MB", f"below {limit['memlock-gib']:g} GB"),
        "node.stack": (f"below {limit['stack-least-kib'] / 1024:g} MB",),
        "node.nofile": (f"Below {limit['nofile-least']:,.0f} files", f"below {limit['nofile']:,.0f}"),
        "node.shm": (
            f"Below {limit['shm-least-gib']:g} GB",
            f"below {limit['shm-gib']:g} GB",
            f"over {limit['shm-used-share']:.0%} in use".replace("%", " %"),
        ),
        "node.disk": tuple(
            f"from {limit[name]:.0%}".replace("%", " %")
            for name in ("disk-full-share", "disk-share", "disk-watch-share")
        ),
        "node.nvlink": (f"from {limit['nvlink-errors']:g} on",),
        "node.mtu": (f"below {limit['mtu-bytes']:g}",),
        "fleet.bandwidth": (
            f"{1 - limit['bandwidth-share']:.0%} below".replace("%", " %"),
            f"{1 - limit['bandwidth-watch-share']:.0%} is told".replace("%", " %"),
        ),
        "scheduler.stuck-jobs": (
            f"COMPLETING for more than {slurm('completing-s') / 60:g} minutes",
            f"CONFIGURING for more than {slurm('configuring-s') / 60:g}",
            f"PENDING for Resources for more than {slurm('pending-s') / 60:g}",
        ),
    }
    missing = {
        check: words for check, phrases in told.items() for words in phrases if words not in SECTIONS[check].proof
    }
    assert missing == {}


# what commands hold


def test_no_command_takes_anything_away() -> None:
    bare = [re.sub(r"--query-\S+|--only \S+|operations\.\S+", "", command) for _, command in COMMANDS]
    assert [command for command in bare if HEAVY.search(command)] == []


def test_no_advice_names_a_variable_that_nothing_reads() -> None:
    advice = {one.id: " ".join((*one.commands, one.remedy, one.verify)) for one in SECTIONS.values()}
    words = {name: set(re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", text)) for name, text in advice.items()}
    assert {name: known for name, told in words.items() if (known := told & set(unread()))} == {}


@pytest.mark.parametrize("check", REGISTERED)
def test_placeholders_are_values_that_the_check_gives(check: str) -> None:
    used = {name for command in guide.section(check).commands for name in guide.PLACEHOLDER.findall(command)}
    module = importlib.import_module(REGISTERED[check])
    given = given_by(module) | (OF_A_RANK if hasattr(module, "about") else set())
    given |= OF_A_JOB if check.startswith("job.") else set()
    given |= OF_A_PROOF if module.__name__.endswith(("node.limits", "node.software")) else set()
    assert used - ALWAYS <= given


def given_by(module: object) -> set[str]:
    """Keys of dictionaries in a module, and keywords of its calls of `warn` and `fail`."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    keys = {key.value for node in dicts for key in node.keys if isinstance(key, ast.Constant)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    named = {word.arg for node in calls if node.func.attr in ("warn", "fail") for word in node.keywords}  # type: ignore[attr-defined]
    return {str(key) for key in keys | named}


@pytest.mark.parametrize("command", sorted({one for _, one in COMMANDS if one.startswith("nccl-slurm ")}))
def test_own_commands_and_options_exist(command: str) -> None:
    words = shlex.split(command)[1:]
    own = cli.get_command(click.Context(cli), words[0])
    if own is None and words[0] == "bundle":
        pytest.skip("`nccl-slurm bundle` is not here yet")
    assert own is not None
    options = {spelling for one in own.params if isinstance(one, click.Option) for spelling in one.opts}
    assert {word for word in words if word.startswith("--")} <= options
    for chosen in re.findall(r"--only (\S+)", command):
        assert set(chosen.split(",")) <= set(SECTIONS)


# pointers


def pointers() -> Iterator[tuple[str, str]]:
    """What is printed or written anywhere as a word to explain; placeholders and examples in capitals are none."""
    files = [*(ROOT / "nccl_slurm").rglob("*.py"), *(ROOT / "nccl_slurm" / "data").rglob("*.toml")]
    files += [
        *(ROOT / "nccl_slurm" / "data" / "guide").glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
    ]
    for file in files:
        for words in re.findall(r"nccl-slurm explain ((?:[\w.-]+ ?)+)", file.read_text("utf-8")):
            word = words.strip().rstrip(".")
            if not word.startswith(("CLASS", "KIND", "WORD", "REASON", "ID", "xid CODE", "-")) and "{" not in words:
                yield str(file.relative_to(ROOT)), word


@pytest.mark.parametrize(("file", "word"), sorted(set(pointers())))
def test_every_pointer_leads_somewhere(file: str, word: str) -> None:
    first = word.split(" tells ")[0].split(" has ")[0]
    assert look_up(first, ENTRIES, ROWS)


def test_a_section_is_explained_by_its_id() -> None:
    for one in SECTIONS.values():
        (found,) = look_up(one.id, ENTRIES, ROWS)
        assert (found.kind, found.means, found.action) == ("guide", one.title, one.action)
        assert len(found.commands) == len(one.commands)


def test_the_noun_is_enough() -> None:
    assert [one.name for one in look_up("gpu-count", ENTRIES, ROWS)] == ["node.gpu-count"]
    assert {one.name for one in look_up("limits", ENTRIES, ROWS)} == {"job.limits", "scheduler.limits"}
    assert look_up("reboot", ENTRIES, ROWS)[0].kind == "action"


def test_the_guide_is_in_the_package() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["nccl_slurm"]
    shipped = {file for pattern in told for file in (ROOT / "nccl_slurm").glob(pattern)}
    assert {file for file in (ROOT / "nccl_slurm" / "data").rglob("*") if file.is_file()} <= shipped


# values

HOSTILE = ("n1; touch /tmp/x", "$(id)", "`id`", "a b", "'", '"', "-oProxyCommand=id", "\x1b[2J", "a\nb", "\u202en1", "")


def fill(command: str, value: str) -> str:
    return guide.filled(command, dict.fromkeys(guide.PLACEHOLDER.findall(command), value))


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_stay_words(value: str) -> None:
    for _, command in COMMANDS:
        plain, hostile = fill(command, "word"), fill(command, value)
        assert len(shell_words(hostile)) == len(shell_words(plain)), command
        assert hostile.isprintable()


def test_no_pattern_is_expanded_by_the_wrong_shell() -> None:
    """That of the host that ssh is typed on has other files."""
    assert not [one for _, one in COMMANDS if re.match("(?:sudo )?ssh ", one) and re.search(r"[*?~$[]", unquoted(one))]


def unquoted(command: str) -> str:
    return re.sub(r"'[^']*'", "", command)


def shell_words(command: str) -> list[str]:
    """As a shell sees them: operators are words of their own."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_real_shell_runs_nothing_of_a_value(value: str, tmp_path: Path) -> None:
    line = guide.filled("printf '%s\\n' {xid} end", {"xid": value})
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, cwd=tmp_path, timeout=20, check=True)
    assert done.stdout.splitlines()[-1] == "end"
    assert len(done.stdout.splitlines()) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "values", "expected"),
    [
        ("ssh {node} ls {path}", {"node": "n1", "path": "/var/log/a"}, "ssh n1 ls /var/log/a"),
        ("ssh {node} ls {path}", {"node": "n1", "path": "/x; id"}, "ssh n1 ls PATH"),
        ("ssh {node} true", {"node": "-oProxyCommand=id"}, "ssh NODE true"),
        ("ls {path}", {"path": "/x; id"}, "ls '/x; id'"),
        ("a | ssh {node} b", {"node": "$(id)"}, "a | ssh NODE b"),
        ("nccl-slurm report {job}", {}, "nccl-slurm report JOB"),
        ("x {instance_id}", {"instance_id": "-rf"}, "x INSTANCE_ID"),
    ],
)
def test_a_second_shell_gets_plain_words_alone(command: str, values: dict[str, str], expected: str) -> None:
    assert guide.filled(command, values) == expected


@given(st.text(max_size=300), st.sampled_from(COMMANDS))
def test_any_value_leaves_one_printable_line(value: str, command: tuple[str, str]) -> None:
    filled = fill(command[1], value)
    assert filled.isprintable()
    assert len(shell_words(filled)) == len(shell_words(fill(command[1], "word")))


def finding(check: str, *nodes: str, **values: str) -> Finding:
    return Finding(check, "FAIL", "words", "P0", nodes=nodes, values=values)


def test_commands_are_filled_from_the_finding() -> None:
    found = guide.suggested(finding("node.xid", "n2", "n3", xid="79"))
    assert "nccl-slurm explain xid 79" in found
    assert "nccl-slurm nodes n2" in found
    assert any("NODES" in line or "n[2-3]" in line for line in guide.suggested(finding("fleet.versions", "n2", "n3")))


def test_nodes_that_are_no_host_names_are_left_out() -> None:
    assert guide.suggested(finding("node.clock", "n1; id"))[0] == "ssh NODE chronyc tracking"


@pytest.mark.parametrize(
    ("compute", "asked", "refused"),
    [({"n1", "n2"}, {"n1", "n2"}, set()), ({"n1"}, {"n1"}, {"n2"}), ((), set(), {"n1", "n2"})],
)
def test_a_reboot_is_suggested_for_compute_nodes_alone(compute: set[str], asked: set[str], refused: set[str]) -> None:
    lines = guide.suggested(finding("node.remapped-rows", "n1", "n2"), site=Site("slurm"), compute=compute)
    reboots = [line for line in lines if line.startswith("scontrol reboot")]
    assert {line.split()[-1] for line in reboots} == asked
    assert {line.split()[1] for line in lines if line.startswith("# ")} == refused
    assert all("fail-over" in line for line in lines if line.startswith("# "))


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("IDLE", None, "nextstate=RESUME"),
        ("IDLE+DRAIN", "fan 3 | alice", "nextstate=DOWN"),
        ("IDLE+DRAIN", "Kill task failed", "nextstate=RESUME"),
        ("DOWN+NOT_RESPONDING", "Not responding", "slurmd does not answer"),
        ("IDLE+FAIL", "Action:Reboot", "# n1: recovery is in progress (Action:Reboot), so nothing is to be run now"),
        ("DOWN+DRAIN+REBOOT_ISSUED", "x : reboot issued", "# n1: recovery is in progress (REBOOT_ISSUED)"),
    ],
)
def test_a_reboot_as_the_node_is_now(state: str, reason: str | None, words: str) -> None:
    site = Site("slurm", now={"n1": NodeNow(state, reason)})
    lines = guide.suggested(finding("node.remapped-rows", "n1"), site=site, compute={"n1"})
    assert words in lines[-1]
    assert any(line.startswith("scontrol reboot") for line in lines) is not words.startswith("#")


@pytest.mark.parametrize(("action", "reboots"), [("replace", False), ("reboot", True), ("", True)])
def test_no_reboot_for_a_board_that_is_to_be_returned(action: str, reboots: bool) -> None:
    told = finding("node.ecc", "n1", action=action)
    lines = guide.suggested(told, site=Site("slurm"), compute={"n1"})
    assert any("scontrol reboot" in line for line in lines) == reboots


def test_no_reboot_for_what_does_not_fail() -> None:
    warned = Finding("node.remapped-rows", "WARN", "pending", "P1", nodes=["n1"])
    assert not [line for line in guide.suggested(warned, compute={"n1"}) if "reboot" in line]


def test_replacing_is_never_suggested() -> None:
    for one in OF_FINDINGS:
        lines = guide.suggested(finding(one.id, "n1"), site=Site("hyperpod"), compute={"n1"})
        assert not [line for line in lines if "Action:Replace" in line or "batch-replace" in line]
