# Completion of nccl-slurm in bash (4.4 or newer). Copy to /usr/share/bash-completion/completions/nccl-slurm, or source it.
# The command writes its completion itself, so that this file fits every version; it costs one start of nccl-slurm.
if command -v nccl-slurm >/dev/null 2>&1; then
    eval "$(_NCCL_SLURM_COMPLETE=bash_source nccl-slurm 2>/dev/null)"
fi
