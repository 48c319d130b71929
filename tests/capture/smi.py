"""What nvidia-smi prints, in the forms of different driver branches."""

from __future__ import annotations


def gpu(
    bus: str = "00000000:A1:00.0",
    *,
    minor: str = "0",
    uuid: str = "GPU-aaaa",
    volatile: str = "0",
    aggregate: str = "0",
    pending: str = "No",
    failure: str = "No",
    action: str = "<gpu_recovery_action>None</gpu_recovery_action>",
    throttle: str = "",
    processes: str = "",
) -> str:
    return f"""<gpu id="{bus}">
  <product_name>NVIDIA H100 80GB HBM3</product_name><uuid>{uuid}</uuid><minor_number>{minor}</minor_number>
  {action}
  <ecc_errors>
    <volatile><sram_correctable>7</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
      <sram_uncorrectable_secded>0</sram_uncorrectable_secded><dram_uncorrectable>{volatile}</dram_uncorrectable></volatile>
    <aggregate><dram_uncorrectable>{aggregate}</dram_uncorrectable>
      <sram_threshold_exceeded>No</sram_threshold_exceeded></aggregate>
  </ecc_errors>
  <remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>
    <remapped_row_pending>{pending}</remapped_row_pending><remapped_row_failure>{failure}</remapped_row_failure>
  </remapped_rows>
  {throttle}
  <processes>{processes}</processes>
</gpu>"""


def log(*gpus: str, driver: str = "550.54.15") -> str:
    body = f"<driver_version>{driver}</driver_version>" + "".join(gpus)
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
    return f"{head}<nvidia_smi_log>{body}</nvidia_smi_log>\n"


PROCESS = (
    "<process_info><pid>4711</pid><type>C</type><process_name>python</process_name>"
    "<used_memory>70000 MiB</used_memory></process_info>"
)
NVLINK = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
\t Link 2: <inactive>
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
\t Link 0: Inactive
"""
