"""Hooks on a file system that can vanish are refused, by the mount table alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_slurm.errors import InputError
from nccl_slurm.install import places
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.mounts import network_file_system

TABLE = r"""22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:26 / /dev/shm rw - tmpfs tmpfs rw
41 22 0:40 / /fsx rw,noatime shared:9 - lustre 10.0.0.1@tcp:/abc rw,flock
42 22 0:41 / /home rw shared:10 master:2 - nfs4 10.0.0.2:/fsx rw
43 42 259:2 / /home/local rw - xfs /dev/nvme1n1 rw
44 22 0:50 / /with\040blank rw - fuse.s3fs s3fs rw
45 22 0:51 / /later rw - autofs systemd-1 rw
46 45 0:52 / /later rw - ext4 /dev/sdb rw
47 22 0:53 / /gpfs rw - gpfs gpfs0 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/opt/nccl-slurm/slurm", None),
        ("/fsx/nccl-slurm/slurm", "lustre"),
        ("/fsx", "lustre"),
        ("/fsxlocal/slurm", None),
        ("/home/admin/slurm", "nfs4"),
        ("/home/local/slurm", None),
        ("/with blank/x", "fuse.s3fs"),
        ("/later/x", None),
        ("/gpfs/x", "gpfs"),
        ("/dev/shm/x", None),
    ],
)
def test_the_longest_mount_point_above_decides(path: str, kind: str | None) -> None:
    assert network_file_system(path, TABLE) == kind


def test_hooks_on_a_network_file_system_are_refused() -> None:
    with pytest.raises(InputError, match=r"--hooks /fsx/slurm: .* \(lustre\).*drains a node"):
        places.check(Layout(hooks="/fsx/slurm"), TABLE)


def test_a_link_to_one_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "hooks").symlink_to("/fsx/slurm")
    with pytest.raises(InputError, match="lustre"):
        places.check(Layout(hooks=f"{tmp_path}/hooks"), TABLE)


def test_a_spool_on_one_is_refused() -> None:
    with pytest.raises(InputError, match="local disk"):
        places.check_spool("/fsx/spool", "/fsx/spool", TABLE)


def test_a_shared_folder_that_users_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(InputError, match="users may write there"):
        places.check_shared("/fsx", str(tmp_path), (0,))
