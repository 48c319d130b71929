"""Every target on its seeds, on inputs that once broke it, and on mutations that are the same each time."""

from __future__ import annotations

import pickle
import random
import time

import pytest

from tests.fuzz.run import outcome
from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.tree import mutated

ROUNDS = 60
#: CPU time of one input of 64 KiB at most.
INPUT_CPU_S = 10.0

NESTED = b"[" * (1 << 21) + b"]" * (1 << 21)
BILLION_LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    + "]><nvidia_smi_log><driver_version>&a11;</driver_version></nvidia_smi_log>"
).encode()
#: Inside of the element no document type may stand; the reader drops what stands before it.
LAUGHS_INSIDE = BILLION_LAUGHS.replace(b"<?xml", b"<nvidia_smi_log><?xml")


def _shared_lists(depth: int) -> bytes:
    """2 ** depth items when written out, some hundred bytes as a pickle."""
    value: list[object] = []
    for _ in range(depth):
        value = [value, value]
    return pickle.dumps({"entries": [{"input_sizes": value, "collective_seq_id": 1}], "pg_config": {}}, protocol=2)


BROKEN = [
    ("report", b'{"schema": "nccl-slurm/report/1"}'),
    ("report", NESTED),
    ("report", b"5"),
    ("record", NESTED),
    ("record", b"7" * (4 << 20)),
    ("config", b"a = " + b"[" * 60_000),
    ("config", b"a." * 30_000 + b"a = 1"),
    ("flight-recorder", NESTED),
    ("flight-recorder", b'{"entries": ' + NESTED + b"}"),
    ("flight-recorder", b"\x80\x02" + b"(" * (1 << 20)),
    ("flight-recorder", b"\x80\x04r\xff\xff\xff\xff."),  # LONG_BINPUT into slot 2**32 - 1
    ("flight-recorder", b"\x80\x04\x8d" + b"\xff" * 8 + b"x."),  # BINUNICODE8 of 2**64 - 1 bytes
    ("flight-recorder", b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\x01" * 64 + b"."),  # LONG4 of 2 GiB
    ("flight-recorder", _shared_lists(60)),
    ("flight-recorder", b"\x80\x02" + b"]" * 200_000 + b"e."),
    ("nvidia-smi", BILLION_LAUGHS),
    ("nvidia-smi", LAUGHS_INSIDE),
    ("redact", b"B_PASSWD=y'DB_PASSWD=u'_PASSWD=y'D_PA[SWD=y'"),
    ("redact", b"mysql -pQl -mywql+ -pysql -pysql -pQ sql -pQl apQ sql -pQl a mY b"),
    ("site-rows", b"a = " + b"[" * 60_000),
    ("pattern-rows", NESTED),
    ("user-answer", b"[]"),
    ("user-answer", b'{"facts": [{"text": 5}], "ranks": [7], "gaps": [{"why": "x"}], "files": {"a": 1}}'),
    (
        "user-answer",
        b'{"facts": [], "ranks": [], "gaps": [], "files": [{"path": [], "mtime": "x"}], "world_size": "4"}',
    ),
    ("user-answer", NESTED),
]


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_mutations_of_them_are_read_or_refused(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    assert seeds
    for number in range(ROUNDS):
        target(_mutation(target, seeds[number % len(seeds)], number))


@pytest.mark.parametrize("name", TARGETS)
def test_the_first_seed_is_read(name: str) -> None:
    """Else fuzzing would begin, and end, at the first check."""
    TARGETS[name].read(next(iter(TARGETS[name].seeds())))


@pytest.mark.parametrize(("name", "data"), BROKEN, ids=[f"{n}-{name}" for n, (name, _) in enumerate(BROKEN)])
def test_what_once_broke_a_loader_or_would_break_a_careless_one(name: str, data: bytes) -> None:
    began = time.process_time()
    TARGETS[name](data)
    assert time.process_time() - began < INPUT_CPU_S


def _mutation(target: Target, seed: bytes, number: int) -> bytes:
    if number % 2 and target.tree:
        return mutated(seed, number) or b""
    chance = random.Random(number)
    data = bytearray(seed)
    for _ in range(number and chance.randint(1, 8)):
        at = chance.randrange(len(data) + 1)
        data[at : at + chance.choice((0, 1, 1, 20))] = bytes(chance.choices(data or b"\0", k=chance.choice((0, 1, 3))))
    return bytes(data)


def test_a_crash_is_told_with_its_cause() -> None:
    printed = (
        "#9\tNEW cov: 7 ft: 8 \n === Uncaught Python exception: ===\nKeyError: 'x'\n==3== ERROR: libFuzzer: exited\n"
    )
    assert str(outcome("record", printed, 77)) == "record: 0 s of CPU, 9 executions, coverage 7, CRASH: KeyError: 'x'"
    fine = "#9\tNEW cov: 7 ft: 8 \nstat::number_of_executed_units: 12\n"
    assert str(outcome("record", fine, 0)) == "record: 0 s of CPU, 12 executions, coverage 7, no crash"
