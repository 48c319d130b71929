"""The guide: one section a finding, and pages for scenarios, operations and performance. Pure but for reading our data.

Written as Markdown (``data/guide/*.md``) so that people read it without this software; a section is ``## <id>``, a
sentence, bullets ``- **Label:** text`` and one block of commands. ``{name}`` in a command stands for a value of the
finding. All values are hostile: what a second shell would read again (ssh) takes plain words alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from nccl_slurm.doctor.check import BY_LOOK, Finding
from nccl_slurm.doctor.reader import Reader
from nccl_slurm.errors import InputError
from nccl_slurm.hosts import HOST, fold
from nccl_slurm.model import ACTIONS
from nccl_slurm.recommend.commands import as_it_stands
from nccl_slurm.recommend.commands import commands as heavy
from nccl_slurm.recommend.guard import in_progress
from nccl_slurm.recommend.site import NodeNow, Site
from nccl_slurm.report.visible import visible

__all__ = [
    "ID",
    "LABELS",
    "PLACEHOLDER",
    "SUGGESTED",
    "Section",
    "filled",
    "section",
    "sections",
    "suggested",
]

#: Ids of findings, and of pages that belong to none.
ID = re.compile(r"(?:scheduler|node|job|fleet|aws|scenario|operations|performance)\.[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
PLACEHOLDER = re.compile(r"\{([a-z][a-z_]*)\}")
SUGGESTED = "Suggested command (run this yourself)"
LABELS = ("Symptom", "Proof", "Cause", "Remedy", "Verify", "Blast radius", "Source")

_BULLET = re.compile(r"- \*\*([A-Z][a-z ]+)(?: \(([a-z-]+)\))?:\*\* (.+)")
_BLOCK = re.compile(rf"\*{re.escape(SUGGESTED)}\*\n\n```sh\n(.*?)```", re.DOTALL)
_VALUE_MAX = 200
_RESUME = "scontrol update nodename={nodes} state=resume  # once that is mended"
#: Another shell reads these lines once more.
_SECOND_SHELL = re.compile(r"(?:^|[|;&] *)(?:sudo )?(?:ssh|bash -c|sh -c|eval|su)\b")
#: ``n1: df /proc/4711/root/dev/shm``
_OF_A_PROCESS = re.compile(r"(?:(\S+): )?(?:\w+ )?/proc/([0-9]{1,8})/")
_BUSY = "# {0}: recovery is in progress ({1}), so nothing is to be run now"
_ROLE = "# {0} may be a Slurm controller: plan a fail-over first, never reboot it unplanned, never replace it"


@dataclass(frozen=True)
class Section:
    """``title``: one sentence. ``action``: a word of `model.ACTIONS`. Empty where a page has no such part."""

    id: str
    title: str
    proof: str
    remedy: str
    action: str
    source: str
    commands: Sequence[str]
    symptom: str = ""
    cause: str = ""
    verify: str = ""
    blast_radius: str = ""

    @property
    def related(self) -> tuple[str, ...]:
        """Other sections that its text names in backticks."""
        text = " ".join((self.proof, self.cause, self.remedy, self.verify, self.blast_radius))
        named = re.findall(rf"`({ID.pattern})`", text)
        return tuple(dict.fromkeys(one for one in named if one != self.id))


def section(check_id: str) -> Section:
    """Raises InputError where the guide has none of this id."""
    try:
        return sections()[check_id]
    except KeyError:
        raise InputError(f"the guide has no section {visible(check_id, 80)}") from None


@lru_cache(maxsize=1)
def sections() -> Mapping[str, Section]:
    """All, in the order of files' names and of their text. Raises ValueError where our own data is damaged."""
    folder = resources.files("nccl_slurm").joinpath("data/guide")
    texts = [file.read_text("utf-8") for file in sorted(folder.iterdir(), key=lambda file: file.name)]
    made = [_section(part) for text in texts for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]]
    found = {one.id: one for one in made}
    if len(found) != len(made):
        raise ValueError("two sections of the guide have one id")
    return found


def suggested(
    finding: Finding, *, site: Site | None = None, compute: Container[str] = (), reader: Reader | None = None
) -> tuple[str, ...]:
    """The section's commands with the finding's values; a reboot where the section's action is one, and the finding's
    own is not ``replace``: a board that is to be returned (RMA) is not healed by it.

    ``compute``: nodes known to run neither controller, database nor login; all others count as controllers.
    ``reader``: who is to run them, None: all of them, for nobody yet.
    """
    one = section(finding.check)
    values = _values(finding, site or Site())
    resume = [_RESUME] if BY_LOOK.items() <= finding.values.items() else []
    every = [*one.commands, *resume]
    lines = list(_for(reader, every, values)) if reader else [filled(command, values) for command in every]
    if one.action == "reboot" and finding.status == "FAIL" and finding.values.get("action") != "replace":
        lines += _reboot(finding, site or Site(), compute)
    return tuple(lines)


def _for(reader: Reader, commands: Sequence[str], values: Mapping[str, str]) -> Iterator[str]:
    """On the node itself a line for a step and one for SSH become the same."""
    told: set[str] = set()
    for command in commands:
        if (template := reader.template(command, values)) is None:
            continue
        line = reader.run(filled(template, reader.values(template, values)), values.get("owner", ""))
        if (bare := line.removeprefix("sudo ")) not in told:
            told.add(bare)
            yield line


def filled(command: str, values: Mapping[str, str]) -> str:
    """Quoted for the shell. A value that is not known, or not safe there, is left as a word in capitals."""
    plain = bool(_SECOND_SHELL.search(command))
    return PLACEHOLDER.sub(lambda match: _word(match[1], values.get(match[1]), plain=plain), command)


def _word(name: str, value: str | None, *, plain: bool) -> str:
    """What begins with a dash would be an option."""
    shown = visible(value, _VALUE_MAX) if value else ""
    if not shown or shown.startswith("-") or (plain and shlex.quote(shown) != shown):
        return name.upper()
    return shlex.quote(shown)


def _values(finding: Finding, site: Site) -> dict[str, str]:
    """``node``: the first of the finding's own, ``nodes``: all, folded; both host names alone. Of several instances
    the first. ``pid``: of the process that the proof names, and then ``node`` is where that one is."""
    named = [node for node in finding.nodes if HOST.match(node)]
    own = {"node": named[0], "nodes": fold(named), **_process(finding, named)} if named else {}
    told = {"cluster": site.aws_cluster, "region": site.region, **finding.values}
    return {**told, "instance_id": told.get("instance_id", "").partition(" ")[0], **own}


def _process(finding: Finding, named: Sequence[str]) -> dict[str, str]:
    """Of findings that were folded over nodes no one process is in the values."""
    if "pid" in finding.values:
        return {}
    found = (match for proof in finding.proofs if (match := _OF_A_PROCESS.match(proof.source)))
    places = ((match[1] or named[0], match[2]) for match in found)
    return next(({"node": node, "pid": pid} for node, pid in places if node in named), {})


def _reboot(finding: Finding, site: Site, compute: Container[str]) -> Iterator[str]:
    for node in finding.nodes:
        if not HOST.match(node):
            continue
        now = site.now.get(node, NodeNow())
        busy = in_progress(now, site.reasons)
        if node in compute and busy is not None:
            yield _BUSY.format(node, visible(busy, _VALUE_MAX))
        elif node in compute:
            reason = f"nccl-slurm: {finding.check}"
            yield from as_it_stands(heavy("reboot", node, reason, site, _instance(finding)), now, site.reasons)
        else:
            yield _ROLE.format(node)


def _instance(finding: Finding) -> str | None:
    """Of the node, where the finding is of one alone."""
    return finding.values.get("instance_id") if len(finding.nodes) == 1 else None


def _section(text: str) -> Section:
    head, _, rest = text.partition("\n")
    parts = {match[1]: (match[2], match[3].strip()) for match in _BULLET.finditer(rest)}
    block = _BLOCK.search(rest)
    action, remedy = parts.get("Remedy", (None, ""))
    if not ID.fullmatch(head) or set(parts) - set(LABELS) or block is None or action not in ACTIONS:
        raise ValueError(f"no section of the guide: {head}")
    return Section(
        id=head,
        title=_title(rest),
        proof=_part(parts, "Proof"),
        remedy=remedy,
        action=str(action),
        source=_part(parts, "Source"),
        commands=tuple(block[1].strip().splitlines()),
        symptom=_part(parts, "Symptom"),
        cause=_part(parts, "Cause"),
        verify=_part(parts, "Verify"),
        blast_radius=_part(parts, "Blast radius"),
    )


def _part(parts: Mapping[str, tuple[str | None, str]], label: str) -> str:
    return parts.get(label, (None, ""))[1]


def _title(rest: str) -> str:
    return next((line.strip() for line in rest.splitlines() if line.strip()), "")
