"""The documents name what the code has: commands, options, keys, classes, actions; links resolve; examples are real."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nccl_slurm import config
from nccl_slurm.attribute.finding import ACTION_OF
from nccl_slurm.cli.main import EXIT_STATUS, cli
from nccl_slurm.model import ACTIONS, CLASSES
from nccl_slurm.report.line import comment

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MANUALS = sorted((ROOT / "etc" / "man").iterdir())
COMMANDS_MD = (ROOT / "docs" / "commands.md").read_text()
REPORT_MD = (ROOT / "docs" / "report.md").read_text()
README = (ROOT / "README.md").read_text()
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def manual(name: str) -> str:
    """As a reader sees it: without requests, font changes and escapes."""
    text = (ROOT / "etc" / "man" / name).read_text()
    return re.sub(r"\\f[BIR]|^\.[A-Z]+ ?|\\&", "", text, flags=re.MULTILINE).replace("\\-", "-")


def commands(group: click.Command = cli, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """``("config show", …)`` … for all that can be run, groups left out."""
    if not isinstance(group, click.Group):
        yield name, group
        return
    context = click.Context(group)
    for word in group.list_commands(context):
        below = group.get_command(context, word)
        assert below is not None
        yield from commands(below, f"{name} {word}".strip())


def options(command: click.Command) -> set[str]:
    own = (param for param in command.params if isinstance(param, click.Option) and not param.hidden)
    return {spelling for option in own for spelling in option.opts} | {"--help", "-h"}


ALL = dict(commands())


def section(name: str) -> str:
    """Of docs/commands.md, with the parts that are said once for all commands."""
    parts = re.split(r"^## ", COMMANDS_MD, flags=re.MULTILINE)
    own = next(part for part in parts if part.startswith(name.split()[0] + "\n"))
    return parts[0] + next(part for part in parts if part.startswith("Options that")) + own


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_option_is_in_the_reference(name: str) -> None:
    text = section(name)
    assert f"nccl-slurm {name}" in text or f"`{name}`" in text
    assert {option for option in options(ALL[name]) if not re.search(rf"[`|]{option}[` |]", text)} == set()


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_option_is_in_the_manual(name: str) -> None:
    text = manual("nccl-slurm.1")
    usage = "\n".join(each for each in text.splitlines() if each.startswith(f"nccl-slurm {name}"))
    for option in options(ALL[name]) - {"--help", "-h"}:
        assert option in usage
        assert re.search(rf"^{re.escape(option)}\b", text, flags=re.MULTILINE), f"{option} is not explained"


def test_the_reference_names_no_option_that_does_not_exist() -> None:
    known = set().union(*(options(command) for command in ALL.values())) | {
        "--version",
        "--comment",
        "--nccl-capture",  # Slurm's, by our plugin
        "--overlap",  # srun's
        "--nproc-per-node",
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", COMMANDS_MD + manual("nccl-slurm.1"))) <= known


def test_exit_statuses_are_documented() -> None:
    for status in {0, 2, 130, *(status for _, status in EXIT_STATUS)}:
        assert f"\n| {status} |" in COMMANDS_MD
        assert f"\n{status}\n" in manual("nccl-slurm.1")


def test_every_key_of_the_configuration_has_its_manual_entry_with_its_default() -> None:
    text = manual("nccl-slurm.toml.5")
    entries = {
        (chapter.split("]")[0], entry.split("\n")[0]): entry
        for chapter in text.split("\n[")[1:]
        for entry in chapter.split("\n\n")[1:]
    }
    for key, default in config.flat(config.Config()):
        entry = entries[tuple(key.split(".", 1))]  # type: ignore[index]
        if isinstance(default, float):
            assert f"Default: {default:g}." in entry
        elif isinstance(default, str) and default:
            assert f'Default: "{default}".' in entry
    assert len(entries) == len(list(config.flat(config.Config())))


def test_the_example_configuration_holds_the_defaults() -> None:
    shipped = config.load(str(ROOT / "etc" / "nccl-slurm.toml"))
    assert dict(config.flat(shipped)) == dict(config.flat(config.Config()))


def table(text: str, heading: str) -> dict[str, list[str]]:
    """Rows of the first table under a heading, by their first cell."""
    chapter = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in chapter.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in rows[2:]}


def test_every_class_is_in_the_report_reference_with_its_action() -> None:
    found = {name: cells[-1] for name, cells in table(REPORT_MD, "Classes").items()}
    assert found == {name: ACTION_OF[name] for name in CLASSES}


def test_every_action_and_confidence_is_in_the_report_reference() -> None:
    assert set(table(REPORT_MD, "Actions")) == set(ACTIONS)
    assert set(table(REPORT_MD, "Confidence")) == {"proven", "likely", "possible"}
    assert {name.strip("`") for name in table(REPORT_MD, "Trust")} == {"root", "job"}


def schema_names() -> dict[str, list[str]]:
    schema = json.loads((ROOT / "nccl_slurm" / "data" / "schemas" / "report-1.json").read_text())
    names: dict[str, list[str]] = {"": list(schema["properties"])}
    for key, value in schema["properties"].items():
        inner = [value, value.get("items", {}), *(option for option in value.get("anyOf", []))]
        names[key] = [name for one in inner for name in one.get("properties", {})]
    return names


@pytest.mark.parametrize("part", schema_names())
def test_every_key_of_the_report_is_explained(part: str) -> None:
    keys = REPORT_MD.split("## Keys\n", 1)[1].split("\n## ", 1)[0]
    chapters = re.split(r"^### ", keys, flags=re.MULTILINE)
    text = next((chapter for chapter in chapters if part and part in chapter.split("\n")[0].split(", ")), chapters[0])
    assert [name for name in schema_names()[part] if f"`{name}`" not in text] == []


def test_comments_in_the_report_reference_have_the_real_form() -> None:
    shown = re.findall(r"\| `(\[nccl-slurm: [^`]+\])`", REPORT_MD)
    assert len(shown) >= 4
    made = comment(_report("preempt-cancel", state="CANCELLED"))
    assert made in shown
    assert comment(_report("collective-hang-unattributed", action="investigate")) in shown


def _report(failure_class: str, *, state: str = "FAILED", action: str | None = None) -> dict[str, object]:
    return {
        "job": {"id": "42", "raw_id": 42, "state": state},
        "verdict": {"class": failure_class, "culprits": []},
        "facts": [],
        "recommendations": [{"action": action, "target": None}] if action else [],
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document: Path) -> None:
    for link in _LINK.findall(document.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", document.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_all_documents_are_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in _LINK.findall(README)}
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= linked


def blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def example_lines(program: str) -> list[list[str]]:
    """Words after ``program`` in the command blocks of all documents."""
    found = []
    for document in DOCUMENTS:
        for line in "\n".join(blocks(document.read_text())).splitlines():
            match = re.match(rf"(?:\$ |sudo )?(?:\S*/)?{re.escape(program)} (.*)", line)
            if match:
                found.append(shlex.split(re.split(r"\s{2,}|[>|]", match[1])[0]))
    return found


def test_examples_of_the_command_use_real_commands_and_options() -> None:
    examples = example_lines("nccl-slurm")
    assert ["report", "--logs", "PATH"] in examples
    for words in examples:
        name = next(name for name in ALL if words[: len(name.split())] == name.split())
        used = {word for word in words if word.startswith("-")}
        assert used <= options(ALL[name]), words


def test_examples_of_the_installer_use_real_options() -> None:
    usage = subprocess.run(["bash", str(ROOT / "install.sh"), "--help"], capture_output=True, text=True, check=True)
    examples = example_lines("install.sh")
    assert ["--demo"] in examples and ["--test"] in examples
    for words in examples:
        assert {word for word in words if word.startswith("-")} <= set(re.findall(r"--[a-z-]+", usage.stdout)), words


def test_the_readme_names_files_that_exist() -> None:
    named = set(re.findall(r"`((?:etc|docs|slurm|nccl_slurm)/[\w./-]+)`", README))
    assert "etc/capture.conf" in named
    assert [name for name in named if not (ROOT / name).exists()] == []
    hooks = re.findall(r"=/opt/nccl-slurm/(slurm/[\w./]+?)(?:/\*)?$", README, flags=re.MULTILINE)
    assert len(hooks) == 4
    assert [hook for hook in hooks if not (ROOT / hook).exists()] == []


def test_settings_of_the_nodes_that_documents_name_exist() -> None:
    known = set(re.findall(r"NCCL_SLURM_[A-Z_]+", (ROOT / "etc" / "capture.conf").read_text()))
    outside = {"NCCL_SLURM_CONFIG", "NCCL_SLURM_TRACEBACK"}
    named = set(re.findall(r"NCCL_SLURM_[A-Z_]+", README + COMMANDS_MD + (ROOT / "docs" / "daemon.md").read_text()))
    assert named <= known | outside


@pytest.mark.parametrize("path", MANUALS, ids=lambda path: path.name)
def test_manuals_are_good_roff(path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("not installed: groff")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("not installed: bash")
    script = f"""\
PATH={shlex.quote(str(_bin_folder(tmp_path)))}:$PATH
. {shlex.quote(str(ROOT / "etc/completion/nccl-slurm.bash"))}
COMP_WORDS=(nccl-slurm report --r) COMP_CWORD=2
_nccl_slurm_completion nccl-slurm && echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"--run", "--ranks"}


def _bin_folder(tmp_path: Path) -> Path:
    """With the command as an installed package has it."""
    program = tmp_path / "nccl-slurm"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nccl_slurm.cli.main "$@"\n')
    program.chmod(0o755)
    return tmp_path


def test_what_readme_calls_missing_is_no_command() -> None:
    missing = README.partition("## What is not there yet\n")[2].partition("\n## ")[0]
    assert missing and not set(re.findall(r"`([\w-]+)`", missing)) & {name.split()[0] for name in ALL}


def test_readme_prints_the_next_step_as_reports_have_it() -> None:
    from nccl_slurm.recommend.ladder import ABOUT_THE_RUN

    assert f"fix-code: {ABOUT_THE_RUN['fix-code']} [ladder.owner]" in README
