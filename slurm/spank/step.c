/* In slurmstepd, one process a step and node: what its tasks are told, when each began and how it ended.
 *
 * Times are those at which slurmstepd saw it. It sees the first end at once, and others only when the TaskEpilog of those
 * before is over, one after the other (src/slurmd/slurmstepd/mgr.c). */
#include <time.h>

#include "nccl_slurm.h"

/* Of more tasks than a node can have cores the rest has no time of its begin. */
#define TASKS_MAX 4096

static int64_t begins[TASKS_MAX];

static int64_t now(void)
{
    struct timespec at;

    if (clock_gettime(CLOCK_REALTIME, &at) != 0)
        return 0;
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

/* Runs with the rights of the job's user, before the first task. */
void step_begins(spank_t spank)
{
    if (choice() != NULL && spank_setenv(spank, CHOICE_FOR_TASKS, choice(), 1) != ESPANK_SUCCESS)
        slurm_verbose(SAY "--" CHOICE_OPTION " does not reach the tasks");
}

void task_begins(spank_t spank)
{
    int local;

    if (spank_get_item(spank, S_TASK_ID, &local) == ESPANK_SUCCESS && local >= 0 && local < TASKS_MAX)
        begins[local] = now();
}

static bool describe(spank_t spank, struct task_exit *ended)
{
    return spank_get_item(spank, S_JOB_ID, &ended->job) == ESPANK_SUCCESS
        && spank_get_item(spank, S_JOB_STEPID, &ended->step) == ESPANK_SUCCESS
        && spank_get_item(spank, S_TASK_GLOBAL_ID, &ended->task) == ESPANK_SUCCESS
        && spank_get_item(spank, S_TASK_ID, &ended->local) == ESPANK_SUCCESS
        && spank_get_item(spank, S_TASK_PID, &ended->pid) == ESPANK_SUCCESS
        && spank_get_item(spank, S_TASK_EXIT_STATUS, &ended->status) == ESPANK_SUCCESS;
}

/* Said once a step, and not in the job's output. */
static void complain(const char *why)
{
    static bool told;

    if (!told)
        slurm_info(SAY "how tasks end is not kept: %s", why);
    told = true;
}

/* Runs as root. */
void task_ends(spank_t spank, const struct settings *settings)
{
    struct task_exit ended = {.end = now()};
    const char *why = "Slurm does not tell";

    if (!describe(spank, &ended)) {
        complain(why);
        return;
    }
    if (ended.local >= 0 && ended.local < TASKS_MAX)
        ended.begin = begins[ended.local];
    if (!keep_exit(settings, &ended, &why))
        complain(why);
}
