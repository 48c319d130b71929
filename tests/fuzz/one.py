"""One target under libFuzzer, in a process of its own: ``python -m tests.fuzz.one TARGET FLAGS… FOLDER``."""

from __future__ import annotations

import resource
import sys
import warnings

import atheris

with atheris.instrument_imports(include=["nccl_slurm", "pickle", "tomllib", "shlex", "json"]):
    from tests.fuzz.targets import TARGETS
    from tests.fuzz.tree import mutated

#: Above libFuzzer's own limit of resident memory, which names the input; this one is for what asks for all at once.
ADDRESS_BYTES = 4 << 30


def main(name: str, flags: list[str]) -> None:
    target = TARGETS[name]
    warnings.simplefilter("error")  # a site's regex that Python will refuse one day is to be refused by us
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        changed = mutated(data, seed) if seed % 3 else None
        return changed if changed is not None and len(changed) <= size else atheris.Mutate(data, size)

    extra = {"custom_mutator": mutate} if target.tree else {}
    atheris.Setup([name, *flags], target, **extra)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
