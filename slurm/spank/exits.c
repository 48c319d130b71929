/* Appends to SPOOL/<run>/root/task_exits, as root: component by component, no link is followed, and each folder on the
 * way has to be root's alone. The run is found as task_prolog does, by the link SPOOL/<job id> that the prolog made. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>

#include "nccl_slurm.h"

/* A run of 60,000 tasks on one node. */
#define FILE_MAX ((off_t)8 << 20)
#define LINE_MAX_BYTES 256
#define NAME_BYTES 64

static bool is_roots_alone(int file, mode_t kind)
{
    struct stat info;

    return fstat(file, &info) == 0 && (info.st_mode & S_IFMT) == kind && info.st_uid == 0
        && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* -1 where it is absent or not root's alone. */
static int open_folder(int above, const char *name, int flags)
{
    int folder = openat(above, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);

    if (folder >= 0 && !is_roots_alone(folder, S_IFDIR)) {
        close(folder);
        folder = -1;
    }
    return folder;
}

/* Opens name in a folder and closes that. */
static int step_into(int above, const char *name)
{
    int folder = above < 0 ? -1 : open_folder(above, name, O_NOFOLLOW);

    if (above >= 0)
        close(above);
    return folder;
}

/* The name of the job's run: <job id>.<seconds>. */
static bool read_run(int spool, uint32_t job, char *name, size_t size)
{
    char link[16];
    int length = snprintf(link, sizeof(link), "%" PRIu32, job);
    ssize_t got = readlinkat(spool, link, name, size - 1);
    ssize_t place;

    if (got <= length + 1 || got >= (ssize_t)size - 1)
        return false;
    name[got] = '\0';
    if (strncmp(name, link, (size_t)length) != 0 || name[length] != '.')
        return false;
    for (place = length + 1; place < got; place++) {
        if (!isdigit((unsigned char)name[place]))
            return false;
    }
    return true;
}

static int open_run(const char *path, uint32_t job, const char **why)
{
    char name[NAME_BYTES];
    int spool = open_folder(AT_FDCWD, path, 0);
    int run;

    if (spool < 0) {
        *why = "the spool is absent, or not root's alone";
        return -1;
    }
    if (!read_run(spool, job, name, sizeof(name))) {
        close(spool);
        *why = "the job has no run in the spool";
        return -1;
    }
    run = step_into(step_into(spool, name), "root");
    if (run < 0)
        *why = "the run's folder is absent, or not root's alone";
    return run;
}

static int open_file(int run, const char **why)
{
    int flags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int file = openat(run, "task_exits", flags, 0600);
    struct stat info;

    if (file >= 0 && is_roots_alone(file, S_IFREG) && fstat(file, &info) == 0 && info.st_nlink == 1) {
        if (info.st_size + LINE_MAX_BYTES <= FILE_MAX)
            return file;
        *why = "the run's file of them is full";
    } else {
        *why = "the run's file of them can't be opened";
    }
    if (file >= 0)
        close(file);
    return -1;
}

static const char *step_name(uint32_t step, char *number, size_t size)
{
    switch (step) {
    case SLURM_BATCH_SCRIPT:
        return "batch";
    case SLURM_EXTERN_CONT:
        return "extern";
    case SLURM_INTERACTIVE_STEP:
        return "interactive";
    }
    snprintf(number, size, "%" PRIu32, step);
    return number;
}

static int format(char *line, size_t size, const struct task_exit *ended)
{
    char number[16];
    int status = ended->status;

    return snprintf(line, size,
        "step=%s task=%" PRIu32 " local=%d pid=%d status=%d exit=%d signal=%d start=%" PRId64 " end=%" PRId64 "\n",
        step_name(ended->step, number, sizeof(number)), ended->task, ended->local, (int)ended->pid, status,
        WIFEXITED(status) ? WEXITSTATUS(status) : 0, WIFSIGNALED(status) ? WTERMSIG(status) : 0, ended->begin,
        ended->end);
}

/* One write: several steps of a job append to one file. */
static bool append(int file, const struct task_exit *ended)
{
    char line[LINE_MAX_BYTES];
    int length = format(line, sizeof(line), ended);

    return length > 0 && length < (int)sizeof(line) && write(file, line, (size_t)length) == length;
}

/* A look at the spool would hold slurmstepd up for as long as the file system hangs. */
bool keep_exit(const struct settings *settings, const struct task_exit *ended, const char **why)
{
    int run, file;
    bool kept;

    if (access(settings->mark, F_OK) == 0) {
        *why = "the node's prolog gave up on a file system that hangs";
        return false;
    }
    run = open_run(settings->spool, ended->job, why);
    file = run < 0 ? -1 : open_file(run, why);
    kept = file >= 0 && append(file, ended);

    if (file >= 0 && !kept)
        *why = strerror(errno);
    if (file >= 0)
        close(file);
    if (run >= 0)
        close(run);
    return kept;
}
