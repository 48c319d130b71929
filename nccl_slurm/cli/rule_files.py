"""The site's own rows: files ``*.toml`` in rules.folder. Loads little: commands read them before they open a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nccl_slurm.config import Config
from nccl_slurm.errors import ConfigError
from nccl_slurm.history import reasons

__all__ = ["named", "reasons_of", "rule_files"]


def rule_files(loaded: Config) -> list[Path]:
    """In order of name; empty where the folder is not there, or closed to this user."""
    return sorted(Path(loaded.rules.folder).glob("*.toml"))


def reasons_of(loaded: Config) -> reasons.Reasons:
    """Reasons of nodes with the site's rows. Raises ConfigError with the file that is wrong."""
    texts = []
    for path in rule_files(loaded):
        with named(path):
            texts.append(path.read_text(encoding="utf-8"))
            reasons.load(texts[-1:])
    return reasons.load(texts) if texts else reasons.packaged()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """The file that is wrong, and the remedy."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}; make it readable UTF-8") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; mend the row, or move the file away") from None
