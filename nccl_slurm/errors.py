"""Exceptions. Each carries what a user needs in one line: what, where, and the remedy.

NcclSlurmError
├── ConfigError          a configuration file is malformed, a key unknown, a value out of range
├── InputError           a path is missing, unreadable or holds nothing to read
├── InstallError         a part of an installation can't be made, or must not be taken away
├── NotReproducible      no script of a few processes can show this failure, or nothing tells what it should show
├── JobError
│   ├── UnknownJob       no such job, or not captured
│   └── NotYours         the report belongs to another user
├── StoreError
│   ├── LeaseLost        a daemon on another host works on the store now
│   ├── StoreBusy        another process holds the store
│   └── StoreTooNew      written by a newer nccl-slurm
├── RecordError          a node record is forged, malformed, oversized or of an unknown schema
├── RemoteError          a node does not answer by SSH, is not the one that is known, refuses, or answers nonsense
└── SlurmError
    ├── SlurmUnreachable slurmctld or slurmdbd does not answer
    └── SlurmRefused     Slurm answered no
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "InputError",
    "InstallError",
    "JobError",
    "LeaseLost",
    "NcclSlurmError",
    "NotReproducible",
    "NotYours",
    "RecordError",
    "RemoteError",
    "SlurmError",
    "SlurmRefused",
    "SlurmUnreachable",
    "StoreBusy",
    "StoreError",
    "StoreTooNew",
    "UnknownJob",
]


class NcclSlurmError(Exception):
    """Base of all. ``str()`` is one line fit for a user."""


class ConfigError(NcclSlurmError):
    pass


class InputError(NcclSlurmError):
    pass


class InstallError(NcclSlurmError):
    pass


class NotReproducible(NcclSlurmError):
    pass


class JobError(NcclSlurmError):
    pass


class UnknownJob(JobError):
    pass


class NotYours(JobError):
    pass


class StoreError(NcclSlurmError):
    pass


class LeaseLost(StoreError):
    pass


class StoreBusy(StoreError):
    pass


class StoreTooNew(StoreError):
    pass


class RecordError(NcclSlurmError):
    pass


class RemoteError(NcclSlurmError):
    pass


class SlurmError(NcclSlurmError):
    pass


class SlurmUnreachable(SlurmError):
    pass


class SlurmRefused(SlurmError):
    pass
