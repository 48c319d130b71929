"""Python imports this at its start (see `site`): a placeholder is imported where a part of torch is not wanted.

Of 2 s of CPU that ``import torch`` takes (2.13), registering kernels that compute nothing but shapes (torch.compile,
export) and what the same needs beside it is one half.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any

#: With what is below them. All else imports as ever.
LEFT_OUT = (
    "torch._decomp",
    "torch._higher_order_ops",
    "torch._meta_registrations",
    "torch._prims",
    "torch._refs",
    "torch.distributions",
    "torch.export",
    "torch.fx.passes",
    "torch.masked",
    "torch.utils.data",
    "torchgen",
)
_BELOW = tuple(f"{name}." for name in LEFT_OUT)


def _check(what: str) -> None:
    """Once torch is loaded nothing may want a placeholder: it would fail, or not fail, otherwise than torch."""
    torch = sys.modules.get("torch")
    if torch is not None and not getattr(torch.__spec__, "_initializing", False):
        print(f"tests/lean_torch has left out: {what}", file=sys.stderr, flush=True)
        raise RuntimeError(f"tests/lean_torch has left out: {what}")


class _Anything(type):
    """A class to be inherited from, registered or called as decorator, whatever importing modules do with names."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _check(name)
        return Nothing

    def __call__(cls, *arguments: Any, **_options: Any) -> Any:
        _check("something called")
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else Nothing


class Nothing(metaclass=_Anything):
    pass


class _Placeholder(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(Nothing, name)


class _Finder:
    """Finder and loader in one."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name not in LEFT_OUT and not name.startswith(_BELOW):
            return None
        _check(name)
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Placeholder(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to execute."""


sys.meta_path.insert(0, _Finder())
gc.set_threshold(100_000)  # an import makes many objects and no garbage
