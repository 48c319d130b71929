/* What the parts of the plugin share. One file a context: command.c (srun, sbatch, salloc), step.c (slurmstepd).
 *
 * No hook ever fails: each returns ESPANK_SUCCESS, whatever went wrong, since Slurm would fail the step otherwise. */
#ifndef NCCL_SLURM_H
#define NCCL_SLURM_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h> /* spank.h of 22.05 uses its types and does not include it */
#include <sys/types.h>

#include <slurm/spank.h>

/* Before every line of ours in a log. */
#define SAY "nccl-slurm: "

/* Slurm's programs have hundreds of functions of their own: only the hooks are seen from outside. */
#pragma GCC visibility push(hidden)

/* settings.c: arguments of plugstack.conf */

#define MARK_BYTES (PATH_MAX + HOST_NAME_MAX + 32)

struct settings {
    bool good; /* all arguments were understood; else the plugin does nothing */
    char spool[PATH_MAX];
    char mark[MARK_BYTES]; /* what the prolog leaves where a file system hung under it */
};

/* Reads them strictly: an unknown or malformed one is told, and good is false. */
void read_settings(struct settings *settings, int count, char **arguments);

/* option.c: --nccl-capture */

#define CHOICE_OPTION "nccl-capture"
/* Root's prolog and epilog see it with SPANK_ before it. */
#define CHOICE_FOR_HOOKS "NCCL_SLURM_CAPTURE"
/* For task_prolog, which asks NCCL_SLURM_CAPTURE first: that is the user's own. */
#define CHOICE_FOR_TASKS "NCCL_SLURM_CAPTURE_OPTION"

void register_option(spank_t spank);

/* One of the words that the option takes, NULL where it was not given. */
const char *choice(void);

/* command.c, step.c: the hooks of a context */

void command_chosen(spank_t spank);

void step_begins(spank_t spank);
void task_begins(spank_t spank);
void task_ends(spank_t spank, const struct settings *settings);

/* exits.c: SPOOL/<run>/root/task_exits */

struct task_exit {
    uint32_t job;
    uint32_t step;
    uint32_t task;  /* number in the whole step: SLURM_PROCID */
    int local;      /* number on this node: SLURM_LOCALID */
    pid_t pid;
    int status;     /* as wait(2) has it */
    int64_t begin;  /* nanoseconds since 1970, 0 where not seen */
    int64_t end;
};

/* Appends a line to the file of the job's run. False, and *why, where that can't be done. */
bool keep_exit(const struct settings *settings, const struct task_exit *ended, const char **why);

#pragma GCC visibility pop

#endif
