from __future__ import annotations

import pytest

from nccl_slurm.info.version import versions
from tests.info.lines import read


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NCCL version 2.21.5+cuda12.4", [("nccl", "2.21.5"), ("cuda", "12.4")]),
        ("n1:8:8 [7] NCCL INFO NCCL version 2.27.3+cuda12.9", [("nccl", "2.27.3"), ("cuda", "12.9")]),
        ("n1:8:8 [7] NCCL INFO cudaDriverVersion 12060", [("cuda driver", "12.6")]),
        (
            "n1:8:8 [6] NCCL INFO NET/OFI Using CUDA driver version 13000 with runtime 12090",
            [("cuda driver", "13.0"), ("cuda runtime", "12.9")],
        ),
        ("n1:8:9 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v10)", [("network plugin", "Libfabric v10")]),
        ("n1:8:9 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.13.2-aws", [("aws-ofi-nccl", "1.13.2-aws")]),
        ("n1:8:9 [0] NCCL INFO NET/OFI Using Libfabric version 1.22", [("libfabric", "1.22")]),
        ("CUDA runtime version 12090, driver version 13000", [("cuda driver", "13.0"), ("cuda runtime", "12.9")]),
        ("PyTorch version: 2.5.1+cu124", [("torch", "2.5.1+cu124")]),
        (
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/NCCLUtils.cpp:93, unhandled cuda error "
            "(run with NCCL_DEBUG=INFO for details), NCCL version 2.29.3",
            [("nccl", "2.29.3")],
        ),
        (
            "I1209 23:39:42.495654 138 ProcessGroupNCCL.cpp:914] [PG ID 0 PG GUID 0 Rank 1] ProcessGroupNCCL "
            "environments: NCCL version: 2.20.5, TORCH_NCCL_ASYNC_ERROR_HANDLING: 1",
            [("nccl", "2.20.5")],
        ),
        ("n1:8:8 [7] NCCL INFO Using network IB", []),
    ],
)
def test_versions(line: str, expected: list[tuple[str, str]]) -> None:
    assert [(component, version) for component, version, _ in versions([read(line)])] == expected
