"""Seeds: what the ordinary tests know of each form, so that fuzzing begins inside of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nccl_slurm.parse.patterns import DATA, compile_rows, load_rows
from nccl_slurm.scheduler import jobtext

DELIMITER = "~0123456789abcdef~"
ROOT = Path(__file__).resolve().parents[2]
LOG_NAMES = (
    "job.log",
    "rank3.log",
    "nccl.n1.8.log",
    "r/attempt_0/1/stderr.log",
    "r/attempt_0/1/error.json",
    "task.0.1",
    "kern.log",
    "ras.json",
    "fr_3",
)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def records() -> Iterator[bytes]:
    from tests.collect.test_shared import record

    yield _json(record())
    yield _json(_full_record(record()))


def _full_record(record: dict[str, Any]) -> dict[str, Any]:
    hook = {"time": 1.0, "boot_id": None, "env": {"SLURM_JOB_ID": "42", "SLURM_JOB_GPUS": "0,1"}}
    fact = {
        "kind": "kernel.xid",
        "text": "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus.",
        "producer": "kernel",
        "role": "cause",
        "trust": "root",
        "hint": "gpu-hw-lost",
        "file": None,
        "line": 3,
        "offset": None,
        "rank": None,
        "host": "n1",
        "time": 8e8,
        "uncertainty_s": 1.0,
        "data": {"xid": 79, "pci": "0000:a1:00"},
        "id": "",
    }
    hang = {"kind": "torch.watchdog-timeout", "producer": "torch", "trust": "job", "hint": None, "file": "nccl.log"}
    data = {"seq": 5, "pg": "0", "enqueued": 5, "completed": 4, "timeout_ms": 600000, "missing": [2]}
    ranks = [_rank(0, 5, 4), _rank(1, 4, 4)]
    facts = [{**fact, **hang, "rank": 0, "role": "consequence", "data": data}]
    files = [{"path": "nccl.log", "size": 10, "mtime": 1.0, "read": True}]
    more = {"kernel_events": [fact], "facts": facts, "ranks": ranks, "files": files, "world_size": 2}
    return {**record, **more, "prolog": hook, "epilog": hook, "gaps": [{"source": "gpus", "why": "none"}]}


def _rank(number: int, enqueued: int, completed: int) -> dict[str, Any]:
    counters = {"0": {"enqueued": enqueued, "started": completed, "completed": completed}}
    place = {"host": "n1", "local_rank": number, "gpu": "0000:a1:00", "pid": 7, "exit": -9, "last_line": "step 7"}
    times = {"first": 1.0, "last": 8e8, "uncertainty_s": 0.1}
    return {"rank": number, **place, **times, "progress": counters, "files": ["nccl.log"]}


def configs() -> Iterator[bytes]:
    yield (ROOT / "etc" / "nccl-slurm.toml").read_bytes()
    yield b"[scope.partitions]\na = 'all'\n[daemon]\nrecord_uids = [0, 7]\nsettle_s = 1.5\n[comment]\nenabled = false\n"
    yield b'[access]\nadmin_group = """x\ny"""\n[paths]\nstate = "/\\u00e9"\n[store]\nurl = \'sqlite:////x/y.db\'\n'


def reports() -> Iterator[bytes]:
    for path in sorted((ROOT / "tests" / "golden").glob("*.json")):
        yield path.read_bytes()


def dumps() -> Iterator[bytes]:
    from tests.parse.test_flight_recorder import dump, entry

    nccl = dump([entry(4, "completed"), entry(5, "started")], enqueued=5, started=5, completed=4)
    gloo = dump([entry(5, "scheduled", "gloo", retired=True)], enqueued=5, started=-1, completed=5)
    for value in (nccl, gloo):
        yield _json(value)
        for protocol in (2, 4, 5):
            yield pickle.dumps(value, protocol=protocol)


def environments() -> Iterator[bytes]:
    yield b"NCCL_SLURM_SPOOL=/x\nNCCL_SLURM_WORKER_LIMIT_S=30\nNCCL_SLURM_SHIP_UID=7\nNCCL_SLURM_SYSROOT=/s/\n"
    yield b"time=1790000000\nboot_id=11111111-2222-3333-4444-555555555555\nSLURM_JOB_ID=42\nSLURM_JOB_UID=7001\n"


def compiled_rows() -> Iterator[bytes]:
    full = json.loads(compile_rows((Path(DATA) / "patterns.toml").read_text()))
    yield _json({**full, "row": full["row"][:3], "xid": full["xid"][:3]})


def site_rows() -> Iterator[bytes]:
    from tests.parse.test_rows import SITE

    yield SITE.encode()
    yield (Path(DATA) / "patterns.toml").read_text().partition("[[row]]")[2].partition("[[row]]")[0].encode()
    for name in ("faults.toml", "nvlink.toml"):
        yield (Path(DATA) / name).read_text().encode()[:6000].rpartition(b"\n\n")[0]
    yield b'[[xid]]\ncode = 79\nmnemonic = "X"\nclass = "gpu-hw-lost"\nrole = "cause"\naction = "reboot"\n'


def slurm_tables() -> Iterator[bytes]:
    from tests.scheduler.test_text import CONFIG

    yield CONFIG.encode()
    yield (
        b"NodeName=n1 Arch=x86_64 State=DOWN*+DRAIN BootTime=2026-11-29T16:03:40 SlurmdStartTime=1795968218 "
        b"Version=22.05.8 Reason=bad gpu [root@2026-11-29T16:03:40]        more InstanceId=i-1\n"
        b"NodeName=n2 State=IDLE Comment=x Extra=y\n"
    )
    yield b"n1|1795970364|1795970365|DOWN*|root|ECC | 3\nn4|1795970364|Unknown|DRAINED|root(0)|x\n"
    yield b"Slurmctld(primary) at ctl is UP\nSlurmctld(backup1) at b1 is DOWN\n"


def slurm_json() -> Iterator[bytes]:
    for path in sorted((ROOT / "tests" / "scheduler" / "samples").glob("slurm-*.json")):
        for printed in json.loads(path.read_text()).values():
            yield json.dumps(printed).encode()


def squeue() -> Iterator[bytes]:
    from tests.scheduler.test_jobtext import LIVE

    for name in ("%x_%A_%a_%5j.txt", "a\\%j", "/w/100%q"):
        row = {**LIVE, "STDOUT": name}
        yield ("".join(row[field] + DELIMITER for field in jobtext.LIVE_FIELDS) + "\n").encode()


def sacct() -> Iterator[bytes]:
    from tests.scheduler.test_jobtext import sacct as row
    from tests.scheduler.test_jobtext import step

    yield (row() + step("1.batch") + step("1.0", State="CANCELLED by 7001")).encode()
    yield row(NodeList="r[01-02]n[1-2]", AllocTRES="gres/gpu:h100=8").encode()


def sacct_comments() -> Iterator[bytes]:
    values = ("1", "1", "CANCELLED by 0", "1795968218", "1795968300", "n[1-2]", "main", "team-a", "")
    yield ("".join(value + DELIMITER for value in values) + "\n").encode()


def _lines() -> list[str]:
    return [row.yes for row in load_rows().rows]


def kernel_logs() -> Iterator[bytes]:
    lines = [row.yes for row in load_rows().rows if row.producer == "kernel"]
    for at in range(0, len(lines), 8):
        yield "\n".join(f"1795956000.{n:06d} n1 kernel: {line}" for n, line in enumerate(lines[at : at + 8])).encode()
    yield b'{"__REALTIME_TIMESTAMP":"1795956000000000","SYSLOG_FACILITY":"0","MESSAGE":[78,86,82,77,58,255]}'
    changed = b"154, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)"
    yield b"<4>[  123.456789] NVRM: Xid (PCI:0000:a1:00): " + changed + b"\n"


def job_logs() -> Iterator[bytes]:
    from tests.parse.test_folder import TABLE, TRACEBACK
    from tests.parse.test_launchers import RANKED, docker, fluent
    from tests.parse.test_lines import NCCL, REST, TORCH
    from tests.parse.test_ras import TEXT, output, rank

    for texts in (TORCH, NCCL, REST):
        for at in range(0, len(texts), 6):
            yield b"\0" + "\n".join(line for line, _ in texts[at : at + 6]).encode()
    lines = _lines()
    for at in range(0, len(lines), 6):
        yield b"\1" + "\n".join(f"[rank3]: {line}" for line in lines[at : at + 6]).encode()
    yield b"\0" + TABLE.encode()
    yield b"\3" + TRACEBACK.encode()
    yield (
        b"\0" + "\n".join((docker(RANKED), fluent(docker(RANKED)), f"2026-09-12T18:44:13Z stderr F {RANKED}")).encode()
    )
    yield b"\0" + f"(W pid=7) {RANKED} [repeated 15x across cluster]\n[default:5/1]: {RANKED}".encode("utf-16")
    yield b"\0" + TEXT.encode()
    yield b"\7" + _json(output(rank(0, 6), rank(1, 5, error=6), rank(2, 6)))
    yield b'\4{"message": {"message": "ValueError: x", "errorCode": 1, "extraInfo": {"timestamp": "1795968218"}}}'


def user_answers() -> Iterator[bytes]:
    full = _full_record({})
    yield _json(
        {
            **{key: full[key] for key in ("facts", "ranks", "files", "world_size", "gaps")},
            "bytes_read": 1,
            "patterns": "x",
        }
    )


def nvidia_smi() -> Iterator[bytes]:
    from tests.capture.smi import NVLINK, PROCESS, gpu, log

    yield log(gpu(processes=PROCESS), gpu("00000000:B3:00.0", minor="N/A")).encode()
    reason = "clocks_event_reason_hw_slowdown"
    throttled = f"<{reason}>Active</{reason}>"
    yield log(gpu(throttle=f"<clocks_event_reasons>{throttled}</clocks_event_reasons>", volatile="3")).encode()
    yield NVLINK.encode()


def clocks() -> Iterator[bytes]:
    yield b"A9FEA97B,169.254.169.123,4,1795968218.1,0.000012,0.1,0.1,-1.2,0.0,0.1,0.0003,0.0001,16.3,Normal\n"
    yield b"NTPSynchronized=yes\n"


def job_scripts() -> Iterator[bytes]:
    yield (
        b"#!/bin/sh\n#SBATCH -N2\nsrun -o out-%t.txt --error=err-%N.txt \\\n"
        b"  torchrun --log-dir=$HOME/l/${SLURM_JOB_ID} t.py\n"
    )
    yield b"srun --output 'a b/%j' python x.py # --log-dir no\ntorchrun --log_dir /l\n"


def secrets() -> Iterable[bytes]:
    from tests.parse.test_redact import SECRETS

    return [text.encode() for text, _ in SECRETS]
