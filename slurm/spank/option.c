/* --nccl-capture=off|warn|info|net|coll, in srun, sbatch, salloc and #SBATCH. The words' meaning is task_prolog's. */
#include <string.h>

#include "nccl_slurm.h"

static const char *const words[] = {"off", "warn", "info", "net", "coll"};
static const char *chosen;

/* A command refuses a word that it does not know, before there is a job; a step only says so. */
static int choose(int value, const char *word, int remote)
{
    size_t number;

    (void)value;
    for (number = 0; word != NULL && number < sizeof(words) / sizeof(words[0]); number++) {
        if (strcmp(word, words[number]) == 0) {
            chosen = words[number];
            return ESPANK_SUCCESS;
        }
    }
    if (remote)
        return ESPANK_SUCCESS;
    slurm_error(SAY "--" CHOICE_OPTION "=%s: give off, warn, info, net or coll", word != NULL ? word : "");
    return -1;
}

static struct spank_option option = {
    .name = CHOICE_OPTION,
    .arginfo = "off|warn|info|net|coll",
    .usage = "what nccl-slurm lets NCCL log, off: nothing is captured",
    .has_arg = 1,
    .cb = choose,
};

void register_option(spank_t spank)
{
    if (spank_option_register(spank, &option) != ESPANK_SUCCESS)
        slurm_info(SAY "--" CHOICE_OPTION " can't be offered");
}

const char *choice(void)
{
    return chosen;
}
