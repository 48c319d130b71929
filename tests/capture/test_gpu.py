from __future__ import annotations

import time
from pathlib import Path

import pytest

from nccl_slurm.capture import gpu, spool
from nccl_slurm.capture.conf import Conf
from tests.capture import smi


def first(text: str) -> dict[str, object]:
    found = gpu.parse(text)
    assert found.gpus is not None and found.gaps == []
    return found.gpus[0]


def test_reads_one_gpu_whole() -> None:
    found = gpu.parse(smi.log(smi.gpu(volatile="2", aggregate="5", processes=smi.PROCESS)))
    assert found.driver == "550.54.15"
    assert found.gpus == [
        {
            "index": 0,
            "minor": 0,
            "uuid": "GPU-aaaa",
            "bus_id": "0000:a1:00",
            "name": "NVIDIA H100 80GB HBM3",
            "ecc": {"volatile_uncorrected": 2, "aggregate_uncorrected": 5, "sram_threshold_exceeded": False},
            "remapped": {"correctable": 0, "uncorrectable": 1, "pending": False, "failure": False},
            "recovery_action": "None",
            "throttle_reasons": None,
            "fabric": None,
            "nvlink": None,
        }
    ]
    assert found.processes == [{"pid": 4711, "name": "python", "used_mib": 70000, "bus_id": "0000:a1:00"}]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("Yes", True),
        ("yes", True),
        ("1", True),
        ("No", False),
        ("0", False),
        ("N/A", None),
        ("[Not Supported]", None),
        ("2", None),
        ("", None),
    ],
)
def test_remapped_rows_in_every_spelling(word: str, value: bool | None) -> None:
    remapped = first(smi.log(smi.gpu(pending=word, failure=word)))["remapped"]
    assert isinstance(remapped, dict)
    assert remapped["pending"] is value and remapped["failure"] is value


@pytest.mark.parametrize("word", ["N/A", "[Not Supported]", "", "ERR!"])
def test_a_count_that_is_not_supported_is_not_zero(word: str) -> None:
    ecc = first(smi.log(smi.gpu(aggregate=word)))["ecc"]
    assert isinstance(ecc, dict) and ecc["aggregate_uncorrected"] is None


def test_old_drivers_have_one_total_and_no_recovery_action() -> None:
    text = smi.log(
        '<gpu id="0001:3b:00.0"><ecc_errors><volatile><double_bit><total>3</total></double_bit></volatile>'
        "</ecc_errors></gpu>"
    )
    read = first(text)
    assert read["ecc"] == {"volatile_uncorrected": 3, "aggregate_uncorrected": None, "sram_threshold_exceeded": None}
    assert read["recovery_action"] is None and read["minor"] is None and read["bus_id"] == "0001:3b:00"


@pytest.mark.parametrize("name", ["clocks_event_reason", "clocks_throttle_reason"])
def test_throttle_reasons_under_both_names(name: str) -> None:
    group = (
        f"<{name}s><{name}_gpu_idle>Active</{name}_gpu_idle><{name}_hw_slowdown>Active</{name}_hw_slowdown>"
        f"<{name}_sw_power_cap>Not Active</{name}_sw_power_cap></{name}s>"
    )
    assert first(smi.log(smi.gpu(throttle=group)))["throttle_reasons"] == ["gpu_idle", "hw_slowdown"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Unable to determine the device handle for GPU0000:A1:00.0: Unknown Error",
        "<nvidia_smi_log><gpu></nvidia_smi_log>",
        "</nvidia_smi_log><nvidia_smi_log>",
        "<nvidia_smi_log>&bad;</nvidia_smi_log>",
    ],
)
def test_what_is_no_answer_is_a_gap(text: str) -> None:
    found = gpu.parse(text)
    assert found.gpus is None and found.processes is None
    assert [one.source for one in found.gaps] == ["gpus"]


def test_no_entity_is_expanded() -> None:
    bomb = (
        '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">]><nvidia_smi_log><driver_version>&a;</driver_version></nvidia_smi_log>'
    )
    assert gpu.parse(bomb).gpus is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("00000000:A1:00.0", "0000:a1:00"),
        ("PCI:0000:a1:00", "0000:a1:00"),
        ("0000:a1:00", "0000:a1:00"),
        ("a1:00.0", "0000:a1:00"),
        ("00010000:01:00.0", "00010000:01:00"),
        ("N/A", None),
        (None, None),
        ("0000:a1", None),
    ],
)
def test_bus_ids_get_the_form_of_xid_lines(given: str | None, expected: str | None) -> None:
    assert gpu.bus_id(given) == expected


@pytest.mark.parametrize(
    ("word", "down"),
    [("<inactive>", [2]), ("Inactive", [2]), ("Off", [2]), ("Unknown Error", []), ("<N/A>", []), ("Active", [])],
)
def test_only_a_link_that_is_said_to_be_down_is(word: str, down: list[int]) -> None:
    assert gpu.nvlinks(smi.NVLINK.replace("Link 2: <inactive>", f"Link 2: {word}"))["GPU-aaaa"]["inactive"] == down


def test_nvlinks_by_gpu() -> None:
    assert gpu.nvlinks(smi.NVLINK) == {
        "GPU-aaaa": {"active": 2, "inactive": [2]},
        "GPU-bbbb": {"active": 0, "inactive": [0]},
    }


@pytest.fixture
def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi that logs its calls and answers from files."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "answer.xml").write_text(smi.log(smi.gpu()))
    (folder / "links").write_text(smi.NVLINK)
    script = folder / "nvidia-smi"
    script.write_text(
        f'#!/bin/sh\necho "$*" >>{folder}/calls\n[ "$1" = -q ] && exec cat {folder}/answer.xml\ncat {folder}/links\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_query_asks_twice_and_joins(fake_smi: Path, tmp_path: Path) -> None:
    found = gpu.query(Conf(spool=str(tmp_path)))
    assert found.gpus is not None and found.gpus[0]["nvlink"] == {"active": 2, "inactive": [2]}
    assert (fake_smi / "calls").read_text().splitlines() == ["-q -x", "nvlink --status"]


def test_no_second_query_beside_one_that_hangs(fake_smi: Path, tmp_path: Path) -> None:
    with spool.lock(str(tmp_path / "gpu.lock"), 0.0) as held:
        assert held
        found = gpu.query(Conf(spool=str(tmp_path), gpu_query_limit_s=0.2))
    assert found.gpus is None and "another GPU query" in found.gaps[0].why
    assert not (fake_smi / "calls").exists()


def test_a_query_that_hangs_is_ended(fake_smi: Path, tmp_path: Path) -> None:
    (fake_smi / "nvidia-smi").write_text("#!/bin/sh\nsleep 30\n")
    start = time.monotonic()
    found = gpu.query(Conf(spool=str(tmp_path), gpu_query_limit_s=0.3))
    assert time.monotonic() - start < 25 and found.gpus is None
    assert found.gaps[0].why == "nvidia-smi: no answer within 0.3 s"


def test_a_failing_query_tells_its_first_line(fake_smi: Path, tmp_path: Path) -> None:
    (fake_smi / "nvidia-smi").write_text("#!/bin/sh\necho 'No devices were found'; exit 6\n")
    assert gpu.query(Conf(spool=str(tmp_path))).gaps[0].why == "nvidia-smi: exit 6: No devices were found"


def test_without_nvidia_smi_there_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = gpu.query(Conf(spool=str(tmp_path)))
    assert (found.gpus, found.processes) == (None, None) and found.gaps[0].source == "gpus"
