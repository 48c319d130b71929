/* In srun, sbatch and salloc: hands the user's choice to root's prolog and epilog. */
#include "nccl_slurm.h"

void command_chosen(spank_t spank)
{
    if (choice() == NULL)
        return;
    if (spank_job_control_setenv(spank, CHOICE_FOR_HOOKS, choice(), 1) != ESPANK_SUCCESS)
        slurm_verbose(SAY "--" CHOICE_OPTION " does not reach the prolog: this command makes no job");
}
