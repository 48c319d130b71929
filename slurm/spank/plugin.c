/* SPANK plugin of nccl-slurm: how each task ended, and --nccl-capture. Here each hook is given to its context's file.
 *
 * Loaded by srun, sbatch, salloc, slurmd and slurmstepd alike. plugstack.conf, with "optional":
 *     optional .../nccl_slurm-22.05.so spool=/var/spool/nccl-slurm */
#include "nccl_slurm.h"

SPANK_PLUGIN(nccl_slurm, 1);

static struct settings settings;

static bool in_command(void)
{
    spank_context_t context = spank_context();

    return context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR;
}

static bool in_step(void)
{
    return spank_context() == S_CTX_REMOTE;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    if (in_command() || in_step()) {
        read_settings(&settings, count, arguments);
        if (settings.good)
            register_option(spank);
    }
    return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
    (void)count, (void)arguments;
    if (settings.good && in_command())
        command_chosen(spank);
    return ESPANK_SUCCESS;
}

int slurm_spank_user_init(spank_t spank, int count, char **arguments)
{
    (void)count, (void)arguments;
    if (settings.good && in_step())
        step_begins(spank);
    return ESPANK_SUCCESS;
}

int slurm_spank_task_post_fork(spank_t spank, int count, char **arguments)
{
    (void)count, (void)arguments;
    if (settings.good && in_step())
        task_begins(spank);
    return ESPANK_SUCCESS;
}

int slurm_spank_task_exit(spank_t spank, int count, char **arguments)
{
    (void)count, (void)arguments;
    if (settings.good && in_step())
        task_ends(spank, &settings);
    return ESPANK_SUCCESS;
}
